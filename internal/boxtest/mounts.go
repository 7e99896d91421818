package boxtest

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// noSuchTool is a name that no host has in the folders of its tools.
const noSuchTool = "no-such-name-of-boxtest"

// mountFacts are about what a step puts into its box: over what is ours, over
// what is the host's, and one thing in another. A box that is built with a
// step's own folder must never write to it before the step does.
func (s *suite) mountFacts(t *testing.T) {
	roots := map[string]func(testing.TB, ...probe.Op) step{
		"image host": s.probing,
		"a folder as root": func(t testing.TB, ops ...probe.Op) step {
			t.Helper()
			Need(t, "overlay")
			return s.imaged(t, rootFolder(t), ops...)
		},
	}
	t.Run("a UNIX socket of the host's is reached through a folder that is shown, and by no other way", func(t *testing.T) {
		t.Parallel()
		dir := mounted(t, nil)
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(filepath.Join(dir, "s"), 0o666); err != nil {
			t.Fatal(err)
		}
		works(t, "control: connect outside", s.outside(t, probe.Do("connect", "unix", filepath.Join(dir, "s")))[0])
		j := s.probing(t, probe.Do("connect", "unix", "/shown/s"), probe.Do("connect", "unix", filepath.Join(dir, "s")))
		j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/shown"})
		a := s.run(t, j).answers(t, 2)
		if s.differ.NoHostSockets {
			wantErr(t, "connect to a socket that is shown", a[0], "ECONNREFUSED")
		} else {
			works(t, "connect to a socket that is shown", a[0])
		}
		refused(t, "connect by its path outside", a[1])
	})

	t.Run("no set-id file comes to be in a folder of the host, by any call", func(t *testing.T) {
		t.Parallel()
		dir := mounted(t, nil)
		j := s.probing(t, probe.Do("set-id", "/shown"), probe.Do("create", "/shown/plain", "x", "0o755"), probe.Do("chmod", "/shown/plain", "0o1770"))
		j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/shown"})
		a := s.run(t, j).answers(t, 3)
		for _, l := range a[0].List {
			if name, err, _ := strings.Cut(l, " "); err != "EPERM" && (err != "ENOSYS" || name != "openat2" && name != "fchmodat2") {
				t.Errorf("set-id bits by %s: %q", name, err)
			}
		}
		works(t, "control: make a file", a[1])
		works(t, "control: change its mode", a[2])
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			i, err := e.Info()
			if err != nil || i.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
				t.Errorf("on the host, %s has mode %v (%v)", e.Name(), i.Mode(), err)
			}
		}
		if len(list) < 4 {
			t.Errorf("on the host there are %d files: the calls were not tried", len(list))
		}
		// The control: where nothing of the host is written, the calls do what they say.
		Need(t, "setid")
		ws := s.probing(t, probe.Do("set-id", "/workspace"))
		if l := s.run(t, ws).answers(t, 1)[0].List; len(l) == 0 || l[0] != "chmod" {
			t.Errorf("control: in the workspace they end with %q", l)
		}
	})

	for image, boxed := range roots {
		t.Run("a mount over /etc takes its place and nothing of ours is written into it, "+image, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"own": "mine", "passwd": "of the host", "hosts": "192.0.2.1 mine\n"}
			dir := mounted(t, files)
			j := boxed(t, probe.Do("ls", "/etc"), probe.Do("read", "/etc/passwd"), probe.Do("read", "/etc/hosts"), probe.Do("create", "/etc/made", "by the step"))
			j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/etc"})
			if !s.takes(t, j, "/etc") {
				return
			}
			a := s.run(t, j).answers(t, 4)
			if !slices.Equal(a[0].List, []string{"hosts", "own", "passwd"}) || a[1].Text != "of the host" || a[2].Text != "192.0.2.1 mine\n" {
				t.Errorf("/etc holds %q, its passwd reads %s and its hosts %s", a[0].List, tell(a[1]), tell(a[2]))
			}
			works(t, "write to the mount", a[3])
			files["made"] = "by the step"
			holds(t, dir, files)
		})

		t.Run("a read-only mount over /etc takes its place, "+image, func(t *testing.T) {
			t.Parallel()
			if image == "image host" {
				return // refused when the file is read: the host's own parts of /etc lie in it
			}
			files := map[string]string{"own": "mine", "passwd": "of the host", "hosts": "192.0.2.1 mine\n", "hostname": "", "resolv.conf": "", "untrusted-steps-ca.crt": ""}
			dir := mounted(t, files)
			j := boxed(t, probe.Do("read", "/etc/own"), probe.Do("read", "/etc/passwd"), probe.Do("create", "/etc/made", ""))
			j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/etc", ReadOnly: true})
			a := s.run(t, j).answers(t, 3)
			if a[0].Text != "mine" || a[1].Text != "of the host" {
				t.Errorf("the files of the mount read %s and %s", tell(a[0]), tell(a[1]))
			}
			wantErr(t, "write to the mount", a[2], "EROFS", "EACCES")
			holds(t, dir, files)
		})

		t.Run("a mount over a file that is made up shows the mount, "+image, func(t *testing.T) {
			t.Parallel()
			dir := mounted(t, map[string]string{"p": "my passwd", "h": "my hosts"})
			j := boxed(t, probe.Do("read", "/etc/passwd"), probe.Do("read", "/etc/hosts"), probe.Do("overwrite", "/etc/passwd", "x"))
			j.Mounts = append(j.Mounts, box.Mount{Source: dir + "/p", Target: "/etc/passwd", ReadOnly: true}, box.Mount{Source: dir + "/h", Target: "/etc/hosts", ReadOnly: true})
			a := s.run(t, j).answers(t, 3)
			if a[0].Text != "my passwd" || a[1].Text != "my hosts" {
				t.Errorf("/etc/passwd reads %s and /etc/hosts %s", tell(a[0]), tell(a[1]))
			}
			wantErr(t, "write to the read-only file", a[2], "EROFS", "EACCES")
			holds(t, dir, map[string]string{"p": "my passwd", "h": "my hosts"})
		})

		t.Run("a writable mount over a file that is made up is not written to by us, "+image, func(t *testing.T) {
			t.Parallel()
			dir := mounted(t, map[string]string{"h": "my hosts"})
			j := boxed(t, probe.Do("read", "/etc/hosts"))
			j.Mounts = append(j.Mounts, box.Mount{Source: dir + "/h", Target: "/etc/hosts"})
			if !s.takes(t, j, "/etc/hosts") {
				return
			}
			if a := s.run(t, j).answers(t, 1); a[0].Text != "my hosts" {
				t.Errorf("/etc/hosts reads %s", tell(a[0]))
			}
			holds(t, dir, map[string]string{"h": "my hosts"})
		})

		t.Run("a mount within a mount needs a folder there, and none is made on the host, "+image, func(t *testing.T) {
			t.Parallel()
			outer, inner := mounted(t, map[string]string{"file": "x"}), mounted(t, map[string]string{"in": "side"})
			if err := os.Mkdir(outer+"/sub", 0o755); err != nil {
				t.Fatal(err)
			}
			j := boxed(t, probe.Do("read", "/m/sub/in"), probe.Do("read", "/m/file"))
			j.Mounts = append(j.Mounts, box.Mount{Source: outer, Target: "/m"}, box.Mount{Source: inner, Target: "/m/sub"})
			for _, a := range s.run(t, j).answers(t, 2) {
				works(t, "control: read from a mount and one in it", a)
			}
			for _, target := range []string{"/m/none", "/m/none/deeper", "/m/sub/none", box.WorkspaceTarget + "/none"} {
				j := boxed(t, probe.Do("ids"))
				j.Mounts = append(j.Mounts, box.Mount{Source: outer, Target: "/m"}, box.Mount{Source: inner, Target: "/m/sub"}, box.Mount{Source: inner, Target: target})
				t.Run("at "+target, func(t *testing.T) {
					r := s.run(t, j)
					r.faulted(t, box.StartupFailed)
					mentions(t, r, target)
					holds(t, j.Workspace, nil)
				})
			}
			j = boxed(t, probe.Do("ids"))
			j.Mounts = append(j.Mounts, box.Mount{Source: outer, Target: "/m"})
			j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: "/m/none", Bytes: mib})
			if s.takes(t, j, "/m/none") {
				r := s.run(t, j)
				r.faulted(t, box.StartupFailed)
				mentions(t, r, "/m/none")
			}
			j = boxed(t, probe.Do("ids"))
			j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: box.WorkspaceTarget + "/none", Bytes: mib})
			r := s.run(t, j)
			r.faulted(t, box.StartupFailed)
			mentions(t, r, box.WorkspaceTarget+"/none")
			holds(t, j.Workspace, nil)
			holds(t, inner, map[string]string{"in": "side"})
			if list, err := os.ReadDir(outer); err != nil || len(list) != 2 {
				t.Errorf("the outer folder holds %v (%v)", list, err)
			}
		})

		t.Run("a mount and a tmpfs in the workspace leave no trace on the host, "+image, func(t *testing.T) {
			t.Parallel()
			dir := mounted(t, map[string]string{"in": "side"})
			j := boxed(t, probe.Do("read", "m/in"), probe.Do("create", "t/x", ""), probe.Do("read", "f"))
			put(t, j.Workspace, "f", "below", 0o644)
			for _, d := range []string{"/m", "/t"} {
				if err := os.Mkdir(j.Workspace+d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: box.WorkspaceTarget + "/m", ReadOnly: true}, box.Mount{Source: dir + "/in", Target: box.WorkspaceTarget + "/f"})
			j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: box.WorkspaceTarget + "/t", Bytes: mib})
			a := s.run(t, j).answers(t, 3)
			if a[0].Text != "side" || a[2].Text != "side" {
				t.Errorf("the mounted files read %s and %s", tell(a[0]), tell(a[2]))
			}
			works(t, "write to the tmpfs", a[1])
			holds(t, dir, map[string]string{"in": "side"})
			for _, d := range []string{"/m", "/t"} {
				holds(t, j.Workspace+d, nil)
			}
			if b, err := os.ReadFile(j.Workspace + "/f"); err != nil || string(b) != "below" {
				t.Errorf("the covered file is %q on disk (%v)", b, err)
			}
		})

		t.Run("G79 a link in the workspace or a mount does not lead another mount elsewhere, "+image, func(t *testing.T) {
			t.Parallel()
			host, inner := mounted(t, map[string]string{"secret": "of the host"}), mounted(t, map[string]string{"passwd": "planted"})
			if err := os.Mkdir(host+"/sub", 0o755); err != nil {
				t.Fatal(err)
			}
			for name, to := range map[string]string{"to /etc": "/etc", "to the host": host, "upwards": "../etc", "to the first process": box.StepDir} {
				for _, target := range []string{"/link", "/link/sub"} {
					for _, at := range []string{box.WorkspaceTarget, "/m"} {
						j := boxed(t, probe.Do("read", "/etc/passwd"), probe.Do("read", filepath.Join(host, "secret")))
						dir := j.Workspace
						if at == "/m" {
							dir = workspace(t)
							j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/m"})
						}
						if err := os.Symlink(to, dir+"/link"); err != nil {
							t.Fatal(err)
						}
						j.Mounts = append(j.Mounts, box.Mount{Source: inner, Target: at + target})
						r := s.run(t, j)
						r.faulted(t, box.StartupFailed)
						mentions(t, r, at+target)
						if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
							t.Errorf("%s: the folder with the link holds %v (%v)", name, list, err)
						}
					}
				}
			}
			if list, err := os.ReadDir(host); err != nil || len(list) != 2 {
				t.Errorf("the host's folder holds %v (%v)", list, err)
			}
		})
	}

	t.Run("a place that the host's tools do not have is startup_failed and is named", func(t *testing.T) {
		t.Parallel()
		dir := mounted(t, map[string]string{"x": ""})
		for _, target := range []string{"/usr/" + noSuchTool, "/usr/lib/" + noSuchTool + "/deep", "/bin/" + noSuchTool} {
			for what, put := range map[string]func(*step){
				"tmpfs":  func(j *step) { j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: target, Bytes: mib}) },
				"folder": func(j *step) { j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: target, ReadOnly: true}) },
				"file": func(j *step) {
					j.Mounts = append(j.Mounts, box.Mount{Source: dir + "/x", Target: target, ReadOnly: true})
				},
			} {
				t.Run(what+" at "+target, func(t *testing.T) {
					j := s.probing(t, probe.Do("ids"))
					put(&j)
					r := s.run(t, j)
					r.faulted(t, box.StartupFailed)
					mentions(t, r, target)
				})
			}
		}
	})

	t.Run("over a folder of the host's tools a mount and a tmpfs can be put", func(t *testing.T) {
		t.Parallel()
		dir := mounted(t, map[string]string{"x": "mine"})
		j := s.probing(t, probe.Do("ls", "/usr/lib"), probe.Do("ls", "/usr/share"), probe.Do("create", "/usr/share/x", ""))
		j.Mounts = append(j.Mounts, box.Mount{Source: dir, Target: "/usr/lib", ReadOnly: true})
		j.Tmpfs = append(j.Tmpfs, box.Tmpfs{Target: "/usr/share", Bytes: mib})
		a := s.run(t, j).answers(t, 3)
		if !slices.Equal(a[0].List, []string{"x"}) || len(a[1].List) != 0 {
			t.Errorf("/usr/lib holds %q, /usr/share %q", a[0].List, a[1].List)
		}
		works(t, "write to the tmpfs", a[2])
	})

	t.Run("a file over a folder, or a folder over a file, is startup_failed and is named", func(t *testing.T) {
		t.Parallel()
		dir := mounted(t, map[string]string{"x": "mine"})
		for target, source := range map[string]string{"/usr/bin": dir + "/x", "/etc/passwd": dir, "/etc/passwd/below": dir} {
			j := s.probing(t, probe.Do("ids"))
			j.Mounts = append(j.Mounts, box.Mount{Source: source, Target: target, ReadOnly: true})
			r := s.run(t, j)
			r.faulted(t, box.StartupFailed)
			mentions(t, r, target)
		}
	})

	t.Run("G79 a source that has become a link is startup_failed, wherever it leads", func(t *testing.T) {
		t.Parallel()
		dir, host := workspace(t), mounted(t, map[string]string{"secret": "of the host"})
		if err := os.Symlink(host, dir+"/link"); err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{dir + "/link", dir + "/link/secret"} {
			for _, readOnly := range []bool{true, false} {
				j := s.probing(t, probe.Do("ls", "/m"))
				j.Mounts = append(j.Mounts, box.Mount{Source: source, Target: "/m", ReadOnly: readOnly})
				r := s.run(t, j)
				r.faulted(t, box.StartupFailed)
				mentions(t, r, source)
			}
		}
		r := s.run(t, s.imaged(t, dir+"/link", probe.Do("ls", "/")))
		r.faulted(t, box.StartupFailed)
		mentions(t, r, dir+"/link")
	})

	t.Run("/dev/shm has the size that was asked for", func(t *testing.T) {
		t.Parallel()
		j := s.probing(t, probe.Do("statfs", "/dev/shm"), probe.Do("fill", "/dev/shm/x", "4000000"))
		j.ShmBytes = 2 * mib
		a := s.run(t, j).answers(t, 2)
		if a[0].N != 2*mib {
			t.Errorf("/dev/shm has %d bytes, want %d", a[0].N, 2*mib)
		}
		wantErr(t, "fill it past its size", a[1], "ENOSPC")
	})
}

// takes says whether an engine builds such a box. One that does not must be in the
// table, and must say so beforehand, naming the place.
func (s *suite) takes(t testing.TB, j step, place string) bool {
	t.Helper()
	err := s.engine.Check(j.Spec)
	if s.differ.NoWritable && (err == nil || !strings.Contains(err.Error(), place)) {
		t.Errorf("the engine says %v, want a refusal that names %s", err, place)
	}
	if err != nil && !s.differ.NoWritable {
		t.Errorf("the engine refuses: %v", err)
	}
	return err == nil
}

// mounted is a folder of the caller's with these files.
func mounted(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := workspace(t)
	for name, text := range files {
		put(t, dir, name, text, 0o644)
	}
	return dir
}

// holds fails unless a folder on the host has exactly these files.
func holds(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		text, ok := want[e.Name()]
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); !ok || err != nil || string(b) != text {
			t.Errorf("on the host, %s holds %s with %.60q (%v), want %q", dir, e.Name(), b, err, text)
		}
	}
	if len(list) != len(want) {
		t.Errorf("on the host, %s holds %d files, want %d", dir, len(list), len(want))
	}
}
