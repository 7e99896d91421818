package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/patch"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// wrote is what a step did to the workspace, and what may become of it.
type wrote struct {
	known   bool // all of it; else nothing may be committed
	changes int
	commit  []workspace.Change
}

// listAfterCancel bounds the listing of changes once a run is cancelled.
const listAfterCancel = 1500 * time.Millisecond

// review finds out what a step changed, judges it by the step's policy, and
// writes it down. unlisted are words for a reason where it could not be found
// out in the time that a cancel has.
func (r *Runner) review(ctx context.Context, v *view, s PlanStep, sr *StepResult) (w wrote, unlisted string, err error) {
	d, err := r.changes(ctx, v)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return w, "what it changed is not listed", nil
	case errors.Is(err, workspace.ErrLimit):
		// The step made so much that it cannot be listed. That is its doing.
		sr.Violations = append(sr.Violations, Violation{Type: "workspace_limit", Message: err.Error()})
		return w, "", nil
	case err != nil:
		return w, "", fmt.Errorf("find out what the step changed: %w", err)
	}
	changes := v.present(d.Changes())
	w.known, w.changes = true, len(changes)
	listed, own := v.split(changes)
	w.changes = len(listed)
	if w.changes == 0 {
		return w, "", nil
	}
	if s.TrackFiles {
		list(sr, listed)
	}
	if n := len(listed) - len(own); n > 0 {
		sr.Notes = append(sr.Notes, fmt.Sprintf("%s of this step in what its setup made: they are listed, and never committed", count(n, "change")))
	}
	changes = listed
	verdict := r.judgeChanges(d, v, s, own)
	w.commit = verdict.Commit
	sr.First = verdict.First
	sr.Notes = append(sr.Notes, verdict.Notes...)
	for _, x := range verdict.Violations {
		sr.Violations = append(sr.Violations, Violation(x))
	}
	if s.TrackFiles && ctx.Err() == nil {
		err = r.patch(ctx, d, changes, sr)
	}
	return w, "", err
}

// changes reads what a step changed. Not within the caller's context: what a
// cancelled step changed is still told, if it can be found out in the time that
// a cancel has.
func (r *Runner) changes(ctx context.Context, v *view) (*delta.Delta, error) {
	own, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(listAfterCancel):
			end(context.DeadlineExceeded)
		case <-own.Done():
		}
	})
	defer stop()
	read := r.read
	if read == nil {
		read = func(ctx context.Context, v *view) (*delta.Delta, error) { return v.read(ctx) }
	}
	d, err := read(own, v)
	if err != nil {
		if cause := context.Cause(own); cause != nil {
			return nil, cause
		}
	}
	return d, err
}

// present leaves out what a copy of the workspace lacked from the beginning: the
// step did not delete it, and it must stay where it is.
func (v *view) present(list []workspace.Change) []workspace.Change {
	if len(v.absent) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(c workspace.Change) bool {
		return c.Change == workspace.Deleted && slices.ContainsFunc(v.absent, func(a string) bool { return within(c.RawPath(), a) })
	})
}

// maxChangeBytes bounds what one step's list keeps in memory and in the report, in
// bytes of paths. filesTotal counts on past it.
const maxChangeBytes = 256 << 20

// list writes the changes into the result.
func list(sr *StepResult, changes []workspace.Change) {
	sr.FilesTotal = len(changes)
	room := maxChangeBytes
	for _, c := range changes {
		if room -= len(c.Path) + len(c.Target) + len(c.From) + 256; room < 0 {
			return
		}
		sr.Files = append(sr.Files, FileChange(c))
	}
}

// judgeChanges asks the step's policy about its changes.
func (r *Runner) judgeChanges(d *delta.Delta, v *view, s PlanStep, changes []workspace.Change) policy.Verdict {
	p, err := policy.Compile(s.AllowChanges)
	if err != nil { // it was compiled when the file was read
		return policy.Verdict{Violations: []policy.Violation{{Type: policy.ChangeNotAllowed, Message: "bug: allowChanges passed the check: " + err.Error()}}}
	}
	env := policy.Env{
		Before: func(path string) (policy.Found, error) { f, err := d.Before(path); return policy.Found(f), err },
		After:  func(path string) (policy.Found, error) { f, err := d.After(path); return policy.Found(f), err },
	}
	if env.Modules, err = modules(d); err != nil {
		return policy.Verdict{Violations: []policy.Violation{{Type: policy.ProtectedPath, Message: "where submodules belong cannot be found out: " + err.Error()}}}
	}
	if s.Root.Kind == box.RootHost {
		env.Tools, env.Real = r.Tools, r.Real
	}
	verdict := p.Judge(changes, env)
	for _, c := range verdict.Commit {
		if why := v.unseen(c); why != "" {
			verdict.Violations = append(verdict.Violations, policy.Violation{Type: policy.ProtectedPath, Message: strconv.Quote(c.Path) + ": " + why})
		}
	}
	return verdict
}

