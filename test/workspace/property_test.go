package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	stepsPerScript = 4
	linesPerStep   = 45
)

// expected is what a random script does outside any box: the tree it begins
// with, and for each step its words, its changes by a full compare, and the tree
// it leaves without what is never committed.
type expected struct {
	seed   uint64
	first  string
	texts  []string
	words  []string
	change [][]workspace.Change
	after  []string // one folder for each step
}

// outside runs a random script on a plain folder. There it is a normal user, as
// no step has root's power to pass over modes.
func outside(t testing.TB, seed uint64) *expected {
	t.Helper()
	s := newScript(seed)
	e := &expected{seed: seed}
	dir := boxtest.OpenDir(t)
	at := filepath.Join(dir, "first")
	do(t, os.Mkdir(at, 0o755))
	own(t, at)
	plainly(t, at, s.tree())
	e.first = at
	for i := range stepsPerScript {
		before := at
		at = filepath.Join(dir, fmt.Sprintf("after%d", i+1))
		copyTree(t, before, at)
		text := s.lines(linesPerStep)
		was := list(t, at)
		e.texts, e.words = append(e.texts, text), append(e.words, plainly(t, at, text))
		e.change = append(e.change, workspace.Diff(was, list(t, at)))
		uncommitted(t, before, at, e.change[i])
		e.after = append(e.after, at)
	}
	return e
}

func own(t testing.TB, path string) {
	t.Helper()
	if os.Geteuid() == 0 {
		do(t, os.Lchown(path, plainID, plainID))
	}
}

// plainly runs a text without a box.
func plainly(t testing.TB, dir, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", text)
	cmd.WaitDelay = time.Second
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainID, Gid: plainID}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("outside the box: %v\n%s", err, out)
	}
	return string(out)
}

// copyTree keeps modes, owners and FIFOs. Names of one file become files of
// their own, as a commit makes them.
func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-dR", "--preserve=mode,ownership", "-T", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
}

// uncommitted takes back what policy never commits: a FIFO that was made is not
// there, and what it stands in the place of still is.
func uncommitted(t testing.TB, before, after string, changes []workspace.Change) {
	t.Helper()
	for _, c := range changes {
		if c.Type != "fifo" || c.Change == workspace.Deleted {
			continue
		}
		path, was := filepath.Join(after, c.RawPath()), filepath.Join(before, c.RawPath())
		if c.Change == workspace.Mode {
			st, err := os.Lstat(was)
			do(t, err, os.Chmod(path, st.Mode()))
			continue
		}
		do(t, os.Remove(path))
		switch st, err := os.Lstat(was); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			t.Fatal(err)
		case st.IsDir():
			do(t, os.Mkdir(path, 0o755), os.Chmod(path, st.Mode()))
			own(t, path)
		default:
			copyTree(t, was, path)
		}
	}
}

func list(t testing.TB, dir string) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Snapshot(context.Background(), dir, nil, workspace.Options{})
	do(t, err)
	return tree
}

// differences are those between two folders.
func differences(t testing.TB, want, got string) []string {
	t.Helper()
	var out []string
	for _, c := range workspace.Diff(list(t, want), list(t, got)) {
		out = append(out, fmt.Sprintf("%s %s %q %s %s", c.Change, c.Type, c.RawPath(), c.Mode, c.Target))
	}
	return out
}

