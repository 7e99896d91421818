package egress

import (
	"strings"
	"testing"
)

func TestRuleHasOneCanonicalForm(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a bare name":                          {"example.com", "example.com"},
		"a name with a port":                   {"example.com:8443", "example.com:8443"},
		"a default port stays, it narrows":     {"example.com:443", "example.com:443"},
		"lower case":                           {"EXAMPLE.Com", "example.com"},
		"no trailing dot":                      {"example.com.", "example.com"},
		"no trailing dot before a port":        {"example.com.:8080", "example.com:8080"},
		"one label of anything":                {"*.example.com", "*.example.com"},
		"one label of anything, with a port":   {"*.Example.com:8443", "*.example.com:8443"},
		"A-labels for other scripts":           {"bücher.example", "xn--bcher-kva.example"},
		"A-labels stay":                        {"XN--bcher-kva.example", "xn--bcher-kva.example"},
		"full-width letters are mapped":        {"ｅxample.com", "example.com"},
		"a dotless name can be named":          {"registry:5000", "registry:5000"},
		"an underscore":                        {"my_bucket.example.com", "my_bucket.example.com"},
		"digits that end no name":              {"1.example.com", "1.example.com"},
		"a wildcard under a name of one's own": {"*.someone.github.io", "*.someone.github.io"},
		"any depth":                            {"**.Example.com", "**.example.com"},
		"any depth, with a port":               {"**.example.com:8443", "**.example.com:8443"},
		"a tcp rule":                           {"tcp://DB.Example.com.:5432", "tcp://db.example.com:5432"},
		"a tcp rule for another script":        {"tcp://bücher.example:22", "tcp://xn--bcher-kva.example:22"},
		"a tcp rule for a public address":      {"tcp://9.9.9.9:853", "tcp://9.9.9.9:853"},
		"a tcp rule for a public IPv6 address": {"tcp://[2606:4700:0::1]:853", "tcp://[2606:4700::1]:853"},
		"the highest port":                     {"example.com:65535", "example.com:65535"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := ParseRule(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if r.String() != c.want {
				t.Errorf("%q: got %q, want %q", c.in, r, c.want)
			}
			again, err := ParseRule(r.String())
			if err != nil || again != r {
				t.Errorf("%q read back: %v, %v", r, again, err)
			}
		})
	}
}

// Attack 48 and the forms that are refused on purpose.
func TestRuleIsRefusedInItsOwnWords(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "is empty",
		" example.com":                     "space or a control character",
		"example.com\n":                    "space or a control character",
		"*":                                "covers every host",
		"*:443":                            "covers every host",
		"*.*":                              "covers every host",
		"**":                               "covers every host",
		"*.com":                            "every name under .com",
		"*.com.":                           "every name under .com",
		"*.co.uk":                          "public suffix list",
		"*.github.io":                      "public suffix list",
		"*.co.uk:8443":                     "public suffix list",
		"**.com":                           "every name under .com",
		"**.co.uk":                         "public suffix list",
		"preset:github":                    "is a preset",
		"tcp://db.example.com":             "has no port",
		"tcp://":                           "is empty",
		"tcp://*.example.com:22":           "is for one host",
		"tcp://*:22":                       "covers every host",
		"tcp://tcp://a.example:1":          "is a URL",
		"tcp://10.0.0.5:5432":              "add private: true",
		"tcp://127.0.0.1:5432":             "add private: true",
		"tcp://169.254.169.254:80":         "metadata service",
		"tcp://168.63.129.16:80":           "metadata service",
		"tcp://127.1:80":                   "is an address",
		"tcp://[::ffff:192.0.2.1]:80":      "write the plain one",
		"tcp://[fe80::1%lo]:80":            "write the plain one",
		"tcp://[192.0.2.1]:80":             "is not a host name",
		"tcp://[2606:4700::1]":             "has no port",
		"tcp://[2606:4700::1]80":           "is not a host name",
		"tcp://[2606:4700::1":              "is an address",
		"tcp://2606:4700::1:80":            "has no port",
		"https://example.com":              "is a URL",
		"example.com/path":                 "has a path",
		"example.com?x":                    "has a path",
		`example.com\x`:                    "has a path",
		"user@example.com":                 "has a user name",
		"user:pw@example.com":              "has a user name",
		"a.*.example.com":                  "a star can only stand",
		"a*.example.com":                   "a star can only stand",
		"*.*.example.com":                  "a star can only stand",
		"*example.com":                     "a star can only stand",
		"192.0.2.1":                        "is an address",
		"192.0.2.1:443":                    "is an address",
		"127.1":                            "is an address",
		"2130706433":                       "is an address",
		"0x7f.1":                           "is an address",
		"１２７.０.０.１":                        "is an address",
		"[::1]:443":                        "is an address",
		"::1":                              "is an address",
		"2001:db8::1":                      "is an address",
		"example.com:0":                    "port",
		"example.com:65536":                "port",
		"example.com:":                     "port",
		"example.com:080":                  "port",
		"example.com:+80":                  "port",
		"example.com:https":                "port",
		":443":                             "names no host",
		"*.":                               "names no host",
		".":                                "is not a host name",
		"a..b":                             "is not a host name",
		"-a.example.com":                   "is not a host name",
		"a-.example.com":                   "is not a host name",
		"exa%6dple.com":                    "is not a host name",
		"xn--zzzzzzzz99.com":               "is not a host name",
		"metadata.google.internal":         "metadata service",
		strings.Repeat("a", 64) + ".com":   "is not a host name",
		strings.Repeat("a.", 200) + "com":  "is not a host name",
		strings.Repeat("a.", 2000) + "com": "longer than a host name",
	} {
		t.Run(in[:min(len(in), 40)], func(t *testing.T) {
			r, err := ParseRule(in)
			if err == nil {
				t.Fatalf("%q was accepted as %q", in, r)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: got %q, want something with %q", in, err, want)
			}
			if r != (Rule{}) {
				t.Errorf("%q: an error came with a rule: %v", in, r)
			}
		})
	}
}

func FuzzRule(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:8443", "bücher.example:80", "EXAMPLE.com.", "*.co.uk", "127.1", "xn--bcher-kva.example", "a_b.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again != r {
			t.Fatalf("%q gave %q, which reads back as %q, %v", s, r, again, err)
		}
		if r.coversName("") || r.depth != itself && r.coversName(r.name) {
			t.Fatalf("%q covers what it must not", r)
		}
		host := r.Host()
		if r.depth != itself {
			host = "x." + r.name
		}
		port := r.port
		if port == 0 {
			port = 443
		}
		if d := (Policy{Allow: []Rule{r}}).Decide(Request{host, port}); !d.Allow && len(host) <= maxName {
			t.Fatalf("%q does not allow %s:%d: %s", r, host, port, d.Reason)
		}
	})
}
