package pinned

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Kind is a program that is looked for.
type Kind struct {
	Name string // its file's name, such as "runsc"
	Env  string // the variable that names its path; then no other is taken
	Flag string // what admits another build, such as "--runsc-sha256"
	Get  string // what to type to have it
	// Release is the version that is pinned, and Sum its SHA-256 in hex for this
	// machine; empty where none is.
	Release, Sum string
	// MaxBytes bounds the file.
	MaxBytes int64
	// Version reads the first line of its answer to --version. An error says that
	// it is another program.
	Version func(line string) (string, error)
}

// Refusal is a program that is not run, and why.
type Refusal struct {
	Path string
	From string // "RUNSC_BIN", "install cache" or "PATH"
	Err  error
}

func (r Refusal) String() string { return fmt.Sprintf("%s (%s): %v", r.Path, r.From, r.Err) }

// NotFoundError says that there is none to use, and what was looked at.
type NotFoundError struct {
	Kind    Kind
	Looked  []string
	Refused []Refusal
}

func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no usable %s", e.Kind.Name)
	if len(e.Looked) > 0 {
		fmt.Fprintf(&b, "; looked at %s", strings.Join(e.Looked, ", "))
	}
	for _, r := range e.Refused {
		fmt.Fprintf(&b, "; refused %s", r)
	}
	if get := fmt.Sprintf("%q", e.Kind.Get); !strings.Contains(b.String(), get) {
		fmt.Fprintf(&b, "; %s gets it", get)
	}
	return b.String()
}

// maxPathEntries bounds how many folders of PATH are looked into.
const maxPathEntries = 256

// Find gives the first candidate that can be believed: the one that the variable
// names, and then no other; else the one in the cache; else the first on PATH,
// where a wrong one is passed over and told of, since an earlier step of the job
// may have put it there.
func Find(ctx context.Context, k Kind, getenv func(string) string, cached, accept string) (*Binary, error) {
	if named := getenv(k.Env); named != "" {
		err := Executable(named)
		if err == nil {
			var b *Binary
			if b, err = Verify(ctx, k, named, accept); err == nil {
				return b, nil
			}
		}
		return nil, fmt.Errorf("%s=%s: %w", k.Env, named, err)
	}
	nf := NotFoundError{Kind: k}
	try := func(path, from string) (*Binary, error) {
		err := Executable(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		var b *Binary
		if err == nil {
			b, err = Verify(ctx, k, path, accept)
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
		// An empty or relative entry means "wherever we stand", which may be the
		// workspace.
		if !filepath.IsAbs(dir) {
			continue
		}
		if b, err := try(filepath.Join(dir, k.Name), "PATH"); err == nil {
			return b, nil
		}
	}
	return nil, &nf
}

// Executable says why a path cannot be run.
func Executable(path string) error {
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

// LookPath finds a program to be run on the host on a given PATH: in absolute folders
// only, and in none that is, or lies in, one to avoid, not by a link either.
func LookPath(name, path string, avoid ...string) (string, error) {
	for _, dir := range fit(path, avoid) {
		if at := filepath.Join(dir, name); Executable(at) == nil && !among(at, avoid) {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s is not on PATH: %w", name, exec.ErrNotFound)
}

// Path is what of a PATH may be handed to a program that is run on the host, which
// will look up others by it: go the Go that it is to be, pip whatever tells it of the
// system, a helper of docker login what holds the passwords. The folders of LookPath,
// in their order; of what lies in them it knows nothing.
func Path(path string, avoid ...string) string { return strings.Join(fit(path, avoid), ":") }

func fit(path string, avoid []string) (dirs []string) {
	for _, dir := range filepath.SplitList(path) {
		// An empty or relative entry means "wherever we stand", and one that is not
		// there may yet become a link.
		if _, err := os.Stat(dir); filepath.IsAbs(dir) && err == nil && !among(dir, avoid) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func among(path string, avoid []string) bool {
	return slices.ContainsFunc(avoid, func(a string) bool { return In(path, a) })
}

// In says whether a path is a folder or leads into it, by its words or by links, also
// where its end is not there yet. Nothing is in "", nor in /, where all is.
func In(path, folder string) bool {
	if folder == "" || path == "" || filepath.Clean(folder) == "/" {
		return false
	}
	for _, p := range []string{filepath.Clean(path), resolved(path)} {
		for _, f := range []string{filepath.Clean(folder), resolved(folder)} {
			if rel, err := filepath.Rel(f, p); f != "/" && err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				return true
			}
		}
	}
	return false
}

// resolved is a path without links as far as there is anything.
func resolved(path string) string {
	path = filepath.Clean(path)
	for at, rest := path, ""; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return path
		}
	}
}

// takesCode are the variables, besides PATH, by which a program finds code to run as its
// own: the loader's, Python's, Go's and git's.
var takesCode = []string{
	"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
	"GOROOT", "GOTOOLDIR", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM",
}

// Environ is an environment for a program that is run on the host: PATH is what Path
// leaves of one, and so is each variable that leads to code; of what nothing is left,
// there is no variable. Of a HOME that is to be avoided neither Python's modules nor
// git's settings are taken.
func Environ(environ []string, path string, avoid ...string) []string {
	out := make([]string, 0, len(environ)+1)
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(takesCode, name) {
			if value = Path(value, avoid...); value == "" {
				continue
			}
			kv = name + "=" + value
		}
		switch {
		case name == "PATH":
			continue
		case name == "HOME" && slices.ContainsFunc(avoid, func(of string) bool { return In(value, of) }):
			out = append(out, "PYTHONNOUSERSITE=1", "GIT_CONFIG_GLOBAL=/dev/null")
		}
		out = append(out, kv)
	}
	return append(out, "PATH="+Path(path, avoid...))
}

// UserFolder is a folder of the caller's by the XDG rules: the one that a variable
// names, else one below HOME. Empty if neither is an absolute path: the current folder
// may be anybody's.
func UserFolder(getenv func(string) string, variable, inHome string) string {
	if base := getenv(variable); filepath.IsAbs(base) {
		return base
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, inHome)
	}
	return ""
}

// CachePath is where a build of a program is kept by its sum. Empty if the
// environment names no place.
func CachePath(getenv func(string) string, name, sum string) string {
	base := UserFolder(getenv, "XDG_CACHE_HOME", ".cache")
	if base == "" {
		return ""
	}
	return filepath.Join(base, cachedAs(name, sum))
}

// inCache says whether a path is that of the pinned build in some user's cache, by
// whatever way it was found: RUNSC_BIN may name it too.
func inCache(k Kind, path string) bool {
	return k.Sum != "" && strings.HasSuffix(filepath.Clean(path), "/"+cachedAs(k.Name, k.Sum))
}

// cachedAs is where a build is kept below the folder for caches.
func cachedAs(name, sum string) string {
	return filepath.Join("untrusted-steps", name, sum, name)
}
