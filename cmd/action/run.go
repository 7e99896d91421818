package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func (a *app) run(args []string) int {
	o, code, ok := a.parse("run", args)
	if ok {
		code = a.runFile(&o)
	}
	return a.unstarted(&o, code)
}

// runFile is a whole run: load, refuse or run, report, exit status.
func (a *app) runFile(o *options) int {
	if code, ok := a.possible(o); !ok {
		return code
	}
	if code, ok := a.eventAllowed(o); !ok {
		return code
	}
	undo, code, ok := a.hostSetup(o, func() bool { return a.wouldRun(o) })
	if !ok {
		return code
	}
	defer undo()
	p, code, ok := a.load(o)
	if !ok {
		return code
	}
	if why := a.tokenInBox(o, p); why != "" {
		return a.next(a.wrong("%s", why), "take it out of the steps; the token of the action is for the action")
	}
	a.warnOfToken(o)
	if from, to := os.TempDir(), session.MoveTemp(o.workspace); to != "" {
		o.warnings = append(o.warnings, fmt.Sprintf("the folder for temporary files is %s: %s is in the workspace, which steps see and change", to, from))
	}
	// From here on a report is written, whatever happens.
	if code, ok := a.prepareOut(o, p); !ok {
		return code
	}
	r := &run{app: a, opt: o, plan: p, source: o.source, actions: a.getenv("GITHUB_ACTIONS") == "true"}
	return r.do()
}

// possible says whether the engine and the number of jobs are ones there are.
func (a *app) possible(o *options) (code int, ok bool) {
	if !slices.Contains(session.EngineNames(), o.engine) {
		return a.misused(o, "--engine %s: %s", o.engine, notAmong(o.engine, session.EngineNames())), false
	}
	if o.jobs < 1 || o.jobs > maxJobs {
		return a.misused(o, "--jobs %d: from 1 to %d steps can run at once", o.jobs, maxJobs), false
	}
	return 0, true
}

// maxJobs bounds how many boxes are alive at once.
const maxJobs = 64

// outInMount says whether a step could write into the report folder, through a
// writable mount of it or of a folder above it, or is itself shown the report.
func outInMount(out string, p *steps.Plan) string {
	for _, s := range p.Steps {
		for _, m := range s.Mounts {
			if !m.ReadOnly && (session.Within(out, m.Source) || session.Within(m.Source, out)) {
				return fmt.Sprintf("%s lies in %s, which step %s mounts writable; name a folder outside of it", out, m.Source, s.ID)
			}
		}
	}
	return ""
}

// prepareOut makes the report folder ready. A folder that was asked for and
// cannot be one is a wrong flag; having no place for one is the host's doing.
// ok is false when code is the exit status; a report that lies there is then as it was.
func (a *app) prepareOut(o *options, p *steps.Plan) (code int, ok bool) {
	made := ""
	if o.out == "" {
		// Where there is no such folder, that is said of what was asked for: the report.
		if ref := session.RefuseTemp(); ref != nil && !session.NoTemp() {
			a.refused(ref, a.stderr)
			a.problems = append(a.problems, problem{text: ref.Cause})
			return exitRefused, false
		}
		dir, err := os.MkdirTemp("", "untrusted-steps-")
		if err == nil {
			made = dir
			// Others may read the report; the folder's name is no secret.
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			ref := &steps.Refusal{Cause: fmt.Sprintf("no folder for the report could be made: %v", err),
				Fix: []string{"# name a folder that can be written, with --out DIR, or in TMPDIR for all temporary files"}}
			a.refused(ref, a.stderr)
			a.problems = append(a.problems, problem{text: ref.Cause})
			return exitRefused, false
		}
		o.out = dir
	}
	out, err := filepath.Abs(o.out)
	if err == nil {
		o.folder, err = report.Open(out, o.workspace)
	}
	why := ""
	if err == nil {
		if why = outInMount(o.folder.Path, p); why == "" {
			err = o.folder.Empty()
		}
	}
	if made != "" && (err != nil || why != "") {
		_ = os.Remove(made)
	}
	if why != "" {
		return a.next(a.wrong("--out: %s", why), "name another one, with --out DIR"), false
	}
	if err != nil {
		return a.next(a.wrong("--out: %v", err), "name a folder outside the workspace that can be written, with --out DIR"), false
	}
	o.out = o.folder.Path
	return 0, true
}

// tempRefused refuses what other programs are started for, which use the folder for
// temporary files, where somebody else could swap what root writes there.
func (a *app) tempRefused() bool {
	ref := session.RefuseTemp()
	if ref != nil {
		a.refused(ref, a.stderr)
	}
	return ref != nil
}

// refused says why nothing ran, and what to type.
func (a *app) refused(ref *steps.Refusal, to io.Writer) {
	a.say(to, a.stderr, gha.Line{
		{Text: toolName + ": refused, nothing ran:", Style: gha.Alarm}, {Text: " " + strings.ReplaceAll(ref.Cause, "\n", "; ")},
	})
	for _, f := range ref.Fix {
		lead := "  try: "
		if strings.HasPrefix(f, "#") { // a word about the next line
			lead = "  "
		}
		a.say(to, a.stderr, gha.Line{{Text: lead, Style: gha.Faint}, {Text: f}})
	}
}

