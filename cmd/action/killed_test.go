package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kill ends the program as nobody can catch, and waits for it.
func (r *running) kill() {
	r.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	if code := r.end(); code != -int(syscall.SIGKILL) {
		r.t.Fatalf("exit status %d", code)
	}
}

// start does not wait for anything.
func (r *running) start() {
	r.t.Helper()
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// ofKernel lists what the kernel holds of a folder: mounts in it or from it, and
// loop devices on a file of it, also one without a name.
func ofKernel(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range backing {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), dir) {
			out = append(out, path+": "+strings.TrimSpace(string(b)))
		}
	}
	return out
}

// TestKilledWhileAStepWrites: what it wrote is in no workspace, and the next run
// takes away what lies beside it.
func TestKilledWhileAStepWrites(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		for _, jobs := range []string{"1", "3"} {
			t.Run("jobs "+jobs, func(t *testing.T) {
				r := prepare(t, engine, `
steps:
  - id: before
    run: echo new >passed
  - id: writes
    needs: before
    timeoutS: 120
    run: |
      echo half >file
      head -c 3m /dev/zero >large
      mkdir -p deep/deeper
      ln file deep/deeper/linked
      echo begun
      sleep 60
`)
				r.cmd.Args = slices.Insert(r.cmd.Args, 2, "--jobs", jobs)
				ws := filepath.Join(r.dir, "ws")
				if err := os.WriteFile(filepath.Join(ws, "file"), []byte("old"), 0o644); err != nil {
					t.Fatal(err)
				}
				r.begin()
				r.kill()
				store := filepath.Join(r.dir, ".ws.untrusted-steps")
				if _, err := os.Stat(store); err != nil {
					t.Fatalf("the killed run has left nothing beside the workspace, so this shows nothing: %v", err)
				}
				if !eventually(10*time.Second, func() bool { return len(ofKernel(t, r.dir)) == 0 }) {
					t.Errorf("the kernel still holds %v", ofKernel(t, r.dir))
				}
				next := prepareIn(t, r.dir, engine, "steps: [{id: next, run: 'cat file passed; ls; echo newer >file'}]")
				next.start()
				if code := next.end(); code != exitPass {
					t.Fatalf("the next run: exit status %d\n%s", code, &next.log)
				}
				if b, err := os.ReadFile(filepath.Join(r.dir, "out", "steps", "next", "stdout.log")); err != nil || string(b) != "oldnew\nfile\npassed\n" {
					t.Errorf("the next run's step finds %q (%v)", b, err)
				}
				if b, err := os.ReadFile(filepath.Join(ws, "file")); err != nil || string(b) != "newer\n" {
					t.Errorf("and its own changes are lost: %q (%v)", b, err)
				}
				nothingBeside(t, r.dir)
				if left := ofKernel(t, r.dir); len(left) > 0 {
					t.Errorf("the kernel holds %v", left)
				}
			})
		}
	})
}

// TestKilledWhileAStepIsCommitted: whenever it is, the workspace after the next
// start is what it was before the step, or what the step made of it, and once
// anything of that was to be seen, all of it is there.
func TestKilledWhileAStepIsCommitted(t *testing.T) {
	const files, moments = 250, 8
	eachEngine(t, func(t *testing.T, engine string) {
		begun := func() (*running, string) {
			r := prepare(t, engine, fmt.Sprintf(`
steps:
  - id: one
    run: |
      i=0
      while [ $i -lt %d ]; do echo longer >f$i; i=$((i+1)); done
      rm gone
      echo begun
  - {id: two, run: sleep 60, timeoutS: 120}
`, files))
			ws := filepath.Join(r.dir, "ws")
			names := []string{"gone"}
			for i := range files {
				names = append(names, fmt.Sprintf("f%d", i))
			}
			for _, name := range names {
				if err := os.WriteFile(filepath.Join(ws, name), []byte("old\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			r.begin()
			return r, ws
		}
		// changed says whether anything of the step's is to be seen. Which file is
		// first is not ours to know.
		changed := func(ws string) bool {
			if _, err := os.Stat(filepath.Join(ws, "gone")); err != nil {
				return true
			}
			for i := 0; i < files; i += 50 {
				if info, err := os.Stat(filepath.Join(ws, fmt.Sprintf("f%d", i))); err != nil || info.Size() != 4 {
					return true
				}
			}
			return false
		}
		content := func(ws string) map[string]int {
			found := map[string]int{}
			names, err := os.ReadDir(ws)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range names {
				b, err := os.ReadFile(filepath.Join(ws, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				found[strings.TrimSpace(string(b))]++
			}
			return found
		}
		before, after := map[string]int{"old": files + 1}, map[string]int{"longer": files}
		var until time.Duration // from the step's last word to its commit
		seen := map[string]int{}
		for i := range moments {
			r, ws := begun()
			start := time.Now()
			mustBe := false
			if i < moments/2 {
				for !changed(ws) {
					if time.Since(start) > 20*time.Second {
						t.Fatalf("nothing of the step came into the workspace\n%s", &r.log)
					}
				}
				mustBe, until = true, max(until, time.Since(start))
			} else {
				time.Sleep(until * time.Duration(i-moments/2) * 2 / moments)
			}
			r.kill()
			if found := content(ws); !maps.Equal(found, before) && !maps.Equal(found, after) {
				seen["killed in between"]++
			}
			next := prepareIn(t, r.dir, engine, "steps: [{id: next, run: 'true'}]")
			next.start()
			if code := next.end(); code != exitPass {
				t.Fatalf("the next run: exit status %d\n%s", code, &next.log)
			}
			switch found := content(ws); {
			case maps.Equal(found, before) && !mustBe:
				seen["old"]++
			case maps.Equal(found, after):
				seen["new"]++
			default:
				t.Errorf("the workspace has %v; its commit had begun: %t", found, mustBe)
			}
			nothingBeside(t, r.dir)
		}
		t.Logf("of the workspaces over which runs were killed: %v; a commit began within %s", seen, until)
	})
}
