package box

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// exited and signaled are wait statuses as the kernel encodes them.
func exited(code int) *syscall.WaitStatus {
	ws := syscall.WaitStatus(code << 8)
	return &ws
}

func signaled(s syscall.Signal) *syscall.WaitStatus {
	ws := syscall.WaitStatus(s)
	return &ws
}

// sign is what one fault type looks like in the evidence. It leaves all else,
// the status above all, as it is.
type sign struct {
	fault FaultType
	add   func(*Evidence)
	says  []string // what the message has to name
	// ends: the step needs no status beside it.
	ends bool
}

// signs are all of them, in the order of precedence.
func signs() []sign {
	return []sign{
		{Timeout, func(e *Evidence) { e.DeadlinePassed, e.TimeoutS = true, 1.5 }, []string{"1.5s", "timeoutS"}, true},
		{OOM, func(e *Evidence) { e.OOMKills, e.MemoryMb, e.PeakMemory = 2, 512, 511<<20+1 },
			[]string{"2 processes", "memoryMb is 512", "512 MiB", "memoryMb: 1024"}, true},
		{EscapeBlocked, func(e *Evidence) { e.Escapes = []Escape{{Syscall: "unshare", Program: "/bin/x"}} }, []string{"/bin/x", "unshare"}, false},
		{PidsLimit, func(e *Evidence) { e.PidsRefused, e.Pids = 3, 64 }, []string{"3 times", "64", "pids: 128"}, false},
		{DiskLimit, func(e *Evidence) {
			e.Disk = DiskUse{By: "loop", BoundBytes: 64 << 20, UsedBytes: 63<<20 + 1, BoundInodes: 64 * 256, UsedInodes: 3, Full: true}
		}, []string{"filled its 64 MiB", "diskMb is 64", "file system", "diskMb: 128"}, false},
		{EgressLost, func(e *Evidence) { e.EgressLost = "the proxy stopped" }, []string{"the proxy stopped"}, false},
		{EgressDenied, func(e *Evidence) {
			e.Denied = []Denied{{Host: "evil.test", Port: 8443, Reason: "no rule", Rule: "evil.test:8443", Count: 4}}
		}, []string{"evil.test:8443", "no rule", `"evil.test:8443"`, "egressAllow"}, false},
		{Killed, func(e *Evidence) { e.InitKilled = true }, []string{"outside the box"}, true},
		{ExecFailed, func(e *Evidence) {
			e.ExecFailure, e.ExecAdvice = `"nope" is not in the box`, "to show it, write mounts"
		}, []string{`"nope" is not in the box; to show it, write mounts`}, true},
		{StartupFailed, func(e *Evidence) { e.StartupFailure = "workdir /none: no such file" }, []string{"/none"}, true},
	}
}

// TestAFaultThatIsWantedComesWithoutAdvice: nobody is told to raise what the step was
// to run into. Other faults of the same step keep theirs.
func TestAFaultThatIsWantedComesWithoutAdvice(t *testing.T) {
	variants := signs()
	for _, more := range []func(*Evidence){
		func(e *Evidence) {
			e.Disk = DiskUse{By: "sampler", BoundBytes: 64 << 20, UsedBytes: 70 << 20, Over: true}
		},
		func(e *Evidence) { e.DiskEnded = true },
	} {
		variants = append(variants, sign{fault: DiskLimit, add: more})
	}
	variants = append(variants, sign{fault: EgressDenied, add: func(e *Evidence) {
		e.Denied = []Denied{{Host: "192.0.2.1", Port: 80, Reason: egress.ReasonIPLiteral, Count: 1}}
	}})
	advises := func(text string) bool {
		return strings.Contains(text, "write ") || strings.Contains(text, "to allow") || strings.Contains(text, "name the host")
	}
	some := 0
	for _, s := range variants {
		e := Evidence{Status: exited(0)}
		s.add(&e)
		plain := Classify(e, nil)
		e.Wanted = s.fault
		e.PidsRefused = max(e.PidsRefused, 1)
		wanted := Classify(e, nil)
		for _, ev := range wanted.Events {
			if advises(ev.Message) != (ev.Type != s.fault && ev.Type == PidsLimit) {
				t.Errorf("wanted %s: %s: %s", s.fault, ev.Type, ev.Message)
			}
		}
		if advises(plain.Fault.Message) {
			some++
			if got := wanted.Events[slices.IndexFunc(wanted.Events, func(ev Event) bool { return ev.Type == s.fault })].Message; !strings.HasPrefix(plain.Fault.Message, got+"; ") {
				t.Errorf("%s says %q, and wanted it says %q", s.fault, plain.Fault.Message, got)
			}
		}
	}
	if some != 9 {
		t.Errorf("%d of the faults come with advice, want 9: is that this test's doing?", some)
	}
}

