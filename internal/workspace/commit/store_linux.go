package commit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxTries is how often a store is opened anew because its last user was just
// taking it away.
const maxTries = 100

// Options of a store. The zero value is a store beside the workspace or none.
type Options struct {
	// StateDirs are where a store may be if it cannot be beside the workspace,
	// best first: absolute paths that belong to this workspace alone. Missing
	// folders are made.
	StateDirs []string
	// At is the workspace as this process alone names it, through a descriptor of
	// ours: nobody can put another in its place, as in that of a path below a folder
	// that is not only ours. Empty is the path.
	At string
	// Sync flushes a commit to the disk before it counts, so that it survives
	// the end of the machine too. It costs what the disk takes.
	Sync bool
	// step is called between any two steps of what can be killed.
	step func(string)
}

// Store is the folder in which the transactions of one workspace live. Its
// methods may be called at once; commits wait for one another.
type Store struct {
	ws    *folder
	place *place
	opt   Options
	name  string // of the run's folder
	run   int    // O_PATH
	live  int    // the lock that says this run lives

	committing sync.Mutex // guards the place's lock, and pending
	pending    []*Txn     // begun and not carried out
	begun      sync.Map   // of *Txn that hold a descriptor

	mu     sync.Mutex // guards what follows
	count  int
	closed bool
	// recovered grows with a commit that met a run that had died meanwhile.
	recovered []string

	passed []string
}

// Open finds or makes the store of a workspace, and completes or drops what
// runs that died have left, in every place where a store may be.
func Open(workspace string, o Options) (*Store, error) {
	if o.step == nil {
		o.step = func(string) {}
	}
	ws, err := openFolder(workspace, o.At)
	if err != nil {
		return nil, fmt.Errorf("open workspace %q: %w", workspace, err)
	}
	s := &Store{ws: ws, opt: o, run: -1, live: -1}
	for _, path := range candidates(ws.path, o.StateDirs) {
		dir := filepath.Dir(path)
		if o.At != "" && dir == filepath.Dir(ws.path) {
			dir = filepath.Dir(o.At)
		}
		if err := s.try(path, dir); err != nil {
			s.letGo()
			return nil, err
		}
	}
	if s.place == nil {
		s.letGo()
		return nil, fmt.Errorf("no folder for what the steps of %q write:\n  %s\ngive this account a state folder of its own on a disk (XDG_STATE_HOME)",
			ws.path, strings.Join(s.passed, "\n  "))
	}
	return s, nil
}

// try looks after one place, and takes it if none was taken so far. The error
// is about what a dead run has left there; that a place cannot be used is noted.
func (s *Store) try(path, dir string) error {
	if reaches(path, s.ws.path) {
		// Not even to be made, or looked at: a step may have written it.
		s.pass(path, &notOurs{"it lies in the workspace"})
		return nil
	}
	p, err := s.held(path, dir, s.place == nil)
	if err == errNone {
		return nil
	}
	if err != nil {
		s.pass(path, err)
		return nil
	}
	if err := s.recover(p); err != nil {
		p.close()
		return err
	}
	if s.place == nil {
		if err = p.keeps(s.ws); err == nil {
			err = s.begin(p)
		}
		if err == nil {
			s.place = p
			p.release()
			return nil
		}
		s.pass(path, err)
	}
	p.vacate()
	p.close()
	return nil
}

func (s *Store) pass(path string, err error) {
	s.passed = append(s.passed, fmt.Sprintf("%q: %v", path, err))
}

// held opens a place and locks it. dir is the folder that it is in.
func (s *Store) held(path, dir string, create bool) (*place, error) {
	for try := 1; ; try++ {
		p, err := openPlace(path, dir, create)
		if err == errStale && try < maxTries {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err = p.apart(s.ws); err != nil {
			_ = unlink(p.parent, p.base, unix.AT_REMOVEDIR) // if we just made it
		} else if err = p.hold(context.Background()); err == nil {
			return p, nil
		}
		p.close()
		// ENOENT: it went while its lock was opened.
		if !errors.Is(err, errStale) && !errors.Is(err, unix.ENOENT) || try == maxTries {
			return nil, err
		}
	}
}

// begin makes this run's folder. The store is held, so nobody sees it without
// its lock.
func (s *Store) begin(p *place) error {
	name := runPrefix + strings.ToLower(rand.Text())
	if err := again(func() error { return unix.Mkdirat(p.fd, name, 0o700) }); err != nil {
		return fmt.Errorf("make a folder there: %w", err)
	}
	s.opt.step("run made")
	run, err := beneath(p.fd, name, pathFlags, 0)
	if err == nil {
		s.live, err = openAt(run, lockName, makeFlags, 0o600)
	}
	if err == nil {
		err = again(func() error { return unix.Flock(s.live, unix.LOCK_EX|unix.LOCK_NB) })
	}
	if err != nil {
		if run >= 0 {
			unix.Close(run)
		}
		_ = removeAt(p.fd, name, nil)
		return fmt.Errorf("make a run's folder there: %w", err)
	}
	s.run, s.name = run, name
	s.opt.step("run locked")
	return nil
}

// Path is the store's folder.
func (s *Store) Path() string { return s.place.path }

// Recovered is what was done about runs that died, in words for the log.
func (s *Store) Recovered() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.recovered)
}

// Passed is which places were not used and why, in words for the log.
func (s *Store) Passed() []string { return s.passed }

// Close removes this run's folder, and the store if no other run uses it. A
// commit that is incomplete stays, for the next Open to go on with.
func (s *Store) Close() error {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	defer s.letGo()
	if len(s.pending) > 0 {
		return nil
	}
	if err := s.place.hold(context.Background()); err != nil {
		return err
	}
	s.opt.step("closing")
	if err := removeAt(s.place.fd, s.name, s.opt.step); err != nil {
		return fmt.Errorf("remove %q of %q: %w", s.name, s.place.path, err)
	}
	s.opt.step("run removed")
	s.place.vacate()
	return nil
}

// vacate removes the store if nothing is in it. Its lock is held, and whoever
// waits for that finds out when it gets it.
func (p *place) vacate() {
	names, err := list(p.fd, "")
	if err != nil || len(names) != 1 || names[0] != lockName {
		return
	}
	_ = unlink(p.fd, lockName, 0)
	_ = unlink(p.parent, p.base, unix.AT_REMOVEDIR)
}

// letGo closes all that is open; the locks go with it.
func (s *Store) letGo() {
	s.begun.Range(func(t, _ any) bool {
		txn := t.(*Txn)
		txn.mu.Lock()
		defer txn.mu.Unlock()
		txn.letGo()
		return true
	})
	for _, fd := range []int{s.live, s.run, s.ws.fd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	s.live, s.run, s.ws.fd = -1, -1, -1
	if s.place != nil {
		s.place.close()
	}
}

// root says whether what we make has to be given to the workspace's owner.
func (s *Store) root() bool { return os.Geteuid() == 0 }
