package egress

import (
	"errors"
	"strconv"
	"strings"
)

// target is where a request wants to go, as written.
type target struct {
	host   string
	port   int
	origin string // path and query to ask the server for; empty for CONNECT
}

// errNoDestination: the request names nowhere, so there is nobody it tried to
// reach.
var errNoDestination = errors.New("this is a proxy: the request line must name a host")

// connectTarget reads NAME:PORT.
func connectTarget(s string) (target, error) {
	if strings.ContainsAny(s, `/\?#@`) {
		return target{host: s}, errors.New("CONNECT wants NAME:PORT")
	}
	host, port, err := splitAuthority(s, 0)
	return target{host: host, port: port}, err
}

// absoluteTarget reads http://NAME[:PORT][/PATH][?QUERY].
func absoluteTarget(method, s string) (target, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme == "" || strings.HasPrefix(s, "/") {
		return target{}, errNoDestination
	}
	authority := rest
	origin := ""
	if i := strings.IndexAny(rest, `/?#\`); i >= 0 {
		authority, origin = rest[:i], rest[i:]
	}
	host, port, err := splitAuthority(authority, 80)
	t := target{host: host, port: port}
	switch {
	case lowerASCII(scheme) != "http":
		return t, errors.New("only http:// can be asked for in plain; use CONNECT for https://")
	case strings.Contains(authority, "@"):
		return t, errors.New("the URL has a user name in it")
	case err != nil:
		return t, err
	case strings.ContainsAny(origin, `#\`):
		return t, errors.New(`the URL has # or \ in it`)
	}
	for i := range len(origin) {
		if origin[i] >= 0x80 {
			return t, errors.New("the URL's path has bytes above 0x7f in it")
		}
	}
	switch {
	case origin == "" && method == "OPTIONS":
		origin = "*"
	case origin == "" || origin[0] == '?':
		origin = "/" + origin
	}
	t.origin = origin
	return t, nil
}

// splitAuthority splits NAME:PORT. A def of 0 means the port has to be there.
// The host is returned as far as it can be told, also with an error.
func splitAuthority(s string, def int) (host string, port int, err error) {
	host = s
	digits, hasPort := "", false
	if i := strings.LastIndexByte(s, ':'); i >= 0 && i > strings.LastIndexByte(s, ']') {
		host, digits, hasPort = s[:i], s[i+1:], true
	}
	if host == "" {
		return "", 0, errNoDestination
	}
	if !hasPort {
		if def == 0 {
			return host, 0, errors.New("the port is missing")
		}
		return host, def, nil
	}
	if digits == "" || len(digits) > 5 || strings.Trim(digits, "0123456789") != "" {
		return host, 0, errors.New("the port is not a number")
	}
	port, err = strconv.Atoi(digits)
	if err != nil || port < 1 || port > 65535 {
		return host, 0, errors.New("the port is not a number from 1 to 65535")
	}
	return host, port, nil
}

// sameHost says whether a Host field means the same place as the target. An
// error means the field cannot be read.
func sameHost(t target, field string, def int) (bool, error) {
	host, port, err := splitAuthority(field, def)
	if err != nil {
		return false, errors.New("the Host field is not NAME or NAME:PORT")
	}
	if strings.ContainsAny(host, "@/\\?# ,\t") {
		return false, errors.New("the Host field is not NAME or NAME:PORT")
	}
	return port == t.port && sameName(host, t.host), nil
}

// sameName compares two names in canonical form; what has none is compared as
// written, so that an address literal can still be refused as what it is.
func sameName(a, b string) bool {
	ca, ra := canonicalName(a)
	cb, rb := canonicalName(b)
	if ra == "" && rb == "" {
		return ca == cb
	}
	return ra == rb && lowerASCII(a) == lowerASCII(b)
}