func TestEachFaultAlone(t *testing.T) {
	for _, s := range signs() {
		t.Run("the sign of "+string(s.fault)+" makes that fault and one event, and leaves the exit code alone", func(t *testing.T) {
			e := Evidence{Status: exited(0)}
			s.add(&e)
			v := Classify(e, nil)
			if v.Fault == nil || v.Fault.Type != s.fault {
				t.Fatalf("fault %+v", v.Fault)
			}
			if len(v.Events) != 1 || v.Events[0].Type != s.fault || v.Events[0].Message != v.Fault.Message || v.Events[0].Count == 0 {
				t.Errorf("events %+v", v.Events)
			}
			if v.ExitCode == nil || *v.ExitCode != 0 || v.NoVerdict != "" {
				t.Errorf("exit code %v, no verdict %q", v.ExitCode, v.NoVerdict)
			}
			for _, word := range s.says {
				if !strings.Contains(v.Fault.Message, word) {
					t.Errorf("the message does not say %q: %s", word, v.Fault.Message)
				}
			}
		})
	}
}

func TestSignsAreAllTheKinds(t *testing.T) {
	list := signs()
	if len(list) != len(Kinds) {
		t.Fatalf("%d signs for %d kinds", len(list), len(Kinds))
	}
	for i, s := range list {
		if Kinds[i].Type != s.fault {
			t.Errorf("kind %d is %s, the precedence of the contract has %s there", i, Kinds[i].Type, s.fault)
		}
	}
}

// Killed beside oom is no pair of events: both are read from one SIGKILL.
func TestOfTwoFaultsTheFirstInTheOrderIsTheFault(t *testing.T) {
	list := signs()
	for i, first := range list {
		for _, second := range list[i+1:] {
			t.Run(fmt.Sprintf("%s and %s", first.fault, second.fault), func(t *testing.T) {
				e := Evidence{Status: exited(0)}
				second.add(&e)
				first.add(&e)
				v := Classify(e, nil)
				if v.Fault == nil || v.Fault.Type != first.fault {
					t.Fatalf("fault %+v, want %s", v.Fault, first.fault)
				}
				want := []FaultType{first.fault, second.fault}
				if first.fault == OOM && second.fault == Killed {
					want = want[:1]
				}
				var got []FaultType
				for _, ev := range v.Events {
					got = append(got, ev.Type)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("events %v, want %v", got, want)
				}

				v = Classify(e, []FaultType{first.fault})
				switch {
				case len(v.Events) != len(want):
					t.Errorf("tolerating %s changed the events: %v", first.fault, v.Events)
				case len(want) == 2 && (v.Fault == nil || v.Fault.Type != second.fault):
					t.Errorf("with %s tolerated the fault is %+v, want %s", first.fault, v.Fault, second.fault)
				case len(want) == 1 && v.Fault != nil:
					t.Errorf("with %s tolerated the fault is %+v, want none", first.fault, v.Fault)
				}
				if v = Classify(e, want); v.Fault != nil || len(v.Events) != len(want) {
					t.Errorf("with all tolerated: fault %+v, events %v", v.Fault, v.Events)
				}
			})
		}
	}
}

// An absent fact never becomes a pass.
func TestWithoutAStatus(t *testing.T) {
	t.Run("nothing known is no verdict", func(t *testing.T) {
		if v := Classify(Evidence{}, nil); v.NoVerdict == "" || v.ExitCode != nil || v.Fault != nil || v.Signal != "" {
			t.Errorf("%+v", v)
		}
	})
	for _, s := range signs() {
		var e Evidence
		s.add(&e)
		if s.ends {
			t.Run(string(s.fault)+" is an end of its own", func(t *testing.T) {
				v := Classify(e, nil)
				if v.NoVerdict != "" || v.Fault == nil || v.Fault.Type != s.fault || v.ExitCode != nil {
					t.Errorf("%+v", v)
				}
			})
			t.Run(string(s.fault)+" tolerated is still an end, and gives no exit code", func(t *testing.T) {
				v := Classify(e, []FaultType{s.fault})
				if v.NoVerdict != "" || v.Fault != nil || v.ExitCode != nil || len(v.Events) != 1 {
					t.Errorf("%+v", v)
				}
			})
			continue
		}
		t.Run(string(s.fault)+" does not end a step, so its end was not seen", func(t *testing.T) {
			v := Classify(e, nil)
			if v.NoVerdict == "" {
				t.Errorf("%+v", v)
			}
			if len(v.Events) != 1 {
				t.Errorf("what was seen is lost: %+v", v.Events)
			}
			if v = Classify(e, []FaultType{s.fault}); v.NoVerdict == "" {
				t.Errorf("tolerated: %+v", v)
			}
		})
	}
}

