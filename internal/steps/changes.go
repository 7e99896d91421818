package steps

import (
	"errors"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// The words of onFailure.
const (
	OnFailureDiscard = "discard"
	OnFailureKeep    = "keep"
)

const allowedGlob = `paths relative to the workspace, such as "out/**" or "*.txt"`

func readDisk(c *checker, k key, v value, s *step) { s.DiskMb = c.whole(k, v) }

// readAllowChanges compiles the globs: one that is wrong would else be found
// when the step is over, and take its work with it.
func readAllowChanges(c *checker, k key, v value, s *step) {
	var items []value
	s.AllowChanges = c.list(k, v, func(item value) (string, bool) {
		glob, ok := c.text("an item of allowChanges", allowedGlob, item)
		return glob, ok
	})
	for _, item := range v.items {
		// Those that are no text, or there twice, are wrong already.
		if len(items) < len(s.AllowChanges) && item.kind == textKind && item.text == s.AllowChanges[len(items)] {
			items = append(items, item)
		}
	}
	for from := 0; ; {
		_, err := policy.Compile(s.AllowChanges[from:])
		var bad *policy.GlobError
		if !errors.As(err, &bad) {
			return
		}
		from += bad.Index
		c.wrong(items[from], "not a glob that can be used: "+inertWords(bad.Err.Error()), allowedGlob)
		if from++; errors.Is(err, policy.ErrTooMany) {
			return
		}
	}
}

func readOnFailure(c *checker, k key, v value, s *step) {
	s.OnFailure = OnFailureDiscard
	if w, ok := c.word(k.name, k.words, v); ok {
		s.OnFailure = w
	}
}

// changes is what a plan says of allowChanges.
func (p *PlanStep) changes() []string {
	const guarded = ".git, .github, CODEOWNERS, .gitattributes, .gitmodules"
	switch {
	case len(p.AllowChanges) == 0:
		return []string{"none allowed"}
	case slices.Equal(p.AllowChanges, []string{"**"}):
		return []string{"allowed anywhere but in " + guarded}
	}
	list := []string{"allowed in"}
	for _, g := range p.AllowChanges {
		shown := inert(g)
		if strings.Trim(g, "*/") == "" {
			shown += " (but in " + guarded + ")"
		}
		list = append(list, "- "+shown)
	}
	return list
}
