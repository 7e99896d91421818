package boxinit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hello is the first byte on the way socket: the first process is there.
const Hello = 0xff

// ServeInherited is Serve for a first process whose sockets are there: control is
// descriptor 3, and the one on which ways out are asked for is 4.
func ServeInherited() {
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(wayFD)
	unix.Umask(0o022)
	if n, err := unix.Write(wayFD, []byte{Hello}); n != 1 || err != nil {
		os.Exit(1)
	}
	Serve(controlFD)
}

const (
	controlFD = 3
	wayFD     = 4
)

// apart is the first process's side of it. nil means that none of this is asked
// for, and every method then does nothing.
type apart struct {
	Apart
	keep []int
	// Descriptors of the box's control groups, whose mount is gone before the
	// step begins: the step has id 0, whose files they are.
	own, step, limit, events, peak, current int
	threads                                 int64 // of the first process, when the step was born
	born                                    int64 // the peak then
	// seen is the most that were there at any of the looks that watch takes.
	seen atomic.Int64
	// words is room for an answer to Ask.
	words [128]byte
}

// newApart gives up root: every thread of the process becomes the other id, and
// has no more capabilities than it takes to start the step as 0.
func newApart(p Prepare) (*apart, error) {
	if p.Apart == nil {
		return nil, nil
	}
	a := &apart{Apart: *p.Apart, keep: p.Keep, own: -1}
	if a.UID <= 0 {
		return nil, errors.New("the first process is to live apart and has no id for it")
	}
	if a.Pids > 0 {
		if err := a.openGroups(); err != nil {
			return nil, fmt.Errorf("count the step's processes: %w", err)
		}
	}
	if err := unix.Unmount(groupsAt, unix.MNT_DETACH); err != nil {
		return nil, fmt.Errorf("take the control groups' mount away: %w", err)
	}
	for _, at := range settings {
		if err := onlyRead(at); err != nil {
			return nil, err
		}
	}
	uid := uintptr(a.UID)
	for _, call := range [][5]uintptr{
		{unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1},
		{unix.SYS_SETGROUPS, 0, 0},
		{unix.SYS_SETRESGID, uid, uid, uid},
		{unix.SYS_SETRESUID, uid, uid, uid},
	} {
		if _, _, e := syscall.AllThreadsSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return nil, fmt.Errorf("become user %d: %w", a.UID, e)
		}
	}
	// A change of ids cleared this, or set it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("clear dumpable: %w", err)
	}
	// What was effective was cleared with the id; the sockets and the bounding set
	// are still to come.
	have, err := permitted()
	if err != nil {
		return nil, err
	}
	return a, capsetAll(have, 0)
}

// groupsAt is where the box's control groups are shown until the step begins.
const groupsAt = "/sys/fs/cgroup"

// settings are those of the box's own kernel. Their files belong to 0, which the
// step is, and runsc covers none of them.
var settings = []string{"/proc/sys", "/proc/sysrq-trigger"}

// onlyRead mounts a place over itself, to be read only, which takes two calls: the
// first one gives the mount no flags.
func onlyRead(at string) error {
	err := unix.Mount(at, at, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("have %s read only: %w", at, err)
	}
	return nil
}

func (a *apart) openGroups() error {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	at, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "0::")
	if !ok || strings.Contains(at, "\n") {
		return fmt.Errorf("not in one control group of version 2: %q", text)
	}
	top := groupsAt + strings.TrimSuffix(at, "/")
	dir := top + "/step"
	// A group with processes in it gives its controllers to none below, so the
	// first process moves to one beside the step's.
	mine := top + "/init"
	for _, d := range []string{dir, mine} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(mine+"/cgroup.procs", []byte("0"), 0o600); err != nil {
		return fmt.Errorf("move to %s: %w", mine, err)
	}
	if err := os.WriteFile(top+"/cgroup.subtree_control", []byte("+pids"), 0o600); err != nil {
		return fmt.Errorf("pass the controller of processes on: %w", err)
	}
	for _, f := range []struct {
		name string
		how  int
		fd   *int
	}{
		{mine + "/cgroup.procs", unix.O_WRONLY, &a.own}, {dir + "/cgroup.procs", unix.O_WRONLY, &a.step}, {dir + "/pids.max", unix.O_WRONLY, &a.limit},
		{dir + "/pids.events", unix.O_RDONLY, &a.events}, {dir + "/pids.peak", unix.O_RDONLY, &a.peak}, {dir + "/pids.current", unix.O_RDONLY, &a.current},
	} {
		fd, err := unix.Open(f.name, f.how|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		*f.fd = fd
	}
	return nil
}

