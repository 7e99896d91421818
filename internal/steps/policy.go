package steps

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// Policy is a ceiling over what a steps file may ask for. The steps file of a
// pull request is written by whoever wrote the change; a policy is read from the
// side that is trusted, and what goes beyond it does not run.
//
// A key that a policy does not have bounds nothing. One that it has is closed:
// an empty list allows none. The policy's own bounds cannot be got round by
// another key: where it has egressAllow, neither the host's network nor audit is
// allowed unless its own keys allow them.
type Policy struct {
	file, sum string
	keys      map[string]value // as written, by name
	limit     *step            // what keys that a step has too allow at most
	rules     []egress.Rule    // of egressAllow
	changes   policy.Policy    // allowChanges
	mounts    []string         // real paths
	images    []imageRule
	pinned    bool // images of registries need a digest
	engines   []string
	env       []string
	tolerate  bool // any fault
	expect    bool
	setup     bool
	denied    bool // expectDenied
	required  []required
}

// PolicyRef says which policy a steps file was held to.
type PolicyRef struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // of the file
}

// required is a step that has to be in the file.
type required struct {
	at       pos
	id       string
	sum      string // what it has to run
	language string // of a script
}

// LoadPolicy reads a policy and checks all of it. The error, if there is one, is
// of type Errors.
func LoadPolicy(name string, src []byte, opt Options) (*Policy, error) {
	opt = opt.complete()
	root, errs := parseAs(form{kind: "a policy", holds: "version, and what steps may ask for"}, name, src)
	if errs != nil && root.pos == (pos{}) {
		return nil, errs.sorted()
	}
	sum := sha256.Sum256(src)
	p := &Policy{file: name, sum: hex.EncodeToString(sum[:]), keys: map[string]value{}, limit: &step{}}
	c := newChecker(name, opt, errs)
	c.policy(root, p)
	if len(c.errs) > 0 {
		return nil, c.errs.sorted()
	}
	return p, nil
}

// policy reads the keys of a policy.
func (c *checker) policy(root value, p *Policy) {
	if root.kind != mapKind {
		c.mistyped("the policy", root, "a map of keys: "+strings.Join(policyKeyNames(), ", "))
		return
	}
	for _, pair := range root.pairs {
		name, v := pair.key.text, pair.val
		if name == "version" {
			c.version(v)
			continue
		}
		k, ok := policyKeyOf(name)
		if !ok {
			c.unknown(pair.key, " in a policy", policyKeyNames())
			continue
		}
		p.keys[name] = v
		if v.kind == nullKind {
			c.mistyped(name, v, k.allowed())
			continue
		}
		k.read(c, k, v, p)
	}
}

// Ref names the policy in a report.
func (p *Policy) Ref() *PolicyRef { return &PolicyRef{Path: p.file, SHA256: p.sum} }

// Engines are those that a run may take; none named is all. The line is where
// the policy says so.
func (p *Policy) Engines() ([]string, PolicyLine) {
	return slices.Clone(p.engines), p.line("engine", p.keys["engine"].pos)
}

// NotAllowed is why the policy lets no box be built by an engine; "" if it does, as
// none at all does.
func (p *Policy) NotAllowed(engine string) string {
	if p == nil || len(p.engines) == 0 || slices.Contains(p.engines, engine) {
		return ""
	}
	_, line := p.Engines()
	return fmt.Sprintf("the policy allows %s (%s:%d:%d)", strings.Join(p.engines, ", "), line.File, line.Line, line.Column)
}

// Required are the ids of the steps that have to be in the file.
func (p *Policy) Required() []string {
	var ids []string
	for _, r := range p.required {
		ids = append(ids, r.id)
	}
	return ids
}

func (p *Policy) has(key string) bool { _, ok := p.keys[key]; return ok }

// line is a place of the policy with what its key says there, in words.
func (p *Policy) line(key string, at pos) PolicyLine {
	k, _ := policyKeyOf(key)
	says := "the policy has no " + key
	if k.says != nil {
		says = "the policy: " + k.says(p)
	}
	return PolicyLine{File: p.file, Line: at.line, Column: at.col, Says: says}
}

// digest is what a policy knows a step's script or command by. Each argument of
// a command ends with a NUL, which no script has in it, and a cell is told from a
// script by one.
func (s *step) digest() string {
	text := string(s.Run)
	if len(s.Command) > 0 {
		var b strings.Builder
		for _, a := range s.Command {
			b.WriteString(string(a))
			b.WriteByte(0)
		}
		text = b.String()
	}
	if s.Code != "" {
		text = "code\x00" + string(s.Code)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// realPath follows links as far as there is something to follow.
func (c *checker) realPath(path string) string {
	if real, err := c.opt.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// policyKeyNames are those that can be written, version first.
func policyKeyNames() []string {
	var names []string
	for _, k := range policyKeys() {
		if k.read != nil {
			names = append(names, k.name)
		}
	}
	sort.Strings(names)
	return append([]string{"version"}, names...)
}
