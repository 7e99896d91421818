package steps

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
)

// maxModules bounds what is read of .gitmodules.
const maxModules = 1 << 20

// modules are the folders that a workspace's .gitmodules has for submodules, as
// it was before the step. A step cannot change that file unless it is named.
func modules(d *delta.Delta) ([]string, error) {
	const name = ".gitmodules"
	switch found, err := d.Before(name); {
	case err != nil:
		return nil, err
	case found.Type != "file":
		return nil, nil // git does not follow a link there either
	}
	f, err := d.OpenBefore(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return modulePaths(f)
}

// modulePaths are the values of the keys called path. A line that is none to git
// costs nothing.
func modulePaths(r io.Reader) (paths []string, err error) {
	limited := &io.LimitedReader{R: r, N: maxModules + 1}
	sc := bufio.NewScanner(limited)
	sc.Buffer(nil, maxModules+1)
	for sc.Scan() {
		key, value, ok := strings.Cut(sc.Text(), "=")
		if i := strings.LastIndexByte(key, ']'); i >= 0 { // of [section] on the same line
			key = key[i+1:]
		}
		if ok && strings.EqualFold(strings.TrimSpace(key), "path") {
			paths = append(paths, strings.Trim(strings.TrimSpace(value), `"`))
		}
	}
	if limited.N == 0 {
		return nil, errors.New(".gitmodules is larger than is read")
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read .gitmodules: %w", err)
	}
	return paths, nil
}
