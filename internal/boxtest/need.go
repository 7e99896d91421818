package boxtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// trial does a thing that a host may lack, and says why it cannot be done.
type trial struct {
	name string
	try  func() error
}

// trials are the needs that can be tried without a test's help.
var trials = []trial{
	{"root", func() error {
		if uid := os.Geteuid(); uid != 0 {
			return fmt.Errorf("we are user %d", uid)
		}
		return nil
	}},
	{"normal user", func() error {
		if os.Geteuid() == 0 {
			return errors.New("we are root")
		}
		return nil
	}},
	{"userns", inChild("userns")},
	{"overlay", inChild("overlay")},
	{"seccomp", inChild("seccomp")},
	{"idmap", mapIDs},
	{"limits", makeGroup},
	{"loop", makeLoop},
	{"tmpfs", mountTmpfs},
	{"kern", identifies("KERN_BIN", "kern", "kern ", "untrusted-steps kern install")},
	{"runsc", identifies("RUNSC_BIN", "runsc", "runsc version ", "untrusted-steps runsc build")},
	{"static", func() error {
		is, err := isStatic("/proc/self/exe")
		if err == nil && !is {
			err = errors.New("this test program needs a loader; test with CGO_ENABLED=0")
		}
		return err
	}},
	{"python3", func() error { return runs(boxPath, "python3", "-c", "import threading, subprocess") }},
	{"setid", tempAllows("nosuid", unix.ST_NOSUID)},
	{"devices", tempAllows("nodev", unix.ST_NODEV)},
	{"git", func() error { return runs(boxPath, "git", "--version") }},
	{"sudo", func() error { return runs([]string{"/usr/bin"}, "sudo", "-n", "true") }},
	{"pip", func() error { return runs(boxPath, "python3", "-m", "pip", "--version") }},
	{"node", func() error { return runs(boxPath, "node", "--version") }},
	{"npm", func() error { return runs(boxPath, "npm", "--version") }},
	{"curl", func() error { return runs(boxPath, "curl", "--version") }},
	{"cpu", shareCPU},
	{"address", func() error {
		if hostAddress() == "" {
			return errors.New("this machine has no address but loopback")
		}
		return nil
	}},
	{"ipv6", func() error {
		l, err := net.Listen("tcp", "[::1]:0")
		if err == nil {
			l.Close()
		}
		return err
	}},
}

// Need skips the test, with the probe's reason, on a host that lacks one of
// these; see need.Met.
func Need(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		i := slices.IndexFunc(trials, func(x trial) bool { return x.name == name })
		if i < 0 {
			t.Fatalf("boxtest: no need that can be probed is called %q", name)
		}
		need.Met(t, name, probed(i))
	}
}

// Boxes skips the test where no engine can build a box with its caps.
func Boxes(t testing.TB) {
	t.Helper()
	Need(t, "userns", "overlay", "seccomp", "limits")
	if os.Geteuid() == 0 {
		Need(t, "idmap")
	}
}

// answers are what the probes of this process said. They are kept no longer: a
// file would outlive the host it speaks of.
var answers struct {
	sync.Mutex
	of map[int]error
}

func probed(i int) error {
	answers.Lock()
	defer answers.Unlock()
	err, done := answers.of[i]
	if !done {
		err = trials[i].try()
		if answers.of == nil {
			answers.of = map[int]error{}
		}
		answers.of[i] = err
	}
	return err
}

const (
	needArg  = "boxtest-need"
	needDone = "boxtest-need: it works"
)

// isNeed recognizes a probe that has to be a process of its own. The arguments
// before it keep a test binary that does not know it from running its tests.
func isNeed(args []string) bool { return len(args) == 4 && args[2] == needArg }

func inChild(name string) func() error {
	return func() error {
		cmd := exec.Command("/proc/self/exe", "-test.run=^$", needArg, name)
		cmd.Env = []string{}
		if name != "seccomp" {
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
				Credential:  &syscall.Credential{NoSetGroups: true},
			}
		}
		out, err := cmd.CombinedOutput()
		text := strings.TrimSpace(string(out))
		switch {
		case err != nil && text != "":
			return errors.New(text)
		case err != nil:
			return err
		case text != needDone:
			return fmt.Errorf("boxtest: bug: TestMain of this package does not call boxtest.Become (%q)", text)
		}
		return nil
	}
}

// tryNeed does the thing, in a process made for it.
func tryNeed(name string) {
	var err error
	switch name {
	case "userns":
		if os.Getuid() != 0 {
			err = fmt.Errorf("the id map does not hold: uid %d", os.Getuid())
		}
	case "overlay":
		err = mountOverlay()
	case "seccomp":
		err = installFilter()
	default:
		err = errors.New("no such probe")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(needDone)
}

func mountOverlay() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("box", "/tmp", "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	for _, d := range []string{"lower", "upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join("/tmp", d), 0o755); err != nil {
			return err
		}
	}
	err := unix.Mount("box", "/tmp/at", "overlay", 0, "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr")
	if err != nil {
		return fmt.Errorf("mount an overlay in a user namespace: %w", err)
	}
	return os.WriteFile("/tmp/at/x", nil, 0o600)
}

