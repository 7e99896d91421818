package boxtest

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// optionFacts are about what a step may ask of its box besides.
func (s *suite) optionFacts(t *testing.T) {
	t.Run("a protected folder of the workspace is only read, whatever is tried", func(t *testing.T) {
		t.Parallel()
		const try = `cat .deps/f
			for do in "echo x >.deps/g" "rm .deps/f" "rm -rf .deps" "mv .deps there" "mkdir .deps/d" "chmod 777 .deps/f" "ln -s /etc .deps/l"; do
				sh -c "$do" 2>/dev/null && echo "done: $do"
			done; cat .deps/f; echo free >beside`
		j := s.shell(t, try)
		j.Workspace = filled(t, map[string]string{".deps/f": "made\n"})
		j.Protect = []string{"/workspace/.deps"}
		r := s.run(t, j)
		r.passed(t)
		if r.stdout != "made\nmade\n" {
			t.Errorf("stdout %q, stderr %q", r.stdout, r.stderr)
		}
		unchanged(t, j.Workspace, map[string]string{".deps/f": "made\n", "beside": "free\n"})
		// Control: without it all of that can be done.
		j = s.shell(t, "rm .deps/f && echo x >.deps/g && mv .deps there")
		j.Workspace = filled(t, map[string]string{".deps/f": "made\n"})
		s.run(t, j).passed(t)
	})

	t.Run("the same over an overlay, whose layers stay as they are", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay")
		lower := filled(t, map[string]string{".deps/f": "made\n", "a": "1"})
		j, upper := s.layered(t, "cat .deps/f; echo x >.deps/g; rm .deps/f; echo 2 >a; exit 0", lower)
		j.Protect = []string{"/workspace/.deps"}
		r := s.run(t, j)
		r.exited(t, 0)
		if r.stdout != "made\n" {
			t.Errorf("%s", r.describe())
		}
		unchanged(t, upper, map[string]string{"a": "2\n"})
		unchanged(t, lower, map[string]string{".deps/f": "made\n", "a": "1"})
	})

	t.Run("G79 a link in the place of a protected folder leads nowhere", func(t *testing.T) {
		t.Parallel()
		j := s.shell(t, "cat .deps/shadow && exit 7; exit 0")
		if err := os.Symlink("/etc", filepath.Join(j.Workspace, ".deps")); err != nil {
			t.Fatal(err)
		}
		j.Protect = []string{"/workspace/.deps"}
		if v := s.attempt(t, j); v.ExitCode != nil && v.NoVerdict == "" && strings.Contains(v.stdout, "root:") {
			t.Errorf("the box sees what the link leads to: %s", v.describe())
		}
	})

	t.Run("nproc shows as many CPUs as cpus allows time of, and time is what is bounded", func(t *testing.T) {
		t.Parallel()
		Need(t, "limits", "cpu")
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		for _, cpus := range []float64{0.2, 1, 1.5, 1000} {
			j := s.probing(t, probe.Do("cpus"))
			j.CPUs = cpus
			want := int64(min(set.Count(), int(cpus+0.999)))
			if a := s.run(t, j).answers(t, 1)[0]; a.N != want {
				t.Errorf("with cpus %v a box has %s, want %d", cpus, tell(a), want)
			}
		}
		if a := s.ask(t, probe.Do("cpus"))[0]; a.N != int64(set.Count()) {
			t.Errorf("without cpus a box has %s, want %d", tell(a), set.Count())
		}
	})

	// By itself: other boxes beside them would have a say in which CPU is free.
	t.Run("a box that starts while another one runs is put on another CPU", func(t *testing.T) {
		Need(t, "limits", "cpu")
		sync := OpenDir(t)
		j := s.spec(t, append([]string{"sh", "-c", `"$@"; until test -e /sync/go; do sleep 0.05; done`, "sh", insideProbe}, probe.Args(probe.Do("cpus"))...)...)
		j.CPUs = 1
		j.Mounts = append(j.Mounts, box.Mount{Source: sync, Target: "/sync", ReadOnly: true})
		runs, ended := make(chan struct{}), make(chan result, 1)
		j.started = func() { close(runs) }
		go func() { ended <- s.attempt(t, j) }()
		var beside result
		select {
		case <-runs:
			q := s.probing(t, probe.Do("cpus"))
			q.CPUs = 1
			beside = s.attempt(t, q)
		case r := <-ended:
			t.Fatalf("%s %s", r.NoVerdict, r.describe())
		}
		if err := os.WriteFile(filepath.Join(sync, "go"), nil, 0o644); err != nil {
			t.Error(err)
		}
		first := <-ended
		a, b := first.answers(t, 1)[0], beside.answers(t, 1)[0]
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		if len(a.List) == 0 || len(b.List) == 0 || set.Count() > 1 && a.List[0] == b.List[0] {
			t.Errorf("of %d CPUs the first has %s, the other %s", set.Count(), tell(a), tell(b))
		}
		j.started = nil // the first one's is free again
		if last := s.run(t, j).answers(t, 1)[0]; len(last.List) != 1 || last.List[0] != a.List[0] {
			t.Errorf("a box after both has %s, and the first one had %s", tell(last), tell(a))
		}
	})

	t.Run("apparmor is refused before anything is built where AppArmor is off, or has no such profile", func(t *testing.T) {
		t.Parallel()
		j := s.shell(t, "true")
		j.AppArmor = "no-such-profile"
		want := "apparmor: no profile no-such-profile is loaded on this host"
		if s.differ.OwnKernel { // whatever the host has
			want = "apparmor: the kernel in a box"
		} else if err := box.AppArmor(); err != nil {
			want = err.Error()
		}
		if got := s.engine.Check(j.Spec); got == nil || !strings.HasPrefix(got.Error(), want) {
			t.Errorf("got %v, want %q", got, want)
		}
	})

	t.Run("a profile of kern is refused by name by an engine that has none", func(t *testing.T) {
		t.Parallel()
		for _, p := range []string{"vcpu:no-such", "vgpio:no-such", "vdisk:no-such"} {
			j := s.shell(t, "true")
			j.KernProfiles = []string{p}
			if err := s.engine.Check(j.Spec); err == nil || !strings.Contains(err.Error(), "profiles: ") {
				t.Errorf("%s: got %v", p, err)
			}
		}
	})
}

