package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Language is what reads a call's code, looked up in the box.
type Language string

// All languages there are.
const (
	Sh     Language = "sh"     // sh -e
	Bash   Language = "bash"   // bash -eo pipefail
	Python Language = "python" // a cell, whose rich results are taken too
	Node   Language = "node"
)

// Call is one thing to run.
type Call struct {
	// Command is a program and its arguments; no shell reads them.
	Command []string
	// Code is a script for Language, instead of a command. Empty is Python.
	Code     string
	Language Language

	Env     map[string]string // on top of those of Options
	Workdir string            // absolute, in the box; empty is /workspace
	Timeout time.Duration     // 0 is that of Options

	// Stdout and Stderr get the output as it comes, masked, up to MaxOutputBytes. A
	// writer that does not keep up loses chunks, and the code does not wait for it;
	// Result has everything all the same.
	Stdout, Stderr io.Writer

	kernel bool
}

// Result is what came of a call.
type Result struct {
	Stdout, Stderr string // up to MaxOutputBytes each; what is of PassEnv is masked
	Truncated      bool   // there was more of one of them

	// Success: exit code 0, no fault, and nothing in the workspace that may not be.
	Success bool
	// ExitCode is the code's own choice; -1 where it made none, as when it was killed.
	ExitCode int
	Signal   string // that ended it, such as SIGKILL; empty for none
	// Fault is what the sandbox saw or did; nil is none. Events are all of them.
	Fault  *Fault
	Events []Fault
	// Unobserved are fault types that this engine could not have seen.
	Unobserved []string
	// Violations are changes to the workspace that were not allowed. With one of them
	// nothing of the call is kept.
	Violations []string
	// Reason is a sentence of ours: why it is no success.
	Reason string

	// Results are what a call of Python code has shown: its last expression, what it
	// gave to display, figures of matplotlib. They are the code's own, and no verdict.
	Results []Value

	// Files are the paths in the workspace that the call changed, also where that was
	// dropped afterwards. Kept says what became of it.
	Files []File
	Kept  bool
	// Requests are those that went to the proxy.
	Requests []Request

	Duration, Startup time.Duration
	PeakMemory        int64 // bytes
	CPUTime           time.Duration
	Notes             []string
}

// Fault is a type of the steps file's faults, such as timeout or oom.
type Fault struct{ Type, Message string }

// File is one path that a call changed.
type File struct {
	Path   string
	Change string // created, modified, deleted, mode, retyped
	Type   string // file, dir, symlink, fifo, socket, device
	Size   int64
	SHA256 string
}

// Request is one destination that a call asked for, with one outcome.
type Request struct {
	Host    string
	Port    int
	Verdict string // allowed, denied, failed
	Reason  string
	Count   int
}

// NoVerdict is the error of a call that could not be judged: our own doing or the
// host's, never the code's.
type NoVerdict struct{ Reason string }

func (e *NoVerdict) Error() string { return "sandbox: no verdict: " + e.Reason }

// Run runs a program with arguments.
func (s *Sandbox) Run(ctx context.Context, command ...string) (*Result, error) {
	return s.Do(ctx, Call{Command: command})
}

// RunCode runs a script.
func (s *Sandbox) RunCode(ctx context.Context, language Language, code string) (*Result, error) {
	return s.Do(ctx, Call{Code: code, Language: language})
}

// Do runs a call in a box of its own. The error is a *BadOptions, where nothing
// ran, a *NoVerdict, the context's, or ErrClosed; else there is a result, whatever
// the code did.
func (s *Sandbox) Do(ctx context.Context, c Call) (*Result, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.active.Done()
	id := s.nextID()
	p, err := s.plan(id, &c)
	if err != nil {
		return nil, err
	}
	live := newFeeds(c.Stdout, c.Stderr)
	runner := s.on.Runner.Again()
	runner.Tee = live.of
	runner.Unmasked = gha.IsUnmasked(ctx)
	var res steps.Result
	runner.Run(ctx, p, &res)
	live.end()
	s.refill()
	defer s.forget(id)
	if len(res.Steps) != 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		why := "the workspace could not be opened"
		if len(res.Notes) > 0 {
			why = res.Notes[len(res.Notes)-1]
		}
		return nil, &NoVerdict{why}
	}
	r, err := s.result(ctx, &res.Steps[0])
	if err == nil && runner.Unmasked && (!r.Success || r.Truncated) {
		r.Stdout = "" // of one that failed all is told
	}
	return r, err
}

