package native

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/native/build"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

func testView() rootfs.View {
	return rootfs.View{
		Binds: []string{"/etc/localtime", "/etc/ssl/certs", "/opt/tools", "/usr"},
		Real:  map[string]string{"/etc/localtime": "/data/zone"},
		Links: map[string]string{"/lib": "usr/lib", "/bin": "usr/bin"},
		Files: map[string]string{"/etc/passwd": "p", "/etc/hosts": "h\n", rootfs.ExtraCA: "ca"},
	}
}

// A setup is compared whole: the order in which a box is built is what keeps our
// own files out of the folders that a step names.
func TestPlan(t *testing.T) {
	view := []build.Mount{
		{Source: "/usr", Target: "/usr", ReadOnly: true},
		{Source: "/data/zone", Target: "/etc/localtime", ReadOnly: true},
		{Source: "/opt/tools", Target: "/opt/tools", ReadOnly: true},
		{Source: "/etc/ssl/certs", Target: "/etc/ssl/certs", ReadOnly: true},
	}
	links := []build.Link{{Path: "/bin", Target: "usr/bin"}, {Path: "/lib", Target: "usr/lib"}}
	files := []build.File{{Path: "/etc/hosts", Text: "h\n"}, {Path: "/etc/passwd", Text: "p"}, {Path: rootfs.ExtraCA, Text: "ca"}}
	work := build.Mount{Source: "/w", Target: "/workspace", Mapped: true}
	usual := []box.Tmpfs{{Target: "/step/home", Bytes: 2}, {Target: "/tmp", Bytes: 1}}
	home := build.Mount{Target: "/step/home", Bytes: 2, Mode: 0o755, Named: "tmpfs"}
	tmp := build.Mount{Target: "/tmp", Bytes: 1, Mode: 0o1777, Named: "tmpfs"}
	for _, tc := range []struct {
		sentence string
		spec     box.Spec
		want     build.Setup
	}{
		{"image host is the host's parts, then links and files of ours, then what is the step's",
			box.Spec{ID: "a.b", Workspace: "/w", Tmpfs: usual, ShmBytes: 3, Script: &box.Script{Name: "script.sh", Text: "x"}},
			build.Setup{Hostname: "box-a-b", View: view, Links: links, Files: append(files[:3:3], build.File{Path: "/step/script.sh", Text: "x"}), ShmBytes: 3, Own: []build.Mount{work, tmp, home}}},
		{"mounts over our files, our links and the host's parts are the step's, and come last",
			box.Spec{ID: "a", Workspace: "/w", ShmBytes: 3, Network: box.NetworkHost,
				Mounts: []box.Mount{{Source: "/m/p", Target: "/etc/passwd", ReadOnly: true}, {Source: "/m/b", Target: "/bin", ReadOnly: true}, {Source: "/m/e", Target: "/etc"}}},
			build.Setup{Hostname: "box-a", HostNetwork: true, View: view, Links: links[1:], Files: files, ShmBytes: 3, Own: []build.Mount{
				work,
				{Source: "/m/b", Target: "/bin", ReadOnly: true, Mapped: true, Named: "mounts"},
				{Source: "/m/e", Target: "/etc", Mapped: true, Named: "mounts"},
				{Source: "/m/p", Target: "/etc/passwd", ReadOnly: true, Mapped: true, Named: "mounts", Inside: "/etc"},
			}}},
		{"an outer place comes before an inner one, and in what is the host's nothing is made",
			box.Spec{ID: "a", Workspace: "/w", ShmBytes: 3,
				Mounts: []box.Mount{{Source: "/m/x", Target: "/mem/x/y"}, {Source: "/m/in", Target: "/m/in"}, {Source: "/m", Target: "/m/"}, {Source: "/m/w", Target: "/workspace/w"}},
				Tmpfs:  []box.Tmpfs{{Target: "/m/in/t", Bytes: 5}, {Target: "/usr/foo", Bytes: 4}, {Target: "/mem", Bytes: 6}}},
			build.Setup{Hostname: "box-a", View: view, Links: links, Files: files, ShmBytes: 3, Own: []build.Mount{
				work,
				{Source: "/m", Target: "/m", Mapped: true, Named: "mounts"},
				{Target: "/mem", Bytes: 6, Mode: 0o755, Named: "tmpfs"},
				{Source: "/m/in", Target: "/m/in", Mapped: true, Named: "mounts", Inside: "/m"},
				{Source: "/m/w", Target: "/workspace/w", Mapped: true, Named: "mounts", Inside: "/workspace"},
				{Target: "/usr/foo", Bytes: 4, Mode: 0o755, Named: "tmpfs", Inside: "/usr"},
				{Source: "/m/x", Target: "/mem/x/y", Mapped: true, Named: "mounts"},
				{Target: "/m/in/t", Bytes: 5, Mode: 0o755, Named: "tmpfs", Inside: "/m/in"},
			}}},
		{"an image of its own is shown alone, with what its network needs, and takes the blame for a missing /tmp",
			box.Spec{ID: "a", Workspace: "/w", Tmpfs: usual, ShmBytes: 3, Root: box.Root{Kind: box.RootDir, Dir: "/img"}, Hosts: []string{"127.0.0.2 x"}, Toolchain: []string{"/opt/more"},
				Mounts: []box.Mount{{Source: "/m/e", Target: "/etc"}}},
			build.Setup{Hostname: "box-a", Overlay: true, View: []build.Mount{{Source: "/img", Target: "/", ReadOnly: true, Mapped: true, Named: "image"}}, ShmBytes: 3,
				Files: []build.File{{Path: "/etc/hosts", Text: "h\n127.0.0.2 x\n"}, {Path: rootfs.ExtraCA, Text: "ca"}}, Own: []build.Mount{
					work,
					{Source: "/m/e", Target: "/etc", Mapped: true, Named: "mounts"},
					{Target: "/tmp", Bytes: 1, Mode: 0o1777, Named: "image"},
					{Target: "/step/home", Bytes: 2, Mode: 0o755, Named: "image"},
				}}},
		{"what is protected is a folder of the workspace, and a profile is entered",
			box.Spec{ID: "a", Workspace: "/w", ShmBytes: 3, Protect: []string{"/workspace/.deps"}, AppArmor: "p"},
			build.Setup{Hostname: "box-a", View: view, Links: links, Files: files, ShmBytes: 3, Own: []build.Mount{{Source: "/w", Target: "/workspace", Mapped: true, Protect: []string{"/workspace/.deps"}}}, AppArmor: true}},
		{"a toolchain is shown unless it is shown already, and /dev/shm has a size whatever was asked",
			box.Spec{ID: "a", Workspace: "/w", Toolchain: []string{"/opt/more", "/usr/local/go"}},
			build.Setup{Hostname: "box-a", View: append(view[:3:3], build.Mount{Source: "/opt/more", Target: "/opt/more", ReadOnly: true}, view[3]), Links: links, Files: files, ShmBytes: box.DefaultShmBytes, Own: []build.Mount{work}}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := plan(tc.spec, testView())
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for i, m := range got.Own {
				for _, later := range got.Own[i+1:] {
					if box.Within(m.Target, later.Target) {
						t.Errorf("%s would hide %s", later.Target, m.Target)
					}
				}
			}
			b, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			var back build.Setup
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, back); diff != "" {
				t.Errorf("on the way to the child it changes (-parent +child)\n%s", diff)
			}
		})
	}
}

