package host

import (
	"context"
	"errors"
	"strings"
)

// Status is what a check came to.
type Status string

// The zero value is none of them, and counts as Fail.
const (
	OK   Status = "ok"
	Warn Status = "warn" // boxes can be built; something is lost
	Fail Status = "fail" // no box can be built, or nothing can be capped
)

// Finding is what one check saw.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	// Costs is what it takes away; empty where it takes nothing.
	Costs string `json:"costs,omitempty"`
	// Fix is what to type. A line that begins with # is a word about the next.
	Fix []string `json:"fix,omitempty"`
	// Verify is a command that shows that it is mended.
	Verify string `json:"verify,omitempty"`
}

// ErrNoEngine: an engine is not to be had here, which is no fault of the host.
var ErrNoEngine = errors.New("this engine is not here")

// Engine is a way to build boxes, to be tried.
type Engine struct {
	Name string
	Get  []string // what to type where it is not to be had
	// Named: no run takes it without being told to.
	Named bool
	// Box runs a full box, with caps, and says by what: a version and a path. Its
	// error is ErrNoEngine where there is no engine to run it.
	Box func(ctx context.Context) (by string, err error)
}

// EngineResult is what became of a full box.
type EngineResult struct {
	Name  string `json:"name"`
	By    string `json:"by,omitempty"`
	Ran   bool   `json:"ran"` // with caps
	Error string `json:"error,omitempty"`
}

// Options say what to look at.
type Options struct {
	Workspace string
	// Places are where what steps write may be kept, the best first: beside the
	// workspace, as a rule.
	Places  []string
	Temp    string // the folder for temporary files
	Disk    uint64 // bytes that one step may write unless told otherwise
	Engines []Engine
}

// Report is all that was found.
type Report struct {
	Schema int `json:"schema"`
	// Ready: a full box ran.
	Ready    bool           `json:"ready"`
	Version  string         `json:"version"` // of this program
	Place    string         `json:"place"`
	Kernel   string         `json:"kernel"`
	User     int            `json:"user"`
	Engines  []EngineResult `json:"engines"`
	Findings []Finding      `json:"findings"`
}

// check is one thing to find out.
type check struct {
	name string
	look func(context.Context, *examination) Finding
}

// checks are in the order in which a box needs what they look at.
var checks = []check{
	{"kernel", kernelVersion},
	{"user-namespaces", userNamespaces},
	{"own-id-map", ownIDMap},
	{"seccomp", seccompListener},
	{"memory-programs", memoryPrograms},
	{"control-groups", controlGroups},
	{"user-manager", userManager},
	{"id-mapped-mounts", idMappedMounts},
	{"overlay", overlayMounts},
	{"workspace", workspaceFolder},
	{"temporary-folder", temporaryFolder},
	{"disk", diskRoom},
	{"home", homeFolder},
	{"sudo", passwordlessSudo},
	{"docker-socket", dockerSocket},
}

// examination is one look at a machine. What several checks need is found out
// once.
type examination struct {
	m     Machine
	o     Options
	place Place

	inside *Answer // of the trial of that name
	kept   *folderTrial
}

// Examine looks at a machine. It changes nothing that is there when it returns,
// but for our own control group: see limits.Open.
func Examine(ctx context.Context, m Machine, o Options) *Report {
	x := newExamination(m, o)
	r := &Report{Schema: 1, Place: string(x.place), Kernel: x.line("/proc/sys/kernel/osrelease"), User: m.UID, Engines: []EngineResult{}}
	for _, c := range checks {
		f := c.look(ctx, x)
		f.Check = c.name
		r.Findings = append(r.Findings, f)
	}
	for _, e := range o.Engines {
		res, f := tryEngine(ctx, e)
		if f.Status == Fail && len(f.Fix) == 0 {
			f.Fix = causes(r.Findings)
		}
		r.Engines = append(r.Engines, res)
		r.Findings = append(r.Findings, f)
		r.Ready = r.Ready || res.Ran
	}
	return r
}

func newExamination(m Machine, o Options) *examination {
	return &examination{m: m, o: o, place: placeOf(m, o.Workspace)}
}

// causes names the checks that failed, as what is to be mended for an engine.
func causes(findings []Finding) []string {
	var names []string
	for _, f := range findings {
		if f.Status == Fail && !strings.HasPrefix(f.Check, enginePrefix) {
			names = append(names, f.Check)
		}
	}
	if len(names) == 0 {
		return []string{"# nothing that a box needs was seen to fail by itself: what the box said is all that is known"}
	}
	return []string{"# mend what is said of " + strings.Join(names, ", ") + " above"}
}

// enginePrefix begins the names of the checks in which a full box is run.
const enginePrefix = "engine-"

// tryEngine has one engine run a full box.
func tryEngine(ctx context.Context, e Engine) (EngineResult, Finding) {
	by, err := e.Box(ctx)
	f := Finding{Check: enginePrefix + e.Name, Status: OK, Verify: "untrusted-steps doctor --engine " + e.Name}
	res := EngineResult{Name: e.Name, By: by, Ran: err == nil}
	switch {
	case err == nil:
		f.Found, f.Verify = "a full box ran, with caps: "+by, ""
		return res, f
	case errors.Is(err, ErrNoEngine):
		f.Status, f.Costs, f.Fix = Warn, "--engine "+e.Name, e.Get
		if !e.Named {
			f.Costs += "; auto takes another"
		}
	default:
		f.Status, f.Costs = Fail, "--engine "+e.Name
	}
	var own interface{ Fix() []string }
	if errors.As(err, &own) {
		f.Fix = own.Fix()
	}
	res.Error = strings.TrimPrefix(err.Error(), ErrNoEngine.Error()+": ")
	f.Found = "no box: " + res.Error
	return res, f
}

// Fixes is what to type where no box could be built because of what namespaces
// and mounts allow: what the checks of these say. Places are as in Options.
func Fixes(ctx context.Context, m Machine, places []string) []string {
	x := newExamination(m, Options{Places: places})
	for _, look := range []func(context.Context, *examination) Finding{userNamespaces, idMappedMounts} {
		if f := look(ctx, x); f.Status != OK && len(f.Fix) > 0 {
			return f.Fix
		}
	}
	// It works here and now, so the cause is nothing that was looked at.
	return append([]string{"# untrusted-steps doctor says more; what usually is behind this:"}, allNamespaceFixes(x)...)
}
