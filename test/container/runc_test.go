package container_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// user is the container's normal user, as in the image and in GitHub's runner.
const user = 1001

// shift is where a pod's user namespace puts its ids on the machine.
const shift = 1_200_000_000

// patience bounds a container. Each takes less than a second on a quiet machine.
const patience = 3 * time.Minute

// dockerCaps are what Docker leaves to a container's root.
var dockerCaps = strings.Fields("CAP_CHOWN CAP_DAC_OVERRIDE CAP_FSETID CAP_FOWNER CAP_MKNOD CAP_NET_RAW CAP_SETGID CAP_SETUID CAP_SETFCAP CAP_SETPCAP CAP_NET_BIND_SERVICE CAP_SYS_CHROOT CAP_KILL CAP_AUDIT_WRITE")

// setting is how a container is started. The zero value is Docker's default for a
// container whose user is root, with the engine to be said.
type setting struct {
	engine    string
	uid       int
	more      []string // capabilities on top of Docker's
	none      bool     // --cap-drop ALL
	quiet     bool     // --security-opt no-new-privileges
	filter    *specs.LinuxSeccomp
	unmasked  bool // --security-opt systempaths=unconfined
	groups    bool // --security-opt writable-cgroups=true
	pod       bool // hostUsers: false
	inImage   bool // the program and the folder for temporary files are in the image's own layers
	uncapped  bool // the steps require no caps
	elsewhere bool // the workspace is in the image's own layers too
}

// least is the least that works, for a normal user.
func least(t *testing.T, engine string) setting {
	return setting{engine: engine, uid: user, none: true, quiet: true, filter: ours(t), unmasked: true, groups: true}
}

// asRoot is what root needs.
func asRoot(t *testing.T, engine string) setting {
	return setting{engine: engine, more: []string{"CAP_SYS_ADMIN"}, filter: ours(t), unmasked: true, groups: true}
}

// ours is the filter that we tell people to use.
func ours(t *testing.T) *specs.LinuxSeccomp {
	t.Helper()
	text, err := seccomp.Container()
	if err != nil {
		t.Fatal(err)
	}
	var p specs.LinuxSeccomp
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// without is a filter that does not let some calls through.
func without(p *specs.LinuxSeccomp, names ...string) *specs.LinuxSeccomp {
	out := *p
	out.Syscalls = nil
	for _, s := range p.Syscalls {
		s.Names = slices.DeleteFunc(slices.Clone(s.Names), func(n string) bool { return slices.Contains(names, n) })
		if len(s.Names) > 0 {
			out.Syscalls = append(out.Syscalls, s)
		}
	}
	noSuchCall := uint(unix.ENOSYS)
	if slices.Contains(names, "clone3") { // or no program could start a thread
		out.Syscalls = append(out.Syscalls, specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &noSuchCall})
	}
	if slices.Contains(names, "clone") {
		const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
		out.Syscalls = append(out.Syscalls, specs.LinuxSyscall{Names: []string{"clone"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: namespaces, Op: specs.OpMaskedEqual}}})
	}
	return &out
}

// docker is Docker's default filter, but for the 13 calls it is ours.
func docker(t *testing.T) *specs.LinuxSeccomp { return without(ours(t), seccomp.BoxCalls()...) }

// ended is what became of a run in a container.
type ended struct {
	code   int
	out    string
	report struct {
		Verdict string
		Steps   []struct {
			ID, Status string
			Limits     struct{ Enforced []string }
			Fault      *struct{ Type string }
		}
	}
	files []string // of the workspace, with owners
}

const stepsFile = `steps:
  - id: work
    run: echo made > made
  - id: out
    command: [unshare, --user, "true"]
    expect: {fault: escape_blocked}
  - id: net
    language: bash
    run: "! (exec 3<>/dev/tcp/192.0.2.1/80)"
    egressAllow: [allowed.example]
`

