package pinned

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/memfd"
)

const (
	// identityLimit is how long a program has to say what it is.
	identityLimit = 10 * time.Second
	// maxIdentity bounds what is read of that.
	maxIdentity = 4 << 10
)

// identity is what tells one file from the same path's next one.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// Binary is a program that was found to be what it should be.
type Binary struct {
	Path    string
	Sum     string // SHA-256, hex
	Version string
	Sealed  *os.File // the copy to run
	Pinned  bool     // else it was admitted
	id      identity
}

// Close lets go of the copy.
func (b *Binary) Close() error { return b.Sealed.Close() }

// admitted says whether a program may be run, by its sum. ours is one in our own
// cache.
func admitted(k Kind, ours bool, sum, accept string) (isPinned bool, err error) {
	if k.Sum != "" && sum == k.Sum {
		return true, nil
	}
	if accept != "" && sum == strings.ToLower(accept) {
		return false, nil
	}
	if k.Sum == "" {
		return false, fmt.Errorf("its SHA-256 is %s, and no %s is pinned for this machine; %s %s accepts this one, on record", sum, k.Name, k.Flag, sum)
	}
	wrong := fmt.Sprintf("not the pinned build of %s %s: its SHA-256 is %s and not %s", k.Name, k.Release, sum, k.Sum)
	if ours {
		// We put the pinned build there and nothing else: somebody has changed it, and
		// nobody is to be told how to accept that.
		return false, fmt.Errorf("%s; somebody changed it since it was put there: %q replaces it", wrong, k.Get)
	}
	return false, fmt.Errorf("%s; %s %s accepts this one, on record", wrong, k.Flag, sum)
}

// Verify opens a program, hashes a sealed copy of it, and only then lets it say
// what it is.
func Verify(ctx context.Context, k Kind, path, accept string) (*Binary, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := &Binary{Path: real}
	if b.id, err = identify(real, f); err != nil {
		return nil, err
	}
	if b.Sealed, b.Sum, err = seal(k, f); err != nil {
		return nil, err
	}
	if b.Pinned, err = admitted(k, inCache(k, path) || inCache(k, real), b.Sum, accept); err == nil {
		b.Version, err = askVersion(ctx, k, b.Sealed)
	}
	if err != nil {
		b.Sealed.Close()
		return nil, err
	}
	return b, nil
}

// Current says whether the file that was verified is still the one at its path.
func (b *Binary) Current() bool {
	f, err := os.OpenFile(b.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	id, err := identify(b.Path, f)
	return err == nil && id == b.id
}

func identify(path string, f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return identity{}, errors.New("not a regular file")
	}
	return identity{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// seal copies a file into memory that cannot change and hashes what is there.
func seal(k Kind, f *os.File) (*os.File, string, error) {
	fd, err := unix.MemfdCreate(k.Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every one was executable
		fd, err = unix.MemfdCreate(k.Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a sealed copy: %w", err)
	}
	m := os.NewFile(uintptr(fd), k.Name)
	fail := func(err error) (*os.File, string, error) {
		m.Close()
		return nil, "", fmt.Errorf("make a sealed copy: %w", err)
	}
	n, err := io.Copy(m, io.LimitReader(f, k.MaxBytes+1))
	if err != nil {
		return fail(err)
	}
	if n > k.MaxBytes {
		return fail(fmt.Errorf("over %d bytes", k.MaxBytes))
	}
	if err := m.Chmod(0o555); err != nil {
		return fail(err)
	}
	if err := memfd.Seal(m.Fd()); err != nil {
		return fail(err)
	}
	// Hashed after it was sealed: what is hashed is what will run.
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(m, 0, n)); err != nil {
		return fail(err)
	}
	return m, hex.EncodeToString(h.Sum(nil)), nil
}

// askVersion has a program say what it is.
func askVersion(ctx context.Context, k Kind, sealed *os.File) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", "--version")
	cmd.Args[0] = k.Name
	cmd.ExtraFiles = []*os.File{sealed} // the first of these is descriptor 3
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stdout = &Capped{To: &out, Left: maxIdentity}
	err := Run(cmd)
	line, _, _ := strings.Cut(out.String(), "\n")
	line = strings.TrimSuffix(line, "\r")
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("not %s: no answer to --version within %s", k.Name, identityLimit)
	case err != nil:
		return "", fmt.Errorf("not %s: --version: %w", k.Name, err)
	case line == "":
		return "", fmt.Errorf("not %s: it answers nothing to --version", k.Name)
	}
	v, err := k.Version(line)
	if err != nil {
		return "", fmt.Errorf("not %s: it answers %q to --version", k.Name, cut(line, 120))
	}
	return cut(v, 120), nil
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}

// Capped keeps the first bytes of a stream and swallows the rest, so that a
// program that writes without end neither blocks nor fills our memory.
type Capped struct {
	To   io.Writer
	Left int
}

func (c *Capped) Write(p []byte) (int, error) {
	n := min(len(p), c.Left)
	c.Left -= n
	if n > 0 {
		if _, err := c.To.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
