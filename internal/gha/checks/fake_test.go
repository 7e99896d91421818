package checks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

const (
	secret  = "ghs_0123456789abcdefghij"
	headSHA = "1111111111111111111111111111111111111111"
)

// fake is the API as its documentation describes it: what it takes, what it
// refuses as too long or missing, and who wrote a comment.
type fake struct {
	t      *testing.T
	server *httptest.Server
	// prefix is before every path, as on a server of one's own.
	prefix string
	// fault, if it answers, is the answer instead of the API's. n counts the
	// requests to the same method and path, from 1.
	fault func(w http.ResponseWriter, r *http.Request, n int) bool

	mu       sync.Mutex
	seen     []string // method and path of each request
	tokens   map[string]bool
	counts   map[string]int
	runs     []*run
	statuses []map[string]string
	comments []comment
}

type run struct {
	Name, Status, Conclusion, Title, Summary, SHA, Details string
	Sizes                                                  []int // annotations of each request
	Annotations                                            []map[string]any
}

type comment struct {
	ID   int64  `json:"id"`
	Body string `json:"body"`
	User struct {
		Login string `json:"login"`
		Type  string `json:"type"`
	} `json:"user"`
}

func by(login, kind, body string) comment {
	c := comment{Body: body}
	c.User.Login, c.User.Type = login, kind
	return c
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, tokens: map[string]bool{}, counts: map[string]int{}}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fake) place() Place {
	return Place{
		API: f.server.URL + f.prefix + "/", Owner: "o", Repo: "r", SHA: headSHA, Pull: 7,
		RunURL: "https://github.example/o/r/actions/runs/1", Workflow: ".github/workflows/ci.yml", Job: "gate",
	}
}

// publish sends a plan with a clock that sleeps by itself, and gives the waits.
func (f *fake) publish(plan Plan) (notes []string, slept []time.Duration) {
	p := publisher()
	p.Sleep = func(_ context.Context, d time.Duration) error {
		slept = append(slept, d)
		return nil
	}
	return p.Publish(f.t.Context(), f.place(), plan), slept
}

func publisher() Publisher {
	return Publisher{Token: secret, Agent: "test", Now: time.Now, Jitter: func() float64 { return 0 }}
}

func (f *fake) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.seen...)
}

func say(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// refuse answers as the API does where it does not do what was asked.
func refuse(w http.ResponseWriter, status int, message string, doc string) bool {
	say(w, status, map[string]any{"message": message, "documentation_url": "https://docs.github.com/rest" + doc, "status": strconv.Itoa(status)})
	return true
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, f.prefix)
	at := r.Method + " " + path
	// Read whole: only then does a server notice that a client has gone.
	if body, err := io.ReadAll(r.Body); err == nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	f.mu.Lock()
	f.seen = append(f.seen, at)
	f.tokens[r.Header.Get("Authorization")] = true
	f.counts[at]++
	n := f.counts[at]
	f.mu.Unlock()
	if f.fault != nil && f.fault(w, r, n) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+secret {
		refuse(w, 401, "Bad credentials", "")
		return
	}
	switch {
	case at == "POST /graphql", at == "POST /api/graphql":
		say(w, 200, map[string]any{"data": map[string]any{"viewer": map[string]any{"login": "github-actions[bot]"}}})
	case at == "POST /repos/o/r/check-runs":
		f.checkRun(w, r, nil)
	case strings.HasPrefix(at, "PATCH /repos/o/r/check-runs/"):
		id, err := strconv.Atoi(strings.TrimPrefix(at, "PATCH /repos/o/r/check-runs/"))
		if err != nil || id < 1 || id > len(f.runs) {
			refuse(w, 404, "Not Found", "")
			return
		}
		f.checkRun(w, r, f.runs[id-1])
	case at == "POST /repos/o/r/statuses/"+headSHA:
		var s map[string]string
		if json.NewDecoder(r.Body).Decode(&s) != nil || utf8.RuneCountInString(s["description"]) > 140 || s["state"] == "" {
			f.invalid(w, "description")
			return
		}
		f.statuses = append(f.statuses, s)
		say(w, 201, s)
	case at == "GET /repos/o/r/issues/7/comments":
		f.page(w, r)
	case at == "POST /repos/o/r/issues/7/comments":
		c := by("github-actions[bot]", "Bot", "")
		if json.NewDecoder(r.Body).Decode(&c) != nil || c.Body == "" || utf8.RuneCountInString(c.Body) > 65536 {
			f.invalid(w, "body")
			return
		}
		say(w, 201, f.add(c))
	case strings.HasPrefix(at, "PATCH /repos/o/r/issues/comments/"):
		id, _ := strconv.Atoi(strings.TrimPrefix(at, "PATCH /repos/o/r/issues/comments/"))
		if id < 1 || id > len(f.comments) {
			refuse(w, 404, "Not Found", "")
			return
		}
		var c comment
		if json.NewDecoder(r.Body).Decode(&c) != nil || c.Body == "" || utf8.RuneCountInString(c.Body) > 65536 {
			f.invalid(w, "body")
			return
		}
		f.comments[id-1].Body = c.Body
		say(w, 200, f.comments[id-1])
	default:
		f.t.Errorf("no such request in the documentation: %s", at)
		refuse(w, 404, "Not Found", "")
	}
}

