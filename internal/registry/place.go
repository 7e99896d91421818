package registry

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// add notes the host of a URL, and where the URL stood. URLs that lead to no
// network are left out.
func (f *found) add(raw, from string) error {
	if raw = strings.TrimSpace(raw); raw == "" {
		return nil
	}
	// The parser's own error would repeat the URL, credentials and all.
	u, err := url.Parse(raw)
	if err != nil || strings.Contains(raw, "${") {
		return fmt.Errorf("%s is no URL that can be read here", from)
	}
	port := ""
	switch strings.ToLower(u.Scheme) {
	case "https":
		port = "443"
	case "http":
		port = "80"
	case "file":
		return nil
	case "":
		return fmt.Errorf("%s is no URL that can be read here", from)
	default:
		return fmt.Errorf("%s is not for HTTP (%.20q); a tcp:// rule can name its host", from, u.Scheme)
	}
	if p := u.Port(); p != "" {
		port = p
	}
	return f.host(u.Hostname(), port, from)
}

func (f *found) host(host, port, from string) error {
	to := net.JoinHostPort(host, port)
	if _, err := netip.ParseAddr(host); err == nil {
		return fmt.Errorf("%s is an address and not a name; write {to: \"tcp://%s\", private: true} instead of the preset, the marker if the address is not public", from, to)
	}
	rule, err := egress.ParseRule(to)
	if err == nil && rule.Host() == "" {
		err = errors.New("names no single host")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if !slices.Contains(f.rules, rule.String()) {
		f.rules, f.from = append(f.rules, rule.String()), append(f.from, from)
	}
	return nil
}
