package inside

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is for what must fail at once. An attempt that takes this long was not
// turned away, it was only not answered. A busy machine may well stand still for
// some of it.
const patience = time.Second

// A program that links this package tries things in a probe box when it is started
// for that, before main.
func init() {
	if len(os.Args) == 3 && os.Args[1] == Arg {
		try(os.Args)
	}
}

// try tries what it is asked to, prints what came of it and ends.
func try(args []string) {
	a, err := ReadAsk(args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if a.Grow > 0 {
		grow(a.Grow)
		os.Exit(0) // nobody stopped it
	}
	s := look(*a)
	if a.Forks > 0 {
		s.timed("forks", func() { s.Forked, s.ForkErr = forks(a.Forks) })
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		os.Exit(3)
	}
	if a.Escape {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			os.Exit(Refused)
		}
		os.Exit(4) // nobody stopped it
	}
	os.Exit(0)
}

func (s *Seen) timed(name string, do func()) { s.Took[name] = took(do) }

// took is how long something takes, in ms.
func took(do func()) float64 {
	began := time.Now()
	do()
	return float64(time.Since(began).Microseconds()) / 1000
}

// each tries one thing after another and notes how long each took.
func each(list []string, try func(string) Tried) (out []Tried) {
	for _, what := range list {
		var t Tried
		ms := took(func() { t = try(what) })
		t.Took = ms
		out = append(out, t)
	}
	return out
}

func look(a Ask) *Seen {
	s := &Seen{Took: map[string]float64{}}
	s.timed("get", func() {
		if a.Proxy != "" && a.Get != "" {
			s.Get = get(a.Proxy, a.Get)
		}
	})
	s.Refused = each(a.Refused, func(to string) Tried { return connect(a.Proxy, to) })
	s.Dials = each(a.Dial, func(to string) Tried { return dial("tcp", to) })
	s.Packets = each(a.Packets, packet)
	s.Interfaces = interfaces()
	s.Names = each(a.Names, lookup)
	s.timed("abstract", func() {
		if a.Abstract != "" {
			s.Abstract = dial("unix", "@"+a.Abstract)
		}
	})
	s.timed("capabilities", func() {
		s.Status = status()
		s.Powers = []Tried{
			tried("sethostname", unix.Sethostname([]byte("probe"))),
			tried("chroot", unix.Chroot("/")),
			tried("mknod", unix.Mknod("/tmp/probe-disk", unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))),
		}
	})
	s.timed("seccomp", func() {
		_, err := unix.AddKey("user", "probe", []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
		_, _, en := unix.RawSyscall(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0)
		s.Calls = []Tried{tried("add_key", err), tried("perf_event_open", errOf(en))}
	})
	s.timed("host", func() { s.Spaces, s.Processes = Spaces(), processes() })
	s.timed("kernel", func() {
		k, err := ReadKernel()
		if err != nil {
			k = Kernel{} // which is not believed
		}
		s.Kernel = k
	})
	s.Files = each(a.Files, func(path string) Tried {
		_, err := os.Lstat(path)
		return tried(path, err)
	})
	s.Written = each(a.Write, write)
	s.timed("tunnel", func() {
		if a.Proxy != "" && a.Tunnel != "" {
			s.Tunnel = greet(a.Proxy, a.Tunnel, a.As)
		}
	})
	return s
}

// write makes a file in a folder, and takes it away again: where that works, the
// folder may be the host's own.
func write(dir string) Tried {
	path := filepath.Join(dir, "untrusted-steps-probe")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		f.Close()
		_ = os.Remove(path)
	}
	return tried(dir, err)
}

func errOf(en syscall.Errno) error {
	if en == 0 {
		return nil
	}
	return en
}

// tried is what came of a call: the errno's name where there is one.
func tried(what string, err error) Tried {
	t := Tried{What: what}
	var en syscall.Errno
	var ne net.Error
	switch {
	case err == nil:
	case errors.As(err, &en):
		if t.Err = unix.ErrnoName(en); t.Err == "" {
			t.Err = fmt.Sprintf("errno %d", int(en))
		}
	case errors.As(err, &ne) && ne.Timeout():
		t.Err = "timeout"
	default:
		t.Err = err.Error()
	}
	return t
}

func dial(network, to string) Tried {
	c, err := net.DialTimeout(network, to, patience)
	if err == nil {
		_, _ = c.Write([]byte(os.Getenv(WordVariable)))
		c.Close()
	}
	return tried(to, err)
}

// packet sends one datagram. An address without a route is refused before it
// leaves.
func packet(to string) Tried {
	c, err := net.DialTimeout("udp", to, patience)
	if err == nil {
		_, err = c.Write([]byte{0})
		c.Close()
	}
	return tried(to, err)
}

// lookup asks whoever the box's resolver is, with the least that a name server
// must understand: one question for an address. The box has none to ask.
func lookup(name string) Tried {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return tried(name, err)
	}
	last := Tried{What: name, Err: "no name server"}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		// One that cannot be reached says nothing of the next.
		if last = ask(net.JoinHostPort(f[1], "53"), name); last.Err == "" || last.Err == "timeout" {
			return last
		}
	}
	return last
}

