package limits

import (
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
)

const (
	service = "/system.slice/agent.service"
	scope   = "/user.slice/user-1001.slice/user@1001.service/app.slice/run-1.scope"
)

// withScope adds a user manager's groups and a scope with a shell and us.
func withScope(h *fakeHost, delegate bool) {
	h.add("/user.slice", 0, "memory pids cpu")
	h.add("/user.slice/user-1001.slice", 0, "memory pids cpu")
	h.add("/user.slice/user-1001.slice/user@1001.service", 1001, "memory pids cpu")
	h.add("/user.slice/user-1001.slice/user@1001.service/app.slice", 1001, "memory pids")
	g := h.add(scope, 1001, "", 90, fakePID)
	g.delegated = delegate
	h.parents[90], h.parents[fakePID] = 1, 90
}

// onlyScope takes all but the scope away from the user.
func onlyScope(h *fakeHost) {
	h.groups["/user.slice/user-1001.slice/user@1001.service/app.slice"].owner = 0
	h.groups["/user.slice/user-1001.slice/user@1001.service"].owner = 0
}

func withService(h *fakeHost) {
	h.add("/system.slice", 0, "memory pids")
	h.add(service, 0, "", 50, fakePID)
	h.parents[50], h.parents[fakePID] = 1, 50
}

// leafTaker is another run of the same job: whenever a leaf was made for us to move
// into, it takes it away, for the first few times.
type leafTaker struct {
	*fakeHost
	times int
}

func (h *leafTaker) write(file, text string) error {
	if leaf := path.Dir(file); path.Base(leaf) == LeafName && h.times > 0 {
		h.times--
		if err := h.rmdir(leaf); err != nil {
			return err
		}
	}
	return h.fakeHost.write(file, text)
}

func TestALeafThatAnotherRunTakesAwayIsMadeAnew(t *testing.T) {
	h := newFakeHost(1001)
	withScope(h, true)
	h.groups["/user.slice/user-1001.slice/user@1001.service/app.slice"].on = []string{"memory", "pids", "cpu"}
	cfg := h.config()
	cfg.kernel = &leafTaker{h, 3}
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if at := m.places[0].path; !strings.HasPrefix(h.where(fakePID), at+"/"+LeafName) {
		t.Errorf("groups are made in %s, and we are in %s", at, h.where(fakePID))
	}
}

