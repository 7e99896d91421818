package steps

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

var engineWords = []string{"kern", "native", "gvisor"}

// EngineWords are the engines that a step can name.
func EngineWords() []string { return slices.Clone(engineWords) }

// pinnedEngine refuses steps that name another engine than the one that the run was
// told to take. Steps that do not run are not asked.
func (c *checker) pinnedEngine(list []*step) {
	pin := c.opt.Engine
	if pin == "" || pin == "auto" {
		return
	}
	for _, s := range list {
		v, written := s.written["engine"]
		if !written || s.bad["engine"] || s.Engine == "" || s.Engine == pin || len(c.opt.Only) > 0 && !slices.Contains(c.opt.Only, s.ID) {
			continue
		}
		c.wrong(v, fmt.Sprintf("engine is not the one that this run was told to take, by %s", c.opt.EngineBy), pin,
			"with --engine auto each step has the engine that it names")
	}
}

// ShowEngines writes into the plan whose kernel the box of each step will have, as
// far as that is known: of a step that names an engine, and of the others where the
// run was told by name which to take, or has engines of one kind only to choose from.
func (p *Plan) ShowEngines(pin string, choice *box.Kernel, kernelOf func(engine string) box.Kernel) {
	if pin != "" && pin != "auto" {
		k := kernelOf(pin)
		p.Engine, p.Kernel, choice = pin, k.String(), &k
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case s.Engine != "":
			s.BoxKernel = kernelOf(s.Engine).String()
		case choice != nil:
			s.BoxKernel = choice.String()
		}
	}
}

// engineLine says in a printed plan what builds a box, and whose kernel it has. choice
// is what the run was told to take.
func (p *PlanStep) engineLine(choice string) string {
	name := cmp.Or(p.Engine, choice)
	if name == "" {
		name = "the run's own choice"
	}
	switch p.BoxKernel {
	case box.OwnKernel.String():
		return name + ": the box has a kernel of its own"
	case box.HostKernel.String():
		return name + ": the box shares the host's kernel"
	}
	return name
}

// Engines are those that the steps of a plan name, in the order of the file, each
// with the steps that name it. others are the steps that name none.
func (p *Plan) Engines() (names []string, of map[string][]PlanStep, others []PlanStep) {
	of = map[string][]PlanStep{}
	for _, s := range p.Steps {
		switch {
		case s.Engine == "":
			others = append(others, s)
			continue
		case of[s.Engine] == nil:
			names = append(names, s.Engine)
		}
		of[s.Engine] = append(of[s.Engine], s)
	}
	return names, of, others
}

// EngineOf is what builds the box of a step. Where it names one that this runner
// does not have, none is built: another would be a boundary that nobody asked for.
func (r *Runner) EngineOf(s PlanStep) box.Engine {
	switch e := r.Engines[s.Engine]; {
	case s.Engine == "" && r.Engine != nil:
		return r.Engine
	case s.Engine != "" && e != nil:
		return e
	}
	return noEngine(s.Engine)
}

// noEngine is one that was not made ready.
type noEngine string

func (e noEngine) Info() box.Info { return box.Info{Name: string(e)} }

func (e noEngine) Check(box.Spec) error {
	if e == "" {
		return fmt.Errorf("no engine was made ready for steps that name none")
	}
	return fmt.Errorf("engine %s was not made ready", string(e))
}

func (e noEngine) Start(_ context.Context, s box.Spec, _ box.Placement) (*box.Built, error) {
	return nil, e.Check(s)
}
