package session

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/registry"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// toolName names the folders that are ours.
const toolName = "untrusted-steps"

// StateDirs are where transactions of a workspace may live if its own parent
// folder takes none. Not in a folder for temporary files: steps may have that
// mounted, and what is written here is believed.
func StateDirs(getenv func(string) string, workspace string) (dirs []string) {
	sum := sha256.Sum256([]byte(workspace))
	for _, base := range stateBases(getenv) {
		dirs = append(dirs, filepath.Join(base, hex.EncodeToString(sum[:8])))
	}
	return dirs
}

// stateBases are where state of the caller's own may be kept, the best first. No
// box is ever shown one; steps.Guard knows the same places.
func stateBases(getenv func(string) string) (dirs []string) {
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		dirs = append(dirs, filepath.Join(d, toolName))
	}
	if d := getenv("HOME"); filepath.IsAbs(d) && d != "/" {
		dirs = append(dirs, filepath.Join(d, ".local", "state", toolName))
	}
	return dirs
}

// Within says whether a path is a folder or lies in it, by their names.
func Within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// toolsOf are the folders of a view that this host has at the same place: what a
// link leads to in one of them is the same outside the box.
func toolsOf(v rootfs.View) []string {
	tools := slices.Clone(v.Binds)
	for at, to := range v.Links {
		if real, err := os.Readlink(at); err == nil && real == to {
			tools = append(tools, at)
		}
	}
	slices.Sort(tools)
	return tools
}

// Real follows links of the host; "" if there is nothing at the end.
func Real(path string) string {
	p, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return p
}

// KeptIn are the folders that what steps write may be kept in, the best first:
// the one that holds the workspace, then those that exist of the caller's own.
func KeptIn(getenv func(string) string, workspace string) []string {
	places := []string{filepath.Dir(workspace)}
	for _, dir := range StateDirs(getenv, workspace) {
		for dir != "/" {
			if _, err := os.Stat(dir); err == nil {
				places = append(places, dir)
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	return slices.Compact(places)
}

// Sweep takes away what killed runs have left, wherever they make folders: for
// temporary files, and beside a workspace. Where others choose the names, they could
// give one of ours to another folder.
func Sweep(getenv func(string) string, workspace string) {
	scratch.Sweep("", time.Now())
	for _, dir := range KeptIn(getenv, workspace) {
		if scratch.Way(dir, scratch.RootOrUs) == nil {
			scratch.Sweep(dir, time.Now())
		}
	}
}

// tempIn says whether a folder for temporary files is the workspace or lies in it.
// Boxes are made of what lies there, and steps would see it and change it.
func tempIn(temp, workspace string) bool {
	real := func(path string) string {
		if at, err := filepath.EvalSymlinks(path); err == nil {
			return at
		}
		return filepath.Clean(path)
	}
	return workspace != "" && Within(real(temp), real(workspace))
}

// MoveTemp has this process take another folder for temporary files where its own is
// in the workspace, and says which; "" if it stays. Open refuses one that is there.
func MoveTemp(workspace string) (to string) {
	if !tempIn(os.TempDir(), workspace) {
		return ""
	}
	for _, to := range []string{"/tmp", "/var/tmp"} {
		if unix.Access(to, unix.W_OK|unix.X_OK) == nil && !tempIn(to, workspace) && scratch.RootsWay(to) == nil && os.Setenv("TMPDIR", to) == nil {
			return to
		}
	}
	return ""
}

func refuseTempIn(workspace string) *steps.Refusal {
	if !tempIn(os.TempDir(), workspace) {
		return nil
	}
	return &steps.Refusal{
		Cause: fmt.Sprintf("the folder for temporary files, %s, is in the workspace, %s: boxes are made of what lies there, and steps could change it", os.TempDir(), workspace),
		Fix:   []string{"# name one outside of the workspace:", "export TMPDIR=/tmp"},
	}
}

// NoTemp says whether there is no such folder at all.
func NoTemp() bool {
	_, err := os.Stat(os.TempDir())
	return err != nil
}

// RefuseTemp says why boxes cannot be made of what lies in this process's folder
// for temporary files; nil if they can.
func RefuseTemp() *steps.Refusal {
	why := scratch.RootsWay(os.TempDir())
	var missing *os.PathError
	switch {
	case why == nil:
		return nil
	case errors.As(why, &missing):
		// Not there yet: who makes it before root does could put anything there.
		return &steps.Refusal{
			Cause: fmt.Sprintf("%v: the folder for temporary files, %s, cannot be had: %s: %v", errNoTemp, os.TempDir(), missing.Path, missing.Err),
			Fix:   []string{"# make it first, or name one that is there:", "export TMPDIR=/tmp"},
		}
	}
	return &steps.Refusal{
		Cause: fmt.Sprintf("root cannot use the folder for temporary files, %s: %v, who could put others in the place of the files that boxes are made of", os.TempDir(), why),
		Fix:   []string{"# name one that root alone can change, or one as /tmp is, where each has what is its own:", "export TMPDIR=/tmp"},
	}
}

// ProofDir is where proofs are remembered: with other state of the caller's that
// no box is ever shown. There is no such place if steps work in a folder above it:
// what they change there is committed.
func ProofDir(getenv func(string) string, workspace string) string {
	bases := stateBases(getenv)
	if len(bases) == 0 {
		return ""
	}
	base := bases[0]
	// A home that is not there is not made: it is no place of anybody's.
	if home := getenv("HOME"); Within(base, home) && Real(home) == "" {
		return ""
	}
	dir := filepath.Join(base, "proofs")
	if !outside(dir, workspace) {
		return ""
	}
	return dir
}

// outside says whether a folder, or the place where it would be made, lies in no
// workspace: what steps change there is committed.
func outside(dir, workspace string) bool {
	for at := dir; ; at = filepath.Dir(at) {
		if real := Real(at); real != "" {
			return !Within(real, workspace)
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// LoadOptions are what steps files are read with on this host. Environ is all of
// the environment, for the settings of package clients; nil has none.
func LoadOptions(getenv func(string) string, lookup func(string) (string, bool), environ func() []string, workspace string) steps.Options {
	lo := steps.Options{Workspace: workspace, Home: getenv("HOME"), HostEnv: lookup, XDG: map[string]string{}}
	cwd, err := os.Getwd()
	if err == nil && environ != nil {
		lo.HostPreset = registry.NewReader(environ(), workspace, cwd).Preset
	}
	for _, n := range []string{"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} {
		lo.XDG[n] = getenv(n)
	}
	return lo
}
