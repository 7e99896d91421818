package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func (a *app) run(args []string) int {
	o, code, ok := a.flags("run", args, runFlags)
	if !ok {
		return code
	}
	return a.runFile(&o)
}

// runFile is a whole run: load, refuse or run, report, exit status.
func (a *app) runFile(o *options) int {
	if code, ok := a.possible(o); !ok {
		return code
	}
	p, code, ok := a.load(o)
	if !ok {
		return code
	}
	// From here on a report is written, whatever happens.
	if err := a.prepareOut(o); err != nil {
		return a.wrong("--out: %v", err)
	}
	r := &run{app: a, opt: o, plan: p, actions: a.getenv("GITHUB_ACTIONS") == "true"}
	return r.do()
}

// possible says whether the engine and the number of jobs are ones there are.
func (a *app) possible(o *options) (code int, ok bool) {
	if o.engine != "auto" && o.engine != "native" && o.engine != "kern" {
		return a.wrong("--engine %s: the engines are auto, kern and native", o.engine), false
	}
	if o.jobs != 1 {
		return a.wrong("--jobs %d: only 1 is built yet; steps side by side need a workspace each", o.jobs), false
	}
	return 0, true
}

func (a *app) prepareOut(o *options) error {
	if o.out == "" {
		dir, err := os.MkdirTemp("", "untrusted-steps-")
		if err != nil {
			return err
		}
		// Others may read the report; the folder's name is no secret.
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		o.out = dir
	}
	abs, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	o.out = abs
	o.out, err = report.PrepareFolder(o.out, o.workspace)
	return err
}

// run is one run on its way through.
type run struct {
	app     *app
	opt     *options
	plan    *steps.Plan
	actions bool

	log    *gha.Log
	masker *gha.Masker
	result *steps.Result

	viewsMu sync.Mutex
	views   map[bool]rootfs.View // by whether the network is the host's
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

	r.masker = gha.NewMasker(r.secrets()...)
	logTo := a.stdout
	if r.opt.json {
		logTo = a.stderr
	}
	r.log = gha.NewLog(logTo, gha.LogOptions{
		Banner:  fmt.Sprintf("%s %s: %d %s from %s", toolName, toolVersion(), len(r.plan.Steps), noun(len(r.plan.Steps), "step", "steps"), gha.Inert(r.plan.File)),
		Actions: r.actions, Terminal: isTerminal(logTo) && !r.actions, Width: func() int { return widthOf(logTo) },
		Now: time.Now, Masker: r.masker,
	})
	r.result = &steps.Result{Schema: 1, Verdict: steps.VerdictError, Tool: steps.Tool{Name: toolName, Version: toolVersion()}, Host: r.host(), Steps: []steps.StepResult{}}

	switch refusal := r.runSteps(ctx); {
	case refusal == nil:
	case ctx.Err() != nil: // told to stop while finding out
		r.result.Verdict = steps.VerdictCancelled
	default:
		r.result.Verdict = steps.VerdictRefused
		r.result.Refusal = refusal
	}
	return r.finish()
}

// secrets are the values that passEnv hands in.
func (r *run) secrets() []string {
	var out []string
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
	mgr, refusal := r.limits()
	if refusal != nil {
		return refusal
	}
	if mgr != nil {
		defer func() {
			if err := mgr.Close(); err != nil {
				r.log.Say(fmt.Sprintf("control groups of this run could not be removed: %v", err))
			}
		}()
		removed, err := mgr.Sweep()
		if err != nil {
			r.log.Say(fmt.Sprintf("control groups left by a killed run could not be removed: %v", err))
		}
		for _, name := range removed {
			r.log.Say("removed what a killed run had left: " + name)
		}
		r.result.Host.Cgroup = map[string]string{"cgroup2": "v2", "cgroup1": "v1"}[mgr.Kind()]
	}
	eng, refusal := r.engine(ctx, mgr)
	if refusal != nil {
		return refusal
	}
	defer eng.close()
	if eng.note != "" {
		r.result.Notes = append(r.result.Notes, eng.note)
		r.log.Say(eng.note)
	}
	view := r.view("box", false)
	sr := &steps.Runner{
		Engine: eng.engine, Limits: mgr, Guard: steps.NewGuard(r.app.loadOptions(r.opt)), Workspace: r.opt.workspace, Out: r.opt.out, Log: r.log, Masker: r.masker,
		Getenv: r.app.lookupEnv, BoxPath: view.Path, CABundle: view.CABundle,
		NewProxy: func(allow []egress.Rule) *egress.Proxy {
			return egress.NewProxy(egress.Policy{Allow: allow}, &egress.Ledger{})
		},
		Now: time.Now,
	}
	sr.Run(ctx, r.plan, r.result)
	return nil
}

