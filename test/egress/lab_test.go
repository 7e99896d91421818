package egress_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// lab is a machine within the machine: a thread in a network and a mount
// namespace of its own. What is started or listened on from there is in them,
// and so is every process below. The zero pointer is the host.
type lab struct {
	do  chan func()
	dir string // readable for everybody
}

// The names of the lab, as its hosts file has them. Documentation addresses
// count as public.
const labHosts = `127.0.0.1 localhost
127.0.0.1 git.internal db.internal cache.internal
10.77.0.5 lan.internal
192.0.2.10 origin.test www.origin.test a.origin.test
198.51.100.66 evil.test
203.0.113.1 rebound.test
10.77.0.5 rebound.test
169.254.169.254 metadata.test
`

var labAddrs = []string{"10.77.0.5", "192.0.2.10", "198.51.100.66", "203.0.113.1", "169.254.169.254"}

func newLab(t *testing.T) *lab {
	t.Helper()
	boxtest.Need(t, "root")
	l := &lab{do: make(chan func()), dir: boxtest.OpenDir(t)}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespaces
		ready <- l.open()
		for f := range l.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("make the lab: %v", err)
	}
	t.Cleanup(func() { close(l.do) })
	return l
}

func (l *lab) open() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare network and mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	hosts := filepath.Join(l.dir, "hosts")
	if err := os.WriteFile(hosts, []byte(labHosts), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("give the lab its hosts file: %w", err)
	}
	// The servers are no root's, and want the ports that everybody knows.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := up(fd, "lo"); err != nil {
		return err
	}
	for i, a := range labAddrs {
		alias := fmt.Sprintf("lo:%d", i+1)
		req, err := unix.NewIfreq(alias)
		if err == nil {
			err = req.SetInet4Addr(net.ParseIP(a).To4())
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, req)
		}
		if err != nil {
			return fmt.Errorf("give the lab %s: %w", a, err)
		}
	}
	return nil
}

func up(fd int, name string) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

// in runs f in the lab. Commands that f starts are in it, too.
func (l *lab) in(f func() error) error {
	if l == nil {
		return f()
	}
	done := make(chan error)
	l.do <- func() { done <- f() }
	return <-done
}

func (l *lab) listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	var ln net.Listener
	if err := l.in(func() (err error) {
		ln, err = net.Listen("tcp4", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// dial connects within the lab, as the tests' own look at a server.
func (l *lab) dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var c net.Conn
	if err := l.in(func() (err error) {
		c, err = net.Dial("tcp4", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// server is a program that was started in the lab and is ended with the test.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

func (s *server) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// count says how often the server's log has a word.
func (s *server) count(word string) int { return strings.Count(s.log(), word) }

// serve starts a server and waits until its log has the word that says it is
// ready.
func (l *lab) serve(t *testing.T, as account, ready string, argv ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: exec.Command(argv[0], argv[1:]...)}
	s.cmd.Dir, s.cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	s.cmd.WaitDelay = time.Second
	// Its lifetime is the lab's thread's, whatever becomes of the test.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true, Credential: as.credential()}
	if err := l.in(s.cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Told to end, it takes its own processes along; what it has left of its
		// group goes after that.
		_ = s.cmd.Process.Signal(unix.SIGTERM)
		ended := time.AfterFunc(5*time.Second, func() { _ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL) })
		_ = s.cmd.Wait()
		ended.Stop()
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	})
	for end := time.Now().Add(20 * time.Second); s.count(ready) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not get ready:\n%s", argv[0], s.log())
		}
	}
	return s
}