// unseen says why a change would do something to what the step did not see; "" if
// it would not.
func (v *view) unseen(c workspace.Change) string {
	path := c.RawPath()
	gone := c.Change == workspace.Deleted || c.Type != "dir"
	switch {
	case v.mask.Covers(path):
		return "the step saw this without what is secret in it, so that its change would take the secret away; nothing is committed"
	case gone && v.mask.Holds(path):
		return "it holds what is hidden from the step, so that its change would take the secret away; nothing is committed"
	}
	// The kernel removes no mount, and puts nothing in its place: a commit that
	// tried would stop half way.
	for _, m := range v.t.mounts {
		if gone && within(m, path) {
			return fmt.Sprintf("%s is a mount on the host, which can neither be removed nor replaced; nothing is committed", strconv.Quote(m))
		}
	}
	for _, a := range v.absent {
		if within(path, a) || gone && within(a, path) {
			return fmt.Sprintf("the step's copy of the workspace lacked %s, which could not be copied and would be lost; nothing is committed", strconv.Quote(a))
		}
	}
	return ""
}

// patch writes what the step changed as a patch into its folder of the report.
func (r *Runner) patch(ctx context.Context, d *delta.Delta, changes []workspace.Change, sr *StepResult) (err error) {
	name := filepath.Join("steps", sr.ID, "changes.patch")
	// Inside the report folder and nowhere else, whatever links stand in it.
	root, err := os.OpenRoot(r.Out)
	if err != nil {
		return fmt.Errorf("open the report folder: %w", err)
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make the step's patch: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum, err := patch.Write(ctx, f, changes, source{d}, patch.Options{Mask: r.maskText(), TempDir: r.Out})
	if err != nil {
		// A file that is empty, or ends early, would be taken for the patch.
		err = errors.Join(fmt.Errorf("write the step's patch: %w", err), root.Remove(name))
		if ctx.Err() != nil {
			return nil // cancelled: it is not in the report
		}
		return err
	}
	sr.Patch = &Patch{Path: name, Bytes: sum.Bytes, Files: sum.Files, Left: len(sum.Lost) + len(sum.Refused), Masked: sum.Masked, MaskedFiles: sum.MaskedPaths}
	return nil
}

// maskText is nil where there is nothing to mask.
func (r *Runner) maskText() func([]byte) []byte {
	if r.Masker == nil || r.Masker.Longest() == 0 {
		return nil
	}
	return func(b []byte) []byte { return []byte(r.Masker.Mask(string(b))) }
}

// source gives a patch the two states of the workspace.
type source struct{ *delta.Delta }

func (s source) Before(path string) (patch.Found, error) {
	f, err := s.Delta.Before(path)
	return patch.Found(f), err
}

func (s source) After(path string) (patch.Found, error) {
	f, err := s.Delta.After(path)
	return patch.Found(f), err
}

// conclude keeps or drops what a step wrote, and says which.
func (r *Runner) conclude(ctx context.Context, v *view, s PlanStep, sr *StepResult, w wrote) {
	sr.WorkspaceBy = v.how()
	word := fate(s, sr, w)
	if word != "committed" && word != "kept" {
		sr.Workspace = word
		v.drop()
		return
	}
	sr.Workspace = "discarded"
	// What is ready shows the workspace as it was, and keeps it from being changed.
	r.Warm.Drop()
	err := v.keep(ctx, w.commit)
	if r.Warm != nil && r.Tree.unflushed() {
		r.Warm.Drop()
	}
	switch {
	case errors.Is(err, errConflict):
		sr.Violations = append(sr.Violations, Violation{Type: "conflict", Message: err.Error()})
		sr.Status, sr.Reason = StatusFailed, err.Error()
		sr.Excused = s.ContinueOnErr
	case errors.Is(err, commit.ErrIncomplete):
		// It was made, is there in part, and the next run goes on with it. Nobody
		// may take the workspace for what it was.
		noVerdict(sr, err)
		sr.Excused = false
		if !r.OnlyReport {
			sr.Workspace = word
		}
	case err != nil && ctx.Err() != nil:
		sr.Status, sr.Reason = StatusCancelled, "the run was cancelled before what the step changed was in the workspace"
	case err != nil:
		noVerdict(sr, err)
		sr.Excused = false
	case !r.OnlyReport:
		sr.Workspace = word
	}
}

// fate is what becomes of what a step wrote: committed, kept, discarded or, where
// there is nothing, unchanged.
func fate(s PlanStep, sr *StepResult, w wrote) string {
	switch {
	case !w.known:
		return "discarded"
	case w.changes == 0 || len(w.commit) == 0 && len(sr.Violations) == 0:
		return "unchanged"
	case len(sr.Violations) > 0:
		return "discarded"
	case sr.Status == StatusPassed && sr.Fault == nil:
		return "committed"
	case sr.Status == StatusFailed && s.OnFailure == "keep":
		return "kept"
	}
	return "discarded"
}
