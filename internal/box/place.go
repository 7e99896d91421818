package box

import (
	"fmt"
	"path"
	"strings"
)

// MountTarget refuses the places in a box that belong to us.
func MountTarget(key, t string) error {
	t = path.Clean(t)
	switch {
	case !path.IsAbs(t) || strings.ContainsRune(t, 0):
		return fmt.Errorf("%s: %q is not an absolute path", key, t)
	case t == "/" || Within(t, "/proc") || Within(t, "/sys") || Within(t, "/dev"):
		return fmt.Errorf("%s: nothing can be mounted at %s", key, t)
	case Within(t, StepDir) && (key != "tmpfs" || t != HomeTarget):
		return fmt.Errorf("%s: nothing can be mounted in %s", key, StepDir)
	}
	return nil
}

// Within says whether a path is a folder or lies in it, by their names.
func Within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// Depth is how many folders a clean absolute path lies below the root.
func Depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

// Hostname is the step's id as a host name can hold it.
func Hostname(id string) string {
	b := []byte("box-" + id)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
			b[i] = '-'
		}
	}
	if len(b) > 60 {
		b = b[:60]
	}
	return strings.TrimRight(string(b), "-")
}
