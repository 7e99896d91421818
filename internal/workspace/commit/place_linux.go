package commit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// StoreSuffix is the end of the store's name beside the workspace.
const StoreSuffix = ".untrusted-steps"

// place is a folder that transactions live in. It is opened once; whatever has
// its name afterwards is never looked at again.
type place struct {
	path   string
	parent int
	base   string
	fd     int // O_PATH
	lock   int // of the lock file in it
}

// notOurs is why a folder that is there may not be a store. Whoever can write
// to a store can write a journal, and what a journal says is done.
type notOurs struct{ why string }

func (e *notOurs) Error() string { return e.why }

// errNone: there is no such folder, and we were not to make it.
var errNone = errors.New("there is none")

// Places are the paths at which Open looks for a store, and for what runs that
// died have left in one. Nobody who is not trusted may write to any of them.
func Places(workspace string, o Options) []string { return candidates(workspace, o.StateDirs) }

// candidates are the paths a store may have, best first.
func candidates(workspace string, state []string) []string {
	var list []string
	if parent, base := filepath.Split(workspace); base != "" {
		list = append(list, filepath.Join(parent, "."+base+StoreSuffix))
	}
	return append(list, state...)
}

// openPlace opens a store in a folder, and makes it if it is not there and shall be.
func openPlace(path, dir string, create bool) (*place, error) {
	if !filepath.IsAbs(path) {
		return nil, &notOurs{"its path is not absolute"}
	}
	base := filepath.Base(filepath.Clean(path))
	if base == "/" {
		return nil, &notOurs{"it is the root of the file system"}
	}
	if create {
		// Errors show below, where the folder is not there.
		_ = os.MkdirAll(dir, 0o700)
	}
	p := &place{path: path, base: base, parent: -1, fd: -1, lock: -1}
	if err := p.open(dir, create); err != nil {
		p.close()
		if !create && errors.Is(err, os.ErrNotExist) {
			return nil, errNone
		}
		return nil, err
	}
	return p, nil
}

func (p *place) open(dir string, create bool) (err error) {
	// Links above the store are the caller's and may be followed.
	if p.parent, err = openAt(unix.AT_FDCWD, dir, pathFlags&^unix.O_NOFOLLOW, 0); err != nil {
		return err
	}
	if create {
		err := again(func() error { return unix.Mkdirat(p.parent, p.base, 0o700) })
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	p.fd, err = beneath(p.parent, p.base, pathFlags, 0)
	switch err {
	case nil:
	case unix.ELOOP, unix.ENOTDIR:
		return &notOurs{"something other than a folder has that name"}
	case unix.ENOENT:
		// It was there, or was made, a moment ago: its last user took it away.
		if create {
			return errStale
		}
		return err
	default:
		return err
	}
	st, err := statFD(p.fd)
	if err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return &notOurs{fmt.Sprintf("it belongs to user %d, and we are %d", st.Uid, os.Geteuid())}
	}
	if st.Mode&0o077 != 0 {
		return &notOurs{fmt.Sprintf("it is open to others (mode %04o)", st.Mode&0o7777)}
	}
	return nil
}

func (p *place) close() {
	for _, fd := range []int{p.lock, p.fd, p.parent} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	p.lock, p.fd, p.parent = -1, -1, -1
}

// apart says why a store may not even be looked into: a step can write to what
// lies in its workspace.
func (p *place) apart(ws *folder) error {
	inside, err := within(p.fd, ws.fd)
	if err != nil {
		return err
	}
	around, err := within(ws.fd, p.fd)
	if err != nil {
		return err
	}
	if inside || around {
		return &notOurs{"it and the workspace lie within one another"}
	}
	return nil
}

// keeps says why a folder has no room for transactions of a workspace.
func (p *place) keeps(ws *folder) error {
	var here, there unix.Statfs_t
	if err := unix.Fstatfs(p.fd, &here); err != nil {
		return err
	}
	if err := unix.Fstatfs(ws.fd, &there); err != nil {
		return err
	}
	if what, pseudo := notDisks[int64(here.Type)]; pseudo {
		return &notOurs{"it is on " + what + ", which keeps no files"}
	}
	// What a step writes would count as memory. A workspace that is there
	// itself was put there by somebody who wanted that.
	if here.Type == unix.TMPFS_MAGIC && there.Type != unix.TMPFS_MAGIC {
		return &notOurs{"it is on a tmpfs, which is memory, and the workspace is not"}
	}
	return nil
}

// notDisks are file systems that have no room for files of ours, or none that
// is bounded.
var notDisks = map[int64]string{
	unix.PROC_SUPER_MAGIC:    "proc",
	unix.SYSFS_MAGIC:         "sysfs",
	unix.CGROUP_SUPER_MAGIC:  "cgroup",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEBUGFS_MAGIC:       "debugfs",
	unix.TRACEFS_MAGIC:       "tracefs",
	unix.SECURITYFS_MAGIC:    "securityfs",
	unix.BPF_FS_MAGIC:        "bpf",
	unix.PSTOREFS_MAGIC:      "pstore",
	unix.EFIVARFS_MAGIC:      "efivarfs",
	unix.DEVPTS_SUPER_MAGIC:  "devpts",
	unix.BINFMTFS_MAGIC:      "binfmt_misc",
	unix.RAMFS_MAGIC:         "ramfs",
	unix.HUGETLBFS_MAGIC:     "hugetlbfs",
	unix.SELINUX_MAGIC:       "selinuxfs",
}

// reaches says whether a path leads into a folder, as far as it exists by now.
func reaches(path, folder string) bool {
	rest := ""
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		if err == nil {
			path = filepath.Join(real, rest)
			break
		}
		if at == filepath.Dir(at) {
			break
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// within says whether a folder is another one or lies below it, by what the
// folders are and not by how they are called: a bind mount has other names.
func within(fd, of int) (bool, error) {
	want, err := statFD(of)
	if err != nil {
		return false, err
	}
	at, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { unix.Close(at) }()
	for {
		st, err := statFD(at)
		if err != nil {
			return false, err
		}
		if st.Dev == want.Dev && st.Ino == want.Ino {
			return true, nil
		}
		up, err := openAt(at, "..", pathFlags, 0)
		if err == unix.EACCES {
			return false, nil // nothing of ours lies above
		}
		if err != nil {
			return false, err
		}
		above, err := statFD(up)
		unix.Close(at)
		at = up
		if err != nil {
			return false, err
		}
		if above.Dev == st.Dev && above.Ino == st.Ino {
			return false, nil // the root
		}
	}
}
