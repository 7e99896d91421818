package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// Settings that are read to find words for what was seen to fail.
const (
	maxNamespaces   = "/proc/sys/user/max_user_namespaces"
	unprivileged    = "/proc/sys/kernel/unprivileged_userns_clone"
	appArmorSetting = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	selfStatus      = "/proc/self/status"
)

const noBox = "no box can be built, by either engine"

// The commands that help, each at one place.
const (
	fixMaxNamespaces = "sudo sysctl -w user.max_user_namespaces=15000"
	fixUnprivileged  = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	// fixAppArmor lifts the restriction for everything on the machine.
	fixAppArmor = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"

	verifyNamespaces = "unshare --user --map-root-user --mount mount -t tmpfs none /mnt"
)

// keep is how a setting survives a restart.
func keep(setting string) []string {
	name, _, _ := strings.Cut(setting, "=")
	return []string{
		"# and to have it after a restart too:",
		"echo " + setting + " | sudo tee /etc/sysctl.d/60-" + strings.NewReplacer(".", "-", "_", "-").Replace(name) + ".conf",
	}
}

func setting(command string) string { return strings.TrimPrefix(command, "sudo sysctl -w ") }

// userNamespaces makes one and does in it what building a box takes. Three hosts
// look alike from afar: one that makes no namespace, one that makes it and takes
// the capabilities away in it (AppArmor on Ubuntu 23.10 and newer), and a
// container whose proc file system is covered.
func userNamespaces(ctx context.Context, x *examination) Finding {
	if made := x.m.Try(ctx, Trial{What: tryMade}); !made.worked() {
		return x.noNamespace(made)
	}
	inside := x.tryInside(ctx)
	if inside.worked() {
		f := Finding{Status: OK, Found: "one was made, and in it mounts, a proc file system and the loopback interface"}
		if x.m.UID == 0 && !x.m.Root {
			f.Found += "; root here is root of a user namespace, an ordinary user of the machine"
		}
		return f
	}
	return x.powerless(inside)
}

func (x *examination) tryInside(ctx context.Context) Answer {
	if x.inside == nil {
		a := x.m.Try(ctx, Trial{What: tryInside})
		x.inside = &a
	}
	return *x.inside
}

// noNamespace finds words for a namespace that could not be made.
func (x *examination) noNamespace(made Answer) Finding {
	f := Finding{Status: Fail, Costs: noBox, Verify: verifyNamespaces}
	limit, unprivileged := x.line(maxNamespaces), x.line(unprivileged)
	err := made.Start
	switch {
	case (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EUSERS)) && limit == "0":
		f.Found = "user namespaces are turned off: user.max_user_namespaces is 0"
		f.Fix = append([]string{fixMaxNamespaces}, keep(setting(fixMaxNamespaces))...)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EUSERS):
		f.Found = "no further user namespace can be made: user.max_user_namespaces is reached (it is " + limit + " here), or they are nested 32 deep"
		f.Fix = []string{"# end what holds them: lsns --type user", fixMaxNamespaces}
	case errors.Is(err, syscall.EPERM) && unprivileged == "0" && !x.m.Root:
		f.Found = "user namespaces are kept from users: kernel.unprivileged_userns_clone is 0"
		f.Fix = append([]string{fixUnprivileged}, keep(setting(fixUnprivileged))...)
	case errors.Is(err, syscall.EPERM) && x.filtered():
		f.Found = "a system call filter around this process refuses to make user namespaces, as containers have one"
		f.Fix = x.outside()
	case x.appArmorRefuses(made):
		f.Found = "AppArmor refuses to make a user namespace" + label(made.Label)
		f.Fix = x.appArmorFixes(x.setting())
	case errors.Is(err, syscall.EACCES):
		f.Found = "a security module refuses to make user namespaces" + label(made.Label)
		f.Fix = allNamespaceFixes(x)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		f.Found = fmt.Sprintf("this kernel has no user namespaces (%v)", err)
		f.Fix = []string{"# take a kernel that is built with CONFIG_USER_NS"}
	default:
		f.Found = "no user namespace can be made: " + made.why()
		f.Fix = allNamespaceFixes(x)
	}
	return f
}

