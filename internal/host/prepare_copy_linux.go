package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A copy of this program that a run was started from is locked by it, shared, for
// as long as it lives, however that ends. Whoever takes copies away needs the lock
// alone: by the file itself, so that neither a name nor a number is taken for
// another's. A run that may not use sudo has no lease, and is seen by this.

func (c copyAt) path() string { return copyPath(c.in, c.name) }

// use marks the copy that this process is as in use. Other programs are nobody's
// to take away.
func (p *Preparer) use(self string) error {
	dir := filepath.Dir(self)
	if p.using != nil || !slices.Contains(p.paths.Copies, filepath.Dir(dir)) || !copyPattern().MatchString(filepath.Base(dir)) {
		return nil
	}
	gone := func(why error) error {
		return fmt.Errorf("the copy of this program at %s is being taken away, and what its profile allows may go: %w", self, why)
	}
	file, err := os.OpenFile(self, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return gone(err)
	}
	if err := locks(file, unix.LOCK_SH, lockPatience); err != nil {
		file.Close()
		return gone(err)
	}
	// Whoever held it may have removed it.
	mine, err := file.Stat()
	if err == nil {
		var now os.FileInfo
		if now, err = os.Lstat(self); err == nil && !os.SameFile(mine, now) {
			err = errors.New("another one is there")
		}
	}
	if err != nil {
		file.Close()
		return gone(err)
	}
	p.using = file
	return nil
}

// leave lets go of it.
func (p *Preparer) leave() {
	if p.using != nil {
		p.using.Close()
		p.using = nil
	}
}

// take gets a copy for whoever takes it away, until free is called; or says that a
// run is on that uses it. One that is not there is nobody's; of one that cannot be
// asked for its lock nobody knows, and it stays.
func take(path string) (free func(), busy bool) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, false
	}
	if err != nil {
		return nil, true
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, true
	}
	return func() { file.Close() }, false
}

// inUse only asks.
func inUse(path string) bool {
	free, busy := take(path)
	if !busy {
		free()
	}
	return busy
}

// alone says whether a group is one account's and nobody else's, as the files of
// this machine have it: an account that is not in them could share it with anybody.
// Accounts of a directory are not in them, so it is asked only for want of setfacl.
func alone(passwd, group string, uid, gid int) bool {
	var names []string
	own, shared := strconv.Itoa(uid), strconv.Itoa(gid)
	for line := range strings.Lines(passwd) {
		switch f := strings.Split(strings.TrimSpace(line), ":"); {
		case len(f) < 4:
		case f[2] == own:
			names = append(names, f[0])
		case f[3] == shared:
			return false
		}
	}
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || f[2] != shared || f[3] == "" {
			continue
		}
		for _, member := range strings.Split(f[3], ",") {
			if !slices.Contains(names, strings.TrimSpace(member)) {
				return false
			}
		}
	}
	return len(names) > 0
}