// needed is what the thread that starts the step keeps until then.
func (a *apart) needed(keep []int) []int {
	if a == nil {
		return keep
	}
	return append([]int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_ADMIN}, keep...)
}

// drop leaves keep, and what it takes to start the step, which the step does not
// inherit.
func (a *apart) drop(usual func([]int) error, exact func(have, inherit uint64) error, keep []int) error {
	if a == nil {
		return usual(keep)
	}
	return exact(capMask(a.needed(keep)), capMask(keep))
}

// asStep makes the calling thread see files as the step will: as id 0, without a
// capability over them. No process of the step's is there yet that could do
// something to this thread meanwhile.
func (a *apart) asStep() error {
	if a == nil {
		return nil
	}
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, e := unix.RawSyscall(call, ^uintptr(0), 0, ^uintptr(0)); e != 0 {
			return fmt.Errorf("look as user 0: %w", e)
		}
	}
	return nil
}

func (a *apart) asSelf() error {
	if a == nil {
		return nil
	}
	for _, call := range []uintptr{unix.SYS_SETRESUID, unix.SYS_SETRESGID} {
		if _, _, e := unix.RawSyscall(call, ^uintptr(0), uintptr(a.UID), ^uintptr(0)); e != 0 {
			return fmt.Errorf("become user %d again: %w", a.UID, e)
		}
		// With the id went what was effective, which the next call needs.
		if err := capsetOwn(capMask(a.needed(a.keep)), capMask(a.keep)); err != nil {
			return err
		}
	}
	return nil
}

// birth is how the step's process is started: as 0.
func (a *apart) birth(sys *syscall.SysProcAttr) *syscall.SysProcAttr {
	if a != nil {
		sys.Credential = &syscall.Credential{Uid: 0, Gid: 0}
	}
	return sys
}

// enter moves the first process into the step's control group, so that the step
// is born there: another way would take a system call that steps do not have. By
// its threads the bound is higher until it has left.
func (a *apart) enter() error {
	if a == nil {
		return nil
	}
	if a.own >= 0 {
		if err := a.enterGroup(); err != nil {
			return err
		}
	}
	// Of what it takes to start the step, only the ids are left to change.
	return capsetOwn(capMask([]int{unix.CAP_SETUID, unix.CAP_SETGID})|capMask(a.keep), capMask(a.keep))
}

func (a *apart) enterGroup() error {
	if err := put(a.step, "0"); err != nil {
		return fmt.Errorf("enter the step's control group: %w", err)
	}
	a.threads = number(a.current)
	a.born = number(a.peak)
	if a.threads <= 0 {
		return errors.New("the step's control group counts nobody")
	}
	if err := put(a.limit, strconv.FormatInt(a.threads+a.Pids, 10)); err != nil {
		return fmt.Errorf("bound the step's processes: %w", err)
	}
	// The step's group is the root of what it sees of groups.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a control group namespace: %w", err)
	}
	return nil
}

// leave is called when the step is born, and gives up what started it.
func (a *apart) leave() error {
	if a == nil {
		return nil
	}
	if a.own >= 0 {
		if err := put(a.own, "0"); err != nil {
			return fmt.Errorf("leave the step's control group: %w", err)
		}
		if err := put(a.limit, strconv.FormatInt(a.Pids, 10)); err != nil {
			return fmt.Errorf("bound the step's processes: %w", err)
		}
		go a.watch()
	}
	return capsetOwn(0, 0)
}

