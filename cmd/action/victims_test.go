package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// descendant is a process below one of ours, held so that no other can be taken
// for it.
type descendant struct {
	pid   int
	comm  string
	depth int
	fd    int
}

// descendants lists the processes below one, the nearest first. What ends meanwhile is
// left out.
func descendants(pid, depth int) (out []descendant) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, path := range lists {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			if d, ok := hold(child, pid, depth); ok {
				out = append(out, d)
			}
			out = append(out, descendants(child, depth+1)...)
		}
	}
	return out
}

// hold opens a process and then looks whether it is still the child it was seen to
// be: its number may be another's by now.
func hold(pid, parent, depth int) (descendant, bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return descendant{}, false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		// pid (comm) state ppid
		open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if open >= 0 && end > open {
			f := strings.Fields(string(stat[end+1:]))
			if len(f) > 1 && f[1] == strconv.Itoa(parent) && f[0] != "Z" {
				return descendant{pid, string(stat[open+1 : end]), depth, fd}, true
			}
		}
	}
	unix.Close(fd)
	return descendant{}, false
}

// TestAttack159AnyProcessKilledAtAnyMoment: whichever process below ours is killed,
// whenever: kern, its launcher, the box's first process with its end of the way
// out, the step's own, mkfs. A run that passes has run its step to the end, and
// what the step wrote is in the workspace; one that does not has left nothing
// there. Nothing of the box is left in either case.
func TestAttack159AnyProcessKilledAtAnyMoment(t *testing.T) {
	const early, late = 10, 8
	eachEngine(t, func(t *testing.T, engine string) {
		victims := map[string]int{} // killed, by name, where the run did not pass
		passed := 0
		for i := range early + late {
			mark := marker()
			r := prepare(t, engine, fmt.Sprintf(`
steps:
  - id: one
    egressAllow: [example.com]
    run: |
      echo half >half
      echo begun
      sleep %s &
      sleep 0.2
      kill $!
      echo done >done
`, mark))
			// Some moments lie before the step's command, while its box is made, some in
			// the step and at its end.
			if i < early {
				r.start()
				time.Sleep(time.Duration(i) * 15 * time.Millisecond)
			} else {
				r.begin()
				time.Sleep(time.Duration(i-early) * 30 * time.Millisecond)
			}
			victim := ""
			list := descendants(r.cmd.Process.Pid, 1)
			if len(list) > 0 {
				d := list[i%len(list)]
				if err := unix.PidfdSendSignal(d.fd, unix.SIGKILL, nil, 0); err == nil {
					victim = fmt.Sprintf("%s at depth %d", d.comm, d.depth)
				}
			}
			for _, d := range list {
				unix.Close(d.fd)
			}
			code := r.end()
			ws := filepath.Join(r.dir, "ws")
			entries, err := os.ReadDir(ws)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			switch {
			case code == exitPass:
				passed++
				if !slices.Equal(names, []string{"done", "half"}) {
					t.Errorf("passed after %s was killed, and the workspace has %v\n%s", victim, names, &r.log)
				}
			case victim == "":
				t.Errorf("nobody was killed, and the exit status is %d\n%s", code, &r.log)
			default:
				victims[victim]++
				if len(names) > 0 {
					t.Errorf("exit status %d after %s was killed, and the workspace has %v\n%s", code, victim, names, &r.log)
				}
				if code != exitFail && code != exitNoVerdict && code != exitRefused {
					t.Errorf("exit status %d after %s was killed\n%s", code, victim, &r.log)
				}
			}
			report, err := os.ReadFile(filepath.Join(r.dir, "out", "report.json"))
			if err != nil {
				t.Errorf("no report, after %s was killed: %v\n%s", victim, err, &r.log)
			} else if got := verdictIn(t, report); exitOf(got) != code {
				t.Errorf("verdict %s and exit status %d, after %s was killed", got, code, victim)
			}
			if left := alive(t, mark); len(left) > 0 {
				t.Errorf("after %s was killed, processes of the box are left: %v", victim, left)
			}
			if left := groups(t, r.cmd.Process.Pid); len(left) > 0 {
				t.Errorf("after %s was killed, control groups are left: %v", victim, left)
			}
			nothingBeside(t, r.dir)
			if left := ofKernel(t, r.dir); len(left) > 0 {
				t.Errorf("after %s was killed, the kernel holds %v", victim, left)
			}
		}
		t.Logf("%d runs of %d passed; the others did not after the death of %v", passed, early+late, slices.Sorted(maps.Keys(victims)))
		if len(victims) < 2 {
			t.Errorf("only %v were killed to any effect: this shows little", victims)
		}
	})
}

// verdictIn is the verdict of a report.
func verdictIn(t *testing.T, report []byte) string {
	t.Helper()
	var r steps.Result
	if err := json.Unmarshal(report, &r); err != nil {
		t.Errorf("the report cannot be read: %v", err)
	}
	return string(r.Verdict)
}