func do(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// scripts are the random scripts to try, the same ones for every way.
func scripts(t testing.TB, most int) (list []*expected) {
	t.Helper()
	if *oneSeed != 0 {
		return []*expected{outside(t, *oneSeed)}
	}
	for seed := range min(*seeds, most) {
		list = append(list, outside(t, uint64(seed)+1))
	}
	return list
}

// file has a step for each part of the script.
func (e *expected) file(w way) string {
	var list []scriptStep
	for i, text := range e.texts {
		list = append(list, scriptStep{id: fmt.Sprintf("s%d", i+1), text: text})
	}
	return w.file("  env: {LC_ALL: C.UTF-8}\n", list...)
}

// holds says what of a run is not as the script outside had it. by is the word
// of how steps were kept from the workspace itself.
func (e *expected) holds(t testing.TB, p *place, r *report, by string) {
	t.Helper()
	for i := range e.texts {
		st := r.step(fmt.Sprintf("s%d", i+1))
		if len(st.Violations) > 0 || st.WorkspaceBy != by {
			t.Errorf("seed %d, step %s: %s, workspace by %s, violations %+v", e.seed, st.ID, st.Workspace, st.WorkspaceBy, st.Violations)
		}
		if diff := cmp.Diff(e.words[i], r.stdout(st.ID)); diff != "" {
			t.Errorf("seed %d, step %s: what its commands came to (-outside +in the box)\n%s", e.seed, st.ID, diff)
		}
		// A name that a file had before is told by one of the lists only.
		opts := cmp.Options{cmpopts.IgnoreFields(workspace.Change{}, "From", "Unreadable"), cmpopts.EquateEmpty()}
		if diff := cmp.Diff(p.seen(e.change[i]), p.seen(st.Files), opts); diff != "" {
			t.Errorf("seed %d, step %s: its changes (-full compare outside +report)\n%s", e.seed, st.ID, diff)
		}
		if st.FilesTotal != len(st.Files) {
			t.Errorf("seed %d, step %s: filesTotal is %d, and %d are listed", e.seed, st.ID, st.FilesTotal, len(st.Files))
		}
		renamed(t, st)
	}
	if *oneSeed != 0 {
		for i, text := range e.texts {
			t.Logf("step s%d:\n%s", i+1, text)
		}
	}
	if list := differences(t, e.after[len(e.after)-1], p.workspace); list != nil {
		t.Errorf("seed %d: the workspace after the run differs from the folder outside:\n%s", e.seed, strings.Join(list, "\n"))
	}
}

// seen is a list as who runs the program can make it. What a normal user may not
// read has no SHA-256, and whether its content changed nobody knows: it is listed
// whenever it was touched.
func (w way) seen(list []workspace.Change) (out []workspace.Change) {
	for _, c := range list {
		mode, err := strconv.ParseUint(c.Mode, 8, 16)
		if w.normal() && err == nil && c.Type == "file" && mode&0o400 == 0 {
			if c.Change == workspace.Modified || c.Change == workspace.Mode {
				continue
			}
			c.SHA256 = ""
		}
		out = append(out, c)
	}
	return out
}

// renamed holds that a rename is told where content says so.
func renamed(t testing.TB, st result) {
	t.Helper()
	for _, c := range st.Files {
		if c.From == "" {
			continue
		}
		i := slices.IndexFunc(st.Files, func(o workspace.Change) bool {
			return o.Change == workspace.Deleted && o.SHA256 == c.SHA256 && o.Path == c.From
		})
		if c.Change != workspace.Created || c.SHA256 == "" || i < 0 {
			t.Errorf("step %s: %q is said to be renamed from %q", st.ID, c.Path, c.From)
		}
	}
}

func TestTheSameScriptLeavesTheSameTreeInABoxAndOutside(t *testing.T) {
	list := scripts(t, *seeds)
	worked(t, list)
	eachWay(t, func(t *testing.T, w way) {
		for _, e := range list {
			p := newPlace(t, w)
			do(t, os.Remove(p.workspace))
			copyTree(t, e.first, p.workspace)
			p.own(t)
			r := p.run(t, e.file(w))
			r.exits(0)
			e.holds(t, p, r, "overlay")
			p.clean(t)
			if t.Failed() {
				t.Fatalf("go on with -seed %d", e.seed)
			}
		}
	})
}

// worked is the control: scripts that fail at everything would hold anywhere.
func worked(t *testing.T, list []*expected) {
	t.Helper()
	ok, all := map[string]int{}, 0
	kinds := map[string]int{}
	for _, e := range list {
		for _, words := range e.words {
			for line := range strings.Lines(words) {
				all++
				if name, did := strings.CutPrefix(strings.TrimSpace(line), "ok "); did {
					ok[name]++
				}
			}
		}
		for _, changes := range e.change {
			for _, c := range changes {
				kinds[c.Change+" "+c.Type]++
			}
		}
	}
	t.Logf("of %d lines worked %v; changes %v", all, ok, kinds)
	if len(list) < 6 {
		return // too few for what follows
	}
	for _, o := range ops {
		if ok[o.name] == 0 {
			t.Errorf("control: nothing of the kind %q worked", o.name)
		}
	}
	for _, k := range []string{"created file", "created dir", "created symlink", "created fifo", "modified file", "modified symlink", "deleted file",
		"deleted dir", "deleted symlink", "deleted fifo", "mode file", "mode dir", "retyped file", "retyped dir", "retyped symlink", "retyped fifo"} {
		if kinds[k] == 0 {
			t.Errorf("control: no change is %s", k)
		}
	}
}

// The control of the comparison itself: each way in which a tree can be wrong is
// seen.
func TestDifferencesOfTwoFoldersAreSeen(t *testing.T) {
	e := outside(t, 1)
	for _, c := range []struct{ name, text, want string }{
		{"nothing", ":", ""},
		{"a byte", "put text000 ./a/fresh; rm -r ./b; mkdir ./b; put texu000 ./a/fresh", "modified"},
		{"a mode", "chmod 701 ./a", "mode"},
		{"a file too many", "put text ./a/more", "created"},
		{"a file too few", "rm -rf ./b", "deleted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := boxtest.OpenDir(t)
			one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
			copyTree(t, e.first, one)
			plainly(t, one, prologue+"rm -rf ./a ./b; mkdir ./a ./b; put text000 ./a/fresh; put x ./b/x; chmod 755 ./a")
			copyTree(t, one, two)
			plainly(t, two, prologue+c.text)
			got := strings.Join(differences(t, one, two), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("seen: %s, want %q", got, c.want)
			}
		})
	}
}
