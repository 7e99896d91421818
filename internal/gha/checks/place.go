package checks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// Place is what a run belongs to: the things that what came of it is told about.
type Place struct {
	API         string // base of the API
	Owner, Repo string
	// SHA is the commit that a check run and a status are put on.
	SHA string
	// Pull is the pull request; 0 where there is none.
	Pull int
	// RunURL is the page of the workflow's run, or "".
	RunURL string
	// Workflow and Job tell this gate from others, with its name.
	Workflow, Job string
}

// maxEvent bounds the file of the event. GitHub sends at most 25 MB to anybody.
const maxEvent = 25 << 20

const (
	digits  = "0123456789"
	hexes   = digits + "abcdef"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// of says whether a text is made of these characters alone, and of how many at
// most. Expressions would be compiled at the start of every box.
func of(text, chars string, most int) bool {
	return text != "" && len(text) <= most && strings.Trim(text, chars) == ""
}

// isRepo takes the names that GitHub gives, which need no escaping in a path.
func isRepo(owner, name string) bool {
	const most = 100
	return of(owner, letters+digits+"-_", most) && of(name, letters+digits+"-_.", most) && name != "." && name != ".."
}

func isCommit(sha string) bool {
	return (len(sha) == 40 || len(sha) == 64) && of(sha, hexes, len(sha))
}

// Locate finds out where a run belongs. An error says why nothing can be told.
func Locate(getenv func(string) string) (Place, error) {
	var event []byte
	if ofPull(getenv("GITHUB_EVENT_NAME")) {
		var err error
		if event, err = readEvent(getenv("GITHUB_EVENT_PATH")); err != nil {
			return Place{}, fmt.Errorf("read the event: %w", err)
		}
	}
	return locate(getenv, event)
}

func ofPull(event string) bool {
	return event == "pull_request" || event == "pull_request_review" || event == "pull_request_review_comment"
}

// readEvent reads the file that the runner names. Earlier steps of the job could
// write to it, so it is a file of some length, or nothing.
func readEvent(path string) ([]byte, error) {
	if path == "" {
		return nil, errors.New("GITHUB_EVENT_PATH is not set; a runner sets it")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEvent+1))
	if err == nil && len(b) > maxEvent {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxEvent)
	}
	return b, err
}

// pullEvent is the little of an event that is used. Titles, branches and bodies
// are written by whoever opened the pull request, and are not among it.
type pullEvent struct {
	PullRequest struct {
		Number int
		Head   struct{ SHA string }
	} `json:"pull_request"`
}

// locate is the pure part. Whatever it takes from outside has a form that can be
// put into the path of a request.
func locate(getenv func(string) string, event []byte) (Place, error) {
	p := Place{Job: getenv("GITHUB_JOB"), Workflow: workflow(getenv)}
	var err error
	if p.API, err = apiBase(getenv("GITHUB_API_URL")); err != nil {
		return Place{}, err
	}
	name := getenv("GITHUB_REPOSITORY")
	if p.Owner, p.Repo, _ = strings.Cut(name, "/"); !isRepo(p.Owner, p.Repo) {
		return Place{}, fmt.Errorf("GITHUB_REPOSITORY is %q, which is not OWNER/NAME", clip(name))
	}

	switch on := getenv("GITHUB_EVENT_NAME"); {
	case ofPull(on):
		// GITHUB_SHA is a commit that GitHub made to try the merge. It is in no
		// branch, and nobody would see a check on it: the page of a pull request
		// shows those of its last commit, and so do rules that require them.
		var e pullEvent
		if err := json.Unmarshal(event, &e); err != nil {
			return Place{}, fmt.Errorf("read the event: %w", err)
		}
		p.SHA, p.Pull = e.PullRequest.Head.SHA, e.PullRequest.Number
		if p.Pull < 1 {
			return Place{}, fmt.Errorf("the event %s names no pull request", on)
		}
	case on == "push", on == "merge_group", on == "schedule", on == "workflow_dispatch":
		// What ran is GITHUB_SHA. In a merge group that is the commit which would
		// become the branch, and it is the one whose checks the queue waits for.
		p.SHA = getenv("GITHUB_SHA")
	default:
		// On pull_request_target, workflow_run, issue_comment and the like
		// GITHUB_SHA is a commit of the default branch whatever was checked out. A
		// check would be a claim about a commit that did not run.
		return Place{}, fmt.Errorf("on the event %q it is not certain which commit ran", clip(on))
	}
	if !isCommit(p.SHA) {
		return Place{}, fmt.Errorf("%q is no commit", clip(p.SHA))
	}
	p.RunURL = runURL(getenv, name)
	return p, nil
}

// apiBase takes the API of github.com or of a server of one's own. The token goes
// there, so not in the clear: only a test on this machine may do without TLS.
func apiBase(text string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "", errors.New("GITHUB_API_URL is not set; a runner sets it")
	case err != nil, u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "", u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("GITHUB_API_URL is no address of an API")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return "", errors.New("GITHUB_API_URL has no https, so a token sent there could be read on the way")
	}
	return strings.TrimRight(u.String(), "/") + "/", nil
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback() || host == "localhost"
}

// runURL is the page of this run, for links. None is better than a wrong one.
func runURL(getenv func(string) string, repo string) string {
	base, err := apiBase(getenv("GITHUB_SERVER_URL"))
	id := getenv("GITHUB_RUN_ID")
	if err != nil || !of(id, digits, 19) || strings.ContainsAny(base, "()<>[]\"'` ") {
		return ""
	}
	return base + repo + "/actions/runs/" + id
}

// workflow is the file of the workflow from the root of its repository, and
// where that is not known its name.
func workflow(getenv func(string) string) string {
	// OWNER/NAME/PATH@REF; the ref is another for every pull request.
	file, _, _ := strings.Cut(getenv("GITHUB_WORKFLOW_REF"), "@")
	if file, ok := strings.CutPrefix(file, getenv("GITHUB_REPOSITORY")+"/"); ok && inTree(file) {
		return file
	}
	return getenv("GITHUB_WORKFLOW")
}

// inTree says whether an annotation can name a path: one from the root of the
// repository, of plain text.
func inTree(path string) bool {
	return path != "" && len(path) <= 4096 && filepath.IsLocal(path) && gha.Inert(path) == path && !strings.Contains(path, "\t")
}

// clip shortens what is quoted in a message; a quoted text is inert.
func clip(text string) string {
	const most = 100
	return cut(text, most)
}
