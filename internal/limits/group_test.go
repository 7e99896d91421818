package limits

import (
	"context"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, h *fakeHost) *Manager {
	t.Helper()
	m, err := Open(h.config())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGroupOnCgroup2(t *testing.T) {
	h := newFakeHost(1001)
	withScope(h, true)
	h.groups["/user.slice/user-1001.slice/user@1001.service/app.slice"].on = []string{"memory", "pids", "cpu"}
	m := open(t, h)
	g, err := m.New("build", Caps{MemoryBytes: 64<<20 + 5, Pids: 32, CPUs: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	at := path.Join(scope, g.name)
	cg := h.groups[at]
	want := map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1",
		"pids.max": "96", "cpu.max": "50000 100000",
	}
	if d := cmp.Diff(want, cg.values); d != "" {
		t.Errorf("caps (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"memory", "pids", "cpu"}, g.Enforced()); d != "" {
		t.Errorf("enforced (-want +got):\n%s", d)
	}

	if err := g.ExcludeInit(); err == nil {
		t.Error("a first process that is not in the group is not noticed")
	}
	h.parents[200] = fakePID
	cg.procs = []int{200}
	cg.values["pids.current"], cg.values["pids.peak"], cg.values["cpu.stat"] = "7", "20", "usage_usec 900"
	if err := g.ExcludeInit(); err != nil {
		t.Fatal(err)
	}
	if cg.values["pids.max"] != "39" {
		t.Errorf("pids.max is %s, want the step's 32 and the first process's 7", cg.values["pids.max"])
	}
	// What a kernel of the box's own is spared comes on top of both, before and after.
	if err := g.Spare(1000); err != nil || cg.values["pids.max"] != "1096" {
		t.Errorf("pids.max is %s, want the usual 96 and the spared 1000 (%v)", cg.values["pids.max"], err)
	}
	if err := g.ExcludeInit(); err != nil || cg.values["pids.max"] != "1039" {
		t.Errorf("pids.max is %s, want the step's 32, the first process's 7 and the spared 1000 (%v)", cg.values["pids.max"], err)
	}

	cg.values["pids.current"] = "10"
	cg.values["memory.events"] = "oom 1\noom_kill 3\noom_group_kill 1"
	cg.values["pids.events"] = "max 4"
	cg.values["memory.peak"] = "12345"
	cg.values["cpu.stat"] = "usage_usec 2400\nuser_usec 1000"
	wantStats := Stats{OOMKills: 3, PidsRefused: 4, PeakMemory: 12345, CPU: 1500 * time.Microsecond, PeakPids: 3, CurrentPids: 10}
	checkStats(t, g, wantStats)
	// The kernel's peak has grown since the first process stood ready.
	cg.values["pids.peak"], wantStats.PeakPids = "25", 18
	checkStats(t, g, wantStats)
	// A group kill without a counted process is still one.
	cg.values["memory.events"], wantStats.OOMKills = "oom 1\noom_kill 0\noom_group_kill 1", 1
	checkStats(t, g, wantStats)
	cg.values["memory.events"] = "oom 1"
	if _, err := g.Stats(); err == nil {
		t.Error("a counter that is gone is taken for 0")
	}

	for pid, want := range map[int]bool{200: true, fakePID: false} {
		if in, err := g.Contains(pid); in != want || err != nil {
			t.Errorf("contains %d: %v, %v", pid, in, err)
		}
	}
	if err := g.Close(); err == nil {
		t.Error("a group with a process in it was removed")
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if h.groups[at] != nil {
		t.Error("the group is still there")
	}
	if err := g.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
}

func checkStats(t *testing.T, g *Group, want Stats) {
	t.Helper()
	got, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stats (-want +got):\n%s", d)
	}
}

func TestCPUShareNeverGates(t *testing.T) {
	h := newFakeHost(0)
	m := open(t, h)
	h.refuse["cpu.max"] = syscall.EINVAL
	g, err := m.New("x", Caps{MemoryBytes: 1 << 20, Pids: 1, CPUs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"memory", "pids"}, g.Enforced()); d != "" {
		t.Errorf("enforced (-want +got):\n%s", d)
	}
}

func TestKernelsWithoutPeaksAreSampled(t *testing.T) {
	h := newFakeHost(0)
	m := open(t, h)
	m.noPeak = true // as found where the files are missing
	g, err := m.New("x", Caps{})
	if err != nil {
		t.Fatal(err)
	}
	cg := h.groups["/"+g.name]
	cg.procs = []int{200}
	for _, now := range []string{"3", "9", "5"} {
		cg.values["pids.current"] = now
		if now == "3" {
			if err := g.ExcludeInit(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.Stats(); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := g.Stats(); s.PeakPids != 6 || err != nil {
		t.Errorf("peak is %d, %v; want the 9 seen without the first 3", s.PeakPids, err)
	}
}

func TestNamesThatCannotNameAGroup(t *testing.T) {
	m := open(t, newFakeHost(0))
	for _, id := range []string{"", "..", "a/b", ".x", "a\nb", strings.Repeat("a", 65)} {
		if _, err := m.New(id, Caps{}); err == nil {
			t.Errorf("%q names a group", id)
		}
	}
}

func TestSweep(t *testing.T) {
	h := newFakeHost(0)
	withService(h)
	m := open(t, h)
	add := func(parent string, o owner, procs ...int) string {
		name := groupName(o, "r0", 1, "old")
		h.add(path.Join(parent, name), 0, "", procs...)
		return name
	}
	for _, pid := range []int{300, 301, 302} {
		h.parents[pid] = 1
	}
	o := func(pid int) owner { return owner{world: m.owner.world, pid: pid, start: 1000 + uint64(pid)} }
	dead := add("/", o(900), 300) // nobody has this pid; its box lives on
	deep := add(service, o(901))  // made in another place than we make ours
	reused := o(1)                // attack O163: pid 1 is alive, but it is another process
	reused.start = 5
	old := add("/", reused)
	alive := add("/", o(301), 302)
	elsewhere := o(902)
	elsewhere.world = world("boot", "pid:[2]", "time:[1]")
	foreign := add("/", elsewhere)
	mine, err := m.New("mine", Caps{})
	if err != nil {
		t.Fatal(err)
	}
	h.add("/untrusted-steps-notes", 0, "")

	removed, err := m.Sweep()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{old, dead, deep}
	if d := cmp.Diff(sorted(want), removed); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
	for _, keep := range []string{alive, foreign, mine.name, "untrusted-steps-notes"} {
		if h.groups["/"+keep] == nil {
			t.Errorf("%s is gone", keep)
		}
	}
	if d := cmp.Diff([]int{302}, h.groups["/"+alive].procs); d != "" {
		t.Errorf("a live run's processes (-want +got):\n%s", d)
	}
}

// outOfTime is a host on which the time for a sweep is up at one of its acts.
type outOfTime struct {
	*fakeHost
	at func(act, path string) bool
	up context.CancelFunc
}

func (h *outOfTime) tell(act, path string) {
	if h.at(act, path) {
		h.up()
	}
}

func (h *outOfTime) list(dir string) ([]string, error) {
	h.tell("list", dir)
	return h.fakeHost.list(dir)
}

func (h *outOfTime) write(file, text string) error {
	h.tell("write", file)
	return h.fakeHost.write(file, text)
}

// Attack: a user of the machine has groups that look like those of dead runs, with
// processes that do not end.
func TestSweepTakesNoLongerThanItsTime(t *testing.T) {
	for name, c := range map[string]struct {
		at   func(act, path string) bool
		want []string
		not  string
	}{
		"up at the first kill": {
			func(act, file string) bool { return act == "write" && path.Base(file) == "cgroup.kill" },
			[]string{"still there", "the time for it is up, and 49 more are left to the next run"}, "looked through",
		},
		"up while they are looked for": {
			func(act, dir string) bool { return act == "list" && path.Base(dir) == "b" },
			[]string{"the time for it is up, and 50 more are left to the next run", "not all of it was looked through"}, "still there",
		},
		"up before any is found": {
			func(act, dir string) bool { return act == "list" && path.Base(dir) == "cgroup" },
			[]string{"the time for it is up", "not all of it was looked through"}, "more are left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHost(0)
			m := open(t, h)
			h.refuse["cgroup.kill"] = syscall.ENOENT
			h.add("/a", 0, "")
			h.add("/b", 0, "")
			h.add("/b/below", 0, "")
			for i := range 50 {
				h.add("/a/"+groupName(owner{world: m.owner.world, pid: 900 + i, start: 7}, "r0", 1, "stuck"), 0, "", 0)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m.k = &outOfTime{fakeHost: h, at: c.at, up: cancel}
			removed, err := m.sweep(ctx)
			if len(removed) > 0 || err == nil {
				t.Fatalf("removed %v, %v", removed, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not said: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), c.not) {
				t.Errorf("%q is said: %v", c.not, err)
			}
		})
	}
}

// crowd is a host with more groups than are looked at.
type crowd struct{ *fakeHost }

func (crowd) list(dir string) (names []string, err error) {
	if dir == fakeMount {
		for i := range maxSwept + 1 {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names, nil
}

// Attack: a user of the machine has so many groups that ours are never come to.
func TestSweepSaysThatThereAreTooManyGroups(t *testing.T) {
	h := newFakeHost(0)
	m := open(t, h)
	m.k = crowd{h}
	removed, err := m.Sweep()
	if want := "there are more than 8192 groups: not all of it was looked through"; len(removed) > 0 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("removed %v, %v", removed, err)
	}
}

func TestKillWithoutTheKernelsOwn(t *testing.T) {
	h := newFakeHost(0)
	m := open(t, h)
	h.refuse["cgroup.kill"] = syscall.ENOENT
	g, err := m.New("x", Caps{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{200, 201} {
		h.parents[pid] = fakePID
	}
	h.groups["/"+g.name].procs = []int{200}
	h.add("/"+g.name+"/inner", 0, "", 201)
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.parents[200] != 0 || h.parents[201] != 0 || h.parents[fakePID] != 1 {
		t.Errorf("processes afterwards: %v", h.parents)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestKillGivesUpWithItsContext(t *testing.T) {
	h := newFakeHost(0)
	m := open(t, h)
	h.refuse["cgroup.kill"] = syscall.ENOENT
	g, err := m.New("x", Caps{})
	if err != nil {
		t.Fatal(err)
	}
	h.groups["/"+g.name].procs = []int{0} // a process we cannot see
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Kill(ctx); err == nil {
		t.Error("a process that is still there is not noticed")
	}
	h.groups["/"+g.name].procs = nil
}
