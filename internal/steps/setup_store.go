package steps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/disk"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/clone"
)

// What bounds the folder of kept setups: what nothing used for so long goes, and
// when there is more than so much, what was of no use for longest.
const (
	setupsKeptFor   = 30 * 24 * time.Hour
	setupsKeptBytes = 8 << 30
)

// keptLayer is what is kept under a key; nil if nothing is. It is held until the
// workspace is closed: no run takes away what another one uses.
func (r *Runner) keptLayer(key string) (*layer, *keptSetup, error) {
	root, err := scratch.OpenOwn(r.SetupStore, true)
	if err != nil {
		return nil, nil, fmt.Errorf("the folder of kept setups: %w", err)
	}
	defer root.Close()
	name := filepath.Join(key, setupRecord)
	f, rec, err := openKept(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := root.Lstat(key); errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		// Another run has just put it there, whole.
		f, rec, err = openKept(root, name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("a kept setup: %w", err)
	}
	// Whoever takes it away has it locked, or had before we did.
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil || !stillAt(root, name, f) {
		return nil, nil, f.Close()
	}
	if rec.Version != setupVersion {
		return nil, nil, errors.Join(errors.New("a kept setup: its record is not one of ours"), f.Close())
	}
	// Engines follow no link to a layer.
	dir, err := filepath.EvalSymlinks(filepath.Join(r.SetupStore, key, setupUpper))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("a kept setup: %w", err), f.Close())
	}
	now := r.Now()
	_ = root.Chtimes(name, now, now) // when it was last of use
	r.Tree.hold(f)
	return &layer{id: rec.Step, changes: rec.Changes, after: dir, held: dir}, rec, nil
}

// openKept opens the record of a kept setup and reads it.
func openKept(root *os.Root, name string) (*os.File, *keptSetup, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var rec keptSetup
	if err = scratch.OursAlone(f, unix.S_IFREG); err == nil {
		if err = json.NewDecoder(io.LimitReader(f, maxSetupRecord)).Decode(&rec); err != nil {
			err = fmt.Errorf("its record is not one of ours (%w)", err)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, &rec, nil
}

// stillAt says whether an open file is the one that has this name.
func stillAt(root *os.Root, name string, f *os.File) bool {
	now, err := root.Lstat(name)
	if err != nil {
		return false
	}
	held, err := f.Stat()
	return err == nil && os.SameFile(now, held)
}

// hold keeps a file open until the workspace is closed.
func (t *Tree) hold(f *os.File) {
	t.left.Lock()
	defer t.left.Unlock()
	t.held = append(t.held, f)
}

// keepSetup puts what a setup made among what is kept. One that is there stays.
func (r *Runner) keepSetup(ctx context.Context, key string, l *layer, deps bool) (err error) {
	root, err := scratch.OpenOwn(r.SetupStore, true)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, c := range l.changes {
		switch mode, _ := strconv.ParseUint(c.Mode, 8, 32); {
		case c.Unreadable:
			return errors.New("some of it cannot be read")
		case mode&0o6000 != 0 && c.Type == "file":
			// It would lie on this machine, as the caller's, and nobody has read it.
			return fmt.Errorf("%s has a set-id bit", inert(c.Path))
		}
	}
	making, err := scratch.Make(r.SetupStore, scratch.Setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, making.Remove()) }()
	made := filepath.Join(making.Path, "entry")
	upper := filepath.Join(made, setupUpper)
	st, err := os.Stat(l.held)
	if err == nil {
		err = errors.Join(os.Mkdir(made, 0o700), os.Mkdir(upper, 0o700))
	}
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(upper, r.Tree.owner.uid, r.Tree.owner.gid)
	}
	if err == nil {
		err = os.Chmod(upper, st.Mode().Perm())
	}
	if err != nil {
		return err
	}
	res, err := clone.Tree(ctx, l.held, upper, clone.Options{Marks: true})
	if err != nil {
		return err
	}
	if len(res.Absent) > 0 || res.Reowned > 0 {
		return errors.New("some of it cannot be copied as it is")
	}
	use, err := disk.Of(ctx, upper)
	if err != nil {
		return err
	}
	text, err := json.Marshal(keptSetup{Version: setupVersion, Step: l.id, Deps: deps, Changes: l.changes})
	if err == nil {
		err = os.WriteFile(filepath.Join(made, setupSize), strconv.AppendInt(nil, use.Bytes, 10), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(made, setupRecord), text, 0o600)
	}
	if err == nil {
		err = root.Rename(filepath.Join(filepath.Base(making.Path), "entry"), key)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) { // another run was first
		return nil
	}
	return err
}

