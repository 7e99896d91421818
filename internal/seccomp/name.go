package seccomp

import (
	"fmt"
	"strings"
)

// namespaceFlags are clone's, in the order of their bits.
var namespaceFlags = []struct {
	bit  uint64
	name string
}{
	{0x00020000, "CLONE_NEWNS"},
	{0x02000000, "CLONE_NEWCGROUP"},
	{0x04000000, "CLONE_NEWUTS"},
	{0x08000000, "CLONE_NEWIPC"},
	{0x10000000, "CLONE_NEWUSER"},
	{0x20000000, "CLONE_NEWPID"},
	{0x40000000, "CLONE_NEWNET"},
}

// namer names reported calls.
type namer struct {
	audit uint32
	x32   bool
	names map[uint32]string // of the calls that our filter reports
}

func newNamer(a architecture) (namer, error) {
	calls, err := a.calls()
	if err != nil {
		return namer{}, err
	}
	n := namer{audit: a.audit, x32: a.x32, names: map[uint32]string{calls["clone"]: "clone"}}
	for _, name := range escapeCalls {
		n.names[calls[name]] = name
	}
	return n, nil
}

// name says which call was made, in words that no caller can choose.
func (n namer) name(c callData) string {
	number := uint32(c.Number)
	switch {
	case c.Arch == n.audit && n.x32 && number&x32Bit != 0:
		return fmt.Sprintf("x32 system call %d", number&^x32Bit)
	case c.Arch == n.audit && n.names[number] == "clone":
		return "clone" + flagsOf(c.Args[0])
	case c.Arch == n.audit && n.names[number] != "":
		return n.names[number]
	case c.Arch == n.audit:
		return fmt.Sprintf("system call %d", number)
	}
	for _, other := range []struct {
		audit uint32
		name  string
	}{{auditI386, "i386"}, {auditARM, "arm"}, {auditAMD64, "amd64"}, {auditARM64, "arm64"}} {
		if c.Arch == other.audit {
			return fmt.Sprintf("%s system call %d", other.name, number)
		}
	}
	return fmt.Sprintf("system call %d of architecture 0x%x", number, c.Arch)
}

func flagsOf(flags uint64) string {
	var set []string
	for _, f := range namespaceFlags {
		if flags&f.bit != 0 {
			set = append(set, f.name)
		}
	}
	if len(set) == 0 {
		return ""
	}
	return " with " + strings.Join(set, "|")
}

// callData is struct seccomp_data.
type callData struct {
	Number int32
	Arch   uint32
	IP     uint64
	Args   [6]uint64
}
