package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// testOptions is a caller whose home, workspace and host paths are made up: no
// test of this file depends on what this machine has.
func testOptions(t testing.TB) Options {
	t.Helper()
	return Options{
		Workspace:    "/home/me/work",
		Dir:          "/home/me/work/ci",
		Home:         "/home/me",
		HostEnv:      func(name string) (string, bool) { return "secret", name == "TOKEN" },
		XDG:          map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000", "XDG_CACHE_HOME": "/cache", "XDG_STATE_HOME": "/state"},
		EvalSymlinks: func(p string) (string, error) { return p, nil },
		Stat:         func(string) (os.FileInfo, error) { return nil, os.ErrNotExist },
	}
}

func mustLoad(t testing.TB, src string, opt Options) *Plan {
	t.Helper()
	plan, err := Load("steps.yml", []byte(src), opt)
	if err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	return plan
}

func TestDefaults(t *testing.T) {
	zero := 0
	got := mustLoad(t, "steps:\n- run: make\n", testOptions(t)).Steps[0]
	want := PlanStep{
		ID: "step-1", Name: "step-1", Language: "sh", Script: "make", SHA256: "d05aa2a15fb3c40efeeb03bec445393f00074484cf01c8fb2da90ca6695a5531", Image: "host", Env: []EnvVar{}, PassEnv: []string{},
		Workdir: "/workspace", MemoryMb: 512, Pids: 256, TimeoutS: 30, RequireLimits: true, EgressAllow: []egress.Entry{}, EgressDeny: []string{}, EgressMode: "enforce", ExpectDenied: []string{},
		Needs: []string{}, Tolerate: []box.FaultType{}, Expect: Expect{ExitCode: &zero}, MaxOutput: 64 << 20, TrackFiles: true,
		DiskMb: 1024, AllowChanges: []string{"**"}, OnFailure: "discard",
		CapDrop: []string{"ALL"}, Tmpfs: []box.Tmpfs{{Target: "/step/home", Bytes: 64 << 20}, {Target: "/tmp", Bytes: 64 << 20}},
		ShmBytes: 64 << 20, Mounts: []box.Mount{}, Line: 2,
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(PlanStep{}, "Keys")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPlan(t *testing.T) {
	type check = func(p *Plan) any
	first := func(f func(s PlanStep) any) check { return func(p *Plan) any { return f(p.Steps[0]) } }
	ids := func(p *Plan) any {
		var out []string
		for _, s := range p.Steps {
			out = append(out, s.ID)
		}
		return strings.Join(out, " ")
	}
	for _, tc := range []struct {
		sentence string
		src      string
		look     check
		want     any
	}{
		{"a default holds for a step that does not write the key", "defaults: {pids: 9}\nsteps: [{run: x}]",
			first(func(s PlanStep) any { return s.Pids }), int64(9)},
		{"what a step writes wins over defaults", "defaults: {pids: 9}\nsteps: [{run: x, pids: 10}]",
			first(func(s PlanStep) any { return s.Pids }), int64(10)},
		{"a step's list takes the place of the whole default list", "defaults: {egressAllow: [a.b]}\nsteps: [{run: x, egressAllow: []}]",
			first(func(s PlanStep) any { return len(s.EgressAllow) }), 0},
		{"a default language does not concern a command", "defaults: {language: bash}\nsteps: [{command: [x]}]",
			first(func(s PlanStep) any { return s.Language }), ""},
		{"defaults may come after steps", "steps: [{run: x}]\ndefaults: {pids: 9}",
			first(func(s PlanStep) any { return s.Pids }), int64(9)},
		{"ids count from one, over steps with an id of their own too", "steps: [{run: x}, {id: b, run: x}, {run: x}]", ids, "step-1 b step-3"},
		{"steps keep the order of the file, whatever they need", "steps: [{id: a, run: x, needs: c}, {id: b, run: x}, {id: c, run: x}]", ids, "a b c"},
		{"true and false are commands", "steps: [{run: false}]", first(func(s PlanStep) any { return s.Script }), "false"},
		{"a number as an argument is the text that was written", "steps: [{command: [sleep, 1.50, 007, true, yes]}]",
			first(func(s PlanStep) any { return strings.Join(s.Command, " ") }), "sleep 1.50 007 true yes"},
		{"a number as a variable is the text that was written", "steps: [{run: x, env: {B: 1.10, A: yes}}]",
			first(func(s PlanStep) any { return s.Env }), []EnvVar{{"B", "1.10"}, {"A", "yes"}}},
		{"a passed variable that the caller does not have is left unset", "steps: [{run: x, passEnv: [TOKEN, NOPE]}]",
			first(func(s PlanStep) any { return s.PassEnvUnset }), []string{"NOPE"}},
		{"null is no cap where limits are not required", "steps: [{run: x, memoryMb: null, pids: ~, requireLimits: false}]",
			first(func(s PlanStep) any { return [2]int64{s.MemoryMb, s.Pids} }), [2]int64{}},
		{"null for cpus is the default", "steps: [{run: x, cpus: null}]", first(func(s PlanStep) any { return s.CPUs }), 0.0},
		{"a fraction of a CPU and of a second", "steps: [{run: x, cpus: 0.5, timeoutS: .25}]",
			first(func(s PlanStep) any { return [2]float64{s.CPUs, s.TimeoutS} }), [2]float64{.5, .25}},
		{"a capability is kept without CAP_", "steps: [{run: x, capDrop: [CAP_NET_RAW, SYS_ADMIN]}]",
			first(func(s PlanStep) any { return s.CapDrop }), []string{"NET_RAW", "SYS_ADMIN"}},
		{"no capability dropped", "steps: [{run: x, capDrop: []}]", first(func(s PlanStep) any { return len(s.CapDrop) }), 0},
		{"a folder comes before what is mounted in it", "steps: [{run: x, mounts: {/a: /x/y, /b: [/x, ro]}}]",
			first(func(s PlanStep) any { return s.Mounts }), []box.Mount{{Source: "/b", Target: "/x", ReadOnly: true}, {Source: "/a", Target: "/x/y"}}},
		{"a small step gets a small /tmp and HOME", "steps: [{run: x, memoryMb: 32}]",
			first(func(s PlanStep) any { return s.Tmpfs }), []box.Tmpfs{{Target: "/step/home", Bytes: 16 << 20}, {Target: "/tmp", Bytes: 16 << 20}}},
		{"a tmpfs beside /tmp leaves /tmp there", "steps: [{run: x, tmpfs: {/cache: 1g}, memoryMb: 2048}]",
			first(func(s PlanStep) any { return s.Tmpfs }), []box.Tmpfs{{Target: "/cache", Bytes: 1 << 30}, {Target: "/step/home", Bytes: 64 << 20}, {Target: "/tmp", Bytes: 64 << 20}}},
		{"tmpfs {} is no /tmp", "steps: [{run: x, tmpfs: {}}]",
			first(func(s PlanStep) any { return s.Tmpfs }), []box.Tmpfs{{Target: "/step/home", Bytes: 64 << 20}}},
		{"a tmpfs in a list has the default size", "steps: [{run: x, tmpfs: [/cache]}]",
			first(func(s PlanStep) any { return s.Tmpfs[0] }), box.Tmpfs{Target: "/cache", Bytes: 64 << 20}},
		{"HOME can be resized", "steps: [{run: x, tmpfs: {/step/home: 128m}}]",
			first(func(s PlanStep) any { return s.Tmpfs[0] }), box.Tmpfs{Target: "/step/home", Bytes: 128 << 20}},
		{"a mount at /tmp takes the place of the default tmpfs", "steps: [{run: x, mounts: {/a: /tmp}}]",
			first(func(s PlanStep) any { return len(s.Tmpfs) }), 1},
		{"a tmpfs at /dev/shm is the size of /dev/shm, and /tmp stays", "steps: [{run: x, tmpfs: {/dev/shm: 8m}}]",
			first(func(s PlanStep) any { return []int64{s.ShmBytes, int64(len(s.Tmpfs))} }), []int64{8 << 20, 2}},
		{"in a small step /dev/shm is small", "steps: [{run: x, memoryMb: 32, tmpfs: {}}]", first(func(s PlanStep) any { return s.ShmBytes }), int64(16 << 20)},
		{"without a cap /dev/shm has its default size", "steps: [{run: x, memoryMb: null, requireLimits: false}]", first(func(s PlanStep) any { return s.ShmBytes }), int64(64 << 20)},
		{"a path below a folder of the host may be covered", "steps: [{run: x, tmpfs: [/usr/share], mounts: {/a: [/etc/passwd, ro]}}]",
			first(func(s PlanStep) any { return []int{len(s.Tmpfs), len(s.Mounts)} }), []int{3, 1}},
		{"an image of its own may have any folder covered", "steps: [{run: x, image: 'rootfs:/srv/alpine', tmpfs: [/usr], mounts: {/a: /etc, /b: [/lib, ro]}}]",
			first(func(s PlanStep) any { return []int{len(s.Tmpfs), len(s.Mounts)} }), []int{3, 2}},
		{"a folder whose name begins like one of the host's is another", "steps: [{run: x, mounts: {/a: /usr2, /b: /opt/lib}}]",
			first(func(s PlanStep) any { return len(s.Mounts) }), 2},
		{"a relative rootfs starts at the folder of the file", "steps: [{run: x, image: 'rootfs:../alpine'}]",
			first(func(s PlanStep) any { return s.Root }), box.Root{Kind: box.RootDir, Dir: "/home/me/work/alpine"}},
		{"an egress rule is kept in its canonical form", "steps: [{run: x, egressAllow: [EXAMPLE.org]}]",
			first(func(s PlanStep) any { return s.EgressAllow }), []egress.Entry{{To: "example.org"}}},
		{"a workdir is cleaned", "steps: [{run: x, workdir: /workspace//src/}]", first(func(s PlanStep) any { return s.Workdir }), "/workspace/src"},
		{"all but what is guarded may change by default", "steps: [{run: x}]",
			first(func(s PlanStep) any { return s.AllowChanges }), []string{"**"}},
		{"an empty list of changes is none, and not the default", "defaults: {allowChanges: [a]}\nsteps: [{run: x, allowChanges: []}]",
			first(func(s PlanStep) any { return s.AllowChanges }), []string{}},
		{"a step's globs replace those of defaults", "defaults: {allowChanges: [a, b]}\nsteps: [{run: x, allowChanges: ['c/**']}]",
			first(func(s PlanStep) any { return s.AllowChanges }), []string{"c/**"}},
		{"globs, disk and onFailure may stand in defaults", "defaults: {allowChanges: [a], diskMb: 7, onFailure: keep}\nsteps: [{run: x}]",
			first(func(s PlanStep) any { return []any{s.AllowChanges[0], s.DiskMb, s.OnFailure} }), []any{"a", int64(7), "keep"}},
		{"a failed step's writes are discarded by default, and it may write a GiB", "steps: [{run: x}]",
			first(func(s PlanStep) any { return []any{s.DiskMb, s.OnFailure} }), []any{int64(1024), "discard"}},
		{"the largest disk", "steps: [{run: x, diskMb: 1048576}]", first(func(s PlanStep) any { return s.DiskMb }), int64(1 << 20)},
		{"an expected fault asks no exit code", "steps: [{run: x, expect: {fault: oom}}]",
			first(func(s PlanStep) any { return s.Expect }), Expect{Fault: box.OOM}},
		{"a byte order mark is skipped", "\ufeffsteps: [{run: x}]", ids, "step-1"},
		{"line ends of Windows are line ends", "steps:\r\n- run: |\r\n    a\r\n    b\r\n", first(func(s PlanStep) any { return s.Script }), "a\nb\n"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := tc.look(mustLoad(t, tc.src, testOptions(t)))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", tc.src, diff)
			}
		})
	}
}

