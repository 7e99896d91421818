package seccomp

import (
	"encoding/json"
	"fmt"
	"slices"

	docker "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// boxCalls are what a box is made with and Docker's default keeps from a
// container: each was taken away alone, and then no engine could build a box or
// a step had to work on a copy of the workspace. clone3 is how a process is
// born in its control group on cgroup2.
var boxCalls = []string{
	"clone", "clone3", "unshare",
	"mount", "umount2", "pivot_root",
	"open_tree", "move_mount", "mount_setattr",
	"fsopen", "fsconfig", "fsmount",
	"sethostname",
}

// BoxCalls lists the system calls that a container's filter has to let through,
// beyond Docker's default, for boxes to be made in the container.
func BoxCalls() []string { return slices.Clone(boxCalls) }

// containerCaps are the capabilities of Docker's default that its profile looks
// at: what works in any container must go on working in this one.
var containerCaps = []string{"CAP_SYS_CHROOT"}

// oldest is the oldest kernel on which boxes can be made.
const oldest = "5.12"

// Container is the filter for a container in which boxes are to be made:
// Docker's default and boxCalls, for both architectures.
//
// It is in the form of the OCI runtime, with no condition left but those on
// arguments. Docker's own form has clauses for capabilities as well, which
// containerd does not know and skips: read by it, a call that is allowed to
// CAP_SYS_ADMIN would be allowed to everybody.
func Container() ([]byte, error) {
	p, err := container(docker.DefaultProfile())
	if err != nil {
		return nil, fmt.Errorf("write a container's system call filter: %w", err)
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write a container's system call filter: %w", err)
	}
	return append(text, '\n'), nil
}

func container(base *docker.Seccomp) (*specs.LinuxSeccomp, error) {
	if base.DefaultAction != specs.ActErrno {
		return nil, fmt.Errorf("default action %s is not %s", base.DefaultAction, specs.ActErrno)
	}
	kernel, err := kernelVersion(oldest)
	if err != nil {
		return nil, err
	}
	out := &specs.LinuxSeccomp{DefaultAction: base.DefaultAction, DefaultErrnoRet: base.DefaultErrnoRet}
	for _, m := range base.ArchMap {
		if m.Arch == specs.ArchX86_64 || m.Arch == specs.ArchAARCH64 {
			out.Architectures = append(append(out.Architectures, m.Arch), m.SubArches...)
		}
	}
	free := BoxCalls()
	for _, s := range base.Syscalls {
		if !applies(s, amd64, kernel, containerCaps...) && !applies(s, arm64, kernel, containerCaps...) {
			continue
		}
		if s.Action != specs.ActAllow && s.Action != specs.ActErrno {
			return nil, fmt.Errorf("%v: action %s is not understood", s.Names, s.Action)
		}
		if s.Action == specs.ActAllow && len(s.Args) == 0 {
			free = append(free, s.Names...)
			continue
		}
		one := s.LinuxSyscall
		one.Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return slices.Contains(boxCalls, n) })
		if len(one.Names) > 0 {
			out.Syscalls = append(out.Syscalls, one)
		}
	}
	slices.Sort(free)
	all := specs.LinuxSyscall{Names: slices.Compact(free), Action: specs.ActAllow}
	out.Syscalls = append([]specs.LinuxSyscall{all}, out.Syscalls...)
	return out, nil
}
