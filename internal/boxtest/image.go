package boxtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// rootFolder makes a root file system of a handful of files.
func rootFolder(t testing.TB) string {
	t.Helper()
	dir := workspace(t)
	for _, d := range []string{"bin", "etc", "usr/bin", "home/me", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, dir, "etc/passwd", "image:x:0:0::/:/bin/sh\n", 0o644)
	put(t, dir, "etc/hosts", "192.0.2.7 of-the-image\n", 0o644)
	put(t, dir, "bin/plain", "no program", 0o644)
	put(t, dir, "home/me/.secret", "the image's own", 0o600)
	return dir
}

// imaged is a box with a folder as its root.
func (s *suite) imaged(t testing.TB, dir string, ops ...probe.Op) step {
	t.Helper()
	j := s.probing(t, ops...)
	j.Root = box.Root{Kind: box.RootDir, Dir: dir}
	j.Env = box.Environment{Path: []string{"/bin"}}.List()
	return j
}

// imageFacts are about image: rootfs:DIR.
func (s *suite) imageFacts(t *testing.T) {
	t.Run("a folder as root shows its own files read-only and nothing of the host", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay", "setid")
		dir := rootFolder(t)
		if err := errors.Join(copyProgram(s.probe, dir+"/bin/setid"), os.Chmod(dir+"/bin/setid", os.ModeSetuid|os.ModeSetgid|0o755)); err != nil {
			t.Fatal(err)
		}
		j := s.imaged(t, dir, probe.Do("read", "/etc/passwd"), probe.Do("read", "/home/me/.secret"), probe.Do("ls", "/"), probe.Do("stat", "/usr/bin/env"), probe.Do("create", "/x", ""),
			probe.Do("overwrite", "/etc/passwd", "x"), probe.Do("create", "/var/lib/x", ""), probe.Do("create", "/workspace/x", ""), probe.Do("create", "/tmp/x", ""),
			probe.Do("create", box.HomeTarget+"/x", ""), probe.Do("exec", append([]string{"/bin/setid"}, probe.Args(probe.Do("ids"), probe.Do("caps"))...)...), probe.Do("open", "/dev/null", "rw"), probe.Do("pids"), probe.Do("caps"), probe.Do("own loopback", "127.0.0.1"))
		a := s.run(t, j).answers(t, 15)
		if a[0].Text != "image:x:0:0::/:/bin/sh\n" || a[1].Text != "the image's own" {
			t.Errorf("the image's files read %s and %s", tell(a[0]), tell(a[1]))
		}
		for _, n := range a[2].List {
			if !slices.Contains([]string{"bin", "dev", "etc", "home", "probe", "proc", "step", "tmp", "usr", "var", "workspace", "sys"}, n) {
				t.Errorf("the root shows /%s", n)
			}
		}
		wantErr(t, "see a tool of the host", a[3], "ENOENT")
		for _, i := range []int{4, 5, 6} {
			wantErr(t, "write to the image", a[i], "EROFS", "EACCES")
		}
		for _, i := range []int{7, 8, 9, 11, 14} {
			works(t, "answer "+itoa(i), a[i])
		}
		if !strings.Contains(a[10].Text, `"0 0 0 0"`) || !strings.Contains(a[10].Text, "CapEff: 0000000000000000") {
			t.Errorf("a set-id program of the image has %s", tell(a[10]))
		}
		if len(a[12].List) != 2 {
			t.Errorf("the box shows the processes %q", a[12].List)
		}
		if !slices.Contains(a[13].List, "CapEff: 0000000000000000") || !slices.Contains(a[13].List, "Seccomp: 2") {
			t.Errorf("the step has %q", a[13].List)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 5 {
			t.Errorf("the folder on disk was changed: %v (%v)", list, err)
		}
	})

	t.Run("N154 N158 an OCI image is a root: its files are readable, without powers, and its variables are there", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay")
		img := s.tinyImage(t)
		ops := []probe.Op{probe.Do("read", "/etc/secret"), probe.Do("read", "/etc/passwd"), probe.Do("ls", "/"), probe.Do("create", "/etc/x", ""), probe.Do("create", "/workspace/x", ""), probe.Do("read", "/shut/in"), probe.Do("env"),
			probe.Do("exec", append([]string{"/bin/setid"}, probe.Args(probe.Do("ids"), probe.Do("caps"))...)...)}
		j := s.imaged(t, img.Root, ops...)
		j.Argv[0] = "probe"
		j.Mounts = nil
		j.Root.Name = "tiny:1"
		j.Env = box.Environment{Path: []string{"/none"}, Image: img.Config.Env}.List()
		a := s.run(t, j).answers(t, len(ops))
		if a[0].Text != "of root alone" || a[1].Text != "image:x:0:0::/:/bin/sh\n" || a[5].Text != "in" {
			t.Errorf("the image's files read %s, %s and %s", tell(a[0]), tell(a[1]), tell(a[5]))
		}
		if slices.Contains(a[2].List, "gone") || !slices.Contains(a[2].List, "shut") {
			t.Errorf("the root shows %q", a[2].List)
		}
		wantErr(t, "write to the image", a[3], "EROFS", "EACCES")
		works(t, "write to the workspace", a[4])
		if !slices.Contains(a[6].List, "OF_THE_IMAGE=yes") || !slices.Contains(a[6].List, "PATH=/bin") {
			t.Errorf("the environment is %q", a[6].List)
		}
		if !strings.Contains(a[7].Text, `"0 0 0 0"`) || !strings.Contains(a[7].Text, "CapEff: 0000000000000000") {
			t.Errorf("a set-id program of the image has %s", tell(a[7]))
		}
		j.Argv = []string{"none"}
		r := s.run(t, j)
		r.faulted(t, box.ExecFailed)
		mentions(t, r, "tiny:1")
	})

	t.Run("G88 as root, a device node of an image cannot be opened", func(t *testing.T) {
		t.Parallel()
		Need(t, "root", "overlay", "devices")
		dir := rootFolder(t)
		node := filepath.Join(dir, "zero")
		if err := errors.Join(unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), os.Chmod(node, 0o666)); err != nil {
			t.Fatal(err)
		}
		a := s.run(t, s.imaged(t, dir, probe.Do("open", "/zero", "r"), probe.Do("open", "/dev/zero", "r"))).answers(t, 2)
		if !s.differ.OwnDevices {
			wantErr(t, "open the image's device node", a[0], "EACCES", "EPERM")
		}
		works(t, "open the box's own", a[1])
		works(t, "open the node outside", s.outside(t, probe.Do("open", node, "r"))[0])
	})

	t.Run("an empty folder is a root too", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay")
		s.run(t, s.imaged(t, workspace(t), probe.Do("create", "/workspace/x", ""))).answers(t, 1)
	})

	t.Run("a missing folder or a file is startup_failed and is named", func(t *testing.T) {
		t.Parallel()
		dir := workspace(t)
		put(t, dir, "file", "", 0o644)
		for _, name := range []string{"none", "file"} {
			r := s.run(t, s.imaged(t, filepath.Join(dir, name), probe.Do("ids")))
			r.faulted(t, box.StartupFailed)
			mentions(t, r, filepath.Join(dir, name))
		}
	})

	t.Run("a command that the image lacks is exec_failed and names the image", func(t *testing.T) {
		t.Parallel()
		Need(t, "overlay")
		dir := rootFolder(t)
		j := s.imaged(t, dir)
		for _, name := range []string{"sh", "plain"} {
			j.Argv = []string{name}
			r := s.run(t, j)
			r.faulted(t, box.ExecFailed)
			mentions(t, r, name)
			mentions(t, r, dir)
		}
	})

	t.Run("G79 a hostile folder does not lead a mount out of the box", func(t *testing.T) {
		Need(t, "overlay")
		for _, at := range []string{"workspace", "proc", "dev", "tmp", "etc", "step", "probe", "usr", "etc/hosts", "etc/passwd", "step/home", "dev/shm"} {
			for _, to := range []string{"a folder of the host", "the top", "upwards", "a file", "a folder", "a FIFO"} {
				t.Run(fmt.Sprintf("%s is %s", at, to), func(t *testing.T) {
					t.Parallel()
					s.hostile(t, at, to)
				})
			}
		}
	})
}

