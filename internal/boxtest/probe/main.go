package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Arg is the first argument that makes a program the probe.
const Arg = "boxtest-probe"

// Op is one thing to try.
type Op struct {
	Do   string   `json:"do"`
	Args []string `json:"args,omitempty"`
}

// Do makes an op.
func Do(do string, args ...string) Op { return Op{do, args} }

// Answer is what came of an op.
type Answer struct {
	// Err is the name of the errno, or other words; empty if it worked.
	Err  string   `json:"err,omitempty"`
	Text string   `json:"text,omitempty"`
	List []string `json:"list,omitempty"`
	N    int64    `json:"n,omitempty"`
}

// IsProbe says whether this program was started as the probe.
func IsProbe(args []string) bool { return len(args) == 3 && args[1] == Arg }

// Args is the command line of the probe, without the program, for some ops.
func Args(ops ...Op) []string {
	b, err := json.Marshal(ops)
	if err != nil {
		panic(err) // strings always encode
	}
	return []string{Arg, string(b)}
}

// Main tries each op and prints its answer as a line of JSON. It does not
// return.
func Main(args []string) {
	var ops []Op
	if err := json.Unmarshal([]byte(args[2]), &ops); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(98)
	}
	out := json.NewEncoder(os.Stdout)
	for _, op := range ops {
		a := try(op)
		if err := out.Encode(a); err != nil {
			os.Exit(97)
		}
	}
	os.Exit(0)
}

func try(op Op) Answer {
	for _, table := range [][]action{process, files, network, calls, loads} {
		for _, act := range table {
			if act.name != op.Do {
				continue
			}
			if len(op.Args) < act.args {
				return Answer{Err: fmt.Sprintf("%s takes %d arguments", op.Do, act.args)}
			}
			return act.do(op.Args)
		}
	}
	return Answer{Err: "no such op: " + op.Do}
}

// action is one kind of op; args is how many arguments it cannot do without.
type action struct {
	name string
	args int
	do   func([]string) Answer
}

// failed is the answer to an error: the errno's name where there is one.
func failed(err error) Answer {
	if err == nil {
		return Answer{}
	}
	var en syscall.Errno
	if errors.As(err, &en) {
		if en == 0 {
			return Answer{}
		}
		if n := unix.ErrnoName(en); n != "" {
			return Answer{Err: n}
		}
		return Answer{Err: fmt.Sprintf("errno %d", int(en))}
	}
	return Answer{Err: err.Error()}
}

func number(s string) int {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return int(n)
}

// nested runs ops in a process of its own. With deep they run in a grandchild.
func nested(args []string, deep bool) Answer {
	argv := []string{Arg, args[0]}
	if deep {
		argv = Args(Do("child", args[0]))
	}
	cmd := exec.Command("/proc/self/exe", argv...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	a := Answer{Text: string(text), N: int64(cmd.ProcessState.ExitCode())}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		a.Err = unix.SignalName(ws.Signal())
	} else if err != nil {
		a.Err = err.Error()
	}
	return a
}

// In wraps ops as the argument of child and grandchild.
func In(do string, ops ...Op) Op { return Do(do, Args(ops...)[1]) }

// OK says that it worked.
func (a Answer) OK() bool { return a.Err == "" }
