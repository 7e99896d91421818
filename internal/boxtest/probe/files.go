package probe

import (
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxRead bounds what one read tells.
const maxRead = 64 << 10

var files = []action{
	{"ls", 1, func(a []string) Answer {
		list, err := os.ReadDir(a[0])
		ans := failed(err)
		for _, e := range list {
			ans.List = append(ans.List, e.Name())
		}
		sort.Strings(ans.List)
		return ans
	}},
	{"read", 1, func(a []string) Answer {
		// Not blocking: some of what is asked for waits for ever.
		fd, err := unix.Open(a[0], unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return failed(err)
		}
		defer unix.Close(fd)
		buf := make([]byte, maxRead)
		got := 0
		for got < len(buf) {
			n, err := unix.Read(fd, buf[got:])
			if err != nil && got == 0 {
				return failed(err)
			}
			if n <= 0 {
				break
			}
			got += n
		}
		return Answer{Text: string(buf[:got]), N: int64(got)}
	}},
	// open only opens, as the flags r, w, or rw say.
	{"open", 2, func(a []string) Answer {
		flags := map[string]int{"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR}[a[1]]
		fd, err := unix.Open(a[0], flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return failed(err)
	}},
	// overwrite writes into what is there.
	{"overwrite", 2, func(a []string) Answer {
		fd, err := unix.Open(a[0], unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return failed(err)
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(a[1]))
		return failed(err)
	}},
	{"create", 2, func(a []string) Answer {
		mode := uint32(0o644)
		if len(a) > 2 {
			mode = uint32(number(a[2]))
		}
		fd, err := unix.Open(a[0], unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
		if err != nil {
			return failed(err)
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(a[1]))
		return failed(err)
	}},
	{"copy", 3, func(a []string) Answer {
		in, err := os.Open(a[0])
		if err != nil {
			return failed(err)
		}
		defer in.Close()
		out, err := os.OpenFile(a[1], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
		if err != nil {
			return failed(err)
		}
		_, err = io.Copy(out, in)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = unix.Chmod(a[1], uint32(number(a[2])))
		}
		return failed(err)
	}},
	{"stat", 1, func(a []string) Answer {
		var st unix.Stat_t
		if err := unix.Lstat(a[0], &st); err != nil {
			return failed(err)
		}
		return Answer{List: []string{fmt.Sprintf("%o", st.Mode), strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid))}, N: st.Size}
	}},
	{"statfs", 1, func(a []string) Answer {
		var st unix.Statfs_t
		if err := unix.Statfs(a[0], &st); err != nil {
			return failed(err)
		}
		return Answer{N: int64(st.Blocks) * st.Bsize, List: mountFlags(int64(st.Flags))}
	}},
	{"mkdir", 1, func(a []string) Answer { return failed(unix.Mkdir(a[0], 0o755)) }},
	{"unlink", 1, func(a []string) Answer { return failed(unix.Unlink(a[0])) }},
	{"symlink", 2, func(a []string) Answer { return failed(unix.Symlink(a[0], a[1])) }},
	{"link", 2, func(a []string) Answer { return failed(unix.Link(a[0], a[1])) }},
	{"chmod", 2, func(a []string) Answer { return failed(unix.Chmod(a[0], uint32(number(a[1])))) }},
	// set-id tries every way to have a set-id file in a folder, and tells of each how it
	// ended: a name and an error.
	{"set-id", 1, func(a []string) Answer { return Answer{List: setIDs(a[0])} }},
	{"chown", 3, func(a []string) Answer { return failed(unix.Chown(a[0], number(a[1]), number(a[2]))) }},
	{"mknod", 4, func(a []string) Answer {
		return failed(unix.Mknod(a[0], uint32(number(a[1])), int(unix.Mkdev(uint32(number(a[2])), uint32(number(a[3]))))))
	}},
	// fill writes zeros until so many bytes are in the file.
	{"fill", 2, func(a []string) Answer {
		f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return failed(err)
		}
		defer f.Close()
		return pour(f, number(a[1]))
	}},
}

func pour(f *os.File, want int) Answer {
	buf := make([]byte, 1<<20)
	done := 0
	for done < want {
		n, err := f.Write(buf[:min(len(buf), want-done)])
		done += n
		if err != nil {
			a := failed(err)
			a.N = int64(done)
			return a
		}
	}
	return Answer{N: int64(done)}
}

func mountFlags(f int64) []string {
	var out []string
	for _, x := range []struct {
		bit  int64
		name string
	}{{unix.ST_RDONLY, "ro"}, {unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}} {
		if f&x.bit != 0 {
			out = append(out, x.name)
		}
	}
	return out
}

// setIDs makes a file for each call, that it gives the bits or is born with them.
func setIDs(dir string) (ended []string) {
	const bits, fchmodat2 = 0o6755, 452
	at := func(name string) string { return dir + "/" + name }
	try := func(name string, call func(path string) error) {
		if a := failed(call(at(name))); a.Err != "" {
			ended = append(ended, name+" "+a.Err)
		} else {
			ended = append(ended, name)
		}
	}
	made := func(call func(path string, fd int) error) func(string) error {
		return func(path string) error {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o755)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return call(path, fd)
		}
	}
	opened := func(fd int, err error) error {
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	try("chmod", made(func(path string, _ int) error { return unix.Chmod(path, bits) }))
	try("fchmod", made(func(_ string, fd int) error { return unix.Fchmod(fd, bits) }))
	try("fchmodat", made(func(path string, _ int) error { return unix.Fchmodat(unix.AT_FDCWD, path, bits, 0) }))
	try("fchmodat2", made(func(path string, _ int) error {
		p, err := unix.BytePtrFromString(path)
		if err != nil {
			return err
		}
		cwd := unix.AT_FDCWD
		_, _, en := unix.Syscall6(fchmodat2, uintptr(cwd), uintptr(unsafe.Pointer(p)), bits, 0, 0, 0)
		return en
	}))
	try("open", func(path string) error { return opened(unix.Open(path, unix.O_WRONLY|unix.O_CREAT, bits)) })
	try("openat2", func(path string) error {
		return opened(unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_CREAT, Mode: bits}))
	})
	try("tmpfile", func(path string) error {
		fd, err := unix.Open(dir, unix.O_WRONLY|unix.O_TMPFILE, bits)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	})
	try("mknod", func(path string) error { return unix.Mknod(path, unix.S_IFREG|bits, 0) })
	try("folder", func(path string) error {
		if err := unix.Mkdir(path, 0o755); err != nil {
			return err
		}
		return unix.Chmod(path, 0o2755)
	})
	return ended
}
