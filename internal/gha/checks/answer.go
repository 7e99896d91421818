package checks

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-github/v62/github"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// answer is what is known of a request that did not succeed.
type answer struct {
	status  int // 0: there was no answer
	header  http.Header
	message string // the API's own words; whoever answers chose them
	doc     string // the page it points to
	err     error
}

// readAnswer finds the answer in what the library makes of it. The library knows
// some limits by itself and some not; here all of them look as the API sent them.
func readAnswer(resp *github.Response, err error) answer {
	a := answer{err: err, header: http.Header{}}
	if resp != nil && resp.Response != nil {
		a.status, a.header = resp.StatusCode, resp.Header.Clone()
	}
	var primary *github.RateLimitError
	var secondary *github.AbuseRateLimitError
	var other *github.ErrorResponse
	switch {
	case errors.As(err, &primary):
		a.message, a.status = primary.Message, http.StatusForbidden
		if a.header.Get("X-RateLimit-Remaining") == "" { // refused by the library, without a request
			a.header.Set("X-RateLimit-Remaining", "0")
			a.header.Set("X-RateLimit-Reset", strconv.FormatInt(primary.Rate.Reset.Unix(), 10))
		}
	case errors.As(err, &secondary):
		a.message, a.status, a.doc = secondary.Message, http.StatusForbidden, "secondary-rate-limits"
		if a.header.Get("Retry-After") == "" && secondary.RetryAfter != nil {
			a.header.Set("Retry-After", strconv.FormatInt(int64(*secondary.RetryAfter/time.Second)+1, 10))
		}
	case errors.As(err, &other):
		a.message, a.doc = other.Message, other.DocumentationURL
		for _, e := range other.Errors {
			a.message += "; " + strings.Join(strings.Fields(strings.Join([]string{e.Resource, e.Field, e.Code, e.Message}, " ")), " ")
		}
	}
	return a
}

// kind is what can be done about an answer.
type kind int

const (
	final    kind = iota // asking again would get the same
	readOnly             // the token may not write this
	again                // a failure of the moment
	limited              // we have asked too often
	useless              // nothing else would succeed either
)

// judgement is what to do about an answer, and the words for it.
type judgement struct {
	kind kind
	wait time.Duration // at least, before asking again
	text string
}

const (
	// noHint is how long the documentation says to wait where the answer does not.
	noHint = time.Minute
	// longest is where a wait stops being a number that matters.
	longest = 24 * time.Hour
)

// judge decides by the answer and the clock alone.
func judge(a answer, now time.Time) judgement {
	said := said(a)
	switch {
	case errors.Is(a.err, errElsewhere):
		return judgement{kind: useless, text: "the API redirects to another host, where the token is not sent"}
	case errors.Is(a.err, errRedirect):
		return judgement{kind: final, text: "the API redirects, as for a repository that was renamed"}
	case a.status == 0:
		return judgement{kind: again, text: "the API does not answer" + said}
	case a.status == http.StatusForbidden || a.status == http.StatusTooManyRequests:
		if wait, ok := limit(a, now); ok {
			return judgement{kind: limited, wait: wait, text: fmt.Sprintf("the API takes no more requests for %s", wait.Round(time.Second))}
		}
		if strings.Contains(a.message, "Resource not accessible") {
			return judgement{kind: readOnly, text: "the token may only read"}
		}
		return judgement{kind: final, text: fmt.Sprintf("the API answers %d%s", a.status, said)}
	case a.status == http.StatusUnauthorized:
		return judgement{kind: useless, text: "the API does not know the token" + said}
	case a.status >= 500 || a.status == http.StatusRequestTimeout:
		wait, _ := seconds(a.header.Get("Retry-After"), now)
		return judgement{kind: again, wait: wait, text: fmt.Sprintf("the API answers %d%s", a.status, said)}
	case a.status < 300:
		return judgement{kind: final, text: "the API answers with what is not its JSON"}
	}
	return judgement{kind: final, text: fmt.Sprintf("the API answers %d%s", a.status, said)}
}

// limit says whether an answer is about a limit, and how long it asks to wait.
func limit(a answer, now time.Time) (time.Duration, bool) {
	if wait, ok := seconds(a.header.Get("Retry-After"), now); ok {
		return wait, true
	}
	if a.header.Get("X-RateLimit-Remaining") == "0" {
		at, err := strconv.ParseInt(a.header.Get("X-RateLimit-Reset"), 10, 64)
		if err != nil || at > now.Add(longest).Unix() {
			return noHint, true
		}
		// The time is in whole seconds.
		return max(time.Unix(at, 0).Sub(now), 0) + time.Second, true
	}
	words := strings.ToLower(a.message)
	if a.status == http.StatusTooManyRequests || strings.Contains(words, "rate limit") || strings.Contains(words, "abuse") ||
		strings.HasSuffix(a.doc, "secondary-rate-limits") {
		return noHint, true
	}
	return 0, false
}

// seconds reads Retry-After: a number, or a time.
func seconds(text string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return time.Duration(min(n, uint64(longest/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), longest), true
	}
	return 0, false
}

// said quotes the answer. Whoever answered chose the words.
func said(a answer) string {
	text := a.message
	if a.status == 0 && a.err != nil {
		text = a.err.Error()
	}
	if text == "" {
		return ""
	}
	const most = 300
	return ": " + cut(gha.Inert(text), most)
}
