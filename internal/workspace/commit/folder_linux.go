package commit

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// folder is the workspace, open.
type folder struct {
	path     string // real, without links
	fd       int    // O_PATH
	identity identity
	uid, gid int
	mode     uint32
	device   uint64
}

// openFolder opens a workspace. path is the caller's and may lead over links. With at
// that is what is opened, and the path is its name and nothing else.
func openFolder(path, at string) (*folder, error) {
	abs, err := filepath.Abs(path)
	if err == nil && at == "" {
		abs, err = filepath.EvalSymlinks(abs)
		at = abs
	}
	if err != nil {
		return nil, err
	}
	fd, err := openAt(unix.AT_FDCWD, at, pathFlags, 0)
	if err != nil {
		return nil, err
	}
	f := &folder{path: abs, fd: fd}
	if err := f.look(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return f, nil
}

func (f *folder) look() error {
	var st unix.Statx_t
	err := again(func() error {
		return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := again(func() error { return unix.Fstatfs(f.fd, &fs) }); err != nil {
		return err
	}
	f.uid, f.gid, f.mode = int(st.Uid), int(st.Gid), uint32(st.Mode)&0o7777
	f.device = unix.Mkdev(st.Dev_major, st.Dev_minor)
	f.identity = identity{
		Path: []byte(f.path), Inode: st.Ino, Device: f.device,
		System: uint64(uint32(fs.Fsid.Val[0]))<<32 | uint64(uint32(fs.Fsid.Val[1])),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		f.identity.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return nil
}

func (f *folder) String() string { return fmt.Sprintf("%q", f.path) }
