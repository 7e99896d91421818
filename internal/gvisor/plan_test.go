package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

func aSpec() box.Spec {
	return box.Spec{
		ID: "a.b", Argv: []string{"true"}, Workspace: "/src/ws", Script: &box.Script{Name: "script.sh", Text: "true"},
		Mounts: []box.Mount{{Source: "/data", Target: "/data"}, {Source: "/cache", Target: "/workspace/cache", ReadOnly: true}},
		Tmpfs:  []box.Tmpfs{{Target: "/tmp", Bytes: 1 << 20}, {Target: "/data/scratch", Bytes: 1 << 20}, {Target: "/tmp/in", Bytes: 1 << 20}},
	}
}

// docs/engines.md has the numbers of threads, which limits.Group sets besides those
// that are there and one for each process.
func TestThreadsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	each := []string{"none", "one", "two", "three", "four", "five"}[threads(1)-threads(0)+1]
	if want := fmt.Sprintf("when the step starts may come %d and %s for each of `pids`", threads(0), each); !strings.Contains(string(doc), want) {
		t.Errorf("docs/engines.md does not say %q", want)
	}
}

func TestPlan(t *testing.T) {
	v := rootfs.View{Binds: []string{"/usr"}, Links: map[string]string{"/bin": "usr/bin", "/data": "elsewhere"}, Files: map[string]string{"/etc/passwd": "x"}}
	p := plan(aSpec(), v, "/self")
	want := []mount{
		{Target: "/workspace", Source: "/src/ws", Mapped: true, At: "r", Base: "r", Rel: "/workspace"},
		{Target: "/data", Source: "/data", Mapped: true, Named: "mounts", At: "m/0", Base: "r", Rel: "/data"},
		{Target: "/tmp", Named: "tmpfs", At: "r", Base: "r", Rel: "/tmp", Bytes: 1 << 20, Mode: 0o1777},
		{Target: "/workspace/cache", Source: "/cache", ReadOnly: true, Mapped: true, Named: "mounts", At: "m/1", Inside: "/workspace", Base: "r", Rel: "/workspace/cache"},
		{Target: "/data/scratch", Named: "tmpfs", At: "r", Inside: "/data", Base: "m/0", Rel: "scratch", Bytes: 1 << 20, Mode: 0o755},
		{Target: "/tmp/in", Named: "tmpfs", At: "r", Bytes: 1 << 20, Mode: 0o755}, // its place is made where /tmp is
	}
	if diff := cmp.Diff(want, p.Own); diff != "" {
		t.Errorf("own (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]pair{{"/bin", "usr/bin"}}, p.Links); diff != "" {
		t.Errorf("a link of ours stays where the step mounts something (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]mount{{Source: "/usr", Target: "/usr", ReadOnly: true}, {Source: "/self", Target: box.InitTarget, ReadOnly: true, Mapped: true}}, p.View); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
}

func TestBundle(t *testing.T) {
	s := aSpec()
	p := plan(s, rootfs.View{}, "/self")
	text, err := bundle(s, p, []int{unix.CAP_CHOWN}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var c specs.Spec
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if !c.Process.NoNewPrivileges || len(c.Process.Capabilities.Inheritable)+len(c.Process.Capabilities.Ambient) != 0 {
		t.Errorf("the first process: %+v", c.Process)
	}
	if slices.Contains(c.Process.Capabilities.Bounding, "CAP_NET_RAW") || !slices.Contains(c.Process.Capabilities.Bounding, "CAP_CHOWN") {
		t.Errorf("capabilities %q", c.Process.Capabilities.Bounding)
	}
	at := map[string]specs.Mount{}
	for _, m := range c.Mounts {
		at[m.Destination] = m
	}
	if m := at["/workspace/cache"]; m.Source != "/m/1" || !slices.Contains(m.Options, "ro") {
		t.Errorf("a read-only mount: %+v", m)
	}
	if m := at["/data"]; m.Source != "/m/0" || !slices.Contains(m.Options, "rw") {
		t.Errorf("a writable mount: %+v", m)
	}
	if _, own := at["/workspace"]; own {
		t.Error("the workspace is a mount of its own, which the box's kernel would ask about each file each time")
	}
	if m := at["/tmp"]; m.Type != "tmpfs" || !slices.Contains(m.Options, "size=1048576") || !slices.Contains(m.Options, "mode=1777") {
		t.Errorf("/tmp: %+v", m)
	}
	for _, m := range c.Mounts {
		if m.Type == "bind" && !strings.HasPrefix(m.Source, "/m/") && m.Source != "/d" {
			t.Errorf("%s shows %s", m.Destination, m.Source)
		}
	}
}

func TestExpressible(t *testing.T) {
	for sentence, s := range map[string]box.Spec{
		"a tmpfs without a size":       {Tmpfs: []box.Tmpfs{{Target: "/tmp"}}},
		"a mount over /proc":           {Mounts: []box.Mount{{Source: "/x", Target: "/proc/x"}}},
		"a mount in our own folder":    {Mounts: []box.Mount{{Source: "/x", Target: "/step/x"}}},
		"a script in another folder":   {Script: &box.Script{Name: "../x"}},
		"a script over our program":    {Script: &box.Script{Name: "init"}},
		"a mount at no absolute place": {Mounts: []box.Mount{{Source: "/x", Target: "x"}}},
	} {
		if err := expressible(s); err == nil {
			t.Errorf("%s is accepted", sentence)
		}
	}
	if err := expressible(aSpec()); err != nil {
		t.Error(err)
	}
}

func TestKeepable(t *testing.T) {
	got := keepable([]int{unix.CAP_CHOWN, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE})
	if !slices.Equal(got, []int{unix.CAP_CHOWN, unix.CAP_NET_BIND_SERVICE}) {
		t.Errorf("%v: with the others a step becomes the first process's id, and ends it", got)
	}
}

func TestPlatform(t *testing.T) {
	if got, err := platformOf(""); err != nil || got != systrap {
		t.Errorf("%q %v", got, err)
	}
	if _, err := platformOf("ptrace"); err == nil {
		t.Error("an unknown platform is accepted")
	}
	st, err := os.Stat("/dev/kvm")
	if _, perr := platformOf(kvm); err != nil && perr == nil {
		t.Error("kvm is accepted where there is none")
	} else if err == nil && os.Geteuid() == 0 && st.Mode().Perm()&0o006 != 0o006 && (perr == nil || !strings.Contains(perr.Error(), "chmod o+rw /dev/kvm")) {
		t.Errorf("kvm that boxes of root cannot open: %v", perr)
	}
}

func TestGoEnviron(t *testing.T) {
	got := goEnviron([]string{"GOFLAGS=-tags=x", "GOPROXY=direct", "GOBIN=/x", "GOAMD64=v4"})
	if !slices.Contains(got, "GOPROXY=direct") || !slices.Contains(got, "GOFLAGS=") || !slices.Contains(got, "GOAMD64=v1") ||
		slices.ContainsFunc(got, func(kv string) bool { return strings.HasPrefix(kv, "GOBIN=") || kv == "GOAMD64=v4" }) {
		t.Errorf("%q", got)
	}
}
