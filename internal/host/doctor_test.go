package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// fake is a host in memory. The zero value of a field is a host on which that
// works.
type fake struct {
	uid     int
	env     map[string]string
	files   map[string]string
	paths   []string // that exist
	sockets []string // that answer
	tries   map[string]Answer
	folders map[string]Folder
	limits  error
	kind    string // of control groups
	manager string // the folder of a user manager that answers
	account string
	sudo    error
	adds    bool  // --host-setup auto would do
	boxes   error // of engine native
}

func worked() Answer { return Answer{Done: []Op{{What: "start"}}, Label: "unconfined"} }

func failing(what string, errno syscall.Errno, label string) Answer {
	return Answer{Done: []Op{{What: "be root of it"}, {What: what, Errno: errno}}, Label: label}
}

func (h fake) machine() Machine {
	return Machine{
		UID: h.uid, Root: h.uid == 0,
		Getenv: func(n string) string { return h.env[n] },
		Read: func(p string) (string, error) {
			if text, ok := h.files[p]; ok {
				return text, nil
			}
			return "", fs.ErrNotExist
		},
		Exists: func(p string) bool { return slices.Contains(h.paths, p) },
		Dial: func(s string) error {
			if slices.Contains(h.sockets, s) {
				return nil
			}
			return syscall.ECONNREFUSED
		},
		Try: func(_ context.Context, t Trial) Answer {
			if a, ok := h.tries[t.What]; ok {
				return a
			}
			return worked()
		},
		Folder: func(_ context.Context, dir string) Folder {
			if f, ok := h.folders[dir]; ok {
				return f
			}
			return Folder{Type: "ext4", FreeBytes: 50 << 30, FreeFiles: 1 << 20}
		},
		Limits: func(context.Context) (string, []string, error) { return h.kind, []string{"/sys/fs/cgroup/x"}, h.limits },
		Manager: func() (string, bool) {
			return h.manager, h.manager != "" && h.env["XDG_RUNTIME_DIR"] == h.manager
		},
		Account: func() string { return h.account },
		Adds:    func(context.Context) bool { return h.adds },
		Sudo:    func(context.Context) error { return h.sudo },
	}
}

const (
	runnerWork = "/home/runner/work/repo"
	workspace  = runnerWork + "/repo"
	temp       = "/home/runner/work/_temp"
)

// hosted is a hosted runner with everything that it has and nothing that it lacks.
func hosted(kernel string) fake {
	return fake{
		uid: 1001, kind: limits.Kind2, manager: "/run/user/1001", account: "runner",
		env: map[string]string{"GITHUB_ACTIONS": "true", "RUNNER_ENVIRONMENT": "github-hosted", "HOME": "/home/runner", "USER": "runner",
			"XDG_RUNTIME_DIR": "/run/user/1001"},
		files:   map[string]string{"/proc/sys/kernel/osrelease": kernel + "\n", appArmorSetting: "1\n", maxNamespaces: "63000\n", selfStatus: "Name:\tx\nSeccomp:\t0\n"},
		paths:   []string{"/run/systemd/system", lingerFolder + "runner"},
		sockets: []string{"/run/docker.sock"},
	}
}

// restrictedHost is what AppArmor makes of a user namespace on Ubuntu.
func restrictedHost(h fake) fake {
	h.tries = map[string]Answer{
		tryInside:  failing("make mounts private", syscall.EACCES, "unprivileged_userns"),
		tryOwnMap:  {Start: syscall.EPERM},
		tryOverlay: failing("mount an overlay", syscall.EACCES, "unprivileged_userns"),
	}
	h.boxes = errors.New("make private /: permission denied")
	return h
}

// refused is the refusal of limits for a place, as that package words it.
func refused(cause string, fix ...string) error { return &limits.Refusal{Cause: cause, Fix: fix} }

func in(h fake, env map[string]string) fake {
	h.env = maps.Clone(h.env)
	maps.Copy(h.env, env)
	return h
}

