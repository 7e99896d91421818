package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

const (
	apiToken = "ghs_a0b1c2d3e4f5g6h7i8j9"
	apiSHA   = "00112233445566778899aabbccddeeff00112233"
)

// api stands in for the API of GitHub: internal/gha/checks has one that knows
// its rules, this one remembers what it was told.
type api struct {
	*httptest.Server
	status int // of every write; 0 is success

	mu     sync.Mutex
	seen   []string
	bodies string
	tokens map[string]bool
}

func newAPI(t *testing.T, status int) *api {
	a := &api{status: status, tokens: map[string]bool{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.seen = append(a.seen, r.Method+" "+r.URL.Path)
	a.bodies += string(body)
	a.tokens[r.Header.Get("Authorization")] = true
	a.mu.Unlock()
	switch {
	case r.URL.Path == "/graphql":
		_, _ = io.WriteString(w, `{"data": {"viewer": {"login": "github-actions[bot]"}}}`)
	case r.Method == http.MethodGet:
		_, _ = io.WriteString(w, `[]`)
	case a.status != 0:
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, `{"message": "Resource not accessible by integration"}`)
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id": 1}`)
	}
}

// told gives what the API saw, once nobody writes there any more.
func (a *api) told() (seen, bodies string, tokens map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.seen, "\n"), a.bodies, a.tokens
}

const allTold = "POST /repos/o/r/check-runs\nPOST /repos/o/r/statuses/" + apiSHA + "\nPOST /graphql\nGET /repos/o/r/issues/7/comments\nPOST /repos/o/r/issues/7/comments"