// limits finds out whether caps can be enforced here, by enforcing one. They
// must be unless no step requires them.
func (r *run) limits() (*limits.Manager, *steps.Refusal) {
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, &steps.Refusal{Cause: fmt.Sprintf("no random bytes: %v", err)}
	}
	mgr, err := limits.Open(limits.Config{
		RunID: hex.EncodeToString(id), XDGRuntimeDir: r.app.getenv("XDG_RUNTIME_DIR"),
		Command: "untrusted-steps run " + r.fileName(),
	})
	if err == nil {
		return mgr, nil
	}
	var requires []string
	for _, s := range r.plan.Steps {
		if s.RequireLimits {
			requires = append(requires, s.ID)
		}
	}
	if len(requires) == 0 {
		note := fmt.Sprintf("limits are NOT enforced in this run, which no step requires: %v", err)
		r.result.Notes = append(r.result.Notes, note)
		r.log.Say(note)
		return nil, nil
	}
	ref := &steps.Refusal{Cause: fmt.Sprintf("the caps on memory and processes that %s %s cannot be enforced here: %v",
		list(requires), noun(len(requires), "requires", "require"), err)}
	var no *limits.Refusal
	if errors.As(err, &no) {
		ref.Cause = fmt.Sprintf("the caps on memory and processes that %s %s cannot be enforced here: %s",
			list(requires), noun(len(requires), "requires", "require"), no.Cause)
		ref.Fix = no.Fix
	}
	return nil, ref
}

// fileName is the steps file as a command line can name it.
func (r *run) fileName() string {
	if r.opt.file == "" || r.opt.file == "-" {
		return "FILE"
	}
	return r.opt.file
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
func (r *run) finish() int {
	a, res := r.app, r.result
	code := exitOf(res.Verdict)
	if ref := res.Refusal; ref != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: refused, nothing ran: %s\n", gha.Inert(strings.ReplaceAll(ref.Cause, "\n", "; ")))
		for _, f := range ref.Fix {
			fmt.Fprintf(a.stderr, "  try: %s\n", gha.Inert(f))
		}
	}
	if err := report.WriteFolder(r.opt.out, res); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: the report could not be written: %v\n", err)
		if code == exitPass || code == exitFail {
			code = exitNoVerdict
		}
	}
	tableTo := a.stdout
	if r.opt.json {
		tableTo = a.stderr
	}
	if res.Refusal == nil { // a refusal is on stderr already
		var table strings.Builder
		if err := report.WriteTable(&table, res, widthOf(tableTo), false); err == nil {
			r.log.Say(strings.TrimRight(table.String(), "\n"))
		}
	}
	if r.actions {
		r.decorate()
	}
	r.log.Say("report:  " + filepath.Join(r.opt.out, "report.json"))
	r.log.Say("summary: " + filepath.Join(r.opt.out, "summary.md"))
	if err := r.log.Close(); err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: the log could not be written: %v\n", err)
	}
	if r.opt.json {
		if err := report.WriteJSON(a.stdout, res); err != nil {
			fmt.Fprintf(a.stderr, "untrusted-steps: the report could not be written to stdout: %v\n", err)
			code = exitNoVerdict
		}
	}
	return code
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 100
}
