package commit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Txn is what one step writes, apart from the workspace. Its methods wait for
// one another.
type Txn struct {
	// Keep leaves what is committed where the step wrote it, because another
	// step still sees it as a layer below its own. Contents are copied then.
	Keep bool

	s    *Store
	id   string
	name string
	fd   int // O_PATH

	mu    sync.Mutex
	state txnState
	tried bool // to commit: some of it may be staged
}

type txnState int

const (
	txnOpen txnState = iota
	txnPending
	txnOver
)

// Result is how a commit was carried out.
type Result struct {
	Changes int // that were made
	Moved   int // files whose content was renamed from what the step wrote
	Copied  int // and those for which it was copied
	// Across counts files that had to be copied once more because the store is
	// on another file system than where they belong.
	Across int
	// Left are raw paths of FIFOs, sockets and devices, which are not made.
	Left []string
}

// How says in words how contents came into the workspace.
func (r Result) How() string {
	switch {
	case r.Across > 0:
		return "copied from another file system"
	case r.Copied > 0:
		return "copied"
	}
	return "renamed"
}

// New begins a transaction for a step. All its folders are empty.
func (s *Store) New(id string) (*Txn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("begin a transaction for step %q: the store is closed", id)
	}
	s.count++
	t := &Txn{s: s, id: id, name: fmt.Sprintf("%s%06d", txnPrefix, s.count), fd: -1}
	if err := t.make(); err != nil {
		_ = t.drop()
		return nil, fmt.Errorf("begin a transaction for step %q in %q: %w", id, s.place.path, err)
	}
	s.begun.Store(t, nil)
	return t, nil
}

func (t *Txn) make() (err error) {
	if err := again(func() error { return unix.Mkdirat(t.s.run, t.name, 0o700) }); err != nil {
		return err
	}
	t.s.opt.step("transaction made")
	if t.fd, err = beneath(t.s.run, t.name, pathFlags, 0); err != nil {
		return err
	}
	for _, name := range []string{upperName, workName, stageName} {
		if err := again(func() error { return unix.Mkdirat(t.fd, name, 0o700) }); err != nil {
			return err
		}
		t.s.opt.step("transaction's folder made")
		fd, err := beneath(t.fd, name, pathFlags, 0)
		if err != nil {
			return err
		}
		err = t.prepare(fd, name)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare gives a folder to the workspace's owner, and the upper its mode: the
// root of an overlay shows those of its upper.
func (t *Txn) prepare(fd int, name string) error {
	ws := t.s.ws
	if t.s.root() && (ws.uid != 0 || ws.gid != 0) {
		err := again(func() error { return unix.Fchownat(fd, "", ws.uid, ws.gid, unix.AT_EMPTY_PATH) })
		if err != nil {
			return err
		}
	}
	if name != upperName {
		return nil
	}
	return chmodFD(fd, ws.mode)
}

// For says whose transaction it is from now on, where that was not known when it
// was begun.
func (t *Txn) For(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.id = id
}

// Unused says whether nobody dropped the transaction or tried to commit it, so that
// another step can have it, if what this one wrote was never in its folders. A
// commit that failed leaves what it had staged, and which folders it had opened.
func (t *Txn) Unused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state == txnOpen && !t.tried
}

// Dir is the transaction's folder. Only we may enter it.
func (t *Txn) Dir() string { return filepath.Join(t.s.place.path, t.s.name, t.name) }

// At is a path of that folder for this process alone, until the transaction is
// over. Whoever may change a folder above it, as root's is by the workspace's owner,
// can put another one in the place of Dir, but not of this.
func (t *Txn) At() string { return fmt.Sprintf("/proc/self/fd/%d", t.fd) }

// UpperAt is Upper in At.
func (t *Txn) UpperAt() string { return filepath.Join(t.At(), upperName) }

// Upper is the folder for what the step writes.
func (t *Txn) Upper() string { return filepath.Join(t.Dir(), upperName) }

// Work is the overlay's own folder beside it.
func (t *Txn) Work() string { return filepath.Join(t.Dir(), workName) }

// Drop removes the transaction, and leaves the workspace as it is. After a
// commit there is nothing left to drop.
func (t *Txn) Drop() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.state {
	case txnOver:
		return nil
	case txnPending:
		return fmt.Errorf("drop what step %q wrote: %w", t.id, ErrIncomplete)
	}
	if err := t.drop(); err != nil {
		return fmt.Errorf("drop what step %q wrote: %w", t.id, err)
	}
	return nil
}

func (t *Txn) drop() error {
	t.letGo()
	return removeAt(t.s.run, t.name, t.s.opt.step)
}

// letGo is the end of the transaction for us, whatever becomes of its folder.
func (t *Txn) letGo() {
	t.state = txnOver
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	t.s.begun.Delete(t)
}