// run runs the steps in a container of its own.
func (s setting) run(t *testing.T) ended {
	t.Helper()
	runc := needRunc(t)
	steps := stepsFile
	switch s.engine {
	case "kern":
		boxtest.Need(t, "kern")
	case "gvisor":
		boxtest.Need(t, "runsc")
		// The kernel of that box refuses the call, and tells nobody.
		steps = strings.Replace(steps, "fault: escape_blocked", "exitCode: 1", 1)
	}
	dir := boxtest.OpenDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	if s.uncapped {
		steps = "defaults: {requireLimits: false}\n" + steps
	}
	if s.engine == "gvisor" { // it may lie where only root can enter
		b, err := os.ReadFile(os.Getenv("RUNSC_BIN"))
		if err == nil {
			err = os.WriteFile(at("runsc-program"), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	owner := s.uid
	if s.pod {
		owner += shift
	}
	var errs []error
	for _, d := range []string{"layers/lower", "layers/upper", "layers/work", "layers/root", "volume/tree", "volume/temp"} {
		errs = append(errs, os.MkdirAll(at(d), 0o755))
	}
	for _, d := range []string{"volume", "volume/tree", "volume/temp"} {
		errs = append(errs, os.Chown(at(d), owner, owner))
	}
	if err := errors.Join(append(errs, os.WriteFile(at("steps.yml"), []byte(steps), 0o644))...); err != nil {
		t.Fatal(err)
	}
	s.image(t, at("layers/lower"))
	// A container's own layers are an overlay.
	options := "lowerdir=" + at("layers/lower") + ",upperdir=" + at("layers/upper") + ",workdir=" + at("layers/work")
	if err := unix.Mount("image", at("layers/root"), "overlay", 0, options); err != nil {
		need.Met(t, "mounts", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at("layers/root"), unix.MNT_DETACH) })

	spec, err := json.Marshal(s.spec(dir))
	if err == nil {
		err = os.WriteFile(at("config.json"), spec, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	name := "untrusted-steps-test-" + filepath.Base(dir)
	var out bytes.Buffer
	cmd := exec.Command(runc, "--root", at("runc"), "run", "--bundle", dir, name)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	t.Cleanup(func() { _ = exec.Command(runc, "--root", at("runc"), "delete", "--force", name).Run() })
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = exec.Command(runc, "--root", at("runc"), "kill", name, "KILL").Run() })
	_ = cmd.Wait()
	late.Stop()
	e := ended{code: cmd.ProcessState.ExitCode(), out: out.String()}
	if b, err := os.ReadFile(at("volume/report/report.json")); err == nil {
		if err := json.Unmarshal(b, &e.report); err != nil {
			t.Error(err)
		}
	}
	e.files = owners(t, at("volume/tree"), owner)
	return e
}

// owners lists what is in a folder, each with how far its owner is from the one it
// is to have.
func owners(t *testing.T, dir string, owner int) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, f.Name()), &st); err != nil {
			t.Fatal(err)
		}
		list = append(list, f.Name()+" "+strconv.Itoa(int(st.Uid)-owner))
	}
	return list
}

