package egress

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
)

// entries parses a list that has to be right.
func entries(t testing.TB, list ...Entry) []Rule {
	t.Helper()
	var out []Rule
	for _, e := range list {
		got, err := ParseEntry(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, got...)
	}
	return out
}

func TestMarkersLetAnEntrySayMore(t *testing.T) {
	for name, c := range map[string]struct {
		e    Entry
		want string // the rule, or words of the error
		ok   bool
	}{
		"a plain rule":                                  {Entry{To: "example.com"}, "example.com", true},
		"every name without force (48)":                 {Entry{To: "*"}, "covers every host", false},
		"every name with force (48)":                    {Entry{To: "*", Force: true}, "*", true},
		"every name, twice the star, with force":        {Entry{To: "**:443", Force: true}, "*:443", true},
		"*.* is never anything (48)":                    {Entry{To: "*.*", Force: true}, "covers every host", false},
		"a top-level domain without force (48)":         {Entry{To: "*.com"}, "every name under .com", false},
		"a top-level domain with force (48)":            {Entry{To: "*.com", Force: true}, "*.com", true},
		"a public suffix without force (48)":            {Entry{To: "**.github.io"}, "public suffix list", false},
		"a public suffix with force (48)":               {Entry{To: "**.github.io", Force: true}, "**.github.io", true},
		"force is not private":                          {Entry{To: "tcp://10.0.0.5:5432", Force: true}, "add private: true", false},
		"private is not force (48)":                     {Entry{To: "*.com", Private: true}, "every name under .com", false},
		"an internal name":                              {Entry{To: "db.corp.example", Private: true}, "db.corp.example", true},
		"a private address (65)":                        {Entry{To: "tcp://10.0.0.5:5432", Private: true}, "tcp://10.0.0.5:5432", true},
		"loopback, which is the host's (65)":            {Entry{To: "tcp://127.0.0.1:5432", Private: true}, "tcp://127.0.0.1:5432", true},
		"loopback of IPv6":                              {Entry{To: "tcp://[::1]:5432", Private: true}, "tcp://[::1]:5432", true},
		"a unique local address":                        {Entry{To: "tcp://[fd12::5]:5432", Private: true}, "tcp://[fd12::5]:5432", true},
		"a metadata address, whatever the markers (60)": {Entry{To: "tcp://169.254.169.254:80", Private: true, Force: true}, "metadata service", false},
		"one in a public range (60)":                    {Entry{To: "tcp://168.63.129.16:80", Private: true, Force: true}, "metadata service", false},
		"one over IPv6 (60)":                            {Entry{To: "tcp://[fd00:ec2::254]:80", Private: true, Force: true}, "metadata service", false},
		"one by name (60)":                              {Entry{To: "metadata.google.internal", Private: true, Force: true}, "metadata service", false},
		"one inside another address (60)":               {Entry{To: "tcp://[64:ff9b::a9fe:a9fe]:80", Private: true}, "metadata service", false},
		"an address inside another (61)":                {Entry{To: "tcp://[64:ff9b::a00:5]:80", Private: true}, "no address of one host", false},
		"a mapped address (61)":                         {Entry{To: "tcp://[::ffff:10.0.0.5]:80", Private: true}, "write the plain one", false},
		"no address at all (61)":                        {Entry{To: "tcp://0.0.0.0:80", Private: true}, "no address of one host", false},
		"multicast (61)":                                {Entry{To: "tcp://224.0.0.1:80", Private: true}, "no address of one host", false},
		"broadcast (61)":                                {Entry{To: "tcp://255.255.255.255:80", Private: true}, "no address of one host", false},
		"an address without tcp://":                     {Entry{To: "10.0.0.5:80", Private: true}, "is an address", false},
		"an unknown preset":                             {Entry{To: "preset:everything"}, "there is no such preset; there are alpine, ", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEntry(c.e)
			if !c.ok {
				if err == nil || !strings.Contains(err.Error(), c.want) || got != nil {
					t.Fatalf("%v: %v, %v; want an error with %q", c.e, got, err, c.want)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0].String() != c.want || got[0].Private() != c.e.Private {
				t.Fatalf("%v: %v, %v; want %q", c.e, got, err, c.want)
			}
		})
	}
}

