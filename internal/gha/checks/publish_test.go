package checks

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

const (
	createRun     = "POST /repos/o/r/check-runs"
	updateRun     = "PATCH /repos/o/r/check-runs/1"
	createStatus  = "POST /repos/o/r/statuses/" + headSHA
	askWho        = "POST /graphql"
	listComments  = "GET /repos/o/r/issues/7/comments"
	createComment = "POST /repos/o/r/issues/7/comments"
)

func plan(f *fake, want Want, verdict string, annotations int) Plan {
	list := make([]gha.Annotation, annotations)
	for i := range list {
		list[i] = gha.Annotation{Kind: gha.Error, Title: fmt.Sprint(i), Message: "m", File: "a.yml", Line: i + 1}
	}
	return Make(Input{Result: result(verdict, 1, "x"), Annotations: list, Want: want, Place: f.place()})
}

func TestEverythingIsTold(t *testing.T) {
	f := newFake(t)
	notes, slept := f.publish(plan(f, everything, "fail", 120))
	if len(notes) > 0 || len(slept) > 0 {
		t.Fatalf("notes %q, waits %v", notes, slept)
	}
	want := []string{createRun, updateRun, updateRun, createStatus, askWho, listComments, createComment}
	if diff := cmp.Diff(want, f.log()); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
	r := f.runs[0]
	if diff := cmp.Diff([]int{50, 50, 20}, r.Sizes); diff != "" {
		t.Errorf("batches (-want +got)\n%s", diff)
	}
	if r.Name != DefaultName || r.Status != "completed" || r.Conclusion != "failure" || r.SHA != headSHA || !strings.HasPrefix(r.Title, "fail: 1 of 1 step failed") ||
		!strings.Contains(r.Summary, "step-1") || r.Details != f.place().RunURL || len(r.Annotations) != 120 {
		t.Errorf("the check run is %+v", r)
	}
	if got := f.statuses[0]; got["state"] != "failure" || got["context"] != DefaultName || got["target_url"] != f.place().RunURL || !strings.HasPrefix(got["description"], "fail: ") {
		t.Errorf("the status is %v", got)
	}
	if len(f.comments) != 1 || !strings.Contains(f.comments[0].Body, "step-1") {
		t.Errorf("the comments are %v", f.comments)
	}
	if diff := cmp.Diff(map[string]bool{"Bearer " + secret: true}, f.tokens); diff != "" {
		t.Errorf("tokens (-want +got)\n%s", diff)
	}
}

// TestWhatWasNotBegunIsTold: the check is there, completed, with each problem at its
// place in the steps file.
func TestWhatWasNotBegunIsTold(t *testing.T) {
	f := newFake(t)
	u := &Unstarted{Verdict: "error", Problems: []string{`f.yml:4:5: unknown key "timeout" in a step` + "\n  hint: did you mean timeoutS?", "f.yml:7:1: another"}}
	list := []gha.Annotation{
		{Kind: gha.Error, Rank: 2, Title: "nothing ran", Message: u.Problems[0], File: ".github/f.yml", Line: 4, Column: 5},
		{Kind: gha.Error, Rank: 1, Title: "nothing ran", Message: u.Problems[1], File: ".github/f.yml", Line: 7, Column: 1},
	}
	if notes, _ := f.publish(Make(Input{Unstarted: u, Annotations: list, Want: everything, Place: f.place()})); len(notes) > 0 {
		t.Fatal(notes)
	}
	const said = `error: nothing ran, for 2 problems: f.yml:4:5: unknown key "timeout" in a step`
	r := f.runs[0]
	if r.Name != DefaultName || r.Status != "completed" || r.Conclusion != "failure" || r.SHA != headSHA || r.Title != said || !strings.Contains(r.Summary, "did you mean timeoutS?") {
		t.Errorf("the check run is %+v", r)
	}
	want := []map[string]any{
		{"path": ".github/f.yml", "start_line": 4.0, "end_line": 4.0, "start_column": 5.0, "end_column": 5.0, "annotation_level": "failure", "title": "nothing ran", "message": u.Problems[0]},
		{"path": ".github/f.yml", "start_line": 7.0, "end_line": 7.0, "start_column": 1.0, "end_column": 1.0, "annotation_level": "failure", "title": "nothing ran", "message": u.Problems[1]},
	}
	if diff := cmp.Diff(want, r.Annotations); diff != "" {
		t.Errorf("annotations (-want +got)\n%s", diff)
	}
	if got := f.statuses[0]; got["state"] != "error" || got["description"] != said {
		t.Errorf("the status is %v", got)
	}
	if len(f.comments) != 1 || !strings.Contains(f.comments[0].Body, "unknown key") {
		t.Errorf("the comments are %v", f.comments)
	}
}

