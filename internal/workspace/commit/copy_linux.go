package commit

import (
	"context"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// copyRun is how much is copied between two looks at the context.
	copyRun = 16 << 20
	// copyBuffer is for file systems between which the kernel copies nothing.
	copyBuffer = 256 << 10
)

// copyFile makes a new file in a folder with the content and the time of
// another. finish sees it last. What is half made is for the caller to remove.
func copyFile(ctx context.Context, dir int, name string, src int, finish func(fd int) error, step func(string)) error {
	st, err := statFD(src)
	if err != nil {
		return err
	}
	dst, err := openAt(dir, name, makeFlags, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	step("made a copy")
	if err := copyContent(ctx, dst, src, st.Size); err != nil {
		return err
	}
	if err := finish(dst); err != nil {
		return err
	}
	return setTimes(dst, st)
}

func setTimes(fd int, st unix.Stat_t) error {
	times := []unix.Timespec{st.Atim, st.Mtim}
	return again(func() error { return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH) })
}

// copyContent copies a file, shared where the disk can do that and with its
// holes where it cannot: a sparse file may be larger than any disk.
func copyContent(ctx context.Context, dst, src int, size int64) error {
	if again(func() error { return unix.IoctlFileClone(dst, src) }) == nil {
		return nil
	}
	for off := int64(0); off < size; {
		from, to := off, size
		switch data, err := unix.Seek(src, off, unix.SEEK_DATA); err {
		case nil:
			from = data
			if to, err = unix.Seek(src, from, unix.SEEK_HOLE); err != nil {
				return err
			}
		case unix.ENXIO:
			from = size // nothing but a hole from here on
		case unix.EINVAL, unix.EOPNOTSUPP:
		default:
			return err
		}
		to = min(to, size)
		if from < to {
			if err := copyRange(ctx, dst, src, from, to); err != nil {
				return err
			}
		}
		off = max(to, from)
	}
	return again(func() error { return unix.Ftruncate(dst, size) })
}

func copyRange(ctx context.Context, dst, src int, from, to int64) error {
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		in, out := from, from
		n, err := unix.CopyFileRange(src, &in, dst, &out, int(min(to-from, copyRun)), 0)
		switch {
		case err == unix.EINTR:
		case err == unix.ENOSPC || err == unix.EDQUOT || err == unix.EIO:
			return err
		case err != nil || n == 0:
			return copyByHand(ctx, dst, src, from, to)
		default:
			from += int64(n)
		}
	}
	return nil
}

func copyByHand(ctx context.Context, dst, src int, from, to int64) error {
	buf := make([]byte, copyBuffer)
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		err := again(func() (err error) {
			n, err = unix.Pread(src, buf[:min(int64(len(buf)), to-from)], from)
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		for done := 0; done < n; {
			var m int
			err := again(func() (err error) {
				m, err = unix.Pwrite(dst, buf[done:n], from+int64(done))
				return err
			})
			if err != nil {
				return err
			}
			done += m
		}
		from += int64(n)
	}
	return nil
}

// stripped removes the extended attributes of a file. The report does not show
// them, so a step must not bring any into the workspace; some are marks of the
// overlay's, which mean nothing outside it, and one is set-id by another name.
// Labels of a security module are the machine's own and stay.
func stripped(fd int) error {
	names, err := attributes(fd)
	if err != nil || len(names) == 0 {
		return err
	}
	// The kernel asks for the right to write, of the owner too.
	if err := again(func() error { return unix.Fchmod(fd, 0o600) }); err != nil {
		return err
	}
	for _, name := range names {
		err := again(func() error { return unix.Fremovexattr(fd, name) })
		if err != nil && err != unix.ENODATA {
			return err
		}
	}
	return nil
}

func attributes(fd int) ([]string, error) {
	for {
		n, err := unix.Flistxattr(fd, nil)
		if err == unix.EOPNOTSUPP || n == 0 && err == nil {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		buf := make([]byte, n)
		n, err = unix.Flistxattr(fd, buf)
		if err == unix.ERANGE || err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		var out []string
		for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
			if name != "" && (!strings.HasPrefix(name, "security.") || name == "security.capability") {
				out = append(out, name)
			}
		}
		return out, nil
	}
}