// pruneSetups bounds the folder of kept setups, and gives how many it has taken
// away. What a run uses at this moment stays.
func pruneSetups(ctx context.Context, store string, now time.Time, keptFor time.Duration, most int64) (gone int, err error) {
	root, err := scratch.OpenOwn(store, false)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	scratch.Sweep(store, now) // what a killed run was at
	list, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return 0, err
	}
	type kept struct {
		key  string
		used time.Time
	}
	var all []kept
	for _, e := range list {
		if !isKey(e.Name()) {
			continue // nobody's here but ours, and not for us to judge
		}
		k := kept{key: e.Name()} // without a record it is of no use to anybody, and the oldest
		if st, err := root.Lstat(filepath.Join(k.key, setupRecord)); err == nil {
			k.used = st.ModTime()
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b kept) int { // the last used first
		return cmp.Or(b.used.Compare(a.used), strings.Compare(a.key, b.key))
	})
	var sum int64
	for i, k := range all {
		n, why := keptBytes(ctx, root, store, k.key)
		// The last used stays however large it is: it has just been made.
		if why == nil && now.Sub(k.used) < keptFor && (i == 0 || sum+n <= most) {
			sum += n
			continue
		}
		taken, there, e := takeAway(root, store, k.key)
		err = errors.Join(err, e)
		switch {
		case taken:
			gone++
		case there:
			sum += n // in use
		}
	}
	return gone, err
}

// keptBytes is how much of the disk a kept setup has.
func keptBytes(ctx context.Context, root *os.Root, store, key string) (int64, error) {
	text, err := root.ReadFile(filepath.Join(key, setupSize))
	if err == nil {
		var n int64
		if n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n >= 0 {
			return n, nil
		}
	}
	use, err := disk.Of(ctx, filepath.Join(store, key, setupUpper))
	return use.Bytes, err
}

// takeAway removes a kept setup that nobody uses. It goes out of the way whole
// first: whoever looks for it finds all of it or nothing. Another run can be at the
// same, and then it is not there.
func takeAway(root *os.Root, store, key string) (taken, there bool, err error) {
	name := filepath.Join(key, setupRecord)
	if f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !stillAt(root, name, f) {
			_, err := root.Lstat(name)
			return false, err == nil, nil
		}
	}
	out, err := scratch.Make(store, scratch.Setup)
	if err != nil {
		return false, true, err
	}
	err = root.Rename(key, filepath.Join(filepath.Base(out.Path), key))
	taken, there = err == nil, !errors.Is(err, fs.ErrNotExist)
	if !there {
		err = nil
	}
	return taken, there, errors.Join(err, out.Remove())
}

// isKey says whether a name is one that keptKey gives.
func isKey(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}

// boundSetups bounds what is kept, for a step whose setup was looked for there. That
// it cannot be done is a note and nothing else.
func (r *Runner) boundSetups(ctx context.Context, sr *StepResult) {
	gone, err := pruneSetups(ctx, r.SetupStore, r.Now(), setupsKeptFor, setupsKeptBytes)
	if err != nil && ctx.Err() == nil {
		sr.Notes = append(sr.Notes, "setup: what is old among what is kept could not be removed: "+inertWords(err.Error()))
	}
	if gone > 0 {
		sr.Notes = append(sr.Notes, "setup: "+count(gone, "kept setup")+" that had been of no use for longest removed")
	}
}
