package limits

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestFindSite(t *testing.T) {
	for _, c := range []struct {
		name string
		make func() *fakeHost
		want Site
		err  string
	}{
		{"cgroup2 below systemd: the top, which hands down what is needed", func() *fakeHost {
			h := newFakeHost(1000)
			h.add("/system.slice", 0, "memory pids")
			h.add("/system.slice/job.service", 0, "", fakePID)
			return h
		}, Site{Kind: Kind2, Parents: []string{fakeMount}, Own: []string{fakeMount + "/system.slice/job.service"}}, ""},
		{"what limits the process now limits it there: the tightest on the way", func() *fakeHost {
			h := newFakeHost(1000)
			h.add("/system.slice", 0, "memory pids cpu").values = map[string]string{"memory.max": "8589934592", "pids.max": "900", "cpu.max": "100000 100000"}
			h.add("/system.slice/job.service", 0, "", fakePID).values = map[string]string{"memory.max": "4294967296", "pids.max": "1000", "cpu.max": "50000 20000"}
			return h
		}, Site{Kind: Kind2, Parents: []string{fakeMount}, Own: []string{fakeMount + "/system.slice/job.service"}, Keep: []Limit{
			{"memory.max", "4294967296"}, {"pids.max", "900"}, {"cpu.max", "100000 100000"},
		}}, ""},
		{"a limit that cannot be read is none to be rid of", func() *fakeHost {
			h := newFakeHost(1000)
			h.add("/job", 0, "", fakePID).values = map[string]string{"memory.max": "much"}
			return h
		}, Site{}, "memory.max"},
		{"the top of a machine whose controllers are off", func() *fakeHost {
			h := newFakeHost(1000)
			h.groups["/"].on, h.groups["/"].procs = []string{"cpu"}, []int{1, fakePID}
			return h
		}, Site{Kind: Kind2, Parents: []string{fakeMount}, Own: []string{fakeMount}, Off: []string{"memory", "pids"}}, ""},
		{"the top of a machine where no unit asks for CPU time", func() *fakeHost {
			h := newFakeHost(1000)
			h.groups["/"].on, h.groups["/"].procs = []string{"memory", "pids"}, []int{1, fakePID}
			return h
		}, Site{Kind: Kind2, Parents: []string{fakeMount}, Own: []string{fakeMount}, CPUOff: true}, ""},
		{"a container's top cannot have both processes and groups", func() *fakeHost {
			h := newFakeHost(1000)
			h.namespace = true
			h.groups["/"].on, h.groups["/"].procs = nil, []int{1, fakePID}
			return h
		}, Site{}, "the control group of this container holds processes"},
		{"nothing can be made where it is read-only", func() *fakeHost {
			h := newFakeHost(1000)
			h.readOnly = true
			return h
		}, Site{}, "read-only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := FindSite(c.make().config(), fakePID)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestGone: what a name is about is told by more than a process id.
func TestGone(t *testing.T) {
	h := newFakeHost(1000)
	h.parents[200] = 1
	cfg := h.config()
	name, err := NameFor(cfg, 200)
	if err != nil {
		t.Fatal(err)
	}
	if Gone(cfg, name) {
		t.Errorf("%s is taken for one whose process is gone", name)
	}
	if again, err := NameFor(cfg, 200); err != nil || again != name {
		t.Errorf("another name for the same process: %s, %v", again, err)
	}
	// The same id, started at another time.
	later := strings.Replace(name, "-200-1200-", "-200-77-", 1)
	if later == name {
		t.Fatalf("%s does not hold the start time", name)
	}
	for other, want := range map[string]bool{
		later: true,
		strings.Replace(name, "-200-1200-", "-201-1201-", 1):                           true, // nobody has that id
		"untrusted-steps-0000000000000000-9-9-host-0-host.box":                         false,
		groupName(owner{world: "0000000000000000", pid: 9, start: 9}, "r1", 1, "step"): false,
		strings.Replace(later, "-host-0-host", "-r1-1-step", 1):                        false,
		"x":  false,
		"":   false,
		"..": false,
	} {
		if got := Gone(cfg, other); got != want {
			t.Errorf("%q is gone: %v, want %v", other, got, want)
		}
	}
	delete(h.parents, 200)
	if !Gone(cfg, name) {
		t.Errorf("%s is not taken for one whose process is gone", name)
	}
}

// TestClear: what a killed run has left in a group that root made for it is ended
// and removed, by the user that it was made for.
func TestClear(t *testing.T) {
	m, err := Open(Config{RunID: "clear"})
	need.Met(t, "limits", err)
	defer m.Close()
	var dirs []string
	for _, where := range m.Where() {
		d := filepath.Join(where, "limits-test-clear")
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, d)
		defer os.Remove(d)
		if m.Kind() == Kind1 {
			if err := os.Mkdir(filepath.Join(d, "below"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), roleVariable+"=hold")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, d := range dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if pids, err := Members(dirs); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("members are %v (%v), want %d", pids, err, cmd.Process.Pid)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := Clear(Config{}, dirs); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the process ended by %v", err)
		}
	case <-time.After(patience):
		t.Error("the process lives")
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "below")); err == nil {
			t.Errorf("%s is left", filepath.Join(d, "below"))
		}
		if _, err := os.Stat(d); err != nil {
			t.Errorf("the folder itself is root's to remove: %v", err)
		}
	}
	if err := Clear(Config{}, []string{t.TempDir()}); err == nil {
		t.Error("a folder that is no control group is taken for one")
	}
	if pids, err := Members([]string{"/nowhere"}); err != nil || len(pids) > 0 {
		t.Errorf("a group that is not there has %v, %v", pids, err)
	}
}
