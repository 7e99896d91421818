package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/archive"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/scrub"
)

// snapshot packs the workspace as a box would see it: what is secret in it is
// not in the archive, which is made to be uploaded.
func (a *app) snapshot(args []string) int {
	o, code, ok := a.parse("snapshot", args)
	if ok {
		code, ok = a.workspace(&o)
	}
	if !ok {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	to, err := destination(o.workspace, o.file)
	if err != nil {
		return a.next(a.wrong("%s: %v", gha.Inert(o.file), err), "name a file in a folder that is there, best outside the workspace")
	}
	mask, err := scrub.Find(ctx, o.workspace, scrub.Options{Home: a.getenv("HOME")})
	if err != nil {
		return a.unarchived(ctx, &o, err)
	}
	var sum archive.Summary
	err = replaceFile(to, func(f *os.File) (err error) {
		sum, err = archive.Write(ctx, o.workspace, f, archive.Options{Look: mask.Look, Ignore: skipFiles(f, to)})
		return err
	})
	if err != nil {
		return a.unarchived(ctx, &o, err)
	}
	for _, n := range mask.Notes {
		fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", gha.Inert(strings.Replace(n, "in the box", "in the snapshot", 1)))
	}
	for _, p := range sum.LeftOut {
		fmt.Fprintf(a.stderr, "untrusted-steps: %s is not in the snapshot: neither file nor folder\n", gha.Inert(fmt.Sprintf("%q", p)))
	}
	if n := sum.OutOf - len(sum.LeftOut); n > 0 {
		fmt.Fprintf(a.stderr, "untrusted-steps: and %d more\n", n)
	}
	return a.print(fmt.Sprintf("%s: packed %s\n", gha.Inert(o.file), counts(sum)))
}

const fromSnapshot = "nothing was changed; name an archive that " + toolName + " snapshot has made"

// restore puts a snapshot into the workspace, or changes nothing.
func (a *app) restore(args []string) int {
	o, code, ok := a.parse("restore", args)
	if ok {
		code, ok = a.workspace(&o)
	}
	if !ok {
		return code
	}
	f, err := openRegular(o.file)
	if err != nil {
		return a.next(a.wrong("%s", gha.Inert(err.Error())), fromSnapshot)
	}
	defer f.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	sum, err := archive.Restore(ctx, o.workspace, f, archive.Options{})
	if err != nil {
		return a.unarchived(ctx, &o, fmt.Errorf("%s: %w", o.file, err))
	}
	return a.print(fmt.Sprintf("%s: restored %s\n", gha.Inert(o.workspace), counts(sum)))
}

func counts(s archive.Summary) string {
	return fmt.Sprintf("%d files, %d folders, %d bytes", s.Files, s.Folders, s.Bytes)
}

// unarchived says why there is no snapshot, or nothing was restored.
func (a *app) unarchived(ctx context.Context, o *options, err error) int {
	var refused *archive.RefusedError
	next := "there is no snapshot; take what is named out of the workspace"
	if o.verb == "restore" {
		next = fromSnapshot
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(a.stderr, "untrusted-steps: cancelled")
		return exitCancelled
	case errors.As(err, &refused):
		return a.next(a.wrong("%s", gha.Inert(err.Error())), next)
	}
	fmt.Fprintf(a.stderr, "untrusted-steps: %s\n", gha.Inert(err.Error()))
	return exitNoVerdict
}

// destination is where a snapshot goes. In the workspace a step may have put a
// link on the way, and the snapshot would be written to wherever that leads.
func destination(workspace, file string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(abs)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	if below(workspace, dir) && real != dir {
		return "", fmt.Errorf("a link stands on the way in the workspace, and is not followed")
	}
	if st, err := os.Lstat(abs); err == nil && st.IsDir() {
		return "", errors.New("a folder stands there")
	}
	return filepath.Join(real, filepath.Base(abs)), nil
}

func below(dir, path string) bool {
	rest, err := filepath.Rel(dir, path)
	return err == nil && rest != ".." && !strings.HasPrefix(rest, "../")
}

// replaceFile makes a file that is whole or not there. Whatever has the name is
// replaced, a link too.
func replaceFile(path string, write func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".untrusted-steps-snapshot-*")
	if err != nil {
		return err
	}
	err = write(f)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		// Readable by its owner only: it is all of the workspace.
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// skipFiles keeps the archive out of itself, where it is written into the
// workspace, and the one that it replaces.
func skipFiles(f *os.File, old string) func(dev, ino uint64) bool {
	var now, was unix.Stat_t
	knowNow := unix.Fstat(int(f.Fd()), &now) == nil
	knowWas := unix.Lstat(old, &was) == nil
	return func(dev, ino uint64) bool {
		return knowNow && now.Dev == dev && now.Ino == ino || knowWas && was.Dev == dev && was.Ino == ino
	}
}

// openRegular opens a file that can be read twice. A pipe would be waited for.
func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), f.Close())
	}
	return f, nil
}
