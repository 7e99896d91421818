package steps

import (
	"fmt"
	"path/filepath"
	"slices"
)

// shows says why a box may not see a folder or a file of the host beside the
// workspace it was given: it would find there, by another name, what is kept
// from it. "" if it may.
func (t *Tree) shows(path string, readOnly bool) (why string) {
	for _, place := range t.places {
		// A journal that lies in one is carried out by the next run. Whoever
		// could write there could change the workspace past every rule.
		if !readOnly && (within(place, path) || within(path, place)) {
			return fmt.Sprintf("reaches %s, where a run looks for commits that were interrupted; mount a folder beside it, or with [path, ro]", inert(place))
		}
	}
	// Steps see what others wrote once it is kept, and not before.
	if store := resolved(t.store.Path()); within(store, path) || within(path, store) {
		return fmt.Sprintf("reaches %s, where what steps write is kept apart; mount a folder beside it", inert(store))
	}
	t.mu.Lock()
	mask := t.mask
	t.mu.Unlock()
	if within(t.workspace, path) && !mask.Empty() {
		return "holds the workspace, of which a step sees only what is not secret"
	}
	rest, err := filepath.Rel(t.workspace, path)
	if err != nil || !within(path, t.workspace) {
		return ""
	}
	for _, secret := range mask.Paths() {
		if within(secret, rest) || within(rest, secret) {
			return fmt.Sprintf("reaches %s of the workspace, which holds a secret; a step sees it without, and only below /workspace", inert(secret))
		}
	}
	return ""
}

// resolved is a path with the links followed of as much of it as there is.
func resolved(path string) string {
	rest := ""
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return path
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// allResolved is resolved for each, as they are and as they lead.
func allResolved(paths []string) (all []string) {
	for _, p := range paths {
		all = append(all, filepath.Clean(p), resolved(p))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
