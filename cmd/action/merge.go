package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/shard"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxReports bounds how many reports are merged: more than there can be shards,
// so that one too many is still named as what it is.
const maxReports = 2 * steps.MaxShards

// merge makes one report, summary and verdict of those of shards.
func (a *app) merge(args []string) int {
	o, code, ok := a.parse("merge", args)
	switch {
	case !ok:
		return code
	case o.file == "" && (o.only != "" || o.workspace != ""):
		return a.misused(&o, "merge: --only and --workspace belong to the steps file that --file names")
	}
	var names []string
	for _, name := range o.operands {
		list, err := reportsIn(name)
		if err != nil || len(list) == 0 || slices.ContainsFunc(list, noFolder) {
			list = []string{name} // what is wrong with it is said where it is opened
		}
		names = append(names, list...)
	}
	return a.mergeReports(&o, names)
}

func noFolder(name string) bool {
	info, err := os.Lstat(name)
	return err != nil || !info.IsDir()
}

// reportsIn are the reports that a name stands for: itself, or all that is in a
// folder which is no report, as a download of artifacts leaves them.
func reportsIn(name string) ([]string, error) {
	switch info, err := os.Lstat(name); {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{name}, nil
	}
	if _, err := os.Lstat(filepath.Join(name, "report.json")); err == nil {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		list = append(list, filepath.Join(name, e.Name()))
	}
	return list, nil
}

// mergeInput is merge as the action's input asks for it: the reports are the
// folders in one folder, as a download of artifacts leaves them.
func (a *app) mergeInput(o *options, dir string) int {
	if o.out == "" {
		made, err := os.MkdirTemp("", "untrusted-steps-")
		if err == nil {
			err = os.Chmod(made, 0o755)
		}
		if err != nil {
			return a.next(a.wrong("out: %v", err), "name a folder that can be written in the input out")
		}
		o.out = made
	}
	// Where no shard left a report there may not even be a folder. That is a
	// verdict and not a mistake: every shard is missing.
	reports, err := reportsIn(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return a.next(a.wrong("inputs: merge: %v", err), "name the folder into which the reports of all shards were downloaded")
	}
	return a.mergeReports(o, reports)
}

func (a *app) mergeReports(o *options, names []string) int {
	if len(names) > maxReports {
		return a.next(a.wrong("merge: %d reports; there are at most %d shards", len(names), steps.MaxShards), "name those of one run")
	}
	o.merges = true
	var want *shard.Plan
	var policy *steps.PolicyRef
	switch {
	case o.file != "" || o.text != "":
		p, code, ok := a.load(o)
		if !ok {
			return code
		}
		sum, err := p.Sum()
		if err != nil {
			return a.next(a.wrong("merge: %v", err), "this is not your doing; please report it")
		}
		want, policy = &shard.Plan{Sum: sum, IDs: p.IDs()}, p.Policy
	case o.policy != "":
		lo := a.loadOptions(o)
		if code, ok := a.loadPolicy(o, &lo); !ok {
			return code
		}
		policy = o.ceiling.Ref()
	}
	sources, parts, err := openSources(names)
	defer func() {
		for _, s := range sources {
			s.Close()
		}
	}()
	if err != nil {
		return a.next(a.wrong("merge: %v", err), "name the report.json or the report folder of each shard, once")
	}
	out, err := mergeFolder(o.out, sources)
	if err != nil {
		return a.next(a.wrong("--out: %v", err), "name a new folder with --out DIR")
	}
	o.out, o.folder = out.Path, out
	res, from := shard.Merge(parts, want, policy, steps.Tool{Name: toolName, Version: toolVersion()})
	if err := copyAll(report.NewLooker(), sources, res, from); err != nil {
		return a.next(a.wrong("merge: %v", err), "what a shard left has to be whole; a report that --out has is as it was")
	}
	if err := out.Empty(); err != nil {
		return a.next(a.wrong("--out: %v", err), "name a new folder with --out DIR")
	}
	if err := copyAll(report.NewCopier(out), sources, res, from); err != nil {
		// What is half there could be taken for a report.
		err = errors.Join(err, out.Empty())
		code := a.next(a.wrong("merge: %v", err), "there is no report now; what a shard left has to be whole, and the folder of --out writable")
		var write *report.WriteError
		if errors.As(err, &write) {
			code = exitNoVerdict
		}
		return code
	}
	return a.finishMerge(o, res, want != nil)
}

