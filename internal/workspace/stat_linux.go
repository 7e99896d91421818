package workspace

import (
	"golang.org/x/sys/unix"
)

// statMask leaves access time out and asks for a mount id that is never given
// out twice. A kernel before 6.8 answers with the older id.
const statMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_INO |
	unix.STATX_SIZE | unix.STATX_CTIME | unix.STATX_MNT_ID_UNIQUE

// lookAt reads the state of a name, of the link itself if it is one. An empty
// name is the open file fd.
func lookAt(fd int, name string, st *unix.Statx_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return again(func() error { return unix.Statx(fd, name, flags, statMask, st) })
}

// placeOf is where the inode number of st means something. Mount 0 is an
// unknown one, on which nothing is relied on.
func placeOf(st *unix.Statx_t) place {
	p := place{dev: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	if st.Mask&(unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE) != 0 {
		p.mount = st.Mnt_id
	}
	return p
}

func ctimeOf(st *unix.Statx_t) int64 { return st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec) }

// fill puts what was seen into an entry. at is the index of the entry's place.
func (e *entry) fill(st *unix.Statx_t, at uint16) {
	e.ino, e.ctime, e.mode, e.place = st.Ino, ctimeOf(st), st.Mode, at
	e.flags, e.sum, e.aux, e.size = 0, [32]byte{}, 0, 0
	switch st.Mode & modeType {
	case modeFile:
		e.size = int64(st.Size)
	case modeDir:
		e.aux = noDir
	case modeChar, modeBlock:
		e.size = int64(unix.Mkdev(st.Rdev_major, st.Rdev_minor))
	}
}

// again repeats a system call that a signal cut short. Go's own preemption is
// such a signal, and a network or user-space file system lets it through.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
)

// openAt opens a name below a folder, never through a link.
func openAt(fd int, name string, flags int, perm uint32) (int, error) {
	var got int
	err := again(func() (err error) {
		got, err = unix.Openat(fd, name, flags, perm)
		return err
	})
	return got, err
}

// openQuiet opens without leaving an access time behind, where we may.
func openQuiet(fd int, name string, flags int) (int, error) {
	got, err := openAt(fd, name, flags|unix.O_NOATIME, 0)
	if err == unix.EPERM {
		got, err = openAt(fd, name, flags, 0)
	}
	return got, err
}

// denied says whether the kernel refused us, as against could not do it.
func denied(err error) bool { return err == unix.EACCES || err == unix.EPERM }
