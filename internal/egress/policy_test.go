package egress

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecide(t *testing.T) {
	policy := Policy{
		Allow: rules(t, "good.test", "port.test:8443", "*.wild.test", "bücher.example", "both.test", "both.test:8443", "*.over.test"),
		Deny:  rules(t, "bad.over.test", "one.over.test:443"),
	}
	for name, c := range map[string]struct {
		host string
		port int
		want Decision
	}{
		"allows a listed name on 443":                                  {"good.test", 443, Decision{true, "good.test", "good.test", ""}},
		"allows a listed name on 80":                                   {"good.test", 80, Decision{true, "good.test", "good.test", ""}},
		"allows it in upper case and with a dot (51)":                  {"GOOD.Test.", 443, Decision{true, "good.test", "good.test", ""}},
		"allows the port a rule names":                                 {"port.test", 8443, Decision{true, "port.test", "port.test:8443", ""}},
		"allows one label under a wildcard":                            {"a.wild.test", 443, Decision{true, "a.wild.test", "*.wild.test", ""}},
		"allows a name as A-labels (32)":                               {"xn--bcher-kva.example", 443, Decision{true, "xn--bcher-kva.example", "xn--bcher-kva.example", ""}},
		"finds the rule whose port fits":                               {"both.test", 8443, Decision{true, "both.test", "both.test:8443", ""}},
		"denies another port (29)":                                     {"good.test", 22, Decision{false, "good.test", "good.test", ReasonPort}},
		"denies Redis's port (29)":                                     {"good.test", 6379, Decision{false, "good.test", "good.test", ReasonPort}},
		"denies port 0 (29)":                                           {"good.test", 0, Decision{false, "good.test", "good.test", ReasonPort}},
		"denies a default port where a rule names another":             {"port.test", 443, Decision{false, "port.test", "port.test:8443", ReasonPort}},
		"denies a sub-domain of an exact name (23)":                    {"data.good.test", 443, Decision{false, "data.good.test", "", ReasonNoRule}},
		"denies a look-alike by prefix (30)":                           {"evilgood.test", 443, Decision{false, "evilgood.test", "", ReasonNoRule}},
		"denies a look-alike by suffix (30)":                           {"good.test.evil.test", 443, Decision{false, "good.test.evil.test", "", ReasonNoRule}},
		"denies a look-alike with a hyphen (30)":                       {"good-test", 443, Decision{false, "good-test", "", ReasonNoRule}},
		"denies the bare name under a wildcard":                        {"wild.test", 443, Decision{false, "wild.test", "", ReasonNoRule}},
		"denies two labels under a wildcard":                           {"a.b.wild.test", 443, Decision{false, "a.b.wild.test", "", ReasonNoRule}},
		"denies an empty label under a wildcard":                       {".wild.test", 443, Decision{false, "", "", ReasonBadName}},
		"denies a dotless name":                                        {"localhost", 80, Decision{false, "localhost", "", ReasonNoRule}},
		"denies a non-ASCII name even if its A-labels are listed (32)": {"bücher.example", 443, Decision{false, "", "", ReasonBadName}},
		"denies a homoglyph (32)":                                      {"gооd.test", 443, Decision{false, "", "", ReasonBadName}},
		"denies full-width digits (32)":                                {"１２７.０.０.１", 443, Decision{false, "", "", ReasonBadName}},
		"denies the Kelvin sign for k (32)":                            {"\u212aelvin.test", 443, Decision{false, "", "", ReasonBadName}},
		"denies an IPv4 literal (28)":                                  {"93.184.216.34", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a decimal literal (28)":                                {"2130706433", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a hexadecimal literal (28)":                            {"0x7f000001", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a short literal (28)":                                  {"0x7f.1", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies an octal literal (28)":                                 {"0177.0.0.01", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies an octal that is none (28)":                            {"08.0.0.1", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a literal with a trailing dot (28)":                    {"127.0.0.1.", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a literal out of range (28)":                           {"300.300.300.300", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies an IPv6 literal (28)":                                  {"[2606:4700::1]", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies an IPv6 literal without brackets (28)":                 {"2606:4700::1", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a zone (28)":                                           {"[fe80::1%25lo]", 443, Decision{false, "", "", ReasonIPLiteral}},
		"denies a mapped literal (2)":                                  {"[::ffff:93.184.216.34]", 443, Decision{false, "", "", ReasonIPLiteral}},
		"names the metadata service (60)":                              {"169.254.169.254", 80, Decision{false, "", "", ReasonMetadata}},
		"names the metadata service as a number (60)":                  {"2852039166", 80, Decision{false, "", "", ReasonMetadata}},
		"names the metadata service over IPv6 (60)":                    {"[fd00:ec2::254]", 80, Decision{false, "", "", ReasonMetadata}},
		"names the metadata service mapped (60)":                       {"[::ffff:a9fe:a9fe]", 80, Decision{false, "", "", ReasonMetadata}},
		"names Azure's wireserver (60)":                                {"168.63.129.16", 80, Decision{false, "", "", ReasonMetadata}},
		"names the metadata service by name (60)":                      {"Metadata.Google.Internal.", 80, Decision{false, "metadata.google.internal", "", ReasonMetadata}},
		"deny wins over a wildcard (49)":                               {"bad.over.test", 443, Decision{false, "bad.over.test", "bad.over.test", ReasonDenyRule}},
		"deny without a port holds for every port (49)":                {"bad.over.test", 80, Decision{false, "bad.over.test", "bad.over.test", ReasonDenyRule}},
		"deny with a port leaves the others (49)":                      {"one.over.test", 80, Decision{true, "one.over.test", "*.over.test", ""}},
		"deny does not reach its neighbours (49)":                      {"ok.over.test", 443, Decision{true, "ok.over.test", "*.over.test", ""}},
		"denies an escape in a name":                                   {"good%2etest", 443, Decision{false, "", "", ReasonBadName}},
		"denies a NUL in a name":                                       {"good.test\x00.evil.test", 443, Decision{false, "", "", ReasonBadName}},
		"denies no name":                                               {"", 443, Decision{false, "", "", ReasonBadName}},
		"denies a dot":                                                 {".", 443, Decision{false, "", "", ReasonBadName}},
		"denies two trailing dots":                                     {"good.test..", 443, Decision{false, "", "", ReasonBadName}},
	} {
		t.Run(name, func(t *testing.T) {
			got := policy.Decide(Request{c.host, c.port})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s:%d (-want +got):\n%s", c.host, c.port, diff)
			}
		})
	}
}

func TestZeroValuesRefuse(t *testing.T) {
	if (Decision{}).Allow {
		t.Error("the zero decision allows")
	}
	if d := (Policy{}).Decide(Request{"good.test", 443}); d.Allow {
		t.Error("the zero policy allows")
	}
	if d := (Policy{Allow: []Rule{{}}}).Decide(Request{"", 443}); d.Allow {
		t.Error("the zero rule allows nothing's name")
	}
	if d := (Policy{Allow: []Rule{{depth: oneLabel}}}).Decide(Request{"a", 443}); d.Allow {
		t.Error("a star over nothing allows")
	}
}

func TestHintIsTheLineThatWouldAllow(t *testing.T) {
	for name, c := range map[string]struct {
		r    Record
		want string
	}{
		"the name alone on a default port": {Record{Host: "evil.test", Port: 443, Verdict: Denied, Reason: ReasonNoRule}, "evil.test"},
		"with the port otherwise":          {Record{Host: "evil.test", Port: 8443, Verdict: Denied, Reason: ReasonPort}, "evil.test:8443"},
		"none for an address":              {Record{Host: "10.0.0.1", Port: 443, Verdict: Denied, Reason: ReasonIPLiteral}, ""},
		"none for a wrong server name":     {Record{Host: "good.test", Port: 443, Verdict: Denied, Reason: ReasonSNIMismatch}, ""},
		"none for localhost":               {Record{Host: "localhost", Port: 443, Verdict: Denied, Reason: ReasonNoRule}, ""},
		"none for what failed":             {Record{Host: "good.test", Port: 443, Verdict: Failed, Reason: ReasonDial}, ""},
		"none for the record of others":    {Record{Host: Others, Verdict: Denied, Reason: ReasonNoRule}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.r.Hint(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestEveryReasonHasItsMeaning(t *testing.T) {
	for _, r := range []string{
		ReasonNoRule, ReasonDenyRule, ReasonPort, ReasonIPLiteral, ReasonBadName, ReasonMetadata, ReasonNonPublic, ReasonSelf,
		ReasonNotTLS, ReasonNoSNI, ReasonSNIMismatch, ReasonECH, ReasonHostMismatch, ReasonUpgrade, ReasonBadRequest,
		ReasonResolve, ReasonDial, ReasonUpstream, ReasonNoHello, ReasonOverload, ReasonCancelled, ReasonHostAddrs,
		ReasonMaxBytes, ReasonAudit, ReasonPrivate,
	} {
		if Meaning(r) == "" {
			t.Errorf("%s has no meaning", r)
		}
	}
	if Meaning("made up") != "" {
		t.Error("a made-up reason has a meaning")
	}
}
