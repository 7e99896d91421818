package boxtest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// etcAllowed is all that a box may have in /etc.
var etcAllowed = []string{
	"alternatives", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "os-release", "passwd", "pki", "ssl",
	"resolv.conf", "hostname", "mtab", // made up by an engine; without anything of the host
}

// devAllowed is all that a box may have in /dev.
var devAllowed = []string{"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm", "tty", "pts", "ptmx", "mqueue", "console", "core"}

// fileFacts are about what can be read, written and left behind.
func (s *suite) fileFacts(t *testing.T) {
	t.Run("the root is read-only, the workspace is not", func(t *testing.T) {
		t.Parallel()
		var ops []probe.Op
		for _, p := range []string{"/x", "/usr/x", "/etc/x", "/bin/x", "/dev/x", "/step/x", "/probe/x", "/proc/x", "/usr/bin/x", "/lib/x"} {
			ops = append(ops, probe.Do("create", p, "x"))
		}
		ops = append(ops, probe.Do("overwrite", "/etc/passwd", "x"), probe.Do("overwrite", insideProbe, "x"), probe.Do("unlink", "/etc/passwd"))
		j := s.probing(t, append(ops, probe.Do("create", "/workspace/x", "mine"), probe.Do("create", "/tmp/x", ""), probe.Do("create", box.HomeTarget+"/x", ""))...)
		answers := s.run(t, j).answers(t, len(ops)+3)
		for i, op := range ops {
			refused(t, op.Do+" "+op.Args[0], answers[i])
		}
		for i, p := range []string{"/workspace", "/tmp", "HOME"} {
			works(t, "write to "+p, answers[len(ops)+i])
		}
		if b, err := os.ReadFile(j.Workspace + "/x"); err != nil || string(b) != "mine" {
			t.Errorf("the file of the step is %q on disk (%v)", b, err)
		}
	})

	t.Run("the top of the tree and /etc hold what is listed and nothing else", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("ls", "/"), probe.Do("ls", "/etc"), probe.Do("ls", "/dev"), probe.Do("ls", "/etc/ssl"), probe.Do("read", "/etc/passwd"), probe.Do("read", "/etc/shadow"))
		allowed := []string{"bin", "dev", "etc", "opt", "proc", "probe", "sbin", "step", "sys" /* empty, see F76 */, "tmp", "usr", "workspace"}
		for _, n := range a[0].List {
			if !slices.Contains(allowed, n) && !strings.HasPrefix(n, "lib") {
				t.Errorf("the root shows /%s", n)
			}
		}
		for _, n := range a[1].List {
			if !slices.Contains(etcAllowed, n) && !strings.HasPrefix(n, "java") {
				t.Errorf("the box has /etc/%s", n)
			}
		}
		for _, n := range a[2].List {
			if !slices.Contains(devAllowed, n) {
				t.Errorf("the box has /dev/%s", n)
			}
		}
		if slices.Contains(a[3].List, "private") {
			t.Error("the box has /etc/ssl/private")
		}
		if !strings.Contains(a[4].Text, "root:x:0:0") || strings.Count(a[4].Text, "\n") > 3 {
			t.Errorf("/etc/passwd of the box is %q", a[4].Text)
		}
		wantErr(t, "read /etc/shadow", a[5], "ENOENT")
	})

	t.Run("HOME is empty and writable, temporary folders have their sizes", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("ls", box.HomeTarget), probe.Do("statfs", box.HomeTarget), probe.Do("statfs", "/tmp"), probe.Do("statfs", "/dev/shm"),
			probe.Do("stat", "/tmp"), probe.Do("ls", "/tmp"), probe.Do("statfs", "/data"), probe.Do("fill", "/data/x", "2000000"), probe.Do("fill", "/tmp/x", "1000000"))
		j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: "/data", Bytes: mib})
		a := s.run(t, j).answers(t, 9)
		if len(a[0].List) != 0 || len(a[5].List) != 0 {
			t.Errorf("HOME holds %q and /tmp %q, want nothing", a[0].List, a[5].List)
		}
		for i, want := range map[int]int64{1: box.DefaultHomeBytes, 2: box.DefaultTmpBytes, 3: box.DefaultShmBytes, 6: mib} {
			if a[i].N != want {
				t.Errorf("answer %d: a size of %d, want %d", i, a[i].N, want)
			}
			for _, flag := range []string{"nosuid", "nodev"} {
				if flag == "nodev" && s.differ.OwnDevices {
					continue
				}
				if !slices.Contains(a[i].List, flag) {
					t.Errorf("answer %d: not mounted %s (%q)", i, flag, a[i].List)
				}
			}
		}
		if a[4].List[0] != "41777" {
			t.Errorf("/tmp has mode %s, want 41777", a[4].List[0])
		}
		wantErr(t, "fill a tmpfs past its size", a[7], "ENOSPC")
		works(t, "fill /tmp within its size", a[8])
	})

	t.Run("I111 what is written outside the workspace is gone in the next box", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("create", "/tmp/x", ""), probe.Do("create", box.HomeTarget+"/x", ""), probe.Do("create", "/dev/shm/x", ""))
		for _, a := range s.run(t, j).answers(t, 3) {
			works(t, "write in the first box", a)
		}
		j.Argv = append([]string{insideProbe}, probe.Args(probe.Do("ls", "/tmp"), probe.Do("ls", box.HomeTarget), probe.Do("ls", "/dev/shm"))...)
		for _, a := range s.run(t, j).answers(t, 3) {
			if len(a.List) != 0 {
				t.Errorf("the next box finds %q", a.List)
			}
		}
	})
}
