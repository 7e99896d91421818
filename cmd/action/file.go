package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/checks"
	"github.com/untrusted-steps/untrusted-steps/internal/registry"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// options are what flags or action inputs ask for.
type options struct {
	file       string // "-" is stdin, "" is text
	text       string // the steps themselves
	workspace  string
	out        string
	engine     string
	jobs       int
	only       string
	json       bool
	onlyReport bool
	kernSHA256 string
	tell       checks.Want // what a pull request is told
	token      string      // for that; a secret
	policy     string      // the file of a ceiling; "" is none
	// allowEvents names privileged events to run for all the same.
	allowEvents string
	source      []byte        // what was read, once it was
	ceiling     *steps.Policy // the policy, once it was read
	warnings    []string      // for the report: they were said
	shard       string        // i/n
	durations   string        // a report.json
	part        steps.Part
	hostSetup   string // off, auto or sysctl; "" is off
	stdin       []byte // what was read from there, for when this program is started again
}

// flags reads the flags of a verb and its one file. They may stand before and
// after it. ok is false when code is the exit status.
func (a *app) flags(verb string, args []string, define func(*flag.FlagSet, *options)) (opt options, code int, ok bool) {
	opt, files, code, ok := a.flagsAndFiles(verb, args, define)
	if !ok {
		return opt, code, false
	}
	if len(files) != 1 {
		return opt, a.misused("%s takes one FILE, not %d", verb, len(files)), false
	}
	opt.file = files[0]
	return opt, 0, true
}

func (a *app) flagsAndFiles(verb string, args []string, define func(*flag.FlagSet, *options)) (opt options, files []string, code int, ok bool) {
	fs := flag.NewFlagSet(verb, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	opt = options{engine: "auto", jobs: 1}
	define(fs, &opt)
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return opt, nil, a.help(nil), false
			}
			return opt, nil, a.misused("%s: %v", verb, err), false
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return opt, files, 0, true
		}
		files = append(files, rest[0])
		args = rest[1:]
	}
}

func planFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.workspace, "workspace", "", "")
	fs.StringVar(&o.only, "only", "", "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.StringVar(&o.policy, "policy", "", "")
	fs.StringVar(&o.shard, "shard", "", "")
	fs.StringVar(&o.durations, "durations", "", "")
}

func runFlags(fs *flag.FlagSet, o *options) {
	planFlags(fs, o)
	fs.StringVar(&o.out, "out", "", "")
	fs.StringVar(&o.engine, "engine", "auto", "")
	fs.IntVar(&o.jobs, "jobs", 1, "")
	fs.BoolVar(&o.onlyReport, "only-report", false, "")
	fs.StringVar(&o.kernSHA256, "kern-sha256", "", "")
	fs.StringVar(&o.allowEvents, "allow-events", "", "")
	fs.StringVar(&o.hostSetup, "host-setup", "off", "")
}

// workspace finds the folder to work in, and refuses one that is no workspace.
// ok is false when code is the exit status.
func (a *app) workspace(o *options) (code int, ok bool) {
	ws := o.workspace
	if ws == "" {
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
		return a.wrong("--workspace %s: %v", ws, err), false
	}
	o.workspace = real
	if _, why := steps.NewGuard(a.loadOptions(o)).Source(real); why != "" {
		return a.wrong("--workspace %s: %s", real, why), false
	}
	return 0, true
}

// load reads and checks a steps file. ok is false when code is the exit status.
func (a *app) load(o *options) (p *steps.Plan, code int, ok bool) {
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
		return nil, a.wrong("--only %q names no step", o.only), false
	}
	if code, ok := a.loadPolicy(o, &lo); !ok {
		return nil, code, false
	}
	p, err = steps.Load(name, src, lo)
	if err != nil {
		return nil, a.wrongFile(err), false
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
			return a.wrong("--durations splits a plan into shards; --shard i/n says which of them to run"), false
		}
		return 0, true
	}
	part, err := steps.ParsePart(o.shard)
	if err != nil {
		return a.wrong("--shard: %v", err), false
	}
	if o.durations != "" {
		if o.durations == "-" && o.file == "-" {
			return a.wrong("--durations -: the standard input is the steps file"), false
		}
		earlier, err := a.readReport(o.durations)
		if err != nil {
			return a.wrong("--durations %s: %v", gha.Inert(o.durations), err), false
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
	src, err = readFile(o.file)
	return o.file, src, err
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// A pipe or a device would be read for ever.
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, readAtMost))
}

func (a *app) loadOptions(o *options) steps.Options {
	lo := steps.Options{
		Workspace: o.workspace, Home: a.getenv("HOME"), HostEnv: a.lookupEnv, XDG: map[string]string{},
		BareList: o.file == "", Part: o.part,
	}
	cwd, err := os.Getwd()
	if err == nil && a.environ != nil {
		lo.HostPreset = registry.NewReader(a.environ(), o.workspace, cwd).Preset
	}
	for _, n := range []string{"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} {
		lo.XDG[n] = a.getenv(n)
	}
	for _, id := range strings.Split(o.only, ",") {
		if id = strings.TrimSpace(id); id != "" {
			lo.Only = append(lo.Only, id)
		}
	}
	return lo
}

func (a *app) check(args []string) int {
	o, code, ok := a.flags("check", args, func(fs *flag.FlagSet, o *options) {
		fs.StringVar(&o.workspace, "workspace", "", "")
		fs.StringVar(&o.policy, "policy", "", "")
	})
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
	o, code, ok := a.flags("plan", args, runFlags)
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
	var b strings.Builder
	write := p.WriteText
	if o.json {
		write = p.WriteJSON
	}
	if err := write(&b); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: %v\n", err)
		return exitNoVerdict
	}
	return a.print(b.String())
}

func (a *app) schema(args []string) int {
	switch {
	case len(args) == 0:
		return a.print(string(steps.Schema()))
	case len(args) == 1 && args[0] == "report":
		return a.print(string(steps.ReportSchema()))
	case len(args) == 1 && args[0] == "policy":
		return a.print(string(steps.PolicySchema()))
	}
	return a.misused("schema takes nothing, or one of the words report and policy")
}
