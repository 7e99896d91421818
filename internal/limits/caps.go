package limits

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// Caps are the limits of one step. 0 means none asked for.
type Caps struct {
	MemoryBytes int64
	Pids        int64
	CPUs        float64
}

const (
	// startupPids is how many processes and threads an engine may need, on top
	// of the step's own allowance, until ExcludeInit sets the real cap.
	startupPids = 64
	// cpuPeriod is the kernel's default accounting period, in microseconds.
	cpuPeriod = 100_000
	// minCPUQuota is the smallest quota the kernel takes, in microseconds.
	minCPUQuota = 1_000
	// maxPids is the kernel's own upper bound (PID_MAX_LIMIT).
	maxPids = 1 << 22
	// maxCPUs is far above any machine and far below an overflow.
	maxCPUs = 1 << 16
)

func (c Caps) check() error {
	switch page := int64(os.Getpagesize()); {
	case c.MemoryBytes < 0:
		return fmt.Errorf("memory cap of %d bytes is negative", c.MemoryBytes)
	case c.MemoryBytes > 0 && c.MemoryBytes < page:
		return fmt.Errorf("memory cap of %d bytes is less than one page (%d)", c.MemoryBytes, page)
	case c.Pids < 0 || c.Pids > maxPids-startupPids:
		return fmt.Errorf("pids cap of %d is not in 0 to %d", c.Pids, maxPids-startupPids)
	case math.IsNaN(c.CPUs) || c.CPUs < 0 || c.CPUs > maxCPUs:
		return fmt.Errorf("cpus of %g is not in 0 to %d", c.CPUs, maxCPUs)
	}
	return nil
}

// wholePages is what the kernel makes of a number of bytes.
func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return n / page * page
}

// cpuQuota is a number of CPUs as microseconds per cpuPeriod.
func cpuQuota(cpus float64) int64 {
	return max(int64(math.Round(cpus*cpuPeriod)), minCPUQuota)
}

// Stats is what the kernel counted in one group.
type Stats struct {
	// OOMKills is how many processes the OOM killer ended.
	OOMKills uint64
	// PidsRefused is how often a fork or clone was refused at the cap.
	PidsRefused uint64
	PeakMemory  int64 // bytes, the box's first process included
	// PeakSampled: the kernel keeps no peak of memory, so it was more at times.
	PeakSampled bool
	CPU         time.Duration // used since ExcludeInit
	// PeakPids is without the box's own first process. Where the kernel keeps
	// no peak it is the highest number seen at a sample.
	PeakPids    int64
	CurrentPids int64 // the box's own first process included
}

// Things that a kernel may be too old to count; see Manager.Unseen.
const (
	unseenOOM  = "oom: this kernel does not count the processes it kills for memory"
	unseenPids = "pids_limit: this kernel does not count the forks it refuses"
)

// errNoField is a file without the line asked for.
var errNoField = errors.New("no such line")

// field finds "name value" in a file of such lines.
func field(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return number(f[1])
		}
	}
	return 0, fmt.Errorf("%w: %s", errNoField, name)
}

// number reads what the kernel writes for one; "max" is the largest.
func number(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}