// finishMerge writes and says what a run would of its result, and ends as one.
func (a *app) finishMerge(o *options, res *steps.Result, want bool) int {
	r := &run{app: a, opt: o, plan: &steps.Plan{}, actions: a.getenv("GITHUB_ACTIONS") == "true", result: res}
	r.masker = gha.NewMasker(r.secrets()...)
	r.stdout, r.stderr = gha.NewOutlet(a.stdout), gha.NewOutlet(a.stderr)
	logTo, logBy := a.stdout, r.stdout
	if o.json {
		logTo, logBy = a.stderr, r.stderr
	}
	if want {
		res.File = r.annotated() // and no word of a report about it
	}
	m := res.Merged
	r.openLog(logBy, logTo, fmt.Sprintf("%s %s: %d %s of %d", toolName, toolVersion(), len(m.Shards), noun(len(m.Shards), "shard", "shards"), m.Of))
	return r.finish(context.Background())
}

// openSources reads the reports in the order of their names, so that the answer
// does not depend on the one they were given in.
func openSources(names []string) (sources []*report.Source, parts []shard.Part, err error) {
	names = slices.Clone(names)
	slices.Sort(names)
	room, records := int64(report.MaxFile), 0
	for i, name := range names {
		shown := gha.Inert(name)
		if i > 0 && names[i-1] == name {
			return sources, nil, fmt.Errorf("%s is given twice", shown)
		}
		s, err := report.OpenSource(name, room)
		if err != nil {
			return sources, nil, fmt.Errorf("%s: %w", shown, err)
		}
		sources = append(sources, s)
		room -= s.Bytes
		if records += held(s.Result); records > maxRecords {
			return sources, nil, fmt.Errorf("%s: with it the reports have more than %d records", shown, maxRecords)
		}
		if err := shard.Check(s.Result); err != nil {
			return sources, nil, fmt.Errorf("%s: %w", shown, err)
		}
		const most = 200
		parts = append(parts, shard.Part{Name: shown[max(0, len(shown)-most):], Result: s.Result})
	}
	return sources, parts, nil
}

// maxRecords bounds what all reports together hold in memory.
const maxRecords = 2_000_000

func held(r *steps.Result) int {
	n := len(r.Steps) + len(r.Notes) + len(r.Host.Proof)
	if r.Shard != nil {
		n += len(r.Shard.All) + len(r.Shard.Steps)
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		n += len(s.Files) + len(s.Egress) + len(s.Events) + len(s.Violations) + len(s.Notes) + len(s.Results) + len(s.ResultFiles) + len(s.First) + len(s.Tries) +
			len(s.EgressProposal) + len(s.EgressUnused) + len(s.EgressPresets) + len(s.Unobserved)
		for _, forms := range s.Results {
			n += len(forms)
		}
		for _, p := range s.EgressPresets {
			n += len(p.Rules)
		}
		if b := s.Setup; b != nil {
			n += len(b.Files) + len(b.Events)
		}
	}
	return n
}

// mergeFolder opens the folder for the report. What is to be read must not be what is
// replaced.
func mergeFolder(dir string, sources []*report.Source) (*report.Folder, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		if real, err := filepath.EvalSymlinks(abs); err == nil && (real == s.Folder || session.Within(s.Folder, filepath.Join(real, "steps"))) {
			return nil, fmt.Errorf("%s is where one of the reports is; name another folder", dir)
		}
		if session.Within(abs, filepath.Join(s.Folder, "steps")) {
			return nil, fmt.Errorf("%s is inside one of the reports; name another folder", dir)
		}
	}
	return report.Open(abs, "")
}

// copyAll brings the logs, patches and results of the steps that are in the result.
func copyAll(c *report.Copier, sources []*report.Source, res *steps.Result, from []int) (err error) {
	defer func() {
		if closed := c.Close(); err == nil {
			err = closed
		}
	}()
	var without []string
	used := map[int]bool{}
	for i := range res.Steps {
		s := &res.Steps[i]
		if from[i] < 0 {
			continue
		}
		used[from[i]] = true
		lacks := false
		for _, f := range shard.Files(s) {
			if *f.Path == "" {
				continue
			}
			found, err := c.File(sources[from[i]], *f.Path)
			if err != nil {
				return fmt.Errorf("step %s: %w", s.ID, err)
			}
			if !found {
				*f.Path, lacks = "", true
			}
		}
		listed := s.ResultFiles
		s.ResultFiles = nil
		for _, f := range listed {
			found, err := c.File(sources[from[i]], f.Path)
			if err != nil {
				return fmt.Errorf("step %s: %w", s.ID, err)
			}
			if found {
				s.ResultFiles = append(s.ResultFiles, f)
				continue
			}
			lacks = true
			if s.Results[f.Result][f.MIME] == f.Path { // there is nothing of it
				delete(s.Results[f.Result], f.MIME)
			}
		}
		if lacks {
			without = append(without, s.ID)
		}
		s.Tail = c.Tail(s)
	}
	for n, s := range sources {
		if used[n] {
			if err := c.Requests(s); err != nil {
				return err
			}
		}
	}
	if len(without) > 0 {
		res.Notes = append(res.Notes, "not all logs and patches were beside the reports of "+strings.TrimSpace(list(without)))
	}
	return nil
}