// blocked is a container that may make no namespaces.
func blocked(h fake) fake {
	h.tries = map[string]Answer{tryMade: {Start: syscall.EPERM}, tryInside: {Start: syscall.EPERM}, tryOwnMap: {Start: syscall.EPERM}}
	h.files = maps.Clone(h.files)
	h.files[selfStatus] = "Name:\tx\nSeccomp:\t2\n"
	h.limits = refused("the control group file system of this container is read-only", "docker run --cgroupns=private --privileged --entrypoint untrusted-steps IMAGE run FILE")
	h.kind, h.manager = "", ""
	h.boxes = syscall.EPERM
	h.paths, h.sockets = nil, nil
	return h
}

// kinds are the hosts that people have, each with what doctor says of it: the
// checks that are not well, and for each a piece of what it found and of a fix.
var kinds = []struct {
	name string
	host fake
	ws   string
	want map[string][2]string // check to (found, fix)
	fail []string             // those of them that fail
	no   string               // no fix may have this in it
}{
	{name: "hosted 22.04", host: hosted("6.8.0-1030-azure"), want: map[string][2]string{
		"docker-socket": {"/run/docker.sock", "nothing untrusted outside of them"},
	}},
	{name: "hosted 24.04, where AppArmor takes the capabilities away", host: restrictedHost(hosted("6.17.0-1005-azure")), want: map[string][2]string{
		"user-namespaces": {"AppArmor denies every capability in it, under its profile unprivileged_userns", fixAppArmor},
		"own-id-map":      {"cannot map its ids itself", ""},
		"overlay":         {"not tried", ""},
		"docker-socket":   {"docker.sock", ""},
		"engine-native":   {"permission denied", ""},
	}, fail: []string{"user-namespaces", "engine-native"}},
	{name: "hosted 26.04, the same by another kernel", host: restrictedHost(hosted("7.0.0-1002-azure")), want: map[string][2]string{
		"user-namespaces": {"AppArmor", "untrusted-steps run --host-setup auto"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "docker-socket": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "security-opt"},
	{name: "ubuntu-slim", host: in(blocked(hosted("6.8.0-azure")), map[string]string{"XDG_RUNTIME_DIR": "/run/user/1001"}), want: map[string][2]string{
		"user-namespaces": {"filter around this process", "runs-on: ubuntu-24.04"},
		"control-groups":  {"read-only", "runs-on: ubuntu-24.04"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "control-groups", "engine-native"}, no: "docker run"},
	{name: "a job container", ws: "/__w/repo/repo", host: func() fake {
		h := blocked(hosted("6.17.0-azure"))
		h.uid, h.sockets = 0, []string{"/var/run/docker.sock"}
		h.paths = []string{"/.dockerenv"}
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"filter around this process", "options: --cap-add SYS_ADMIN --security-opt seccomp=unconfined"},
		"control-groups":  {"read-only", "--privileged"},
		"docker-socket":   {"/var/run/docker.sock", "every job container gets the socket"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "control-groups", "engine-native"}, no: "sudo"},
	{name: "a container with a covered /proc", host: func() fake {
		h := hosted("6.17.0-azure")
		h.env = map[string]string{"HOME": "/root", "USER": "root"}
		h.uid, h.paths, h.sockets, h.manager = 0, []string{"/.dockerenv"}, nil, ""
		h.tries = map[string]Answer{tryInside: failing(opProc, syscall.EPERM, "")}
		h.boxes = syscall.EPERM
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"parts of /proc are covered", "systempaths=unconfined"},
		"overlay":         {"not tried", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "sudo"},
	{name: "a self-hosted service without linger", host: func() fake {
		h := in(hosted("6.8.0-generic"), map[string]string{"RUNNER_ENVIRONMENT": "self-hosted", "XDG_RUNTIME_DIR": ""})
		h.manager, h.paths, h.sockets = "", []string{"/run/systemd/system"}, nil
		h.limits = refused("cgroup2 is here, but nothing of it is delegated to user 1001", "sudo loginctl enable-linger 1001")
		h.sudo = errors.New("a password is required")
		h.boxes = h.limits
		return h
	}(), want: map[string][2]string{
		"control-groups": {"nothing of it is delegated to user 1001", "sudo loginctl enable-linger 1001"},
		"user-manager":   {"this account has no user manager", "sudo loginctl enable-linger 1001"},
		"engine-native":  {"delegated", ""},
	}, fail: []string{"control-groups", "engine-native"}, no: "--host-setup"},
	{name: "a user manager that the environment does not name", host: in(hosted("6.8.0-generic"), map[string]string{"XDG_RUNTIME_DIR": ""}), want: map[string][2]string{
		"user-manager":  {"XDG_RUNTIME_DIR does not name it", "export XDG_RUNTIME_DIR=/run/user/1001"},
		"docker-socket": {"", ""},
	}},
	{name: "no systemd", host: func() fake {
		h := hosted("6.1.0-25-amd64")
		h.env = map[string]string{"HOME": "/home/me", "USER": "me"}
		h.paths, h.sockets, h.manager = nil, nil, ""
		h.limits = refused("cgroup2 is here, but nothing of it is delegated to user 1001", "sudo mkdir -p /sys/fs/cgroup/steps-of-1001")
		h.boxes = h.limits
		return h
	}(), want: map[string][2]string{
		"control-groups": {"nothing of it is delegated", "untrusted-steps run --host-setup auto FILE\nsudo mkdir -p /sys/fs/cgroup"},
		"engine-native":  {"", ""},
	}, fail: []string{"control-groups", "engine-native"}, no: "loginctl"},
	{name: "no sudo is no fault", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sudo, h.sockets = errors.New("there is no sudo in /usr/bin"), nil
		return h
	}()},
	{name: "root", host: func() fake {
		h := hosted("6.8.0-generic")
		h.uid, h.manager = 0, ""
		return h
	}()},
	{name: "a scale set on Kubernetes, steps in its pod", host: func() fake {
		h := in(blocked(hosted("5.15.0-1072-aws")), map[string]string{
			"RUNNER_ENVIRONMENT": "self-hosted", "GITHUB_ACTIONS_RUNNER_EXTRA_USER_AGENT": "actions-runner-controller/0.9.3", "XDG_RUNTIME_DIR": "",
			"DOCKER_HOST": "unix:///var/run/docker.sock",
		})
		h.sockets = []string{"/var/run/docker.sock"}
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"filter around this process", "under template.spec, for the container runner"},
		"control-groups":  {"read-only", "runtimeClassName: cgroup-writable"},
		"docker-socket":   {"/var/run/docker.sock", "start this container without"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "control-groups", "engine-native"}, no: "docker run"},
	{name: "a scale set on Kubernetes, steps in a job pod", ws: "/__w/repo/repo", host: in(blocked(hosted("5.15.0-1072-aws")), map[string]string{
		"RUNNER_ENVIRONMENT": "self-hosted", "KUBERNETES_PORT": "tcp://10.0.0.1:443", "XDG_RUNTIME_DIR": "",
	}), want: map[string][2]string{
		"user-namespaces": {"filter around this process", "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"},
		"control-groups":  {"read-only", "runtimeClassName: cgroup-writable"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "control-groups", "engine-native"}, no: "docker run"},
	{name: "cgroup v1, a normal user", host: func() fake {
		h := hosted("5.15.0-91-generic")
		h.env = map[string]string{"HOME": "/home/me", "USER": "me"}
		h.sockets, h.manager = nil, ""
		h.limits = refused("memory and pids are on cgroup1 here, and nothing of it is given to user 1001", "systemd.unified_cgroup_hierarchy=1")
		h.boxes = h.limits
		return h
	}(), want: map[string][2]string{
		"control-groups": {"on cgroup1 here", "systemd.unified_cgroup_hierarchy=1"},
		"user-manager":   {"no user manager", "enable-linger"},
		"engine-native":  {"", ""},
	}, fail: []string{"control-groups", "engine-native"}},
	{name: "WSL2 as it comes", host: func() fake {
		h := hosted("5.15.153.1-microsoft-standard-WSL2")
		h.env = map[string]string{"HOME": "/home/me", "USER": "me"}
		h.paths, h.sockets, h.manager = nil, nil, ""
		h.files = maps.Clone(h.files)
		delete(h.files, appArmorSetting)
		h.limits = refused("memory and pids are on cgroup1 here, and nothing of it is given to user 1001", "systemd.unified_cgroup_hierarchy=1")
		h.boxes = h.limits
		return h
	}(), want: map[string][2]string{
		"control-groups": {"on cgroup1 here", `printf '[boot]\nsystemd=true\n'`},
		"engine-native":  {"", ""},
	}, fail: []string{"control-groups", "engine-native"}},
	{name: "user namespaces turned off", host: func() fake {
		h := hosted("6.8.0-generic")
		h.tries = map[string]Answer{tryMade: {Start: syscall.ENOSPC}, tryInside: {Start: syscall.ENOSPC}, tryOwnMap: {Start: syscall.ENOSPC}}
		h.files[maxNamespaces] = "0\n"
		h.sockets = nil
		h.boxes = syscall.ENOSPC
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"user.max_user_namespaces is 0", fixMaxNamespaces},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "apparmor"},
	{name: "user namespaces used up", host: func() fake {
		h := hosted("6.8.0-generic")
		h.tries = map[string]Answer{tryMade: {Start: syscall.ENOSPC}, tryInside: {Start: syscall.ENOSPC}}
		h.sockets = nil
		return h
	}(), want: map[string][2]string{"user-namespaces": {"it is 63000 here", "lsns --type user"}, "overlay": {"", ""}}, fail: []string{"user-namespaces"}, no: "apparmor"},
	{name: "AppArmor lets no namespace be made", host: func() fake {
		h := restrictedHost(hosted("6.17.0-azure"))
		h.tries[tryMade], h.sockets = Answer{Start: syscall.EACCES, Label: "unconfined"}, nil
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"AppArmor refuses to make a user namespace", "untrusted-steps run --host-setup auto FILE\n# the same"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "security-opt"},
	{name: "a profile that confines this very program", host: func() fake {
		h := restrictedHost(hosted("6.12.0-generic"))
		delete(h.files, appArmorSetting)
		h.tries[tryMade], h.sockets = Answer{Start: syscall.EACCES, Label: "job"}, nil
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"under its profile job", "untrusted-steps prepare"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "sysctl"},
	{name: "a profile that denies this very program every capability", host: func() fake {
		h := restrictedHost(hosted("6.12.0-generic"))
		delete(h.files, appArmorSetting)
		h.tries[tryInside], h.sockets = Answer{Start: syscall.EPERM, Label: "job"}, nil
		return h
	}(), want: map[string][2]string{
		"user-namespaces": {"denies every capability in it, under its profile job", "untrusted-steps prepare"},
		"own-id-map":      {"", ""}, "overlay": {"", ""}, "engine-native": {"", ""},
	}, fail: []string{"user-namespaces", "engine-native"}, no: "sysctl"},
	{name: "user namespaces kept from users (older Debian)", host: func() fake {
		h := hosted("5.10.0-28-amd64")
		h.tries = map[string]Answer{tryMade: {Start: syscall.EPERM}, tryInside: {Start: syscall.EPERM}, tryOwnMap: {Start: syscall.EPERM}}
		h.files[unprivileged] = "0\n"
		h.sockets = nil
		return h
	}(), want: map[string][2]string{
		"kernel":          {"boxes need 5.12 or newer", "linux-generic-hwe"},
		"user-namespaces": {"kernel.unprivileged_userns_clone is 0", fixUnprivileged},
		"own-id-map":      {"", ""}, "overlay": {"", ""},
	}, fail: []string{"kernel", "user-namespaces"}, no: "apparmor"},
	{name: "an overlay on a container's own overlay", host: func() fake {
		h := hosted("6.8.0-generic")
		h.paths, h.sockets, h.manager = []string{"/.dockerenv"}, nil, ""
		h.env = map[string]string{"HOME": "/home/me", "USER": "me"}
		h.folders = map[string]Folder{runnerWork: {Type: "overlay", FreeBytes: 9 << 30, FreeFiles: 1 << 20}}
		h.tries = map[string]Answer{tryOverlay: failing("mount an overlay", syscall.EINVAL, "unconfined")}
		return h
	}(), want: map[string][2]string{"overlay": {"that is an overlay itself", "docker run -v /work"}}, no: "sudo"},
	{name: "root on a container's own overlay", host: func() fake {
		h := hosted("6.8.0-generic")
		h.uid, h.paths, h.sockets, h.manager = 0, []string{"/.dockerenv"}, nil, ""
		h.env = map[string]string{"HOME": "/root", "USER": "root"}
		h.folders = map[string]Folder{runnerWork: {Type: "overlay", FreeBytes: 9 << 30, FreeFiles: 1 << 20}}
		h.tries = map[string]Answer{
			tryOverlay: {Done: []Op{{What: "map the ids of a layer", Errno: syscall.EINVAL}}},
			tryIDMap:   {Done: []Op{{What: "map the ids of a mount", Errno: syscall.EINVAL}}},
		}
		return h
	}(), want: map[string][2]string{
		"overlay": {"that is an overlay itself", "docker run -v"}, "id-mapped-mounts": {"cannot be shown under another id", "docker run -v"},
	}, fail: []string{"id-mapped-mounts"}},
	{name: "a folder for temporary files that is mounted noexec", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.folders = map[string]Folder{temp: {Type: "tmpfs", Exec: syscall.EACCES, NoExec: true, FreeBytes: 1 << 30, FreeFiles: 1 << 20}}
		return h
	}(), want: map[string][2]string{"temporary-folder": {"mounted noexec", "export TMPDIR="}}},
	{name: "a folder for temporary files where something else forbids it", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.folders = map[string]Folder{temp: {Type: "ext4", Exec: syscall.EACCES, FreeBytes: 1 << 40, FreeFiles: 1 << 20}}
		return h
	}(), want: map[string][2]string{"temporary-folder": {"though it is not mounted noexec", "AppArmor, SELinux"}}},
	{name: "a workspace on NFS", host: func() fake {
		h := in(hosted("6.8.0-generic"), map[string]string{"RUNNER_ENVIRONMENT": "self-hosted"})
		h.sockets = nil
		h.folders = map[string]Folder{runnerWork: {Type: "NFS", Attribute: syscall.EOPNOTSUPP, FreeBytes: 1 << 40, FreeFiles: ^uint64(0)}}
		h.tries = map[string]Answer{tryOverlay: failing("mount an overlay", syscall.EINVAL, "")}
		return h
	}(), want: map[string][2]string{
		"workspace": {"NFS, which other machines may change", "--workspace DIR"},
		"overlay":   {"no overlay can have its layers", "--workspace DIR"},
	}},
	{name: "low disk", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.folders = map[string]Folder{runnerWork: {Type: "ext4", FreeBytes: 300 << 20, FreeFiles: 1 << 20}}
		return h
	}(), want: map[string][2]string{"disk": {"300 MiB are free", "sudo rm -rf /usr/local/lib/android"}}},
	{name: "no more files fit", host: func() fake {
		h := in(hosted("6.8.0-generic"), map[string]string{"RUNNER_ENVIRONMENT": "self-hosted"})
		h.sockets = nil
		h.folders = map[string]Folder{runnerWork: {Type: "ext4", FreeBytes: 300 << 30, FreeFiles: 12}}
		return h
	}(), want: map[string][2]string{"disk": {"12 more files", "set diskMb lower"}}, no: "android"},
	{name: "HOME unset, USER empty", host: func() fake {
		h := in(hosted("6.8.0-generic"), map[string]string{"HOME": "", "USER": ""})
		h.sockets = nil
		return h
	}(), want: map[string][2]string{"home": {"HOME is not set; USER is empty, which nothing here needs", "getent passwd"}}},
	{name: "a workspace that nothing can be kept beside, and no HOME to keep it in", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.folders = map[string]Folder{
			runnerWork:     {Type: "ext4", Write: syscall.EACCES},
			"/home/runner": {Type: "ext4", Write: syscall.EROFS},
		}
		return h
	}(), want: map[string][2]string{
		"workspace": {"kept nowhere: " + runnerWork, "sudo chown 1001 " + runnerWork}, "overlay": {"not tried", ""}, "disk": {"not tried", ""},
	}, fail: []string{"workspace"}},
	{name: "programs in memory forbidden", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.tries = map[string]Answer{tryMemory: {Done: []Op{{What: "copy a program to memory", Errno: syscall.EACCES}}}}
		h.files["/proc/sys/vm/memfd_noexec"] = "2\n"
		return h
	}(), want: map[string][2]string{"memory-programs": {"vm.memfd_noexec is 2", "sudo sysctl -w vm.memfd_noexec=1"}}, fail: []string{"memory-programs"}},
	{name: "another supervisor's filter", host: func() fake {
		h := hosted("6.8.0-generic")
		h.sockets = nil
		h.tries = map[string]Answer{tryFilter: {Done: []Op{{What: "install a filter with a listener", Errno: syscall.EBUSY}}}}
		return h
	}(), want: map[string][2]string{"seccomp": {"has a listener of its own already", "seccomp notifications"}}, fail: []string{"seccomp"}},
}

func (h fake) examine(ws string) *Report {
	if ws == "" {
		ws = workspace
	}
	return Examine(context.Background(), h.machine(), Options{
		Workspace: ws, Places: []string{runnerWork, "/home/runner"}, Temp: temp, Disk: 1 << 30,
		Engines: []Engine{{Name: "native", Box: func(context.Context) (string, error) { return "native v1", h.boxes }}},
	})
}

func TestKindsOfHosts(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			r := k.host.examine(k.ws)
			got := map[string]bool{}
			for _, f := range r.Findings {
				if f.Status == OK {
					continue
				}
				got[f.Check] = true
				want, expected := k.want[f.Check]
				if !expected {
					t.Errorf("%s is not well: %+v", f.Check, f)
					continue
				}
				if (f.Status == Fail) != slices.Contains(k.fail, f.Check) {
					t.Errorf("%s is %s", f.Check, f.Status)
				}
				fixes := strings.Join(f.Fix, "\n")
				if !strings.Contains(f.Found, want[0]) || !strings.Contains(fixes, want[1]) {
					t.Errorf("%s: found %q\nfix %s\nwant %q and %q in it", f.Check, f.Found, fixes, want[0], want[1])
				}
				if k.no != "" && strings.Contains(fixes, k.no) {
					t.Errorf("%s: %q helps nobody here:\n%s", f.Check, k.no, fixes)
				}
				if f.Status == Fail && len(f.Fix) == 0 {
					t.Errorf("%s does not say what to do", f.Check)
				}
				if f.Costs == "" {
					t.Errorf("%s does not say what it costs", f.Check)
				}
				if f.Verify == "" && f.Check != "docker-socket" {
					t.Errorf("%s does not say how to see that it is mended", f.Check)
				}
			}
			for check := range k.want {
				if !got[check] {
					t.Errorf("%s is well", check)
				}
			}
			if r.Ready != (k.host.boxes == nil) {
				t.Errorf("ready is %v, and the box: %v", r.Ready, k.host.boxes)
			}
			if r.Place == "" {
				t.Error("the report does not say what kind of machine this is")
			}
		})
	}
}