func TestOpenOnCgroup2(t *testing.T) {
	for _, c := range []struct {
		name   string
		uid    int
		set    func(*fakeHost)
		where  string
		groups map[string][]int // those that hold processes afterwards
	}{
		{
			name: "moves the whole delegated scope into a leaf, strangers too", uid: 1001,
			set: func(h *fakeHost) {
				withScope(h, true)
				h.groups[scope].procs = append(h.groups[scope].procs, 77)
				h.parents[77] = 1
			},
			where: scope, groups: map[string][]int{scope + "/" + LeafName: {90, fakePID, 77}},
		}, {
			name: "does not stay in a scope that is not marked, where an OOM kill would end the whole job", uid: 1001,
			set:    func(h *fakeHost) { withScope(h, false) },
			where:  "/user.slice/user-1001.slice/user@1001.service/app.slice",
			groups: map[string][]int{scope: {90, fakePID}},
		}, {
			name: "moves our own job in an unmarked scope if there is nothing above", uid: 1001,
			set: func(h *fakeHost) {
				withScope(h, false)
				onlyScope(h)
				h.groups[scope].procs = append(h.groups[scope].procs, 91)
				h.parents[91] = 90 // our sibling
			},
			where: scope, groups: map[string][]int{scope + "/" + LeafName: {90, fakePID, 91}},
		}, {
			name: "a second run in the same scope finds itself in the leaf and goes up one", uid: 1001,
			set: func(h *fakeHost) {
				withScope(h, true)
				h.groups[scope].procs = nil
				h.groups[scope].on = []string{"memory", "pids"}
				h.add(scope+"/"+LeafName, 1001, "", 90, fakePID)
			},
			where: scope, groups: map[string][]int{scope + "/" + LeafName: {90, fakePID}},
		}, {
			name: "root in a service that nobody delegated goes to the top and moves nobody", uid: 0,
			set: withService, where: "/", groups: map[string][]int{service: {50, fakePID}},
		}, {
			name: "root in a delegated scope stays in it", uid: 0,
			set:   func(h *fakeHost) { withService(h); h.groups[service].delegated = true },
			where: service, groups: map[string][]int{service + "/" + LeafName: {50, fakePID}},
		}, {
			name: "root in a group that somebody made stays below its caps", uid: 0,
			set:   func(h *fakeHost) { h.add("/docker", 0, "memory pids"); h.add("/docker/ab", 0, "", 1, fakePID) },
			where: "/docker/ab", groups: map[string][]int{"/docker/ab/" + LeafName: {1, fakePID}},
		}, {
			name: "root in such a group with strangers in it moves nobody", uid: 0,
			set: func(h *fakeHost) {
				h.add("/jobs", 0, "", 77, fakePID)
				h.parents[77], h.parents[76] = 76, 1
			},
			where: "/", groups: map[string][]int{"/jobs": {77, fakePID}},
		}, {
			name: "root at the top of the hierarchy stays there and moves nobody", uid: 0,
			set: func(h *fakeHost) {
				h.groups["/"].procs = []int{1, fakePID}
				h.groups["/"].on = nil
			},
			where: "/", groups: map[string][]int{"/": {1, fakePID}},
		}, {
			name: "a container with a control group namespace of its own empties its top", uid: 0,
			set: func(h *fakeHost) {
				h.namespace = true
				h.groups["/"].procs = []int{1, fakePID, 60}
				h.groups["/"].on = nil
				h.parents[60] = 0 // came in by exec: no parent that we can see
			},
			where: "/", groups: map[string][]int{"/" + LeafName: {1, fakePID, 60}},
		}, {
			name: "a part that root made ours by hand", uid: 1001,
			set: func(h *fakeHost) {
				h.add("/steps-of-1001", 1001, "", 90, fakePID)
				h.parents[90], h.parents[fakePID] = 80, 90
				h.parents[80] = 1
			},
			where: "/steps-of-1001", groups: map[string][]int{"/steps-of-1001/" + LeafName: {90, fakePID}},
		}, {
			name: "no CPU controller is no obstacle", uid: 1001,
			set: func(h *fakeHost) {
				withScope(h, true)
				h.groups[scope].owner = 1001
				h.refuse["cpu.max"] = syscall.EINVAL
			},
			where: scope, groups: map[string][]int{scope + "/" + LeafName: {90, fakePID}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(c.uid)
			c.set(h)
			m, err := Open(h.config())
			if err != nil {
				t.Fatal(err)
			}
			if got := h.inHierarchy(m.Where()); got != c.where {
				t.Errorf("groups are made in %s, want %s", got, c.where)
			}
			got := map[string][]int{}
			for p, pids := range h.shape() {
				if len(pids) > 0 {
					got[p] = pids
				}
			}
			if d := cmp.Diff(c.groups, got, cmpopts.SortSlices(func(a, b int) bool { return a < b })); d != "" {
				t.Errorf("processes are in (-want +got):\n%s", d)
			}
			if m.Kind() != Kind2 {
				t.Errorf("kind is %s", m.Kind())
			}
		})
	}
}

func (h *fakeHost) inHierarchy(dirs []string) string {
	rel, _ := below(fakeMount, dirs[0])
	if rel == "." {
		rel = ""
	}
	return "/" + rel
}

func TestOpenLeavesNothingBehindWhereItFails(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*fakeHost)
	}{
		{"the cap cannot be written", func(h *fakeHost) { h.refuse["memory.max"] = syscall.EPERM }},
		{"the memory cap reads back as another number", func(h *fakeHost) { h.lie["memory.max"] = "max\n" }},
		{"the pids cap reads back as another number", func(h *fakeHost) { h.lie["pids.max"] = "81\n" }},
		{"swap cannot be switched off", func(h *fakeHost) { h.lie["memory.swap.max"] = "max\n" }},
		{"a group cannot be killed as a whole", func(h *fakeHost) { h.lie["memory.oom.group"] = "0\n" }},
		{"controllers cannot be handed down", func(h *fakeHost) { h.refuse["cgroup.subtree_control"] = syscall.EBUSY }},
		{"the counters cannot be understood", func(h *fakeHost) { h.lie["pids.events"] = "max many\n" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(1001)
			withScope(h, true)
			onlyScope(h)
			before := h.shape()
			c.set(h)
			_, err := Open(h.config())
			r := refusal(t, err)
			if !strings.Contains(r.Cause, scope) {
				t.Errorf("the cause does not name our group: %s", r.Cause)
			}
			if d := cmp.Diff(before, h.shape(), cmpopts.SortSlices(func(a, b int) bool { return a < b }), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("groups and processes (-before +after):\n%s", d)
			}
		})
	}
}

