package box

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Escape is one forbidden system call that the kernel stopped and told us of.
type Escape struct {
	Syscall string // name, or "i386 system call 20"
	Program string // what the calling process had as its program; untrusted text
}

// Denied is a network destination that no rule allowed.
type Denied struct {
	Host   string // untrusted text
	Port   int
	Reason string
	Rule   string // the line that would allow it; empty where none would
	Count  uint64
}

// advice is what to write to have it allowed.
func (d Denied) advice() string {
	if d.Reason == egress.ReasonIPLiteral {
		text := "name the host in place of the address"
		if entry := egress.AddressEntry(d.Host, d.Port); entry != "" {
			text += ", or add " + entry + " to egressAllow"
		}
		return text
	}
	if d.Rule == "" {
		return ""
	}
	return fmt.Sprintf("to allow it, add %q to egressAllow", d.Rule)
}

// Evidence is what was measured while a step ran. Everything in it comes from
// the kernel, from our clock or from our proxy; nothing in it was chosen by the
// code in the box except the exit status, which decides nothing but itself.
//
// The zero value is "nothing is known", which Classify answers with no verdict.
type Evidence struct {
	// Status is the wait status of the step's own process, read by the box's
	// first process. nil: the step never ran or its end was not seen.
	Status *syscall.WaitStatus
	// ExecFailure is why the command could not be started; empty if it was.
	ExecFailure string
	ExecAdvice  string // the lines that would show it, if there are any
	// StartupFailure is why the box could not be built from what the step names.
	StartupFailure string

	// Wanted is the fault that the step is to end with, or "": nobody is told what
	// would avert it.
	Wanted FaultType

	DeadlinePassed bool
	TimeoutS       float64

	OOMKills    uint64
	MemoryMb    int64
	PeakMemory  int64 // bytes
	PeakSampled bool  // PeakMemory is what was seen at some moments, not the most there was
	Escapes     []Escape
	EscapesMore uint64 // escapes counted but not kept
	PidsRefused uint64
	Pids        int64
	Disk        DiskUse
	// DiskEnded: the box was ended because its layer was full. So there is no
	// status, and nothing is missing.
	DiskEnded  bool
	EgressLost string // words; empty if the proxy lived
	Denied     []Denied

	// InitKilled: the box's first process died of a SIGKILL, none of ours.
	InitKilled bool
	// Lost is why no verdict is possible; empty if one is.
	Lost string
	// Cancelled: the run was told to stop.
	Cancelled bool
}

// With adds what was measured later in the same box, when it had no work (see Live).
// How the work ended stays what it was.
func (e Evidence) With(later Evidence) Evidence {
	e.OOMKills += later.OOMKills
	e.PeakMemory, e.PeakSampled = max(e.PeakMemory, later.PeakMemory), e.PeakSampled || later.PeakSampled
	e.Escapes = slices.Concat(e.Escapes, later.Escapes)
	e.EscapesMore += later.EscapesMore
	e.PidsRefused += later.PidsRefused
	e.Denied = slices.Clone(e.Denied)
	for _, d := range later.Denied {
		same := func(was Denied) bool { was.Count = d.Count; return was == d }
		if i := slices.IndexFunc(e.Denied, same); i >= 0 {
			e.Denied[i].Count += d.Count
		} else {
			e.Denied = append(e.Denied, d)
		}
	}
	e.EgressLost = cmp.Or(e.EgressLost, later.EgressLost)
	e.InitKilled = e.InitKilled || later.InitKilled
	e.Lost = cmp.Or(e.Lost, later.Lost)
	return e
}

// Verdict is what the evidence amounts to.
type Verdict struct {
	ExitCode *int
	Signal   string // such as "SIGKILL"; empty if the step ended by itself
	Fault    *Fault
	Events   []Event
	// NoVerdict is why nothing can be said; empty if something can.
	NoVerdict string
}

