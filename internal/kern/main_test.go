package kern

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit/entry"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// probeArg makes the test program do one thing in a box, without a shell.
const probeArg = "kern-test-probe"

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	switch {
	case len(os.Args) == 2 && os.Args[1] == "--version":
		fmt.Println("kern v0.0.0-fake")
		os.Exit(0)
	case len(os.Args) > 2 && os.Args[0] == "kern" && os.Args[1] == "box":
		fakeBox(os.Args)
	case len(os.Args) > 2 && os.Args[1] == probeArg:
		probe(os.Args[2:])
	}
	code := m.Run()
	boxtest.RemoveStatic()
	os.Exit(code)
}

// static gives this test program as one that runs without a loader: on the bare
// stage that kern is started on, and in an image that holds nothing.
func static(t testing.TB) string {
	t.Helper()
	path, err := boxtest.Static()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// fakeBox is kern as far as its caller can see, without any isolation: the host
// name in its arguments says how it behaves.
func fakeBox(args []string) {
	host := args[slices.Index(args, "--hostname")+1]
	started, alive := os.NewFile(startedFD, "started"), os.NewFile(aliveFD, "alive")
	alive.WriteString("A")
	switch host {
	case "refuses":
		fmt.Fprintln(os.Stderr, "error: sandbox: something this kern will not do")
		os.Exit(1)
	case "floods":
		for range 1000 {
			fmt.Fprintln(os.Stderr, strings.Repeat("x", 1000))
		}
		os.Exit(1)
	case "hangs":
		time.Sleep(time.Hour)
	case "tells":
		fmt.Fprintf(os.Stderr, "uid=%d gid=%d groups=%d cwd=%s\n", os.Getuid(), os.Getgid(), len(must(os.Getgroups())), must(os.Getwd()))
		for _, kv := range os.Environ() {
			fmt.Fprintln(os.Stderr, "env", kv)
		}
		for _, e := range must(os.ReadDir("/proc/self/fd")) {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "/proc/") && !strings.HasPrefix(to, "/sys/") /* the Go runtime's own */ && !strings.HasPrefix(to, "anon_inode:") {
				kind, _, _ := strings.Cut(to, ":")
				fmt.Fprintln(os.Stderr, "fd", e.Name(), kind)
			}
		}
		for _, dir := range []string{"/", "/root", "/home"} {
			if es, err := os.ReadDir(dir); err == nil {
				for _, e := range es {
					fmt.Fprintln(os.Stderr, "sees", dir, e.Name())
				}
			}
		}
		os.Exit(1)
	case "dies":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	for _, a := range args {
		if f := strings.Split(a, ","); len(f) > 2 && f[2] == "dst="+box.StepDir {
			if host == "signals" {
				fd := must(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
				_ = unix.Connect(fd, &unix.SockaddrUnix{Name: strings.TrimPrefix(f[1], "src=") + "/control"})
				unix.Read(fd, make([]byte, 1))
				started.Write([]byte{1, 1, 0, 9})
				os.Exit(137)
			}
			alive.Close()
			for i, a := range args {
				if kv, ok := strings.CutPrefix(a, "GO"); ok && args[i-1] == "--env" {
					name, value, _ := strings.Cut("GO"+kv, "=")
					os.Setenv(name, value)
				}
			}
			runtime.GOMAXPROCS(4)
			entry.Main([]string{"init", entry.Marker, strings.TrimPrefix(f[1], "src=") + "/control"})
		}
	}
	os.Exit(1)
}

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return v
}

// probe tries things in a box and prints what came of each.
func probe(what []string) {
	for _, w := range what {
		verb, arg, _ := strings.Cut(w, "=")
		var err error
		switch verb {
		case "mount":
			err = unix.Mount("x", "/tmp", "tmpfs", 0, "")
		case "write":
			err = os.WriteFile(arg, []byte("x"), 0o644)
		case "read":
			_, err = os.ReadFile(arg)
		case "list":
			var es []os.DirEntry
			if es, err = os.ReadDir(arg); err == nil {
				for _, e := range es {
					fmt.Println("entry", e.Name())
				}
			}
		case "killinit":
			for _, s := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGABRT, syscall.SIGSTOP} {
				_ = syscall.Kill(1, s)
			}
		case "eat":
			var keep [][]byte
			for {
				b := make([]byte, 1<<20)
				for i := range b {
					b[i] = 1
				}
				keep = append(keep, b)
				_ = keep
			}
		case "sleep":
			time.Sleep(time.Hour)
		case "child":
			p, perr := os.StartProcess("/proc/self/exe", []string{"x", probeArg, arg}, &os.ProcAttr{Files: []*os.File{nil, os.Stdout, os.Stderr}})
			if err = perr; err == nil {
				st, _ := p.Wait()
				fmt.Println("child", st)
			}
		case "show":
			var b []byte
			b, err = os.ReadFile(arg)
			fmt.Printf("%s", b)
		case "connect":
			at := netip.MustParseAddrPort(arg)
			fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
			unix.Close(fd)
		case "dial":
			fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
			var port int
			fmt.Sscanf(arg, "%d", &port)
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
			unix.Close(fd)
		}
		fmt.Println(w, "->", err)
	}
	os.Exit(0)
}
