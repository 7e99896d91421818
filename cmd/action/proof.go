package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/host"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// errMissed: a control was not seen to work. The host has built boxes, so what
// helps against that is no help here.
var errMissed = errors.New("this host does not hold what a box relies on")

// prove shows every control at work with an engine, or finds that it did so since
// this machine was started and as it is set up now.
func (r *run) prove(ctx context.Context, e box.Engine, mgr *limits.Manager) ([]steps.Proof, error) {
	cache := host.Cache{Dir: proofDir(r.app.getenv, r.opt.workspace)}
	cfg, err := r.proofConfig(e, mgr)
	if err != nil {
		cache.Dir = "" // what cannot be told apart is not remembered
	}
	if r.opt.freshProof {
		if err := cache.Forget(cfg); err != nil {
			return nil, err
		}
	}
	if known := cache.Load(cfg); known != nil {
		r.proved(known, ", earlier in this boot")
		return toSteps(known, "; seen earlier in this boot"), nil
	}
	list, err := r.proveNow(ctx, e, mgr)
	if err != nil {
		return toSteps(list, ""), err
	}
	if err := cache.Save(cfg, list); err != nil {
		r.log.Say(fmt.Sprintf("what was proved will be proved again in the next run: %v", err))
	}
	return toSteps(list, ""), nil
}

// proofConfig is what a proof with an engine holds for.
func (r *run) proofConfig(e box.Engine, mgr *limits.Manager) (host.Config, error) {
	info, view := e.Info(), r.view("box", false)
	cfg := host.Config{Engine: info.Name, Version: info.Version, Digest: info.Digest, Temp: os.TempDir()}
	if mgr != nil {
		cfg.Groups = mgr.Where()
	}
	cfg.View = append(cfg.View, view.Binds...)
	for _, at := range slices.Sorted(maps.Keys(view.Links)) {
		cfg.View = append(cfg.View, at+" -> "+view.Links[at])
	}
	program, err := ownProgram()
	if err != nil {
		return cfg, err
	}
	return cfg.Here(program)
}

// proveNow shows every control at work, whatever is remembered.
func (r *run) proveNow(ctx context.Context, e box.Engine, mgr *limits.Manager) ([]host.Proof, error) {
	program, err := ownProgram()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	list, err := host.Prove(ctx, host.ProofOptions{
		Engine: e, Limits: mgr, Program: program, Places: keptIn(r.app.getenv, r.opt.workspace),
	})
	if err != nil {
		return nil, err
	}
	r.proved(list, fmt.Sprintf(", in %d ms", time.Since(began).Milliseconds()))
	if missed := host.Missed(list, mgr != nil); missed != "" {
		return list, fmt.Errorf("%w: %s", errMissed, missed)
	}
	return list, nil
}

func ownProgram() (string, error) {
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", fmt.Errorf("find this program, which runs in the probe boxes: %w", err)
	}
	return program, nil
}

// proved says in a line how much was seen; the report and the summary have each.
func (r *run) proved(list []host.Proof, also string) {
	held := 0
	for _, p := range list {
		if p.OK {
			held++
		}
	}
	r.log.Say(fmt.Sprintf("host: %d of %d controls seen to hold%s", held, len(list), also))
}

func toSteps(list []host.Proof, also string) (out []steps.Proof) {
	for _, p := range list {
		out = append(out, steps.Proof{Control: p.Control, OK: p.OK, How: p.How + also, Ms: p.Ms})
	}
	return out
}

// proofDir is where proofs are remembered: with other state of the caller's that
// no box is ever shown. There is no such place if steps work in a folder above it:
// what they change there is committed.
func proofDir(getenv func(string) string, workspace string) string {
	bases := stateBases(getenv)
	if len(bases) == 0 {
		return ""
	}
	base := bases[0]
	// A home that is not there is not made: it is no place of anybody's.
	if home := getenv("HOME"); within(base, home) && realPath(home) == "" {
		return ""
	}
	dir := filepath.Join(base, "proofs")
	if !outside(dir, workspace) {
		return ""
	}
	return dir
}

// outside says whether a folder, or the place where it would be made, lies in no
// workspace: what steps change there is committed.
func outside(dir, workspace string) bool {
	for at := dir; ; at = filepath.Dir(at) {
		if real := realPath(at); real != "" {
			return !within(real, workspace)
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}
