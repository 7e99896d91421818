package checks

import (
	"errors"
	"net/http"
	"net/url"
	"time"
)

var (
	errElsewhere = errors.New("the token is for another host")
	errRedirect  = errors.New("a redirect that would lose the request")
)

// maxAnswer bounds an answer. A hundred of the longest comments fit.
const maxAnswer = 48 << 20

// bearer puts the token on requests to the API's host, and lets no other leave.
// The library would put it on whatever request comes by, redirects included.
type bearer struct {
	to    *url.URL
	token Token
	next  http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	if !sameHost(req.URL, b.to) {
		return nil, errElsewhere
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+string(b.token))
	resp, err := b.next.RoundTrip(req)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

func sameHost(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }

// client speaks to one API. done lets go of its connections.
func client(to *url.URL, token Token, patience time.Duration) (c *http.Client, done func()) {
	next := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: patience, MaxIdleConns: 2}
	return &http.Client{
		Transport: bearer{to: to, token: token, next: next},
		Timeout:   patience,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			const most = 3
			switch {
			case !sameHost(req.URL, to):
				return errElsewhere
			case req.Method != via[0].Method || len(via) > most:
				// A POST that is sent on as a GET would look like a success.
				return errRedirect
			}
			return nil
		},
	}, next.CloseIdleConnections
}
