// Package idmap makes what belongs to the caller belong to a box as well,
// where the box's processes run as another id: an id-mapped mount shows the
// caller's files as the box's and stores the box's files as the caller's.
//
// It serves runs by root only. A normal user's box runs as that user.
package idmap

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ids are a user and a group id.
type Ids struct{ UID, GID int }

// Box is the id that root's boxes run as, on the host. It is no account's: it
// lies far above every range that useradd, systemd or container tools hand
// out, so nothing on the host belongs to it.
var Box = Ids{UID: 1_987_654_320, GID: 1_987_654_320}

// Needed says whether this process is the machine's root, whose boxes run as
// Box. Root of a user namespace, as in a rootless container, is an ordinary
// user of the machine and cannot map a mount: its boxes run as itself.
func Needed() bool { return needed() }

var needed = sync.OnceValue(func() bool {
	if os.Geteuid() != 0 {
		return false
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && initialMap(string(text))
})

// initialMap says whether an id map is that of the machine's own namespace.
func initialMap(text string) bool {
	return strings.Join(strings.Fields(text), " ") == "0 0 4294967295"
}

// A program that links this package holds a namespace open when it is started for
// that, before packages are set up that it needs nothing of.
func init() {
	if len(os.Args) == 2 && os.Args[1] == HoldArg {
		Hold()
	}
}

// HoldArg is the argument that makes this program hold a user namespace open.
const HoldArg = "untrusted-steps-hold-ids"

// Hold keeps the process, and with it its user namespace, until its standard
// input closes. It does not return.
func Hold() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Mapper makes user namespaces to map mounts with, one for each owner. The
// zero value is ready.
type Mapper struct {
	mu sync.Mutex
	ns map[Ids]int
}

// For gives a descriptor of a user namespace that maps the owner of path to
// Box. The owner is the caller, root, unless the path belongs to somebody
// else: then it is that account's files that the box reads and makes.
func (m *Mapper) For(path string) (int, error) {
	st, err := os.Stat(path)
	if err != nil {
		return -1, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, fmt.Errorf("idmap: bug: no owner in stat of %s", path)
	}
	return m.Owner(Ids{UID: int(sys.Uid), GID: int(sys.Gid)})
}

// Owner gives a descriptor of a user namespace that maps an owner to Box.
func (m *Mapper) Owner(owner Ids) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fd, ok := m.ns[owner]; ok {
		return fd, nil
	}
	fd, err := open(owner)
	if err != nil {
		return -1, fmt.Errorf("make a user namespace to map ids with: %w", err)
	}
	if m.ns == nil {
		m.ns = map[Ids]int{}
	}
	m.ns[owner] = fd
	return fd, nil
}

// Close lets go of every namespace. Mounts made with them stay.
func (m *Mapper) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, fd := range m.ns {
		unix.Close(fd)
	}
	m.ns = nil
}

func open(owner Ids) (int, error) {
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"untrusted-steps", HoldArg}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: owner.UID, HostID: Box.UID, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: owner.GID, HostID: Box.GID, Size: 1}},
		},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return -1, err
	}
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	in.Close()
	_ = cmd.Wait()
	return fd, err
}
