package kern

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Refusal is a program that is not run, and why.
type Refusal struct {
	Path string
	From string // "KERN_BIN", "install cache" or "PATH"
	Err  error
}

func (r Refusal) String() string { return fmt.Sprintf("%s (%s): %v", r.Path, r.From, r.Err) }

// NotFoundError says that there is no kern to use, and what was looked at.
type NotFoundError struct {
	Looked  []string
	Refused []Refusal
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	b.WriteString("no usable kern")
	if len(e.Looked) > 0 {
		fmt.Fprintf(&b, "; looked at %s", strings.Join(e.Looked, ", "))
	}
	for _, r := range e.Refused {
		fmt.Fprintf(&b, "; refused %s", r)
	}
	b.WriteString(`; "untrusted-steps kern install" fetches it`)
	return b.String()
}

// maxPathEntries bounds how many folders of PATH are looked into.
const maxPathEntries = 256

// find gives the first candidate that verify accepts. KERN_BIN, once set, is
// the only one: falling through to another program would run something that
// the caller did not name. On PATH a wrong program is passed over and reported:
// an earlier step of the job may have put one there.
func find(getenv func(string) string, cached string, verify func(path string) (*binary, error)) (*binary, error) {
	if named := getenv("KERN_BIN"); named != "" {
		err := executableFile(named)
		if err == nil {
			var b *binary
			if b, err = verify(named); err == nil {
				return b, nil
			}
		}
		return nil, fmt.Errorf("KERN_BIN=%s: %w", named, err)
	}
	var nf NotFoundError
	try := func(path, from string) (*binary, error) {
		err := executableFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		var b *binary
		if err == nil {
			b, err = verify(path)
		}
		if err != nil {
			nf.Refused = append(nf.Refused, Refusal{Path: path, From: from, Err: err})
		}
		return b, err
	}
	if cached != "" {
		nf.Looked = append(nf.Looked, cached)
		if b, err := try(cached, "install cache"); err == nil {
			return b, nil
		}
	}
	nf.Looked = append(nf.Looked, "PATH")
	dirs := filepath.SplitList(getenv("PATH"))
	for _, dir := range dirs[:min(len(dirs), maxPathEntries)] {
		// An empty or relative entry means "wherever we stand", which may be
		// the workspace.
		if !filepath.IsAbs(dir) {
			continue
		}
		if b, err := try(filepath.Join(dir, "kern"), "PATH"); err == nil {
			return b, nil
		}
	}
	return nil, &nf
}

// executableFile says why a path cannot be run.
func executableFile(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return errors.New("not a regular file")
	case st.Mode()&0o111 == 0:
		return errors.New("not executable")
	}
	return nil
}

// cachePath is where Install puts a build of kern. Empty if the environment
// names no place.
func cachePath(getenv func(string) string, sum string) string {
	base := getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(base) {
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "untrusted-steps", "kern", sum, "kern")
}
