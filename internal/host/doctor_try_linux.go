package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/overlay"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

const (
	tryArg = "untrusted-steps-try"
	// tryMapped is tryOverlay with layers that were opened outside, for boxes of
	// root. They are the descriptors from mappedFD on.
	tryMapped = "overlay-mapped"
	mappedFD  = 4 // 3 is the program
	layersFD  = 3 // of tryOverlay: the folder of the layers
	// tryPatience bounds a trial. Each takes milliseconds.
	tryPatience = 30 * time.Second
	maxAnswer   = 64 << 10
)

// IsTry recognizes a process that was started to try something.
func IsTry(args []string) bool { return len(args) == 4 && args[1] == tryArg }

// Try tries it, says what came of it on stdout, and does not return.
func Try(args []string) {
	a := do(Trial{What: args[2], Dir: args[3]})
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// try starts this program again to try something.
func try(ctx context.Context, t Trial) Answer {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	id := idmap.Ids{UID: os.Geteuid(), GID: os.Getegid()}
	root := idmap.Needed()
	if root {
		id = idmap.Box
	}
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	mapped := func() {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id.UID, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id.GID, Size: 1}}
		attr.GidMappingsEnableSetgroups = root
		attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !root}
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	if root && (t.What == tryInside || t.What == tryOverlay) {
		// The id that it becomes may not be allowed to start our file.
		f, err := inMemory("/proc/self/exe")
		if err != nil {
			return Answer{Done: []Op{opOf("copy a program to memory", err)}}
		}
		defer f.Close()
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{f}
	}
	switch t.What {
	case tryMade:
		attr.Cloneflags = unix.CLONE_NEWUSER
	case tryInside:
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
		mapped()
	case tryOverlay:
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		mapped()
	case tryOwnMap:
		// Go writes these maps from inside, when it is unshare that is asked for.
		attr.Unshareflags = unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	case tryMemory:
		f, err := inMemory("/proc/self/exe")
		if err != nil {
			return Answer{Done: []Op{opOf("copy a program to memory", err)}}
		}
		defer f.Close()
		cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{f}
	case tryIDMap:
		return Answer{Done: mapIDs(t.Dir)}
	}
	if t.What == tryOverlay {
		own, err := makeLayers(t.Dir)
		if err != nil {
			return Answer{Done: []Op{opOf("make the layers of an overlay", err)}}
		}
		defer own.Remove()
		if t.Dir = own.Path; !root {
			cmd.ExtraFiles = []*os.File{own.File()}
		} else {
			trees, op := mappedLayers(own.At())
			for _, f := range trees {
				defer f.Close()
			}
			if op.failed() {
				return Answer{Done: []Op{op}}
			}
			t.What, cmd.ExtraFiles = tryMapped, append(cmd.ExtraFiles, trees...)
		}
	}
	cmd.Args = []string{"untrusted-steps", tryArg, t.What, t.Dir}
	cmd.Env, cmd.Dir, cmd.SysProcAttr, cmd.WaitDelay = []string{"GOTRACEBACK=none"}, "/", attr, time.Second
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{w: &out, left: maxAnswer}, &limited{w: &words, left: maxAnswer}
	// The thread that starts it must not end before it: the kernel would take that
	// for our end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return Answer{Start: err, Label: ownLabel()}
	}
	err := cmd.Wait()
	var a Answer
	if uerr := json.Unmarshal(out.Bytes(), &a); err == nil {
		err = uerr
	}
	if err != nil {
		return Answer{Done: []Op{{What: "try " + t.What, Words: fmt.Sprintf("%v %s", err, strings.TrimSpace(words.String()))}}}
	}
	return a
}

// limited keeps the first bytes of what is written to it.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if _, err := l.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// opOf is what came of one thing that was tried.
func opOf(what string, err error) Op {
	op := Op{What: what}
	switch {
	case err == nil:
	case errors.As(err, &op.Errno):
	default:
		op.Words = err.Error()
	}
	return op
}

