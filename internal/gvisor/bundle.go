package gvisor

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit/entry"
)

// boxName is the name that runsc knows the box by, in a folder of its own.
const boxName = "box"

// initUID is the id of the box's first process, in the box's own kernel. The step
// is 0 there and has no capability over another id's processes.
const initUID = 65533

// Where the launcher holds what the first process gets.
const (
	orderFD   = 3
	controlFD = 4
	wayFD     = 5
	runscFD   = 6
	lastFD    = runscFD
)

// arguments are those of runsc. Each says aloud what it could leave to a default.
func arguments(s box.Spec, platform string) []string {
	network := "none"
	if s.Network == box.NetworkHost {
		network = "host"
	}
	return []string{
		"runsc",
		"--root=/" + stateName,
		"--rootless", // as which no service manager and no control group is asked for
		"--platform=" + platform,
		"--network=" + network,
		"--net-raw=false",
		"--ignore-cgroups",        // ours stand, and all of runsc is in them
		"--in-sandbox-cgroup=v2",  // the box's own kernel counts the step's processes
		"--overlay2=none",         // writes to the workspace are for its own layer, which we judge
		"--directfs=false",        // its kernel opens no file of the stage: its file server does
		"--file-access=exclusive", // nobody else changes the root and the workspace meanwhile
		"--file-access-mounts=shared",
		"--host-uds=none",
		"--host-fifo=none",
		"--host-settings=ignore", // the host's settings are not runsc's to change
		"--character-device-policy=emulated-only",
		"--allow-suid=false",
		"--allow-flag-override=false",
		"--debug=false",
		"run",
		"--bundle=/" + bundleName,
		fmt.Sprintf("--pass-fd=%d:3", controlFD),
		fmt.Sprintf("--pass-fd=%d:4", wayFD),
		boxName,
	}
}

// starting are the capabilities that the first process begins with, in the box's
// own kernel only. It gives them up before the step is there.
func starting(kept []int) []string {
	list := []string{
		"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", // to be apart from the step, and to start it
		"CAP_SYS_ADMIN",        // to take the control groups' mount away
		"CAP_NET_BIND_SERVICE", // to listen on a low port
		"CAP_NET_ADMIN",        // to give loopback an address
	}
	for _, c := range kept {
		list = append(list, "CAP_"+boxinit.NameOf(c))
	}
	return list
}

// keepable are the capabilities over files and ports. Not those over ids and
// processes: there is one id in a box, so they give a step nothing, and with them
// it could become the first process's and end it.
func keepable(kept []int) []int {
	var out []int
	for _, c := range kept {
		switch c {
		case unix.CAP_KILL, unix.CAP_SETUID, unix.CAP_SETGID:
		default:
			out = append(out, c)
		}
	}
	return out
}

// bundle is the config.json of a box.
func bundle(s box.Spec, p setup, kept []int, files uint64) ([]byte, error) {
	caps := starting(kept)
	c := specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: []string{box.InitTarget, entry.InheritedMarker},
			Env:  boxinit.Environ(),
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: caps, Effective: caps, Permitted: caps,
			},
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: files, Soft: files}},
			NoNewPrivileges: true,
		},
		Root:     &specs.Root{Path: "/" + rootName},
		Hostname: box.Hostname(s.ID),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "nodev", "noexec", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "nodev", "noexec"}},
			{Destination: "/dev", Type: "bind", Source: "/" + deviceName, Options: []string{"rbind", "ro", "nosuid", "noexec"}},
			// It does nothing there, and says so to nobody.
			memory(box.ShmTarget, cmp.Or(s.ShmBytes, box.DefaultShmBytes), 0o1777),
		},
	}
	if s.Network != box.NetworkHost { // which is passed through from where runsc is
		c.Linux.Namespaces = append(c.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	for _, m := range p.Own {
		if m.Source == "" {
			c.Mounts = append(c.Mounts, memory(m.Target, m.Bytes, m.Mode))
			continue
		}
		if m.At == rootName {
			continue
		}
		how := "rw"
		if m.ReadOnly {
			how = "ro"
		}
		c.Mounts = append(c.Mounts, specs.Mount{Destination: m.Target, Type: "bind", Source: "/" + m.At, Options: []string{"rbind", how, "nosuid", "nodev"}})
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("gvisor: bug: encode the bundle: %w", err)
	}
	return text, nil
}

func memory(target string, bytes int64, mode uint32) specs.Mount {
	return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: []string{
		"nosuid", "nodev", fmt.Sprintf("mode=%o", mode), fmt.Sprintf("size=%d", bytes),
	}}
}