// Classify turns evidence into a verdict. It is the only place that does, for
// every engine. A fault type in tolerate stays among the events and does not
// become the fault.
//
// Exit codes never make a fault: 124 to 159 are numbers any program can choose.
func Classify(e Evidence, tolerate []FaultType) Verdict {
	var v Verdict
	if e.Status != nil {
		switch {
		case e.Status.Exited():
			code := e.Status.ExitStatus()
			v.ExitCode = &code
		case e.Status.Signaled():
			v.Signal = SignalName(e.Status.Signal())
		}
	}
	// advice is what to write where the fault is not to happen again.
	add := func(t FaultType, n uint64, what, advice string) {
		if advice != "" && t != e.Wanted {
			what += "; " + advice
		}
		v.Events = append(v.Events, Event{Type: t, Message: what, Count: n})
	}

	if e.DeadlinePassed {
		add(Timeout, 1, fmt.Sprintf("still running after %gs (timeoutS)", e.TimeoutS), "write a larger timeoutS to allow more")
	}
	if e.OOMKills > 0 {
		what, advice := oomMessage(e)
		add(OOM, e.OOMKills, what, advice)
	}
	if n := uint64(len(e.Escapes)) + e.EscapesMore; n > 0 {
		add(EscapeBlocked, n, escapeMessage(e), "")
	}
	if e.PidsRefused > 0 {
		add(PidsLimit, e.PidsRefused, fmt.Sprintf("a new process or thread was refused %s: all %d of pids were in use", times(e.PidsRefused), e.Pids),
			fmt.Sprintf("write pids: %d to allow more", e.Pids*2))
	}
	if e.Disk.Full || e.Disk.Over || e.DiskEnded {
		what, advice := e.Disk.message()
		add(DiskLimit, 1, what, advice)
	}
	if e.EgressLost != "" {
		add(EgressLost, 1, e.EgressLost, "")
	}
	for _, d := range e.Denied {
		add(EgressDenied, d.Count, fmt.Sprintf("%s:%d refused (%s)", d.Host, d.Port, d.Reason), d.advice())
	}
	// A SIGKILL to the first process is what the OOM killer does too.
	if e.InitKilled && e.OOMKills == 0 {
		add(Killed, 1, "the box's first process was killed by something outside the box", "")
	}
	if e.ExecFailure != "" {
		add(ExecFailed, 1, e.ExecFailure, e.ExecAdvice)
	}
	if e.StartupFailure != "" {
		add(StartupFailed, 1, e.StartupFailure, "")
	}

	for _, ev := range v.Events {
		if !slices.Contains(tolerate, ev.Type) {
			v.Fault = &Fault{Type: ev.Type, Message: ev.Message}
			break
		}
	}

	switch {
	case e.Lost != "":
		v.NoVerdict = e.Lost
	case e.Cancelled:
		// Said by the caller; a cancelled step has no verdict of its own.
	case e.Status == nil && !e.DiskEnded && !ends(v.Events):
		v.NoVerdict = "the end of the step was not seen"
	}
	return v
}

// plainWord quotes what a step chose, unless it is plain text. A program can be
// named with a line break and what looks like lines of ours.
func plainWord(s string) string {
	if q := strconv.Quote(s); q != `"`+s+`"` || strings.ContainsAny(s, " ,;:") {
		return q
	}
	return s
}

// ends says whether one of the events is itself how a step ends, so that there
// need be no status. A denied request or a refused fork is not.
func ends(events []Event) bool {
	for _, ev := range events {
		switch ev.Type {
		case Timeout, OOM, Killed, ExecFailed, StartupFailed:
			return true
		}
	}
	return false
}

// nearCap is the percentage of a step's own cap below which its memory cannot
// have run out there. Above it the kernel may have failed to find a large piece.
const nearCap = 90

func oomMessage(e Evidence) (what, advice string) {
	what = "the kernel killed " + plural(e.OOMKills, "process", "processes") + " for memory"
	if e.MemoryMb <= 0 {
		return what, ""
	}
	what += fmt.Sprintf(": memoryMb is %d", e.MemoryMb)
	if e.PeakMemory > 0 {
		what += fmt.Sprintf(", the peak was %d MiB", (e.PeakMemory+(1<<20)-1)>>20)
		if !e.PeakSampled && e.PeakMemory < e.MemoryMb<<20/100*nearCap {
			return what + "; so memory ran out outside the step's own cap: on the host, or in a group around ours; more memoryMb would not help", ""
		}
	}
	return what, fmt.Sprintf("write memoryMb: %d to allow more", e.MemoryMb*2)
}

func escapeMessage(e Evidence) string {
	if len(e.Escapes) == 0 {
		return "a forbidden system call was stopped; a signal, or its caller's death, took it back before it could be named"
	}
	first := e.Escapes[0]
	if first.Program == "" && first.Syscall == "a system call" {
		return "the step's own process was killed for a forbidden system call (SIGSYS)"
	}
	msg := fmt.Sprintf("%s called %s, which is forbidden in a box", plainWord(first.Program), first.Syscall)
	if first.Program == "" {
		msg = fmt.Sprintf("%s was called, which is forbidden in a box", first.Syscall)
	}
	if rest := uint64(len(e.Escapes)) - 1 + e.EscapesMore; rest > 0 {
		msg += fmt.Sprintf(" (and %d more)", rest)
	}
	return msg
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "a " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