// TestReadyIsWhatRan: well or not, only a box that ran makes a host ready.
func TestReadyIsWhatRan(t *testing.T) {
	h := hosted("6.8.0")
	engines := func(errs ...error) (list []Engine) {
		for i, err := range errs {
			list = append(list, Engine{Name: fmt.Sprint(i), Get: []string{"get it"}, Box: func(context.Context) (string, error) { return "by", err }})
		}
		return list
	}
	absent := fmt.Errorf("%w: nowhere", ErrNoEngine)
	for _, c := range []struct {
		name    string
		engines []Engine
		ready   bool
	}{
		{"no engine at all", nil, false},
		{"one that ran", engines(nil), true},
		{"one that did not", engines(errors.New("x")), false},
		{"one that is not here, and one that ran", engines(absent, nil), true},
		{"one that is not here", engines(absent), false},
	} {
		r := Examine(context.Background(), h.machine(), Options{Places: []string{"/x"}, Temp: temp, Engines: c.engines})
		if r.Ready != c.ready {
			t.Errorf("%s: ready is %v", c.name, r.Ready)
		}
	}
	r := Examine(context.Background(), h.machine(), Options{Places: []string{"/x"}, Temp: temp, Engines: engines(absent)})
	f := r.Findings[len(r.Findings)-1]
	want := Finding{Check: "engine-0", Status: Warn, Found: "no box: nowhere", Costs: "--engine 0; auto takes another", Fix: []string{"get it"}, Verify: "untrusted-steps doctor --engine 0"}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Error(diff)
	}
}

