package egress

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Entry is a rule of an allowlist as written in a steps file.
type Entry struct {
	To string `json:"to"` // a rule, or preset:NAME
	// Private: the target may have addresses that are not public. Metadata
	// services stay refused.
	Private bool `json:"private,omitempty"`
	// Force accepts a rule that covers more than anyone can oversee.
	Force bool `json:"force,omitempty"`
}

// String gives the entry in a form that can be pasted into a list of a steps
// file: the rule alone, or a mapping where a marker stands beside it.
func (e Entry) String() string {
	if !e.Private && !e.Force {
		return e.To
	}
	s := "{to: " + strconv.Quote(e.To)
	if e.Private {
		s += ", private: true"
	}
	if e.Force {
		s += ", force: true"
	}
	return s + "}"
}

// ParseEntry reads an entry. A preset gives all its rules, each of which
// remembers where it came from.
func ParseEntry(e Entry) ([]Rule, error) { return ParseEntryIn(Presets(), e) }

// ParseEntryIn reads an entry that may name a preset of the given ones.
func ParseEntryIn(presets []Preset, e Entry) ([]Rule, error) {
	return latitude{force: e.Force, private: e.Private}.expand(presets, e.To)
}

// ParseDeny reads a rule of egressDeny or expectDenied, or a preset. What
// refuses may be as wide as it likes, needs no markers, may be a bare address,
// and covers every port if it names none.
func ParseDeny(s string) ([]Rule, error) { return ParseDenyIn(Presets(), s) }

// ParseDenyIn is ParseDeny with the given presets.
func ParseDenyIn(presets []Preset, s string) ([]Rule, error) {
	return latitude{refusal: true}.expand(presets, s)
}

func (l latitude) expand(presets []Preset, s string) ([]Rule, error) {
	name, ok := strings.CutPrefix(s, presetPrefix)
	if !ok {
		r, err := l.parse(s)
		if err != nil {
			return nil, err
		}
		return []Rule{r}, nil
	}
	for _, p := range presets {
		if p.Name != name {
			continue
		}
		rules := make([]Rule, 0, len(p.Rules))
		for _, text := range p.Rules {
			r, err := l.parse(text)
			if err != nil {
				return nil, fmt.Errorf("preset %s: %w", name, err)
			}
			r.preset = name
			rules = append(rules, r)
		}
		return rules, nil
	}
	if HostPreset(s) != "" {
		return nil, &RuleError{s, errors.New("stands for what this machine's clients are set up for, and nobody has read that; name the hosts instead")}
	}
	var names []string
	for _, p := range append(Presets(), HostPresets()...) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return nil, &RuleError{s, fmt.Errorf("there is no such preset; there are %s. Name the hosts instead", strings.Join(names, ", "))}
}