func TestTheDocumentNamesEveryPreset(t *testing.T) {
	doc, err := os.ReadFile("../../docs/egress.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(Presets(), HostPresets()...) {
		if !strings.Contains(string(doc), "`"+p.Name+"`") {
			t.Errorf("docs/egress.md does not name preset %s", p.Name)
		}
	}
}

func TestAWildcardOfAnyDepthNeverCoversTheBareName(t *testing.T) {
	p := Policy{Allow: rules(t, "**.wild.test")}
	for host, want := range map[string]bool{
		"a.wild.test": true, "a.b.wild.test": true, "a.b.c.d.wild.test": true, "A.Wild.Test.": true,
		"wild.test": false, "awild.test": false, ".wild.test": false, "wild.test.evil.test": false, "a..wild.test": false,
	} {
		if got := p.Decide(Request{host, 443}); got.Allow != want {
			t.Errorf("%s: %+v", host, got)
		}
	}
}

func TestAPresetIsExactRulesThatRememberIt(t *testing.T) {
	presets := Presets()
	if len(presets) < 10 {
		t.Fatalf("%d presets", len(presets))
	}
	seen := map[string]bool{}
	for _, p := range presets {
		if seen[p.Name] || p.Doc == "" || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("preset %q: twice, without words, or oddly named", p.Name)
		}
		seen[p.Name] = true
		got, err := ParseEntry(Entry{To: "preset:" + p.Name})
		if err != nil || len(got) != len(p.Rules) || len(got) == 0 {
			t.Errorf("preset:%s: %v, %v", p.Name, got, err)
			continue
		}
		for i, r := range got {
			if r.Preset() != p.Name || r.String() != p.Rules[i] || r.Host() == "" || r.Private() {
				t.Errorf("preset:%s: %q became %q, of preset %q", p.Name, p.Rules[i], r, r.Preset())
			}
		}
	}
	if r := rules(t, "example.com")[0]; r.Preset() != "" {
		t.Errorf("a rule of its own comes from preset %q", r.Preset())
	}
	// One's own list, as a new line in the file would be.
	mine := []Preset{{Name: "mine", Doc: "a test", Rules: []string{"a.example.com", "*.b.example.com"}}}
	if got, err := ParseEntryIn(mine, Entry{To: "preset:mine"}); err != nil || len(got) != 2 {
		t.Errorf("preset:mine: %v, %v", got, err)
	}
	// What stands for the machine's own set-up is refused by name until read.
	for _, p := range HostPresets() {
		if _, err := ParseEntry(Entry{To: "preset:" + p.Name}); err == nil || !strings.Contains(err.Error(), "nobody has read that") || len(p.Rules) > 0 || p.Doc == "" {
			t.Errorf("preset:%s, unread, with the rules %v: %v", p.Name, p.Rules, err)
		}
		read := []Preset{{Name: p.Name, Rules: []string{"mirror.example.com:8443"}}}
		if got, err := ParseDenyIn(read, "preset:"+p.Name); err != nil || len(got) != 1 || got[0].String() != "mirror.example.com:8443" {
			t.Errorf("preset:%s, read: %v, %v", p.Name, got, err)
		}
	}
	// A preset gives nobody what an entry could not have.
	for _, bad := range []string{"*.com", "tcp://10.0.0.5:22", "preset:mine", "metadata.google.internal"} {
		if got, err := ParseEntryIn([]Preset{{Name: "bad", Rules: []string{bad}}}, Entry{To: "preset:bad"}); err == nil {
			t.Errorf("a preset with %q gave %v", bad, got)
		}
	}
}

func TestAnEntryPrintsAsWhatCanBePasted(t *testing.T) {
	for _, e := range []Entry{
		{To: "example.com"}, {To: "preset:github"}, {To: "tcp://10.0.0.5:5432", Private: true}, {To: "*.com", Force: true},
		{To: "tcp://[::1]:22", Private: true, Force: true},
	} {
		var back struct {
			To             string
			Private, Force bool
		}
		if !e.Private && !e.Force {
			back.To = e.String()
		} else if err := yaml.Unmarshal([]byte(e.String()), &back); err != nil {
			t.Errorf("%s: %v", e, err)
			continue
		}
		if diff := cmp.Diff(e, Entry(back)); diff != "" {
			t.Errorf("%s read back (-want +got):\n%s", e, diff)
		}
	}
}