// powerless finds words for a namespace in which nothing may be done.
func (x *examination) powerless(inside Answer) Finding {
	f := Finding{Status: Fail, Costs: noBox, Verify: verifyNamespaces}
	op, denied := inside.first(), inside.denied()
	switch {
	case denied && x.restricted(inside):
		f.Found = "a user namespace is made, and AppArmor denies every capability in it" + label(inside.Label)
		f.Fix = x.appArmorFixes(x.bySetting(inside))
	case denied && op != nil && op.What == opProc:
		f.Found = "a user namespace is made, and no proc file system can be mounted in it: parts of /proc are covered here, as containers do it"
		f.Fix = x.outside()
		f.Verify = "unshare --user --map-root-user --mount --pid --fork mount -t proc none /proc"
	case denied && (x.place.contained() || x.filtered()):
		f.Found = fmt.Sprintf("a user namespace is made, and nothing may be mounted in it (%s)%s", inside.why(), label(inside.Label))
		f.Fix = x.outside()
	default:
		f.Found = "a user namespace is made, and building a box in it fails: " + inside.why() + label(inside.Label)
		f.Fix = allNamespaceFixes(x)
	}
	return f
}

// restricted says whether it is AppArmor that takes the capabilities away, by
// the machine's setting or by the profile that it moved the process to. What a
// container is confined by is another matter, which is lifted outside of it; the
// setting of the machine holds in it too.
func (x *examination) restricted(inside Answer) bool {
	if x.bySetting(inside) {
		return true
	}
	return !x.place.contained() && inside.confined()
}

// restrictedProfile is where Ubuntu's setting moves a process to that makes a user
// namespace. The setting itself may be root's to read.
const restrictedProfile = "unprivileged_userns"

// setting says whether the machine's setting restricts anything, to any degree.
func (x *examination) setting() bool {
	value := x.line(appArmorSetting)
	return value != "" && value != "0"
}

// bySetting says whether it is the setting.
func (x *examination) bySetting(inside Answer) bool {
	return strings.HasPrefix(inside.Label, restrictedProfile) || !x.place.contained() && x.setting()
}

// appArmorRefuses says whether it is AppArmor that lets no namespace be made: by
// the machine's setting, where the profile that it moves processes to is not
// loaded, or by a profile that this process is confined by.
func (x *examination) appArmorRefuses(made Answer) bool {
	if !errors.Is(made.Start, syscall.EACCES) || x.place.contained() {
		return false
	}
	return x.setting() || made.confined()
}

// appArmorFixes are what helps against its restriction. Only the machine's setting
// can be lifted for all.
func (x *examination) appArmorFixes(setting bool) []string {
	fix := []string{
		"# for this program alone, and undone at its end; it takes sudo:",
		"untrusted-steps run --host-setup auto FILE",
		"# the same for all runs of this account, until untrusted-steps prepare --undo:",
		"untrusted-steps prepare",
	}
	if setting {
		fix = append(fix, "# or for everything on this machine, until it restarts:", fixAppArmor)
	}
	return fix
}

func label(name string) string {
	if name == "" || name == "unconfined" {
		return ""
	}
	return ", under its profile " + name
}

// filtered says whether a system call filter is on this process.
func (x *examination) filtered() bool { return x.field(selfStatus, "Seccomp") == "2" }

// allNamespaceFixes are the commands against all that is known to be behind it.
func allNamespaceFixes(x *examination) []string {
	if x.place.contained() {
		return x.outside()
	}
	return append([]string{
		fixAppArmor + "   # where AppArmor restricts user namespaces (Ubuntu 24.04)",
		fixMaxNamespaces + "                   # where they are turned off",
	}, x.outside()...)
}

