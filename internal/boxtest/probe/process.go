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
	{"fds", 0, descriptors},
	{"pids", 0, pids},
	{"caps", 0, caps},
	{"kill", 2, func(a []string) Answer { return failed(unix.Kill(number(a[0]), unix.Signal(number(a[1])))) }},
	{"kill everybody", 0, killEverybody},
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