func TestLostAndCancelled(t *testing.T) {
	all := Evidence{Status: exited(0)}
	for _, s := range signs() {
		s.add(&all)
	}
	for _, tc := range []struct {
		sentence string
		e        Evidence
		want     string
	}{
		{"lost wins over a clean exit", Evidence{Status: exited(0), Lost: "the counters cannot be read"}, "the counters cannot be read"},
		{"lost wins over every fault", with(all, func(e *Evidence) { e.Lost = "x" }), "x"},
		{"lost wins over cancelled", Evidence{Cancelled: true, Lost: "x"}, "x"},
		{"cancelled with nothing seen is the caller's to say, not ours", Evidence{Cancelled: true}, ""},
		{"cancelled after the step's end is the caller's to say", Evidence{Cancelled: true, Status: exited(0)}, ""},
		{"a step that ended is a verdict", Evidence{Status: exited(0)}, ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if v := Classify(tc.e, nil); v.NoVerdict != tc.want {
				t.Errorf("no verdict: %q, want %q", v.NoVerdict, tc.want)
			}
		})
	}
}

func with(e Evidence, change func(*Evidence)) Evidence {
	change(&e)
	return e
}

func TestExitCodesAreNeverFaults(t *testing.T) {
	for code := range 256 {
		v := Classify(Evidence{Status: exited(code)}, nil)
		if v.ExitCode == nil || *v.ExitCode != code || v.Fault != nil || len(v.Events) != 0 || v.Signal != "" || v.NoVerdict != "" {
			t.Errorf("exit code %d: %+v", code, v)
		}
	}
}

func TestSignalsTheStepGivesItself(t *testing.T) {
	for signal, name := range map[syscall.Signal]string{
		syscall.SIGKILL: "SIGKILL", syscall.SIGTERM: "SIGTERM", syscall.SIGSEGV: "SIGSEGV", syscall.SIGSYS: "SIGSYS", syscall.SIGABRT: "SIGABRT",
		40: "signal 40", // a real-time signal has no name
	} {
		for _, core := range []syscall.WaitStatus{0, 0x80} {
			t.Run(fmt.Sprintf("%s (core %v) is a signal, no exit code and no fault", name, core != 0), func(t *testing.T) {
				ws := *signaled(signal) | core
				v := Classify(Evidence{Status: &ws}, nil)
				if v.Signal != name || v.ExitCode != nil || v.Fault != nil || v.NoVerdict != "" {
					t.Errorf("%+v", v)
				}
			})
		}
	}
}