func TestOnly(t *testing.T) {
	const src = "steps:\n- {id: a, run: x}\n- {id: b, run: x, needs: a}\n- {id: c, run: x, needs: [a, b]}\n"
	t.Run("keeps the steps asked for and needs among them", func(t *testing.T) {
		opt := testOptions(t)
		opt.Only = []string{"c", "b"}
		plan := mustLoad(t, src, opt)
		if len(plan.Steps) != 2 || plan.Steps[0].ID != "b" || plan.Steps[1].ID != "c" {
			t.Fatalf("got %+v", plan.Steps)
		}
		if diff := cmp.Diff([][]string{{}, {"b"}}, [][]string{plan.Steps[0].Needs, plan.Steps[1].Needs}); diff != "" {
			t.Error(diff)
		}
		var text strings.Builder
		if err := plan.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\n  needs      a (left out by --only)\n", "\n  needs      b; a (left out by --only)\n"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the plan does not say %q:\n%s", want, text.String())
			}
		}
		if got, want := plan.LeftOut(), "--only leaves out what some steps need: b needs a; c needs a"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		b, err := json.Marshal(plan)
		if n := strings.Count(string(b), `"needsLeftOut":["a"]`); err != nil || n != 2 {
			t.Errorf("%v, %d of 2 steps say it as JSON: %s", err, n, b)
		}
	})
	t.Run("says nothing of needs that are met", func(t *testing.T) {
		opt := testOptions(t)
		opt.Only = []string{"a", "b"}
		var text strings.Builder
		plan := mustLoad(t, src, opt)
		if err := plan.WriteText(&text); err != nil || strings.Contains(text.String(), "left out") || plan.LeftOut() != "" {
			t.Errorf("%v, %q:\n%s", err, plan.LeftOut(), text.String())
		}
	})
	t.Run("refuses an id that no step has, even beside a default id", func(t *testing.T) {
		opt := testOptions(t)
		opt.Only = []string{"d"}
		_, err := Load("steps.yml", []byte(src), opt)
		if err == nil || !strings.HasPrefix(err.Error(), `steps.yml:1:1: no step has the id "d"`) {
			t.Errorf("got %v", err)
		}
	})
}

