package limits

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMountinfo(t *testing.T) {
	text := `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro,relatime master:3 shared:4 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /mnt/a\040b rw - cgroup2 cgroup2 rw,nsdelegate
junk
`
	want := []mount{
		{root: "/docker/ab", point: "/sys/fs/cgroup/memory", readOnly: true, controllers: []string{"rw", "memory"}},
		{root: "/", point: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"rw", "cpu", "cpuacct"}},
		{root: "/", point: "/mnt/a b", v2: true},
	}
	if d := cmp.Diff(want, parseMountinfo(text), cmp.AllowUnexported(mount{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestMembership(t *testing.T) {
	got := parseMembership("5:cpu,cpuacct:/a:b\n4:memory:/x\n1:name=systemd:/u\n0::/v2\nbroken\n")
	want := membership{"cpu": "/a:b", "cpuacct": "/a:b", "memory": "/x", "name=systemd": "/u", "": "/v2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		name, root, group, dir string // dir empty: refused
	}{
		{"the whole hierarchy", "/", "/a/b", "/m/a/b"},
		{"its top", "/", "/", "/m"},
		{"a container's part, seen from outside", "/docker/ab", "/docker/ab", "/m"},
		{"below a container's part", "/docker/ab", "/docker/ab/x", "/m/x"},
		{"a part that only looks alike", "/docker/ab", "/docker/abc", ""},
		{"another part", "/docker/ab", "/other", ""},
		{"outside our namespace", "/", "/../other", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := mount{root: c.root, point: "/m"}.locate(c.group)
			if at.dir != c.dir || (err == nil) != (c.dir != "") {
				t.Errorf("got %q, %v; want %q", at.dir, err, c.dir)
			}
		})
	}
}

func TestGroupNamesNameTheirOwner(t *testing.T) {
	o := owner{world: world("boot", "pid:[1]", "time:[1]"), pid: 42, start: 4711}
	name := groupName(o, "4f1c", 3, "a-b.service")
	got, ok := parseName(name)
	if !ok || got != o {
		t.Fatalf("%s parses as %+v, %v", name, got, ok)
	}
	if strings.HasSuffix(name, ".service") {
		t.Errorf("%s looks like a unit", name)
	}
	for why, bad := range map[string]string{
		"not ours":            "kern-box-1",
		"the leaf":            LeafName,
		"no owner":            "untrusted-steps-x.box",
		"a pid with a sign":   strings.Replace(name, "-42-", "-+42-", 1),
		"a pid of zero":       strings.Replace(name, "-42-", "-0-", 1),
		"leading zeros":       strings.Replace(name, "-42-", "-042-", 1),
		"a short world":       strings.Replace(name, o.world, o.world[1:], 1),
		"no suffix":           strings.TrimSuffix(name, nameSuffix),
		"an empty id":         groupName(o, "4f1c", 3, ""),
		"a start not numeric": strings.Replace(name, "-4711-", "-x-", 1),
	} {
		if o, ok := parseName(bad); ok {
			t.Errorf("%s: %s parses as %+v", why, bad, o)
		}
	}
	if world("boot", "pid:[1]", "time:[1]") == world("boot", "pid:[2]", "time:[1]") {
		t.Error("another pid namespace is the same world")
	}
}

func TestProcStatIsNotFooledByAProgramName(t *testing.T) {
	got, err := parseStat("7 (x) Z 1 (y)) S 3 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999 0 0\n")
	if err != nil || got != (procStat{state: 'S', parent: 3, start: 999}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "7 (x) S 1", "7 x S 3 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999"} {
		if got, err := parseStat(bad); err == nil {
			t.Errorf("%q parses as %+v", bad, got)
		}
	}
}

func TestCapsOutOfBoundsAreRefused(t *testing.T) {
	page := int64(os.Getpagesize())
	for _, c := range []struct {
		name string
		caps Caps
		ok   bool
	}{
		{"none asked for", Caps{}, true},
		{"usual ones", Caps{MemoryBytes: 512 << 20, Pids: 256, CPUs: 1.5}, true},
		{"negative memory", Caps{MemoryBytes: -1}, false},
		{"less than a page, which the kernel makes 0", Caps{MemoryBytes: page - 1}, false},
		{"negative pids", Caps{Pids: -1}, false},
		{"more pids than a kernel has", Caps{Pids: maxPids}, false},
		{"not a number of CPUs", Caps{CPUs: math.NaN()}, false},
		{"infinitely many CPUs", Caps{CPUs: math.Inf(1)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.caps.check(); (err == nil) != c.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestFields(t *testing.T) {
	text := "low 0\noom_kill 3\noom_group_kill max\n"
	if n, err := field(text, "oom_kill"); n != 3 || err != nil {
		t.Errorf("oom_kill is %d, %v", n, err)
	}
	if n, err := field(text, "oom_group_kill"); n != math.MaxInt64 || err != nil {
		t.Errorf("oom_group_kill is %d, %v", n, err)
	}
	if n, err := field(text, "oom"); err == nil {
		t.Errorf("oom is %d, though there is no such line", n)
	}
}

func TestNothingIsCappedByNone(t *testing.T) {
	g := None()
	in, errIn := g.Contains(os.Getpid())
	stats, errStats := g.Stats()
	empty, errEmpty := g.Empty()
	if g.CgroupFD() != -1 || g.By() != "" || g.Enforced() != nil || in || !empty || stats != (Stats{}) {
		t.Errorf("fd %d, by %q, enforced %v, contains us %v, empty %v, %+v", g.CgroupFD(), g.By(), g.Enforced(), in, empty, stats)
	}
	for _, err := range []error{errIn, errStats, errEmpty, g.Join(1), g.ExcludeInit(), g.Kill(t.Context()), g.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return s
}
