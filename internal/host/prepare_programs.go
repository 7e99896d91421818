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
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
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

// onlyRoot says why somebody who is not root could change what a path leads to.
func onlyRoot(path string) error { return scratch.Way(path, scratch.Root) }

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
