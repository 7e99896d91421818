package limits

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeHost is a cgroup2 host in memory, with the kernel's rules that matter to
// a search: who may write where, which controllers a group hands down, and
// that a group with processes can hand down none.
type fakeHost struct {
	uid       int
	readOnly  bool
	namespace bool                // the mount shows a control group namespace's root
	groups    map[string]*fakeCg  // by path in the hierarchy
	parents   map[int]int         // processes
	files     map[string]string   // anything else, such as /proc/cgroups
	refuse    map[string]error    // writes of a file name that fail
	unread    map[string]error    // reads of a file name that fail
	lie       map[string]string   // files that read as this whatever was written
	sockets   map[string]struct{} // that answer
	paths     map[string]struct{} // that exist
}

type fakeCg struct {
	owner     int
	delegated bool
	on        []string // cgroup.subtree_control
	procs     []int
	values    map[string]string
}

const (
	fakePID   = 100
	fakeMount = "/sys/fs/cgroup"
)

// newFakeHost has a top with every controller on for its children.
func newFakeHost(uid int) *fakeHost {
	h := &fakeHost{
		uid:     uid,
		groups:  map[string]*fakeCg{},
		parents: map[int]int{1: 0, fakePID: 1},
		files:   map[string]string{},
		refuse:  map[string]error{},
		lie:     map[string]string{},
		sockets: map[string]struct{}{},
		paths:   map[string]struct{}{},
	}
	h.add("/", 0, "memory pids cpu")
	return h
}

func (h *fakeHost) add(path string, owner int, on string, procs ...int) *fakeCg {
	g := &fakeCg{owner: owner, on: strings.Fields(on), procs: procs, values: map[string]string{}}
	h.groups[path] = g
	return g
}

func (h *fakeHost) config() Config {
	return Config{
		RunID:   "r1",
		EUID:    func() int { return h.uid },
		PID:     func() int { return fakePID },
		Exists:  func(p string) bool { _, ok := h.paths[p]; return ok },
		Command: "untrusted-steps run steps.yml",
		Dial: func(s string) error {
			if _, ok := h.sockets[s]; ok {
				return nil
			}
			return syscall.ECONNREFUSED
		},
		kernel: h,
	}
}

func (h *fakeHost) find(file string) (*fakeCg, string, string) {
	rel, ok := below(fakeMount, path.Dir(file))
	if !ok {
		return nil, "", ""
	}
	at := path.Join("/", rel)
	return h.groups[at], at, path.Base(file)
}

func (h *fakeHost) where(pid int) string {
	for p, g := range h.groups {
		if slices.Contains(g.procs, pid) {
			return p
		}
	}
	return "/"
}

func (h *fakeHost) controllers(at string) []string {
	if at == "/" {
		return []string{"memory", "pids", "cpu"}
	}
	return h.groups[path.Dir(at)].on
}

func (h *fakeHost) read(file string) (string, error) {
	missing := &fs.PathError{Op: "open", Path: file, Err: syscall.ENOENT}
	if text, ok := h.files[file]; ok {
		return text, nil
	}
	if rel, ok := strings.CutPrefix(file, "/proc/"); ok {
		pid := strings.Split(rel, "/")[0]
		if pid == "self" {
			pid = strconv.Itoa(fakePID)
		}
		n, _ := strconv.Atoi(pid)
		parent, alive := h.parents[n]
		switch {
		case rel == "sys/kernel/random/boot_id":
			return "boot\n", nil
		case rel == "self/mountinfo":
			mode := "rw"
			if h.readOnly {
				mode = "ro"
			}
			return fmt.Sprintf("30 1 0:26 / %s %s,nosuid - cgroup2 cgroup2 rw\n", fakeMount, mode), nil
		case !alive:
			return "", missing
		case path.Base(rel) == "cgroup":
			return "0::" + h.where(n) + "\n", nil
		case path.Base(rel) == "stat":
			return fmt.Sprintf("%d (a) b)) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", n, parent, 1000+n), nil
		}
	}
	g, at, name := h.find(file)
	if g == nil {
		return "", missing
	}
	if err := h.unread[name]; err != nil {
		return "", &fs.PathError{Op: "read", Path: file, Err: err}
	}
	if text, ok := h.lie[name]; ok {
		return text, nil
	}
	switch name {
	case "cgroup.type":
		if at == "/" && !h.namespace {
			return "", missing
		}
		return "domain\n", nil
	case "cgroup.controllers":
		return strings.Join(h.controllers(at), " ") + "\n", nil
	case "cgroup.subtree_control":
		return strings.Join(g.on, " ") + "\n", nil
	case "cgroup.procs":
		var b strings.Builder
		for _, pid := range g.procs {
			fmt.Fprintln(&b, pid)
		}
		return b.String(), nil
	case "cgroup.events":
		return fmt.Sprintf("populated %d\nfrozen 0\n", min(len(g.procs), 1)), nil
	}
	if controller, _, _ := strings.Cut(name, "."); !slices.Contains(h.controllers(at), controller) {
		return "", missing
	}
	if text, ok := g.values[name]; ok {
		return text + "\n", nil
	}
	text, ok := map[string]string{
		"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.peak": "0",
		"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
		"pids.max":      "max", "pids.current": "0", "pids.events": "max 0", "pids.peak": "0",
		"cpu.max": "max 100000", "cpu.stat": "usage_usec 0",
	}[name]
	if !ok {
		return "", missing
	}
	return text + "\n", nil
}

