package kern

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
)

const (
	// maxBinary is far above kern's 4 MB.
	maxBinary = 64 << 20
	// identityLimit is how long a program has to say what it is.
	identityLimit = 10 * time.Second
	// maxIdentity bounds what is read of that.
	maxIdentity = 4 << 10
)

// identity is what tells one file from the same path's next one.
type identity struct {
	path         string
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// binary is a verified program. What is run is the sealed copy: the bytes that
// were hashed, in memory that nobody can write to any more. An attacker who
// swaps the file between check and start gains nothing.
type binary struct {
	id      identity
	sum     string
	version string
	sealed  *os.File
	pinned  bool
}

func (b *binary) Close() error { return b.sealed.Close() }

// admitted says whether a sum may be run.
func admitted(sum, arch, accept string) (pinned bool, err error) {
	p, ok := pinFor(arch)
	if ok && sum == p.SHA256 {
		return true, nil
	}
	if accept != "" && sum == strings.ToLower(accept) {
		return false, nil
	}
	if !ok {
		return false, fmt.Errorf("its SHA-256 is %s, and no kern is pinned for %s; --kern-sha256 %s accepts this one, on record", sum, arch, sum)
	}
	return false, fmt.Errorf("not kern %s as released: its SHA-256 is %s and not %s; --kern-sha256 %s accepts this one, on record", p.Version, sum, p.SHA256, sum)
}

// verify opens a program, hashes a sealed copy of it, and only then lets it say
// what it is. A program that is not admitted is never started.
func verify(ctx context.Context, path, arch, accept string) (*binary, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id, err := identify(real, f)
	if err != nil {
		return nil, err
	}
	sealed, sum, err := seal(f)
	if err != nil {
		return nil, err
	}
	b := &binary{id: id, sum: sum, sealed: sealed}
	if b.pinned, err = admitted(sum, arch, accept); err == nil {
		b.version, err = askVersion(ctx, sealed)
	}
	if err != nil {
		sealed.Close()
		return nil, err
	}
	return b, nil
}

// current says whether the file that was verified is still the one at its path.
func (b *binary) current() bool {
	f, err := os.OpenFile(b.id.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	id, err := identify(b.id.path, f)
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
	return identity{path: path, dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// seal copies a file into memory that cannot change and hashes what is there.
func seal(f *os.File) (*os.File, string, error) {
	fd, err := unix.MemfdCreate("kern", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 every one was executable
		fd, err = unix.MemfdCreate("kern", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a sealed copy: %w", err)
	}
	m := os.NewFile(uintptr(fd), "kern")
	fail := func(err error) (*os.File, string, error) {
		m.Close()
		return nil, "", fmt.Errorf("make a sealed copy: %w", err)
	}
	n, err := io.Copy(m, io.LimitReader(f, maxBinary+1))
	if err != nil {
		return fail(err)
	}
	if n > maxBinary {
		return fail(fmt.Errorf("over %d bytes", maxBinary))
	}
	if _, err := unix.FcntlInt(m.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		return fail(err)
	}
	// Hashed after it was sealed: what is hashed is what will run.
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(m, 0, n)); err != nil {
		return fail(err)
	}
	return m, hex.EncodeToString(h.Sum(nil)), nil
}

// askVersion has a program say what it is. /bin/true, told to run a box,
// answers success without running anything: a program must claim to be kern.
func askVersion(ctx context.Context, sealed *os.File) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", "--version")
	cmd.Args[0] = "kern"
	cmd.ExtraFiles = []*os.File{sealed} // the first of these is descriptor 3
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &capped{to: &out, left: maxIdentity}
	err := cmd.Run()
	line, _, _ := strings.Cut(out.String(), "\n")
	line = strings.TrimSuffix(line, "\r")
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("not kern: no answer to --version within %s", identityLimit)
	case err != nil:
		return "", fmt.Errorf("not kern: --version: %w", err)
	case line == "":
		return "", errors.New("not kern: it answers nothing to --version")
	}
	v, ok := strings.CutPrefix(line, "kern ")
	if !ok {
		return "", fmt.Errorf("not kern: it answers %q to --version", cut(line, 120))
	}
	return cut(strings.TrimSpace(v), 120), nil
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}

// capped keeps the first bytes of a stream and swallows the rest, so that a
// program that writes without end neither blocks nor fills our memory.
type capped struct {
	to   io.Writer
	left int
	more bool
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	if n < len(p) {
		c.more = true
	}
	c.left -= n
	if n > 0 {
		if _, err := c.to.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
