package egress

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var sorted = cmpopts.SortSlices(func(a, b string) bool { return a < b })

func seenAt(host string, port int, protocol string) Record {
	return Record{Host: host, Port: port, Protocol: protocol, Verdict: Allowed, Reason: ReasonAudit, Count: 1}
}

func TestProposalIsTheNarrowestList(t *testing.T) {
	for name, c := range map[string]struct {
		records []Record
		want    []string
	}{
		"nothing for nothing":            {nil, nil},
		"a name for 443":                 {[]Record{seenAt("a.test", 443, "https")}, []string{"a.test"}},
		"a name for 443 and 80":          {[]Record{seenAt("a.test", 80, "http"), seenAt("a.test", 443, "https")}, []string{"a.test"}},
		"the port for 80 alone":          {[]Record{seenAt("a.test", 80, "http")}, []string{"a.test:80"}},
		"the port for another":           {[]Record{seenAt("a.test", 8443, "https"), seenAt("a.test", 443, "https")}, []string{"a.test", "a.test:8443"}},
		"tcp:// for what is no TLS":      {[]Record{seenAt("a.test", 22, "tcp/ssh")}, []string{"tcp://a.test:22"}},
		"tcp:// alone where it was both": {[]Record{seenAt("a.test", 443, "tcp/ssh"), seenAt("a.test", 443, "https")}, []string{"tcp://a.test:443"}},
		"tcp:// for an address":          {[]Record{seenAt("9.9.9.9", 80, "http"), seenAt("2606:4700::1", 443, "tcp/tls")}, []string{"tcp://9.9.9.9:80", "tcp://[2606:4700::1]:443"}},
		"never a wildcard":               {[]Record{seenAt("a.x.test", 443, "https"), seenAt("b.x.test", 443, "https"), seenAt("c.x.test", 443, "https")}, []string{"a.x.test", "b.x.test", "c.x.test"}},
		"each once":                      {[]Record{seenAt("a.test", 443, "https"), seenAt("a.test", 443, "connect")}, []string{"a.test"}},
		"what failed, for it would be denied": {
			[]Record{{Host: "gone.test", Port: 443, Protocol: "connect", Verdict: Failed, Reason: ReasonResolve}}, []string{"gone.test"}},
		"not what was denied":       {[]Record{{Host: "inside.test", Port: 443, Verdict: Denied, Reason: ReasonNonPublic}}, nil},
		"not what nobody asked for": {[]Record{{Verdict: Failed, Reason: ReasonOverload}, {Host: Others, Verdict: Failed, Reason: ReasonDial}}, nil},
		"not what is no rule":       {[]Record{seenAt("a.test\n- \"*\"", 443, "https"), seenAt("metadata", 443, "https")}, nil},
		"the marker for a private target": {
			[]Record{{Host: "db.test", Port: 5432, Protocol: "tcp/postgres", Verdict: Allowed, Reason: ReasonPrivate}}, []string{`{to: "tcp://db.test:5432", private: true}`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Proposal(c.records)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !slices.IsSorted(got) {
				t.Errorf("not sorted: %q", got)
			}
		})
	}
}

func TestEntriesNobodyNeededAndEntriesTooWide(t *testing.T) {
	allow := []Entry{
		{To: "Used.test"}, {To: "unused.test"}, {To: "*.wild.test"}, {To: "**.deep.test:8443"}, {To: "*.many.test"}, {To: "plain.test"},
		{To: "both.test"}, {To: "port.test:8443"}, {To: "tcp://db.test:5432"}, {To: "tcp://idle.test:22"}, {To: "preset:github"}, {To: "preset:nuget"},
		{To: "denied.test"}, {To: "*.corp.test", Private: true}, {To: "*", Force: true}, {To: "failed.test"},
	}
	records := []Record{
		seenAt("used.test", 443, "https"), seenAt("a.wild.test", 443, "https"), seenAt("b.wild.test", 80, "http"),
		seenAt("x.y.deep.test", 8443, "https"), seenAt("plain.test", 80, "http"), seenAt("both.test", 80, "http"), seenAt("both.test", 443, "https"),
		seenAt("port.test", 8443, "https"), seenAt("db.test", 5432, "tcp/postgres"), seenAt("api.github.com", 443, "https"),
		{Host: "denied.test", Port: 443, Verdict: Denied, Reason: ReasonSNIMismatch},
		{Host: "db.corp.test", Port: 443, Protocol: "https", Verdict: Allowed, Reason: ReasonPrivate},
		{Host: "failed.test", Port: 443, Protocol: "connect", Verdict: Failed, Reason: ReasonDial},
	}
	for _, c := range "abcdefghi" {
		records = append(records, seenAt(string(c)+".many.test", 443, "https"))
	}
	unused := []string{"unused.test", "tcp://idle.test:22", "preset:nuget", "denied.test"}
	if diff := cmp.Diff(unused, Unused(Presets(), allow, records)); diff != "" {
		t.Errorf("unused (-want +got):\n%s", diff)
	}
	wide := []Finding{
		{"*.wild.test", []string{"a.wild.test", "b.wild.test:80"}},
		{"**.deep.test:8443", []string{"x.y.deep.test:8443"}},
		{"plain.test", []string{"plain.test:80"}},
		{`{to: "*.corp.test", private: true}`, []string{`{to: "db.corp.test", private: true}`}},
	}
	if diff := cmp.Diff(wide, TooWide(Presets(), allow, records)); diff != "" {
		t.Errorf("too wide (-want +got):\n%s", diff)
	}
	// What is proposed is itself neither unused nor too wide.
	var again []Entry
	for _, text := range Proposal(records) {
		if text[0] != '{' {
			again = append(again, Entry{To: text})
		}
	}
	if u, f := Unused(Presets(), again, records), TooWide(Presets(), again, records); len(again) == 0 || len(u) != 0 || len(f) != 0 {
		t.Errorf("of the proposal %v: unused %v, too wide %v", again, u, f)
	}
}

func TestAnExpectedDenialIsOneARuleSpeaksOf(t *testing.T) {
	var expect []Rule
	for _, s := range []string{"telemetry.test", "*.ads.test", "port.test:8443", "169.254.169.254"} {
		r, err := ParseDeny(s)
		if err != nil {
			t.Fatal(err)
		}
		expect = append(expect, r...)
	}
	denied := func(host string, port int) Record {
		return Record{Host: host, Port: port, Verdict: Denied, Reason: ReasonNoRule}
	}
	for name, c := range map[string]struct {
		r    Record
		want bool
	}{
		"the name, on any port":         {denied("telemetry.test", 4318), true},
		"under a wildcard":              {denied("x.ads.test", 443), true},
		"the port named":                {denied("port.test", 8443), true},
		"an address":                    {denied("169.254.169.254", 80), true},
		"an address as a number":        {denied("2852039166", 80), true},
		"another port":                  {denied("port.test", 443), false},
		"another name":                  {denied("evil.test", 443), false},
		"a name below":                  {denied("a.telemetry.test", 443), false},
		"another address":               {denied("169.254.169.253", 80), false},
		"what had no room of its own":   {denied(Others, 0), false},
		"no host":                       {denied("", 0), false},
		"what was allowed is no denial": {Record{Host: "telemetry.test", Port: 443, Verdict: Allowed}, false},
		"what failed is no denial":      {Record{Host: "telemetry.test", Port: 443, Verdict: Failed}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Expected(expect, c.r); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	if Expected([]Rule{{}}, denied("", 0)) || Expected(nil, denied("telemetry.test", 443)) {
		t.Error("the zero rule, or none, expects something")
	}
}
