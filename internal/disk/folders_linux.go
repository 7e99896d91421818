package disk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// makeFolders makes upper and work in a folder that is empty and ours. Both
// must be new: what lay there before would be taken for the step's.
func makeFolders(dir int, o Options) error {
	for _, f := range []struct {
		name string
		mode uint32
	}{{upperName, permissions(o.Mode)}, {workName, 0o700}} {
		if err := unix.Mkdirat(dir, f.name, 0o700); err != nil {
			return fmt.Errorf("make the folder %s: %w", f.name, err)
		}
		if o.UID != os.Geteuid() || o.GID != os.Getegid() {
			if err := unix.Fchownat(dir, f.name, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("give the folder %s to its owner: %w", f.name, err)
			}
		}
		// After the change of owner, which clears set-id bits.
		if err := unix.Fchmodat(dir, f.name, f.mode, 0); err != nil {
			return fmt.Errorf("set the mode of the folder %s: %w", f.name, err)
		}
	}
	return nil
}

// permissions are the twelve bits of a mode.
func permissions(m os.FileMode) uint32 {
	p := uint32(m.Perm())
	for _, b := range []struct {
		of  os.FileMode
		bit uint32
	}{{os.ModeSetuid, unix.S_ISUID}, {os.ModeSetgid, unix.S_ISGID}, {os.ModeSticky, unix.S_ISVTX}} {
		if m&b.of != 0 {
			p |= b.bit
		}
	}
	return p
}

// mounted is a file system of ours that is mounted nowhere: two descriptors
// hold it.
type mounted struct {
	mount int // the mount, as fsmount gave it
	dir   int // its root, opened
	empty unix.Statfs_t
}

func (m *mounted) root() string { return fmt.Sprintf("/proc/self/fd/%d", m.dir) }

// enter opens the root, makes the folders and notes what the file system has
// free for the step.
func (m *mounted) enter(o Options) error {
	var err error
	m.dir, err = unix.Openat(m.mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		m.dir = -1
		return fmt.Errorf("open its root: %w", err)
	}
	// The owner of upper passes through; others have no way in here at all.
	if err := unix.Fchmod(m.dir, 0o755); err != nil {
		return err
	}
	if err := makeFolders(m.dir, o); err != nil {
		return err
	}
	if err := unix.Fstatfs(m.dir, &m.empty); err != nil {
		return fmt.Errorf("ask what it has free: %w", err)
	}
	if free := available(m.empty); free < o.Bytes {
		return fmt.Errorf("it has %d bytes free and %d were asked for", free, o.Bytes)
	}
	if int64(m.empty.Ffree) < o.Inodes {
		return fmt.Errorf("it has room for %d files and %d were asked for", m.empty.Ffree, o.Inodes)
	}
	return nil
}

func available(st unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

func (m *mounted) usage() (Usage, error) {
	var now unix.Statfs_t
	if err := unix.Fstatfs(m.dir, &now); err != nil {
		return Usage{}, fmt.Errorf("ask what the step's file system has free: %w", err)
	}
	return Usage{
		Bytes:  max(0, available(m.empty)-available(now)),
		Inodes: max(0, int64(m.empty.Ffree)-int64(now.Ffree)),
		Full:   available(now) < nearlyFull || now.Ffree == 0,
	}, nil
}

func (m *mounted) release() {
	for _, fd := range []*int{&m.dir, &m.mount} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// option is one setting of a file system; without a value it is a flag.
type option struct{ key, value string }

// attributes of every mount of ours. What a step writes has no power outside
// its box, whatever bits it sets.
const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// mountDetached makes a mount that is in nobody's table. It lives as long as
// its descriptor, or as where it is moved.
func mountDetached(kind string, options []option) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open the file system %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fs, o.key)
		} else {
			err = unix.FsconfigSetString(fs, o.key, o.value)
		}
		if err != nil {
			return -1, fmt.Errorf("set %s of the file system %s: %w", o.key, kind, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make the file system %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("mount the file system %s: %w", kind, err)
	}
	return fd, nil
}
