package boxtest

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// Differences is what one engine cannot show or do, and the only way in which
// its facts may differ from those of another. The zero value is no difference.
type Differences struct {
	// ChildEscapes: a forbidden system call of a process that the step's own
	// process started is stopped, and not seen.
	ChildEscapes bool
	// EscapeNames: which call it was, and of which program, is not known.
	EscapeNames bool
	// SentSIGSYS: a SIGSYS that the step sends itself looks like an escape.
	SentSIGSYS bool
	// ProcShown lists files of /proc that tell of the host's hardware and are
	// not masked. They can be read, no more.
	ProcShown []string
	// SysShown: /sys and a control group of the box can be looked at in some
	// boxes, and not changed.
	SysShown bool
	// NoWritable: it refuses, before anything is built, a writable mount over what
	// it writes itself in /etc, and a tmpfs inside a writable mount.
	NoWritable bool
	// EscapesAnswered: a forbidden system call is refused with an error and ends
	// nobody, so nothing is seen of it; with it go the three above.
	EscapesAnswered bool
	// OwnKernel: the kernel in the box is not the host's. The step's processes are
	// none of the host's, a zombie is not counted among them, its counters of what
	// found no route are not read, and descriptors from outside have other names.
	OwnKernel bool
	// OwnDevices: a device node opens the device of that number that the box's own
	// kernel has, wherever it lies, and no mount is said to have none.
	OwnDevices bool
	// InitShown lists files of the first process in /proc that can be opened. They
	// tell how much it has read, or which namespaces there are.
	InitShown []string
	// NoHostSockets: a UNIX socket of the host's in a folder that is shown refuses
	// to be connected to.
	NoHostSockets bool
	// NoWorkspaceMount: the workspace is a folder of the root's mount.
	NoWorkspaceMount bool
}

// table is the published table. An engine without a row has no difference.
var table = []struct {
	engine string
	Differences
}{
	{"native", Differences{}},
	{"kern", Differences{ChildEscapes: true, EscapeNames: true, SentSIGSYS: true, ProcShown: []string{"/proc/interrupts", "/proc/modules", "/proc/acpi"}, SysShown: true, NoWritable: true}},
	{"gvisor", Differences{EscapesAnswered: true, OwnKernel: true, OwnDevices: true, NoWorkspaceMount: true, NoHostSockets: true, SysShown: true,
		InitShown: []string{"/proc/1/io", "/proc/1/ns/net", "/proc/1/ns/user", "/proc/1/ns/mnt"}}},
}

func differences(engine string) Differences {
	for _, row := range table {
		if row.engine == engine {
			return row.Differences
		}
	}
	return Differences{}
}

// published are the words by which an engine has to own up to a difference in
// box.Info.Unobserved, which ends up in the report of every step.
func (d Differences) published() map[string]bool {
	return map[string]bool{
		string(box.EscapeBlocked): d.ChildEscapes || d.EscapeNames || d.SentSIGSYS || d.EscapesAnswered,
	}
}

// unpublished lists the differences that the report does not tell of, and the
// confessions that no row here bears out.
func unpublished(d Differences, info box.Info) []string {
	var wrong []string
	told := map[string]bool{}
	for _, line := range info.Unobserved {
		fault, _, _ := strings.Cut(line, ":")
		if _, ok := box.Kind(box.FaultType(fault)); !ok {
			wrong = append(wrong, fmt.Sprintf("unobserved: %q does not begin with a fault type", line))
		}
		told[fault] = true
	}
	for fault, differs := range d.published() {
		if differs && !told[fault] {
			wrong = append(wrong, fmt.Sprintf("engine %s may not see %s and does not say so in Info().Unobserved", info.Name, fault))
		}
	}
	for fault := range told {
		if !d.published()[fault] {
			wrong = append(wrong, fmt.Sprintf("engine %s says that it may not see %s; the table of differences says it does", info.Name, fault))
		}
	}
	return wrong
}
