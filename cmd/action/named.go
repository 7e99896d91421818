package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/session"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// readNamed reads a file that the caller names and whose text is quoted where it is
// wrong: in a log, a summary, a comment that everybody can read. It may lie in a
// change that nobody has read. A link there could lead to whatever the caller can
// read, and the quotes would publish it. So a name leads nowhere out of the tree it
// is in, and to no credentials.
func (a *app) readNamed(o *options, name string) ([]byte, error) {
	real, err := a.leadsTo(o, name)
	if err != nil {
		return nil, err
	}
	// Neither a link that was put there since, nor a pipe that nobody writes to.
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// A pipe or a device would be read for ever.
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, readAtMost))
}

// canBeRead is why a file that the caller names cannot be read; nil if it can, and is
// then still to be judged. It opens nothing.
func canBeRead(name string) error {
	if err := unix.Access(name, unix.R_OK); err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return nil
}

// leadsTo follows the links of a name, as far as they may lead.
func (a *app) leadsTo(o *options, name string) (real string, err error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if real, err = filepath.EvalSymlinks(abs); err != nil {
		var at *fs.PathError
		if errors.As(err, &at) { // of the name as it was given, not of a link on the way
			err = &fs.PathError{Op: "open", Path: name, Err: at.Err}
		}
		return "", err
	}
	if real == abs {
		return real, nil
	}
	if tree := a.treeOf(o, abs); tree != "" && !session.Within(real, session.Real(tree)) {
		return "", fmt.Errorf("%s leads to %s, outside of %s; name that file itself if it is meant", name, gha.Inert(real), gha.Inert(tree))
	}
	_, why := steps.NewGuard(a.loadOptions(o)).Source(real)
	if slices.Contains(strings.Split(real, "/"), ".git") {
		why = "is git's own, and may hold credentials"
	}
	if why != "" {
		return "", fmt.Errorf("%s leads to %s, which %s", name, gha.Inert(real), why)
	}
	return real, nil
}

// treeOf is the tree that a name is in, and that nobody but its owner would want a
// link in it to lead out of: the nearest checkout above it, else the workspace, the
// job's workspace or the current folder. "" if it is in none of these, as a file
// that the caller names by its full path somewhere else.
func (a *app) treeOf(o *options, abs string) string {
	for at := filepath.Dir(abs); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	cwd, err := os.Getwd()
	if err != nil {
		cwd = ""
	}
	for _, tree := range []string{o.workspace, a.getenv("GITHUB_WORKSPACE"), cwd} {
		if filepath.IsAbs(tree) && tree != "/" && (session.Within(abs, tree) || session.Within(abs, session.Real(tree))) {
			return tree
		}
	}
	return ""
}
