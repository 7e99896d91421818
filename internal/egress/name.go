package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

// canonicalName gives the one spelling of a host name that rules, look-ups and
// comparisons use: ASCII, lower case, no trailing dot. Where there is none it
// gives the reason, which is never empty then.
//
// Nothing is repaired: two programs that repair a name differently are how one
// name gets judged and another one dialled.
func canonicalName(raw string) (name, reason string) {
	if strings.ContainsAny(raw, "[]:") {
		return "", ReasonIPLiteral
	}
	name = strings.TrimSuffix(raw, ".")
	if name == "" || len(name) > maxName {
		return "", ReasonBadName
	}
	for i := range len(name) {
		if name[i] >= 0x80 {
			return "", ReasonBadName
		}
	}
	name = lowerASCII(name)
	for label := range strings.SplitSeq(name, ".") {
		if !validLabel(label) {
			return "", ReasonBadName
		}
	}
	if endsInNumber(name) {
		return "", ReasonIPLiteral
	}
	return name, ""
}

// validLabel accepts letters, digits, hyphens inside, and underscores, which no
// registry sells but which real hosts carry.
func validLabel(label string) bool {
	if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for i := range len(label) {
		c := label[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}

// endsInNumber says whether resolvers would take a name for an IPv4 address in
// one of its spellings: 127.1, 0x7f000001, 2130706433, 0177.0.0.1. No top-level
// domain is a number, so a name is never lost by it.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// literalAddr reads an address in any spelling a resolver might accept.
func literalAddr(raw string) (netip.Addr, bool) {
	raw = strings.TrimSuffix(strings.TrimPrefix(raw, "["), "]")
	if i := strings.IndexByte(raw, '%'); i >= 0 {
		raw = raw[:i]
	}
	if a, err := netip.ParseAddr(raw); err == nil {
		return a, true
	}
	return looseIPv4(strings.TrimSuffix(raw, "."))
}

// looseIPv4 reads what inet_aton reads: one to four parts, each decimal, octal
// or hexadecimal, the last one filling the rest.
func looseIPv4(s string) (netip.Addr, bool) {
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, part := range parts {
		base := 10
		switch {
		case strings.HasPrefix(part, "0x"), strings.HasPrefix(part, "0X"):
			base, part = 16, part[2:]
			if part == "" {
				part = "0"
			}
		case len(part) > 1 && part[0] == '0':
			base = 8
		}
		n, err := strconv.ParseUint(part, base, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (5 - len(parts))
		}
		if n >= 1<<bits {
			return netip.Addr{}, false
		}
		v = v<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

// lowerASCII leaves every byte above 0x7f alone: Unicode lower case would turn
// the Kelvin sign into a k.
func lowerASCII(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for j := i; j < len(b); j++ {
				if 'A' <= b[j] && b[j] <= 'Z' {
					b[j] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// shown makes text from a box fit for a record: valid UTF-8 of bounded length.
// It stays untrusted.
func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
