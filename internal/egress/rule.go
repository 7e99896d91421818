package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// Rule names destinations.
//
//	NAME, NAME:PORT   one host; without a port, 80 and 443
//	*.NAME            one label more: a.NAME, but neither NAME nor a.b.NAME
//	**.NAME           one label more, or several
//	tcp://NAME:PORT   any bytes at all, also for programs that know no proxy
//	tcp://ADDR:PORT   the same, to an address
//
// A star is one label and not more because every label of a deeper name can
// carry data to whoever answers for it.
//
// The zero value covers nothing. Rules can be compared with ==.
type Rule struct {
	name    string     // canonical
	addr    netip.Addr // instead of a name
	depth   depth
	port    int // 0: 80 and 443; in a rule that refuses: all
	tcp     bool
	private bool
	preset  string
}

// depth is what may stand before a rule's name.
type depth int

const (
	itself    depth = iota
	oneLabel        // *.
	anyLabels       // **.
	everyName       // the rule is a lone star and has no name
)

// Private says whether the rule's target may have addresses that are not public.
func (r Rule) Private() bool { return r.private }

// TCP says whether the rule lets any bytes through, not only HTTP and TLS.
func (r Rule) TCP() bool { return r.tcp }

// Preset is the name of the preset the rule comes from; empty if it stood in the
// file itself.
func (r Rule) Preset() string { return r.preset }

// Host is the name or address of a rule for one host; empty for a wildcard.
func (r Rule) Host() string {
	switch {
	case r.addr.IsValid():
		return r.addr.String()
	case r.depth == itself:
		return r.name
	}
	return ""
}

// Port is 0 where the rule names none.
func (r Rule) Port() int { return r.port }

// RuleError says why a text is no rule.
type RuleError struct {
	Rule string // as written; untrusted
	Err  error  // what is wrong with it, for whoever shows the rule by itself
}

func (e *RuleError) Error() string { return fmt.Sprintf("egress rule %q: %v", shown(e.Rule), e.Err) }
func (e *RuleError) Unwrap() error { return e.Err }

// ParseRule reads a rule that stands for itself: no preset, no marker. Rules
// from a steps file come through ParseEntry.
func ParseRule(s string) (Rule, error) {
	if strings.HasPrefix(s, presetPrefix) {
		return Rule{}, &RuleError{s, errors.New("is a preset, which can only stand for itself in a list of rules")}
	}
	return latitude{}.parse(s)
}

// latitude is what a rule may say. The zero value is what an allow rule without
// markers may.
type latitude struct {
	force   bool // cover more than anyone can oversee
	private bool // reach addresses that are not public
	refusal bool // refuse: then it may be as wide, and as odd, as it likes
}

func (l latitude) parse(s string) (Rule, error) {
	r, err := l.rule(s)
	if err != nil {
		return Rule{}, &RuleError{s, err}
	}
	return r, nil
}

func (l latitude) rule(s string) (Rule, error) {
	r := Rule{private: l.private}
	if rest, ok := strings.CutPrefix(s, tcpPrefix); ok {
		r.tcp, s = true, rest
	}
	if err := ruleForm(s); err != nil {
		return Rule{}, err
	}
	host, port, err := splitRule(s, r.tcp || l.refusal)
	if err != nil {
		return Rule{}, err
	}
	r.port = port
	if r.tcp && port == 0 {
		return Rule{}, errors.New("has no port; write tcp://NAME:PORT")
	}
	if r.tcp || l.refusal {
		if a, err := netip.ParseAddr(host); err == nil {
			r.addr = a
			return r, l.address(a)
		}
	}
	return l.named(r, host)
}

const (
	tcpPrefix    = "tcp://"
	presetPrefix = "preset:"
)

// named completes a rule about a name.
func (l latitude) named(r Rule, host string) (Rule, error) {
	if host == "*" || host == "*.*" || host == "**" {
		if !l.force && !l.refusal || r.tcp || host == "*.*" {
			return Rule{}, errors.New("covers every host; name the hosts the step needs")
		}
		r.depth = everyName
		return r, nil
	}
	if rest, ok := strings.CutPrefix(host, "**."); ok {
		r.depth, host = anyLabels, rest
	} else if rest, ok := strings.CutPrefix(host, "*."); ok {
		r.depth, host = oneLabel, rest
	}
	switch {
	case strings.Contains(host, "*"):
		return Rule{}, errors.New("a star can only stand for the whole first label, as in *.example.com, or **.example.com for any depth")
	case host == "":
		return Rule{}, errors.New("names no host")
	case r.tcp && r.depth != itself:
		return Rule{}, errors.New("a tcp:// rule is for one host: the box gets a listener for it, under its name")
	}
	name, err := ruleName(host)
	if err != nil {
		return Rule{}, err
	}
	if isMetadataName(name) && !l.refusal {
		return Rule{}, errMetadataRule
	}
	r.name = name
	if r.depth != itself && !l.force && !l.refusal {
		if err := broad(name); err != nil {
			return Rule{}, err
		}
	}
	return r, nil
}

// address says what is wrong with an address in a rule.
func (l latitude) address(a netip.Addr) error {
	if a.Zone() != "" || a.Is4In6() {
		return errors.New("the address has a zone, or an IPv4 address inside; write the plain one")
	}
	if l.refusal {
		return nil
	}
	switch ok, reason := AddrVerdict(a); {
	case ok:
		return nil
	case reason == ReasonMetadata:
		return errMetadataRule
	case !l.private:
		return errors.New("is not a public address; add private: true to the rule if the step may reach it")
	}
	if ok, _ := privateVerdict(a); !ok {
		return errors.New("is no address of one host")
	}
	return nil
}

