package checks

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestJudge: what the documentation says about answers, and what we do.
func TestJudge(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	head := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	for _, c := range []struct {
		name string
		a    answer
		kind kind
		wait time.Duration
		text string
	}{
		{"a token that may only read", answer{status: 403, message: "Resource not accessible by integration"}, readOnly, 0, "only read"},
		{"a person's token that may only read", answer{status: 403, message: "Resource not accessible by personal access token"}, readOnly, 0, "only read"},
		{"another refusal", answer{status: 403, message: "Unable to create comment because issue is locked."}, final, 0, "locked"},
		{"the limit of an hour", answer{status: 403, header: head("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1000005")}, limited, 6 * time.Second, "no more requests for 6s"},
		{"the same with 429", answer{status: 429, header: head("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1000005")}, limited, 6 * time.Second, ""},
		{"one that is over", answer{status: 403, header: head("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1")}, limited, time.Second, ""},
		{"one without a time", answer{status: 403, header: head("X-RateLimit-Remaining", "0")}, limited, time.Minute, ""},
		{"one with a time out of this world", answer{status: 403, header: head("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "9223372036854775807")}, limited, time.Minute, ""},
		{"a secondary limit that says how long", answer{status: 403, message: "You have exceeded a secondary rate limit", header: head("Retry-After", "3")}, limited, 3 * time.Second, ""},
		{"a secondary limit that does not", answer{status: 403, message: "You have exceeded a secondary rate limit"}, limited, time.Minute, ""},
		{"one that only its page tells", answer{status: 403, doc: "https://docs.github.com/x#about-secondary-rate-limits"}, limited, time.Minute, ""},
		{"429 and nothing else", answer{status: 429}, limited, time.Minute, ""},
		{"a wait that is a date", answer{status: 429, header: head("Retry-After", now.Add(4*time.Second).UTC().Format(http.TimeFormat))}, limited, 4 * time.Second, ""},
		{"a wait that is no time", answer{status: 429, header: head("Retry-After", "-5")}, limited, time.Minute, ""},
		{"a wait without end", answer{status: 429, header: head("Retry-After", "18446744073709551615")}, limited, 24 * time.Hour, ""},
		{"calls remain, so 403 is no limit", answer{status: 403, message: "no", header: head("X-RateLimit-Remaining", "17")}, final, 0, ""},
		{"a bad token", answer{status: 401, message: "Bad credentials"}, useless, 0, "does not know the token"},
		{"a repository it may not see", answer{status: 404, message: "Not Found"}, final, 0, "404: Not Found"},
		{"a request that is wrong", answer{status: 422, message: "Validation Failed; X body invalid"}, final, 0, "422"},
		{"a fault of the moment", answer{status: 502}, again, 0, "502"},
		{"one that says how long", answer{status: 503, header: head("Retry-After", "2")}, again, 2 * time.Second, ""},
		{"a request that took too long to get there", answer{status: 408}, again, 0, ""},
		{"no answer", answer{err: errors.New("connection reset")}, again, 0, "does not answer: connection reset"},
		{"success that is no JSON", answer{status: 200, err: errors.New("invalid character '<'")}, final, 0, "not its JSON"},
		{"a redirect elsewhere", answer{err: fmt.Errorf("x: %w", &url.Error{Op: "Get", URL: "u", Err: errElsewhere})}, useless, 0, "another host"},
		{"a redirect of a POST", answer{err: &url.Error{Op: "Post", URL: "u", Err: errRedirect}}, final, 0, "renamed"},
		{"words of whoever answers are inert and short", answer{status: 400, message: "##[error]\x1b[2J\u202e" + strings.Repeat("x", 9999)}, final, 0, "## [error]\\x1b[2J\\u202e"},
	} {
		if c.a.header == nil {
			c.a.header = http.Header{}
		}
		j := judge(c.a, now)
		if j.kind != c.kind || j.wait != c.wait || !strings.Contains(j.text, c.text) || j.text == "" {
			t.Errorf("%s: %+v, want kind %d, wait %s, %q", c.name, j, c.kind, c.wait, c.text)
		}
		if len(j.text) > 400 {
			t.Errorf("%s: %d bytes of text", c.name, len(j.text))
		}
	}
}