// image makes the folders of one: its tools are this machine's, bound in.
func (s setting) image(t *testing.T, root string) {
	t.Helper()
	base := 0
	if s.pod {
		base = shift
	}
	var errs []error
	for _, d := range []string{"usr", "etc", "proc", "sys", "dev", "work", "home", "opt/program"} {
		errs = append(errs, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	errs = append(errs, os.Mkdir(filepath.Join(root, "tmp"), 0o755), os.Chmod(filepath.Join(root, "tmp"), os.ModeSticky|0o777))
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + d); err == nil {
			errs = append(errs, os.Symlink(to, filepath.Join(root, d)))
		}
	}
	for _, f := range []string{"steps.yml", "kern", "runsc"} {
		errs = append(errs, os.WriteFile(filepath.Join(root, f), nil, 0o644))
	}
	errs = append(errs, os.WriteFile(filepath.Join(root, "opt/program/untrusted-steps"), nil, 0o755))
	if s.inImage {
		b, err := os.ReadFile(program)
		errs = append(errs, err, os.WriteFile(filepath.Join(root, "opt/untrusted-steps"), b, 0o755))
	}
	// What Docker, and what Kubernetes, leaves in every container.
	if s.pod {
		errs = append(errs, os.MkdirAll(filepath.Join(root, "var/run/secrets/kubernetes.io"), 0o755))
	} else {
		errs = append(errs, os.WriteFile(filepath.Join(root, ".dockerenv"), nil, 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, base, base)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// spec is the container in the runtime's own form.
func (s setting) spec(dir string) *specs.Spec {
	at := func(name string) string { return filepath.Join(dir, name) }
	bind := func(from, to, mode string) specs.Mount {
		return specs.Mount{Type: "bind", Source: from, Destination: to, Options: []string{"rbind", mode}}
	}
	binary, temp, workspace := "/opt/program/untrusted-steps", "/work/temp", "/work/tree"
	if s.inImage {
		binary, temp = "/opt/untrusted-steps", "/tmp"
	}
	if s.elsewhere {
		workspace = "/home/tree"
	}
	run := []string{binary, "run", "/steps.yml", "--engine", s.engine, "--workspace", workspace, "--out", "/work/report"}
	caps, uid := slices.Concat(dockerCaps, s.more), s.uid
	if s.none {
		caps = s.more
	}
	quote := func(args []string) string { return "'" + strings.Join(args, "' '") + "'" }
	line := "mkdir -p " + workspace + " && exec " + quote(run)
	if s.groups && uid != 0 {
		// What Docker does where systemd makes its control groups: they are the user's.
		// Here root of the container does it, and is that user from then on.
		line = `for d in /sys/fs/cgroup /sys/fs/cgroup/*/; do
			for f in $d $d/cgroup.procs $d/cgroup.threads $d/cgroup.subtree_control $d/tasks; do [ ! -e $f ] || chown USER:USER $f; done; done
			exec setpriv --reuid=USER --regid=USER --clear-groups --inh-caps=-all ` + quote(run)
		line = strings.ReplaceAll(line, "USER", strconv.Itoa(uid))
		caps, uid = append(slices.Clone(caps), "CAP_CHOWN", "CAP_SETUID", "CAP_SETGID"), 0
	}
	spec := &specs.Spec{
		Version:  "1.0.2",
		Root:     &specs.Root{Path: at("layers/root")},
		Hostname: "container",
		Process: &specs.Process{
			User: specs.User{UID: uint32(uid), GID: uint32(uid)}, Cwd: "/", Args: []string{"/bin/sh", "-ec", line},
			Env:             []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home", "KERN_BIN=/kern", "RUNSC_BIN=/runsc", "TMPDIR=" + temp},
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			NoNewPrivileges: s.quiet,
		},
		Mounts: []specs.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc"},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Type: "tmpfs", Source: "shm", Destination: "/dev/shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Type: "sysfs", Source: "sysfs", Destination: "/sys", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Type: "cgroup", Source: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", map[bool]string{true: "rw", false: "ro"}[s.groups]}},
			bind("/usr", "/usr", "ro"), bind(at("volume"), "/work", "rw"), bind(at("steps.yml"), "/steps.yml", "ro"),
			bind(program, "/opt/program/untrusted-steps", "ro"),
		},
		Linux: &specs.Linux{
			CgroupsPath: "/untrusted-steps-test-" + filepath.Base(dir),
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.CgroupNamespace}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			Seccomp:   s.filter,
		},
	}
	if kern := os.Getenv("KERN_BIN"); kern != "" {
		spec.Mounts = append(spec.Mounts, bind(kern, "/kern", "ro"))
	}
	if s.engine == "gvisor" {
		spec.Mounts = append(spec.Mounts, bind(at("runsc-program"), "/runsc", "ro"))
	}
	if !s.unmasked {
		spec.Linux.MaskedPaths = strings.Fields("/proc/acpi /proc/asound /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware")
		spec.Linux.ReadonlyPaths = strings.Fields("/proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger")
	}
	if s.pod {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: shift, Size: 65536}}
		spec.Linux.GIDMappings = spec.Linux.UIDMappings
	}
	return spec
}

func needRunc(t *testing.T) string {
	t.Helper()
	boxtest.Need(t, "root", "userns", "overlay", "seccomp", "idmap")
	path, err := exec.LookPath("runc")
	need.Met(t, "runc", err)
	return path
}