var (
	errIPRule       = errors.New("is an address; rules are about names, because what an address serves changes hands (tcp://ADDRESS:PORT allows one all the same)")
	errNoName       = errors.New("is not a host name: labels of letters, digits, - and _, joined by dots")
	errMetadataRule = errors.New("is a cloud metadata service; it hands out the machine's credentials and is never allowed")
)

// splitRule splits NAME[:PORT], and with addresses also [ADDR][:PORT] and ADDR.
func splitRule(s string, addresses bool) (host string, port int, err error) {
	digits, hasPort := "", false
	host = s
	if inner, ok := strings.CutPrefix(s, "["); ok {
		end := strings.IndexByte(inner, ']')
		if !addresses || end < 0 {
			return "", 0, errIPRule
		}
		if host = inner[:end]; !strings.Contains(host, ":") {
			return "", 0, errNoName
		}
		if rest := inner[end+1:]; rest != "" {
			if digits, hasPort = strings.CutPrefix(rest, ":"); !hasPort {
				return "", 0, errNoName
			}
		}
	} else if i := strings.LastIndexByte(s, ':'); i >= 0 {
		if strings.ContainsAny(s[:i], ":[]") {
			if _, err := netip.ParseAddr(s); err == nil && addresses {
				return s, 0, nil
			}
			return "", 0, errIPRule
		}
		host, digits, hasPort = s[:i], s[i+1:], true
	}
	if hasPort {
		port, err = parseRulePort(digits)
	}
	return host, port, err
}

// ruleForm refuses what is not even meant as a host name, each in words of its
// own.
func ruleForm(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > 4*maxName:
		return errors.New("is longer than a host name can be")
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return errors.New("has a space or a control character in it")
	case strings.Contains(s, "://"):
		return errors.New("is a URL; write the host name alone, or NAME:PORT")
	case strings.Contains(s, "@"):
		return errors.New("has a user name in it; write the host name alone, or NAME:PORT")
	case strings.ContainsAny(s, `/\?#`):
		return errors.New("has a path in it; a rule covers a whole host")
	}
	return nil
}

func parseRulePort(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 || s[0] < '1' || s[0] > '9' {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return n, nil
}

// ruleName gives the canonical form of a name in a rule. Unlike a request, a
// file may hold a name in its own script: people write it, and it is turned
// into A-labels once, here.
func ruleName(host string) (string, error) {
	ascii := host
	if strings.ContainsFunc(host, func(c rune) bool { return c >= 0x80 }) || strings.Contains(lowerASCII(host), "xn--") {
		a, err := idna.Lookup.ToASCII(strings.TrimSuffix(host, "."))
		if err != nil {
			return "", fmt.Errorf("is not a host name: %w", err)
		}
		// What is not its own A-label form would be another rule when read back.
		if again, err := idna.Lookup.ToASCII(a); err != nil || again != a {
			return "", errNoName
		}
		ascii = a
	}
	name, reason := canonicalName(ascii)
	switch reason {
	case "":
		return name, nil
	case ReasonIPLiteral:
		return "", errIPRule
	}
	return "", errNoName
}

// broad refuses a wildcard under which strangers can register names: allowing
// *.github.io allows whoever has an account there.
func broad(name string) error {
	if !strings.Contains(name, ".") {
		return fmt.Errorf("covers every name under .%s; name the hosts the step needs", name)
	}
	if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
		return fmt.Errorf("anyone can have a name under %s (it is on the public suffix list); name the hosts the step needs", name)
	}
	return nil
}

// String gives the canonical form, which reads back as the same rule under the
// same markers; the markers are not part of it.
func (r Rule) String() string {
	s := r.name
	switch {
	case r.addr.Is6() && (r.port != 0 || r.tcp):
		s = "[" + r.addr.String() + "]"
	case r.addr.IsValid():
		s = r.addr.String()
	case r.depth == everyName:
		s = "*"
	case r.depth == oneLabel:
		s = "*." + s
	case r.depth == anyLabels:
		s = "**." + s
	}
	if r.port != 0 {
		s += ":" + strconv.Itoa(r.port)
	}
	if r.tcp {
		s = tcpPrefix + s
	}
	return s
}

// coversName says whether a canonical name is meant. The zero rule means none.
func (r Rule) coversName(name string) bool {
	switch {
	case r.depth == everyName:
		return name != ""
	case r.name == "":
		return false
	case r.depth == itself:
		return name == r.name
	}
	before, ok := strings.CutSuffix(name, "."+r.name)
	if !ok || before == "" {
		return false
	}
	return r.depth == anyLabels || !strings.Contains(before, ".")
}

// covers says whether a place is meant, whatever the port.
func (r Rule) covers(at place) bool {
	if r.addr.IsValid() || at.addr.IsValid() {
		return r.addr.IsValid() && r.addr == at.addr
	}
	return r.coversName(at.name)
}

func (r Rule) coversPort(port int) bool {
	if r.port == 0 {
		return port == 80 || port == 443
	}
	return port == r.port
}

// refuses is covers for a rule that refuses: there, no port means every port.
func (r Rule) refuses(at place, port int) bool {
	return r.covers(at) && (r.port == 0 || r.port == port)
}
