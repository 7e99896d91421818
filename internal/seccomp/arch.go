package seccomp

import (
	"fmt"
	"strconv"
	"strings"
)

// The kernel's names for calling conventions (linux/audit.h).
const (
	auditAMD64 = 0xc000003e
	auditI386  = 0x40000003
	auditARM64 = 0xc00000b7
	auditARM   = 0x40000028
)

// The x32 convention has the audit name of amd64 and this bit in the number.
// Numbers with the top bit set belong to nobody: programs use -1 for a call
// that their headers do not know and expect ENOSYS.
const (
	x32Bit    = 0x40000000
	negatives = 0x80000000
)

// architecture is what differs between the two machines we run on.
type architecture struct {
	name   string // as in GOARCH and in the profile
	audit  uint32
	x32    bool
	column int // in the table of numbers
}

var (
	amd64 = architecture{name: "amd64", audit: auditAMD64, x32: true, column: 1}
	arm64 = architecture{name: "arm64", audit: auditARM64, column: 2}
)

func architectureOf(name string) (architecture, error) {
	for _, a := range []architecture{amd64, arm64} {
		if a.name == name {
			return a, nil
		}
	}
	return architecture{}, fmt.Errorf("no system call filter for architecture %q: there are amd64 and arm64", name)
}

// calls gives the number of each system call of the architecture.
func (a architecture) calls() (map[string]uint32, error) {
	all := make(map[string]uint32, 400)
	for line := range strings.Lines(numbers) {
		f := strings.Fields(line)
		if len(f) == 0 || len(f) == 3 && f[a.column] == "-" {
			continue
		}
		if len(f) != 3 {
			return nil, fmt.Errorf("seccomp: bug: table of numbers has the line %q", line)
		}
		n, err := strconv.ParseUint(f[a.column], 10, 16)
		if err != nil {
			return nil, fmt.Errorf("seccomp: bug: table of numbers: %w", err)
		}
		all[f[0]] = uint32(n)
	}
	return all, nil
}
