package checks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-github/v62/github"
)

// Bounds on time. A gate that has its verdict must not hang on an API.
const (
	// Total is for everything that is told of a run.
	Total = 20 * time.Second
	// patience is for one request and its answer.
	patience = 8 * time.Second
	// maxWait is the longest wait that a limit may ask for and get.
	maxWait = 10 * time.Second
	// attempts is how often one thing is tried.
	attempts = 3
	// firstPause is before the second try; it doubles.
	firstPause = 500 * time.Millisecond
)

// Publisher sends plans.
type Publisher struct {
	Token Token
	Agent string // says who we are
	Now   func() time.Time
	// Jitter gives a number from 0 to 1, for pauses that are not everybody's.
	Jitter func() float64
	// Sleep waits; nil is the real wait.
	Sleep func(context.Context, time.Duration) error
	// Total and Patience are for tests; 0 is the constants above.
	Total, Patience time.Duration
}

// Publish sends a plan, as far as it can within Total, and gives a line about
// each thing that could not be told. It sends nothing once ctx is done.
func (p Publisher) Publish(ctx context.Context, at Place, plan Plan) []string {
	if ctx.Err() != nil || plan == (Plan{}) {
		return nil
	}
	if p.Token == "" {
		return []string{"nothing is told to the pull request: the input token is empty; token: ${{ github.token }} is the job's own"}
	}
	ctx, cancel := context.WithTimeout(ctx, or(p.Total, Total))
	defer cancel()
	base, err := url.Parse(at.API)
	if err != nil {
		return []string{"nothing is told to the pull request: GITHUB_API_URL is no address"}
	}
	hc, done := client(base, p.Token, or(p.Patience, patience))
	defer done()
	s := &session{Publisher: p, at: at, api: github.NewClient(hc)}
	s.api.BaseURL, s.api.UserAgent = base, p.Agent

	for _, part := range []struct {
		what string
		send func(context.Context) *failure
		on   bool
	}{
		{"check run", func(ctx context.Context) *failure { return s.checkRun(ctx, plan.CheckRun) }, plan.CheckRun != nil},
		{"commit status", func(ctx context.Context) *failure { return s.status(ctx, plan.Status) }, plan.Status != nil},
		{"comment", func(ctx context.Context) *failure { return s.comment(ctx, plan.Comment) }, plan.Comment != nil},
	} {
		if part.on {
			s.tell(part.what, func() *failure { return part.send(ctx) })
		}
	}
	return s.said()
}

func or(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

// failure is why something was not told.
type failure struct {
	kind kind
	text string
}

// session is the sending of one plan.
type session struct {
	Publisher
	at    Place
	api   *github.Client
	over  string   // why nothing more is sent
	only  []string // what a token that may only read did not write
	notes []string
}

func (s *session) tell(what string, send func() *failure) {
	if s.over != "" {
		s.notes = append(s.notes, what+": not sent, for the same reason")
		return
	}
	f := send()
	switch {
	case f == nil:
	case f.kind == readOnly:
		s.only = append(s.only, what)
	default:
		s.notes = append(s.notes, what+": "+f.text)
		if f.kind == useless || f.kind == limited {
			s.over = f.text
		}
	}
}

// said is one quiet line for what cannot be helped in a fork, and one for each
// thing that went wrong.
func (s *session) said() []string {
	if len(s.only) == 0 {
		return s.notes
	}
	return append([]string{fmt.Sprintf("%s: not written, since the token may only read, as in every pull request from a fork; the summary and the exit status say the same",
		strings.Join(s.only, ", "))}, s.notes...)
}

// try sends something until it succeeds, or asking again is no use.
func (s *session) try(ctx context.Context, send func(n int) (*github.Response, error)) *failure {
	for n := 1; ; n++ {
		resp, err := send(n)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return s.late(ctx)
		}
		j := judge(readAnswer(resp, err), s.Now())
		switch j.kind {
		case again:
			if n == attempts {
				text, k := fmt.Sprintf("%s (tried %d times)", j.text, n), final
				if resp == nil {
					k = useless // what does not answer at all will not answer the next either
				}
				return &failure{k, text}
			}
			pause := firstPause << (n - 1)
			j.wait = max(j.wait, pause/2+time.Duration(s.Jitter()*float64(pause/2)))
		case limited:
			if n == attempts {
				return &failure{limited, j.text}
			}
		default:
			return &failure{j.kind, j.text}
		}
		if end, _ := ctx.Deadline(); j.wait > maxWait || s.Now().Add(j.wait).After(end) {
			return &failure{useless, j.text}
		}
		if s.sleep(ctx, j.wait) != nil {
			return s.late(ctx)
		}
	}
}

func (s *session) late(ctx context.Context) *failure {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &failure{useless, "cancelled"}
	}
	return &failure{useless, fmt.Sprintf("the API did not take it within %s", or(s.Total, Total))}
}

func (s *session) sleep(ctx context.Context, d time.Duration) error {
	if s.Sleep != nil {
		return s.Sleep(ctx, d)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
