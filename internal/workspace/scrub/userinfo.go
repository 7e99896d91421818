package scrub

import (
	"slices"
	"strings"
)

// withoutUser takes user and password out of every URL in a text, and what
// follows the "?" of one if a name in it says that it is a token. The user of
// an ssh URL without a password stays: it is no secret, and the host needs it.
func withoutUser(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		end := 0
		for end < len(s) && s[end] > ' ' {
			end++
		}
		wordWithoutUser(&b, s[:end])
		gap := end
		for gap < len(s) && s[gap] <= ' ' {
			gap++
		}
		b.WriteString(s[end:gap])
		s = s[gap:]
	}
	return b.String()
}

// wordWithoutUser goes once over a word, however many addresses are in it: the
// text may be somebody's attempt to keep us busy.
func wordWithoutUser(b *strings.Builder, w string) {
	first := strings.Index(w, "://")
	if first < 0 {
		b.WriteString(w)
		return
	}
	if q := strings.IndexByte(w[first:], '?'); q >= 0 && namesToken(w[first+q:]) {
		w = w[:first+q]
	}
	lastAt := strings.LastIndexByte(w, '@')
	for at := 0; ; {
		i := strings.Index(w[at:], "://")
		if i < 0 {
			b.WriteString(w[at:])
			return
		}
		colon := at + i
		from := colon + len("://")
		b.WriteString(w[at:from])
		end := from
		// The authority ends here to everybody who would dial it.
		for end < len(w) && w[end] != '/' && w[end] != '?' && w[end] != '#' {
			end++
		}
		at = from
		if user := strings.LastIndexByte(w[from:end], '@'); user >= 0 {
			if !isSSH(w[:colon]) || strings.IndexByte(w[from:from+user], ':') >= 0 {
				at = from + user + 1
			}
		} else if lastAt > end && !plainHost(w[from:end]) {
			// A password with a slash in it: no program dials it, and yet it is one.
			at = lastAt + 1
		}
	}
}

// plainHost says whether there is no more than a port behind a colon.
func plainHost(host string) bool {
	colon := strings.LastIndexByte(host, ':')
	if colon < 0 || strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		return true
	}
	return strings.Trim(host[colon+1:], "0123456789") == ""
}

// isSSH looks at what stands before "://".
func isSSH(before string) bool {
	i := len(before)
	for i > 0 && (isAlpha(before[i-1]) || isDigit(before[i-1]) || strings.IndexByte("+-.", before[i-1]) >= 0) {
		i--
	}
	switch strings.ToLower(before[i:]) {
	case "ssh", "git+ssh", "ssh+git":
		return true
	}
	return false
}

var tokenParameters = []string{"token", "key", "secret", "pass", "sig", "auth", "credential"}

func namesToken(query string) bool {
	query = strings.ToLower(query)
	return slices.ContainsFunc(tokenParameters, func(p string) bool { return strings.Contains(query, p) })
}

// withoutBareUser takes user:password@ from the front of an address that has
// no scheme, as a proxy may be written. git@host:path keeps its user.
func withoutBareUser(s string) string {
	host, _, _ := strings.Cut(s, "/")
	at := strings.LastIndexByte(host, '@')
	if at < 0 || strings.Contains(s, "://") {
		return s
	}
	if colon := strings.IndexByte(host[:at], ':'); colon < 0 || strings.IndexByte(host[:at], '@') >= 0 && colon > strings.IndexByte(host[:at], '@') {
		return s
	}
	return s[at+1:]
}