// TestFixes: a run that is refused says what doctor says.
func TestFixes(t *testing.T) {
	for _, k := range kinds {
		for _, f := range k.host.examine(k.ws).Findings {
			if f.Check != "user-namespaces" || f.Status == OK || k.ws != "" {
				continue
			}
			if diff := cmp.Diff(f.Fix, Fixes(context.Background(), k.host.machine(), nil)); diff != "" {
				t.Errorf("%s: %s", k.name, diff)
			}
		}
	}
	if got := Fixes(context.Background(), hosted("6.8.0").machine(), nil); len(got) < 3 || !strings.HasPrefix(got[0], "#") {
		t.Errorf("where everything works it says %q", got)
	}
}

// TestFixesForMounts: root of a container may make namespaces and no mount, or maps
// no ids in the container's own layers. Either is said, with what helps.
func TestFixesForMounts(t *testing.T) {
	for _, c := range []struct {
		name  string
		errno syscall.Errno
		want  string
	}{
		{"it may not mount", syscall.EPERM, "docker run --cap-add SYS_ADMIN "},
		{"its layers map no ids", syscall.EINVAL, "docker run -v /work"},
	} {
		h := hosted("6.8.0-generic")
		h.uid, h.paths, h.sockets, h.manager = 0, []string{"/.dockerenv"}, nil, ""
		h.env = map[string]string{"HOME": "/root"}
		h.tries = map[string]Answer{tryIDMap: {Done: []Op{{What: "map the ids of a mount", Errno: c.errno}}}}
		got := Fixes(context.Background(), h.machine(), []string{"/work"})
		if !slices.ContainsFunc(got, func(l string) bool { return strings.HasPrefix(l, c.want) }) {
			t.Errorf("%s: it says %q, want %s", c.name, got, c.want)
		}
	}
}

