package probe

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var process = []action{
	{"exit", 1, func(a []string) Answer { os.Exit(number(a[0])); return Answer{} }},
	{"signal", 1, func(a []string) Answer {
		sig := unix.Signal(number(a[0]))
		if sig != unix.SIGKILL && sig != unix.SIGSTOP {
			_ = disposition(sig, 0)
		}
		err := unix.Kill(os.Getpid(), sig)
		time.Sleep(5 * time.Second)
		return failed(err)
	}},
	{"child", 1, func(a []string) Answer { return nested(a, false) }},
	{"grandchild", 1, func(a []string) Answer { return nested(a, true) }},
	{"sleep", 1, func(a []string) Answer { time.Sleep(time.Duration(number(a[0])) * time.Millisecond); return Answer{} }},
	{"env", 0, func([]string) Answer { return Answer{List: os.Environ()} }},
	{"ids", 0, func([]string) Answer {
		return Answer{Text: fmt.Sprint(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()), N: int64(os.Geteuid())}
	}},
	{"cpus", 0, func([]string) Answer {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(0, &set)
		ans := failed(err)
		ans.N = int64(set.Count())
		for c := range len(set) * 64 {
			if set.IsSet(c) {
				ans.List = append(ans.List, strconv.Itoa(c))
			}
		}
		return ans
	}},
	{"fds", 0, descriptors},
	{"pids", 0, pids},
	{"caps", 0, caps},
	{"kill", 2, func(a []string) Answer { return failed(unix.Kill(number(a[0]), unix.Signal(number(a[1])))) }},
	{"kill everybody", 0, killEverybody},
	{"signal by a file", 3, signalByFile},
	{"own session", 0, func([]string) Answer {
		sid, err := unix.Getsid(0)
		if err != nil {
			return failed(err)
		}
		if _, err := os.OpenFile("/dev/tty", os.O_RDWR, 0); err == nil {
			return Answer{Err: "there is a controlling terminal"}
		}
		return Answer{N: int64(sid), Text: strconv.Itoa(os.Getpid())}
	}},
	{"exec", 1, func(a []string) Answer {
		out, err := exec.Command(a[0], a[1:]...).CombinedOutput()
		ans := failed(err)
		ans.Text = string(out)
		return ans
	}},
	{"many programs", 2, manyPrograms},
	{"daemon", 2, daemon},
	{"heartbeat", 1, func(a []string) Answer {
		signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
		for {
			f, err := os.OpenFile(a[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return failed(err)
			}
			_, _ = f.Write([]byte{'.'})
			f.Close()
			time.Sleep(5 * time.Millisecond)
		}
	}},
}

// descriptors lists what is open. The runtime opens some of its own, which are
// close-on-exec and so were not inherited.
func descriptors([]string) Answer {
	var a Answer
	for fd := range 1024 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			target = err.Error()
		}
		a.List = append(a.List, strconv.Itoa(fd)+" "+target)
	}
	return a
}

func pids([]string) Answer {
	names, err := filepath.Glob("/proc/[0-9]*")
	a := failed(err)
	for _, n := range names {
		comm, _ := os.ReadFile(n + "/comm")
		a.List = append(a.List, filepath.Base(n)+" "+strings.TrimSpace(string(comm)))
	}
	return a
}

// caps lists each different capability, filter and privilege line that any
// thread of this process has.
func caps([]string) Answer {
	seen := map[string]bool{}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return failed(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return failed(err)
		}
		for line := range bytes.Lines(text) {
			s := strings.Join(strings.Fields(string(line)), " ")
			for _, want := range []string{"Cap", "NoNewPrivs", "Seccomp:"} {
				if strings.HasPrefix(s, want) {
					seen[s] = true
				}
			}
		}
	}
	a := Answer{}
	for s := range seen {
		a.List = append(a.List, s)
	}
	sort.Strings(a.List)
	return a
}

// killEverybody sends SIGKILL to all it may, and tells what became of a child.
func killEverybody([]string) Answer {
	cmd := exec.Command("/proc/self/exe", Args(Do("sleep", "60000"))...)
	if err := cmd.Start(); err != nil {
		return failed(err)
	}
	if err := unix.Kill(-1, unix.SIGKILL); err != nil {
		return failed(err)
	}
	_ = cmd.Wait()
	return Answer{Text: cmd.ProcessState.String()}
}

// manyPrograms starts a program over and over, from several threads at once.
func manyPrograms(a []string) Answer {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	n := int64(0)
	for range 4 {
		wg.Go(func() {
			runtime.LockOSThread()
			for range number(a[0]) / 4 {
				err := exec.Command(a[1], a[2:]...).Run()
				mu.Lock()
				if err == nil {
					n++
				} else if first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	ans := failed(first)
	ans.N = n
	return ans
}

// daemon leaves a process behind that has left its session and its parents.
func daemon(a []string) Answer {
	inner := Args(Do("heartbeat", a[0]), Do("token", a[1]))
	script := Op{Do: "spawn apart", Args: inner}
	cmd := exec.Command("/proc/self/exe", Args(script)...)
	if err := cmd.Run(); err != nil {
		return failed(err)
	}
	for range 500 {
		if _, err := os.Stat(a[0]); err == nil {
			return Answer{}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return Answer{Err: "the daemon never came up"}
}

// signalByFile has the kernel send a process a signal for us, because a pipe can be
// read: a[0] says how the pipe gets its owner.
func signalByFile(a []string) Answer {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return failed(err)
	}
	pid := os.Getpid()
	if a[1] != "own" {
		pid = number(a[1])
	}
	who := [2]int32{1, int32(pid)} // F_OWNER_PID
	call := func(number, arg uintptr, at unsafe.Pointer) error {
		if at != nil {
			arg = uintptr(at)
		}
		nr := uintptr(unix.SYS_FCNTL)
		if number > 0x8000 {
			nr = unix.SYS_IOCTL
		}
		_, _, e := unix.Syscall(nr, uintptr(p[0]), number, arg)
		runtime.KeepAlive(&who)
		if e != 0 {
			return e
		}
		return nil
	}
	var err error
	switch a[0] {
	case "F_SETOWN":
		err = call(unix.F_SETOWN, uintptr(pid), nil)
	case "F_SETOWN of the group":
		err = call(unix.F_SETOWN, uintptr(-pid), nil)
	case "F_SETOWN_EX":
		err = call(unix.F_SETOWN_EX, 0, unsafe.Pointer(&who))
	case "FIOSETOWN":
		err = call(0x8901, 0, unsafe.Pointer(&who[1]))
	case "SIOCSPGRP":
		err = call(0x8902, 0, unsafe.Pointer(&who[1]))
	default:
		return Answer{Err: "unknown way " + a[0]}
	}
	if err == nil {
		err = call(unix.F_SETSIG, uintptr(number(a[2])), nil)
	}
	if err == nil {
		err = call(unix.F_SETFL, unix.O_ASYNC|unix.O_NONBLOCK, nil)
	}
	if err != nil {
		return failed(err)
	}
	_, err = unix.Write(p[1], []byte("x"))
	time.Sleep(200 * time.Millisecond)
	return failed(err)
}