func TestAServerOfOnesOwn(t *testing.T) {
	f := newFake(t)
	f.prefix = "/api/v3"
	at := f.place()
	// Its other API is beside the first.
	var paths []string
	f.fault = func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		paths = append(paths, r.Method+" "+r.URL.Path)
		return false
	}
	if notes, _ := f.publish(Make(Input{Result: result("pass", 0, ""), Want: everything, Place: at})); len(notes) > 0 {
		t.Fatal(notes)
	}
	want := []string{"POST /api/v3/repos/o/r/check-runs", "POST /api/v3/repos/o/r/statuses/" + headSHA, "POST /api/graphql",
		"GET /api/v3/repos/o/r/issues/7/comments", "POST /api/v3/repos/o/r/issues/7/comments"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}
}

func TestOneCommentIsKeptUpToDate(t *testing.T) {
	f := newFake(t)
	only := Want{Comment: Always, Name: DefaultName}
	other := Want{Comment: Always, Name: "another gate"}
	for _, w := range []Want{only, other, only, other, only} {
		if notes, _ := f.publish(plan(f, w, "fail", 0)); len(notes) > 0 {
			t.Fatal(notes)
		}
	}
	if len(f.comments) != 2 {
		t.Fatalf("two gates have %d comments", len(f.comments))
	}
	if notes, _ := f.publish(plan(f, only, "pass", 0)); len(notes) > 0 {
		t.Fatal(notes)
	}
	if !strings.Contains(f.comments[0].Body, "pass") || strings.Contains(f.comments[1].Body, "\u2705 pass") {
		t.Errorf("the wrong comment was updated: %v", f.comments)
	}
}

// TestOnlyOurOwnCommentIsTouched: the marker can be pasted by anybody.
func TestOnlyOurOwnCommentIsTouched(t *testing.T) {
	for _, c := range []struct {
		name string
		by   [2]string
		body func(marker string) string
		ours bool
	}{
		{"ours", [2]string{"github-actions[bot]", "Bot"}, func(m string) string { return m + "\nold" }, true},
		{"a person's with our marker", [2]string{"mallory", "User"}, func(m string) string { return m + "\nold" }, false},
		{"a person's with a name like ours", [2]string{"github-actions", "User"}, func(m string) string { return m }, false},
		{"an app's with a name that ends like ours", [2]string{"github-actions[bot][bot]", "Bot"}, func(m string) string { return m }, false},
		{"another app's", [2]string{"other[bot]", "Bot"}, func(m string) string { return m }, false},
		{"ours that quotes the marker", [2]string{"github-actions[bot]", "Bot"}, func(m string) string { return "> " + m }, false},
		{"ours of another gate", [2]string{"github-actions[bot]", "Bot"}, func(string) string { return "<!-- untrusted-steps 0000000000000000 -->" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			p := plan(f, Want{Comment: Always, Name: DefaultName}, "fail", 0)
			f.add(by(c.by[0], c.by[1], c.body(p.Comment.Marker)))
			if notes, _ := f.publish(p); len(notes) > 0 {
				t.Fatal(notes)
			}
			touched := strings.Contains(f.comments[0].Body, "step-1")
			if touched != c.ours || len(f.comments) == 1 != c.ours {
				t.Errorf("touched %v, %d comments", touched, len(f.comments))
			}
		})
	}
}

