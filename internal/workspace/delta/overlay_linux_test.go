package delta

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

const overlayVariable = "DELTA_TEST_OVERLAY"

// overlay is an overlay to be mounted, and what to do in it.
type overlay struct {
	Lower []string // top first
	Upper string
	Work  string
	At    string
	Ops   []op
}

// op is one thing done to a tree, that may fail.
type op struct {
	Do   string
	P, Q string
	Mode uint32
	Text string
}

func (o op) String() string {
	return fmt.Sprintf("%s %q %q %04o %d", o.Do, o.P, o.Q, o.Mode, len(o.Text))
}

// onOverlay mounts an overlay in a user namespace of a process of its own, as a
// box does, and says which of the ops did what they should.
func onOverlay(o overlay) (done []bool, err error) {
	in, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{overlayVariable + "=1"}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	return done, json.Unmarshal(out, &done)
}

// overlayChild is the other process.
func overlayChild() error {
	var o overlay
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	options := "lowerdir=" + strings.Join(o.Lower, ":") + ",upperdir=" + o.Upper + ",workdir=" + o.Work + ",userxattr"
	if err := unix.Mount("box", o.At, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", options, err)
	}
	unix.Umask(0)
	done := []bool{}
	for _, op := range o.Ops {
		done = append(done, op.apply(o.At) == nil)
	}
	if err := unix.Unmount(o.At, 0); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(done)
}

// newOverlay makes the folders of an overlay where one can be mounted.
func newOverlay(t testing.TB, lower ...string) overlay {
	t.Helper()
	base := filepath.Dir(lower[0])
	dir, err := os.MkdirTemp(base, "o")
	do(t, err)
	o := overlay{Lower: lower, Upper: dir + "/upper", Work: dir + "/work", At: dir + "/at"}
	for _, d := range []string{o.Upper, o.Work, o.At} {
		do(t, os.Mkdir(d, 0o755))
	}
	return o
}

// overlayBase gives a folder on a file system that overlays can be made of: the
// one for temporary files may be an overlay itself.
func overlayBase(t testing.TB) string {
	t.Helper()
	boxtest.Need(t, "userns", "overlay")
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm"} {
		base, err := os.MkdirTemp(parent, "delta-")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.Cleanup(func() {
			_ = filepath.WalkDir(base, func(p string, d os.DirEntry, err error) error {
				if d != nil && d.IsDir() {
					_ = os.Chmod(p, 0o700)
				}
				return nil
			})
			os.RemoveAll(base)
		})
		do(t, os.Mkdir(base+"/probe", 0o755))
		if _, err = onOverlay(newOverlay(t, base+"/probe")); err == nil {
			return base
		}
		errs = append(errs, err)
	}
	t.Fatalf("no folder here that an overlay can be made of: %v", errors.Join(errs...))
	return ""
}

func (o op) apply(root string) error {
	p, q := filepath.Join(root, o.P), filepath.Join(root, o.Q)
	switch o.Do {
	case "mkdir":
		return unix.Mkdir(p, 0o755)
	case "write":
		// Never waiting for somebody at the end of a FIFO.
		f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(o.Text)
		return errors.Join(err, f.Close())
	case "symlink":
		return os.Symlink(filepath.Base(o.Q), p)
	case "unlink":
		return unix.Unlink(p)
	case "rmdir":
		return unix.Rmdir(p)
	case "rmall":
		st, err := os.Stat(filepath.Dir(p))
		if err != nil || !st.IsDir() {
			return errors.Join(err, unix.ENOTDIR)
		}
		return os.RemoveAll(p)
	case "rename":
		return unix.Rename(p, q)
	case "exchange":
		return unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, q, unix.RENAME_EXCHANGE)
	case "link":
		return unix.Link(p, q)
	case "chmod":
		return unix.Chmod(p, o.Mode)
	case "fifo":
		return unix.Mkfifo(p, 0o600)
	case "truncate":
		if st, err := os.Lstat(p); err != nil || !st.Mode().IsRegular() {
			return unix.EINVAL
		}
		return os.Truncate(p, int64(len(o.Text)))
	case "touch":
		return unix.Utimes(p, []unix.Timeval{{Sec: 1}, {Sec: 1}})
	case "swapdir": // a file or link becomes a folder
		if err := unix.Unlink(p); err != nil {
			return err
		}
		return unix.Mkdir(p, 0o755)
	case "forge":
		return errors.Join(forge(p, "user.overlay.opaque"), forge(p, "user.overlay.whiteout"))
	case "forgedevice":
		return unix.Mknod(p, unix.S_IFCHR|0o600, 0)
	}
	panic(o.Do)
}

// forge tries to put an overlay's mark on a file, which the kernel refuses or
// puts elsewhere.
func forge(p, attr string) error {
	err := unix.Lsetxattr(p, attr, []byte("y"), 0)
	if err == unix.EPERM || err == unix.EOPNOTSUPP || err == unix.ENOENT {
		err = nil
	}
	return err
}
