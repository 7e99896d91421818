package commit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// stager turns what a step wrote into plain files of the store.
type stager struct {
	a    *applier
	src  climber // over the folder that the step wrote to
	dev  uint64  // of the stage
	keep bool    // nothing is taken away from src
	shut []shutDir
	res  *Result
}

// shutDir is a folder of the source that was opened, and must be shut again if
// others still look at it.
type shutDir struct {
	path []byte
	mode uint32
}

// stageAll gets contents ready under their numbers. after is open.
func (a *applier) stageAll(ctx context.Context, after int, keep bool, res *Result) (err error) {
	if err := a.openStage(); err != nil {
		return err
	}
	st, err := statFD(a.stage)
	if err != nil {
		return err
	}
	g := &stager{a: a, dev: st.Dev, keep: keep, res: res}
	g.src = climber{root: after, widen: g.widen}
	defer g.src.close()
	defer func() {
		if e := g.shutAll(); err == nil {
			err = e
		}
	}()
	for i := range a.ops {
		if err := ctx.Err(); err != nil {
			return err
		}
		o := &a.ops[i]
		if err := g.op(ctx, i, o); err != nil {
			return fmt.Errorf("stage %s: %w", shown(o.Path), err)
		}
		a.s.opt.step("staged " + o.Do)
	}
	return nil
}

func (g *stager) widen(fd int, path []byte) error {
	return widenOurs(fd, func(mode uint32) error {
		if g.keep {
			g.shut = append(g.shut, shutDir{append([]byte{}, path...), mode})
		}
		return nil
	})
}

// shutAll shuts what was opened, the deepest first.
func (g *stager) shutAll() error {
	for i := len(g.shut) - 1; i >= 0; i-- {
		fd, err := g.src.at(g.shut[i].path)
		if err == nil {
			err = chmodFD(fd, g.shut[i].mode)
		}
		if err != nil {
			return fmt.Errorf("shut %s again: %w", shown(g.shut[i].path), err)
		}
	}
	return nil
}

func (g *stager) op(ctx context.Context, i int, o *op) error {
	switch {
	case o.Do == doChmod && o.Type == "file":
		// A file with another name, perhaps one outside the workspace, has one
		// mode for all of them. The step saw a file of its own.
		several, err := g.linked(o.Path)
		if err != nil || !several {
			return err
		}
		o.Do = doFile
		return g.file(ctx, i, o)
	case o.Do == doFile:
		return g.file(ctx, i, o)
	case o.Do == doLink:
		name := strconv.Itoa(i)
		if err := again(func() error { return unix.Symlinkat(o.target, g.a.stage, name) }); err != nil {
			return err
		}
		return g.a.give(g.a.stage, name)
	case o.Do == doDir && o.unreadable:
		return g.known(o.Path)
	}
	return nil
}

// linked says whether a file of the workspace has more names than one.
func (g *stager) linked(path []byte) (bool, error) {
	fd, folder, name, err := g.a.parent(path, false)
	var not *notThere
	if errors.As(err, &not) && not.missing {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	err = g.a.let(fd, folder, func() (err error) {
		st, err = lstatAt(fd, name)
		return err
	})
	if err == unix.ENOENT {
		return false, nil
	}
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1, err
}

// source finds a path of the changes in what the step wrote.
func (g *stager) source(path []byte) (dir int, name string, st unix.Stat_t, err error) {
	folder, name := split(path)
	if dir, err = g.src.at(folder); err != nil {
		return -1, name, st, err
	}
	st, err = lstatAt(dir, name)
	if err == unix.EACCES && g.widen(dir, folder) == nil {
		st, err = lstatAt(dir, name)
	}
	return dir, name, st, err
}

// file stages one file: as it is where it is ours alone, else as a copy.
func (g *stager) file(ctx context.Context, i int, o *op) error {
	dir, name, st, err := g.source(o.Path)
	if err != nil {
		return fmt.Errorf("look at what the step wrote: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("the step wrote a %s there, and not a file", typeWord(st.Mode))
	}
	to := strconv.Itoa(i)
	if !g.keep && st.Nlink == 1 && st.Dev == g.dev {
		err := rename(dir, name, g.a.stage, to)
		if err == unix.EACCES {
			folder, _ := split(o.Path)
			if g.widen(dir, folder) == nil {
				err = rename(dir, name, g.a.stage, to)
			}
		}
		if err == nil {
			g.a.s.opt.step("moved to the stage")
			g.res.Moved++
			return g.plain(to, o.Mode)
		}
		if err != unix.EXDEV {
			return err
		}
	}
	src, err := openShut(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	g.res.Copied++
	err = copyFile(ctx, g.a.stage, to, src, g.a.finishFile(o.Mode), g.a.s.opt.step)
	if g.keep {
		// openShut may have had to open it.
		err = errors.Join(err, again(func() error { return unix.Fchmod(src, st.Mode&0o7777) }))
	}
	return err
}

// plain makes a staged file an ordinary one.
func (g *stager) plain(name string, mode uint32) error {
	fd, err := openShut(g.a.stage, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := stripped(fd); err != nil {
		return err
	}
	return g.a.finishFile(mode)(fd)
}

// finishFile gives a file its owner and then its mode: a change of the owner
// would take from the mode.
func (a *applier) finishFile(mode uint32) func(fd int) error {
	return func(fd int) error {
		if a.s.root() {
			if err := again(func() error { return unix.Fchown(fd, a.s.ws.uid, a.s.ws.gid) }); err != nil {
				return err
			}
		}
		return again(func() error { return unix.Fchmod(fd, mode&permBits) })
	}
}

// openShut opens a file that we own for reading, whatever its mode is.
func openShut(dir int, name string) (int, error) {
	fd, err := beneath(dir, name, readFlags, 0)
	if err != unix.EACCES {
		return fd, err
	}
	at, err := beneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	st, err := statFD(at)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid()) {
		err = unix.EACCES
	}
	if err == nil {
		err = chmodFD(at, st.Mode&0o777|0o600)
	}
	if err != nil {
		return -1, err
	}
	return beneath(dir, name, readFlags, 0)
}

// known refuses a folder that nobody could look into, unless it is empty: what
// is committed is what was reported.
func (g *stager) known(path []byte) error {
	fd, err := g.src.at(path)
	if err != nil {
		return err
	}
	names, err := list(fd, "")
	if err == unix.EACCES && g.widen(fd, path) == nil {
		names, err = list(fd, "")
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if n != "." && n != ".." {
			return fmt.Errorf("folder %s: %w, and it is not empty", shown(path), ErrUnreadable)
		}
	}
	return nil
}
