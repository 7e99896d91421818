package steps

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/image"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// prepared opens a view, writes to it as a setup does, and keeps that.
func prepared(t *testing.T, tree *Tree, files map[string]string) *layer {
	t.Helper()
	v, err := tree.view(t.Context(), PlanStep{ID: "s", DiskMb: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	fillFolder(t, v.room.Upper(), files)
	d, err := v.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := v.retain(t.Context(), d.Changes())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func fillFolder(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func pathsOf(list []workspace.Change) (out []string) {
	for _, c := range list {
		out = append(out, c.Change+" "+c.Path)
	}
	return out
}

// Of a step over its setup, what it did itself is listed, and of that what lies
// beside the setup's is its own. The same holds where steps get copies.
func TestAStepOverItsSetup(t *testing.T) {
	for name, copies := range map[string]bool{"in an overlay": false, "in a copy": true} {
		t.Run(name, func(t *testing.T) {
			tree, dir := openTree(t, map[string]string{"a": "1", "src/b": "2"})
			if copies {
				tree.UseCopies("a test wants them")
			}
			made := prepared(t, tree, map[string]string{"a": "of the setup", "new/f": "x", "src/c": "y"})
			for range 2 { // two steps see the same
				v, err := tree.view(t.Context(), PlanStep{ID: "two", DiskMb: 4}, made)
				if err != nil {
					t.Fatal(err)
				}
				if copies {
					if got, err := os.ReadFile(filepath.Join(v.room.Upper(), "new/f")); err != nil || string(got) != "x" {
						t.Errorf("the copy has not what the setup wrote: %q %v", got, err)
					}
				}
				fillFolder(t, v.room.Upper(), map[string]string{"mine": "m", "new/g": "n", "src/d": "o", "src/c": "changed"})
				d, err := v.read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				listed, own := v.split(d.Changes())
				was := "modified src/c"
				if copies {
					was = "created src/c" // compared with the workspace, which has none
				}
				if diff := cmp.Diff([]string{"created mine", "created new/g", was, "created src/d"}, pathsOf(listed)); diff != "" {
					t.Errorf("listed (-want +got)\n%s", diff)
				}
				if diff := cmp.Diff([]string{"created mine", "created src/d"}, pathsOf(own)); diff != "" {
					t.Errorf("its own (-want +got)\n%s", diff)
				}
				v.drop()
			}
			if got, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(got) != "1" {
				t.Errorf("the workspace has %q, %v", got, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
				t.Error("what the setup made is in the workspace")
			}
		})
	}
}

// What a step writes beside its setup's is committed, also while another step
// sees the workspace.
func TestOnlyAStepsOwnIsCommittedOverASetup(t *testing.T) {
	tree, dir := openTree(t, map[string]string{"a": "1"})
	made := prepared(t, tree, map[string]string{"new/f": "x"})
	other, err := tree.view(t.Context(), PlanStep{ID: "other", DiskMb: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := tree.view(t.Context(), PlanStep{ID: "s", DiskMb: 4}, made)
	if err != nil {
		t.Fatal(err)
	}
	fillFolder(t, v.room.Upper(), map[string]string{"new/g": "n", "mine": "m"})
	d, err := v.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, own := v.split(d.Changes())
	if err := v.keep(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	other.drop()
	if got, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil || string(got) != "m" {
		t.Errorf("mine is %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("what the setup made is in the workspace")
	}
	if f := tree.failures(); len(f) > 0 {
		t.Error(f)
	}
}

func TestInMade(t *testing.T) {
	made := map[string]workspace.Change{
		"new": {Change: workspace.Created, Type: "dir"}, "new/f": {Change: workspace.Created, Type: "file"}, "src/c": {Change: workspace.Modified, Type: "file"},
		"src": {Change: workspace.Mode, Type: "dir"}, "gone": {Change: workspace.Deleted, Type: "dir"}, "was": {Change: workspace.Retyped, Type: "dir"}, ".": {Change: workspace.Mode, Type: "dir"},
	}
	for at, want := range map[string]bool{
		"new": true, "new/f": true, "new/deep/er": true, "src": true, "src/c": true, "src/d": false, "gone": true, "gone/x": true, "was/x": true,
		"other": false, "newer": false, ".": false,
	} {
		if got := inMade(made, at); got != want {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
}

// The setup's box is the step's but for what is said here.
func TestSetupStep(t *testing.T) {
	load := func(text string) PlanStep {
		return mustLoad(t, "steps:\n- {id: one, setup: make tools, "+text+"}\n", testOptions(t)).Steps[0].setupStep()
	}
	s := load("command: [x, y], expect: {exitCode: 3}, tolerate: [oom], continueOnError: true, retries: 2, workdir: /tmp, timeoutS: 60, egressAllow: [{to: db.example.com, private: true}], egressDeny: [evil.example.com], memoryMb: 1024, env: {A: b}, passEnv: [TOKEN], capDrop: [NET_RAW]")
	if s.Script != "make tools" || s.Language != "sh" || s.Command != nil || s.Workdir != "/workspace" || s.TimeoutS != 120 || !s.InSetup || s.Setup != "" {
		t.Errorf("%+v", s)
	}
	if *s.Expect.ExitCode != 0 || s.Tolerate != nil || s.ContinueOnErr || s.Retries != 0 {
		t.Errorf("what excuses the step excuses its setup: %+v", s)
	}
	if s.EgressMode != ModeAudit || !slices.Equal(s.EgressAllow, []egress.Entry{{To: "db.example.com", Private: true}}) || !slices.Equal(s.EgressDeny, []string{"evil.example.com"}) {
		t.Errorf("%s %v %v", s.EgressMode, s.EgressAllow, s.EgressDeny)
	}
	if s.MemoryMb != 1024 || len(s.Env) != 1 || len(s.PassEnv) != 1 || !slices.Equal(s.CapDrop, []string{"NET_RAW"}) {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff([]box.Tmpfs{{Target: "/step/home", Bytes: 512 << 20}, {Target: "/tmp", Bytes: 512 << 20}}, s.Tmpfs); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if s := load("run: x, tmpfs: {/tmp: 10m}, setupTimeoutS: 5, timeoutS: 600"); s.TimeoutS != 5 || s.Tmpfs[1].Bytes != 10<<20 {
		t.Errorf("what the step asks for is not taken: %v %v", s.TimeoutS, s.Tmpfs)
	}
	if s := load("run: x, timeoutS: 600"); s.TimeoutS != 600 {
		t.Errorf("deadline %v", s.TimeoutS)
	}
	if s := load("run: x, network: true"); !s.Network || s.EgressMode != ModeEnforce {
		t.Errorf("a step on the host's network: %v %v", s.Network, s.EgressMode)
	}
	if s := load("run: x, network: true, setupEgress: [a.example.com]"); s.Network || s.EgressMode != ModeEnforce || s.EgressAllow[0].To != "a.example.com" {
		t.Errorf("a setup with a list: %v %v %v", s.Network, s.EgressMode, s.EgressAllow)
	}
	if s := load("run: x, egressAllow: [a.example.com], setupEgress: []"); len(s.EgressAllow) != 0 || s.hasWay() {
		t.Errorf("a setup that may reach nothing: %v", s.EgressAllow)
	}
}

// Setups are shared only where nothing that shapes their boxes differs.
func TestSetupKey(t *testing.T) {
	r := &Runner{}
	key := func(text string) string {
		s := mustLoad(t, "steps:\n- {setup: make, "+text+"}\n", testOptions(t)).Steps[0]
		return r.setupKey(s.setupStep())
	}
	base := key("run: x")
	for _, text := range []string{"run: y", "id: other, name: n, run: x", "command: [z]", "run: x, expect: {exitCode: 1}, retries: 3", "run: x, workdir: /tmp", "run: x, language: bash", "run: x, allowChanges: []"} {
		if key(text) != base {
			t.Errorf("%s has a setup of its own", text)
		}
	}
	seen := map[string]string{base: "run: x"}
	for _, text := range []string{
		"run: x, memoryMb: 100", "run: x, env: {A: b}", "run: x, passEnv: [TOKEN]", "run: x, setupEgress: []", "run: x, setupEgress: [a.example.com]", "run: x, egressAllow: [a.example.com]",
		"run: x, mounts: {/srv/a: /a}", "run: x, image: 'rootfs:/srv/r'", "run: x, image: python", "run: x, network: true", "run: x, capDrop: []", "run: x, setupTimeoutS: 9", "run: x, apparmor: p", "run: x, setupCache: []", "run: x, setupCache: [a]", "run: x, profiles: ['vcpu:a']", "run: x, engine: native", "run: x, engine: gvisor",
	} {
		k := key(text)
		if other, ok := seen[k]; ok {
			t.Errorf("%s shares the setup of %s", text, other)
		}
		seen[k] = text
	}
	// It is the engine that counts, and not who says which: a setup of the run's own
	// choice serves a step that names the same.
	r.Engine, r.Engines = &refuser{}, map[string]box.Engine{"native": &refuser{}}
	if key("run: x, engine: native") != key("run: x") {
		t.Error("the same engine, named, makes a setup of its own")
	}
}

// What is kept is found again by what an image holds, and not by how it is named: a
// tag moves, and an archive is written anew.
func TestKeptSetupsAreKnownByTheirImage(t *testing.T) {
	for _, name := range []string{"archive:/srv/image.tar", "python:3.12-slim"} {
		s := mustLoad(t, "steps:\n- {setup: make, setupCache: [], image: '"+name+"', run: x}\n", testOptions(t)).Steps[0].setupStep()
		key := func(digest string) string {
			r := &Runner{Tree: &Tree{}, Engine: &refuser{}, got: map[string]gotten{s.Origin.String(): {image: &image.Image{Digest: digest}}}}
			return r.keptKey(s, "files")
		}
		if key("sha256:a") == key("sha256:b") {
			t.Errorf("%s: the image's digest does not make the key", name)
		}
	}
}

// What an earlier step left where a listed file was is a fault of the step that names
// it. That the report could not say anything of it would be ours.
func TestWhatAStepLeftOfAListedFileIsAFault(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(at string) error
		why  string
	}{
		"a link":   {func(at string) error { return os.Symlink("other", at) }, "setupCache: req.txt is a symlink, and only files can be listed"},
		"a folder": {func(at string) error { return os.Mkdir(at, 0o755) }, "req.txt is a dir"},
		"a pipe":   {func(at string) error { return syscall.Mkfifo(at, 0o644) }, "req.txt is a fifo"},
		"a large file": {func(at string) error {
			return errors.Join(os.WriteFile(at, nil, 0o644), os.Truncate(at, maxSetupFile+1))
		}, "67108865 bytes, of at most 67108864"},
		"what nobody may read": {func(at string) error { return os.WriteFile(at, nil, 0) }, "req.txt cannot be read: permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "what nobody may read" {
				boxtest.Need(t, "normal user")
			}
			tree, dir := openTree(t, map[string]string{"other": "1"})
			if err := tc.make(filepath.Join(dir, "req.txt")); err != nil {
				t.Fatal(err)
			}
			r := &Runner{Workspace: dir, Tree: tree, Guard: NewGuard(Options{}), Engine: &refuser{}, SetupStore: filepath.Join(t.TempDir(), "setups"), Now: time.Now}
			one := mustLoad(t, "steps:\n- {id: one, setup: make, setupCache: [req.txt], run: x, continueOnError: true}\n", testOptions(t)).Steps[0]
			sr := newStepResult(one, r.Engine.Info())
			r.step(t.Context(), one, one.EgressMaxBytes, sr, false)
			if sr.Status != StatusFailed || sr.Fault == nil || sr.Fault.Type != box.StartupFailed || !strings.Contains(sr.Reason, tc.why) || !sr.Excused {
				t.Errorf("%s, %+v, %q", sr.Status, sr.Fault, sr.Reason)
			}
			if sr.Setup == nil || sr.Setup.Status != StatusFailed {
				t.Errorf("setup: %+v", sr.Setup)
			}
			if len(tree.open) != 0 {
				t.Errorf("%d views are open", len(tree.open))
			}
		})
	}
}

func TestOptionsAreRead(t *testing.T) {
	for src, want := range map[string]string{
		"setup: ''":                 "setup is empty",
		"setup: [a]":                "setup is a list",
		"setupEgress: [not a rule]": "not an egress rule",
		"setupTimeoutS: 0":          "setupTimeoutS is out of range",
		"depsReadonly: 1":           "depsReadonly is a number",
		"setupCache: [../x]":        "not a path of a file within the workspace",
		"setupCache: [/x]":          "not a path of a file within the workspace",
		"setupCache: [a/../b]":      "not a path of a file within the workspace",
		"setupCache: x":             "setupCache is a text",
		"setup: y\n  setupCache: []\n  passEnv: [TOKEN]":         "setupCache and passEnv exclude each other",
		"setup: y\n  setupCache: []\n  mounts: {/srv/a: /a}":     "setupCache and mounts exclude each other",
		"setup: y\n  setupCache: []\n  profiles: ['vcpu:small']": "setupCache and profiles exclude each other",
		"setup: y\n  setupCache: []\n  image: rootfs:/srv/a":     "setupCache and an image of rootfs: exclude each other",
		"profiles: [heavy]":     "not a profile of kern",
		"profiles: ['vcpu:-x']": "not a profile of kern",
		"profiles: ['gpu:a']":   "not a profile of kern",
		"profiles: vcpu:a":      "profiles is a text",
		"apparmor: a/b":         "not a name of an AppArmor profile",
		"apparmor: unconfined":  "unconfined is no AppArmor profile",
		"apparmor: -x":          "not a name of an AppArmor profile",
		"enforceLimits: no":     "enforceLimits is a text",
	} {
		_, err := Load("steps.yml", []byte("steps:\n- run: x\n  "+src+"\n"), testOptions(t))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", src, err, want)
		}
	}
	plan := mustLoad(t, "defaults: {setup: a, apparmor: b}\nsteps:\n- {run: x, setup: null, apparmor: null}\n- {run: x, enforceLimits: false}\n", testOptions(t))
	if s := plan.Steps[0]; s.Setup != "" || s.AppArmor != "" || s.DepsReadonly {
		t.Errorf("null is not none: %+v", s)
	}
	if s := plan.Steps[1]; s.Setup != "a" || !s.DepsReadonly || !s.SetupWatched {
		t.Errorf("%+v", s)
	}
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0].What, "enforceLimits: false changes nothing") {
		t.Errorf("warnings: %+v", plan.Warnings)
	}
}

// What lasts on this machine is no program that runs as the caller.
func TestKeptSetupsHaveNoSetIDBits(t *testing.T) {
	for mode, kept := range map[string]bool{"0755": true, "4755": false, "2755": false, "6711": false} {
		after := t.TempDir()
		if err := os.WriteFile(filepath.Join(after, "f"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		r := &Runner{SetupStore: filepath.Join(t.TempDir(), "setups"), Tree: &Tree{}}
		r.Tree.owner.uid, r.Tree.owner.gid = os.Geteuid(), os.Getegid()
		l := &layer{id: "a", after: after, held: after, changes: []workspace.Change{{Path: "f", Change: workspace.Created, Type: "file", Mode: mode}}}
		err := r.keepSetup(t.Context(), "key", l, false)
		if (err == nil) != kept {
			t.Errorf("%s: %v", mode, err)
		}
		if _, serr := os.Stat(filepath.Join(r.SetupStore, "key")); (serr == nil) != kept {
			t.Errorf("%s: %v", mode, serr)
		}
	}
}
