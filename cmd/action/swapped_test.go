package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// stranger is a user of the machine who is not the one who runs boxes.
const stranger = 54321

// swapper is that user at work in folders of their own, in which root writes: as
// long as a run is on, what has a name there leads to victim, and back.
type swapper struct {
	stop, done chan struct{}
	swaps      int
}

// swap begins, after a while. each gives the paths to do it to, anew each time.
func swap(t *testing.T, victim string, after time.Duration, each func() []string) *swapper {
	t.Helper()
	w := &swapper{stop: make(chan struct{}), done: make(chan struct{})}
	began := make(chan error)
	go func() {
		defer close(w.done)
		runtime.LockOSThread() // it is another's from here on, and ends with this
		none := ^uintptr(0)
		if _, _, en := syscall.RawSyscall(syscall.SYS_SETRESGID, none, stranger, none); en != 0 {
			began <- en
			return
		}
		if _, _, en := syscall.RawSyscall(syscall.SYS_SETRESUID, none, stranger, none); en != 0 {
			began <- en
			return
		}
		began <- nil
		time.Sleep(after)
		for {
			select {
			case <-w.stop:
				return
			default:
			}
			for _, path := range each() {
				moved := path + ".moved"
				if unix.Rename(path, moved) != nil {
					continue
				}
				if unix.Symlink(victim, path) == nil {
					w.swaps++
				}
				runtime.Gosched()
				time.Sleep(time.Duration(w.swaps%7) * 50 * time.Microsecond)
				_ = unix.Unlink(path)
				_ = unix.Rename(moved, path)
			}
		}
	}()
	if err := <-began; err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *swapper) end() int {
	close(w.stop)
	<-w.done
	return w.swaps
}

// all lists what is in a folder, with whom it belongs to, its mode, and what it holds.
func all(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		holds := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			holds = fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(text))
		case unix.S_IFLNK:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			holds = " -> " + to
		}
		list = append(list, fmt.Sprintf("%s %o %d:%d%s", rel, st.Mode, st.Uid, st.Gid, holds))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// theirs makes a folder of the stranger's, and folders in it.
