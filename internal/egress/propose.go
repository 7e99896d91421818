package egress

import (
	"slices"
	"strconv"
	"strings"
)

// maxNarrower is how many names a wildcard may have been used for and still be
// called wider than its use.
const maxNarrower = 8

// Proposal gives the narrowest list under which the same requests would pass
// again, for the records of an audit: exact names, never a wildcard, and
// tcp:// only for what neither HTTP nor TLS for the name itself was. Failures
// are in it as well: what a step asks for in vain is a denial once it is not on
// the list. What was denied in the audit is not.
//
// A name for 443, or for 443 and 80, stands alone; other ports are named.
func Proposal(records []Record) []string {
	type want struct {
		ports map[int]bool
		tcp   map[int]bool
	}
	wanted := map[string]want{}
	private := map[string]bool{}
	for _, r := range records {
		if r.Verdict == Denied || r.Host == Others || r.Host == "" || r.Port < 1 || r.Port > 65535 {
			continue
		}
		w, ok := wanted[r.Host]
		if !ok {
			w = want{map[int]bool{}, map[int]bool{}}
			wanted[r.Host] = w
		}
		_, literal := literalAddr(r.Host)
		if isTCP(r) || literal {
			w.tcp[r.Port] = true
		} else {
			w.ports[r.Port] = true
		}
		private[r.Host] = private[r.Host] || r.Reason == ReasonPrivate
	}
	var out []string
	for host, w := range wanted {
		add := func(to string) {
			// Host is text from the box: what is no rule is not proposed.
			e := Entry{To: to, Private: private[host]}
			if rules, err := ParseEntry(e); err == nil && len(rules) == 1 {
				e.To = rules[0].String()
				out = append(out, e.String())
			}
		}
		bare := w.ports[443] && !w.tcp[443]
		if bare {
			add(host)
		}
		for port := range w.ports {
			if !w.tcp[port] && !(bare && (port == 80 || port == 443)) {
				add(host + ":" + strconv.Itoa(port))
			}
		}
		for port := range w.tcp {
			name := host
			if strings.Contains(host, ":") {
				name = "[" + host + "]"
			}
			add(tcpPrefix + name + ":" + strconv.Itoa(port))
		}
	}
	slices.Sort(out)
	return out
}

// Unused gives, as written, the entries of a list that no request needed.
func Unused(presets []Preset, allow []Entry, records []Record) []string {
	var out []string
	for _, e := range allow {
		rules, err := ParseEntryIn(presets, e)
		if err == nil && !slices.ContainsFunc(rules, func(r Rule) bool { return slices.ContainsFunc(records, r.served) }) {
			out = append(out, e.String())
		}
	}
	return out
}

// Finding is a rule that allows more than was used.
type Finding struct {
	Rule     string   `json:"rule"` // as written
	Narrower []string `json:"narrower"`
}

// TooWide gives the entries that allow more than was used, with what would have
// been enough: a wildcard that only few names came under, and a name without a
// port that was only used in plain, on port 80. A name that was only used on 443
// is not one: everybody writes that. Nor are presets, whose width is their
// purpose, nor entries nobody used, which Unused has.
func TooWide(presets []Preset, allow []Entry, records []Record) []Finding {
	var out []Finding
	for _, e := range allow {
		rules, err := ParseEntryIn(presets, e)
		if err != nil || len(rules) != 1 || rules[0].preset != "" {
			continue
		}
		var used []Record
		for _, rec := range records {
			if rules[0].served(rec) {
				used = append(used, rec)
			}
		}
		if narrower := rules[0].narrower(used); len(narrower) > 0 {
			out = append(out, Finding{Rule: e.String(), Narrower: narrower})
		}
	}
	return out
}

func (r Rule) narrower(used []Record) []string {
	proposal := Proposal(used)
	switch {
	case len(used) == 0 || len(proposal) == 0 || r.tcp:
		return nil
	case r.depth != itself && len(proposal) <= maxNarrower:
		return proposal
	case r.depth == itself && r.port == 0 && !slices.ContainsFunc(used, func(rec Record) bool { return rec.Port == 443 }):
		return proposal
	}
	return nil
}

// served says whether a rule let an attempt through, alone or beside others.
func (r Rule) served(rec Record) bool {
	if rec.Verdict == Denied || rec.Host == Others || isTCP(rec) && !r.tcp {
		return false
	}
	return r.covers(placeOf(rec)) && r.coversPort(rec.Port)
}

// Expected says whether one of these rules, of expectDenied, speaks of a denial.
// As with deny rules, one without a port means every port.
func Expected(rules []Rule, rec Record) bool {
	if rec.Verdict != Denied || rec.Host == Others {
		return false
	}
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.refuses(placeOf(rec), rec.Port) })
}

// placeOf reads the host of a record: canonical where there was a name, as the
// box wrote it otherwise.
func placeOf(rec Record) place {
	if a, ok := literalAddr(rec.Host); ok {
		return place{name: a.String(), addr: a.Unmap()}
	}
	return place{name: rec.Host}
}

func isTCP(r Record) bool {
	return r.Protocol == ProtocolTCP || strings.HasPrefix(r.Protocol, ProtocolTCP+"/")
}