func TestRefusalNamesCauseAndFix(t *testing.T) {
	const (
		run    = "untrusted-steps run steps.yml"
		asRoot = `sudo "$(command -v untrusted-steps)" run steps.yml`
	)
	for _, c := range []struct {
		name  string
		uid   int
		set   func(*fakeHost)
		xdg   string
		cause string
		fix   []string // must occur, in this order
	}{
		{
			name: "a user in a system service, with a user manager", uid: 1001, xdg: "/run/user/1001",
			set: func(h *fakeHost) {
				withService(h)
				h.paths["/run/systemd/system"] = struct{}{}
				h.sockets["/run/user/1001/systemd/private"] = struct{}{}
			},
			cause: "nothing of it is delegated to user 1001, which runs in " + service,
			fix:   []string{"systemd-run --user --scope --quiet -p Delegate=yes -- " + run, asRoot},
		}, {
			name: "a user manager that the environment does not name", uid: 1001, xdg: "/tmp",
			set: func(h *fakeHost) {
				withService(h)
				h.paths["/run/systemd/system"] = struct{}{}
				h.sockets["/run/user/1001/systemd/private"] = struct{}{}
			},
			cause: "delegated to user 1001",
			fix:   []string{"export XDG_RUNTIME_DIR=/run/user/1001", "systemd-run --user --scope --quiet -p Delegate=yes -- " + run},
		}, {
			name: "systemd, but no user manager", uid: 1001,
			set: func(h *fakeHost) { withService(h); h.paths["/run/systemd/system"] = struct{}{} },
			fix: []string{"sudo loginctl enable-linger 1001", "export XDG_RUNTIME_DIR=/run/user/1001",
				"systemd-run --user --scope --quiet -p Delegate=yes -- " + run},
		}, {
			name: "a terminal with more in it than our job", uid: 1001, xdg: "/run/user/1001",
			set: func(h *fakeHost) {
				withScope(h, false)
				onlyScope(h)
				h.groups[scope].procs = append(h.groups[scope].procs, 77)
				h.parents[77] = 1
				h.paths["/run/systemd/system"] = struct{}{}
				h.sockets["/run/user/1001/systemd/private"] = struct{}{}
			},
			cause: "it has a process that is not of our job (77)",
			fix:   []string{"systemd-run --user --scope --quiet -p Delegate=yes -- " + run},
		}, {
			name: "a user on a host without systemd", uid: 1001,
			set: withService,
			fix: []string{"sudo mkdir -p /sys/fs/cgroup/steps-of-1001", "echo $$ | sudo tee /sys/fs/cgroup/steps-of-1001/cgroup.procs", run},
		}, {
			name: "a container with a read-only mount", uid: 0,
			set:   func(h *fakeHost) { h.namespace, h.readOnly = true, true; h.paths["/.dockerenv"] = struct{}{} },
			cause: "read-only",
			fix:   container.Fix(container.Who{Root: true}, run),
		}, {
			name: "a user in a writable container", uid: 1001,
			set:   func(h *fakeHost) { h.namespace = true; h.paths["/run/.containerenv"] = struct{}{} },
			cause: "delegated to user 1001",
			fix: append([]string{"(cd /sys/fs/cgroup && sudo chown 1001 . cgroup.procs cgroup.threads cgroup.subtree_control)", run},
				container.Fix(container.Who{}, run)...),
		}, {
			name: "a user in a pod", uid: 1001,
			set:   func(h *fakeHost) { h.namespace = true; h.paths["/var/run/secrets/kubernetes.io"] = struct{}{} },
			cause: "delegated to user 1001",
			fix:   container.PodGroups(),
		}, {
			name: "a user in a container that left no mark of one", uid: 1001,
			set:   func(h *fakeHost) { h.namespace = true },
			cause: "delegated to user 1001",
			fix:   []string{"(cd /sys/fs/cgroup && sudo chown 1001 ."},
		}, {
			name: "a user in a container with a read-only mount", uid: 1001,
			set:   func(h *fakeHost) { h.namespace, h.readOnly = true, true; h.paths["/.dockerenv"] = struct{}{} },
			cause: "read-only",
			fix:   container.Fix(container.Who{}, run),
		}, {
			name: "cgroup1 and no root", uid: 1001,
			set: func(h *fakeHost) {
				h.files["/proc/self/mountinfo"] = "1 0 0:1 / /c/memory rw - cgroup cgroup rw,memory\n2 0 0:2 / /c/pids rw - cgroup cgroup rw,pids\n"
				h.files["/proc/self/cgroup"] = "2:pids:/\n1:memory:/jobs\n"
			},
			cause: "nothing of it is given to user 1001, which runs in /jobs",
			fix:   []string{asRoot, "# or, with systemd, start the kernel with cgroup2 only: add systemd.unified_cgroup_hierarchy=1"},
		}, {
			name: "a kernel started without the memory controller", uid: 0,
			set: func(h *fakeHost) {
				h.files["/proc/cgroups"] = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t1\t0\nmemory\t0\t1\t0\npids\t0\t1\t1\n"
				h.lie["cgroup.controllers"] = "cpu pids\n"
			},
			cause: "started without the control group controller memory",
			fix:   []string{"cgroup_enable=memory"},
		}, {
			name: "no control groups at all", uid: 0,
			set:   func(h *fakeHost) { h.files["/proc/self/mountinfo"] = "1 0 0:1 / / rw - ext4 /dev/a rw\n" },
			cause: "no control group file system is mounted",
			fix:   []string{"sudo mount -t cgroup2 none /sys/fs/cgroup"},
		}, {
			name: "a root's service that may not write", uid: 0,
			set: func(h *fakeHost) {
				withService(h)
				h.readOnly = true
				h.paths["/run/systemd/system"] = struct{}{}
			},
			cause: "ProtectControlGroups=",
			fix:   []string{"systemd-run --scope --quiet -p Delegate=yes -- " + run},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(c.uid)
			c.set(h)
			cfg := h.config()
			cfg.XDGRuntimeDir = c.xdg
			_, err := Open(cfg)
			r := refusal(t, err)
			if !strings.Contains(r.Cause, c.cause) {
				t.Errorf("cause:\n%s\nshould have:\n%s", r.Cause, c.cause)
			}
			rest := r.Fix
			for _, want := range c.fix {
				i := 0
				for i < len(rest) && !strings.HasPrefix(rest[i], want) {
					i++
				}
				if i == len(rest) {
					t.Fatalf("fix:\n%s\nshould have, in this order:\n%s", strings.Join(r.Fix, "\n"), strings.Join(c.fix, "\n"))
				}
				rest = rest[i+1:]
			}
		})
	}
}