func TestOurCommentIsFoundAmongMany(t *testing.T) {
	f := newFake(t)
	p := plan(f, Want{Comment: OnFailure, Name: DefaultName}, "pass", 0)
	for range 345 {
		f.add(by("someone", "User", "hello"))
	}
	f.add(by("github-actions[bot]", "Bot", p.Comment.Marker+"\nfail"))
	if notes, _ := f.publish(p); len(notes) > 0 {
		t.Fatal(notes)
	}
	if !strings.Contains(f.comments[345].Body, "pass") || len(f.comments) != 346 {
		t.Errorf("%d comments, ours is %q", len(f.comments), f.comments[345].Body)
	}
	if diff := cmp.Diff([]string{askWho, listComments, listComments, listComments, listComments, "PATCH /repos/o/r/issues/comments/346"}, f.log()); diff != "" {
		t.Errorf("requests (-want +got)\n%s", diff)
	}

	// More than we look through: no second one is made.
	f = newFake(t)
	for range 1001 {
		f.add(by("someone", "User", "hello"))
	}
	notes, _ := f.publish(plan(f, Want{Comment: Always, Name: DefaultName}, "fail", 0))
	if len(notes) != 1 || !strings.Contains(notes[0], "too many comments") || len(f.comments) != 1001 {
		t.Errorf("notes %q, %d comments", notes, len(f.comments))
	}
}

func TestOnFailureAPassMakesNoComment(t *testing.T) {
	f := newFake(t)
	if notes, _ := f.publish(plan(f, Want{Comment: OnFailure, Name: DefaultName}, "pass", 0)); len(notes) > 0 || len(f.comments) > 0 {
		t.Errorf("notes %q, comments %v", notes, f.comments)
	}
}

// bad is one way for the API to fail on one kind of request.
type bad struct {
	name     string
	on       string // method and path
	times    int    // how often; 0 is always
	answer   func(w http.ResponseWriter)
	notes    []string // what each has
	requests []string
	waits    int
}

func status(code int, message, doc string, kv ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(kv); i += 2 {
			w.Header().Set(kv[i], kv[i+1])
		}
		refuse(w, code, message, doc)
	}
}

// hangUp closes the connection without an answer, or in the middle of one.
func hangUp(head string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = c.Write([]byte(head))
			_ = c.Close()
		}
	}
}

