package limits

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
)

// Refusal is a host that lets us cap nothing: why, and what to type. A line of
// Fix is a command for a shell, or begins with # and is a word about the next.
type Refusal struct {
	Cause string
	Fix   []string
	Found string // Kind1 or Kind2, of which nothing can be used; empty if there is none
}

func (r *Refusal) Error() string { return "no step can be capped here: " + r.Cause }

// facts are what a refusal is made of.
type facts struct {
	euid          int
	command       string
	mounted       bool     // some control group file system is
	readOnly      bool     // all of them are
	v2            bool     // memory belongs to cgroup2
	off           []string // required controllers the kernel was started without
	own           string   // our own group
	why           []string // each place tried, and what happened
	systemd       bool     // systemd runs this host
	container     bool
	pod           bool   // and Kubernetes made it
	runtimeDir    string // of a user manager that answers
	runtimeDirSet bool   // XDG_RUNTIME_DIR names it already
}

// refuse says what was found, and what helps.
func refuse(f facts) *Refusal {
	r := words(f)
	r.Found = f.found()
	return r
}

// found is the kind of control groups that memory belongs to; empty if none.
func (f facts) found() string {
	switch {
	case !f.mounted || len(f.off) > 0:
		return ""
	case f.v2:
		return Kind2
	}
	return Kind1
}

// words finds the words. It decides nothing: Open has tried everything.
func words(f facts) *Refusal {
	switch {
	case len(f.off) > 0:
		return &Refusal{
			Cause: fmt.Sprintf("the kernel was started without the control group controller %s", strings.Join(f.off, " and ")),
			Fix: []string{
				"# add to the kernel's command line (Raspberry Pi: /boot/firmware/cmdline.txt), remove any cgroup_disable= there, restart:",
				"cgroup_enable=memory",
			},
		}
	case !f.mounted && f.container:
		return &Refusal{Cause: "this container has no control group file system", Fix: containerFix(f)}
	case !f.mounted:
		return &Refusal{Cause: "no control group file system is mounted", Fix: []string{"sudo mount -t cgroup2 none /sys/fs/cgroup"}}
	case f.readOnly && (f.container || !f.systemd):
		return &Refusal{Cause: "the control group file system of this container is read-only", Fix: containerFix(f)}
	case f.readOnly:
		return &Refusal{
			Cause: "the control group file system is read-only for this service (ProtectControlGroups= in its unit?)",
			Fix:   append([]string{"# outside of that service:"}, systemFix(f)...),
		}
	case f.euid != 0 && f.v2:
		return &Refusal{Cause: f.cause("cgroup2 is here, but nothing of it is delegated to user %d"), Fix: userFix(f)}
	case f.euid != 0:
		return &Refusal{
			Cause: f.cause("memory and pids are on cgroup1 here, and nothing of it is given to user %d"),
			Fix: []string{
				"# give this shell a group of its own of each, once, and run in it:",
				"for c in memory pids; do sudo mkdir -p /sys/fs/cgroup/$c/mine && sudo chown -R $(id -u) /sys/fs/cgroup/$c/mine && echo $$ | sudo tee /sys/fs/cgroup/$c/mine/cgroup.procs; done; " + f.command,
				"# or run as root:",
				f.asRoot(),
				"# or, with systemd, start the kernel with cgroup2 only: add systemd.unified_cgroup_hierarchy=1 to its command line and restart",
			},
		}
	case f.container || !f.systemd:
		return &Refusal{Cause: f.cause("the control groups of this container cannot be divided, though this is user %d"), Fix: containerFix(f)}
	}
	return &Refusal{Cause: f.cause("the control groups here cannot be divided, though this is user %d"), Fix: systemFix(f)}
}

func (f facts) cause(format string) string {
	s := fmt.Sprintf(format, f.euid)
	if f.own != "" {
		s += ", which runs in " + f.own
	}
	if len(f.why) > 0 {
		s += " (" + strings.Join(f.why, "; ") + ")"
	}
	return s
}

// userFix is for a user who is not root, on cgroup2. The best way is a scope
// of the user's own manager: no root, and it vanishes by itself.
func userFix(f facts) []string {
	scope := "systemd-run --user --scope --quiet -p Delegate=yes -- " + f.command
	sudo := []string{"# or as root:", f.asRoot()}
	runtime := fmt.Sprintf("/run/user/%d", f.euid)
	switch {
	case f.runtimeDir != "" && f.runtimeDirSet:
		fix := append([]string{scope}, sudo...)
		return append(fix,
			"# if that scope has no controllers either, let user managers have them, and log in again:",
			"sudo mkdir -p /etc/systemd/system/user@.service.d",
			`printf '[Service]\nDelegate=cpu memory pids\n' | sudo tee /etc/systemd/system/user@.service.d/delegate.conf`,
			"sudo systemctl daemon-reload")
	case f.runtimeDir != "":
		return append([]string{"export XDG_RUNTIME_DIR=" + f.runtimeDir, scope}, sudo...)
	case f.systemd && !f.container:
		return append([]string{
			"# start a manager for this user, wait for it, and run in a scope of it:",
			fmt.Sprintf("sudo loginctl enable-linger %d", f.euid),
			"export XDG_RUNTIME_DIR=" + runtime,
			`until [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; do sleep 0.1; done`,
			scope,
		}, sudo...)
	case f.pod:
		return containerFix(f) // nobody is root there, and sudo is nobody's
	case f.container:
		return append([]string{
			"# let root of this container give you its control group:",
			fmt.Sprintf("(cd /sys/fs/cgroup && sudo chown %d . cgroup.procs cgroup.threads cgroup.subtree_control)", f.euid),
			f.command,
			"# and if that is refused too,",
		}, containerFix(f)...)
	}
	dir := fmt.Sprintf("/sys/fs/cgroup/steps-of-%d", f.euid)
	return append([]string{
		"# let root make a part of the hierarchy yours and put this shell into it:",
		"echo '+memory +pids' | sudo tee /sys/fs/cgroup/cgroup.subtree_control",
		"sudo mkdir -p " + dir,
		fmt.Sprintf("sudo chown %d %s %s/cgroup.procs %s/cgroup.threads %s/cgroup.subtree_control", f.euid, dir, dir, dir, dir),
		"echo $$ | sudo tee " + dir + "/cgroup.procs",
		f.command,
	}, sudo...)
}

func systemFix(f facts) []string {
	const scope = "systemd-run --scope --quiet -p Delegate=yes -- "
	if f.euid == 0 {
		return []string{scope + f.command}
	}
	return []string{"sudo " + scope + f.located()}
}

// asRoot is the command as root's. sudo looks for programs in folders of its own
// (secure_path), and ours may well lie in the user's.
func (f facts) asRoot() string { return "sudo " + f.located() }

// located is the command with the program's whole path, as the shell finds it.
func (f facts) located() string {
	program, rest, _ := strings.Cut(f.command, " ")
	return `"$(command -v ` + program + `)" ` + rest
}

// containerFix is for whoever starts the container: nobody inside can help.
func containerFix(f facts) []string {
	if f.pod {
		return append(container.PodFix("# in the pod's spec, for the container that this runs in (Kubernetes 1.33 and newer):"), container.PodGroups()...)
	}
	return container.Fix(container.Who{Root: f.euid == 0}, f.command)
}
