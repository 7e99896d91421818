package boxtest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// workspaceFacts are about folders of the caller's in a box: the workspace and
// mounts.
func (s *suite) workspaceFacts(t *testing.T) {
	t.Run("what the step makes in the workspace belongs to the caller on disk", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("create", "file", "x", "0o666"), probe.Do("mkdir", "dir"), probe.Do("symlink", "/etc/passwd", "link"), probe.Do("create", "dir/x", ""),
			probe.Do("stat", "mine"), probe.Do("overwrite", "mine", "new"), probe.Do("stat", "file"))
		put(t, j.Workspace, "mine", "old", 0o600)
		a := s.run(t, j).answers(t, 7)
		for i, x := range a {
			works(t, "answer "+itoa(i), x)
		}
		for _, n := range []string{"file", "dir", "link", "dir/x", "mine"} {
			if uid, gid := owner(t, filepath.Join(j.Workspace, n)); uid != os.Geteuid() || gid != os.Getegid() {
				t.Errorf("%s belongs to %d:%d on disk, want %d:%d", n, uid, gid, os.Geteuid(), os.Getegid())
			}
		}
		if st, err := os.Stat(j.Workspace + "/file"); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("a file made with mode 0666 has %v on disk, want 0644 (%v)", st.Mode(), err)
		}
		if a[4].List[1] != a[6].List[1] {
			t.Errorf("in the box the caller's file belongs to %s and the step's to %s", a[4].List[1], a[6].List[1])
		}
	})

	t.Run("as root, a file of somebody else in the workspace stays theirs", func(t *testing.T) {
		t.Parallel()
		Need(t, "root")
		j := s.probing(t, probe.Do("read", "closed"), probe.Do("overwrite", "closed", "x"), probe.Do("read", "open"), probe.Do("overwrite", "open", "x"),
			probe.Do("chown", "open", "0", "0"), probe.Do("chmod", "open", "0o777"), probe.Do("read", "mine"))
		for name, mode := range map[string]os.FileMode{"closed": 0o600, "open": 0o644} {
			put(t, j.Workspace, name, "theirs", mode)
			if err := os.Chown(filepath.Join(j.Workspace, name), 4242, 4242); err != nil {
				t.Fatal(err)
			}
		}
		put(t, j.Workspace, "mine", "mine", 0o600)
		a := s.run(t, j).answers(t, 7)
		for i, what := range map[int]string{0: "read a closed file", 1: "write to it", 3: "write to an open file", 4: "take it over", 5: "change its mode"} {
			refused(t, what, a[i])
		}
		works(t, "read an open file of somebody else", a[2])
		works(t, "read a closed file of the caller", a[6])
		if uid, _ := owner(t, j.Workspace+"/open"); uid != 4242 {
			t.Errorf("the file belongs to %d now", uid)
		}
	})

	t.Run("as root, in somebody else's workspace the step makes their files", func(t *testing.T) {
		t.Parallel()
		Need(t, "root")
		j := s.probing(t, probe.Do("create", "new", "x"), probe.Do("overwrite", "theirs", "x"))
		put(t, j.Workspace, "theirs", "theirs", 0o600)
		for _, p := range []string{j.Workspace, j.Workspace + "/theirs"} {
			if err := os.Chown(p, 4242, 4243); err != nil {
				t.Fatal(err)
			}
		}
		for i, a := range s.run(t, j).answers(t, 2) {
			works(t, "answer "+itoa(i), a)
		}
		if uid, gid := owner(t, j.Workspace+"/new"); uid != 4242 || gid != 4243 {
			t.Errorf("the new file belongs to %d:%d, want 4242:4243", uid, gid)
		}
	})

	t.Run("I100 I102 a link in the workspace leads to nothing that the box does not have", func(t *testing.T) {
		t.Parallel()
		secret := filepath.Join(t.TempDir(), "secret")
		put(t, filepath.Dir(secret), "secret", "of the host", 0o644)
		j := s.probing(t, probe.Do("read", "absolute"), probe.Do("read", "upwards"), probe.Do("read", "own"), probe.Do("link", "/etc/passwd", "/workspace/hard"), probe.Do("link", insideProbe, "/tmp/hard"),
			probe.Do("link", "own", "hard"))
		put(t, j.Workspace, "file", "own", 0o644)
		for name, to := range map[string]string{"absolute": secret, "upwards": "../../../../../../.." + secret, "own": "file"} {
			if err := os.Symlink(to, filepath.Join(j.Workspace, name)); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(j.Workspace, name)); err != nil || len(b) == 0 {
				t.Errorf("control: outside, %s leads nowhere: %v", name, err)
			}
		}
		a := s.run(t, j).answers(t, 6)
		wantErr(t, "read through an absolute link", a[0], "ENOENT")
		wantErr(t, "read through a link upwards", a[1], "ENOENT")
		works(t, "read through a link within", a[2])
		wantErr(t, "link a file of the box's root into the workspace", a[3], "EXDEV", "EPERM", "EROFS")
		wantErr(t, "link a file of a mount into /tmp", a[4], "EXDEV", "EPERM", "EROFS")
		works(t, "link within the workspace", a[5])
	})

	t.Run("a read-only mount is read-only, a writable one gives files to the caller", func(t *testing.T) {
		t.Parallel()
		ro, rw := workspace(t), workspace(t)
		put(t, ro, "x", "secret", 0o600)
		j := s.probing(t, probe.Do("read", "/ro/x"), probe.Do("create", "/ro/y", ""), probe.Do("overwrite", "/ro/x", "new"), probe.Do("chmod", "/ro/x", "0o777"), probe.Do("unlink", "/ro/x"),
			probe.Do("create", "/deep/er/rw/y", "made"), probe.Do("read", "/one/file"))
		j.Mounts = append(j.Mounts, box.Mount{Source: ro, Target: "/ro", ReadOnly: true}, box.Mount{Source: rw, Target: "/deep/er/rw"},
			box.Mount{Source: ro + "/x", Target: "/one/file", ReadOnly: true})
		a := s.run(t, j).answers(t, 7)
		works(t, "read from a read-only mount", a[0])
		for i, what := range map[int]string{1: "create", 2: "overwrite", 3: "change the mode", 4: "remove"} {
			wantErr(t, what+" in a read-only mount", a[i], "EROFS")
		}
		works(t, "write to a writable mount", a[5])
		if a[6].Text != "secret" {
			t.Errorf("a single file that is mounted reads %s", tell(a[6]))
		}
		if uid, _ := owner(t, rw+"/y"); uid != os.Geteuid() {
			t.Errorf("the file in the writable mount belongs to %d, want the caller, %d", uid, os.Geteuid())
		}
	})

	t.Run("G88 as root, a device node in the workspace or a mount cannot be opened", func(t *testing.T) {
		t.Parallel()
		Need(t, "root", "devices")
		rw := workspace(t)
		j := s.probing(t, probe.Do("open", "zero", "r"), probe.Do("open", "/m/zero", "r"), probe.Do("open", "/dev/zero", "r"), probe.Do("open", "mem", "r"), probe.Do("open", "/m/mem", "r"))
		j.Mounts = append(j.Mounts, box.Mount{Source: rw, Target: "/m"})
		for _, dir := range []string{j.Workspace, rw} {
			at := filepath.Join(dir, "zero")
			if err := errors.Join(unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), os.Chmod(at, 0o666)); err != nil {
				t.Fatal(err)
			}
			works(t, "open the node outside", s.outside(t, probe.Do("open", at, "r"))[0])
			mem := filepath.Join(dir, "mem")
			if err := errors.Join(unix.Mknod(mem, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))), os.Chmod(mem, 0o666)); err != nil {
				t.Fatal(err)
			}
		}
		a := s.run(t, j).answers(t, 5)
		if !s.differ.OwnDevices {
			wantErr(t, "open a device node in the workspace", a[0], "EACCES", "EPERM")
			wantErr(t, "open a device node in a mount", a[1], "EACCES", "EPERM")
		}
		// One that opens the host's own, whatever kernel is asked.
		for _, i := range []int{3, 4} {
			wantErr(t, "open a node of the machine's memory", a[i], "EACCES", "EPERM", "ENXIO")
		}
		works(t, "open the box's own", a[2])
	})

	t.Run("a missing mount source is startup_failed and is named", func(t *testing.T) {
		t.Parallel()
		for _, readOnly := range []bool{true, false} {
			j := s.shell(t, "exit 0")
			missing := filepath.Join(t.TempDir(), "gone")
			j.Mounts = append(j.Mounts, box.Mount{Source: missing, Target: "/m", ReadOnly: readOnly})
			r := s.run(t, j)
			r.faulted(t, box.StartupFailed)
			mentions(t, r, missing)
		}
	})
}

// put writes a file of the caller's.
func put(t testing.TB, dir, name, text string, mode os.FileMode) {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.WriteFile(at, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at, mode); err != nil {
		t.Fatal(err)
	}
}
