package steps

import (
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// excess is one step held to one key of a policy.
type excess struct {
	c   *checker
	p   *Policy
	s   *step
	key string
	// compared are values that were held to the policy already: what stands in
	// defaults is the same for all steps, and comparing long lists again for each
	// of thousands of them would take hours.
	compared map[said]bool
}

// again says whether the step's value for the key is one that was compared.
func (x *excess) again() bool {
	v, ok := x.s.written[x.key]
	if !ok {
		return false
	}
	at := said{v.pos, x.key}
	was := x.compared[at]
	x.compared[at] = true
	return was
}

// ceiling says how steps that were checked go beyond a policy. Steps that are
// not to be run are held to it as well: the file is what somebody reviews.
func (c *checker) ceiling(p *Policy, list []*step) {
	keys := slices.DeleteFunc(policyKeys(), func(k policyKey) bool { return k.exceeds == nil || !p.has(k.name) })
	compared := map[said]bool{}
	for _, s := range list {
		for _, k := range keys {
			k.exceeds(&excess{c, p, s, k.name, compared})
		}
	}
	c.required(p, list)
}

// place is where a step says what it says for the key: in the step, in defaults,
// or nowhere, and then it is the step that has the default.
func (x *excess) place() pos { return x.s.place(x.key) }

func (s *step) place(key string) pos {
	if v, ok := s.written[key]; ok {
		return v.pos
	}
	return s.at
}

// item is where the i-th item of a list stands. Lists that were checked have as
// many items as they had in the file.
func (x *excess) item(i int) pos {
	if v := x.s.written[x.key]; v.kind == listKind && i < len(v.items) {
		return v.items[i].pos
	}
	return x.place()
}

// pair is where the i-th key of a map stands.
func (x *excess) pair(i int) pos {
	if v := x.s.written[x.key]; v.kind == mapKind && i < len(v.pairs) {
		return v.pairs[i].key.pos
	}
	return x.place()
}

// over notes that a step goes beyond the policy: where, and where the policy
// says so.
func (x *excess) over(at pos, what, text, allowed string, hints ...string) {
	line := x.p.line(x.key, x.p.keys[x.key].pos)
	x.c.exceeded(at, line, what, text, allowed, hints...)
}

func (c *checker) exceeded(at pos, line PolicyLine, what, text, allowed string, hints ...string) {
	before := len(c.errs)
	c.add(at, what, text, allowed, hints...)
	if len(c.errs) > before {
		c.errs[before].Policy = &line
	}
}

// flag is over for what is either so or not.
func (x *excess) flag(is bool, what, allowed string) {
	if is {
		x.over(x.place(), what, "", allowed)
	}
}

func overRules(x *excess) {
	list := x.s.EgressAllow
	if x.again() {
		list = nil
	}
	for i, e := range list {
		rules, err := x.c.parseEntry(e)
		if err != nil || !egress.Within(rules, x.p.rules) {
			x.over(x.item(i), "this rule permits more than the policy", e.String(), orNone(entries(x.p.limit.EgressAllow)))
		}
	}
	overSetup(x)
	// Both let out what no list was asked about.
	if x.s.Network && !x.p.has("network") {
		x.over(x.s.place("network"), "network: true reaches more than the policy's egressAllow", "", "network: false")
	}
	if x.s.EgressMode == ModeAudit && !x.p.has("egressMode") {
		x.over(x.s.place("egressMode"), "egressMode: audit lets through more than the policy's egressAllow", "", ModeEnforce)
	}
}

// overSetup is for what a setup may reach. Where nothing says what that is, it
// is what audit lets through.
func overSetup(x *excess) {
	if x.s.Setup == "" {
		return
	}
	if !x.s.setupListed {
		if !x.p.has("egressMode") {
			x.over(x.s.place("setup"), "a setup without setupEgress reaches more than the policy's egressAllow", "", "setupEgress, with rules within the policy's egressAllow")
		}
		return
	}
	v, written := x.s.written["setupEgress"]
	for i, e := range x.s.SetupEgress {
		rules, err := x.c.parseEntry(e)
		if err != nil || !egress.Within(rules, x.p.rules) {
			at := x.s.place("setupEgress")
			if written && v.kind == listKind && i < len(v.items) {
				at = v.items[i].pos
			}
			x.over(at, "this rule permits more than the policy", e.String(), orNone(entries(x.p.limit.EgressAllow)))
		}
	}
}

func overMode(x *excess) {
	if x.p.limit.EgressMode == ModeEnforce && x.s.Setup != "" && !x.s.setupListed {
		x.over(x.s.place("setup"), "a setup without setupEgress reaches what egressMode: audit does, which is more than the policy allows", "", "setupEgress, a list of rules")
	}
	x.flag(x.p.limit.EgressMode == ModeEnforce && x.s.EgressMode == ModeAudit, "egressMode: audit is more than the policy allows", ModeEnforce)
}

func overNetwork(x *excess) {
	x.flag(x.s.Network && !x.p.limit.Network, "network: true is more than the policy allows", "false")
}

func overMounts(x *excess) {
	for _, m := range x.s.Mounts {
		at := x.place()
		for _, p := range x.s.written["mounts"].pairs {
			if target, _, ok := x.c.target(p.val); ok && target == m.Target {
				at = p.key.pos
			}
		}
		switch {
		case !slices.ContainsFunc(x.p.mounts, func(dir string) bool { return within(m.Source, dir) }):
			x.over(at, "this mount source is none that the policy allows", m.Source, orNone(inertAll(x.p.mounts, ", ")))
		case !m.ReadOnly:
			x.over(at, "a writable mount is more than the policy allows", m.Source, "[path, ro]")
		}
	}
}

func overEngine(x *excess) {
	if x.s.Engine != "" && !slices.Contains(x.p.engines, x.s.Engine) {
		x.over(x.place(), "engine is not one that the policy allows", x.s.Engine, strings.Join(x.p.engines, ", "))
	}
}

func overCaps(x *excess) {
	if slices.Contains(x.s.CapDrop, "ALL") {
		return
	}
	for _, name := range x.p.limit.CapDrop {
		if !slices.Contains(x.s.CapDrop, name) {
			x.over(x.place(), "capDrop lacks a capability that the policy wants dropped", name, "ALL, or a list with "+strings.Join(x.p.limit.CapDrop, ", "))
			return
		}
	}
}

func overChanges(x *excess) {
	if x.again() {
		return
	}
	globs, err := policy.Compile(x.s.AllowChanges)
	if err != nil { // it was compiled when it was read
		x.over(x.place(), "allowChanges cannot be compared with the policy: "+inertWords(err.Error()), "", allowedGlob)
		return
	}
	i, ok := globs.Outside(x.p.changes)
	if ok {
		return
	}
	_, written := x.s.written["allowChanges"]
	what, hints := "this glob permits more than the policy, or cannot be compared with it", []string(nil)
	if !written {
		what = "without allowChanges the step may change everything, which is more than the policy allows"
		hints = []string{"write allowChanges in the step, or in defaults"}
	}
	x.over(x.item(i), what, x.s.AllowChanges[i], orNone(inertAll(x.p.limit.AllowChanges, ", ")), hints...)
}

func (s *step) expectsZero() bool {
	return s.Expect.Fault == "" && (s.Expect.ExitCode == nil || *s.Expect.ExitCode == 0)
}

// required says which steps of a policy are not there, or not as they have to
// be. A step whose failure changes nothing is as good as not there.
func (c *checker) required(p *Policy, list []*step) {
	byID := make(map[string]*step, len(list))
	for _, s := range list {
		byID[s.ID] = s
	}
	for _, r := range p.required {
		line := p.line("required", r.at)
		s := byID[r.id]
		if s == nil {
			c.exceeded(c.stepsAt, line, "the step "+quoted(r.id)+" is not there, which the policy requires", "", "")
			continue
		}
		name := "step " + quoted(r.id) + ", which the policy requires,"
		what := "run"
		if len(s.Command) > 0 {
			what = "command"
		}
		if s.Code != "" {
			what = "code"
		}
		switch sum := s.digest(); {
		case sum != r.sum:
			c.exceeded(s.place(what), line, name+" runs something else", "sha256 "+sum, "sha256 "+r.sum)
		case what == "run" && s.Language != r.language:
			c.exceeded(s.place("language"), line, name+" is in another language", s.Language, r.language)
		}
		if s.Kernel != "" {
			// Another cell could change what this one finds in the interpreter.
			c.exceeded(s.place("kernel"), line, name+" may not share an interpreter", s.Kernel, "no kernel")
		}
		if s.ContinueOnError {
			c.exceeded(s.place("continueOnError"), line, name+" may not be excused by continueOnError", "", "continueOnError: false")
		}
		if len(s.Tolerate) > 0 {
			c.exceeded(s.place("tolerate"), line, name+" may tolerate no fault", faultList(s.Tolerate), "tolerate: []")
		}
		if !s.expectsZero() {
			c.exceeded(s.place("expect"), line, name+" has to pass with exit code 0", expected(s.Expect), "expect: {exitCode: 0}")
		}
	}
}

func expected(e expectation) string {
	if e.ExitCode != nil {
		return fmt.Sprintf("exitCode: %d", *e.ExitCode)
	}
	return "fault: " + string(e.Fault)
}
