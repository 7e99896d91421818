package steps

import (
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// fill makes the plan of steps that were checked: every default has its value.
func fill(name string, list []*step, opt Options) (*Plan, error) {
	plan := &Plan{File: name, Steps: []PlanStep{}}
	parts := map[string]int{}
	if opt.Part.Of > 0 {
		// Of the whole file, so that who asks for some steps of a part gets them
		// where they would have run.
		all := make([]PlanStep, len(list))
		for i, s := range list {
			all[i] = PlanStep{ID: s.ID, Needs: s.Needs, Kernel: s.Kernel}
		}
		for i, n := range splitPlan(all, opt.Part.Of, opt.Part.Durations) {
			parts[all[i].ID] = n
		}
	}
	for _, s := range list {
		if len(opt.Only) > 0 && !slices.Contains(opt.Only, s.ID) {
			continue
		}
		p := s.plan(opt.HostEnv)
		if len(opt.Only) > 0 {
			p.NeedsLeftOut = slices.DeleteFunc(slices.Clone(p.Needs), func(id string) bool { return slices.Contains(opt.Only, id) })
			p.Needs = slices.DeleteFunc(p.Needs, func(id string) bool { return !slices.Contains(opt.Only, id) })
		}
		plan.Steps = append(plan.Steps, p)
	}
	if opt.Part.Of > 0 {
		return plan, plan.keep(opt.Part, parts)
	}
	return plan, nil
}

func (s *step) plan(hostEnv func(string) (string, bool)) PlanStep {
	p := PlanStep{
		ID: s.ID, Name: s.Name, Script: string(s.Run), Code: string(s.Code), Kernel: s.Kernel, Engine: s.Engine, Image: s.Image,
		Env: own(s.Env), PassEnv: own(s.PassEnv), Workdir: s.Workdir,
		MemoryMb: s.MemoryMb, Pids: s.Pids, CPUs: s.CPUs, TimeoutS: s.TimeoutS, RequireLimits: s.RequireLimits, DiskMb: s.DiskMb,
		Network: s.Network, EgressAllow: own([]egress.Entry(s.EgressAllow)), EgressPresets: s.presets, EgressDeny: own(s.EgressDeny), EgressMode: s.EgressMode,
		EgressMaxBytes: s.EgressMaxBytes, ExpectDenied: own(s.ExpectDenied), Needs: own(s.Needs), ContinueOnErr: s.ContinueOnError,
		Tolerate: own(s.Tolerate), Expect: Expect(s.Expect), MaxOutput: s.MaxOutputBytes, TrackFiles: s.TrackFiles,
		AllowChanges: own(s.AllowChanges), OnFailure: s.OnFailure, Retries: s.Retries,
		CapDrop: own(s.CapDrop), Profile: s.SecurityProfile, Mounts: own(s.Mounts), MountedAs: s.mountedAs, Line: s.at.line, Keys: s.keyAt,
	}
	if p.EgressMode == "" {
		p.EgressMode = ModeEnforce
	}
	if p.Name == "" {
		p.Name = s.ID
	}
	if len(s.Command) == 0 {
		p.Language = s.Language
	}
	for _, arg := range s.Command {
		p.Command = append(p.Command, string(arg))
	}
	switch {
	case s.rootDir != "":
		p.Root = box.Root{Kind: box.RootDir, Dir: s.rootDir}
	case !s.origin.None():
		// Where it is shows when it was fetched. Until then this is no engine's root.
		p.Root, p.Origin = box.Root{Kind: box.RootDir}, s.origin
	}
	p.SHA256 = s.digest()
	for _, name := range p.PassEnv {
		if _, ok := hostEnv(name); !ok {
			p.PassEnvUnset = append(p.PassEnvUnset, name)
		}
	}
	p.Tmpfs, p.ShmBytes = s.memoryFiles()
	p.AppArmor = s.AppArmor
	if len(s.Profiles) > 0 {
		p.KernProfiles = own(s.Profiles)
	}
	if s.Setup != "" {
		p.Setup, p.DepsReadonly, p.SetupTimeoutS, p.SetupWatched = s.Setup, s.DepsReadonly, s.setupTimeout(), !s.setupListed
		p.SetupKept = s.setupKept
		if s.setupKept {
			p.SetupCache = own(s.SetupCache)
		}
		if s.setupListed {
			p.SetupEgress = own([]egress.Entry(s.SetupEgress))
		}
	}
	return p
}

// setupTimeout is how long a step's setup may take. Installing takes longer than
// what is installed does.
func (s *step) setupTimeout() float64 {
	if s.SetupTimeoutS > 0 {
		return s.SetupTimeoutS
	}
	return max(s.TimeoutS, minSetupS)
}

// own copies a list that steps share, and makes an absent one empty: a plan
// printed as JSON has no null where a list belongs.
func own[S ~[]T, T any](list S) []T { return append([]T{}, list...) }

// memoryFiles is every tmpfs of the step. /tmp and HOME are there unless the
// step said otherwise; both count as its memory, so a small step gets small
// ones. So is /dev/shm, which is the engine's to mount.
func (s *step) memoryFiles() (list []box.Tmpfs, shm int64) {
	size := func(bytes int64) int64 {
		if s.MemoryMb == 0 {
			return bytes
		}
		return max(min(bytes, s.MemoryMb<<20/2), 1<<20)
	}
	out := []box.Tmpfs{}
	has := func(target string) bool {
		return slices.ContainsFunc(out, func(t box.Tmpfs) bool { return t.Target == target })
	}
	shm = size(box.DefaultShmBytes)
	for _, t := range s.Tmpfs {
		bytes := t.bytes
		if bytes == 0 {
			bytes = size(box.DefaultTmpBytes)
		}
		if t.target == shmTarget {
			shm = bytes
			continue
		}
		out = append(out, box.Tmpfs{Target: t.target, Bytes: bytes})
	}
	_, written := s.written["tmpfs"]
	none := written && len(s.Tmpfs) == 0
	mounted := slices.ContainsFunc(s.Mounts, func(m box.Mount) bool { return m.Target == "/tmp" })
	if !has("/tmp") && !none && !mounted {
		out = append(out, box.Tmpfs{Target: "/tmp", Bytes: size(box.DefaultTmpBytes)})
	}
	if !has(box.HomeTarget) {
		out = append(out, box.Tmpfs{Target: box.HomeTarget, Bytes: size(box.DefaultHomeBytes)})
	}
	slices.SortStableFunc(out, func(a, b box.Tmpfs) int { return comparePaths(a.Target, b.Target) })
	return out, shm
}
