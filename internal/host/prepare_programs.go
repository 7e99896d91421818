package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// trustedFolders are where programs are looked for that act as root or for it.
// Never on PATH: whoever ran in this job before us may have put a folder of their
// own first there.
var trustedFolders = []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program finds a program that only root can have put there.
func program(name string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return "", fmt.Errorf("host: bug: %q is no name of a program", name)
	}
	var errs []error
	for _, dir := range trustedFolders {
		path := filepath.Join(dir, name)
		err := onlyRoot(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			var st os.FileInfo
			if st, err = os.Stat(path); err == nil && (!st.Mode().IsRegular() || st.Mode()&0o111 == 0) {
				err = errors.New("not a program")
			}
		}
		if err == nil {
			return path, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	if len(errs) == 0 {
		return "", fmt.Errorf("there is no %s in %s", name, strings.Join(trustedFolders, ", "))
	}
	return "", errors.Join(errs...)
}

// maxLinks bounds a path that leads through links.
const maxLinks = 40

// onlyRoot says why somebody who is not root could change what a path leads to:
// every folder and link on the way, and what is at its end, must be root's and
// nobody else's to write. Nil if nobody can.
func onlyRoot(path string) error { return onlyRootFrom(path, maxLinks) }

func onlyRootFrom(path string, links int) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s is no absolute path", path)
	}
	at := "/"
	parts := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for i := -1; i < len(parts); i++ {
		if i >= 0 {
			at = filepath.Join(at, parts[i])
		}
		st, err := os.Lstat(at)
		if err != nil {
			return err
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return fmt.Errorf("host: bug: no owner in stat of %s", at)
		case sys.Uid != 0:
			return fmt.Errorf("%s belongs to user %d and not to root", at, sys.Uid)
		case st.Mode()&fs.ModeSymlink != 0:
			if links == 0 {
				return fmt.Errorf("%s leads through too many links", path)
			}
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(at), to)
			}
			return onlyRootFrom(filepath.Join(append([]string{to}, parts[i+1:]...)...), links-1)
		case st.Mode().Perm()&0o022 != 0:
			return fmt.Errorf("%s can be written by others than root (%v)", at, st.Mode())
		}
	}
	return nil
}

// trySudo has sudo do nothing.
func trySudo(ctx context.Context) error {
	sudo, err := program("sudo")
	if err != nil {
		return err
	}
	nothing, err := program("true")
	if err != nil {
		return err
	}
	return perform(ctx, []string{sudo, "-n", "--", nothing}, "")
}

const (
	// performPatience bounds each of the small programs that are run.
	performPatience = 60 * time.Second
	maxWords        = 4 << 10
)

// perform runs one program. Its error is in words.
func perform(ctx context.Context, argv []string, stdin string) error {
	_, err := run(ctx, argv, stdin)
	return err
}

// run runs one program with an environment that nobody chose, and gives the
// first of what it says on stdout.
func run(ctx context.Context, argv []string, stdin string, env ...string) (said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, performPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "LC_ALL=C.UTF-8"}, env...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = "/", strings.NewReader(stdin), time.Second
	var out, words strings.Builder
	cmd.Stdout, cmd.Stderr = &limited{w: &out, left: maxAnswer}, &limited{w: &words, left: maxWords}
	if err = cmd.Run(); err != nil && words.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, oneLine(words.String()))
	}
	return out.String(), err
}
