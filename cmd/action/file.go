package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/checks"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// options are what flags or action inputs ask for.
type options struct {
	verb        string   // "" is the action
	operands    []string // beside flags
	file        string   // "-" is stdin, "" is text
	text        string   // the steps themselves
	workspace   string
	out         string
	folder      *report.Folder // of out, once it is prepared
	engine      string
	jobs        int
	only        string
	json        bool
	onlyReport  bool
	kernSHA256  string
	runscSHA256 string
	freshProof  bool
	format      string
	tell        checks.Want // what a pull request is told
	token       string      // for that; a secret
	policy      string      // the file of a ceiling; "" is none
	// allowEvents names privileged events to run for all the same.
	allowEvents string
	source      []byte        // what was read, once it was
	ceiling     *steps.Policy // the policy, once it was read
	warnings    []string      // for the report: they were said
	shard       string        // i/n
	defaults    string        // a steps file without steps
	durations   string        // a report.json
	merges      bool          // nothing runs: there is no workspace that steps write to
	part        steps.Part
	hostSetup   string // off, auto or sysctl; "" is off
	undo, dry   bool   // of prepare
	stdin       []byte // what was read from there, for when this program is started again
}

// workspace finds the folder to work in, and refuses one that is no workspace.
// ok is false when code is the exit status.
func (a *app) workspace(o *options) (code int, ok bool) {
	ws, given := o.workspace, o.workspace != ""
	if !given {
		ws = "."
	}
	real, err := filepath.Abs(ws)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err == nil {
		var st os.FileInfo
		if st, err = os.Stat(real); err == nil && !st.IsDir() {
			err = errors.New("not a folder")
		}
	}
	if err != nil {
		return a.next(a.wrong("--workspace %s: %v", ws, err), "name the folder the steps are to work in, with --workspace DIR"), false
	}
	o.workspace = real
	if _, why := steps.NewGuard(a.loadOptions(o)).Workspace(real); why != "" {
		if !given { // nobody named it, and the verb may be one that runs nothing
			return a.next(a.wrong("the workspace is the current folder, since no --workspace was given: %s %s", real, why), "name the folder of one project, with --workspace DIR"), false
		}
		return a.next(a.wrong("--workspace %s: %s", real, why), "name the folder of one project, with --workspace DIR"), false
	}
	return 0, true
}

// load reads and checks a steps file. ok is false when code is the exit status.
func (a *app) load(o *options) (p *steps.Plan, code int, ok bool) {
	// Of a file that is not there nothing else is worth saying.
	if o.file != "" && o.file != "-" {
		if err := canBeRead(o.file); err != nil {
			return nil, a.unread(o, err), false
		}
	}
	if code, ok := a.workspace(o); !ok {
		return nil, code, false
	}
	if code, ok := a.part(o); !ok {
		return nil, code, false
	}
	name, src, err := a.read(o)
	if err != nil {
		return nil, a.unread(o, err), false
	}
	o.source = src
	lo := a.loadOptions(o)
	if o.only != "" && len(lo.Only) == 0 {
		return nil, a.next(a.wrong("--only %q names no step", o.only), "write ids, such as --only build,test; plan shows those of a file"), false
	}
	if code, ok := a.loadPolicy(o, &lo); !ok {
		return nil, code, false
	}
	p, err = steps.Load(name, src, lo)
	if err != nil {
		return nil, a.wrongFile(o.file, err), false
	}
	if code, ok := a.engineAllowed(o); !ok {
		return nil, code, false
	}
	for _, w := range p.Warnings {
		fmt.Fprintln(a.stderr, w.In(p.File))
	}
	return p, 0, true
}

// part reads which part of the plan is asked for. ok is false when code is the
// exit status.
func (a *app) part(o *options) (code int, ok bool) {
	if o.shard == "" {
		if o.durations != "" {
			return a.next(a.wrong("--durations splits a plan into shards; --shard i/n says which of them to run"), "write --shard i/n, or leave --durations out"), false
		}
		return 0, true
	}
	part, err := steps.ParsePart(o.shard)
	if err != nil {
		return a.misused(o, "--shard: %v", err), false
	}
	if o.durations != "" {
		if o.durations == "-" && o.file == "-" {
			return a.next(a.wrong("--durations -: the standard input is the steps file"), "put one of the two in a file"), false
		}
		var earlier *steps.Result
		name, err := o.durations, error(nil)
		if name != "-" {
			name, err = a.leadsTo(o, name)
		}
		if err == nil {
			earlier, err = a.readReport(name)
		}
		if err != nil {
			return a.next(a.wrong("--durations %s: %v", gha.Inert(o.durations), err), "name the report.json of an earlier run"), false
		}
		part.Durations = steps.DurationsOf(earlier)
	}
	o.part = part
	return 0, true
}

// readAtMost is one byte too many, so that Load sees that there are too many.
const readAtMost = steps.MaxFile + 1

func (a *app) read(o *options) (name string, src []byte, err error) {
	switch o.file {
	case "":
		return "steps", []byte(o.text), nil
	case "-":
		src, err = io.ReadAll(io.LimitReader(a.stdin, readAtMost))
		return "stdin", src, err
	}
	src, err = a.readNamed(o, o.file)
	return o.file, src, err
}

func (a *app) loadOptions(o *options) steps.Options {
	lo := session.LoadOptions(a.getenv, a.lookupEnv, a.environ, o.workspace)
	lo.BareList, lo.Part = o.file == "", o.part
	lo.Engine, lo.EngineBy = o.engine, "--engine "+o.engine
	for _, id := range strings.Split(o.only, ",") {
		if id = strings.TrimSpace(id); id != "" {
			lo.Only = append(lo.Only, id)
		}
	}
	return lo
}

func (a *app) check(args []string) int {
	o, code, ok := a.parse("check", args)
	if !ok {
		return code
	}
	p, code, ok := a.load(&o)
	if !ok {
		return code
	}
	n, warned := "steps", ""
	if len(p.Steps) == 1 {
		n = "step"
	}
	if len(p.Warnings) > 0 {
		warned = fmt.Sprintf("; warnings: %d", len(p.Warnings))
	}
	return a.print(fmt.Sprintf("%s: %d %s, nothing wrong%s\n", gha.Inert(o.file), len(p.Steps), n, warned))
}

func (a *app) plan(args []string) int {
	o, code, ok := a.parse("plan", args)
	if ok {
		code, ok = a.possible(&o)
	}
	if !ok {
		return code
	}
	p, code, ok := a.load(&o)
	if !ok {
		return code
	}
	p.ShowImages(session.Looker(session.ImageStore(a.getenv, o.workspace)))
	p.ShowEngines(o.engine, session.ChoiceKernel(o.ceiling.NotAllowed), session.KernelOf)
	return a.printAs(o.json, p.WriteText, p.WriteJSON)
}

func (a *app) schema(args []string) int {
	o, code, ok := a.parse("schema", args)
	switch {
	case !ok:
		return code
	case len(o.operands) == 0 || o.operands[0] == "steps":
		return a.printJSON(steps.Schema())
	case o.operands[0] == "report":
		return a.printJSON(steps.ReportSchema())
	}
	return a.printJSON(steps.PolicySchema())
}