func installFilter() error {
	runtime.LockOSThread()
	p, err := seccomp.Compile(runtime.GOARCH, seccomp.Options{})
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	listener, err := seccomp.Install(p.Raw())
	if err != nil {
		return err
	}
	return unix.Close(listener)
}

func mapIDs() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can map the ids of a mount")
	}
	dir, err := os.MkdirTemp("", "boxtest-idmap-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var m idmap.Mapper
	defer m.Close()
	ns, err := m.For(dir)
	if err != nil {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the ids of a mount of %s: %w", os.TempDir(), err)
	}
	return nil
}

// makeLoop puts a file behind a loop device, and has a program to make a file
// system in it.
func makeLoop() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can")
	}
	if _, err := exec.LookPath("/usr/sbin/mkfs.ext4"); err != nil {
		if _, err := exec.LookPath("/sbin/mkfs.ext4"); err != nil {
			return err
		}
	}
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/loop-control: %w", err)
	}
	defer unix.Close(control)
	f, err := os.CreateTemp("", "boxtest-loop-")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(os.Remove(f.Name()), f.Truncate(1<<20)); err != nil {
		return err
	}
	for range 16 {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("ask for a free loop device: %w", err)
		}
		fd, err := unix.Open(fmt.Sprintf("/dev/loop%d", n), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/loop%d: %w", n, err)
		}
		err = unix.IoctlLoopConfigure(fd, &unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		unix.Close(fd)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return errors.New("others took every free loop device")
}

// mountTmpfs mounts one in nobody's table and marks a folder of it as an
// overlay would.
func mountTmpfs() error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open a tmpfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make a tmpfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d", fd), "user.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("mark a folder of a tmpfs: %w", err)
	}
	return nil
}

func makeGroup() error {
	m, err := limits.Open(limits.Config{RunID: runID()})
	if err != nil {
		return err
	}
	defer m.Close()
	g, err := m.New("need", limits.Caps{MemoryBytes: 64 << 20, Pids: 16})
	if err != nil {
		return err
	}
	return g.Close()
}

func shareCPU() error {
	m, err := limits.Open(limits.Config{RunID: runID()})
	if err != nil {
		return err
	}
	defer m.Close()
	g, err := m.New("need", limits.Caps{CPUs: 0.5})
	if err != nil {
		return err
	}
	if !slices.Contains(g.Enforced(), "cpu") {
		err = errors.New("no control group here shares out CPU time")
	}
	return errors.Join(err, g.Close())
}

// tempAllows says whether the folder for temporary files is mounted without a
// flag, under which a control outside the box could not work.
func tempAllows(name string, flag int64) func() error {
	return func() error {
		var st unix.Statfs_t
		if err := unix.Statfs(os.TempDir(), &st); err != nil {
			return err
		}
		if int64(st.Flags)&flag != 0 {
			return fmt.Errorf("%s is mounted %s", os.TempDir(), name)
		}
		return nil
	}
}

// finders look for an engine's program as a run does.
var finders = map[string]func() (string, error){}

// FindBy has the program of a need looked for by find where no variable names it:
// where the product keeps it, and on PATH. TestMain calls it; an engine's own tests
// use this package, so the engine cannot be asked from here.
func FindBy(name string, find func() (string, error)) { finders[name] = find }

// identifies asks for an engine's program only; whether it is one to be trusted is
// for its engine to say. One that was looked for is named by the variable from then
// on, for what tests start with a home and a PATH of their own.
func identifies(variable, name, answer, get string) func() error {
	return func() error {
		bin := os.Getenv(variable)
		if find := finders[name]; bin == "" && find != nil {
			var err error
			if bin, err = find(); err != nil {
				return err
			}
			if err := os.Setenv(variable, bin); err != nil {
				return err
			}
		}
		if bin == "" {
			var err error
			if bin, err = exec.LookPath(name); err != nil {
				return fmt.Errorf("%s names no %s and there is none on PATH; `%s` gets one", variable, name, get)
			}
		}
		out, err := exec.Command(bin, "--version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s --version: %w", bin, err)
		}
		if !strings.HasPrefix(string(out), answer) {
			return fmt.Errorf("%s is not %s: it calls itself %.40q", bin, name, out)
		}
		return nil
	}
}

// runs starts a program of the folders that every box of ours has on its PATH.
func runs(path []string, name string, args ...string) error {
	for _, dir := range path {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil {
			return exec.Command(p, args...).Run()
		}
	}
	return fmt.Errorf("%s is not in %s", name, strings.Join(path, ", "))
}