// do tries it in this process, which was made for that.
func do(t Trial) Answer {
	runtime.LockOSThread()
	a := Answer{Label: ownLabel()}
	op := func(what string, f func() error) bool {
		o := opOf(what, f())
		a.Done = append(a.Done, o)
		return !o.failed()
	}
	switch t.What {
	case tryMade, tryMemory:
		a.Done = []Op{{What: "start"}}
	case tryOwnMap:
		op("be root of it", rootHere)
	case tryInside:
		_ = op("be root of it", rootHere) && op("make mounts private", func() error {
			return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}) && op("mount a tmpfs", func() error {
			return unix.Mount("none", "/tmp", "tmpfs", 0, "size=1m")
		}) && op(opProc, func() error {
			return errors.Join(os.Mkdir("/tmp/proc", 0o700), unix.Mount("proc", "/tmp/proc", "proc", 0, ""))
		}) && op("bring the loopback interface up", boxinit.LoopbackUp)
	case tryOverlay, tryMapped:
		_ = op("make mounts private", func() error {
			return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}) && op("mount an overlay", func() error { return mountLayers(t) }) &&
			op("create a file in it", func() error { return os.WriteFile("new", []byte("x"), 0o600) }) &&
			op("delete a file of a lower layer", func() error { return os.Remove("old") }) &&
			op("put a folder in its place", func() error { return os.Mkdir("old", 0o700) }) &&
			op("replace a folder of a lower layer", func() error {
				return errors.Join(os.Remove("dir"), os.Mkdir("dir", 0o700))
			})
	case tryFilter:
		op("install a filter with a listener", func() error {
			p, err := seccomp.Compile(runtime.GOARCH, seccomp.Options{})
			if err != nil {
				return err
			}
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				return err
			}
			_, err = seccomp.Install(p.Raw())
			return err
		})
	case tryLimits:
		op("cap a control group", func() error {
			_, _, err := openLimits()
			return err
		})
	case tryWhole:
		inside := try(context.Background(), Trial{What: tryInside})
		if inside.Start != nil { // which only this process could tell
			inside.Done = []Op{opOf("start in namespaces", inside.Start)}
		}
		return inside
	default:
		a.Done = []Op{{What: t.What, Words: "nobody knows how to try that"}}
	}
	return a
}

func rootHere() error {
	if uid := os.Getuid(); uid != 0 {
		return fmt.Errorf("the id map does not hold: this is user %d", uid)
	}
	return nil
}

// ownLabel is what AppArmor calls this process, without the mode.
func ownLabel() string {
	for _, path := range []string{"/proc/self/attr/apparmor/current", "/proc/self/attr/current"} {
		if b, err := os.ReadFile(path); err == nil {
			name, _, _ := strings.Cut(strings.TrimRight(string(b), "\x00\n"), " (")
			return name
		}
	}
	return ""
}

// inMemory copies a file to memory, as a box's first process is.
func inMemory(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	fd, err := unix.MemfdCreate("try", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("try", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	dst := os.NewFile(uintptr(fd), "try")
	if _, err = io.Copy(dst, src); err == nil {
		err = dst.Chmod(0o555)
	}
	if err != nil {
		dst.Close()
		return nil, err
	}
	return dst, nil
}

// layers are the folders that an overlay is made of, the lower ones first.
var layers = []string{"lower", "top"}

// makeLayers makes a folder with what an overlay is made of: a lower layer with
// something in it, and a folder that has the one to be written.
func makeLayers(in string) (own *scratch.Folder, err error) {
	own, err = scratch.Make(in, scratch.Doctor)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"lower/dir", "top/upper", "top/work", "at"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(own.At(), d), 0o755))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(own.At(), "lower/old"), []byte("x"), 0o600))
	if err != nil {
		return nil, errors.Join(err, own.Remove())
	}
	return own, nil
}

// mappedLayers opens the layers with root's eyes and shows them as the box's.
func mappedLayers(dir string) (trees []*os.File, op Op) {
	for _, name := range layers {
		fd, err := mappedTree(filepath.Join(dir, name))
		if err != nil {
			return trees, opOf("map the ids of a layer", err)
		}
		trees = append(trees, os.NewFile(uintptr(fd), name))
	}
	return trees, Op{}
}

func mappedTree(dir string) (int, error) {
	var m idmap.Mapper
	defer m.Close()
	ns, err := m.For(dir)
	if err != nil {
		return -1, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mapIDs shows a folder under another id. It is mounted nowhere.
func mapIDs(dir string) []Op {
	fd, err := mappedTree(dir)
	if err == nil {
		unix.Close(fd)
	}
	return []Op{opOf("map the ids of a mount", err)}
}

// same says why what has a name is not what a descriptor is of.
func same(path string, fd int) error {
	var here, there unix.Stat_t
	if err := errors.Join(unix.Stat(path, &here), unix.Fstat(fd, &there)); err != nil {
		return err
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return errors.New("somebody put another folder in its place")
	}
	return nil
}

// mountLayers mounts them, and goes where.
func mountLayers(t Trial) error {
	var trees []int
	if t.What == tryMapped {
		// The folder of the layers may be closed to the id that this is now.
		for i := range layers {
			trees = append(trees, mappedFD+i)
		}
		if err := errors.Join(unix.Mount("none", "/tmp", "tmpfs", 0, "size=1m"), os.Mkdir("/tmp/at", 0o700), os.Chdir("/tmp")); err != nil {
			return err
		}
	} else {
		// A descriptor of another mount namespace gives no tree, so it goes by the
		// name here, and is looked at.
		if err := errors.Join(os.Chdir(t.Dir), same(".", layersFD)); err != nil {
			return err
		}
		for _, name := range layers {
			fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return err
			}
			trees = append(trees, fd)
		}
	}
	at, err := unix.Open("at", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if err := overlay.Mount(at, trees); err != nil {
		return err
	}
	return os.Chdir("at")
}