func TestTheAPIFails(t *testing.T) {
	integration := "Resource not accessible by integration"
	secondary := "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	later := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	rest := []string{createStatus, askWho, listComments, createComment}
	after := func(first ...string) []string { return append(first, rest...) }
	for _, c := range []bad{
		{name: "a check run that a token may not write is one quiet note, and the rest goes on", on: createRun, answer: status(403, integration, ""),
			notes: []string{"check run: not written, since the token may only read"}, requests: after(createRun)},
		{name: "404 is not tried again", on: createRun, answer: status(404, "Not Found", ""), notes: []string{"check run: the API answers 404: Not Found"}, requests: after(createRun)},
		{name: "422 is not tried again", on: createRun, answer: status(422, "Validation Failed", ""), notes: []string{"check run: the API answers 422: Validation Failed"}, requests: after(createRun)},
		{name: "401 ends it", on: createRun, answer: status(401, "Bad credentials", ""), notes: []string{"check run: the API does not know the token", "commit status: not sent", "comment: not sent"}, requests: []string{createRun}},
		{name: "a fault of the moment is tried again", on: createRun, times: 2, answer: status(502, "Server Error", ""), requests: after(createRun, createRun, createRun), waits: 2},
		{name: "a fault that stays is left alone", on: createRun, answer: status(500, "", ""), notes: []string{"check run: the API answers 500 (tried 3 times)"}, requests: after(createRun, createRun, createRun), waits: 2},
		{name: "a page of a proxy is no JSON, and its status counts", on: createRun, times: 1, answer: func(w http.ResponseWriter) {
			w.WriteHeader(503)
			_, _ = w.Write([]byte("<html>"))
		}, requests: after(createRun, createRun), waits: 1},
		{name: "a success that is no JSON is not sent again", on: createRun, answer: func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) },
			notes: []string{"check run: the API answers with what is not its JSON"}, requests: after(createRun)},
		{name: "a limit of the hour that ends late ends it", on: createRun, answer: status(403, "API rate limit exceeded", "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", later),
			notes: []string{"check run: the API takes no more requests for ", "commit status: not sent", "comment: not sent"}, requests: []string{createRun}},
		{name: "one that ends at once is waited for", on: createRun, times: 1, answer: status(429, "API rate limit exceeded", "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1"),
			requests: after(createRun, createRun), waits: 1},
		{name: "a secondary limit that says how long is waited for", on: createStatus, times: 1, answer: status(429, secondary, "", "Retry-After", "2"),
			requests: []string{createRun, createStatus, createStatus, askWho, listComments, createComment}, waits: 1},
		{name: "a secondary limit that says too long ends it", on: createRun, answer: status(403, secondary, "/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits", "Retry-After", "60"),
			notes: []string{"check run: the API takes no more requests for 1m0s", "commit status: not sent", "comment: not sent"}, requests: []string{createRun}},
		{name: "so does one that is within the time for all but too long for one", on: createRun, answer: status(429, secondary, "", "Retry-After", "12"),
			notes: []string{"check run: the API takes no more requests for 12s", "commit status: not sent", "comment: not sent"}, requests: []string{createRun}},
		{name: "a secondary limit that does not say ends it", on: createRun, answer: status(403, secondary, "/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"),
			notes: []string{"check run: the API takes no more requests for 1m0s", "commit status", "comment"}, requests: []string{createRun}},
		{name: "one that stays ends it", on: createStatus, answer: status(429, secondary, "", "Retry-After", "1"),
			notes: []string{"commit status: the API takes no more requests for 1s", "comment: not sent"}, requests: []string{createRun, createStatus, createStatus, createStatus}, waits: 2},
		{name: "a connection that breaks is tried again", on: createStatus, times: 1, answer: hangUp(""), requests: []string{createRun, createStatus, createStatus, askWho, listComments, createComment}, waits: 1},
		{name: "an answer that breaks off is not sent again", on: createRun, answer: hangUp("HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"id\":"),
			notes: []string{"check run: the API answers with what is not its JSON"}, requests: after(createRun)},
		{name: "nobody who answers ends it", on: createRun, answer: hangUp(""), notes: []string{"check run: the API does not answer", "commit status: not sent", "comment: not sent"},
			requests: []string{createRun, createRun, createRun}, waits: 2},
		{name: "a redirect of a POST is not followed as a GET", on: createRun, answer: status(301, "Moved Permanently", "", "Location", "/repositories/1/check-runs"),
			notes: []string{"check run: the API redirects"}, requests: after(createRun)},
		{name: "who we are cannot be told, so no comment is touched", on: askWho, answer: func(w http.ResponseWriter) {
			say(w, 200, map[string]any{"data": nil, "errors": []map[string]string{{"type": "FORBIDDEN"}}})
		}, notes: []string{"comment: it cannot be told which comments are its own"}, requests: []string{createRun, createStatus, askWho}},
		{name: "comments that may not be listed", on: listComments, answer: status(403, integration, ""), notes: []string{"comment: not written, since the token may only read"},
			requests: []string{createRun, createStatus, askWho, listComments}},
		{name: "a comment on a conversation that is locked", on: createComment, answer: status(403, "Unable to create comment because issue is locked.", ""),
			notes: []string{"comment: the API answers 403: Unable to create comment because issue is locked."}, requests: after(createRun)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.fault = func(w http.ResponseWriter, r *http.Request, n int) bool {
				if r.Method+" "+r.URL.Path != c.on || c.times > 0 && n > c.times {
					return false
				}
				c.answer(w)
				return true
			}
			notes, waits := f.publish(plan(f, everything, "fail", 1))
			for i := range max(len(notes), len(c.notes)) {
				if i >= len(notes) || i >= len(c.notes) || !strings.HasPrefix(notes[i], c.notes[i]) {
					t.Errorf("notes %q, want %q", notes, c.notes)
					break
				}
			}
			if diff := cmp.Diff(c.requests, f.log()); diff != "" {
				t.Errorf("requests (-want +got)\n%s", diff)
			}
			if len(waits) != c.waits {
				t.Errorf("waits %v, want %d", waits, c.waits)
			}
			for _, n := range notes {
				if strings.Contains(n, secret) || strings.Contains(n, "\n") {
					t.Errorf("the note %q has the token, or more than a line", n)
				}
			}
		})
	}
}

