package seccomp

import "slices"

// escapeCalls only lead out of a box: a step that makes one is killed and the
// call is reported, whatever the profile says.
var escapeCalls = []string{
	"ptrace", "process_vm_readv", "process_vm_writev",
	"kexec_load", "kexec_file_load",
	"init_module", "finit_module", "delete_module",
	"reboot", "swapon", "swapoff",
	"open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
	"bpf",
	"mount", "umount2", "pivot_root",
	"unshare", "setns",
}

// EscapeCalls lists the system calls that end their caller and are reported.
// clone with a namespace flag and every call of another architecture come on
// top of them.
func EscapeCalls() []string { return slices.Clone(escapeCalls) }

// absentCalls do not exist in a box, whatever the profile says. Programs try
// them and have something else to fall back on (clone3, io_uring), or they are
// the ways into a kernel that are broken most often.
var absentCalls = []string{
	"clone3",
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	"userfaultfd", "perf_event_open",
	"add_key", "request_key", "keyctl",
	"syslog", "open_by_handle_at",
}

// Values of the kernel's headers that the guards compare with.
const (
	afVsock      = 40 // AF_VSOCK
	prioUser     = 2  // PRIO_USER
	ioprioUser   = 3  // IOPRIO_WHO_USER
	firstProcess = 1  // the box's first process in its own pid namespace
)

// guards come before what the profile says about a call.
//
// The box's first process tells how the step ended and runs as the same user.
// A CPU limit put on it would have the kernel SIGKILL it, which reads like a
// kill from outside the box. prlimit64 takes the id of any of its threads, and
// those are not known here: so a limit is only ever set on oneself (id 0), and
// an unfiltered id is for reading. The scheduling calls reach the first
// process only under its own id and can but slow the step's own box down.
var guards = map[string][]condition{
	// AF_VSOCK reaches the machine's hypervisor from any network namespace.
	"socket": {{low(0), equals, afVsock, noAddressFamily}},
	"prlimit64": {
		{low(0), equals, firstProcess, noPermission},
		{low(0), equals, 0, allow},
		// Both halves of the pointer: an attacker can map a page whose address
		// has 32 zero bits at its end.
		{low(2), differs, 0, noPermission},
		{high(2), differs, 0, noPermission},
	},
	"setpriority": {
		{low(0), equals, prioUser, noPermission},
		{low(1), equals, firstProcess, noPermission},
	},
	"ioprio_set": {
		{low(0), equals, ioprioUser, noPermission},
		{low(1), equals, firstProcess, noPermission},
	},
	"sched_setaffinity":  {{low(0), equals, firstProcess, noPermission}},
	"sched_setattr":      {{low(0), equals, firstProcess, noPermission}},
	"sched_setparam":     {{low(0), equals, firstProcess, noPermission}},
	"sched_setscheduler": {{low(0), equals, firstProcess, noPermission}},
}

// narrowArguments are the arguments that a profile may compare, each of which
// the kernel reads as 32 bits (clone takes the low half of its flags).
var narrowArguments = map[string]int{"clone": 0, "personality": 0, "socket": 0}