// Attack 49, and what expectDenied is for: rules that refuse are as wide as one
// likes.
func TestRulesThatRefuse(t *testing.T) {
	var deny []Rule
	for _, s := range []string{"bad.good.test", "**.ads.test", "*.zip", "9.9.9.9", "tcp://8.8.8.8:53", "[2606:4700::1]:443", "preset:ghcr", "metadata.google.internal", "169.254.169.254"} {
		got, err := ParseDeny(s)
		if err != nil {
			t.Fatal(err)
		}
		deny = append(deny, got...)
	}
	p := Policy{Allow: entries(t, Entry{To: "*", Force: true}, Entry{To: "tcp://9.9.9.9:443"}, Entry{To: "tcp://bad.good.test:22"}), Deny: deny}
	for target, c := range map[Request]string{
		{"bad.good.test", 443}:            ReasonDenyRule,
		{"bad.good.test", 22}:             ReasonDenyRule, // over the tcp:// rule, too
		{"x.ads.test", 80}:                ReasonDenyRule,
		{"x.y.ads.test", 443}:             ReasonDenyRule,
		{"evil.zip", 443}:                 ReasonDenyRule,
		{"9.9.9.9", 443}:                  ReasonDenyRule,
		{"0x09090909", 443}:               ReasonDenyRule, // in any spelling
		{"8.8.8.8", 53}:                   ReasonDenyRule,
		{"[2606:4700::1]", 443}:           ReasonDenyRule,
		{"[2606:4700:0:0::1]", 443}:       ReasonDenyRule,
		{"[2606:4700::1]", 80}:            ReasonIPLiteral,
		{"ghcr.io", 443}:                  ReasonDenyRule,
		{"169.254.169.254", 80}:           ReasonMetadata,
		{"good.test", 443}:                "",
		{"ads.test", 443}:                 "",
		{"very.bad.good.test", 443}:       "",
		{"good.test", 8443}:               ReasonPort,
		{"metadata.google.internal.", 80}: ReasonMetadata,
	} {
		if d := p.Decide(target); d.Reason != c || d.Allow != (c == "") {
			t.Errorf("%v: %+v, want %q", target, d, c)
		}
	}
	for _, s := range []string{"", "a b", "tcp://x", "https://x", "preset:nope", "*.*", "fe80::1%lo"} {
		if got, err := ParseDeny(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func FuzzEntry(f *testing.F) {
	for _, s := range []string{"example.com", "**.example.com:8443", "tcp://db.example.com:5432", "tcp://10.0.0.5:1", "tcp://[::1]:22", "*", "*.com", "preset:github", "tcp://[fe80::1%lo]:1", "2001:db8::1"} {
		for i := range 8 {
			f.Add(s, i&1 != 0, i&2 != 0, i&4 != 0)
		}
	}
	f.Fuzz(func(t *testing.T, s string, private, force, deny bool) {
		parse := func(s string) ([]Rule, error) { return ParseEntry(Entry{s, private, force}) }
		if deny {
			parse = ParseDeny
		}
		list, err := parse(s)
		if err != nil {
			if list != nil {
				t.Fatalf("%q: an error came with rules: %v", s, list)
			}
			return
		}
		for _, r := range list {
			again, err := parse(r.String())
			if len(again) == 1 {
				again[0].preset = r.preset
			}
			if err != nil || len(again) != 1 || again[0] != r {
				t.Fatalf("%q gave %q, which reads back as %v, %v", s, r, again, err)
			}
			if r.coversName("") || r.depth > itself && r.depth < everyName && r.coversName(r.name) {
				t.Fatalf("%q covers what it must not", r)
			}
			if deny {
				continue
			}
			if a, ok := literalAddr(r.Host()); ok {
				if public, why := AddrVerdict(a); why == ReasonMetadata || !public && !private {
					t.Fatalf("%q allows an address it must not", r)
				}
			}
			if !force && r.depth != itself && !strings.Contains(r.name, ".") {
				t.Fatalf("%q covers a whole top-level domain", r)
			}
		}
	})
}