func TestBareList(t *testing.T) {
	const src = "- run: x\n"
	if _, err := Load("steps.yml", []byte(src), testOptions(t)); err == nil {
		t.Error("a list alone is accepted as a file")
	}
	opt := testOptions(t)
	opt.BareList = true
	if plan := mustLoad(t, src, opt); len(plan.Steps) != 1 {
		t.Errorf("got %+v", plan)
	}
}

// refusals are single problems: the place, the words that must be in the line.
var refusals = []struct {
	sentence string
	src      string
	place    string // line:column
	has      string
}{
	{"an empty file", "", "1:1", "holds nothing"},
	{"a file of comments", "# nothing\n", "1:1", "holds nothing"},
	{"a file that is a text", "hello", "1:1", "the file is a text"},
	{"a file that is a list", "- run: x", "1:1", "the file is a list"},
	{"a file without steps", "version: 1\n", "1:1", "no steps"},
	{"no steps in the list", "version: 1\nsteps: []", "2:8", "steps is empty"},
	{"steps that are a map", "steps: {run: x}", "1:8", "steps is a map"},
	{"a step that is a text", "steps:\n- make", "2:3", "step 1 is a text"},
	{"another version", "version: 2\nsteps: [{run: x}]", "1:10", "version"},
	{"a version in quotes", "version: '1'\nsteps: [{run: x}]", "1:10", "version"},
	{"an unknown key of the file", "step:\n- run: x\nsteps: [{run: x}]", "1:1", "did you mean steps?"},
	{"an unknown key, with the nearest one", "steps:\n- run: x\n  memoryMB: 9", "3:3", "did you mean memoryMb?"},
	{"a key of another tool, with ours", "steps:\n- run: x\n  shell: bash", "3:3", "did you mean language?"},
	{"a key of a workflow's step", "steps:\n- uses: actions/checkout@v4", "2:3", "an action is used in the workflow"},
	{"an option of calls alone", "steps:\n- code: x\n  prewarm: 2", "3:3", "a Go program's calls can have them"},
	{"inputs of an action", "steps:\n- run: x\n  with: {a: b}", "3:3", "a script is given env"},
	{"a condition", "steps:\n- run: x\n  if: always()", "3:3", "a step always runs"},
	{"a whole workflow", "name: CI\non: push\njobs: {a: {runs-on: x}}", "3:1", "this is a workflow, not a steps file"},
	{"an unknown key in defaults", "defaults: {nope: 1}\nsteps: [{run: x}]", "1:12", "unknown key"},
	{"a glob that is absolute", "steps:\n- run: x\n  allowChanges: [ok, /etc/x]", "3:22", "absolute"},
	{"a glob that climbs", "steps:\n- run: x\n  allowChanges: [a/../b]", "3:18", "component .."},
	{"a glob that is empty", "steps:\n- run: x\n  allowChanges: ['']", "3:18", "empty"},
	{"a glob with bad syntax", "steps:\n- run: x\n  allowChanges:\n  - 'a[b'", "4:5", "syntax"},
	{"a glob with bad syntax in defaults", "defaults: {allowChanges: ['a{']}\nsteps: [{run: x}]", "1:27", "syntax"},
	{"a glob behind one that is there twice", "steps:\n- run: x\n  allowChanges: [a, b, a]", "3:24", "twice"},
	{"a glob in one text", "steps:\n- run: x\n  allowChanges: out/**", "3:17", "list of one is written in brackets"},
	{"braces without quotes are a map", "steps:\n- run: x\n  allowChanges: [{a}]", "3:18", "an item of allowChanges is a map"},
	{"globs that come to too many", "steps:\n- run: x\n  allowChanges: ['{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}', c]", "3:72", "too many"},
	{"half a megabyte of disk", "steps:\n- run: x\n  diskMb: 1.5", "3:11", "whole number"},
	{"no disk", "steps:\n- run: x\n  diskMb: 0", "3:11", "out of range"},
	{"more than a tebibyte of disk", "steps:\n- run: x\n  diskMb: 1048577", "3:11", "out of range"},
	{"a word that onFailure has not", "steps:\n- run: x\n  onFailure: kepe", "3:14", "did you mean keep?"},
	{"an id in defaults", "defaults: {id: a}\nsteps: [{run: x}]", "1:12", "id cannot stand in defaults"},
	{"needs in defaults", "defaults: {needs: a}\nsteps: [{run: x}]", "1:12", "needs cannot stand in defaults"},
	{"code in defaults", "defaults: {code: a}\nsteps: [{run: x}]", "1:12", "code cannot stand in defaults"},
	{"defaults that are a list", "defaults: [a]\nsteps: [{run: x}]", "1:11", "defaults is a list"},
	{"a step without anything to run", "steps:\n- id: a", "2:3", "says nothing to run"},
	{"a step with run and command", "steps:\n- run: x\n  command: [x]", "3:12", "both run and command"},
	{"an empty script", "steps:\n- run: ' '", "2:8", "run is empty"},
	{"a script that is a number", "steps:\n- run: 42", "2:8", "run is a number"},
	{"a key without value", "steps:\n- run:\n  id: a", "2:7", "run has no value"},
	{"language with command", "steps:\n- command: [x]\n  language: sh", "3:13", "language is for run"},
	{"an unknown language", "steps:\n- run: x\n  language: pyton", "3:13", "did you mean python?"},
	{"a command in one text", "steps:\n- command: ls -l", "2:12", "under run"},
	{"an empty command", "steps:\n- command: []", "2:12", "command is empty"},
	{"a command without program", "steps:\n- command: ['', x]", "2:13", "names no program"},
	{"nothing as an argument", "steps:\n- command: [x, null]", "2:16", "item 2 of command"},
	{"a NUL in an argument", "steps:\n- command: [x, \"a\\0b\"]", "2:16", "NUL"},
	{"an argument longer than the kernel takes", "steps:\n- command: [x, " + strings.Repeat("y", 128<<10) + "]", "2:16", "131072 bytes"},
	{"an id with a slash", "steps:\n- run: x\n  id: ../a", "3:7", "not an id"},
	{"an id that begins with a dot", "steps:\n- run: x\n  id: .a", "3:7", "not an id"},
	{"an id of 65 characters", "steps:\n- run: x\n  id: " + strings.Repeat("a", 65), "3:7", "not an id"},
	{"an id that is a number", "steps:\n- run: x\n  id: 7", "3:7", "id is a number"},
	{"an id that is taken", "steps:\n- {id: a, run: x}\n- {id: a, run: x}", "3:8", "line 2"},
	{"an id that is another's default", "steps:\n- {id: step-2, run: x}\n- {run: x}", "2:8", "line 3"},
	{"a name without end", "steps:\n- run: x\n  name: " + strings.Repeat("n", 257), "3:9", "257 characters"},
	{"needs of a step that is not there", "steps:\n- {id: lint, run: x}\n- {run: x, needs: lnt}", "3:19", "did you mean lint?"},
	{"needs of itself", "steps:\n- {id: a, run: x, needs: a}", "2:26", "a -> a"},
	{"needs in a ring", "steps:\n- {id: a, run: x, needs: c}\n- {id: b, run: x, needs: a}\n- {id: c, run: x, needs: [b]}", "3:26", "the ring: a -> c -> b -> a"},
	{"needs twice", "steps:\n- {id: a, run: x}\n- {run: x, needs: [a, a]}", "3:23", "twice"},
	{"a variable that is no name", "steps:\n- run: x\n  env: {A-B: c}", "3:9", "not a name of a variable"},
	{"a variable without value", "steps:\n- run: x\n  env: {A: }", "3:", "variable A has no value"},
	{"a NUL in a variable", "steps:\n- run: x\n  env: {A: \"\\0\"}", "3:12", "NUL"},
	{"variables as a list", "steps:\n- run: x\n  env: [A=b]", "3:8", "env is a list"},
	{"passEnv as a text", "steps:\n- run: x\n  passEnv: TOKEN", "3:12", "in brackets"},
	{"passEnv with a value", "steps:\n- run: x\n  passEnv: [A=b]", "3:13", "not a name"},
	{"a relative workdir", "steps:\n- run: x\n  workdir: src", "3:12", "below /workspace"},
	{"the workdir of an image that names none", "steps:\n- run: x\n  workdir: image", "3:12", "names none"},
	{"a workdir with ..", "steps:\n- run: x\n  workdir: /workspace/../etc", "3:12", "has .. in it"},
	{"egress with the host's network", "steps:\n- run: x\n  network: true\n  egressAllow: [a.b]", "4:16", "exclude each other"},
	{"a rule that cannot be read", "steps:\n- run: x\n  egressAllow: ['a b.c']", "3:17", `not an egress rule: has a space or a control character in it ("a b.c")`},
	{"an over-broad rule without force", "steps:\n- run: x\n  egressAllow: ['*.com']", "3:17", "not an egress rule"},
	{"a rule map without to", "steps:\n- run: x\n  egressAllow: [{force: true}]", "3:17", "without to"},
	{"a rule map with an unknown key", "steps:\n- run: x\n  egressAllow: [{to: example.org, privat: true}]", "3:35", "did you mean private?"},
	{"a marker that is a word", "steps:\n- run: x\n  egressAllow: [{to: example.org, private: yes}]", "3:44", "private"},
	{"an unknown preset", "steps:\n- run: x\n  egressAllow: ['preset:nosuch']", "3:17", "no such preset"},
	{"two tcp rules in one place", "steps:\n- run: x\n  egressAllow: ['tcp://localhost:5', {to: 'tcp://127.0.0.1:5', private: true}]", "3:16", "do not go together"},
	{"a refusing rule that cannot be read", "steps:\n- run: x\n  egressDeny: ['a b']", "3:16", "not a rule"},
	{"a mode that does not exist", "steps:\n- run: x\n  egressMode: log", "3:15", "none of the words"},
	{"audit with the host's network", "steps:\n- run: x\n  network: true\n  egressMode: audit", "4:15", "exclude each other"},
	{"rules as a text", "steps:\n- run: x\n  egressAllow: a.b", "3:16", "egressAllow is a text"},
	{"N157 an image that climbs", "steps:\n- run: x\n  image: ../alpine", "3:10", "not an image: its registry"},
	{"N157 an image that looks like a flag", "steps:\n- run: x\n  image: --privileged", "3:10", "not an image"},
	{"N157 an image of two lines", "steps:\n- run: x\n  image: \"alpine\\n::error::x\"", "3:10", "not an image"},
	{"N157 an image with a letter of another script", "steps:\n- run: x\n  image: аlpine", "3:10", "not an image"},
	{"an image with capitals", "steps:\n- run: x\n  image: Alpine", "3:10", "not an image"},
	{"an image with half a digest", "steps:\n- run: x\n  image: alpine@sha256:12", "3:10", "its digest is not"},
	{"an archive without a file", "steps:\n- run: x\n  image: 'archive:'", "3:10", "names no file"},
	{"an archive of credentials", "steps:\n- run: x\n  image: archive:/home/me/.ssh/id", "3:10", "holds credentials"},
	{"an archive that is a device", "steps:\n- run: x\n  image: archive:/dev/sda", "3:10", "folder of the system"},
	{"an image without folder", "steps:\n- run: x\n  image: 'rootfs:'", "3:10", "names no folder"},
	{"the whole host as root", "steps:\n- run: x\n  image: rootfs:/", "3:10", "folder of the system"},
	{"a root above the home folder", "steps:\n- run: x\n  image: rootfs:/home", "3:10", "holds /home/me"},
	{"expecting a fault that is tolerated", "steps:\n- run: x\n  tolerate: [oom]\n  expect: {fault: oom}", "4:11", "tolerates oom"},
	{"expecting it in the lines above", "steps:\n- run: x\n  expect: {fault: oom}\n  tolerate: [timeout, oom]", "3:11", "tolerates oom"},
	{"expecting what all steps tolerate", "defaults:\n  tolerate: [oom]\nsteps:\n- run: x\n  expect: {fault: oom}", "5:11", "tolerates oom"},
	{"tolerating what all steps expect", "defaults: {expect: {fault: oom}}\nsteps:\n- run: x\n  tolerate: [oom]", "1:20", "tolerates oom"},
	{"expecting nothing", "steps:\n- run: x\n  expect: {}", "3:11", "has 0 keys"},
	{"expecting two things", "steps:\n- run: x\n  expect: {exitCode: 1, fault: oom}", "3:11", "has 2 keys"},
	{"expecting an exit code out of range", "steps:\n- run: x\n  expect: {exitCode: 256}", "3:22", "0 to 255"},
	{"expecting an unknown fault", "steps:\n- run: x\n  expect: {fault: ooom}", "3:19", "did you mean oom?"},
	{"tolerating an unknown fault", "steps:\n- run: x\n  tolerate: [time]", "3:14", "none of the words"},
	{"capDrop as one word", "steps:\n- run: x\n  capDrop: ALL", "3:12", "capDrop is a text"},
	{"a capability that does not exist", "steps:\n- run: x\n  capDrop: [NET_ROW]", "3:13", "did you mean NET_RAW?"},
	{"a security profile that does not exist", "steps:\n- run: x\n  securityProfile: none", "3:20", "untrusted"},
	{"mounts as a list", "steps:\n- run: x\n  mounts: [/a:/b]", "3:11", "mounts is a list"},
	{"a mount mode that does not exist", "steps:\n- run: x\n  mounts: {/a: [/b, wr]}", "3:21", "ro, rw"},
	{"a mount with one item", "steps:\n- run: x\n  mounts: {/a: [/b]}", "3:16", "1 items"},
	{"a mount target as Docker writes it", "steps:\n- run: x\n  mounts: {/a: \"/tools:ro\"}", "3:16", "ends with :ro"},
	{"a writable mount target as Docker writes it", "steps:\n- run: x\n  mounts: {/a: \"/tools:rw\"}", "3:16", "hint: the mode is an item of its own: [path, ro] or [path, rw]"},
	{"a mount target as Docker writes it, in a list", "steps:\n- run: x\n  mounts: {/a: [\"/tools:ro/\", rw]}", "3:17", "ends with :ro"},
	{"a mount source as Docker writes it", "steps:\n- run: x\n  mounts: {\"/a:ro\": /tools}", "3:12", "this mount source ends with :ro"},
	{"two mounts at one place", "steps:\n- run: x\n  mounts: {/a: /x, /b: /x/}", "3:24", "same target"},
	{"setupCache as a map", "steps:\n- run: x\n  setup: y\n  setupCache: {file: a}", "4:15", "setupCache is a map"},
	{"an item of setupCache that is a map", "steps:\n- run: x\n  setup: y\n  setupCache: [{file: a}]", "4:16", "an item of setupCache is a map"},
	{"setupCache with a folder as root", "steps:\n- run: x\n  setup: y\n  image: rootfs:/srv/alpine\n  setupCache: []", "5:15", "setupCache and an image of rootfs: exclude each other"},
	{"setupCache of defaults with a folder as root", "defaults: {setupCache: [a], setup: y}\nsteps:\n- run: x\n  image: rootfs:/srv/alpine", "1:24", "exclude each other"},
	{"setupCache in another case", "steps:\n- run: x\n  setup: y\n  setupcache: [a]", "4:3", "did you mean setupCache?"},
	{"a tmpfs without unit", "steps:\n- run: x\n  tmpfs: {/a: '64'}", "3:15", "not the size"},
	{"a tmpfs size that is a number", "steps:\n- run: x\n  tmpfs: {/a: 64}", "3:15", "is a number"},
	{"a tmpfs size without a unit, and what was meant", "steps:\n- run: x\n  tmpfs: {/a: 64}", "3:15", "a unit: k, m, g or t)\n  hint: did you mean 64m?"},
	{"a tmpfs size without a unit in quotes", "steps:\n- run: x\n  tmpfs: {/a: '64'}", "3:15", "a unit: k, m, g or t)\n  hint: did you mean 64m?"},
	{"a tmpfs of size zero", "steps:\n- run: x\n  tmpfs: {/a: 0m}", "3:15", "not the size"},
	{"a tmpfs larger than memory", "steps:\n- run: x\n  tmpfs: {/a: 1g}", "3:15", "memoryMb, which is 512"},
	{"a tmpfs beyond all numbers", "steps:\n- run: x\n  tmpfs: {/a: 99999999999999999999t}", "3:15", "out of range"},
	{"a tmpfs that hides a mount", "steps:\n- run: x\n  tmpfs: {/a: 1m}\n  mounts: {/m: /a/b}", "3:15", "would hide"},
	{"a tmpfs over the workspace", "steps:\n- run: x\n  tmpfs: {/workspace: 1m}", "3:11", "hide the workspace"},
	{"a tmpfs in what is ours", "steps:\n- run: x\n  tmpfs: [/step]", "3:11", "the box itself needs"},
	{"two tmpfs at one place", "steps:\n- run: x\n  tmpfs: [/a, /a/]", "3:15", "same place"},
	{"a tmpfs in /dev", "steps:\n- run: x\n  tmpfs: [/dev/foo]", "3:11", "devices that every box has"},
	{"a tmpfs in /dev/shm", "steps:\n- run: x\n  tmpfs: {/dev/shm/x: 1m}", "3:11", "/dev/shm and /step/home, which get this size"},
	{"a mount in /dev", "steps:\n- run: x\n  mounts: {/a: /dev/foo}", "3:16", "devices that every box has"},
	{"a mount over /dev/shm", "steps:\n- run: x\n  mounts: {/a: [/dev/shm, ro]}", "3:17", "nor anything in /dev"},
	{"a mount over /etc of the host", "steps:\n- run: x\n  mounts: {/a: /etc/}", "3:16", "the host's own /etc, which image: host is made of"},
	{"a read-only mount over /bin of the host", "steps:\n- run: x\n  mounts: {/a: [/bin, ro]}", "3:17", "a path in them that the host has too"},
	{"a mount over a library folder of the host", "steps:\n- run: x\n  mounts: {/a: /lib64}", "3:16", "the host's own /lib64"},
	{"a tmpfs over /usr of the host", "steps:\n- run: x\n  tmpfs: {/usr: 1m}", "3:11", "the host's own /usr"},
	{"a tmpfs over /sbin in a list", "steps:\n- run: x\n  tmpfs: [/sbin]", "3:11", "the host's own /sbin"},
	{"a default mount over /etc of the host", "defaults:\n  mounts: {/a: /etc}\nsteps:\n- {run: x, image: 'rootfs:/srv/alpine'}\n- run: x", "2:16", "the host's own /etc"},
	{"a tmpfs as one path", "steps:\n- run: x\n  tmpfs: /a", "3:10", "tmpfs is a text"},
	{"no memory cap where limits are required", "steps:\n- run: x\n  memoryMb: null", "3:13", "requireLimits: false"},
	{"no pids cap where limits are required", "steps:\n- run: x\n  pids:\n", "3:", "requireLimits: false"},
	// Attack L143.
	{"a duplicate key of the file", "steps: [{run: x}]\nsteps: [{run: y}]", "2:1", "line 1"},
	{"a duplicate key of a step", "steps:\n- run: x\n  run: y", "3:3", "there twice"},
	{"a duplicate key in other quotes", "steps:\n- run: x\n  'run': y", "3:3", "there twice"},
	{"a duplicate variable", "steps:\n- run: x\n  env: {A: b, A: c}", "3:15", "there twice"},
	{"an anchor", "steps: &a\n- run: x", "1:8", "anchors"},
	{"an alias", "steps:\n- run: x\n  env: &e {A: b}\n- run: y\n  env: *e", "3:8", "anchors"},
	{"a merge key", "steps:\n- run: x\n  <<: {pids: 9}", "3:3", "merge keys"},
	{"a tag", "steps:\n- run: !!str x", "2:8", "tags"},
	{"a tag of its own", "steps:\n- run: !exec x", "2:8", "tags"},
	{"a tag without name", "steps:\n- run: x\n  pids: ! 12", "3:9", "tags"},
	{"a second document", "steps:\n- run: x\n---\nsteps:\n- run: y\n", "3:1", "second document"},
	{"a tab as indentation", "steps:\n- run: x\n\tid: a", "3:1", "a tab"},
	{"a tab between key and value", "steps:\n- run:\tx", "2:8", "a tab"},
	{"a bracket without end", "steps:\n- run: [x\n- run: y\n", "2:1", "not valid YAML"},
	{"a line indented too far", "steps:\n  - run: x\n   id: a\n  - run: y\n", "3:4", "compare the indentation"},
	{"a line indented too far at the end", "steps:\n  - run: x\n   id: a\n", "3:4", "compare the indentation"},
	{"a line indented too little", "steps:\n- run: x\n id: b\n- run: y\n- run: z\n", "3:2", "compare the indentation"},
	{"a colon in a text without quotes", "steps:\n- run: x\n- run: a: b\n", "3:1", "in quotes"},
	{"a text that begins with @", "steps:\n- run: @x\n", "2:1", "in quotes"},
	{"an expression that ends a map too early", "steps:\n- run: x\n  env: {T: ${{ secrets.TOKEN }}}\n", "3:3", "\n  hint: expressions are not expanded in a steps file; pass the value by passEnv"},
	{"an expression before a colon", "steps:\n- run: x\n- run: ${{ matrix.x }}: y\n", "3:1", "\n  hint: expressions are not expanded in a steps file; pass the value by passEnv"},
	{"an expression for a number", "steps:\n- run: x\n  timeoutS: ${{ matrix.t }}", "3:13", "\n  hint: expressions are not expanded in a steps file"},
	{"needs of a step's name", "steps:\n- {name: install, run: x}\n- {run: y, needs: install}\n", "3:19", "\n  hint: that is the name of the step on line 2, whose id is step-1; needs takes ids, so write id: in that step"},
	{"needs of the name of a step with an id", "steps:\n- {id: a, name: install, run: x}\n- {run: y, needs: [install]}\n", "3:20", "\n  hint: that is the name of the step on line 2, whose id is a; needs takes ids"},
	{"a key without colon", "version: 1\nsteps\n- run: x\n", "2:1", "not valid YAML"},
	{"a quote without end", "steps:\n- run: x\n- run: \"abc\n- run: y\n", "3:1", "end of stream"},
	{"a key that is a list", "steps:\n- run: x\n  ? [a]\n  : b", "3:5", "a key must be a text"},
	{"bytes that are not UTF-8", "steps:\n- run: \xff", "2:8", "not UTF-8"},
	{"a NUL in the file", "steps:\n- run: a\x00b", "2:9", "control character"},
	{"an escape in the file", "steps:\n- run: a\x1b[2Jb", "2:9", "control character"},
	{"text that reads backwards", "steps:\n- run: a\u202eb", "2:9", "reading direction"},
	{"a line break that cannot be seen", "steps:\n- run: a\u2028b", "2:9", "line break"},
	{"a lone carriage return", "steps:\n- run: a\rb", "2:9", "carriage return"},
	{"nesting without end", "steps:\n- run: x\n  env: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), "3:8", "env is a list"},
	{"a file above the largest", "steps:\n- run: x\n#" + strings.Repeat("x", MaxFile), "1:1", "larger than"},
}

func TestRefuses(t *testing.T) {
	for _, tc := range refusals {
		t.Run(tc.sentence, func(t *testing.T) {
			plan, err := Load("steps.yml", []byte(tc.src), testOptions(t))
			if err == nil {
				t.Fatalf("accepted: %+v", plan)
			}
			var list Errors
			if !errors.As(err, &list) {
				t.Fatalf("a %T, not Errors: %v", err, err)
			}
			got := err.Error()
			if !strings.HasPrefix(got, "steps.yml:"+tc.place) || !strings.Contains(list[0].Error(), tc.has) {
				t.Errorf("got  %s\nwant steps.yml:%s ... %s", got, tc.place, tc.has)
			}
			if strings.Contains(got, "\x1b") || strings.Contains(got, "\x00") {
				t.Errorf("the error repeats a control character: %q", got)
			}
		})
	}
}

// There may be none left.
func TestRefusesAbsurdNumbers(t *testing.T) {
	absurd := []string{"0", "-1", "1e30", "1e3", ".nan", ".inf", "-.inf", "99999999999999999999", "9223372036854775808", "0x200", "0o777", "010", "1_000",
		"'512'", "many", "true", "[512]", "{a: 512}", "1:30", "+5", "512.5.1", "٥١٢"}
	for _, key := range []string{"memoryMb", "pids", "cpus", "timeoutS", "maxOutputBytes"} {
		tries := absurd
		if key != "cpus" && key != "timeoutS" {
			tries = append([]string{"512.0", "512.5"}, absurd...)
		}
		for _, n := range tries {
			src := fmt.Sprintf("steps:\n- run: x\n  %s: %s\n", key, n)
			_, err := Load("steps.yml", []byte(src), testOptions(t))
			want := fmt.Sprintf("steps.yml:3:%d: %s", 5+len(key), key)
			if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "allowed: a ") {
				t.Errorf("%s: %s: got %v", key, n, err)
			}
		}
	}
}