// Commit makes the workspace what the changes say. Contents are taken from the
// folder after: the upper, or a plain copy of the workspace that the step wrote
// to. No process may write there any more. With an error that is not
// ErrIncomplete the workspace is as it was; with one that is, the commit counts
// and is resumed by the next commit or the next Open.
func (t *Txn) Commit(ctx context.Context, changes []workspace.Change, after string) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != txnOpen {
		return Result{}, fmt.Errorf("commit step %q: its transaction is over", t.id)
	}
	t.tried = true
	res, err := t.commit(ctx, changes, after)
	if err != nil {
		return Result{}, fmt.Errorf("commit step %q: %w", t.id, err)
	}
	return res, nil
}

func (t *Txn) commit(ctx context.Context, changes []workspace.Change, after string) (res Result, err error) {
	ops, left, err := plan(changes)
	if err != nil {
		return res, err
	}
	res.Left, res.Changes = left, len(changes)-len(left)
	if len(ops) == 0 {
		return res, t.drop()
	}
	from, err := openAt(unix.AT_FDCWD, after, pathFlags, 0)
	if err != nil {
		return res, fmt.Errorf("open what the step wrote: %w", err)
	}
	defer unix.Close(from)
	a := t.s.applier(t.fd, t.s.name+"-"+t.name)
	defer a.close()
	a.ops, a.header = ops, header{Version: journalVersion, Step: t.id, Workspace: t.s.ws.identity}

	err = a.stageAll(ctx, from, t.Keep, &res)
	var unlock func()
	if err == nil {
		unlock, err = t.s.alone(ctx)
	}
	if err != nil {
		return res, errors.Join(err, a.back())
	}
	defer unlock()
	if err = a.check(); err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = a.begin()
	}
	if err != nil {
		return res, errors.Join(err, a.back())
	}
	// From here on the commit counts.
	err = a.apply(0)
	if err == nil {
		err = a.finish()
	}
	res.Across = a.across
	if err != nil {
		t.state = txnPending
		t.s.pending = append(t.s.pending, t)
		return res, fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	// What is left of the transaction goes with the run, if not now.
	_ = t.drop()
	return res, nil
}

// alone waits until no other run commits, and completes what others have begun:
// nothing may be built on half a commit.
func (s *Store) alone(ctx context.Context) (unlock func(), err error) {
	s.committing.Lock()
	if err := s.place.hold(ctx); err != nil {
		s.committing.Unlock()
		return nil, err
	}
	unlock = func() {
		s.place.release()
		s.committing.Unlock()
	}
	s.opt.step("store held")
	err = s.recover(s.place)
	for err == nil && len(s.pending) > 0 {
		t := s.pending[0]
		if _, err = s.resume(t.fd, s.name+"-"+t.name); err == nil {
			s.pending = s.pending[1:]
			t.mu.Lock()
			_ = t.drop()
			t.mu.Unlock()
		}
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// back shuts the folders of the workspace that were opened for a commit that
// will not be.
func (a *applier) back() error {
	a.ops = nil
	return a.modes()
}

// check looks for what would stop the commit halfway.
func (a *applier) check() error {
	a.climb.cut(0)
	var last []byte
	var made []byte // a folder that is made, and what is below it with it
	for _, o := range a.ops {
		if made != nil && below(o.Path, made) {
			continue
		}
		if o.Do == doDir && string(o.Path) != "." {
			made = o.Path
		}
		folder, _ := split(o.Path)
		if last != nil && string(folder) == string(last) {
			continue
		}
		last = folder
		fd, err := a.climb.at(folder)
		var not *notThere
		switch {
		case errors.As(err, &not) && not.missing:
			continue
		case errors.As(err, &not):
			return fmt.Errorf("%w while the step ran: %w", ErrChanged, not)
		case err == nil && o.Do != doChmod:
			err = writable(fd)
		}
		if err != nil {
			return fmt.Errorf("write to folder %s: %w", shown(folder), err)
		}
	}
	return nil
}

// writable says why we will not be able to write to a folder.
func writable(fd int) error {
	err := again(func() error {
		return unix.Faccessat(fd, "", unix.W_OK|unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	})
	switch err {
	case unix.EROFS:
		return err
	case unix.EACCES:
		// Ours can be opened. Any other answer is of a kernel that cannot say.
		if widenOurs(fd, func(uint32) error { return errOurs }) != errOurs {
			return err
		}
	}
	return nil
}

// errOurs says that a folder could be opened, without doing so.
var errOurs = errors.New("it is ours")

// begin writes the journal. With its last rename the commit is made.
func (a *applier) begin() error {
	if a.s.opt.Sync {
		if err := syncFS(a.txn); err != nil {
			return err
		}
	}
	a.s.opt.step("about to write the journal")
	err := a.put(journalName, func(w writer) error { return writeJournal(w, a.header, a.ops) })
	if err == nil && a.s.opt.Sync {
		err = syncFS(a.txn)
	}
	if err != nil {
		// It must not be there for the next Open if we say that it is not.
		if e := unlink(a.txn, journalName, 0); e != nil && e != unix.ENOENT {
			err = errors.Join(err, e)
		}
	}
	return err
}

// syncFS flushes the file system of an O_PATH folder.
func syncFS(fd int) error {
	at, err := openAt(fd, ".", listFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Syncfs(at)
}
