package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// A stage is a host that is made of this one: this binary, in namespaces of its
// own, spoils something there and then examines what it finds.
const stageArg = "host-test-stage"

// spoils are the ways to do that. Each gets an empty folder.
var spoils = map[string]func(dir string) error{
	"nothing": func(string) error { return nil },
	"noexec": func(dir string) error {
		return unix.Mount("none", filepath.Join(dir, "tmp"), "tmpfs", unix.MS_NOEXEC, "size=1m")
	},
	"tiny": func(dir string) error {
		return unix.Mount("none", filepath.Join(dir, "work"), "tmpfs", 0, "size=256k,nr_inodes=100")
	},
	"no namespaces": func(string) error { return os.WriteFile(maxNamespaces, []byte("0"), 0) },
	"covered proc": func(string) error {
		return errors.Join(unix.Mount("proc", "/proc", "proc", 0, ""), unix.Mount("none", "/proc/sys", "tmpfs", 0, "size=1k"))
	},
	"overlay": func(dir string) error {
		for _, d := range []string{"o", "o/lower", "o/upper", "o/work"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o777); err != nil {
				return err
			}
		}
		o := filepath.Join(dir, "o")
		return unix.Mount("none", filepath.Join(dir, "work"), "overlay", 0, "lowerdir="+o+"/lower,upperdir="+o+"/upper,workdir="+o+"/work")
	},
	"memory": func(string) error {
		return errors.Join(unix.Mount("proc", "/proc", "proc", 0, ""), os.WriteFile("/proc/sys/vm/memfd_noexec", []byte("2"), 0))
	},
	"filter":     func(string) error { return forbid(0) },
	"supervised": func(string) error { return forbid(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER) },
}

// forbid puts a filter on this thread under which no namespace can be made, as
// containers have one, or one that has a listener and lets all be.
func forbid(flag uintptr) error {
	runtime.LockOSThread()
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET, K: k} }
	const number, firstArg, allow = 0, 16, 0x7fff0000 // struct seccomp_data, SECCOMP_RET_ALLOW
	filter := []unix.SockFilter{answer(allow)}
	if flag == 0 {
		const refuse = 0x00050000 | uint32(unix.EPERM) // SECCOMP_RET_ERRNO
		filter = []unix.SockFilter{
			load(number),
			{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.SYS_CLONE, Jt: 1},
			{Code: unix.BPF_JMP | unix.BPF_JEQ, K: unix.SYS_UNSHARE, Jt: 0, Jf: 3},
			load(firstArg),
			{Code: unix.BPF_JMP | unix.BPF_JSET, K: unix.CLONE_NEWUSER, Jf: 1},
			answer(refuse),
			answer(allow),
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := setFilter(flag, &prog); err != nil {
		return err
	}
	// Another start of this binary, so that all its threads are under it.
	return syscall.Exec("/proc/self/exe", []string{os.Args[0], stageArg, "nothing", os.Args[3]}, os.Environ())
}

// stage spoils, examines and tells.
func stage(spoil, dir string) {
	runtime.LockOSThread()
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if spoil == "nothing" {
		err = nil
	}
	if err == nil {
		err = spoils[spoil](dir)
	}
	if err != nil {
		fmt.Println("make the stage:", err)
		os.Exit(1)
	}
	work, temp := filepath.Join(dir, "work"), filepath.Join(dir, "tmp")
	r := Examine(context.Background(), Here(os.Getenv), Options{
		Workspace: filepath.Join(work, "x"), Places: []string{work}, Temp: temp, Disk: 1 << 20,
	})
	if err := r.WriteJSON(os.Stdout); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// on runs a stage, in further namespaces and as somebody, and gives what was
// found by check.
func on(t *testing.T, spoil string, attr *syscall.SysProcAttr) map[string]Finding {
	t.Helper()
	dir := boxtest.OpenDir(t)
	for _, d := range []string{"work", "tmp"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, d), 0o777), os.Chmod(filepath.Join(dir, d), os.ModeSticky|0o777)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", stageArg, spoil, dir)
	cmd.Env = []string{"HOME=/nowhere", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	var r Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	found := map[string]Finding{}
	for _, f := range r.Findings {
		found[f.Check] = f
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*/us-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	return found
}

func says(t *testing.T, found map[string]Finding, check string, want Status, piece, fix string) {
	t.Helper()
	f, ok := found[check]
	if !ok {
		t.Fatalf("there is no check %s", check)
	}
	if f.Status != want || !strings.Contains(f.Found, piece) || !strings.Contains(strings.Join(f.Fix, "\n"), fix) {
		t.Errorf("%s is %+v\nwant %s with %q and the fix %q", check, f, want, piece, fix)
	}
}

// inNamespaces starts a stage as root of this machine, with mounts of its own.
func inNamespaces(more uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | more}
}

const somebody = 61_235

func asSomebody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}}
}