func TestRefusesWordsForTrueAndFalse(t *testing.T) {
	for _, key := range []string{"network", "requireLimits", "trackFiles", "continueOnError"} {
		for _, word := range []string{"yes", "no", "on", "off", "y", "n", "'true'", `"false"`, "1", "0", "null", "[]"} {
			src := fmt.Sprintf("steps:\n- run: x\n  %s: %s\n", key, word)
			_, err := Load("steps.yml", []byte(src), testOptions(t))
			if err == nil || !strings.Contains(err.Error(), "allowed: true or false") && word != "null" {
				t.Errorf("%s: %s: got %v", key, word, err)
			}
		}
	}
}

// What is said of one mistake helps; what is said of its consequences, or again,
// hides the rest.
func TestSaysEachThingOnce(t *testing.T) {
	for _, tc := range []struct{ sentence, src, want string }{
		{"a key that was meant is not followed by all there are", "steps:\n- run: x\n  pidz: 9",
			"steps.yml:3:3: unknown key \"pidz\" in a step\n  hint: did you mean pids?"},
		{"a step whose run is misspelt has something to run", "steps:\n- runn: x",
			"steps.yml:2:3: unknown key \"runn\" in a step\n  hint: did you mean run?"},
		{"and so has one with an action", "steps:\n- uses: x",
			"steps.yml:2:3: unknown key \"uses\" in a step\n  hint: a step runs a script or a command; an action is used in the workflow, before or after this program's"},
		{"a workflow is not told key by key", "name: CI\non: push\npermissions: {}\njobs: {}",
			"steps.yml:4:1: this is a workflow, not a steps file (allowed: a map with version, defaults and steps)\n" +
				"  hint: a job of the workflow runs this program's action, whose input file names the steps file"},
		{"retries of one cell of a kernel are not told to stand in defaults, where they are refused too", "steps:\n- {code: x, kernel: k}\n- {code: x, kernel: k, retries: 1}",
			"steps.yml:3:33: a cell of a kernel cannot be tried again: the interpreter is no longer what it was (\"1\"; allowed: no retries, or no kernel)"},
		{"a key that is nowhere is not among those of a step", "defaults: {id: a}\nsteps: [{run: x}]",
			"steps.yml:1:12: id cannot stand in defaults (allowed: any key of a step but id, name, run, command, code, needs)"},
	} {
		if _, err := Load("steps.yml", []byte(tc.src), testOptions(t)); err == nil || err.Error() != tc.want {
			t.Errorf("%s:\ngot  %v\nwant %s", tc.sentence, err, tc.want)
		}
	}
	_, err := Load("steps.yml", []byte("steps:\n- {run: x, zzzz: 1}\n- {run: x, yyyy: 1}\n- {run: x, qqqq: 1}"), testOptions(t))
	if n := strings.Count(err.Error(), "allowed: id, name, run,"); n != 1 {
		t.Errorf("all keys are listed %d times, want once:\n%v", n, err)
	}
	_, err = Load("steps.yml", []byte("steps:\n- {id: a, run: x}\n- {id: a, run: x}\n- {id: b, run: x, needs: zzz}"), testOptions(t))
	if !strings.Contains(err.Error(), "ids of other steps: a, b)") {
		t.Errorf("an id that two steps have is listed twice, or not:\n%v", err)
	}
}

