package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// beside makes runs of one steps file that are under way at once, each with a
// report folder and a folder to be told through of its own. They share one
// workspace, or have one each.
func beside(t *testing.T, engine, stepsFile string, shared bool, names ...string) (dir string, runs []*running) {
	t.Helper()
	dir = boxtest.OpenDir(t)
	ws := filepath.Join(dir, "shared")
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Mkdir(ws, 0o755), os.Mkdir(tmp, 0o755), os.Chmod(tmp, os.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		r := prepareIn(t, filepath.Join(dir, name), engine, stepsFile)
		if shared {
			r.cmd.Dir = ws
		}
		// What else they make is in a folder that they share, as /tmp is.
		r.cmd.Env = append(r.cmd.Env, "TMPDIR="+filepath.Join(dir, "tmp"))
		runs = append(runs, r)
	}
	return dir, runs
}

// pass waits for runs that must not have harmed each other.
func pass(t *testing.T, runs ...*running) {
	t.Helper()
	for _, r := range runs {
		if code := r.end(); code != exitPass {
			t.Errorf("%s: exit status %d\n%s", filepath.Base(r.dir), code, &r.log)
		}
		if left := groups(t, r.cmd.Process.Pid); len(left) > 0 {
			t.Errorf("%s has left the control groups %v", filepath.Base(r.dir), left)
		}
	}
}

// nothingIn holds that runs have left nothing in a folder.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, %v", dir, left, err)
	}
}

// aged makes what is in a folder look old, and counts it.
func aged(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, e := range list {
		if err := os.Chtimes(filepath.Join(dir, e.Name()), old, old); err != nil {
			t.Fatal(err)
		}
	}
	return len(list)
}

// own gives the control groups that are there for one run, which must be some.
func own(t *testing.T, r *running) []string {
	t.Helper()
	list := groups(t, r.cmd.Process.Pid)
	if len(list) == 0 {
		t.Fatalf("%s has no control group while a step of it runs", filepath.Base(r.dir))
	}
	return list
}

// TestTwoAtOnce: attack 162. Two runs of the same steps on one machine, in one
// workspace or in two, share no name, port, folder or group, and each ends as if
// it were alone.
func TestTwoAtOnce(t *testing.T) {
	// A service of the host that boxes reach as a port of their own: the same in
	// both, and one that no other process may have to give up.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello")
			c.Close()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	file := fmt.Sprintf(`
steps:
  - id: same
    timeoutS: 120
    mounts: {TELL: /tell}
    egressAllow: [{to: "tcp://127.0.0.1:%d", private: true}]
    language: python
    run: |
      import os, socket, time
      name = open("/tell/name").read().strip()
      open("by-" + name, "w").write(name)
      os.mkdir("folder-" + name)
      open("/tmp/mine", "x").write(name)
      print("begun", flush=True)
      while not os.path.exists("/tell/go"): time.sleep(0.02)
      assert open("/tmp/mine").read() == name
      assert socket.create_connection(("127.0.0.1", %d), 10).recv(16) == b"hello\n"
      others = [n for n in os.listdir(".") if n.startswith("by-") and n != "by-" + name]
      assert SHARED or not others, others
  - id: after
    needs: same
    run: 'true'
`, port, port)
	eachEngine(t, func(t *testing.T, engine string) {
		for _, shared := range []bool{true, false} {
			t.Run(map[bool]string{true: "one workspace", false: "two workspaces"}[shared], func(t *testing.T) {
				// In one workspace a step may see what the other run has committed
				// meanwhile, and never what it has not.
				file := strings.ReplaceAll(file, "SHARED", map[bool]string{true: "True", false: "False"}[shared])
				dir, runs := beside(t, engine, file, shared, "one", "two")
				seen := map[string]bool{}
				for _, r := range runs {
					if err := os.WriteFile(filepath.Join(r.dir, "tell", "name"), []byte(filepath.Base(r.dir)), 0o644); err != nil {
						t.Fatal(err)
					}
					r.begin()
				}
				for _, r := range runs {
					for _, g := range own(t, r) {
						if seen[g] {
							t.Errorf("both runs have the group %s", g)
						}
						seen[g] = true
					}
				}
				for _, r := range runs {
					r.tell("go")
				}
				pass(t, runs...)
				for _, r := range runs {
					name := filepath.Base(r.dir)
					ws := r.cmd.Dir
					if b, err := os.ReadFile(filepath.Join(ws, "by-"+name)); err != nil || string(b) != name {
						t.Errorf("what %s wrote is %q: %v", name, b, err)
					}
					rep := r.report()
					var changed []string
					for _, f := range rep.Steps[0].Files {
						changed = append(changed, f.Path)
					}
					slices.Sort(changed)
					if want := []string{"by-" + name, "folder-" + name}; !slices.Equal(changed, want) {
						t.Errorf("%s lists the changes %q, want %q", name, changed, want)
					}
				}
				nothingBeside(t, dir)
				nothingIn(t, filepath.Join(dir, "tmp"))
				if left := ofKernel(t, dir); len(left) > 0 {
					t.Errorf("the kernel holds %v", left)
				}
			})
		}
	})
}

const waiting = `
steps:
  - id: same
    timeoutS: 120
    mounts: {TELL: /tell}
    run: |
      echo $$ >mine
      echo begun
      until test -e /tell/go; do sleep 0.02; done
      rm mine
`

// TestKilledBesideALivingRun: attacks 161 and 163. What a killed run has left is
// swept by the next start, by whose it is: a run under way in the same workspace,
// with the same steps, loses nothing, and nothing of it is taken for a leftover.
func TestKilledBesideALivingRun(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		for _, shared := range []bool{true, false} {
			t.Run(map[bool]string{true: "one workspace", false: "two workspaces"}[shared], func(t *testing.T) {
				dir, runs := beside(t, engine, waiting, shared, "killed", "living", "next")
				killed, living, next := runs[0], runs[1], runs[2]
				killed.begin()
				living.begin()
				mine := own(t, living)
				pid := killed.cmd.Process.Pid
				own(t, killed)
				killed.kill()
				if len(groups(t, pid)) == 0 {
					t.Fatal("the killed run has left no control group, so this shows nothing")
				}
				// A folder is not swept while it is young. Made old, that of the living
				// run is kept by its lock alone.
				kept := aged(t, filepath.Join(dir, "tmp"))
				next.begin()
				if left := groups(t, pid); len(left) > 0 {
					t.Errorf("the next run began, and of the killed one there still are %v", left)
				}
				if now := groups(t, living.cmd.Process.Pid); !slices.Equal(now, mine) {
					t.Errorf("the living run had the groups %v, and has %v", mine, now)
				}
				if engine == "kern" && kept < 2 {
					t.Errorf("%d folders of boxes were there, of a killed and a living run", kept)
				}
				for _, r := range []*running{living, next} {
					r.tell("go")
				}
				pass(t, living, next)
				// Without one to share, the workspace of the killed run waits for its
				// own next run.
				again := prepareIn(t, killed.dir, engine, "steps: [{id: again, run: 'true'}]")
				again.start()
				pass(t, again)
				nothingBeside(t, dir)
				nothingIn(t, filepath.Join(dir, "tmp"))
				nothingBeside(t, killed.dir)
				if !eventually(10*time.Second, func() bool { return len(ofKernel(t, dir)) == 0 }) {
					t.Errorf("the kernel holds %v", ofKernel(t, dir))
				}
			})
		}
	})
}