func ask(server, name string) Tried {
	c, err := net.DialTimeout("udp", server, patience)
	if err != nil {
		return tried(name, err)
	}
	defer c.Close()
	q := []byte{0x13, 0x37, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	q = append(q, 0, 0, 1, 0, 1)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return tried(name, err)
	}
	if _, err := c.Write(q); err != nil {
		return tried(name, err)
	}
	n, err := c.Read(make([]byte, 512))
	if err == nil {
		return Tried{What: name, Text: fmt.Sprintf("%s answered with %d bytes", server, n)}
	}
	return tried(name, err)
}

// connect asks the proxy for a tunnel and gives the first line of its answer.
func connect(proxy, to string) Tried {
	return exchange(proxy, to, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\n", false)
}

// get asks the proxy for a page and gives its text.
func get(proxy, host string) Tried {
	return exchange(proxy, host, "GET http://"+host+"/ HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n", true)
}

// wait is for the proxy, which answers for whom it must look up and dial.
const wait = 5 * time.Second

func exchange(proxy, what, request string, body bool) Tried {
	c, err := net.DialTimeout("tcp", proxy, wait)
	if err != nil {
		t := tried(what, err)
		t.Err = "the proxy: " + t.Err
		return t
	}
	defer c.Close()
	if err = c.SetDeadline(time.Now().Add(wait)); err == nil {
		_, err = c.Write([]byte(request))
	}
	if err != nil {
		return tried(what, err)
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return tried(what, err)
	}
	t := Tried{What: what, Text: strings.TrimSpace(line)}
	if !body {
		return t
	}
	var last string
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			last = line
		}
		if err != nil {
			break
		}
	}
	t.Text = strings.TrimSpace(last)
	return t
}

// greet asks the proxy for a tunnel to one server, and there for another one.
func greet(proxy, to, as string) Tried {
	c, err := net.DialTimeout("tcp", proxy, wait)
	if err != nil {
		return tried(to, err)
	}
	defer c.Close()
	if err = c.SetDeadline(time.Now().Add(wait)); err == nil {
		_, err = c.Write([]byte("CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\n"))
	}
	if err != nil {
		return tried(to, err)
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	for rest := line; err == nil && strings.TrimSpace(rest) != ""; {
		rest, err = r.ReadString('\n')
	}
	t := tried(to, err)
	if t.Text = strings.TrimSpace(line); err != nil {
		return t
	}
	// Who it is does not matter: nobody is to answer.
	err = tls.Client(c, &tls.Config{ServerName: as, InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{tls.X25519}}).Handshake()
	t.Err = tried(to, err).Err
	return t
}

// interfaces are the names in the kernel's own table.
func interfaces() (out []string) {
	text, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return []string{"? " + err.Error()}
	}
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, ":"); ok {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// statusFields are those of /proc/self/status that tell what a process may do.
var statusFields = []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"}

func status() map[string]string {
	out := map[string]string{}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && slices.Contains(statusFields, k) {
			out[k] = strings.TrimSpace(v)
		}
	}
	return out
}

// SpaceKinds are the kinds of namespaces that a box must have of its own.
var SpaceKinds = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}

// Spaces are this process's namespaces, by kind.
func Spaces() map[string]string {
	out := map[string]string{}
	for _, kind := range SpaceKinds {
		id, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			id = "? " + err.Error()
		}
		out[kind] = id
	}
	return out
}

func processes() (out []Process) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(dir + "/comm")
		if err != nil {
			comm = []byte("? " + err.Error())
		}
		out = append(out, Process{pid, strings.TrimSpace(string(comm))})
	}
	return out
}

// forks starts processes until it is refused, and ends them again. Meanwhile the
// runtime may start no thread, or it ends the program: where it may run one at a
// time it wakes no other, and it is not told of calls that wait, for which it would
// have another go on.
func forks(most int) (n int, why string) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // once they are gone
	var started []int
	defer func() {
		for _, pid := range started {
			_, _, _ = syscall.RawSyscall(unix.SYS_KILL, uintptr(pid), uintptr(unix.SIGKILL), 0)
			_, _, _ = syscall.RawSyscall6(unix.SYS_WAIT4, uintptr(pid), 0, 0, 0, 0, 0)
		}
	}()
	for len(started) < most {
		pid, en := sleeper()
		if en != 0 {
			return len(started), unix.ErrnoName(en)
		}
		started = append(started, pid)
	}
	return len(started), ""
}

// sleeper forks a process that only waits. In the child nothing of the Go runtime
// may be used: its other threads are not there.
//
//go:nosplit
//go:norace
func sleeper() (pid int, en syscall.Errno) {
	r, _, en := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if en == 0 && r == 0 {
		for {
			syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
	return int(r), en
}

// grow takes memory until it has so much, and touches every page of it.
func grow(bytes int64) {
	b, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe box: memory:", err)
		os.Exit(5)
	}
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
}

// ReadKernel asks the kernel that answers us.
func ReadKernel() (Kernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Kernel{}, err
	}
	k := Kernel{Release: unix.ByteSliceToString(u.Release[:]), Build: unix.ByteSliceToString(u.Version[:])}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		k.Boot = strings.TrimSpace(string(id))
	}
	return k, nil
}