// run is one run on its way through.
type run struct {
	app     *app
	opt     *options
	plan    *steps.Plan
	source  []byte // of the steps file
	actions bool

	stdout, stderr *gha.Outlet // of the app, from the start of the run
	written        bool        // the report folder is

	log    *gha.Log
	masker *gha.Masker
	result *steps.Result
}

func (r *run) do() int {
	a := r.app
	// The first signal ends the boxes and lets the report be written; a
	// second one ends us as it always would.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	// Whoever reads the log may go away, as head does. Writing to it then fails,
	// which is said; it does not end the run without a report.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)

	// Nor may a reader that is there and does not read hold up a cancel.
	r.stdout, r.stderr = gha.NewOutlet(a.stdout), gha.NewOutlet(a.stderr)
	context.AfterFunc(ctx, r.stdout.Abandon)
	context.AfterFunc(ctx, r.stderr.Abandon)

	r.masker = gha.NewMasker(r.secrets()...)
	logTo, logBy := a.stdout, r.stdout
	if r.opt.json {
		logTo, logBy = a.stderr, r.stderr
	}
	r.openLog(logBy, logTo, fmt.Sprintf("%s %s: %d %s from %s", toolName, toolVersion(), len(r.plan.Steps), noun(len(r.plan.Steps), "step", "steps"), gha.Inert(r.plan.File)))
	r.result = &steps.Result{Schema: 1, Verdict: steps.VerdictError, Tool: steps.Tool{Name: toolName, Version: toolVersion()}, Host: r.host(), Policy: r.plan.Policy, Steps: []steps.StepResult{}, File: r.annotated(), Shard: r.plan.Shard}
	r.result.Notes = append(r.result.Notes, r.opt.warnings...)
	if r.opt.ceiling != nil {
		r.result.Notes = append(r.result.Notes, notRun(r.opt.ceiling, r.plan)...)
	}

	if note := r.plan.LeftOut(); note != "" {
		r.result.Notes = append(r.result.Notes, note) // the table ends with it
	}

	if len(r.plan.Steps) == 0 {
		r.nothingToDo()
		return r.finish(ctx)
	}
	switch refusal := r.runSteps(ctx); {
	case refusal == nil:
	case ctx.Err() != nil: // told to stop while finding out
		r.result.Verdict = steps.VerdictCancelled
	default:
		r.result.Verdict = steps.VerdictRefused
		r.result.Refusal = refusal
	}
	return r.finish(ctx)
}

// nothingToDo is the run of a shard without steps: a plan may have fewer parts
// that can be told apart than there are shards. It asks nothing of this host.
func (r *run) nothingToDo() {
	r.result.StartedAt = time.Now().UTC().Format(time.RFC3339)
	r.result.Verdict = steps.VerdictOf(nil)
	note := "there was nothing to do"
	if s := r.plan.Shard; s != nil {
		note = fmt.Sprintf("shard %d of %d has nothing to do: the steps are in the others", s.Index, s.Of)
	}
	r.result.Notes = append(r.result.Notes, note)
}

// secrets are the values that passEnv hands in, and the token that no box has.
func (r *run) secrets() []string {
	var out []string
	if r.opt.token != "" {
		out = append(out, r.opt.token)
	}
	for _, s := range r.plan.Steps {
		for _, n := range s.PassEnv {
			if v, ok := r.app.lookupEnv(n); ok && v != "" {
				out = append(out, v)
			}
		}
	}
	return out
}

// runSteps runs the plan, or says why this host cannot.
func (r *run) runSteps(ctx context.Context) *steps.Refusal {
	// Before anything is built or made there, and whether or not the report is.
	if refusal := session.RefuseTemp(); refusal != nil {
		return refusal
	}
	r.makeRunsc(ctx)
	on := session.New(session.Options{
		Version: toolVersion(), Getenv: r.app.getenv, LookupEnv: r.app.lookupEnv, Environ: r.app.environ,
		Workspace: r.opt.workspace, Out: r.opt.folder.At(), Load: r.app.loadOptions(r.opt), Plan: r.plan, Result: r.result,
		Engines: r.app.engines, Engine: r.opt.engine, NotAllowed: r.opt.ceiling.NotAllowed, KernSHA256: r.opt.kernSHA256, RunscSHA256: r.opt.runscSHA256,
		FreshProof: r.opt.freshProof, OnlyReport: r.opt.onlyReport, Jobs: r.opt.jobs, Command: r.command(), SetupCommand: r.setupCommand(),
		Log: r.log, Masker: r.masker, Warn: func(text string) { r.app.say(r.stderr, r.app.stderr, warning(text)) },
	})
	defer on.Close(ctx)
	if refusal := on.Open(ctx); refusal != nil {
		return refusal
	}
	requests, err := r.opt.folder.OpenRequests()
	if err != nil {
		return &steps.Refusal{Cause: err.Error()}
	}
	defer func() {
		if err := requests.Close(); err != nil {
			r.log.Say(fmt.Sprintf("the list of requests could not be written: %v", err))
		}
	}()
	on.Runner.EgressLog = requests
	on.Runner.Run(ctx, r.plan, r.result)
	return nil
}