// TestContainerWithoutMark: containerd leaves none, but a control group namespace.
// Who can do nothing for a container from inside is not told to, and who can is.
func TestSudoInAContainer(t *testing.T) {
	h := hosted("6.8.0")
	h.env, h.paths, h.manager = nil, []string{"/.dockerenv"}, ""
	h.limits = refused("nothing of it is delegated")
	h.boxes = h.limits
	for _, adds := range []bool{false, true} {
		h.adds = adds
		fixes := map[string]string{}
		for _, f := range h.examine("").Findings {
			fixes[f.Check] = strings.Join(f.Fix, "\n")
		}
		if got := strings.Contains(fixes["control-groups"], "--host-setup auto"); got != adds {
			t.Errorf("that --host-setup would do is %v, and the fix is %q", adds, fixes["control-groups"])
		}
		if want := "# mend what is said of control-groups above"; fixes["engine-native"] != want {
			t.Errorf("of the engine it says %q", fixes["engine-native"])
		}
	}
	h.limits = nil
	h.boxes = errors.New("no idea")
	f := h.examine("").Findings
	if last := f[len(f)-1]; len(last.Fix) != 1 || !strings.Contains(last.Fix[0], "all that is known") {
		t.Errorf("%+v", last)
	}
}

func TestContainerWithoutMark(t *testing.T) {
	h := hosted("6.8.0-generic")
	h.env, h.paths = map[string]string{}, nil
	h.files["/proc/self/cgroup"] = "0::/\n"
	if p := placeOf(h.machine(), ""); p != Plain {
		t.Errorf("the top of all control groups is %s", p)
	}
	h.paths = []string{"/sys/fs/cgroup/cgroup.type"}
	if p := placeOf(h.machine(), ""); p != Container {
		t.Errorf("the top of a namespace of them is %s", p)
	}
	h.files["/proc/self/cgroup"] = "0::/system.slice/x.service\n"
	if p := placeOf(h.machine(), ""); p != Plain {
		t.Errorf("a service is %s", p)
	}
}

