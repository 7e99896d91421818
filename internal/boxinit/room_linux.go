package boxinit

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// room is a file system in memory whose room is looked at when the step's own
// process has ended.
type room struct {
	target string
	fd     int
}

// watchRoom opens the places before the step could put others there. What cannot
// be opened is not looked at.
func watchRoom(targets []string) (list []room) {
	for _, t := range targets {
		fd, err := unix.Open(t, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			list = append(list, room{t, fd})
		}
	}
	return list
}

// full gives those without room. It is asked while the step may have used up its
// pids, so the runtime has no part in it.
func full(list []room) (out []Full) {
	for _, r := range list {
		var st unix.Statfs_t
		_, _, e := unix.RawSyscall(unix.SYS_FSTATFS, uintptr(r.fd), uintptr(unsafe.Pointer(&st)), 0)
		if e != 0 || st.Type != unix.TMPFS_MAGIC || st.Blocks == 0 { // without blocks it has no bound
			continue
		}
		if few := min(nearlyFull, st.Blocks*uint64(st.Bsize)/16); st.Bavail*uint64(st.Bsize) < few {
			out = append(out, Full{Target: r.target})
		} else if st.Files > 0 && st.Ffree == 0 {
			out = append(out, Full{Target: r.target, Files: true})
		}
	}
	return out
}

// nearlyFull is how little room counts as none: what needs more than that fails.
const nearlyFull = uint64(64 << 10)
