package steps

import (
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// egressModes are the words of egressMode.
var egressModes = []string{ModeEnforce, ModeAudit}

// The modes of egress. In audit every public request goes through and is
// written down; such a run is labelled and never counts as enforced.
const (
	ModeEnforce = "enforce"
	ModeAudit   = "audit"
)

// rules is an allowlist as written.
type rules []egress.Entry

const allowedRule = "name, name:port, *.name, **.name, tcp://name:port, preset:NAME, or {to: RULE, private: true, force: true}"

func readEgressAllow(c *checker, k key, v value, s *step) { s.EgressAllow = c.allowRules(k, v) }

// allowRules reads a list of rules that allow.
func (c *checker) allowRules(k key, v value) rules {
	out := rules{}
	seen := map[string]egress.Entry{}
	c.list(k, v, func(item value) (string, bool) {
		e, ok := c.entry(item)
		if !ok {
			return "", false
		}
		rules, err := c.parseEntry(e)
		if err != nil {
			c.wrong(item, "not an egress rule: "+ruleWords(err), allowedRule)
			return "", false
		}
		if !strings.HasPrefix(e.To, "preset:") && len(rules) == 1 {
			e.To = rules[0].String()
		}
		for _, r := range rules {
			if w := egress.ResolverWarning(r); w != "" {
				c.warn(item, e.To, w)
			}
		}
		if _, twice := seen[e.To]; !twice {
			seen[e.To] = e
			out = append(out, e)
		}
		return e.To, true
	})
	return out
}

// ruleWords is what is wrong with a rule, which stands beside it anyway.
func ruleWords(err error) string {
	if r, ok := err.(*egress.RuleError); ok { // itself: that of a preset's rule names another text
		err = r.Err
	}
	return inertWords(err.Error())
}

// entry reads one item of egressAllow: a rule, or a map with markers.
func (c *checker) entry(item value) (e egress.Entry, ok bool) {
	if item.kind != mapKind {
		e.To, ok = c.text("an item of egressAllow", allowedRule, item)
		return e, ok
	}
	ok = true
	for _, p := range item.pairs {
		var good bool
		switch p.key.text {
		case "to":
			e.To, good = c.text("to", "a rule", p.val)
		case "private":
			e.Private, good = c.mark("private", p.val)
		case "force":
			e.Force, good = c.mark("force", p.val)
		default:
			c.unknown(p.key, " in a rule", []string{"to", "private", "force"})
		}
		ok = ok && good
	}
	if ok && e.To == "" {
		c.wrong(item, "a rule without to", allowedRule)
		ok = false
	}
	return e, ok
}

func (c *checker) mark(name string, v value) (on, ok bool) {
	if v.kind != boolKind {
		c.mistyped(name, v, "true or false")
		return false, false
	}
	return strings.EqualFold(v.text, "true"), true
}

func readEgressDeny(c *checker, k key, v value, s *step)   { s.EgressDeny = c.refusals(k, v) }
func readExpectDenied(c *checker, k key, v value, s *step) { s.ExpectDenied = c.refusals(k, v) }

// refusals reads a list of rules that refuse, which may be as wide as they like.
func (c *checker) refusals(k key, v value) []string {
	return c.list(k, v, func(item value) (string, bool) {
		text, ok := c.text("an item of "+k.name, "a rule", item)
		if !ok {
			return "", false
		}
		if _, err := c.parseDeny(text); err != nil {
			c.wrong(item, "not a rule: "+ruleWords(err), "name, name:port, *.name, **.name, tcp://name:port, preset:NAME")
			return "", false
		}
		return text, true
	})
}

func readEgressMode(c *checker, k key, v value, s *step) {
	s.EgressMode = ModeEnforce
	if w, ok := c.word(k.name, k.words, v); ok {
		s.EgressMode = w
	}
}

func readEgressMaxBytes(c *checker, k key, v value, s *step) {
	s.EgressMaxBytes = c.whole(k, v)
}

// egressTogether checks what only several keys of egress show.
func (c *checker) egressTogether(s *step) {
	if v, ok := s.written["egressAllow"]; ok && s.Network && len(s.EgressAllow) > 0 {
		c.add(v.pos, "egressAllow and network: true exclude each other", "", "one of them",
			"network: true is the host's own network and asks no list; take it out to keep the list",
			"a step that sets defaults aside writes egressAllow: [] or network: false")
	}
	if v, ok := s.written["egressMode"]; ok && s.Network && s.EgressMode == ModeAudit {
		c.wrong(v, "egressMode: audit and network: true exclude each other", "one of them",
			"on the host's own network nothing passes the proxy, so there is nothing to write down")
	}
	for name, list := range map[string]rules{"egressAllow": s.EgressAllow, "setupEgress": s.SetupEgress} {
		v, ok := s.written[name]
		if !ok || s.bad[name] {
			continue
		}
		all, err := expand(list, c.parseEntry)
		if err == nil {
			_, err = egress.Forwards(all)
		}
		if err != nil {
			c.add(v.pos, "these rules do not go together: "+inertWords(err.Error()), "", allowedRule)
		}
	}
}

// expand gives every single rule of a list.
func expand[T any](list []T, parse func(T) ([]egress.Rule, error)) ([]egress.Rule, error) {
	var out []egress.Rule
	for _, e := range list {
		rules, err := parse(e)
		if err != nil {
			return nil, err
		}
		out = append(out, rules...)
	}
	return out, nil
}

// hasWay says whether the step's box has a way out through the proxy.
func (p *PlanStep) hasWay() bool { return len(p.EgressAllow) > 0 || p.EgressMode == ModeAudit }

// network is the word of the report for what the step can reach.
func (p *PlanStep) networkWord() string {
	switch {
	case p.Network:
		return "host"
	case p.hasWay():
		return "allowlist"
	}
	return "none"
}
