package limits

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// Config is what Open needs to know about the host. The zero value, but for
// RunID, describes the machine this runs on.
type Config struct {
	// RunID sets this run's groups apart from those of a run with the same
	// owner: 1 to 32 letters and digits, random.
	RunID string
	// Command is what the user has typed; the fixes of a Refusal repeat it.
	// Empty: "untrusted-steps run FILE".
	Command string
	// XDGRuntimeDir is the caller's variable of that name.
	XDGRuntimeDir string
	// Pod: the caller knows that this is a pod of Kubernetes, which may have no
	// mark of one. It only chooses the words of a Refusal.
	Pod bool
	// EUID is our effective user id; nil asks the kernel.
	EUID func() int
	// PID is our process id; nil asks the kernel.
	PID func() int
	// Exists says whether a path is there; nil asks the file system. It only
	// chooses the words of a Refusal.
	Exists func(path string) bool
	// Dial says whether somebody answers on a UNIX socket; nil tries it. It
	// only chooses the words of a Refusal.
	Dial func(socket string) error
	// Proc is where the proc file system is mounted; empty means /proc.
	Proc string

	kernel kernel // the control group folders; nil is the real ones
}

var runIDPattern = lazy.Regexp(`^[A-Za-z0-9]{1,32}$`)

// dialTimeout bounds the question whether a user manager answers.
const dialTimeout = 2 * time.Second

func (c Config) complete() (Config, error) {
	if !runIDPattern().MatchString(c.RunID) {
		return c, fmt.Errorf("limits: run id %q is not 1 to 32 letters and digits", c.RunID)
	}
	if c.Command == "" {
		c.Command = "untrusted-steps run FILE"
	}
	if c.EUID == nil {
		c.EUID = os.Geteuid
	}
	if c.PID == nil {
		c.PID = os.Getpid
	}
	if c.Exists == nil {
		c.Exists = func(path string) bool {
			_, err := os.Stat(path)
			return err == nil || !errors.Is(err, os.ErrNotExist)
		}
	}
	if c.Dial == nil {
		c.Dial = func(socket string) error {
			conn, err := net.DialTimeout("unix", socket, dialTimeout)
			if err != nil {
				return err
			}
			return conn.Close()
		}
	}
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.kernel == nil {
		c.kernel = hostKernel{}
	}
	return c, nil
}

func (c Config) proc(elem ...string) string {
	return filepath.Join(append([]string{c.Proc}, elem...)...)
}
