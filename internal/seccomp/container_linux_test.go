package seccomp

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	docker "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// containerFile is the copy for people who have no binary at hand.
const containerFile = "../../examples/container/seccomp.json"

func TestContainerFilterIsInTheExamples(t *testing.T) {
	got, err := Container()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(containerFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(containerFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-file +program; -update rewrites it):\n%s", containerFile, diff)
	}
	// Read as containerd reads it, which takes no word it does not know for a reason
	// to stop: so there must be none.
	d := json.NewDecoder(bytes.NewReader(got))
	d.DisallowUnknownFields()
	var p specs.LinuxSeccomp
	if err := d.Decode(&p); err != nil {
		t.Errorf("the form is not the runtime's own: %v", err)
	}
}

// TestContainerFilter holds it to what Docker itself makes of its profile for a
// container with that capability: beyond that there are boxCalls, and the calls of
// the other architecture.
func TestContainerFilter(t *testing.T) {
	p, err := container(docker.DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	ours := answers(p)
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: containerCaps}}}
	theirs, err := docker.GetDefaultProfile(spec)
	if err != nil {
		t.Fatal(err)
	}
	base := answers(theirs)
	native, err := architectureOf(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := native.calls()
	if err != nil {
		t.Fatal(err)
	}
	for name, rules := range base {
		if slices.Contains(boxCalls, name) {
			continue
		}
		if diff := cmp.Diff(rules, ours[name]); diff != "" {
			t.Errorf("%s (-Docker's +ours)\n%s", name, diff)
		}
	}
	for name := range ours {
		_, known := calls[name]
		if _, ok := base[name]; !ok && known && !slices.Contains(boxCalls, name) {
			t.Errorf("%s is let through, which Docker's default keeps from a container, and no box needs it", name)
		}
	}
	if p.DefaultAction != theirs.DefaultAction || *p.DefaultErrnoRet != *theirs.DefaultErrnoRet {
		t.Errorf("all else is answered %s %d", p.DefaultAction, *p.DefaultErrnoRet)
	}
	for _, a := range []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64} {
		if !slices.Contains(p.Architectures, a) {
			t.Errorf("it has not the architecture %s", a)
		}
	}
}

// answers are the rules of each call.
func answers(p *specs.LinuxSeccomp) map[string][]specs.LinuxSyscall {
	out := map[string][]specs.LinuxSyscall{}
	for _, s := range p.Syscalls {
		for _, n := range s.Names {
			one := specs.LinuxSyscall{Action: s.Action, ErrnoRet: s.ErrnoRet}
			if len(s.Args) > 0 {
				one.Args = s.Args
			}
			out[n] = append(out[n], one)
		}
	}
	return out
}

// TestBoxCalls: each is let through whatever its arguments, and is one that
// Docker's default does not; what no box needs to make is not among them.
func TestBoxCalls(t *testing.T) {
	p, err := container(docker.DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	ours := answers(p)
	onBoth(t, func(t *testing.T, m machine) {
		kernel, err := kernelVersion(oldest)
		if err != nil {
			t.Fatal(err)
		}
		base, err := resolve(docker.DefaultProfile(), m.arch, kernel, m.calls)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range BoxCalls() {
			if diff := cmp.Diff([]specs.LinuxSyscall{{Action: specs.ActAllow}}, ours[n]); diff != "" {
				t.Errorf("%s (-want +got)\n%s", n, diff)
			}
			if base.rules[n].equal(always(allow)) {
				t.Errorf("%s is let through by Docker's default as it is", n)
			}
		}
	})
	for _, n := range []string{"setns", "bpf", "init_module", "finit_module", "kexec_load", "reboot", "swapon", "perf_event_open", "open_by_handle_at",
		"keyctl", "add_key", "userfaultfd", "io_uring_setup", "iopl", "settimeofday", "quotactl", "fanotify_init", "syslog", "acct"} {
		if got, ok := ours[n]; ok {
			t.Errorf("%s is let through: %v", n, got)
		}
	}
}

func TestContainerProfilesThatAreNotUnderstoodAreRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*docker.Seccomp)
		want string
	}{
		{"one that allows by default", func(p *docker.Seccomp) { p.DefaultAction = specs.ActAllow }, "default action"},
		{"an action other than to allow and to refuse", func(p *docker.Seccomp) {
			p.Syscalls = append(p.Syscalls, &docker.Syscall{LinuxSyscall: specs.LinuxSyscall{Names: []string{"read"}, Action: specs.ActTrace}})
		}, "is not understood"},
	} {
		p := docker.DefaultProfile()
		c.edit(p)
		if _, err := container(p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
