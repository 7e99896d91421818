package commit

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// recover completes or drops what the dead runs of a store have left. The store
// is held. A run is dead if nobody has its lock, whatever it is called.
func (s *Store) recover(p *place) error {
	names, err := list(p.fd, runPrefix)
	if err != nil {
		return fmt.Errorf("list the runs in %q: %w", p.path, err)
	}
	for _, name := range names {
		if name == s.name {
			continue
		}
		if err := s.recoverRun(p, name); err != nil {
			return fmt.Errorf("recover %q of %q: %w", name, p.path, err)
		}
	}
	return nil
}

func (s *Store) recoverRun(p *place, name string) error {
	run, err := beneath(p.fd, name, pathFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(run)
	lock, living, err := alive(run)
	if err != nil || living {
		return err
	}
	if lock >= 0 {
		defer unix.Close(lock)
	}
	txns, err := list(run, txnPrefix)
	if err != nil {
		return err
	}
	dropped := 0
	for _, txn := range txns {
		fd, err := beneath(run, txn, pathFlags, 0)
		if err != nil {
			return err
		}
		words, err := s.resume(fd, name+"-"+txn)
		unix.Close(fd)
		if errors.Is(err, errForeign) {
			return nil // another workspace's, and its next run will see to it
		}
		if err != nil {
			return fmt.Errorf("%w; see to what it names and start again, or remove that folder to leave the workspace as it is", err)
		}
		if words == "" {
			dropped++
			continue
		}
		s.say(words)
		s.opt.step("transaction recovered")
	}
	if err := removeAt(p.fd, name, s.opt.step); err != nil {
		return err
	}
	if dropped > 0 {
		s.say(fmt.Sprintf("dropped what %d step(s) of an earlier run had written and not committed when it was ended", dropped))
	}
	return nil
}

func (s *Store) say(words string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovered = append(s.recovered, words)
}

// errForeign: the journal is for another workspace.
var errForeign = errors.New("it belongs to another workspace")

// resume completes a transaction that has a journal, and undoes what little one
// without a journal did. words are empty if there was nothing to complete.
func (s *Store) resume(txn int, name string) (words string, err error) {
	a := s.applier(txn, name)
	defer a.close()
	h, err := a.load()
	switch {
	case err != nil:
		return "", err
	case h == nil:
		return "", nil
	case !h.Workspace.same(s.ws.identity):
		// The folder at this path is a new one: what was begun in the old one
		// is no business of it.
		if !bytes.Equal(h.Workspace.Path, s.ws.identity.Path) {
			return "", errForeign
		}
		return fmt.Sprintf("gave up the commit of step %q of an earlier run: its workspace is no longer at %q", h.Step, s.ws.path), nil
	case a.ops == nil:
		return "", a.modes()
	}
	if err := a.resume(); err != nil {
		return "", fmt.Errorf("complete the commit of step %q of an earlier run: %w", h.Step, err)
	}
	if err := a.finish(); err != nil {
		return "", err
	}
	return fmt.Sprintf("completed the commit of step %q of an earlier run that ended in the middle of it", h.Step), nil
}

// load reads the journal of a transaction and the log of folders that it
// opened. Without a journal there are no ops, and without either no header.
func (a *applier) load() (*header, error) {
	var found *header
	fd, err := openAt(a.txn, journalName, readFlags, 0)
	if err == nil {
		h, ops, err := readJournal(reader(fd))
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		found, a.ops = &h, ops
	} else if err != unix.ENOENT {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	fd, err = openAt(a.txn, openedName, readFlags, 0)
	if err == nil {
		h, opened, err := readOpened(reader(fd))
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = &h
		}
		a.header = *found
		for _, o := range opened {
			a.wider(o.Path, o.Mode)
		}
	} else if err != unix.ENOENT {
		return nil, fmt.Errorf("open the log of opened folders: %w", err)
	}
	if found != nil {
		a.header = *found
	}
	return found, nil
}
