package session

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
func (s *Session) prove(ctx context.Context, e box.Engine, mgr *limits.Manager) ([]steps.Proof, error) {
	cache := host.Cache{Dir: ProofDir(s.Getenv, s.Workspace)}
	cfg, err := s.proofConfig(e, mgr)
	if err != nil {
		cache.Dir = "" // what cannot be told apart is not remembered
	}
	if s.FreshProof {
		if err := cache.Forget(cfg); err != nil {
			return nil, err
		}
	}
	if known := cache.Load(cfg); known != nil {
		s.proved(e, known, ", earlier in this boot")
		return toSteps(e, known, "; seen earlier in this boot"), nil
	}
	list, err := s.ProveNow(ctx, e, mgr)
	if err != nil {
		return toSteps(e, list, ""), err
	}
	if err := cache.Save(cfg, list); err != nil {
		s.Log.Say(fmt.Sprintf("what was proved will be proved again in the next run: %v", err))
	}
	return toSteps(e, list, ""), nil
}

// proofConfig is what a proof with an engine holds for.
func (s *Session) proofConfig(e box.Engine, mgr *limits.Manager) (host.Config, error) {
	info, view := e.Info(), s.view("box", false)
	cfg := host.Config{Engine: info.Name, Version: info.Version, Digest: info.Digest, OwnKernel: info.Kernel == box.OwnKernel, Temp: os.TempDir()}
	if cfg.OwnKernel {
		cfg.Ways = append(cfg.Ways, "RUNSC_PLATFORM="+s.Getenv("RUNSC_PLATFORM"))
	}
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

// ProveNow shows every control at work, whatever is remembered.
func (s *Session) ProveNow(ctx context.Context, e box.Engine, mgr *limits.Manager) ([]host.Proof, error) {
	program, err := ownProgram()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	list, err := host.Prove(ctx, host.ProofOptions{
		Engine: e, Limits: mgr, Program: program, Places: KeptIn(s.Getenv, s.Workspace),
	})
	if err != nil {
		return nil, err
	}
	s.proved(e, list, fmt.Sprintf(", in %d ms", time.Since(began).Milliseconds()))
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
func (s *Session) proved(e box.Engine, list []host.Proof, also string) {
	held := 0
	for _, p := range list {
		if p.OK {
			held++
		}
	}
	with := ""
	if names, _, others := s.Plan.Engines(); s.Engine == "auto" && (len(names) > 1 || len(names) == 1 && len(others) > 0) {
		with = " with " + e.Info().Name
	}
	s.Log.Say(fmt.Sprintf("host: %d of %d controls seen to hold%s%s", held, len(list), with, also))
}

func toSteps(e box.Engine, list []host.Proof, also string) (out []steps.Proof) {
	for _, p := range list {
		out = append(out, steps.Proof{Control: p.Control, OK: p.OK, How: p.How + also, Ms: p.Ms, Engine: e.Info().Name})
	}
	return out
}