// action makes a run ready as the action starts it, on a pull request.
func action(t *testing.T, stepsFile, apiURL string, vars ...string) *running {
	t.Helper()
	r := prepare(t, "native", stepsFile)
	event := filepath.Join(r.dir, "event.json")
	if err := os.WriteFile(event, []byte(`{"pull_request": {"number": 7, "head": {"sha": "`+apiSHA+`"}}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r.cmd.Args = []string{toolName}
	r.cmd.Env = append(r.cmd.Env,
		"GITHUB_ACTIONS=true", "GITHUB_WORKSPACE="+r.cmd.Dir, "GITHUB_OUTPUT="+filepath.Join(r.dir, "output"),
		"GITHUB_STEP_SUMMARY="+filepath.Join(r.dir, "summary"), "GITHUB_EVENT_NAME=pull_request", "GITHUB_EVENT_PATH="+event,
		"GITHUB_API_URL="+apiURL, "GITHUB_REPOSITORY=o/r", "GITHUB_SHA="+strings.Repeat("9", 40), "GITHUB_SERVER_URL=https://github.example",
		"GITHUB_RUN_ID=5", "GITHUB_JOB=gate", "UNTRUSTED_STEPS_FILE="+filepath.Join(r.dir, "f.yml"), "UNTRUSTED_STEPS_ENGINE=native",
		"UNTRUSTED_STEPS_OUT="+filepath.Join(r.dir, "out"), "UNTRUSTED_STEPS_TOKEN="+apiToken,
		"UNTRUSTED_STEPS_CHECK_RUN=true", "UNTRUSTED_STEPS_COMMENT=true", "UNTRUSTED_STEPS_COMMIT_STATUS=true")
	r.cmd.Env = append(r.cmd.Env, vars...)
	return r
}

func (r *running) run() int {
	r.t.Helper()
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return r.end()
}

const oneFails = "steps: [{id: one, run: 'touch begun; exit 1'}]\n"

// TestAPullRequestIsTold: and the exit status is the same whatever becomes of it.
func TestAPullRequestIsTold(t *testing.T) {
	boxtest.Boxes(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, c := range []struct {
		name   string
		steps  string
		status int
		url    string // instead of the API's
		vars   []string
		exit   int
		seen   string
		log    []string
	}{
		{"a failure", oneFails, 0, "", nil, 1, allTold, nil},
		{"a pass", "steps: [{run: 'true'}]\n", 0, "", nil, 0, allTold, nil},
		{"nothing unless it is asked for", oneFails, 0, "",
			[]string{"UNTRUSTED_STEPS_CHECK_RUN=", "UNTRUSTED_STEPS_COMMENT=false", "UNTRUSTED_STEPS_COMMIT_STATUS=false"}, 1, "", nil},
		{"a pass makes no comment on-failure", "steps: [{run: 'true'}]\n", 0, "",
			[]string{"UNTRUSTED_STEPS_CHECK_RUN=", "UNTRUSTED_STEPS_COMMENT=on-failure", "UNTRUSTED_STEPS_COMMIT_STATUS="}, 0, "POST /graphql\nGET /repos/o/r/issues/7/comments", nil},
		{"a fork's token is one note, and a pass passes", "steps: [{run: 'true'}]\n", 403, "", nil, 0, allTold, []string{"check run, commit status, comment: not written, since the token may only read"}},
		{"a fork's token is one note, and a failure fails", oneFails, 403, "", nil, 1, allTold, []string{"not written"}},
		{"an API that refuses changes nothing", "steps: [{run: 'true'}]\n", 422, "", nil, 0, allTold, []string{"check run: the API answers 422"}},
		{"no API changes nothing", "steps: [{run: 'true'}]\n", 0, closed.URL, nil, 0, "", []string{"check run: the API does not answer", "comment: not sent"}},
		{"an event that names no pull request changes nothing", "steps: [{run: 'true'}]\n", 0, "", []string{"GITHUB_EVENT_PATH=/nowhere"}, 0, "", []string{"nothing is told to the pull request: read the event"}},
		{"nor does a token that is not there", oneFails, 0, "", []string{"UNTRUSTED_STEPS_TOKEN="}, 1, "", []string{"the input token is empty"}},
		{"a word that is neither true nor false is a wrong input, which is told by what else was asked for", oneFails, 0, "", []string{"UNTRUSTED_STEPS_CHECK_RUN=yes", "UNTRUSTED_STEPS_COMMENT="}, 2,
			"POST /repos/o/r/statuses/" + apiSHA, []string{"untrusted-steps: inputs: check-run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t, c.status)
			url := a.URL
			if c.url != "" {
				url = c.url
			}
			r := action(t, c.steps, url, c.vars...)
			if code := r.run(); code != c.exit {
				t.Errorf("exit status %d, want %d", code, c.exit)
			}
			seen, _, tokens := a.told()
			if seen != c.seen {
				t.Errorf("the API saw\n%s\nwant\n%s", seen, c.seen)
			}
			if len(tokens) > 1 || seen != "" && !tokens["Bearer "+apiToken] {
				t.Errorf("the API got tokens %v", tokens)
			}
			for _, w := range c.log {
				if strings.Count(r.log.String(), w) != 1 {
					t.Errorf("the log does not have %q once", w)
				}
			}
			if t.Failed() {
				t.Log(r.log.String())
			}
		})
	}
}

// TestWhatIsNotBegunIsTold: a check that was asked for is there, completed and a
// failure, also when nothing ran and there is no report. It never stays absent.
func TestWhatIsNotBegunIsTold(t *testing.T) {
	typo := "steps:\n  - id: one\n    run: touch begun\n    timeout: 5\n    name: \"@PWN ##[error]x\"\n    ##[error]\n  - {id: one, run: 'true'}\n"
	type annotation struct {
		Path      string
		Line      int    `json:"start_line"`
		Column    int    `json:"start_column"`
		EndColumn int    `json:"end_column"`
		Level     string `json:"annotation_level"`
	}
	at := func(path string, line, column int) annotation {
		return annotation{path, line, column, column, "failure"}
	}
	for _, c := range []struct {
		name, steps string
		status      int
		vars        []string
		exit        int
		seen        string
		title       string
		state       string
		annotations []annotation
		log         string // of stderr
	}{
		{name: "a steps file that is wrong", steps: typo, exit: 2, seen: allTold, title: `error: nothing ran, for 2 problems: `, state: "error",
			annotations: []annotation{at("f.yml", 4, 5), at("f.yml", 7, 10)}},
		{name: "no steps file at all", vars: []string{"UNTRUSTED_STEPS_FILE=nowhere.yml"}, exit: 2, seen: allTold, title: "error: nothing ran: there is no nowhere.yml", state: "error",
			annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "inline steps stand in the workflow", exit: 2, seen: allTold, title: "error: nothing ran: steps:1:21: ", state: "error",
			vars:        []string{"UNTRUSTED_STEPS_FILE=", "UNTRUSTED_STEPS_STEPS=- {id: one, run: x, ran: x}", "GITHUB_WORKFLOW_REF=o/r/.github/workflows/ci.yml@refs/x"},
			annotations: []annotation{{Path: ".github/workflows/ci.yml", Line: 1, Level: "failure"}}},
		{name: "a policy that is wrong", steps: oneFails, vars: []string{"UNTRUSTED_STEPS_POLICY=policy.yml"}, exit: 2, seen: allTold, title: "error: nothing ran: ", state: "error",
			annotations: []annotation{at("policy.yml", 1, 1)}},
		{name: "steps beyond a policy", steps: "steps:\n  - id: one\n    run: touch begun\n    diskMb: 99\n", vars: []string{"UNTRUSTED_STEPS_POLICY=tight.yml"}, exit: 2, seen: allTold,
			title: "error: nothing ran: ", state: "error", annotations: []annotation{at("f.yml", 4, 13)}},
		{name: "an input that is wrong", steps: oneFails, vars: []string{"UNTRUSTED_STEPS_JOBS=many"}, exit: 2, seen: allTold, title: `error: nothing ran: inputs: jobs: "many" is no number`, state: "error",
			annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "both of two inputs", steps: oneFails, vars: []string{"UNTRUSTED_STEPS_STEPS=- run: x"}, exit: 2, seen: allTold, title: "error: nothing ran: inputs: the inputs file and steps are both set", state: "error",
			annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "a merge of what is no report", vars: []string{"UNTRUSTED_STEPS_MERGE=.", "UNTRUSTED_STEPS_FILE="}, exit: 2, seen: allTold, title: "error: nothing ran: merge: ", state: "error",
			annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "a host without a place for a report", steps: oneFails, vars: []string{"UNTRUSTED_STEPS_OUT=", "TMPDIR=/proc/nowhere"}, exit: 3, seen: allTold,
			title: "refused: nothing ran: no folder for the report could be made", state: "error", annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "a host that cannot enforce it", steps: oneFails, vars: []string{"UNTRUSTED_STEPS_ENGINE=kern", "KERN_BIN=/bin/true"}, exit: 3, seen: allTold,
			title: "refused: nothing ran, because this host cannot enforce what the steps ask", state: "error", annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "a host that cannot enforce it without the engine that is named", steps: oneFails, exit: 3, seen: allTold,
			vars:  []string{"UNTRUSTED_STEPS_ENGINE=kern", "KERN_BIN=", "HOME=/nowhere", "XDG_CACHE_HOME=", "PATH=/nowhere"},
			title: "refused: nothing ran, because this host cannot enforce what the steps ask", state: "error", annotations: []annotation{{Path: ".github", Line: 1, Level: "failure"}}},
		{name: "nothing is told unless it is asked for", steps: typo, exit: 2,
			vars: []string{"UNTRUSTED_STEPS_CHECK_RUN=", "UNTRUSTED_STEPS_COMMENT=false", "UNTRUSTED_STEPS_COMMIT_STATUS="}},
		{name: "a fork's token changes nothing", steps: typo, status: 403, exit: 2, seen: allTold, log: "untrusted-steps: check run, commit status, comment: not written, since the token may only read"},
		{name: "a privileged event is not one whose commit ran", steps: oneFails, vars: []string{"GITHUB_EVENT_NAME=pull_request_target"}, exit: 2,
			log: "nothing is told to the pull request: on the event \"pull_request_target\" it is not certain which commit ran"},
		{name: "nor is a name that cannot be one told under another", steps: typo, vars: []string{"UNTRUSTED_STEPS_CHECK_NAME=a\x1bb"}, exit: 2, log: "check-name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t, c.status)
			r := action(t, c.steps, a.URL, append([]string{"GITHUB_WORKSPACE="}, c.vars...)...)
			// The file stands in the checkout, where annotations point at it.
			r.cmd.Env = append(r.cmd.Env, "GITHUB_WORKSPACE="+r.dir, "UNTRUSTED_STEPS_WORKSPACE="+r.cmd.Dir)
			r.cmd.Dir = r.dir
			for name, text := range map[string]string{"policy.yml": "what: 1\n", "tight.yml": "diskMb: 10\n", "ws/x": ""} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(r.dir, name)), 0o755), os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if code := r.run(); code != c.exit {
				t.Errorf("exit status %d, want %d", code, c.exit)
			}
			seen, bodies, _ := a.told()
			if seen != c.seen {
				t.Errorf("the API saw\n%s\nwant\n%s", seen, c.seen)
			}
			if strings.Contains(bodies, apiToken) || !strings.Contains(r.log.String(), c.log) {
				t.Errorf("the token is in what was told, or the log does not have %q", c.log)
			}
			if c.title != "" {
				var run struct {
					Status, Conclusion string
					Output             struct {
						Title       string
						Annotations []annotation
					}
				}
				var status struct{ State, Description string }
				d := json.NewDecoder(strings.NewReader(bodies))
				if err := errors.Join(d.Decode(&run), d.Decode(&status)); err != nil {
					t.Fatalf("%v: %s", err, bodies)
				}
				if run.Status != "completed" || run.Conclusion != "failure" || !strings.HasPrefix(run.Output.Title, c.title) || status.State != c.state || !strings.HasPrefix(status.Description, run.Output.Title[:20]) {
					t.Errorf("told %+v and %+v", run, status)
				}
				if diff := cmp.Diff(c.annotations, run.Output.Annotations); diff != "" {
					t.Errorf("annotations (-want +got)\n%s", diff)
				}
			}
			if _, err := os.Stat(filepath.Join(r.dir, "out/report.json")); (err == nil) != strings.Contains(c.name, "enforce") {
				t.Errorf("a report: %v", err)
			}
			if t.Failed() {
				t.Log(r.log.String())
			}
		})
	}
}

// TestTheTokenStaysOutside: no box, log, report or summary has it, and what a
// step prints by chance is masked.
func TestTheTokenStaysOutside(t *testing.T) {
	boxtest.Boxes(t)
	a := newAPI(t, 0)
	// The second half is put together in the box, which has only the workspace.
	r := action(t, `steps:
  - id: looks
    passEnv: [UNTRUSTED_STEPS_TOKEN, INPUT_TOKEN]
    run: |
      env >env.txt
      cat /proc/*/environ >>env.txt 2>/dev/null || true
      grep -qa ghs_ env.txt && touch found
      cat leaked
      exit 1
`, a.URL, "INPUT_TOKEN="+apiToken)
	if err := os.WriteFile(filepath.Join(r.cmd.Dir, "leaked"), []byte("it was "+apiToken+" all along\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := r.run(); code != 1 {
		t.Fatalf("exit status %d\n%s", code, &r.log)
	}
	if !strings.Contains(r.log.String(), "it was *** all along") {
		t.Errorf("the step's line is not in the log, masked:\n%s", &r.log)
	}
	_, bodies, _ := a.told()
	if !strings.Contains(bodies, "all along") {
		t.Error("the API was not told of the step's output, so its being clean shows nothing")
	}
	texts := map[string]string{"log": r.log.String(), "what the API was told": bodies}
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) == "leaked" {
			return err
		}
		b, err := os.ReadFile(path)
		texts[path] = string(b)
		return err
	})
	if err != nil || len(texts) < 6 {
		t.Fatalf("%d texts: %v", len(texts), err)
	}
	for name, text := range texts {
		if strings.Contains(text, apiToken) {
			t.Errorf("the token is in %s", name)
		}
		if strings.HasSuffix(name, "/found") {
			t.Error("a box saw it")
		}
	}
}

// TestStepsCannotAskForTheToken: whoever wrote them would have it.
func TestStepsCannotAskForTheToken(t *testing.T) {
	for _, c := range []struct {
		name, steps string
		vars        []string
		err         string
	}{
		{"by another variable that holds it", "steps: [{id: one, run: touch begun, passEnv: [GITHUB_TOKEN]}]\n", []string{"GITHUB_TOKEN=" + apiToken}, "step one: passEnv: GITHUB_TOKEN"},
		{"by one that has it in it", "steps: [{id: one, run: touch begun, passEnv: [NETRC]}]\n", []string{"NETRC=password " + apiToken}, "step one: passEnv: NETRC"},
		{"by an expression in env", "steps: [{run: touch begun, env: {T: " + apiToken + "}}]\n", nil, "stands in the steps"},
		{"by an expression in a script", "steps: [{run: 'touch begun; curl -H " + apiToken + "'}]\n", nil, "stands in the steps"},
	} {
		a := newAPI(t, 0)
		r := action(t, c.steps, a.URL, c.vars...)
		code := r.run()
		_, began := os.Stat(filepath.Join(r.cmd.Dir, "begun"))
		if _, bodies, _ := a.told(); strings.Contains(bodies, apiToken) || !strings.Contains(bodies, "nothing ran") {
			t.Errorf("%s: the API was told %s", c.name, bodies)
		}
		if code != 2 || began == nil || !strings.Contains(r.log.String(), c.err) || strings.Contains(r.log.String(), apiToken) {
			t.Errorf("%s: exit status %d, the step began: %v\n%s", c.name, code, began == nil, &r.log)
		}
	}
}

// TestACancelTellsNobody: the runner's few seconds are for ending.
func TestACancelTellsNobody(t *testing.T) {
	boxtest.Boxes(t)
	a := newAPI(t, 0)
	mark := marker()
	r := action(t, "steps: [{id: one, run: sleep "+mark+", timeoutS: 90}]\n", a.URL)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(20*time.Second, func() bool { return len(alive(t, mark)) > 0 }) {
		t.Fatal("the step did not begin")
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != exitCancelled {
		t.Errorf("exit status %d\n%s", code, &r.log)
	}
	if seen, _, _ := a.told(); seen != "" {
		t.Errorf("after a cancel the API saw\n%s", seen)
	}
}