// TestThisHost: what other tests have seen to work, doctor finds to work too.
func TestThisHost(t *testing.T) {
	boxtest.Need(t, "root")
	boxtest.Boxes(t)
	for name, attr := range map[string]*syscall.SysProcAttr{"root": nil, "a normal user": asSomebody()} {
		t.Run(name, func(t *testing.T) {
			found := on(t, "nothing", attr)
			for _, check := range []string{"kernel", "user-namespaces", "own-id-map", "seccomp", "memory-programs", "id-mapped-mounts", "overlay", "workspace", "temporary-folder", "disk"} {
				says(t, found, check, OK, "", "")
			}
			if attr == nil {
				says(t, found, "control-groups", OK, "memory and processes of a group were capped", "")
			} else {
				says(t, found, "control-groups", Fail, "user 61235", "untrusted-steps run FILE")
			}
		})
	}
}

// TestSpoiltHosts: attack O164 and its like, on hosts that are made for it.
func TestSpoiltHosts(t *testing.T) {
	boxtest.Need(t, "root", "userns", "overlay", "idmap")
	for _, c := range []struct {
		name, spoil string
		more        uintptr
		check       string
		status      Status
		piece, fix  string
	}{
		{"a folder for temporary files without exec", "noexec", 0, "temporary-folder", Warn, "mounted noexec", "export TMPDIR="},
		{"a disk that is nearly full", "tiny", 0, "disk", Warn, "MiB are free in", "set diskMb lower"},
		{"an overlay below the workspace", "overlay", 0, "overlay", Warn, "that is an overlay itself", "--workspace"},
		{"the same, and ids that cannot be mapped", "overlay", 0, "id-mapped-mounts", Fail, "cannot be shown under another id", "run as a normal user"},
		{"a covered /proc", "covered proc", unix.CLONE_NEWPID, "user-namespaces", Fail, "parts of /proc are covered", "systempaths=unconfined"},
		{"no programs in memory", "memory", unix.CLONE_NEWPID, "memory-programs", Fail, "vm.memfd_noexec is 2", "sudo sysctl -w vm.memfd_noexec=1"},
		{"a container's filter", "filter", 0, "user-namespaces", Fail, "filter around this process", "seccomp=seccomp.json"},
		{"somebody else's listener", "supervised", 0, "seccomp", Fail, "a listener of its own", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			says(t, on(t, c.spoil, inNamespaces(c.more)), c.check, c.status, c.piece, c.fix)
		})
	}
	t.Run("user namespaces that are turned off", func(t *testing.T) {
		attr := inNamespaces(unix.CLONE_NEWUSER)
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: somebody, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: somebody, Size: 1}}
		attr.GidMappingsEnableSetgroups = true
		attr.Credential = &syscall.Credential{}
		found := on(t, "no namespaces", attr)
		says(t, found, "user-namespaces", Fail, "user.max_user_namespaces is 0", fixMaxNamespaces)
		says(t, found, "overlay", Warn, "not tried", "")
	})
}

// TestProgramsOfRoot: what acts for root is looked for where only root can put
// it, whatever PATH says.
func TestProgramsOfRoot(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	p := func(name string) string { return filepath.Join(dir, name) }
	err = errors.Join(
		os.Chmod(dir, 0o755),
		os.WriteFile(p("good"), nil, 0o755),
		os.WriteFile(p("others"), nil, 0o755), os.Chmod(p("others"), 0o757),
		os.WriteFile(p("group"), nil, 0o755), os.Chmod(p("group"), 0o775),
		os.WriteFile(p("theirs"), nil, 0o755), os.Chown(p("theirs"), somebody, somebody),
		os.Mkdir(p("open"), 0o755), os.Chmod(p("open"), 0o777), os.WriteFile(p("open/good"), nil, 0o755),
		os.Symlink("good", p("link")), os.Symlink(p("open/good"), p("way-out")), os.Symlink("loop", p("loop")),
		os.Mkdir(p("alternatives"), 0o777), os.Chmod(p("alternatives"), 0o777), os.Symlink("../good", p("alternatives/x")), os.Symlink("alternatives/x", p("two-hops")),
		os.Symlink("good", p("their-link")), os.Lchown(p("their-link"), somebody, somebody),
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{
		"good": true, "link": true, "others": false, "group": false, "theirs": false, "open/good": false, "way-out": false,
		"loop": false, "two-hops": false, "their-link": false, "nowhere": false,
	} {
		if err := onlyRoot(p(name)); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := onlyRoot("good"); err == nil {
		t.Error("a relative path is taken")
	}
	t.Setenv("PATH", p("open"))
	if path, err := program("true"); err != nil || !strings.HasPrefix(path, "/usr/bin/") && !strings.HasPrefix(path, "/bin/") {
		t.Errorf("true is %q: %v", path, err)
	}
	if path, err := program("no-such-program"); err == nil {
		t.Errorf("no-such-program is %s", path)
	}
	if _, err := program("../true"); err == nil {
		t.Error("a path is taken for a name")
	}
}