func TestSourcesAreThoseThatShowSomethingOfTheHost(t *testing.T) {
	s := build.Setup{View: []build.Mount{{Source: "/usr", Target: "/usr"}}, Own: []build.Mount{{Target: "/tmp", Bytes: 1}, {Source: "/w", Target: "/workspace"}}}
	want := []build.Mount{{Source: "/usr", Target: "/usr"}, {Source: "/w", Target: "/workspace"}}
	if diff := cmp.Diff(want, s.Sources()); diff != "" {
		t.Error(diff)
	}
}

func TestCheckNamesThePlaceThatCannotBe(t *testing.T) {
	e := &Engine{}
	for _, place := range []string{"/", "/proc", "/proc/x", "/sys", "/dev", "/dev/foo", "/dev/shm", "/step", "/step/x", "/a/../dev/x", "rel"} {
		for key, s := range map[string]box.Spec{"mounts: ": {Mounts: []box.Mount{{Source: "/a", Target: place}}}, "tmpfs: ": {Tmpfs: []box.Tmpfs{{Target: place, Bytes: 1}}}} {
			if err := e.Check(s); err == nil || !strings.HasPrefix(err.Error(), key) {
				t.Errorf("%s%s: %v", key, place, err)
			}
		}
	}
	for what, s := range map[string]box.Spec{
		"a mount over HOME":           {Mounts: []box.Mount{{Source: "/a", Target: box.HomeTarget}}},
		"a tmpfs without a bound":     {Tmpfs: []box.Tmpfs{{Target: "/tmp"}}},
		"a profile of kern":           {KernProfiles: []string{"vcpu:a"}},
		"a protected workspace":       {Protect: []string{"/workspace"}},
		"a protected folder upwards":  {Protect: []string{"/workspace/../etc"}},
		"a protected folder of a box": {Protect: []string{"/etc"}},
		"an address of IPv6":          {Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}},
	} {
		if e.Check(s) == nil {
			t.Errorf("%s is taken", what)
		}
	}
	good := box.Spec{CapDrop: []string{"ALL"}, Mounts: []box.Mount{{Source: "/a", Target: "/etc"}, {Source: "/a", Target: "/devs"}}, Tmpfs: []box.Tmpfs{{Target: box.HomeTarget, Bytes: 1}, {Target: "/usr/share", Bytes: 1}},
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}}
	if err := e.Check(good); err != nil {
		t.Error(err)
	}
}