func TestMessages(t *testing.T) {
	msg := func(e Evidence) string {
		e.Status = exited(0)
		v := Classify(e, nil)
		if v.Fault == nil {
			return "no fault"
		}
		return v.Fault.Message
	}
	for _, tc := range []struct {
		sentence string
		e        Evidence
		has      []string
		not      []string
	}{
		{"oom without a cap names no key", Evidence{OOMKills: 1}, []string{"a process"}, []string{"memoryMb", "peak"}},
		{"oom without a peak says none", Evidence{OOMKills: 1, MemoryMb: 64}, []string{"memoryMb is 64", "memoryMb: 128"}, []string{"peak"}},
		{"the peak is rounded up, so that a full cap reads as full", Evidence{OOMKills: 1, MemoryMb: 64, PeakMemory: 63<<20 + 1}, []string{"64 MiB"}, nil},
		{"one refused fork is once", Evidence{PidsRefused: 1, Pids: 8}, []string{"refused once", "pids: 16"}, []string{"times"}},
		{"a full layer that is not over says no overshoot", Evidence{Disk: DiskUse{By: "loop", BoundBytes: 8 << 20, UsedBytes: 8 << 20, BoundInodes: 2048, UsedInodes: 5, Full: true}}, []string{"filled its 8 MiB", "diskMb is 8", "held by a file system", "diskMb: 16"}, []string{"over by", "files and folders"}},
		{"by how much a bound was overshot is said, and who watched", Evidence{Disk: DiskUse{By: "sampler", BoundBytes: 8 << 20, UsedBytes: 40 << 20, BoundInodes: 2048, UsedInodes: 5, Over: true}}, []string{"wrote 40 MiB", "sampler", "over by 32 MiB", "diskMb: 41"}, nil},
		{"an overshoot below a MiB is not rounded to one", Evidence{Disk: DiskUse{By: "sampler", BoundBytes: 8 << 20, UsedBytes: 8<<20 + 4096, Over: true}}, []string{"sampler", "over by 4 KiB", "diskMb: 16"}, nil},
		{"the slack of a file system is no overshoot of the step's", Evidence{Disk: DiskUse{By: "loop", BoundBytes: 16 << 20, UsedBytes: 16<<20 + 16<<10, BoundInodes: 4096, UsedInodes: 9, Over: true, Full: true}}, []string{"filled its 16 MiB", "diskMb is 16,", "diskMb: 32"}, []string{"over by", "17"}},
		{"nor are its own files", Evidence{Disk: DiskUse{By: "tmpfs", BoundBytes: 1 << 20, UsedBytes: 4096, BoundInodes: 256, UsedInodes: 261, Over: true, Full: true}}, []string{"made 256 files and folders, of 256", "in the step's memory", "diskMb: 2"}, []string{"over by", "261"}},
		{"files run out by their number, and the line to write gives enough of them", Evidence{Disk: DiskUse{By: "sampler", BoundBytes: 1 << 20, UsedBytes: 4096, BoundInodes: 256, UsedInodes: 1024, Over: true}}, []string{"1024 files and folders, of 256", "over by 768 files", "diskMb: 5"}, nil},
		{"a host that ran full is not the step's cap", Evidence{Disk: DiskUse{By: "sampler", BoundBytes: 8 << 20, UsedBytes: 3 << 20, BoundInodes: 2048, UsedInodes: 5, Full: true}}, []string{"host's file system", "3 MiB", "diskMb is 8", "would not help"}, []string{"diskMb: "}},
		{"a folder that is full to the last block reached its own cap", Evidence{Disk: DiskUse{By: "sampler", BoundBytes: 8 << 20, UsedBytes: 8 << 20, BoundInodes: 2048, UsedInodes: 5, Full: true}}, []string{"diskMb: 16"}, []string{"host's", "over by"}},
		{"a bound that was neither reached nor passed is no fault", Evidence{Disk: DiskUse{By: "loop", BoundBytes: 1 << 20, UsedBytes: 1 << 20, BoundInodes: 256, UsedInodes: 256}}, []string{"no fault"}, nil},
		{"a disk that nobody bounded names what was written", Evidence{Disk: DiskUse{Full: true}}, []string{"wrote 0 MiB"}, []string{"held", "over by"}},
		{"more escapes are counted", Evidence{Escapes: []Escape{{"mount", "/a"}, {"bpf", "/b"}}, EscapesMore: 5}, []string{"/a called mount", "6 more"}, []string{"bpf"}},
		{"an escape of nobody known is still one", Evidence{EscapesMore: 2}, []string{"forbidden system call"}, nil},
		{"an escape without a program names the call", Evidence{Escapes: []Escape{{Syscall: "i386 system call 20"}}}, []string{"i386 system call 20 was called"}, nil},
		{"an engine that cannot name the call does not make a name up", Evidence{Escapes: []Escape{{Syscall: "a system call"}}}, []string{"SIGSYS"}, []string{"called"}},
		{"a denial that no rule can lift gives no hint", Evidence{Denied: []Denied{{Host: "192.0.2.1", Port: 80, Reason: "address literal", Count: 1}}}, []string{"192.0.2.1:80", "address literal"}, []string{"egressAllow"}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := msg(tc.e)
			for _, w := range tc.has {
				if !strings.Contains(got, w) {
					t.Errorf("%q is not in: %s", w, got)
				}
			}
			for _, w := range tc.not {
				if strings.Contains(got, w) {
					t.Errorf("%q is in: %s", w, got)
				}
			}
		})
	}
}