func theirs(t *testing.T, names ...string) string {
	t.Helper()
	dir := filepath.Join(boxtest.OpenDir(t), "home")
	for _, d := range append([]string{""}, names...) {
		at := filepath.Join(dir, d)
		if err := errors.Join(os.MkdirAll(at, 0o755), os.Chown(at, stranger, stranger)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rootsOwn is a folder that nobody but root has anything to do with.
func rootsOwn(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(boxtest.OpenDir(t), "victim")
	for _, d := range []string{"", "s", "steps", "steps/a", "report", "tmp", ".git", "sub"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"s/control", "steps/a/kept", "report.json", "summary.md", ".git/config", "config", "wanted", "sub/wanted"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("roots\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const someWork = `
steps:
  - id: a
    run: 'echo 1 >a; head -c 300k /dev/zero >large; printf "it %s\n" ran'
  - id: b
    run: 'echo 2 >b; mkdir -p d/e; echo 3 >d/e/f; ls'
  - id: c
    run: 'rm -f large; cat a b'
  - id: d
    setup: 'mkdir .deps && cat wanted sub/wanted >.deps/made'
    setupCache: [wanted, sub/wanted]
    setupEgress: []
    run: 'cat .deps/made'
`

// leaveToken makes a workspace a checkout that has left a token in it, of which a box
// is shown a copy without: a mask, which root makes.
func leaveToken(t *testing.T, workspace string) {
	t.Helper()
	dir := filepath.Join(workspace, ".git")
	for _, d := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const config = "[core]\n\trepositoryformatversion = 0\n[http \"https://example.com/\"]\n\textraheader = AUTHORIZATION: basic c2VzYW1lLW9wZW4=\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644), os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// leaveWanted makes what a setup that is kept is shown of a workspace, which root puts
// down for it elsewhere.
func leaveWanted(t *testing.T, workspace string) {
	t.Helper()
	err := os.MkdirAll(filepath.Join(workspace, "sub"), 0o755)
	for _, name := range []string{"wanted", "sub/wanted"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(workspace, name), []byte("wanted\n"), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAttackFoldersSwappedBeneathRoot: root runs steps with its report, or the
// workspace, in a folder of another user's, who puts links in the place of what is
// there. Nothing that is not below that folder is written, given away or removed.
func TestAttackFoldersSwappedBeneathRoot(t *testing.T) {
	boxtest.Need(t, "root")
	const rounds = 3
	eachEngine(t, func(t *testing.T, engine string) {
		for name, where := range map[string]struct {
			out, workspace string // in the stranger's home
			swapped        func(home string) []string
		}{
			"the folder above the report": {out: "deep/report", workspace: "", swapped: func(home string) []string {
				return []string{filepath.Join(home, "deep")}
			}},
			"the report": {out: "report", swapped: func(home string) []string { return []string{filepath.Join(home, "report")} }},
			"its steps":  {out: "report", swapped: func(home string) []string { return []string{filepath.Join(home, "report", "steps")} }},
			"beside the workspace": {workspace: "ws", swapped: func(home string) (list []string) {
				entries, _ := os.ReadDir(home)
				for _, e := range entries {
					if e.IsDir() && e.Name() != "ws" && !strings.HasSuffix(e.Name(), ".moved") {
						list = append(list, filepath.Join(home, e.Name()))
					}
				}
				return list
			}},
		} {
			t.Run(name, func(t *testing.T) {
				swaps, ran, masked, passed := 0, 0, 0, 0
				round := 0
				// More of them where none got as far as a step: each is left alone for longer.
				for ; round < rounds || (ran == 0 || masked == 0) && round < 5*rounds; round++ {
					home, victim := theirs(t, "deep", "report", "ws"), rootsOwn(t)
					r := prepare(t, engine, someWork)
					if where.out != "" {
						at := slices.Index(r.cmd.Args, "--out")
						r.cmd.Args[at+1] = filepath.Join(home, where.out)
					}
					if where.workspace != "" {
						r.cmd.Dir = filepath.Join(home, where.workspace)
					}
					leaveToken(t, r.cmd.Dir)
					leaveWanted(t, r.cmd.Dir)
					r.cmd.Env = append(r.cmd.Env, "XDG_CACHE_HOME="+filepath.Join(r.dir, "cache"))
					before := all(t, victim)
					w := swap(t, victim, time.Duration(round)*90*time.Millisecond, func() []string { return where.swapped(home) })
					r.start()
					code := r.end()
					swaps += w.end()
					log := r.log.String()
					if strings.Contains(log, "it ran\n") {
						ran++
					}
					if strings.Contains(log, ".git/config") {
						masked++
					}
					if code == 0 {
						passed++
					}
					if after := all(t, victim); !slices.Equal(before, after) {
						t.Fatalf("exit status %d; what root alone may change is\n%s\nand was\n%s\n%s", code, strings.Join(after, "\n"), strings.Join(before, "\n"), &r.log)
					}
				}
				if swaps == 0 {
					t.Error("nothing was swapped, so this shows nothing")
				}
				if ran == 0 || masked == 0 {
					t.Errorf("of %d runs %d ran a step and %d had a mask, so this shows nothing", round, ran, masked)
				}
				t.Logf("%d swaps; of %d runs %d ran a step, %d had a mask, %d passed", swaps, round, ran, masked, passed)
			})
		}
	})
}

// TestAttackNothingIsBuiltInAFolderOfAnother: nor is what boxes are started by: a job
// of the action builds runsc, and Go and pip, which root starts for it, write there.
func TestAttackNothingIsBuiltInAFolderOfAnother(t *testing.T) {
	boxtest.Need(t, "root")
	for name, c := range map[string]struct {
		args []string
		vars []string
	}{
		"a job of the action":   {vars: []string{"UNTRUSTED_STEPS_OUT=REPORT"}},
		"a job without --out":   {},
		"a run asked to":        {args: []string{"runsc", "build"}},
		"kern, which pip finds": {args: []string{"kern", "install"}},
	} {
		t.Run(name, func(t *testing.T) {
			home, tools, own := theirs(t, "tmp"), t.TempDir(), boxtest.OpenDir(t)
			asked := filepath.Join(tools, "asked")
			for _, tool := range []string{"go", "python3", "pip", "pip3"} {
				script := "#!/bin/sh\necho " + tool + " >>" + asked + "\nexit 1\n"
				if err := os.WriteFile(filepath.Join(tools, tool), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r := prepareIn(t, own, "gvisor", someWork)
			r.cmd.Args = append([]string{toolName}, c.args...)
			r.cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + own, "XDG_CACHE_HOME=" + filepath.Join(own, "cache")}
			run := func(temp string) (string, int) {
				r.log.Reset()
				again := exec.Command("/proc/self/exe")
				again.Args, again.Dir, again.Stdout, again.Stderr = r.cmd.Args, r.cmd.Dir, &r.log, &r.log
				again.Env = append(r.cmd.Env, "TMPDIR="+temp, "GITHUB_ACTIONS=true", "GITHUB_WORKSPACE="+r.cmd.Dir, "UNTRUSTED_STEPS_HOST_SETUP=off",
					"UNTRUSTED_STEPS_STEPS=[{id: one, engine: gvisor, run: echo}]")
				for _, v := range c.vars {
					again.Env = append(again.Env, strings.ReplaceAll(v, "REPORT", filepath.Join(own, filepath.Base(temp)+"-out")))
				}
				r.cmd = again
				r.start()
				code := r.end()
				text, _ := os.ReadFile(asked)
				return string(text), code
			}
			if was, code := run(filepath.Join(home, "tmp")); was != "" || code != exitRefused || !strings.Contains(r.log.String(), "export TMPDIR=/tmp") {
				t.Errorf("exit status %d, and these were started: %q\n%s", code, was, &r.log)
			}
			if left := all(t, filepath.Join(home, "tmp")); len(left) != 1 {
				t.Errorf("left there: %v", left)
			}
			// The control: elsewhere they are.
			fit := filepath.Join(own, "fit")
			if err := os.Mkdir(fit, 0o755); err != nil {
				t.Fatal(err)
			}
			if was, code := run(fit); was == "" {
				t.Errorf("exit status %d, and nothing was started in a folder of root's, so this shows nothing\n%s", code, &r.log)
			}
		})
	}
}

// TestAttackTemporaryFolderOfAnother: boxes of root are not made of what lies where
// somebody else could put other things, and nothing is left or changed there.
func TestAttackTemporaryFolderOfAnother(t *testing.T) {
	boxtest.Need(t, "root")
	eachEngine(t, func(t *testing.T, engine string) {
		for _, out := range []bool{true, false} {
			home := theirs(t, "tmp")
			r := prepare(t, engine, someWork)
			r.cmd.Env = append(r.cmd.Env, "TMPDIR="+filepath.Join(home, "tmp"))
			if !out {
				at := slices.Index(r.cmd.Args, "--out")
				r.cmd.Args = slices.Delete(r.cmd.Args, at, at+2)
			}
			r.start()
			if code := r.end(); code != exitRefused {
				t.Errorf("exit status %d", code)
			}
			for _, want := range []string{"belongs to user 54321", "export TMPDIR=/tmp", "nothing ran"} {
				if !strings.Contains(r.log.String(), want) {
					t.Errorf("%q is not said:\n%s", want, &r.log)
				}
			}
			if left := all(t, filepath.Join(home, "tmp")); len(left) != 1 {
				t.Errorf("left there: %v", left)
			}
		}
	})
}