// seenFacts are about what a box still shows of the host. They are no secrets, and
// programs size themselves by them: docs/kern-sandbox.md lists them, and one that is
// no longer so has to leave that list.
func (s *suite) seenFacts(t *testing.T) {
	t.Run("the kernel's version, its uptime, load, memory and processors are the host's", func(t *testing.T) {
		t.Parallel()
		var u unix.Utsname
		var info unix.Sysinfo_t
		if err := unix.Uname(&u); err != nil {
			t.Fatal(err)
		}
		if err := unix.Sysinfo(&info); err != nil {
			t.Fatal(err)
		}
		j := s.shell(t, `uname -r; cat /proc/version | wc -l; grep -c ^processor /proc/cpuinfo; sed -n 's/^MemTotal: *//p' /proc/meminfo; cut -d. -f1 /proc/uptime; wc -w </proc/loadavg; sed -n 's/^btime //p' /proc/stat; cat /proc/sys/kernel/random/boot_id`)
		j.CPUs, j.MemoryBytes = 0.5, 128*mib
		r := s.run(t, j)
		r.passed(t)
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if len(got) != 8 {
			t.Fatalf("%s", r.describe())
		}
		if s.differ.OwnKernel {
			if got[0] == unix.ByteSliceToString(u.Release[:]) || got[7] == strings.TrimSpace(string(boot)) {
				t.Errorf("the kernel in the box is to be its own: %q", got)
			}
			return
		}
		if got[0] != unix.ByteSliceToString(u.Release[:]) {
			t.Errorf("kernel %s", got[0])
		}
		if n, _ := strconv.Atoi(got[2]); n < runtime.NumCPU() {
			t.Errorf("%s processors in /proc/cpuinfo, of %d", got[2], runtime.NumCPU())
		}
		if kb, _ := strconv.ParseUint(strings.Fields(got[3])[0], 10, 64); kb<<10>>20 != info.Totalram*uint64(info.Unit)>>20 {
			t.Errorf("MemTotal %s, the host has %d bytes", got[3], info.Totalram)
		}
		if up, _ := strconv.ParseInt(got[4], 10, 64); up < info.Uptime-60 {
			t.Errorf("uptime %s, the host's is %d", got[4], info.Uptime)
		}
		if got[5] != "5" || got[6] == "" || got[7] != strings.TrimSpace(string(boot)) {
			t.Errorf("load, boot time or boot id: %q", got[5:])
		}
	})
}
