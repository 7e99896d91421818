package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// controlGroups makes a group with caps and reads them back. What it says of a
// host that lets us cap nothing is what limits says.
func controlGroups(ctx context.Context, x *examination) Finding {
	kind, where, err := x.m.Limits(ctx)
	if err == nil {
		return Finding{Status: OK, Found: fmt.Sprintf("memory and processes of a group were capped, by %s, in %s", kind, strings.Join(where, " and "))}
	}
	f := Finding{
		Status: Fail, Found: err.Error(), Costs: "every step whose requireLimits is true, which is the default: the run is refused",
		Verify: "untrusted-steps doctor",
	}
	var no *limits.Refusal
	if errors.As(err, &no) {
		f.Found, f.Fix = no.Cause, no.Fix
	}
	if x.m.UID != 0 && x.byItself(ctx) {
		f.Fix = append([]string{
			"# let each run do it, and undo it at its end, by the user's systemd or else by sudo:",
			"untrusted-steps run --host-setup auto FILE",
		}, f.Fix...)
	}
	switch x.place {
	case Slim:
		f.Fix = x.outside()
	case ARCPod, ARCJobPod, Kubernetes:
		f.Fix = container.PodGroups()
	case WSL:
		f.Fix = append([]string{
			"# WSL 2 gives its control groups to version 1 and starts no systemd unless told; in /etc/wsl.conf:",
			`printf '[boot]\nsystemd=true\n' | sudo tee -a /etc/wsl.conf`,
			"# in %UserProfile%\\.wslconfig of Windows, under [wsl2]: kernelCommandLine = cgroup_no_v1=all",
			"# then, in Windows:",
			"wsl.exe --shutdown",
		}, f.Fix...)
	}
	return f
}

// byItself says whether --host-setup could get control groups here.
func (x *examination) byItself(ctx context.Context) bool {
	if x.place.contained() { // sudo may be root of a container that may make no groups
		return x.m.Adds(ctx)
	}
	dir, _ := x.m.Manager()
	return dir != "" || x.m.Sudo(ctx) == nil
}

// userManager looks for the one thing through which a normal user gets control
// groups without root.
func userManager(_ context.Context, x *examination) Finding {
	dir, named := x.m.Manager()
	systemd := x.m.Exists("/run/systemd/system")
	f := Finding{Status: OK}
	switch {
	case x.m.UID == 0:
		f.Found = "root needs none"
		return f
	case dir != "" && named:
		f.Found = "the user manager of this account answers in " + dir
	case dir != "":
		f.Status, f.Found = Warn, "the user manager of this account answers in "+dir+", and XDG_RUNTIME_DIR does not name it"
		f.Costs = "systemd-run --user, which makes the scope that caps are enforced in"
		f.Fix = []string{"export XDG_RUNTIME_DIR=" + gha.ShellWord(dir)}
		f.Verify = "systemctl --user show --property Version"
	case systemd && !x.place.contained():
		f.Status, f.Found = Warn, "this account has no user manager"
		f.Costs = "caps for a normal user, unless sudo makes a control group"
		f.Fix = []string{
			fmt.Sprintf("sudo loginctl enable-linger %d", x.m.UID),
			fmt.Sprintf("export XDG_RUNTIME_DIR=/run/user/%d   # of a runner that is a service: a line without export in its .env, and restart it", x.m.UID),
		}
		f.Verify = "systemctl --user show --property Version"
	default:
		f.Found = "systemd does not run this host, so no account has a user manager"
	}
	// Of an account without a name that cannot be known.
	if name := x.m.Account(); dir != "" && name != "" && !strings.Contains(name, "/") && !x.m.Exists(lingerFolder+name) {
		f.Found += "; it ends with the account's last session, as it does not linger"
	}
	return f
}

// lingerFolder has a file for each account whose manager outlives its sessions.
const lingerFolder = "/var/lib/systemd/linger/"
