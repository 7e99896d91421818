package boxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// callFacts are about namespaces, capabilities and system calls.
func (s *suite) callFacts(t *testing.T) {
	t.Run("G77 G78 G79 G80 G82 a call that leads out of the box is escape_blocked", func(t *testing.T) {
		for _, name := range slices.Concat(probe.Escapes(), probe.Foreign()) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				// A caller that the kernel does not kill answers.
				if a := s.outside(t, probe.In("grandchild", probe.Do("escape and go on", name)))[0]; !strings.Contains(a.Text, "survived") {
					t.Errorf("control: outside the call ends its caller: %s", tell(a))
				}
				r := s.run(t, s.probing(t, probe.Do("escape", name)))
				s.escaped(t, r, name)
				// On a busy machine the kill that follows may come first.
				if !s.differ.EscapesAnswered && r.Signal != "SIGSYS" && r.Signal != "SIGKILL" {
					t.Errorf("the caller died of %q, want SIGSYS", r.Signal)
				}
				s.escapedInChild(t, name, probe.In("grandchild", probe.Do("escape", name)))
			})
		}
	})

	t.Run("G77 clone and unshare with each namespace flag are escape_blocked, in a grandchild too", func(t *testing.T) {
		works(t, "clone without a flag in the box", s.ask(t, probe.Do("clone", "0"))[0])
		works(t, "clone with CLONE_NEWUSER outside", s.outside(t, probe.Do("clone", strconv.Itoa(int(probe.CloneFlags[4].Flag))))[0])
		for _, f := range probe.CloneFlags {
			for _, do := range []string{"clone", "unshare"} {
				t.Run(do+" "+f.Name, func(t *testing.T) {
					t.Parallel()
					op := probe.Do(do, strconv.Itoa(int(f.Flag)))
					s.escaped(t, s.run(t, s.probing(t, op)), do)
					s.escapedInChild(t, do, probe.In("grandchild", op))
				})
			}
		}
	})

	t.Run("G78 setns to a namespace of one's own is escape_blocked", func(t *testing.T) {
		t.Parallel()
		for _, ns := range []string{"net", "mnt", "user"} {
			s.escaped(t, s.run(t, s.probing(t, probe.Do("setns", "/proc/self/ns/"+ns))), "setns")
		}
	})

	t.Run("a forbidden call is seen whatever its caller does with SIGSYS", func(t *testing.T) {
		t.Parallel()
		for _, do := range []string{"escape handled", "escape ignored"} {
			r := s.run(t, s.probing(t, probe.Do(do, "mount")))
			s.escaped(t, r, "mount")
			if !s.differ.EscapesAnswered && strings.Contains(r.stdout, "survived") {
				t.Errorf("%s: the caller lives on", do)
			}
		}
	})

	t.Run("G81 G83 calls that a box does not have answer ENOSYS", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for _, n := range probe.Absent() {
			ops = append(ops, probe.Do("call", n))
		}
		there := 0
		for _, a := range s.outside(t, ops...) {
			if a.Err != "ENOSYS" {
				there++
			}
		}
		if there < 3 {
			t.Errorf("control: outside only %d of these calls exist", there)
		}
		for i, a := range s.ask(t, ops...) {
			wantErr(t, ops[i].Args[0], a, "ENOSYS")
		}
	})

	t.Run("G80 G82 J124 calls over the machine, its clock and other processes are refused", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for _, n := range probe.Refused() {
			ops = append(ops, probe.Do("call", n))
		}
		for i, a := range s.ask(t, ops...) {
			wantErr(t, ops[i].Args[0], a, "ENOSYS", "EPERM")
		}
		works(t, "chroot with all powers over an own user namespace", s.inOwnNamespaces(t, probe.Do("call", "chroot"))[0])
	})

	t.Run("G87 every thread of the step has no capability, a filter, and no way to gain any", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("caps"), probe.Do("take capabilities"), probe.Do("take ambient"), probe.Do("allow new privileges"), probe.Do("caps"))
		want := []string{"CapAmb: 0000000000000000", "CapBnd: 0000000000000000", "CapEff: 0000000000000000", "CapInh: 0000000000000000", "CapPrm: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2"}
		for _, i := range []int{0, 4} {
			if strings.Join(a[i].List, "|") != strings.Join(want, "|") {
				t.Errorf("the step's threads have %q, want %q", a[i].List, want)
			}
		}
		wantErr(t, "capset", a[1], "EPERM")
		refused(t, "raise an ambient capability", a[2])
		refused(t, "allow new privileges", a[3])
		if got := s.inOwnNamespaces(t, probe.Do("caps"))[0].List; slices.Contains(got, want[2]) {
			t.Errorf("control: outside, in a user namespace of its own, the probe has no capability either: %q", got)
		}
	})

	t.Run("G87 without capDrop a step keeps no more than powers over its own files and ports", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("caps"), probe.Do("socket", "2", "3", "1"), probe.Do("call", "chroot"), probe.Do("mknod", "c", "0o20666", "1", "3"), probe.Do("limit cpu of", "1"), probe.Do("read", "/proc/1/environ"),
			probe.Do("add address"), probe.Do("kill", "1", "9"), probe.Do("chown", "mine", "0", "0"))
		j.CapDrop = nil
		put(t, j.Workspace, "mine", "", 0o600)
		a := s.run(t, j).answers(t, 9)
		const kept = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE
		some := false
		for _, line := range a[0].List {
			name, value, _ := strings.Cut(line, ": ")
			if !strings.HasPrefix(name, "Cap") {
				continue
			}
			mask, err := strconv.ParseUint(value, 16, 64)
			if err != nil || mask&^kept != 0 {
				t.Errorf("the step has %s", line)
			}
			some = some || mask != 0
		}
		if !some {
			t.Errorf("control: the step keeps nothing: %q", a[0].List)
		}
		for i, what := range map[int]string{1: "a raw socket", 2: "chroot", 3: "make a device", 4: "limit the first process", 5: "look into the first process", 6: "add an address"} {
			refused(t, what, a[i])
		}
		works(t, "chown to oneself", a[8])
		j.Argv = append([]string{insideProbe}, probe.Args(probe.Do("escape", "mount"))...)
		s.escaped(t, s.run(t, j), "mount")
	})

	t.Run("G86 a set-id program in the workspace gives nothing", func(t *testing.T) {
		t.Parallel()
		Need(t, "setid")
		j := s.probing(t, probe.Do("ids"), probe.Do("exec", append([]string{"/workspace/setid"}, probe.Args(probe.Do("ids"), probe.Do("caps"))...)...),
			probe.Do("copy", insideProbe, "/workspace/own", "0o6755"), probe.Do("exec", append([]string{"/workspace/own"}, probe.Args(probe.Do("ids"), probe.Do("caps"))...)...))
		file := filepath.Join(j.Workspace, "setid")
		if err := copyProgram(s.probe, file); err != nil {
			t.Fatal(err)
		}
		theirs := os.Geteuid()
		if theirs == 0 { // only root can make a file that is another's
			theirs = 4242
			if err := os.Chown(file, theirs, theirs); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(file, os.ModeSetuid|os.ModeSetgid|0o755); err != nil {
			t.Fatal(err)
		}
		a := s.run(t, j).answers(t, 4)
		for _, i := range []int{1, 3} {
			works(t, "run the program", a[i])
			if !strings.Contains(a[i].Text, a[0].Text) || !strings.Contains(a[i].Text, "CapEff: 0000000000000000") {
				t.Errorf("a set-id program has %s, its caller %s", clip(a[i].Text), a[0].Text)
			}
		}
		if os.Geteuid() == 0 {
			out, err := exec.Command(file, probe.Args(probe.Do("ids"))...).Output()
			if err != nil || !strings.Contains(string(out), strconv.Itoa(theirs)) {
				t.Errorf("control: outside, the set-id bit has no effect: %s (%v)", out, err)
			}
		}
	})

	t.Run("G88 a device node can be neither made nor opened", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("mknod", "c", "0o20666", "1", "3"), probe.Do("mknod", "b", "0o60666", "8", "0"), probe.Do("mknod", "/tmp/c", "0o20666", "1", "1"),
			probe.Do("open", "c", "rw"), probe.Do("mknod", "fifo", "0o10666", "0", "0"))
		for i := range 3 {
			wantErr(t, "make a device", a[i], "EPERM", "EACCES")
		}
		refused(t, "open it", a[3])
		works(t, "make a FIFO", a[4])
	})

	t.Run("G89 a filter of the step's own does not widen what it may do", func(t *testing.T) {
		t.Parallel()
		s.run(t, s.probing(t, probe.Do("own filter"), probe.Do("clone", "0"))).answers(t, 2)
		s.escaped(t, s.run(t, s.probing(t, probe.Do("own filter"), probe.Do("escape", "mount"))), "mount")
		s.escapedInChild(t, "mount", probe.Do("own filter"), probe.In("grandchild", probe.Do("escape", "mount")))
	})

	t.Run("G90 storms of programs and threads work", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("many programs", "200", "/bin/sh", "-c", "exit 0"), probe.Do("threads", "30"))
		works(t, "start 200 programs from four threads", a[0])
		if a[0].N != 200 {
			t.Errorf("%d of 200 programs ran", a[0].N)
		}
		works(t, "30 threads", a[1])
		r := s.run(t, s.shell(t, "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i | cat | cat >/dev/null; done; (sleep 0 & wait); echo done"))
		r.passed(t)
		if strings.TrimSpace(r.stdout) != "done" {
			t.Errorf("pipelines: %s", r.describe())
		}
	})

	t.Run("G90 threads and subprocesses of python work", func(t *testing.T) {
		t.Parallel()
		Need(t, "python3")
		r := s.run(t, s.spec(t, "python3", "-c", `
import threading, subprocess, multiprocessing, os
seen = []
def work(n): seen.append(subprocess.run(["sh", "-c", "echo %d" % n], capture_output=True, text=True).stdout.strip())
ts = [threading.Thread(target=work, args=(n,)) for n in range(20)]
[x.start() for x in ts]; [x.join() for x in ts]
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], {})
print(len(set(seen)), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
`))
		r.passed(t)
		if strings.TrimSpace(r.stdout) != "20 4" {
			t.Errorf("python: %s", r.describe())
		}
	})

	t.Run("G85 G92 calls that tools need are there", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("membarrier"), probe.Do("memfd program"), probe.Do("personality", "0"), probe.Do("limit cpu of", "0"))
		works(t, "membarrier", a[0])
		works(t, "run a program from a memfd", a[1])
		works(t, "personality", a[2])
		works(t, "limit one's own CPU time", a[3])
	})
}