func TestReportsAllProblemsInTheOrderOfTheFile(t *testing.T) {
	const src = `version: 3
nope: 1
defaults:
  timeoutS: 0
  id: x
steps:
  - run: x
    pids: 1
    needs: [nobody, 5]
  - command: [x]
    memoryMb: "512"
    mounts: {/etc: /x, a: /proc}
`
	_, err := Load("steps.yml", []byte(src), testOptions(t))
	var list Errors
	if !errors.As(err, &list) {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		got = append(got, fmt.Sprintf("%d:%d", e.Line, e.Column))
	}
	want := "1:10 2:1 4:13 5:3 8:11 9:21 11:15 12:14 12:24 12:27"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s\n%v", s, want, err)
	}
}

func TestOneMistakeInDefaultsIsReportedOnce(t *testing.T) {
	_, err := Load("steps.yml", []byte("defaults: {memoryMb: null, tmpfs: {/a: 9g}}\nsteps: [{run: x}, {run: y}, {run: z}]"), testOptions(t))
	if n := len(asErrors(err)); n != 1 {
		t.Errorf("%d problems:\n%v", n, err)
	}
}

func TestBoundsTheNumberOfProblems(t *testing.T) {
	_, err := Load("steps.yml", []byte("steps:\n"+strings.Repeat("- {id: '', pids: 0}\n", 2000)), testOptions(t))
	list := asErrors(err)
	if len(list) != maxErrors+1 || !strings.Contains(list[maxErrors].What, "more problems") {
		t.Errorf("%d problems, the last is %v", len(list), list[len(list)-1])
	}
}