// The watcher of a layer ends the box, as the clock does: that is a verdict.
func TestABoxThatWasEndedForItsDiskHasAVerdict(t *testing.T) {
	e := Evidence{DiskEnded: true, Disk: DiskUse{By: "sampler", BoundBytes: 8 << 20, UsedBytes: 40 << 20, Over: true}}
	if v := Classify(e, nil); v.NoVerdict != "" || v.Fault == nil || v.Fault.Type != DiskLimit || v.ExitCode != nil {
		t.Errorf("%+v", v)
	}
	// It may have deleted all of it before it died.
	if v := Classify(Evidence{DiskEnded: true}, nil); v.NoVerdict != "" || v.Fault == nil || v.Fault.Type != DiskLimit {
		t.Errorf("%+v", v)
	}
	if v := Classify(Evidence{DiskEnded: true}, []FaultType{DiskLimit}); v.NoVerdict != "" || v.Fault != nil || v.ExitCode != nil || len(v.Events) != 1 {
		t.Errorf("tolerated: %+v", v)
	}
	// A layer that is full when the end was not seen explains no end.
	if v := Classify(Evidence{Disk: e.Disk}, nil); v.NoVerdict == "" {
		t.Errorf("%+v", v)
	}
}

func TestEventsCount(t *testing.T) {
	e := Evidence{
		Status: exited(0), OOMKills: 3, PidsRefused: 7, Escapes: []Escape{{"mount", "/a"}}, EscapesMore: 4,
		Denied: []Denied{{Host: "a.test", Port: 1, Count: 2}, {Host: "b.test", Port: 2, Count: 9}},
	}
	var got []string
	for _, ev := range Classify(e, nil).Events {
		got = append(got, fmt.Sprintf("%s %d", ev.Type, ev.Count))
	}
	want := "[oom 3 escape_blocked 5 pids_limit 7 egress_denied 2 egress_denied 9]"
	if fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestADeniedAddressIsToldWhatToWriteInPlaceOfIt(t *testing.T) {
	for host, want := range map[string]string{
		"93.184.216.34":        `name the host in place of the address, or add {to: "tcp://93.184.216.34:443"} to egressAllow`,
		"10.0.0.5":             `, or add {to: "tcp://10.0.0.5:443", private: true} to egressAllow`,
		"2606:4700:4700::1111": `, or add {to: "tcp://[2606:4700:4700::1111]:443"} to egressAllow`,
		"0xc6336442":           "; name the host in place of the address",
		"0.0.0.0":              "; name the host in place of the address",
	} {
		v := Classify(Evidence{Status: exited(0), Denied: []Denied{{Host: host, Port: 443, Reason: "ip_literal", Count: 1}}}, nil)
		if v.Fault == nil || !strings.HasSuffix(v.Fault.Message, want) {
			t.Errorf("%s: %+v\nwant %s", host, v.Fault, want)
		}
	}
}

func TestEvidenceThatCameLaterIsAdded(t *testing.T) {
	zero, nine := syscall.WaitStatus(0), syscall.WaitStatus(9)
	a := Evidence{
		Status: &zero, TimeoutS: 5, OOMKills: 1, PeakMemory: 5, Escapes: []Escape{{"mount", "a"}}, EscapesMore: 1, PidsRefused: 2,
		Denied: []Denied{{Host: "x", Port: 1, Count: 2}},
	}
	b := Evidence{
		Status: &nine, OOMKills: 2, PeakMemory: 4, PeakSampled: true, Escapes: []Escape{{"unshare", "b"}}, EscapesMore: 3, PidsRefused: 4,
		Denied:     []Denied{{Host: "y", Port: 1, Count: 1}, {Host: "x", Port: 1, Count: 3}},
		EgressLost: "gone", InitKilled: true, Lost: "lost",
	}
	want := Evidence{
		Status: &zero, TimeoutS: 5, OOMKills: 3, PeakMemory: 5, PeakSampled: true, Escapes: []Escape{{"mount", "a"}, {"unshare", "b"}}, EscapesMore: 4, PidsRefused: 6,
		Denied:     []Denied{{Host: "x", Port: 1, Count: 5}, {Host: "y", Port: 1, Count: 1}},
		EgressLost: "gone", InitKilled: true, Lost: "lost",
	}
	if got := a.With(b); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if a.Denied[0].Count != 2 || len(a.Escapes) != 1 {
		t.Error("what it was added to has changed")
	}
	if got := a.With(Evidence{}); !reflect.DeepEqual(got, a) {
		t.Errorf("nothing: %+v", got)
	}
}
