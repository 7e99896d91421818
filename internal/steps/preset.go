package steps

import (
	"errors"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// EgressPreset is a preset with what it stood for when the plan was made. A run
// uses this and asks nobody again.
type EgressPreset struct {
	Name  string       `json:"name"`
	Rules []PresetRule `json:"rules"`
}

// PresetRule is one rule of a preset.
type PresetRule struct {
	Rule string `json:"rule"`
	// From is the setting of this machine it was read from; empty where the list
	// is our own.
	From string `json:"from,omitempty"`
}

// readPreset is a preset that was read, or why it could not be.
type readPreset struct {
	preset egress.Preset
	err    error
}

// presets gives those that an entry may name: ours, and the one it names of what
// this machine's clients are set up for. A client is asked once for a file, and
// only if the file names it.
func (c *checker) presets(to string) ([]egress.Preset, error) {
	list := egress.Presets()
	name := egress.HostPreset(to)
	if name == "" || c.opt.HostPreset == nil {
		return list, nil
	}
	r, ok := c.read[name]
	if !ok {
		r.preset, r.err = c.opt.HostPreset(name)
		if r.err == nil && r.preset.Name != name {
			r.err = errors.New("preset " + name + ": somebody read another one")
		}
		c.read[name] = r
	}
	return append(list, r.preset), r.err
}

func (c *checker) parseEntry(e egress.Entry) ([]egress.Rule, error) {
	list, err := c.presets(e.To)
	if err != nil {
		return nil, err
	}
	return egress.ParseEntryIn(list, e)
}

func (c *checker) parseDeny(text string) ([]egress.Rule, error) {
	list, err := c.presets(text)
	if err != nil {
		return nil, err
	}
	return egress.ParseDenyIn(list, text)
}

// named gives the presets that a step's rules name, each once.
func (c *checker) named(s *step) []EgressPreset {
	var all []string
	for _, e := range append(own(s.EgressAllow), s.SetupEgress...) {
		all = append(all, e.To)
	}
	var out []EgressPreset
	seen := map[string]bool{}
	for _, to := range append(append(all, s.EgressDeny...), s.ExpectDenied...) {
		name, ok := strings.CutPrefix(to, "preset:")
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		list, err := c.presets(to)
		for _, p := range list {
			if p.Name == name && err == nil {
				out = append(out, egressPreset(p))
			}
		}
	}
	return out
}

func egressPreset(p egress.Preset) EgressPreset {
	e := EgressPreset{Name: p.Name, Rules: []PresetRule{}}
	for i, rule := range p.Rules {
		r := PresetRule{Rule: rule}
		if i < len(p.From) {
			r.From = p.From[i]
		}
		e.Rules = append(e.Rules, r)
	}
	return e
}

// presets gives what the step's entries may name, as the plan has it.
func (p *PlanStep) presets() []egress.Preset {
	out := egress.Presets()
	for _, e := range p.EgressPresets {
		// Ours are there already.
		if egress.HostPreset("preset:"+e.Name) == "" {
			continue
		}
		one := egress.Preset{Name: e.Name}
		for _, r := range e.Rules {
			one.Rules, one.From = append(one.Rules, r.Rule), append(one.From, r.From)
		}
		out = append(out, one)
	}
	return out
}