// TestAForkIsOneQuietNote: its token may read, and that is all.
func TestAForkIsOneQuietNote(t *testing.T) {
	f := newFake(t)
	f.fault = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		return r.Method != http.MethodGet && r.URL.Path != "/graphql" && refuse(w, 403, "Resource not accessible by integration", "")
	}
	notes, waits := f.publish(plan(f, everything, "fail", 120))
	want := []string{"check run, commit status, comment: not written, since the token may only read, as in every pull request from a fork; the summary and the exit status say the same"}
	if diff := cmp.Diff(want, notes); diff != "" || len(waits) > 0 {
		t.Errorf("notes (-want +got)\n%s\nwaits %v", diff, waits)
	}
}

// TestALostAnswerMakesNoSecondComment: it is looked for again before it is sent
// again.
func TestALostAnswerMakesNoSecondComment(t *testing.T) {
	f := newFake(t)
	f.fault = func(w http.ResponseWriter, r *http.Request, n int) bool {
		if r.Method+" "+r.URL.Path != createComment || n > 1 {
			return false
		}
		f.fault = nil
		f.ServeHTTP(httptest.NewRecorder(), r) // it is made, and nobody hears of it
		hangUp("")(w)
		return true
	}
	notes, _ := f.publish(plan(f, Want{Comment: Always, Name: DefaultName}, "fail", 0))
	if len(notes) > 0 || len(f.comments) != 1 {
		t.Errorf("notes %q, %d comments", notes, len(f.comments))
	}
}

// TestAnnotationsThatDoNotGetThereAreCounted: the conclusion does.
func TestAnnotationsThatDoNotGetThereAreCounted(t *testing.T) {
	f := newFake(t)
	f.fault = func(w http.ResponseWriter, r *http.Request, n int) bool {
		return r.Method == http.MethodPatch && n > 1 && refuse(w, 422, "Validation Failed", "")
	}
	notes, _ := f.publish(plan(f, Want{CheckRun: true, Name: "n"}, "fail", 180))
	if diff := cmp.Diff([]string{"check run: 80 annotations are not shown: the API answers 422: Validation Failed"}, notes); diff != "" {
		t.Errorf("notes (-want +got)\n%s", diff)
	}
	if r := f.runs[0]; r.Conclusion != "failure" || len(r.Annotations) != 100 {
		t.Errorf("the check run is %s with %d annotations", r.Conclusion, len(r.Annotations))
	}
}

// TestRedirectsDoNotCarryTheToken: neither to another host nor to the same one
// without TLS.
func TestRedirectsDoNotCarryTheToken(t *testing.T) {
	var got []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		say(w, 200, []any{})
	}))
	defer elsewhere.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		for _, on := range []string{createRun, listComments} {
			f := newFake(t)
			f.fault = func(w http.ResponseWriter, r *http.Request, _ int) bool {
				if r.Method+" "+r.URL.Path != on {
					return false
				}
				http.Redirect(w, r, elsewhere.URL+"/steal", code)
				return true
			}
			notes, _ := f.publish(plan(f, everything, "fail", 1))
			if len(notes) == 0 || !strings.Contains(notes[0], "another host") {
				t.Errorf("%d on %s: notes %q", code, on, notes)
			}
		}
	}
	// The control: on the same host a redirect that keeps the request is followed.
	f := newFake(t)
	renamed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, ok := strings.CutPrefix(r.URL.Path, "/repositories/1/"); ok {
			r.URL.Path = "/repos/o/r/" + path
			f.ServeHTTP(w, r)
			return
		}
		http.Redirect(w, r, strings.Replace(r.URL.Path, "/repos/o/r/", "/repositories/1/", 1), http.StatusTemporaryRedirect)
	}))
	defer renamed.Close()
	at := f.place()
	at.API = renamed.URL + "/"
	notes := publisher().Publish(t.Context(), at, plan(f, Want{CheckRun: true, CommitStatus: true, Name: "n"}, "fail", 60))
	if len(notes) > 0 || len(f.runs) != 1 || len(f.runs[0].Annotations) != 60 || len(f.statuses) != 1 {
		t.Errorf("a repository that was renamed: notes %q, %d runs, %d statuses", notes, len(f.runs), len(f.statuses))
	}
	if len(got) > 0 {
		t.Errorf("the other host was asked: %q", got)
	}
}

