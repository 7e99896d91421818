package limits

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// LeafName is the group that we, and what belongs to our job, move into when a
// cgroup2 group must be free of processes to have children with caps.
const LeafName = "untrusted-steps-main"

const (
	namePrefix = "untrusted-steps-"
	// nameSuffix keeps a step called x.service from looking like a unit.
	nameSuffix = ".box"
	worldLen   = 16
)

var idPattern = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`)

// owner is the run that made a group, told apart from every other process that
// ever had or will have its pid.
type owner struct {
	// world is a sum over what a pid and a start time mean something in: this
	// boot, this pid namespace, this time namespace.
	world string
	pid   int
	start uint64 // clock ticks since boot
}

func world(bootID, pidNamespace, timeNamespace string) string {
	sum := sha256.Sum256([]byte(bootID + "\n" + pidNamespace + "\n" + timeNamespace))
	return hex.EncodeToString(sum[:])[:worldLen]
}

// groupName is the folder name of a step's group.
func groupName(o owner, runID string, seq uint64, id string) string {
	return fmt.Sprintf("%s%s-%d-%d-%s-%d-%s%s", namePrefix, o.world, o.pid, o.start, runID, seq, id, nameSuffix)
}

// parseName tells whose group a folder is. ok is false for every name that
// groupName would not have written.
func parseName(name string) (o owner, ok bool) {
	rest, found := strings.CutPrefix(name, namePrefix)
	if !found {
		return owner{}, false
	}
	rest, found = strings.CutSuffix(rest, nameSuffix)
	f := strings.SplitN(rest, "-", 6)
	if !found || len(f) != 6 || len(f[0]) != worldLen || !runIDPattern().MatchString(f[3]) || !idPattern().MatchString(f[5]) {
		return owner{}, false
	}
	pid, errPID := strconv.Atoi(f[1])
	start, errStart := strconv.ParseUint(f[2], 10, 64)
	seq, errSeq := strconv.ParseUint(f[4], 10, 64)
	if errPID != nil || errStart != nil || errSeq != nil || pid <= 0 {
		return owner{}, false
	}
	o = owner{world: f[0], pid: pid, start: start}
	if groupName(o, f[3], seq, f[5]) != name {
		return owner{}, false
	}
	return o, true
}

// procStat is what /proc/PID/stat says of a process.
type procStat struct {
	state  byte
	parent int
	start  uint64
}

// parseStat reads /proc/PID/stat. The program's name, second field, is chosen
// by the process and may hold spaces and parentheses: only what follows the
// last parenthesis counts.
func parseStat(text string) (procStat, error) {
	_, rest, ok := cutLast(text, ")")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, fmt.Errorf("process status %q has too few fields", text)
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return procStat{}, fmt.Errorf("parent in process status: %w", err)
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("start time in process status: %w", err)
	}
	return procStat{state: f[0][0], parent: parent, start: start}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