// ownIDMap maps ids from inside, as the kern binary does. What native does, which
// maps them from outside, was tried before.
func ownIDMap(ctx context.Context, x *examination) Finding {
	a := x.m.Try(ctx, Trial{What: tryOwnMap})
	if a.worked() {
		return Finding{Status: OK, Found: "a process can map its ids itself in a user namespace of its own"}
	}
	return Finding{
		Status: Warn, Found: "a process cannot map its ids itself in a user namespace of its own: " + a.why(),
		Costs: "engine kern, whose binary does that; see user-namespaces", Verify: "unshare --user --map-root-user true",
	}
}

// opProc is the trial that a covered /proc fails.
const opProc = "mount proc"

// seccompListener has a filter installed that reports.
func seccompListener(ctx context.Context, x *examination) Finding {
	a := x.m.Try(ctx, Trial{What: tryFilter})
	if a.worked() {
		return Finding{Status: OK, Found: "a system call filter that reports was installed"}
	}
	f := Finding{
		Status: Fail, Found: "no system call filter that reports can be installed: " + a.why(),
		Costs: "no box of engine native", Verify: "untrusted-steps doctor",
		Fix: []string{"# take a kernel of 5.12 or newer with CONFIG_SECCOMP_FILTER"},
	}
	if op := a.first(); op != nil && op.Errno == syscall.EBUSY {
		f.Found = "a filter around this process has a listener of its own already, and the kernel allows one"
		f.Fix = []string{"# run outside of the program that supervises this one by seccomp notifications"}
		if x.place.contained() {
			f.Fix = x.outside()
		}
	}
	return f
}

// memoryPrograms starts a program from memory. A box's first process is one, so
// that a step can find no file behind it to write to.
func memoryPrograms(ctx context.Context, x *examination) Finding {
	a := x.m.Try(ctx, Trial{What: tryMemory})
	if a.worked() {
		return Finding{Status: OK, Found: "a program that lies in memory was started"}
	}
	f := Finding{
		Status: Fail, Found: "no program that lies in memory can be started: " + a.why(), Costs: noBox, Verify: "sysctl vm.memfd_noexec",
		Fix: []string{"# let the security module of this machine allow programs in memory (memfd_create)"},
	}
	if n := x.line("/proc/sys/vm/memfd_noexec"); n == "2" {
		f.Found += "; vm.memfd_noexec is 2"
		f.Fix = []string{"sudo sysctl -w vm.memfd_noexec=1"}
	}
	return f
}

// minKernel brought id-mapped mounts. Overlays in a user namespace are from the
// version before.
var minKernel = [2]int{5, 12}

var releasePattern = lazy.Regexp(`^(\d+)\.(\d+)`)

func kernelVersion(_ context.Context, x *examination) Finding {
	release := x.line("/proc/sys/kernel/osrelease")
	m := releasePattern().FindStringSubmatch(release)
	f := Finding{Status: OK, Found: "Linux " + release, Verify: "uname -r"}
	if m == nil {
		f.Status, f.Found = Warn, fmt.Sprintf("the kernel calls itself %q, which is no version", release)
		return f
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major > minKernel[0] || major == minKernel[0] && minor >= minKernel[1] {
		f.Verify = ""
		return f
	}
	f.Status = Fail
	f.Found = fmt.Sprintf("Linux %s, and boxes need %d.%d or newer", release, minKernel[0], minKernel[1])
	f.Costs = noBox
	switch {
	case isWSL(x.m):
		f.Fix = []string{"# in Windows:", "wsl.exe --update"}
	case x.place.contained():
		f.Fix = []string{"# a container has the kernel of its machine: run on a newer one"}
	default:
		f.Fix = []string{
			"# install a newer kernel and restart; Ubuntu 20.04 and 22.04:",
			"sudo apt-get install linux-generic-hwe-$(. /etc/os-release; echo $VERSION_ID)",
			"# Debian 11:",
			"sudo apt-get install -t bullseye-backports linux-image-amd64",
		}
	}
	return f
}
