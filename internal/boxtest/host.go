package boxtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// hostSockets are where hosts have the sockets that give the host away.
var hostSockets = []string{
	"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
	"/run/libvirt/libvirt-sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/user/0/bus", "/run/user/1000/bus",
	"/run/user/1000/systemd/private", "/tmp/.X11-unix", "/tmp/ssh-agent", "/run/user/1000/gnupg", "/run/user/1000/wayland-0", "/run/user/1000/pulse",
}

// runnerFolders are where runners keep their command files, other checkouts
// and themselves.
var runnerFolders = []string{
	"/home", "/root", "/home/runner", "/home/runner/work", "/home/runner/work/_temp", "/home/runner/work/_actions", "/home/runner/runners",
	"/actions-runner", "/github", "/__w", "/_work", "/_temp", "/opt/actionarchivecache", "/var", "/run", "/srv", "/mnt", "/media", "/boot",
}

// hostFacts are about what of the host can be seen: sockets, descriptors,
// processes, memory, secrets.
func (s *suite) hostFacts(t *testing.T) {
	t.Run("F73 a descriptor that leaks from the caller is not in the box", func(t *testing.T) {
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, []byte("token"), 0o600); err != nil {
			t.Fatal(err)
		}
		leak := func() int {
			fd, err := unix.Open(secret, unix.O_RDONLY, 0) // no O_CLOEXEC, on purpose
			if err != nil {
				t.Fatal(err)
			}
			return fd
		}
		fd := leak()
		if !strings.Contains(fmt.Sprint(s.outside(t, probe.Do("fds"))[0].List), secret) {
			t.Error("control: outside, a child does not inherit the leaked descriptor")
		}
		unix.Close(fd)
		defer unix.Close(leak())
		list := s.ask(t, probe.Do("fds"))[0].List
		if s.differ.OwnKernel {
			if len(list) != 3 {
				t.Errorf("the step holds the descriptors %q, want three", list)
			}
			return
		}
		if len(list) != 3 || !strings.HasPrefix(list[0], "0 /dev/null") || !strings.HasPrefix(list[1], "1 pipe:") || !strings.HasPrefix(list[2], "2 pipe:") {
			t.Errorf("the step holds the descriptors %q, want 0 from /dev/null and pipes as 1 and 2", list)
		}
	})

	t.Run("nothing of the caller's environment is in the box, and the list is exact", func(t *testing.T) {
		for _, kv := range []string{"ACTIONS_RUNTIME_TOKEN", "GITHUB_ENV", "GITHUB_TOKEN", "BOXTEST_SECRET", "LD_PRELOAD_X"} {
			t.Setenv(kv, "secret")
		}
		if !strings.Contains(fmt.Sprint(s.outside(t, probe.Do("env"))[0].List), "ACTIONS_RUNTIME_TOKEN=secret") {
			t.Error("control: outside, a child does not inherit the variable")
		}
		j := s.probing(t, probe.Do("env"))
		j.Env = append(j.Env, "OWN=value with spaces\nand a line")
		got := s.run(t, j).answers(t, 1)[0].List
		if strings.Join(got, "|") != strings.Join(j.Env, "|") {
			t.Errorf("the step's environment is %q, want %q", got, j.Env)
		}
	})

	t.Run("F66 F67 F69 sockets of the host are absent", func(t *testing.T) {
		t.Parallel()
		at := filepath.Join(s.dir, "host.sock")
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		works(t, "connect to a socket of the host outside", s.outside(t, probe.Do("connect", "unix", at))[0])
		var ops []probe.Op
		for _, p := range append([]string{at}, hostSockets...) {
			ops = append(ops, probe.Do("connect", "unix", p))
		}
		for i, a := range s.ask(t, ops...) {
			wantErr(t, "connect to "+ops[i].Args[1], a, "ENOENT", "ENOTDIR")
		}
	})

	t.Run("F68 an abstract socket of the host cannot be reached", func(t *testing.T) {
		t.Parallel()
		name := "@boxtest-" + runID()
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		works(t, "connect outside", s.outside(t, probe.Do("connect", "unix", name))[0])
		wantErr(t, "connect", s.ask(t, probe.Do("connect", "unix", name))[0], "ECONNREFUSED")
	})

	t.Run("F72 SysV shared memory of the host is not shared", func(t *testing.T) {
		t.Parallel()
		key := 0x5e000000 | os.Getpid()&0xffff<<4 | os.Geteuid()&0xf
		id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }()
		works(t, "find the segment outside", s.outside(t, probe.Do("shmget", strconv.Itoa(key), "4096"))[0])
		wantErr(t, "find the segment", s.ask(t, probe.Do("shmget", strconv.Itoa(key), "4096"))[0], "ENOENT")
	})

	t.Run("F72 POSIX shared memory of the host is not shared", func(t *testing.T) {
		t.Parallel()
		at := "/dev/shm/boxtest-" + runID()
		if err := os.WriteFile(at, []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(at)
		works(t, "read it outside", s.outside(t, probe.Do("read", at))[0])
		a := s.ask(t, probe.Do("read", at), probe.Do("ls", "/dev/shm"), probe.Do("create", at, "mine"))
		wantErr(t, "read it", a[0], "ENOENT")
		if len(a[1].List) != 0 {
			t.Errorf("/dev/shm of a new box holds %q", a[1].List)
		}
		works(t, "make one's own", a[2])
	})

	t.Run("F72 two boxes at once share nothing", func(t *testing.T) {
		t.Parallel()
		key, name, at := "0x5e5e5e5e", "@boxtest-"+runID(), "127.0.0.1:8765"
		first := s.probing(t, probe.Do("hold", key, name, at, "/workspace/ready", "400"))
		look := []probe.Op{probe.Do("shmget", key, "4096"), probe.Do("connect", "unix", name), probe.Do("connect", "tcp", at), probe.Do("pids"), probe.Do("ls", "/workspace")}
		var other []probe.Answer
		first.started = func() {
			for range 400 {
				if _, err := os.Stat(first.Workspace + "/ready"); err == nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			other = s.run(t, s.probing(t, look...)).answers(t, len(look))
		}
		works(t, "hold them in the first box", s.run(t, first).answers(t, 1)[0])
		wantErr(t, "the segment of the first box", other[0], "ENOENT")
		wantErr(t, "the abstract socket of the first box", other[1], "ECONNREFUSED")
		wantErr(t, "the listener of the first box", other[2], "ECONNREFUSED")
		if len(other[3].List) != 2 || len(other[4].List) != 0 {
			t.Errorf("the second box sees the processes %q and the files %q", other[3].List, other[4].List)
		}
	})

	t.Run("F75 only processes of the box can be seen", func(t *testing.T) {
		t.Parallel()
		if got := s.outside(t, probe.Do("read", "/proc/"+strconv.Itoa(os.Getpid())+"/comm"))[0]; !got.OK() {
			t.Errorf("control: outside, this process cannot be seen: %s", tell(got))
		}
		list := s.ask(t, probe.Do("pids"))[0].List
		if len(list) != 2 || !strings.HasPrefix(list[0], "1 ") {
			t.Errorf("the box shows the processes %q, want the first process and the step", list)
		}
	})

	t.Run("F76 folders of the runner and of the host's people are absent", func(t *testing.T) {
		t.Parallel()
		here, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		works(t, "see this package's folder outside", s.outside(t, probe.Do("stat", here))[0])
		var ops []probe.Op
		for _, p := range append([]string{here, s.dir, filepath.Dir(s.probe)}, runnerFolders...) {
			ops = append(ops, probe.Do("stat", p))
		}
		if !s.differ.SysShown {
			for _, p := range []string{"/sys/class", "/sys/fs", "/sys/kernel", "/sys/devices"} {
				ops = append(ops, probe.Do("stat", p))
			}
		}
		for i, a := range s.ask(t, ops...) {
			wantErr(t, "stat "+ops[i].Args[0], a, "ENOENT")
		}
	})

	t.Run("F70 the way to the engine is not in a writable place and is not inherited", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("ls", "/step"), probe.Do("create", "/step/x", ""), probe.Do("unlink", "/step/init"), probe.Do("unlink", "/step/control"))
		for _, n := range a[0].List {
			if strings.Contains(n, "control") || strings.Contains(n, "sock") {
				t.Errorf("/step shows %s", n)
			}
		}
		wantErr(t, "create a file in /step", a[1], "EROFS", "EACCES")
		refused(t, "remove /step/init", a[2])
		refused(t, "remove /step/control", a[3])
	})
}

// owner is who a file on disk belongs to.
func owner(t testing.TB, path string) (uid, gid int) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return int(sys.Uid), int(sys.Gid)
}