// A group that vanished while a file of it was open tells nothing of the kernel:
// not that it cannot count, nor cap swap, nor that this is the top of everything.
func TestAVanishedGroupIsNoOldKernel(t *testing.T) {
	for _, file := range []string{"memory.events", "pids.events", "memory.peak", "pids.peak", "memory.swap.max"} {
		h := newFakeHost(0)
		h.unread = map[string]error{file: syscall.ENODEV}
		if m, err := Open(h.config()); err == nil {
			t.Errorf("%s: taken for what an old kernel lacks: %v", file, m.Unseen())
		}
	}
	h := newFakeHost(0)
	h.unread = map[string]error{"cgroup.type": syscall.ENODEV}
	s := search{k: h}
	if s.realRoot(spot{dir: fakeMount, path: "/"}) {
		t.Error("taken for the root of the whole hierarchy")
	}

	// Nor is one that is not there any more when it is looked at.
	taken := &takenAway{newFakeHost(0)}
	cfg := taken.config()
	cfg.kernel = taken
	if m, err := Open(cfg); err == nil {
		t.Errorf("taken for an old kernel: %v", m.Unseen())
	}
}

// takenAway is a host on which somebody removes each group of ours as it is first
// looked at for what it counts.
type takenAway struct{ *fakeHost }

func (h *takenAway) read(file string) (string, error) {
	if path.Base(file) == "memory.events" {
		_ = h.rmdir(path.Dir(file))
	}
	return h.fakeHost.read(file)
}
