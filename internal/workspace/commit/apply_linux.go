package commit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// maxRounds bounds how often modes are gone over because setting one led
	// through a folder that was shut again.
	maxRounds = 8
	// freshDir is the mode of a folder until all that belongs in it is there.
	freshDir = 0o700
	// madeDir is the mode of a folder that is not in the journal: somebody
	// removed it meanwhile, and something is to be put there.
	madeDir = 0o755
)

// applier carries out the journal of one transaction.
type applier struct {
	s      *Store
	txn    int    // O_PATH, not its own
	stage  int    // O_PATH; -1: there is none
	name   string // unlike that of any other transaction
	header header
	ops    []op
	climb  climber

	log     int // the log of opened folders; -1 until there is one
	widened map[string]uint32
	shut    map[string]bool // folders whose mode is not yet what it shall be

	across int // files that had to be copied to where they belong
}

func (s *Store) applier(txn int, name string) *applier {
	a := &applier{s: s, txn: txn, stage: -1, name: name, log: -1, widened: map[string]uint32{}, shut: map[string]bool{}}
	a.climb = climber{root: s.ws.fd, widen: a.widen}
	return a
}

func (a *applier) close() {
	a.climb.close()
	for _, fd := range []int{a.stage, a.log} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (a *applier) openStage() (err error) {
	if a.stage < 0 {
		a.stage, err = beneath(a.txn, stageName, pathFlags, 0)
	}
	return err
}

// resume goes on where an earlier process stopped: ops are carried out in
// order, and one that takes from the stage is over once that is gone. So what
// its owner did in the workspace since is not undone by doing all again.
func (a *applier) resume() error {
	if err := a.openStage(); err != nil {
		return err
	}
	from := 0
	for i := len(a.ops) - 1; i >= 0; i-- {
		if a.ops[i].staged() && !a.has(i) {
			from = i + 1
			break
		}
	}
	return a.apply(from)
}

// has says whether the stage still holds what op i puts into the workspace.
func (a *applier) has(i int) bool {
	_, err := lstatAt(a.stage, strconv.Itoa(i))
	return err != unix.ENOENT
}

// apply makes the workspace what the journal says, from an op on.
func (a *applier) apply(from int) error {
	if err := a.openStage(); err != nil {
		return err
	}
	// What was held open until now may lie elsewhere by now.
	a.climb.cut(0)
	for i := from; i < len(a.ops); i++ {
		o := &a.ops[i]
		if err := a.do(i, o); err != nil {
			return fmt.Errorf("%s %s: %w", o.Do, shown(o.Path), err)
		}
		a.s.opt.step("applied " + o.Do)
	}
	return a.modes()
}

func (a *applier) do(i int, o *op) error {
	switch {
	case o.Do == doRemove:
		return a.remove(o.Path)
	case o.staged():
		return a.place(i, o)
	case o.Do == doDir:
		return a.mkdir(o.Path)
	case !o.folder():
		return a.chmod(o)
	}
	return nil // a folder's mode comes at the end
}

// parent opens the folder a path lies in. Below what is no folder nothing is
// ever done: a link there was put by somebody, and leads anywhere.
func (a *applier) parent(path []byte, create bool) (fd int, folder []byte, name string, err error) {
	folder, name = split(path)
	for {
		fd, err = a.climb.at(folder)
		var not *notThere
		switch {
		case err == nil:
			return fd, folder, name, nil
		case !errors.As(err, &not):
			return -1, folder, name, err
		case !not.missing:
			return -1, folder, name, fmt.Errorf("%w while a step's changes were being committed: %w", ErrChanged, not)
		case !create:
			return -1, folder, name, not
		}
		if err := a.makeMissing(not.path); err != nil {
			return -1, folder, name, err
		}
	}
}

func (a *applier) makeMissing(path []byte) error {
	fd, folder, name, err := a.parent(path, false)
	if err != nil {
		return err
	}
	err = a.let(fd, folder, func() error { return unix.Mkdirat(fd, name, madeDir) })
	if err != nil && err != unix.EEXIST {
		return fmt.Errorf("make folder %s, which was removed meanwhile: %w", shown(path), err)
	}
	return a.give(fd, name)
}

// let does something in a folder, and if the folder is ours and does not let
// us, opens it for as long as the commit takes.
func (a *applier) let(fd int, folder []byte, do func() error) error {
	err := again(do)
	if errors.Is(err, unix.EACCES) && a.widen(fd, folder) == nil {
		err = again(do)
	}
	return err
}

// widen opens a folder to us. What its mode was is written down before.
func (a *applier) widen(fd int, folder []byte) error {
	return widenOurs(fd, func(mode uint32) error {
		if err := a.note(folder, mode); err != nil {
			return err
		}
		a.s.opt.step("about to open a folder")
		a.wider(folder, mode)
		return nil
	})
}

func (a *applier) wider(folder []byte, mode uint32) {
	p := string(folder)
	if _, known := a.widened[p]; !known {
		a.widened[p] = mode
	}
	a.shut[p] = true
}

// note appends to the log of opened folders.
func (a *applier) note(folder []byte, mode uint32) error {
	if a.log < 0 {
		if _, err := lstatAt(a.txn, openedName); err == unix.ENOENT {
			first, err := json.Marshal(a.header)
			if err == nil {
				err = a.put(openedName, func(w writer) error {
					_, err := w.Write(append(first, '\n'))
					return err
				})
			}
			if err != nil {
				return err
			}
		}
		fd, err := openAt(a.txn, openedName, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		a.log = fd
	}
	line, err := json.Marshal(opened{Path: folder, Mode: mode})
	if err != nil {
		return err
	}
	// A process that died may have left half a line.
	_, err = writer(a.log).Write(append(append([]byte{'\n'}, line...), '\n'))
	return err
}

// put writes a file of the transaction so that it is there whole or not at all.
func (a *applier) put(name string, write func(writer) error) error {
	temp := name + tempSuffix
	if err := unlink(a.txn, temp, 0); err != nil && err != unix.ENOENT {
		return err
	}
	fd, err := openAt(a.txn, temp, makeFlags, 0o600)
	if err != nil {
		return err
	}
	err = write(writer(fd))
	if err == nil && a.s.opt.Sync {
		err = unix.Fsync(fd)
	}
	err = cmp.Or(err, unix.Close(fd))
	if err != nil {
		return err
	}
	a.s.opt.step("wrote " + temp)
	if err := rename(a.txn, temp, a.txn, name); err != nil {
		return err
	}
	a.s.opt.step("wrote " + name)
	return nil
}

func (a *applier) remove(path []byte) error {
	fd, folder, name, err := a.parent(path, false)
	var not *notThere
	if errors.As(err, &not) && not.missing {
		return nil
	}
	if err != nil {
		return err
	}
	return a.let(fd, folder, func() error { return removeAt(fd, name, a.s.opt.step) })
}

// place moves what op i staged to where it belongs. A rename replaces what is
// there, unless that is a folder.
func (a *applier) place(i int, o *op) error {
	if !a.has(i) {
		return nil
	}
	fd, folder, name, err := a.parent(o.Path, true)
	if err != nil {
		return err
	}
	from, staged := a.stage, strconv.Itoa(i)
	for try := 0; ; try++ {
		err := a.let(fd, folder, func() error { return unix.Renameat(from, staged, fd, name) })
		switch {
		case err == unix.EISDIR && try < maxRounds:
			if err := a.let(fd, folder, func() error { return removeAt(fd, name, a.s.opt.step) }); err != nil {
				return err
			}
		case err == unix.EXDEV && from == a.stage:
			// The store is on another disk. The copy is made under a name of
			// its own, so that the path has the old content or the new.
			temp := ".untrusted-steps-" + a.name + "-" + staged
			if err := a.let(fd, folder, func() error { return a.bring(i, o, fd, temp) }); err != nil {
				_ = unlink(fd, temp, 0)
				return err
			}
			from, staged = fd, temp
		case err != nil:
			if from == fd {
				_ = unlink(fd, staged, 0)
			}
			return err
		case from == fd:
			a.across++
			a.s.opt.step("copied into place")
			return unlink(a.stage, strconv.Itoa(i), 0)
		default:
			return nil
		}
	}
}

// bring copies a staged file or link to a name in a folder of the workspace.
func (a *applier) bring(i int, o *op, dir int, temp string) error {
	if err := unlink(dir, temp, 0); err != nil && err != unix.ENOENT {
		return err
	}
	if o.Do == doLink {
		target, err := readLink(a.stage, strconv.Itoa(i))
		if err == nil {
			err = unix.Symlinkat(target, dir, temp)
		}
		if err != nil {
			return err
		}
		a.s.opt.step("copied link")
		return a.give(dir, temp)
	}
	src, err := openShut(a.stage, strconv.Itoa(i))
	if err != nil {
		return err
	}
	defer unix.Close(src)
	// Once a commit is begun it is carried through.
	err = copyFile(context.Background(), dir, temp, src, a.finishFile(o.Mode), a.s.opt.step)
	if err == nil {
		a.s.opt.step("copied file")
	}
	return err
}

func (a *applier) mkdir(path []byte) error {
	fd, folder, name, err := a.parent(path, true)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	var st unix.Stat_t
	err = a.let(fd, folder, func() (err error) {
		st, err = lstatAt(fd, name)
		return err
	})
	if err == nil && !isDir(st.Mode) {
		if err := a.let(fd, folder, func() error { return removeAt(fd, name, a.s.opt.step) }); err != nil {
			return err
		}
	}
	err = a.let(fd, folder, func() error { return unix.Mkdirat(fd, name, freshDir) })
	if err != nil && err != unix.EEXIST {
		return err
	}
	a.s.opt.step("made folder")
	return a.give(fd, name)
}

// give makes something that belongs to root the workspace's owner's.
func (a *applier) give(dir int, name string) error {
	if !a.s.root() || a.s.ws.uid == 0 && a.s.ws.gid == 0 {
		return nil
	}
	st, err := lstatAt(dir, name)
	if err != nil || st.Uid != 0 {
		return err
	}
	return again(func() error {
		return unix.Fchownat(dir, name, a.s.ws.uid, a.s.ws.gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// chmod sets the mode of something other than a folder. If another thing has
// its name by now, that is none of the step's business.
func (a *applier) chmod(o *op) error {
	fd, folder, name, err := a.parent(o.Path, false)
	var not *notThere
	if errors.As(err, &not) && not.missing {
		return nil
	}
	if err != nil {
		return err
	}
	var at int
	err = a.let(fd, folder, func() (err error) {
		at, err = beneath(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err == unix.ENOENT || err == unix.ELOOP {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	st, err := statFD(at)
	if err != nil || typeWord(st.Mode) != o.Type {
		return err
	}
	return chmodFD(at, o.Mode&permBits)
}

// modes gives folders the modes they shall have, each after all that is below
// it: those of the journal and those that we opened.
func (a *applier) modes() error {
	want := map[string]uint32{}
	for _, o := range a.ops {
		if o.folder() {
			want[string(o.Path)] = o.Mode
			a.shut[string(o.Path)] = true
		}
	}
	for range maxRounds {
		if len(a.shut) == 0 {
			return nil
		}
		paths := slices.SortedFunc(maps.Keys(a.shut), func(x, y string) int { return comparePaths([]byte(y), []byte(x)) })
		for _, p := range paths {
			mode, ours := want[p]
			if !ours {
				mode = a.widened[p]
			}
			if err := a.dirMode([]byte(p), mode, ours); err != nil {
				return fmt.Errorf("chmod folder %s: %w", shown([]byte(p)), err)
			}
			delete(a.shut, p)
			a.s.opt.step("set a folder's mode")
		}
	}
	return fmt.Errorf("%w: folders are shut as fast as they are opened", ErrChanged)
}

func (a *applier) dirMode(path []byte, mode uint32, wanted bool) error {
	fd, err := a.climb.at(path)
	var not *notThere
	if errors.As(err, &not) {
		return nil
	}
	if err != nil {
		return err
	}
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	if wanted {
		// A folder in a set-gid folder is one itself by the kernel's doing.
		// Such a bit may stay; it is not given.
		mode = mode&permBits | mode&st.Mode&unix.S_ISGID
	}
	if st.Mode&0o7777 == mode {
		return nil
	}
	return chmodFD(fd, mode)
}

// finish ends a transaction that was carried out.
func (a *applier) finish() error {
	if a.s.opt.Sync {
		if err := syncFS(a.s.ws.fd); err != nil {
			return err
		}
	}
	// First: without a journal the modes in it would be restored once more, and
	// some are not what they shall be now.
	if err := unlink(a.txn, openedName, 0); err != nil && err != unix.ENOENT {
		return err
	}
	a.s.opt.step("about to remove the journal")
	if err := unlink(a.txn, journalName, 0); err != nil {
		return err
	}
	a.s.opt.step("removed the journal")
	return nil
}

// typeWord is the report's word for a mode.
func typeWord(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "device"
	}
	return "file"
}

// readLink is where a link points.
func readLink(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	var n int
	err := again(func() (err error) {
		n, err = unix.Readlinkat(dir, name, buf)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(bytes.Clone(buf[:n])), nil
}