func (f *fake) add(c comment) comment {
	c.ID = int64(len(f.comments) + 1)
	f.comments = append(f.comments, c)
	return c
}

func (f *fake) invalid(w http.ResponseWriter, field string) {
	say(w, 422, map[string]any{"message": "Validation Failed", "errors": []map[string]string{{"resource": "X", "field": field, "code": "invalid"}}})
}

// page gives comments the way the API does: some, and links to the rest.
func (f *fake) page(w http.ResponseWriter, r *http.Request) {
	per, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	if per < 1 || per > 100 {
		per = 30
	}
	page = max(page, 1)
	from := min((page-1)*per, len(f.comments))
	to := min(from+per, len(f.comments))
	if to < len(f.comments) {
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?per_page=%d&page=%d>; rel="next"`, f.server.URL, r.URL.Path, per, page+1))
	}
	say(w, 200, append([]comment{}, f.comments[from:to]...))
}

func (f *fake) checkRun(w http.ResponseWriter, r *http.Request, c *run) {
	var in struct {
		Name, Status, Conclusion string
		SHA                      string `json:"head_sha"`
		Details                  string `json:"details_url"`
		Output                   struct {
			Title, Summary string
			Annotations    []map[string]any
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, 400, "Problems parsing JSON", "")
		return
	}
	bad := ""
	switch o := in.Output; {
	case len(o.Annotations) > 50:
		bad = "annotations"
	case len(o.Summary) > 65535 || o.Summary == "":
		bad = "summary"
	case o.Title == "" || len(o.Title) > 255:
		bad = "title"
	case c == nil && (in.Name == "" || in.SHA != headSHA):
		bad = "head_sha"
	case in.Status == "completed" && in.Conclusion == "":
		bad = "conclusion"
	}
	for _, a := range in.Output.Annotations {
		message, _ := a["message"].(string)
		line, _ := a["start_line"].(float64)
		from, _ := a["start_column"].(float64)
		to, _ := a["end_column"].(float64)
		// Columns are of one line, and count from 1.
		if (a["start_column"] != nil || a["end_column"] != nil) && (from < 1 || to < from || a["end_line"] != a["start_line"]) {
			bad = "annotations"
		}
		if a["path"] == "" || message == "" || len(message) > 64<<10 || line < 1 || a["end_line"] == nil || a["annotation_level"] == nil {
			bad = "annotations"
		}
	}
	if bad != "" {
		f.invalid(w, bad)
		return
	}
	status := 200
	if c == nil {
		status = 201
		c = &run{Name: in.Name, SHA: in.SHA, Details: in.Details, Status: "queued"}
		f.runs = append(f.runs, c)
	}
	if in.Status != "" {
		c.Status, c.Conclusion = in.Status, in.Conclusion
	}
	c.Title, c.Summary = in.Output.Title, in.Output.Summary
	c.Sizes = append(c.Sizes, len(in.Output.Annotations))
	c.Annotations = append(c.Annotations, in.Output.Annotations...)
	id := 0
	for i := range f.runs {
		if f.runs[i] == c {
			id = i + 1
		}
	}
	say(w, status, map[string]any{"id": id, "name": c.Name, "status": c.Status, "conclusion": c.Conclusion})
}
