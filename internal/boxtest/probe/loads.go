package probe

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var loads = []action{
	{"memory", 1, func(a []string) Answer {
		n := number(a[0])
		b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return failed(err)
		}
		for i := 0; i < n; i += 4096 {
			b[i] = 1
		}
		return Answer{N: int64(n)}
	}},
	{"memfd", 1, func(a []string) Answer {
		fd, err := unix.MemfdCreate("fill", unix.MFD_CLOEXEC)
		if err != nil {
			return failed(err)
		}
		return pour(os.NewFile(uintptr(fd), "memfd"), number(a[0]))
	}},
	// forks makes processes that wait, up to so many. N is how many it got.
	{"forks", 1, func(a []string) Answer { return forks(number(a[0]), true) }},
	// zombies makes processes that end at once and are not looked after.
	{"zombies", 1, func(a []string) Answer { return forks(number(a[0]), false) }},
	// fork bomb: every process forks without end.
	{"fork bomb", 0, func([]string) Answer {
		runtime.LockOSThread()
		for {
			unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		}
	}},
	// threads makes threads that wait, up to so many. The Go runtime ends the
	// process where one is refused.
	{"threads", 1, func(a []string) Answer {
		ready := make(chan bool)
		for range number(a[0]) {
			go func() {
				runtime.LockOSThread()
				ready <- true
				for { // not raw: the runtime has to know that this thread waits
					unix.Syscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
				}
			}()
			<-ready
		}
		return Answer{N: int64(number(a[0]))}
	}},
	{"spin", 0, func([]string) Answer {
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGXCPU)
		for n := uint64(1); ; n++ {
			if n == 0 { // in a few thousand years
				return Answer{}
			}
		}
	}},
	{"token", 1, func([]string) Answer { return Answer{} }}, // a word in our command line to be found by
	{"output", 1, func(a []string) Answer {
		ans := pour(os.Stdout, number(a[0]))
		if ans.Err != "" {
			os.Exit(3)
		}
		os.Exit(0)
		return ans
	}},
	{"drip", 1, func(a []string) Answer {
		for {
			_, _ = os.Stdout.WriteString(a[0])
			time.Sleep(20 * time.Millisecond)
		}
	}},
	{"say", 1, func(a []string) Answer {
		fmt.Println(a[0])
		fmt.Fprintln(os.Stderr, a[0])
		return Answer{}
	}},
	// spawn apart starts the probe in a session of its own and does not wait.
	{"spawn apart", 2, func(a []string) Answer {
		cmd := exec.Command("/proc/self/exe", a...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return failed(cmd.Start())
	}},
}

func forks(want int, wait bool) Answer {
	runtime.LockOSThread()
	for got := range want {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e != 0 {
			a := failed(e)
			a.N = int64(got)
			return a
		}
		if pid == 0 {
			for wait {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
			for {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
	}
	return Answer{N: int64(want)}
}
