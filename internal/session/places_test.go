package session

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestProofsAreRememberedWhereNoStepCanWrite(t *testing.T) {
	home := t.TempDir()
	state := filepath.Join(home, "state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(home, "link")
	if err := os.Symlink(state, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		home, xdg, workspace, want string
	}{
		"in the home":                   {home, "", "/w", home + "/.local/state/untrusted-steps/proofs"},
		"where XDG says":                {home, state, "/w", state + "/untrusted-steps/proofs"},
		"beside the workspace":          {home, "", home + "/w", home + "/.local/state/untrusted-steps/proofs"},
		"in the workspace":              {home, state, home, ""},
		"in the workspace by a link":    {home, link, state, ""},
		"no home":                       {"", "", "/w", ""},
		"a home that is not there":      {home + "/none", "", "/w", ""},
		"the root as a home":            {"/", "", "/w", ""},
		"a home that is no place":       {"here", "", "/w", ""},
		"all is in the workspace":       {home, "", "/", ""},
		"a place of XDG without a root": {home, "state", "/w", home + "/.local/state/untrusted-steps/proofs"},
	} {
		getenv := func(n string) string { return map[string]string{"HOME": c.home, "XDG_STATE_HOME": c.xdg}[n] }
		if got := ProofDir(getenv, c.workspace); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A run and doctor make folders beside the workspace, where no sweep of the folder
// for temporary files comes: what a killed one has left there goes too.
func TestSweepBesideTheWorkspace(t *testing.T) {
	top, home := t.TempDir(), t.TempDir()
	workspace := filepath.Join(top, "workspace")
	old := time.Now().Add(-time.Hour)
	var gone, stays []string
	for _, dir := range []string{top, home} {
		gone = append(gone, filepath.Join(dir, "us-doctor-1"), filepath.Join(dir, "us-probe-22"))
		stays = append(stays, filepath.Join(dir, "us-doctor-x"), filepath.Join(dir, "project"))
	}
	for _, dir := range append(append([]string{workspace}, gone...), stays...) {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chtimes(dir, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	Sweep(func(name string) string { return map[string]string{"HOME": home}[name] }, workspace)
	for _, dir := range gone {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	for _, dir := range append(stays, workspace) {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// Of a folder that is not there nobody says that it is somebody else's.
func TestTemporaryFolderThatRootCannotUse(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	theirs, file := filepath.Join(dir, "theirs"), filepath.Join(dir, "file")
	if err := errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 54321, 54321), os.WriteFile(file, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for temp, c := range map[string]struct{ want, not string }{
		"/nonexistent":                   {"no temporary folder can be made: the folder for temporary files, /nonexistent, cannot be had: /nonexistent: no such file or directory", "others"},
		filepath.Join(dir, "no", "such"): {filepath.Join(dir, "no") + ": no such file or directory", "others"},
		filepath.Join(file, "in"):        {"not a directory", "others"},
		theirs:                           {theirs + " belongs to user 54321, who could put others in the place", "cannot be had"},
		filepath.Join(theirs, "none"):    {theirs + " belongs to user 54321, who could put others in the place", "cannot be had"},
	} {
		t.Setenv("TMPDIR", temp)
		ref := RefuseTemp()
		if ref == nil || !strings.Contains(ref.Cause, c.want) || strings.Contains(ref.Cause, c.not) {
			t.Errorf("%s: %+v", temp, ref)
		}
	}
	t.Setenv("TMPDIR", "/tmp")
	if ref := RefuseTemp(); ref != nil {
		t.Errorf("/tmp: %+v", ref)
	}
}

func TestTempIsNotInTheWorkspace(t *testing.T) {
	ws := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Mkdir(filepath.Join(ws, "tmp"), 0o700), os.Symlink(filepath.Join(ws, "tmp"), link)); err != nil {
		t.Fatal(err)
	}
	for _, inside := range []string{ws, filepath.Join(ws, "tmp"), link} {
		t.Setenv("TMPDIR", inside)
		if ref := refuseTempIn(ws); ref == nil || !strings.Contains(ref.Cause, inside) {
			t.Errorf("TMPDIR=%s: %+v", inside, ref)
		}
		if to := MoveTemp(ws); to != "/tmp" || os.TempDir() != "/tmp" || refuseTempIn(ws) != nil {
			t.Errorf("TMPDIR=%s: moved to %q, it is %s now", inside, to, os.TempDir())
		}
	}
	t.Setenv("TMPDIR", "/tmp")
	if to := MoveTemp(ws); to != "" || refuseTempIn(ws) != nil {
		t.Errorf("moved to %q", to)
	}
	// Where every one of them is in it, none is taken.
	if to := MoveTemp("/"); to != "" || refuseTempIn("/") == nil {
		t.Errorf("moved to %q", to)
	}
}