// escaped fails unless the fault is escape_blocked and, where the engine can
// see it, names the call and the program.
func (s *suite) escaped(t testing.TB, r result, call string) {
	t.Helper()
	if s.differ.EscapesAnswered {
		s.answered(t, r, call)
		return
	}
	r.faulted(t, box.EscapeBlocked)
	if s.differ.EscapeNames {
		return
	}
	name := strings.NewReplacer("i386 getpid", "i386 system call 20", "x32 getpid", "x32 system call 39").Replace(call)
	mentions(t, r, name)
	mentions(t, r, probeName)
}

// answered fails unless the call was refused with an error, and did nothing else.
func (s *suite) answered(t testing.TB, r result, call string) {
	t.Helper()
	r.passed(t)
	// What the kernel in the box makes of another architecture's call is its own
	// affair: the probe cannot tell an answer from none.
	if call != "i386 getpid" && !strings.Contains(r.stdout, "EPERM") && !strings.Contains(r.stdout, "ENOSYS") {
		t.Errorf("%s: the step ended with %s, want that the call is refused", call, r.describe())
	}
}

// escapedInChild runs ops of which a grandchild makes the call, in a step that
// ends with 0 all the same.
func (s *suite) escapedInChild(t testing.TB, call string, ops ...probe.Op) {
	t.Helper()
	r := s.run(t, s.probing(t, ops...))
	r.exited(t, 0)
	if s.differ.EscapesAnswered {
		if !slices.ContainsFunc(ops, func(o probe.Op) bool { return o.Do == "spawn apart" }) { // whose answers nobody hears
			s.answered(t, r, call)
		}
		return
	}
	if strings.Contains(r.stdout, "survived") {
		t.Errorf("the grandchild lives on after the call: %s", r.describe())
	}
	if !s.differ.ChildEscapes {
		s.escaped(t, r, call)
	}
}