// hostile runs a box whose root has something else where a mount point is
// wanted. It may refuse, or hold; the host must not have been touched.
func (s *suite) hostile(t *testing.T, at, to string) {
	host := workspace(t) // what an attacker would like to reach
	put(t, host, "secret", "of the host", 0o644)
	for _, d := range []string{"sub", "shm", "home"} {
		if err := os.Mkdir(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := workspace(t)
	place := filepath.Join(dir, at)
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	switch to {
	case "a folder of the host":
		err = os.Symlink(host, place)
	case "the top":
		err = os.Symlink("/", place)
	case "upwards":
		up, rerr := filepath.Rel("/x", filepath.Join("/../../../../../../../..", host))
		if rerr != nil {
			t.Fatal(rerr)
		}
		err = os.Symlink("../../../../../../../../../"+up, place)
	case "a file":
		err = os.WriteFile(place, []byte("x"), 0o644)
	case "a folder":
		err = os.Mkdir(place, 0o755)
	case "a FIFO":
		err = mkfifo(place)
	}
	if err != nil {
		t.Fatal(err)
	}
	j := s.imaged(t, dir, probe.Do("read", filepath.Join(host, "secret")), probe.Do("read", "/"+at+"/secret"), probe.Do("create", "/"+at+"/made", ""), probe.Do("pids"),
		probe.Do("ls", "/"), probe.Do("read", "/workspace/secret"))
	r := s.run(t, j)
	if r.Fault != nil && r.Fault.Type == box.StartupFailed {
		return
	}
	a := r.answers(t, 6)
	for _, i := range []int{0, 1, 5} {
		if a[i].Text == "of the host" {
			t.Errorf("the step reads the host's file: %s", tell(a[i]))
		}
	}
	if len(a[3].List) != 2 {
		t.Errorf("the step sees the processes %q", a[3].List)
	}
	if list, err := os.ReadDir(host); err != nil || len(list) != 4 {
		t.Errorf("the host's folder holds %v (%v)", list, err)
	}
	if b, err := os.ReadFile(filepath.Join(host, "secret")); err != nil || string(b) != "of the host" {
		t.Errorf("the host's file is %q (%v)", b, err)
	}
}