func TestErrorsAreInert(t *testing.T) {
	_, err := Load("a\n::error::b.yml", []byte("steps:\n- run: x\n  language: \"\\e[31m\\n::set-output name=a::##[error]\"\n"), testOptions(t))
	got := err.Error()
	for _, bad := range []string{"\x1b", "\n::", "##["} {
		if strings.Contains(got, bad) {
			t.Errorf("the error holds %q: %s", bad, got)
		}
	}
}

func TestWrongWordsAreJudgedQuickly(t *testing.T) {
	var b strings.Builder
	b.WriteString("steps:\n- {id: a, run: x, needs: [")
	for i := range 50_000 {
		fmt.Fprintf(&b, "b%d,", i)
	}
	b.WriteString("]}\n" + strings.Repeat("- run: x\n", 9000))
	begun := time.Now()
	if _, err := Load("steps.yml", []byte(b.String()), testOptions(t)); err == nil {
		t.Fatal("accepted")
	}
	// It is half a second; without a bound on suggestions, minutes.
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}

func TestBoundsMountsAndTmpfs(t *testing.T) {
	for key, n := range map[string]int{"mounts": maxMounts, "tmpfs": maxTmpfs} {
		for _, more := range []int{0, 1} {
			var b strings.Builder
			fmt.Fprintf(&b, "steps:\n- run: x\n  %s:\n", key)
			for i := range n + more {
				fmt.Fprintf(&b, "    /a%d: %s\n", i, map[string]string{"mounts": fmt.Sprintf("/b%d", i), "tmpfs": "1m"}[key])
			}
			if _, err := Load("steps.yml", []byte(b.String()), testOptions(t)); (err != nil) != (more > 0) {
				t.Errorf("%s with %d entries: %v", key, n+more, err)
			}
		}
	}
}

// The goldens are the words a user reads; -update writes them anew.
func TestGoldens(t *testing.T) {
	for _, dir := range []string{"ok", "err"} {
		files, _ := filepath.Glob("testdata/" + dir + "/*.yml")
		if len(files) == 0 {
			t.Errorf("testdata/%s is empty", dir)
		}
		for _, file := range files {
			t.Run(dir+"/"+filepath.Base(file), func(t *testing.T) {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				plan, err := Load(filepath.Base(file), src, testOptions(t))
				var got strings.Builder
				switch {
				case (err != nil) != (dir == "err"):
					t.Fatalf("error: %v", err)
				case err != nil:
					got.WriteString(err.Error() + "\n")
				default:
					if err := plan.WriteText(&got); err != nil {
						t.Fatal(err)
					}
				}
				golden := strings.TrimSuffix(file, ".yml") + ".out"
				if *update {
					if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
						t.Fatal(err)
					}
					return
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got.String()); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		}
	}
}
