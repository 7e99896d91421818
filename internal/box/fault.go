package box

// FaultType is one way the sandbox, not the step, ended or marred a run.
type FaultType string

// The fault types, in the order in which the first that applies becomes the
// step's fault.
const (
	Timeout       FaultType = "timeout"
	OOM           FaultType = "oom"
	EscapeBlocked FaultType = "escape_blocked"
	PidsLimit     FaultType = "pids_limit"
	DiskLimit     FaultType = "disk_limit"
	EgressLost    FaultType = "egress_lost"
	EgressDenied  FaultType = "egress_denied"
	Killed        FaultType = "killed"
	ExecFailed    FaultType = "exec_failed"
	StartupFailed FaultType = "startup_failed"
)

// FaultKind is what there is to say about a fault type wherever it happens.
type FaultKind struct {
	Type  FaultType
	Title string // a few words, for a table
	Means string // one sentence: what was measured
	Hint  string // what to do next
}

// Kinds lists every fault type once, in order of precedence.
var Kinds = []FaultKind{
	{Timeout, "deadline passed", "The step was still running when its own deadline, kept by our clock, passed.",
		"raise timeoutS, or find what the step waits for"},
	{OOM, "out of memory", "The kernel's OOM killer ended a process in the step's control group.",
		"raise memoryMb if the step's own cap was reached, or make the step need less"},
	{EscapeBlocked, "escape blocked", "A process of the step made a system call that only leads out of a box.",
		"find which program makes that call; no key allows it"},
	{PidsLimit, "process limit", "The kernel refused to start a process or thread because the step had as many as pids allows.",
		"raise pids, or run with less parallelism"},
	{DiskLimit, "disk limit", "What the step wrote reached diskMb.",
		"raise diskMb, or write less"},
	{EgressLost, "proxy lost", "The egress proxy stopped while the step ran; the box had no network from then on.",
		"run again; if it repeats, report it"},
	{EgressDenied, "request denied", "The step asked for a network destination that no rule allows.",
		"if the step should reach it, add what the message shows to egressAllow; where it shows nothing, no rule helps as the request stands"},
	{Killed, "killed from outside", "The box's first process, which the step cannot signal, died of a SIGKILL that was not ours.",
		"look for what killed it on the host: an operator, or the host out of memory"},
	{ExecFailed, "command not run", "The command does not exist in the box, or cannot be run there.",
		"name a command that the image has, show it to the box with mounts and PATH, or make it a program: chmod +x, and a #! line if it is a script"},
	{StartupFailed, "box not built", "The box could not be built from what the step names.",
		"check image, workdir and mounts of the step"},
}

// Kind finds the row of a fault type. ok is false for a word that is none.
func Kind(t FaultType) (k FaultKind, ok bool) {
	for _, k := range Kinds {
		if k.Type == t {
			return k, true
		}
	}
	return FaultKind{}, false
}

// Fault is a fault type with what was seen.
type Fault struct {
	Type    FaultType `json:"type"`
	Message string    `json:"message"`
}

// Event is one kind of thing the sandbox saw, with how often.
type Event struct {
	Type    FaultType `json:"type"`
	Message string    `json:"message"`
	Count   uint64    `json:"count"`
}
