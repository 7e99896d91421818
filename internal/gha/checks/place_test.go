package checks

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runner is what a runner sets on a pull request.
func runner() map[string]string {
	return map[string]string{
		"GITHUB_API_URL": "https://api.github.example", "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "o/r",
		"GITHUB_EVENT_NAME": "pull_request", "GITHUB_SHA": strings.Repeat("2", 40), "GITHUB_RUN_ID": "99", "GITHUB_JOB": "gate",
		"GITHUB_WORKFLOW": "CI", "GITHUB_WORKFLOW_REF": "o/r/.github/workflows/ci.yml@refs/pull/7/merge",
	}
}

const pullJSON = `{"pull_request": {"number": 7, "title": "::set-env::", "head": {"sha": "` + headSHA + `", "ref": "$(x)"}, "base": {"sha": "x"}}, "number": 9}`

func TestLocate(t *testing.T) {
	want := Place{
		API: "https://api.github.example/", Owner: "o", Repo: "r", SHA: headSHA, Pull: 7, RunURL: "https://github.example/o/r/actions/runs/99",
		Workflow: ".github/workflows/ci.yml", Job: "gate",
	}
	pushed := want
	pushed.SHA, pushed.Pull = strings.Repeat("2", 40), 0
	own := want
	own.API = "https://ghe.example/api/v3/"
	named := want
	named.Workflow = "CI"
	noPage := want
	noPage.RunURL = ""
	long := want
	long.SHA = strings.Repeat("a", 64)
	for _, c := range []struct {
		name  string
		set   map[string]string
		event string
		want  Place
		err   string
	}{
		{"a pull request: its last commit, not the merge that was tried", nil, pullJSON, want, ""},
		{"a review of one", map[string]string{"GITHUB_EVENT_NAME": "pull_request_review"}, pullJSON, want, ""},
		{"a push: the commit that was pushed", map[string]string{"GITHUB_EVENT_NAME": "push"}, "", pushed, ""},
		{"a merge group: the commit that would become the branch", map[string]string{"GITHUB_EVENT_NAME": "merge_group"}, `{"merge_group":{"head_sha":"x"}}`, pushed, ""},
		{"a schedule", map[string]string{"GITHUB_EVENT_NAME": "schedule"}, "", pushed, ""},
		{"a server of one's own", map[string]string{"GITHUB_API_URL": "https://ghe.example/api/v3"}, pullJSON, own, ""},
		{"a sum of sixty-four digits", nil, strings.ReplaceAll(pullJSON, headSHA, strings.Repeat("a", 64)), long, ""},
		{"a workflow of another repository goes by its name", map[string]string{"GITHUB_WORKFLOW_REF": "x/y/a.yml@b"}, pullJSON, named, ""},
		{"a workflow's path that leads out goes by its name", map[string]string{"GITHUB_WORKFLOW_REF": "o/r/../a.yml@b"}, pullJSON, named, ""},
		{"a run's number that is none makes no link", map[string]string{"GITHUB_RUN_ID": "9)[x](y"}, pullJSON, noPage, ""},
		{"a server that is none makes no link", map[string]string{"GITHUB_SERVER_URL": "javascript:x"}, pullJSON, noPage, ""},

		{"pull_request_target: GITHUB_SHA did not run", map[string]string{"GITHUB_EVENT_NAME": "pull_request_target"}, pullJSON, Place{}, "not certain"},
		{"workflow_run", map[string]string{"GITHUB_EVENT_NAME": "workflow_run"}, pullJSON, Place{}, "not certain"},
		{"issue_comment", map[string]string{"GITHUB_EVENT_NAME": "issue_comment"}, pullJSON, Place{}, "not certain"},
		{"no event", map[string]string{"GITHUB_EVENT_NAME": ""}, pullJSON, Place{}, "not certain"},
		{"an event that is not JSON", nil, "{", Place{}, "read the event"},
		{"an event of another form", nil, `{"pull_request": []}`, Place{}, "read the event"},
		{"a number that is a text", nil, strings.Replace(pullJSON, "7", `"7/../../x"`, 1), Place{}, "read the event"},
		{"an event without a pull request", nil, "{}", Place{}, "names no pull request"},
		{"a number below one", nil, strings.Replace(pullJSON, "7", "-7", 1), Place{}, "names no pull request"},
		{"a commit that is a path", nil, strings.ReplaceAll(pullJSON, headSHA, "../../../user/keys"), Place{}, "is no commit"},
		{"a commit that is a branch", nil, strings.ReplaceAll(pullJSON, headSHA, "main"), Place{}, "is no commit"},
		{"a commit in capitals", nil, strings.ReplaceAll(pullJSON, headSHA, strings.Repeat("A", 40)), Place{}, "is no commit"},
		{"no commit", map[string]string{"GITHUB_EVENT_NAME": "push", "GITHUB_SHA": ""}, "", Place{}, "is no commit"},
		{"no repository", map[string]string{"GITHUB_REPOSITORY": ""}, pullJSON, Place{}, "GITHUB_REPOSITORY"},
		{"a repository that leads elsewhere", map[string]string{"GITHUB_REPOSITORY": "o/.."}, pullJSON, Place{}, "GITHUB_REPOSITORY"},
		{"a repository with a path", map[string]string{"GITHUB_REPOSITORY": "o/r/x"}, pullJSON, Place{}, "GITHUB_REPOSITORY"},
		{"a repository with a question", map[string]string{"GITHUB_REPOSITORY": "o/r?x"}, pullJSON, Place{}, "GITHUB_REPOSITORY"},
		{"no API", map[string]string{"GITHUB_API_URL": ""}, pullJSON, Place{}, "GITHUB_API_URL"},
		{"an API without TLS", map[string]string{"GITHUB_API_URL": "http://api.github.example"}, pullJSON, Place{}, "https"},
		{"an API with a password", map[string]string{"GITHUB_API_URL": "https://u:p@api.github.example"}, pullJSON, Place{}, "no address"},
		{"an API of another kind", map[string]string{"GITHUB_API_URL": "file:///etc"}, pullJSON, Place{}, "no address"},
		{"an API with a question", map[string]string{"GITHUB_API_URL": "https://a.example/?x="}, pullJSON, Place{}, "no address"},
	} {
		vars := runner()
		maps.Copy(vars, c.set)
		got, err := locate(func(n string) string { return vars[n] }, []byte(c.event))
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestTheEventIsAFileOfSomeLength(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(file("good"), []byte(pullJSON), 0o600), os.Symlink("good", file("link")), syscall.Mkfifo(file("fifo"), 0o600),
		os.WriteFile(file("huge"), nil, 0o600), os.Truncate(file("huge"), maxEvent+1)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, path, err string }{
		{"a file", file("good"), ""},
		{"a link", file("link"), "read the event"},
		{"a pipe that nobody writes to", file("fifo"), "not a regular file"},
		{"a folder", dir, "not a regular file"},
		{"one that is not there", file("none"), "read the event"},
		{"one that is too long", file("huge"), "longer than"},
		{"none", "", "GITHUB_EVENT_PATH"},
	} {
		vars := runner()
		vars["GITHUB_EVENT_PATH"] = c.path
		_, err := Locate(func(n string) string { return vars[n] })
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
	}
	vars := runner()
	vars["GITHUB_EVENT_NAME"], vars["GITHUB_EVENT_PATH"] = "push", "/nowhere"
	if _, err := Locate(func(n string) string { return vars[n] }); err != nil {
		t.Errorf("a push needs no event, and: %v", err)
	}
}
