package boxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// static is a build of this test program, where it is not static itself because the
// tests run with cgo or the race detector.
var static struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Static gives this test program as one that runs without a loader: on a bare
// stage, in an image that holds nothing, where /usr is another.
func Static() (string, error) {
	static.once.Do(func() {
		if static.path, static.err = os.Executable(); static.err != nil {
			return
		}
		is, err := isStatic(static.path)
		if err != nil || is {
			static.err = err
			return
		}
		if static.dir, static.err = os.MkdirTemp("", "k"); static.err != nil {
			return
		}
		if static.err = os.Chmod(static.dir, 0o755); static.err != nil {
			return
		}
		static.path = filepath.Join(static.dir, filepath.Base(static.path))
		cmd := exec.Command("go", "test", "-c", "-o", static.path, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			static.err = fmt.Errorf("build a static test program: %w: %s", err, out)
		}
	})
	return static.path, static.err
}

// RemoveStatic takes away what Static has built. It is for the end of TestMain.
func RemoveStatic() {
	if static.dir != "" {
		_ = os.RemoveAll(static.dir)
	}
}