// command is the command line of this run, to be typed once more: with each of its
// flags, or it would be another run, without its policy perhaps. More of them stand
// behind the verb.
func (r *run) command(more ...string) string {
	words := []string{toolName}
	if len(r.app.args) == 0 { // the inputs of the action
		words = append(words, "run", "FILE")
	}
	for i, a := range r.app.args {
		words = append(words, gha.ShellWord(a))
		if i == 0 {
			words = append(words, more...)
		}
	}
	return strings.Join(words, " ")
}

// setupCommand is the command line with which this run would add to the host what
// it lacks; "" if somebody has said whether it may.
func (r *run) setupCommand() string {
	given := slices.ContainsFunc(r.app.args, func(a string) bool { return strings.HasPrefix(a, "--host-setup") })
	if r.actions || given || len(r.app.args) == 0 {
		return ""
	}
	return r.command("--host-setup", "auto")
}

// host describes the machine.
func (r *run) host() steps.Host {
	h := steps.Host{OS: runtime.GOOS, Arch: runtime.GOARCH, Runner: "local", Proof: []steps.Proof{}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if r.actions {
		h.Runner = "github"
		if e := r.app.getenv("RUNNER_ENVIRONMENT"); e == "self-hosted" || e == "github-hosted" {
			h.Runner = e
		}
	}
	return h
}

// finish writes everything that tells of the run, and chooses the exit status.
// What cannot be written is said, and a verdict without its report is none.
func (r *run) finish(ctx context.Context) int {
	a, res := r.app, r.result
	// Of several shards some may have run: the table says which did not, and why.
	refused := res.Refusal != nil && res.Merged == nil
	if refused {
		a.refused(res.Refusal, r.stderr)
	}
	if err := r.opt.folder.Write(res); err != nil {
		r.unwritten("the report could not be written", err)
	} else {
		r.written = true
	}
	if r.source != nil {
		r.propose()
	}
	tableTo := a.stdout
	if r.opt.json {
		tableTo = a.stderr
	}
	if !refused { // a refusal is on stderr already
		r.log.Show(report.Table(res, widthOf(tableTo))...)
	}
	if r.actions {
		r.decorate()
	}
	if r.written {
		r.log.Say("report:  " + filepath.Join(r.opt.out, "report.json"))
		r.log.Say("summary: " + filepath.Join(r.opt.out, "summary.md"))
	}
	if r.actions { // last of all: it needs somebody else, and may take a while
		r.tell(ctx)
	}
	if err := r.log.Close(); err != nil {
		fmt.Fprintf(r.stderr, "untrusted-steps: the log could not be written: %v\n", err)
	}
	if r.opt.json {
		if err := report.WriteJSON(r.stdout, res); err != nil {
			r.unwritten("the report could not be written to stdout", err)
			if r.written { // and must not say pass where the exit status does not
				_ = r.opt.folder.Write(res)
			}
		}
	}
	return exitOf(res.Verdict)
}

// unwritten says that a report could not be written. A pass or a fail without
// its report is no verdict; that nothing ran, or was cancelled, stays true.
func (r *run) unwritten(what string, err error) {
	fmt.Fprintf(r.stderr, "untrusted-steps: %s: %v\n", what, err)
	if v := r.result.Verdict; v == steps.VerdictPass || v == steps.VerdictFail {
		r.result.Verdict = steps.VerdictError
	}
}

// propose writes what an audit found as a patch to the steps file, and says it.
func (r *run) propose() {
	byID := map[string]*steps.PlanStep{}
	for i := range r.plan.Steps {
		byID[r.plan.Steps[i].ID] = &r.plan.Steps[i]
	}
	var list []steps.Proposal
	for _, s := range r.result.Steps {
		if len(s.EgressProposal) == 0 {
			continue
		}
		list = append(list, steps.Proposal{Step: byID[s.ID], Allow: s.EgressProposal})
		r.log.Say(fmt.Sprintf("%s was in audit; its list would be:\n  egressAllow:\n    - %s", s.ID, strings.Join(s.EgressProposal, "\n    - ")))
	}
	if len(list) == 0 {
		return
	}
	at := r.app.patched(r.opt.file)
	patch, skipped := steps.Propose(at.path, r.source, list)
	if len(skipped) > 0 {
		r.log.Say(fmt.Sprintf("written in a way that no patch fits, so paste by hand: %s", strings.Join(skipped, ", ")))
	}
	if patch == "" {
		return
	}
	path, err := r.opt.folder.WritePatch(patch)
	if err != nil {
		r.log.Say(err.Error())
		return
	}
	r.log.Say("patch:   " + path)
	r.log.Say("apply:   git -C " + gha.ShellWord(at.top) + " apply " + gha.ShellWord(path))
}

func noun(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// list names a few of many.
func list(ids []string) string {
	const few = 5
	if len(ids) > few {
		return strings.Join(ids[:few], ", ") + fmt.Sprintf(" and %d more", len(ids)-few)
	}
	return strings.Join(ids, ", ")
}