// TestTextIsInert: names that others chose act on no terminal and no runner.
func TestTextIsInert(t *testing.T) {
	h := hosted("6.8.0\x1b[2J")
	h.folders = map[string]Folder{"/w\n::error::x": {Type: "##[error]", Write: errors.New("no\r::set-env")}}
	r := Examine(context.Background(), h.machine(), Options{Places: []string{"/w\n::error::x"}, Temp: "/t\n::warning::y", Engines: []Engine{
		{Name: "native", Get: []string{"a\n::error::b"}, Box: func(context.Context) (string, error) { return "", fmt.Errorf("%w: \u202ex", ErrNoEngine) }},
	}})
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(strings.TrimSpace(line), "::") || strings.ContainsAny(line, "\x1b\r\u202e") || strings.Contains(line, "##[") {
			t.Errorf("not inert: %q", line)
		}
	}
	if !strings.Contains(b.String(), "FAIL  workspace") || !strings.Contains(b.String(), "steps cannot run here") {
		t.Error(b.String())
	}
	var j strings.Builder
	var back Report
	if err := errors.Join(r.WriteJSON(&j), json.Unmarshal([]byte(j.String()), &back)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("as JSON: %s", diff)
	}
}

// TestAStatusThatIsNoneFails: the zero value is no good news.
func TestAStatusThatIsNoneFails(t *testing.T) {
	var b strings.Builder
	if err := (&Report{Findings: []Finding{{Check: "x"}}}).WriteText(&b); err != nil || !strings.Contains(b.String(), "FAIL  x") {
		t.Errorf("%v: %s", err, b.String())
	}
	if (Answer{}).worked() {
		t.Error("an answer without anything done is taken for one that worked")
	}
}