// TestASlowAPIHoldsNobodyUp: the whole has an end, however the time is spent.
func TestASlowAPIHoldsNobodyUp(t *testing.T) {
	gone := make(chan struct{})
	defer close(gone)
	for name, slow := range map[string]func(w http.ResponseWriter, r *http.Request){
		"no head": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-gone:
			}
		},
		"a byte at a time": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(20 * time.Millisecond)
			}
		},
	} {
		f := newFake(t)
		f.fault = func(w http.ResponseWriter, r *http.Request, _ int) bool {
			slow(w, r)
			return true
		}
		p := publisher()
		p.Total, p.Patience = 400*time.Millisecond, 10*time.Second
		began := time.Now()
		notes := p.Publish(t.Context(), f.place(), plan(f, everything, "fail", 1))
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("%s: it took %s", name, took)
		}
		if len(notes) != 3 || !strings.Contains(notes[0], "did not take it within 400ms") {
			t.Errorf("%s: notes %q", name, notes)
		}
		f.server.CloseClientConnections()
	}
}

// TestAnAnswerHasAnEnd: one without is not read to it.
func TestAnAnswerHasAnEnd(t *testing.T) {
	f := newFake(t)
	f.fault = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Method+" "+r.URL.Path != listComments {
			return false
		}
		_, _ = w.Write([]byte(`[{"body":"`))
		chunk := []byte(strings.Repeat("x", 1<<20))
		for range 200 {
			if _, err := w.Write(chunk); err != nil {
				return true
			}
		}
		t.Error("all of it was read")
		return true
	}
	notes, _ := f.publish(plan(f, Want{Comment: Always, Name: "n"}, "fail", 0))
	if len(notes) != 1 || len(f.comments) > 0 {
		t.Errorf("notes %q, comments %v", notes, f.comments)
	}
}

func TestNothingIsSentAfterACancel(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if notes := publisher().Publish(ctx, f.place(), plan(f, everything, "fail", 1)); len(notes) > 0 || len(f.log()) > 0 {
		t.Errorf("notes %q, requests %v", notes, f.log())
	}
	// Nor for longer than that request if it comes in between.
	ctx, cancel = context.WithCancel(t.Context())
	f.fault = func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		cancel()
		<-r.Context().Done()
		return true
	}
	notes := publisher().Publish(ctx, f.place(), plan(f, everything, "fail", 1))
	if diff := cmp.Diff([]string{createRun}, f.log()); diff != "" || len(notes) != 3 || !strings.Contains(notes[0], "cancelled") {
		t.Errorf("notes %q, requests (-want +got)\n%s", notes, diff)
	}
}

func TestNoTokenIsSaid(t *testing.T) {
	f := newFake(t)
	p := publisher()
	p.Token = ""
	notes := p.Publish(t.Context(), f.place(), plan(f, everything, "fail", 1))
	if len(notes) != 1 || !strings.Contains(notes[0], "the input token is empty") || len(f.log()) > 0 {
		t.Errorf("notes %q, requests %v", notes, f.log())
	}
	if notes := p.Publish(t.Context(), f.place(), Plan{}); len(notes) > 0 {
		t.Errorf("nothing was asked for, and: %q", notes)
	}
}

// TestPausesGrowAndDiffer: many jobs that failed at the same time do not come back
// at the same time.
func TestPausesGrowAndDiffer(t *testing.T) {
	pauses := func(jitter float64) []time.Duration {
		f := newFake(t)
		f.fault = func(w http.ResponseWriter, _ *http.Request, _ int) bool { return refuse(w, 500, "", "") }
		var slept []time.Duration
		p := publisher()
		p.Jitter = func() float64 { return jitter }
		p.Sleep = func(_ context.Context, d time.Duration) error {
			slept = append(slept, d)
			return nil
		}
		p.Publish(t.Context(), f.place(), plan(f, Want{CheckRun: true, Name: "n"}, "fail", 0))
		return slept
	}
	low, high := pauses(0), pauses(1)
	if !slices.Equal(low, []time.Duration{250 * time.Millisecond, 500 * time.Millisecond}) || !slices.Equal(high, []time.Duration{500 * time.Millisecond, time.Second}) {
		t.Errorf("pauses from %v to %v", low, high)
	}
}