func (h *fakeHost) write(file, text string) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: file, Err: err} }
	g, at, name := h.find(file)
	switch {
	case g == nil:
		return fail(syscall.ENOENT)
	case h.readOnly:
		return fail(syscall.EROFS)
	case h.uid != 0 && g.owner != h.uid:
		return fail(syscall.EACCES)
	case h.refuse[name] != nil:
		return fail(h.refuse[name])
	}
	switch name {
	case "cgroup.procs":
		pid, _ := strconv.Atoi(text)
		if at != "/" && len(g.on) > 0 {
			return fail(syscall.EBUSY)
		}
		for _, other := range h.groups {
			other.procs = slices.DeleteFunc(other.procs, func(p int) bool { return p == pid })
		}
		g.procs = append(g.procs, pid)
		return nil
	case "cgroup.subtree_control":
		words := strings.Fields(text)
		for _, w := range words {
			if !slices.Contains(h.controllers(at), w[1:]) {
				return fail(syscall.ENOENT)
			}
		}
		if (at != "/" || h.namespace) && len(g.procs) > 0 && text[0] == '+' {
			return fail(syscall.EBUSY)
		}
		for _, w := range words {
			g.on = slices.DeleteFunc(g.on, func(c string) bool { return c == w[1:] })
			if w[0] == '+' {
				g.on = append(g.on, w[1:])
			}
		}
		return nil
	case "cgroup.kill":
		g.procs = nil
		return nil
	}
	if _, err := h.read(file); err != nil {
		return err
	}
	g.values[name] = text
	return nil
}

func (h *fakeHost) mkdir(dir string) error {
	fail := func(err error) error { return &fs.PathError{Op: "mkdir", Path: dir, Err: err} }
	parent, up, name := h.find(dir)
	at := path.Join(up, name)
	switch {
	case parent == nil:
		return fail(syscall.ENOENT)
	case h.readOnly:
		return fail(syscall.EROFS)
	case h.uid != 0 && parent.owner != h.uid:
		return fail(syscall.EACCES)
	case h.groups[at] != nil:
		return fail(syscall.EEXIST)
	}
	h.add(at, h.uid, "")
	return nil
}

func (h *fakeHost) rmdir(dir string) error {
	_, up, name := h.find(dir)
	at := path.Join(up, name)
	switch g := h.groups[at]; {
	case g == nil:
		return &fs.PathError{Op: "rmdir", Path: dir, Err: syscall.ENOENT}
	case len(g.procs) > 0:
		return &fs.PathError{Op: "rmdir", Path: dir, Err: syscall.EBUSY}
	}
	delete(h.groups, at)
	return nil
}

func (h *fakeHost) list(dir string) ([]string, error) {
	rel, _ := below(fakeMount, dir)
	at := path.Join("/", rel)
	if h.groups[at] == nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOENT}
	}
	var names []string
	for p := range h.groups {
		if p != "/" && path.Dir(p) == at {
			names = append(names, path.Base(p))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (h *fakeHost) link(p string) (string, error) {
	if p == "/proc/self" {
		return strconv.Itoa(fakePID), nil
	}
	return path.Base(p) + ":[1]", nil
}

func (h *fakeHost) writable(file string) bool {
	g, _, _ := h.find(file)
	return g != nil && !h.readOnly && (h.uid == 0 || g.owner == h.uid)
}

func (h *fakeHost) delegated(dir string) bool {
	rel, _ := below(fakeMount, dir)
	g := h.groups[path.Join("/", rel)]
	return g != nil && g.delegated
}

func (h *fakeHost) missing(pid int) bool { _, ok := h.parents[pid]; return !ok }

func (h *fakeHost) kill(pid int, still func() (bool, error)) error {
	ok, err := still()
	if ok {
		delete(h.parents, pid)
		for _, g := range h.groups {
			g.procs = slices.DeleteFunc(g.procs, func(p int) bool { return p == pid })
		}
	}
	return err
}

func (h *fakeHost) sleep(time.Duration) {}

// shape is every group with its processes, for comparison.
func (h *fakeHost) shape() map[string][]int {
	m := map[string][]int{}
	for p, g := range h.groups {
		m[p] = g.procs
	}
	return m
}

func refusal(t *testing.T, err error) *Refusal {
	t.Helper()
	r, ok := err.(*Refusal)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return r
}