// TestTheReportIsInert: a folder's name that others chose is no command, in the
// text or in the JSON, and is the same name for whoever reads that.
func TestTheReportIsInert(t *testing.T) {
	const name = "/w/##[add-mask]e\u202e\n::error::x\x1b[2J"
	r := &Report{Findings: []Finding{{Check: "workspace", Found: name, Costs: name, Fix: []string{"cd " + name, "# " + name}, Verify: name}}}
	for what, write := range map[string]func(io.Writer) error{"text": r.WriteText, "JSON": r.WriteJSON} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		if got := ghatest.Commands([]byte(b.String())); len(got) > 0 || strings.ContainsFunc(strings.ReplaceAll(b.String(), "\n", ""), gha.Unseen) {
			t.Errorf("%s: %v in %q", what, got, b.String())
		}
		if what == "JSON" {
			var back Report
			if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back.Findings[0].Found != name {
				t.Errorf("%v: %q became %q", err, name, back.Findings)
			}
		}
	}
}

// TestLingerIsOfTheAccount: it is the account's name that counts, and not what the
// environment calls it, which of a service is nothing.
func TestLingerIsOfTheAccount(t *testing.T) {
	const words = "it does not linger"
	for _, c := range []struct {
		name, account, user string
		files               []string
		want                bool
	}{
		{"one that lingers", "builder", "", []string{lingerFolder, lingerFolder + "builder"}, false},
		{"one that does not, and has no USER", "builder", "", []string{lingerFolder}, true},
		{"one that another of its USER does", "builder", "runner", []string{lingerFolder, lingerFolder + "runner"}, true},
		{"one without a name, of which it is not known", "", "runner", []string{lingerFolder}, false},
	} {
		h := hosted("6.8.0-generic")
		h.account, h.env["USER"], h.paths = c.account, c.user, append(c.files, "/run/systemd/system")
		f := userManager(context.Background(), &examination{m: h.machine(), place: Hosted})
		if got := strings.Contains(f.Found, words); got != c.want {
			t.Errorf("%s: %q", c.name, f.Found)
		}
	}
}