// forget removes what a call has left in our report folder.
func (s *Sandbox) forget(id string) {
	root, err := os.OpenRoot(s.out)
	if err != nil {
		return
	}
	defer root.Close()
	_ = root.RemoveAll(filepath.Join("steps", id))
}

// result is a step's. A call that was judged before its context was done has one: what
// it wrote is in the workspace.
func (s *Sandbox) result(ctx context.Context, sr *steps.StepResult) (*Result, error) {
	switch sr.Status {
	case steps.StatusPassed, steps.StatusFailed:
	default:
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, &NoVerdict{sr.Reason}
	}
	r := &Result{
		Success: sr.Status == steps.StatusPassed, ExitCode: -1, Unobserved: sr.Unobserved, Notes: sr.Notes,
		Truncated: sr.Stdout.Truncated || sr.Stderr.Truncated,
		Kept:      sr.Workspace == "committed" || sr.Workspace == "kept",
		Duration:  time.Duration(sr.DurationMs) * time.Millisecond, Startup: time.Duration(sr.StartupMs) * time.Millisecond,
		PeakMemory: sr.Usage.PeakMemoryBytes, CPUTime: time.Duration(sr.Usage.CPUMs) * time.Millisecond,
	}
	if !r.Success {
		r.Reason = sr.Reason
	}
	if sr.ExitCode != nil {
		r.ExitCode = *sr.ExitCode
	}
	if sr.Signal != nil {
		r.Signal = *sr.Signal
	}
	if f := sr.Fault; f != nil {
		r.Fault = &Fault{string(f.Type), f.Message}
	}
	for _, e := range sr.Events {
		r.Events = append(r.Events, Fault{string(e.Type), e.Message})
	}
	for _, v := range sr.Violations {
		r.Violations = append(r.Violations, v.Type+": "+v.Message)
	}
	for _, f := range sr.Files {
		r.Files = append(r.Files, File{f.Path, f.Change, f.Type, f.Size, f.SHA256})
	}
	for _, e := range sr.Egress {
		r.Requests = append(r.Requests, Request{e.Host, e.Port, e.Verdict, e.Reason, int(e.Count)})
	}
	var errs [2]error
	r.Stdout, errs[0] = s.output(sr.Stdout.Path)
	r.Stderr, errs[1] = s.output(sr.Stderr.Path)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, &NoVerdict{fmt.Sprintf("the output of the call cannot be read back: %v", err)}
	}
	var err error
	if r.Results, err = s.values(sr); err != nil {
		return nil, &NoVerdict{fmt.Sprintf("the results of the call cannot be read back: %v", err)}
	}
	return r, nil
}

// output is a log of the call. A call that never began has none.
func (s *Sandbox) output(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	root, err := os.OpenRoot(s.out)
	if err != nil {
		return "", err
	}
	defer root.Close()
	b, err := root.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// feeds bring output to those who watch a call.
type feeds struct {
	stdout, stderr io.Writer // nil where nobody does
	all            []*feed
}

func newFeeds(stdout, stderr io.Writer) *feeds {
	f := &feeds{}
	for to, w := range map[*io.Writer]io.Writer{&f.stdout: stdout, &f.stderr: stderr} {
		if w == nil {
			continue
		}
		one := &feed{chunks: make(chan []byte, 256), ended: make(chan struct{}), gone: make(chan struct{})}
		go one.run(w)
		f.all = append(f.all, one)
		*to = one
	}
	return f
}

// end lets those who watch have what is on its way, for a moment.
func (f *feeds) end() {
	for _, one := range f.all {
		close(one.ended)
	}
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for _, one := range f.all {
		select {
		case <-one.gone:
		case <-late.C:
			return
		}
	}
}

// of gives the writers of a step.
func (f *feeds) of(string) (stdout, stderr io.Writer) { return f.stdout, f.stderr }

// feed is one stream on its way to a writer that may be slow, or stuck. What is
// written to it after its end goes nowhere: output that was held up can come late.
type feed struct {
	chunks      chan []byte
	ended, gone chan struct{}
}

func (f *feed) Write(p []byte) (int, error) {
	select {
	case f.chunks <- append([]byte(nil), p...):
	default: // it does not keep up
	}
	return len(p), nil
}

func (f *feed) run(w io.Writer) {
	defer close(f.gone)
	for {
		select {
		case p := <-f.chunks:
			if _, err := w.Write(p); err != nil {
				return // nobody wants the rest
			}
		case <-f.ended:
			for len(f.chunks) > 0 { // these came before it
				if _, err := w.Write(<-f.chunks); err != nil {
					return
				}
			}
			return
		}
	}
}
