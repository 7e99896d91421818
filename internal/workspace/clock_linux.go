package workspace

import (
	"time"

	"golang.org/x/sys/unix"
)

// A change time is only as good as its clock. It moves in ticks of up to 10 ms
// (of a second, on an ext4 with small inodes), it may be another machine's, and
// on tmpfs a program that maps a file, reads a page and then writes to it moves
// no change time at all. So both facts are taken from the file system itself,
// by an unnamed file that appears in no listing:
//
//   - its change time when it is made is the file system's clock. Whatever is
//     changed later has that time or a later one, so a file whose own change
//     time is older, and the same as before, has not changed since.
//   - a write through a mapping must be seen to move its change time, once per
//     mount and run. Otherwise nothing on that mount is relied on.
//
// This does not cover a program outside the box that keeps a mapping of a file
// across snapshots: the kernel notes only the first write to a page.

// localTypes are the file systems whose times come from this kernel and whose
// content nobody else changes. All others have every file read every time.
var localTypes = map[int64]bool{
	unix.EXT4_SUPER_MAGIC:      true, // ext2 and ext3 too
	unix.XFS_SUPER_MAGIC:       true,
	unix.BTRFS_SUPER_MAGIC:     true,
	unix.F2FS_SUPER_MAGIC:      true,
	unix.OVERLAYFS_SUPER_MAGIC: true,
	0x2fc12fc1:                 true, // zfs
	0xca451a4e:                 true, // bcachefs
}

// longestTick is how long a proof waits for the kernel's coarse clock to move.
const longestTick = 25 * time.Millisecond

// mount is what a snapshot knows about the clock of one mount.
type mount struct {
	clock  int64 // when the first folder on it was opened; never if unknown
	proven bool
	probe  int // the unnamed file, -1 if there is none
}

// readClock opens the unnamed file in a folder and reads its time.
func readClock(dirfd int) mount {
	m := mount{clock: never, probe: -1}
	var fs unix.Statfs_t
	if err := again(func() error { return unix.Fstatfs(dirfd, &fs) }); err != nil || !localTypes[int64(fs.Type)] {
		return m
	}
	fd, err := openAt(dirfd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return m // a full or read-only disk, or a kernel without it
	}
	var st unix.Statx_t
	if lookAt(fd, "", &st) != nil {
		unix.Close(fd)
		return m
	}
	m.clock, m.probe = ctimeOf(&st), fd
	return m
}

// close ends the use of the unnamed file; the kernel frees it.
func (m *mount) close() {
	if m.probe >= 0 {
		unix.Close(m.probe)
		m.probe = -1
	}
}

// prove writes to the unnamed file through a mapping and watches its time. The
// page is touched by the kernel on our behalf, never by us: on a full disk it
// then answers EFAULT where we would die of SIGBUS.
func (m *mount) prove() {
	if m.proven || m.probe < 0 {
		return
	}
	page := make([]byte, unix.Getpagesize())
	if _, err := unix.Pwrite(m.probe, append([]byte("probe"), page[5:]...), 0); err != nil {
		return
	}
	// MAP_POPULATE reads the page in, as an attacker would before writing.
	mem, err := unix.Mmap(m.probe, 0, len(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return
	}
	defer unix.Munmap(mem)
	var st unix.Statx_t
	if lookAt(m.probe, "", &st) != nil {
		return
	}
	before := ctimeOf(&st)
	for waited := time.Duration(0); coarseNow() <= before; waited += time.Millisecond {
		if waited > longestTick {
			return
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := unix.Getrandom(mem[:8], 0); err != nil {
		return
	}
	if lookAt(m.probe, "", &st) != nil {
		return
	}
	m.proven = ctimeOf(&st) > before
}

// coarseNow is the clock the kernel stamps files with.
func coarseNow() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return never
	}
	return ts.Nano()
}