// watchEvery is how often the step's processes are counted.
const watchEvery = 100 * time.Millisecond

// watch counts now and then, for as long as the box lives: this kernel's own peak
// counts the first process's threads of the moment when the step was born, and most
// steps never have as many.
func (a *apart) watch() {
	for {
		if n := number(a.current); n > a.seen.Load() {
			a.seen.Store(n)
		}
		time.Sleep(watchEvery)
	}
}

// counted reads the counters. It asks the runtime for nothing.
func (a *apart) counted() *Counted {
	if a == nil || a.own < 0 {
		return nil
	}
	c := &Counted{}
	c.Refused, c.Peak = a.numbers()
	return c
}

func (a *apart) numbers() (refused uint64, peak int64) {
	refused, peak = uint64(max(number(a.events), 0)), max(number(a.current), a.seen.Load(), 1)
	// Until the step has grown past what the first process was, the peak is that.
	if p := number(a.peak); p > max(a.born, a.threads)+2 {
		peak = p
	}
	return refused, peak
}

// answer counts because of Ask. It makes nothing anew: there can be any number of
// pieces of work, and no garbage is collected here.
func (a *apart) answer(control int) {
	if a == nil || a.own < 0 {
		return
	}
	refused, peak := a.numbers()
	b := append(a.words[:4], `{"counted":{"refused":`...)
	b = strconv.AppendUint(b, refused, 10)
	b = append(b, `,"peak":`...)
	b = strconv.AppendInt(b, peak, 10)
	b = append(b, `,"asked":true}}`...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	speak()
	defer speaking.Store(false)
	for len(b) > 0 {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(control), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0:
			return // nobody is outside any more, which is seen by the next read
		default:
			b = b[n:]
		}
	}
}

// put writes to a file of a control group that is open.
func put(fd int, text string) error {
	b := []byte(text)
	_, _, e := unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	runtime.KeepAlive(b)
	if e != 0 {
		return e
	}
	return nil
}

// number reads the last number of the first line of a file that is open; -1 if
// there is none.
func number(fd int) int64 {
	var b [64]byte
	n, _, e := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if e != 0 {
		return -1
	}
	line, _, _ := bytes.Cut(b[:n], []byte{'\n'})
	return lastNumber(line)
}

func lastNumber(line []byte) int64 {
	if at := bytes.LastIndexByte(line, ' '); at >= 0 {
		line = line[at+1:]
	}
	if len(line) == 0 || len(line) > 18 {
		return -1
	}
	v := int64(0)
	for _, c := range line {
		if c < '0' || c > '9' {
			return -1
		}
		v = v*10 + int64(c-'0')
	}
	return v
}

func capsetOwn(have, inherit uint64) error {
	hdr, data := capData(have, inherit)
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}

func capsetAll(have, inherit uint64) error {
	hdr, data := capData(have, inherit)
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		return fmt.Errorf("set capabilities: %w", e)
	}
	return nil
}

func capData(have, inherit uint64) (hdr unix.CapUserHeader, data [2]unix.CapUserData) {
	hdr.Version = unix.LINUX_CAPABILITY_VERSION_3
	for i := range data {
		w := uint32(have >> (32 * i))
		data[i] = unix.CapUserData{Effective: w, Permitted: w, Inheritable: uint32(inherit>>(32*i)) & w}
	}
	return hdr, data
}

// speaking keeps two threads from sending parts of two messages in turns. It
// spins: a thread that is parked may need another one, and the step may have used
// up its share of them.
var speaking atomic.Bool

func tell(control int, m Message) error {
	speak()
	defer speaking.Store(false)
	return Send(control, m)
}

func speak() {
	for !speaking.CompareAndSwap(false, true) {
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
