package workspace_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// scene is one run of the program: its steps are the attacks, and a folder of
// the host's, which the plan does not name, is what they are after.
type scene struct {
	*place
	*report
	host string
}

// hostFolder is somebody's folder beside everything: no step may read or change it.
func hostFolder(t testing.TB, w way) string {
	t.Helper()
	host := boxtest.OpenDir(t)
	do(t, os.WriteFile(filepath.Join(host, "secret"), []byte("of the host\n"), 0o644))
	if w.uid != 0 {
		do(t, os.Lchown(host, w.uid, w.uid), os.Lchown(filepath.Join(host, "secret"), w.uid, w.uid))
	}
	return host
}

// untouched holds that the host's folder is as it was.
func (s *scene) untouched(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.host, "secret"))
	names, err2 := os.ReadDir(s.host)
	do(t, err, err2)
	if string(b) != "of the host\n" || len(names) != 1 {
		t.Errorf("the host's file is now %q, beside it are %v", b, names)
	}
}

// violates holds that a step was dropped for a kind of violation.
func (s *scene) violates(t *testing.T, id, kind string) result {
	t.Helper()
	st := s.step(id)
	if st.Workspace != "discarded" || len(st.Violations) == 0 || slices.ContainsFunc(st.Violations, func(v struct{ Type, Message string }) bool { return v.Type != kind }) {
		t.Errorf("step %s: workspace %s, violations %+v, want it discarded for %s", id, st.Workspace, st.Violations, kind)
	}
	return st
}

func (s *scene) passes(t *testing.T, id, fate string) result {
	t.Helper()
	st := s.step(id)
	if st.Status != "passed" || len(st.Violations) > 0 || st.Workspace != fate {
		t.Errorf("step %s: %s, workspace %s, want it passed and %s: %s %+v %+v", id, st.Status, st.Workspace, fate, st.Reason, st.Fault, st.Violations)
	}
	return st
}

func (s *scene) at(path string) string { return filepath.Join(s.workspace, path) }

// absent holds that nothing has that name in the workspace.
func (s *scene) absent(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(s.at(p)); err == nil {
			t.Errorf("%q is in the workspace", p)
		}
	}
}

// has holds that changes are in a list.
func has(t *testing.T, list []workspace.Change, want ...string) {
	t.Helper()
	got := short(list)
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("the list has no %q: %q", w, clipped(got))
		}
	}
}

func clipped(list []string) []string { return list[:min(len(list), 40)] }

// asListed holds that the files of a list are on the disk as they were hashed.
func (s *scene) asListed(t *testing.T, st result) (files int) {
	t.Helper()
	for _, c := range st.Files {
		if c.Type != "file" || c.Change == workspace.Deleted {
			continue
		}
		b, err := os.ReadFile(s.at(c.RawPath()))
		do(t, err)
		if sum := sha256.Sum256(b); c.SHA256 != hex.EncodeToString(sum[:]) || c.Size != int64(len(b)) {
			t.Errorf("%s is listed with %d bytes and sum %s, and has %d and %x", c.Path, c.Size, c.SHA256, len(b), sum)
		}
		files++
	}
	return files
}

// attack is one number of the list of attacks: what is there before, what steps
// do, and what must be true after it.
type attack struct {
	name   string
	before func(t *testing.T, p *place, host string)
	steps  []scriptStep
	after  func(t *testing.T, s *scene)
}

func file(t testing.TB, path, text string) {
	t.Helper()
	do(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

func TestAttacksOnTheWorkspace(t *testing.T) {
	boxtest.Need(t, "git", "python3")
	eachWay(t, func(t *testing.T, w way) {
		host := hostFolder(t, w)
		p := newPlace(t, w)
		list := slices.Concat(linkAttacks(host), nameAttacks(), protectedAttacks(), leftAttacks())
		var steps []scriptStep
		for _, a := range list {
			if a.before != nil {
				a.before(t, p, host)
			}
			steps = append(steps, a.steps...)
		}
		p.repository(t, map[string]string{"README": "text\n"})
		do(t, os.Chtimes(filepath.Join(p.workspace, "a103/same"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
		p.give(t)
		s := &scene{place: p, report: p.run(t, w.file("", steps...)), host: host}
		s.exits(1) // some of the steps are violations
		for _, a := range list {
			t.Run(a.name, func(t *testing.T) { a.after(t, s) })
		}
		p.clean(t)
		if t.Failed() {
			t.Logf("notes %q\n%s", s.Notes, s.log[max(0, len(s.log)-4000):])
		}
	})
}
