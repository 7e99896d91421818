package steps

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

func waited(status int) *syscall.WaitStatus {
	ws := syscall.WaitStatus(status)
	return &ws
}

func exit(code int) *syscall.WaitStatus { return waited(code << 8) }

func wantCode(code int) Expect { return Expect{ExitCode: &code} }

func TestJudge(t *testing.T) {
	denied := []box.Denied{{Host: "evil.test", Port: 443, Reason: "no rule", Count: 1}}
	for _, tc := range []struct {
		sentence   string
		step       PlanStep
		evidence   box.Evidence
		violations []Violation
		status     string
		fault      box.FaultType // "" for none
		says       string        // in the reason; "" where there is nothing to say
		excused    bool
	}{
		{"exit code 0 passes", PlanStep{}, box.Evidence{Status: exit(0)}, nil, StatusPassed, "", "", false},
		{"another exit code fails", PlanStep{}, box.Evidence{Status: exit(1)}, nil, StatusFailed, "", "exit code 1", false},
		{"137 is an exit code as any other", PlanStep{}, box.Evidence{Status: exit(137)}, nil, StatusFailed, "", "exit code 137", false},
		{"a signal of the step's own fails, without a fault", PlanStep{}, box.Evidence{Status: waited(9)}, nil, StatusFailed, "", "its own SIGKILL", false},
		{"a fault fails a step that ended with 0", PlanStep{}, box.Evidence{Status: exit(0), Denied: denied}, nil, StatusFailed, box.EgressDenied, "evil.test:443", false},
		{"an end without a status fails with its fault", PlanStep{}, box.Evidence{DeadlinePassed: true}, nil, StatusFailed, box.Timeout, "timeout", false},
		{"a status that is no end never passes", PlanStep{}, box.Evidence{Status: waited(0x137f)}, nil, StatusFailed, "", "no exit code", false},

		{"the expected exit code passes", PlanStep{Expect: wantCode(3)}, box.Evidence{Status: exit(3)}, nil, StatusPassed, "", "3, as expected", false},
		{"0 is not what was expected", PlanStep{Expect: wantCode(3)}, box.Evidence{Status: exit(0)}, nil, StatusFailed, "", "expected exit code 3", false},
		{"137 that was expected is not met by a SIGKILL", PlanStep{Expect: wantCode(137)}, box.Evidence{Status: waited(9)}, nil, StatusFailed, "", "its own SIGKILL", false},
		{"the expected exit code beside a fault fails", PlanStep{Expect: wantCode(3)}, box.Evidence{Status: exit(3), PidsRefused: 1}, nil, StatusFailed, box.PidsLimit, "pids_limit", false},
		{"an explicit 0 is the same as none", PlanStep{Expect: wantCode(0)}, box.Evidence{Status: exit(0)}, nil, StatusPassed, "", "", false},

		{"the expected fault passes and stays the fault", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{OOMKills: 1}, nil, StatusPassed, box.OOM, "oom, as expected", false},
		{"the expected fault passes whatever the exit code", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{OOMKills: 1, Status: exit(7)}, nil, StatusPassed, box.OOM, "as expected", false},
		{"another fault is not the expected one", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{DeadlinePassed: true}, nil, StatusFailed, box.Timeout, "expected the fault oom, got timeout", false},
		{"the expected fault behind an earlier one is not it", PlanStep{Expect: Expect{Fault: box.PidsLimit}}, box.Evidence{Status: exit(0), OOMKills: 1, PidsRefused: 1}, nil, StatusFailed, box.OOM, "got oom", false},
		{"a clean exit is not the expected fault", PlanStep{Expect: Expect{Fault: box.Timeout}}, box.Evidence{Status: exit(0)}, nil, StatusFailed, "", "expected the fault timeout", false},
		{"exit code 137 is not the expected oom", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{Status: exit(137)}, nil, StatusFailed, "", "exit code 137", false},

		{"what is tolerated does not fail, and the exit code decides: 0", PlanStep{Tolerate: []box.FaultType{box.EgressDenied}}, box.Evidence{Status: exit(0), Denied: denied}, nil, StatusPassed, "", "", false},
		{"what is tolerated does not fail, and the exit code decides: 1", PlanStep{Tolerate: []box.FaultType{box.EgressDenied}}, box.Evidence{Status: exit(1), Denied: denied}, nil, StatusFailed, "", "exit code 1", false},
		{"a tolerated end leaves no exit code, so it fails", PlanStep{Tolerate: []box.FaultType{box.Timeout}}, box.Evidence{DeadlinePassed: true}, nil, StatusFailed, "", "no exit code", false},
		{"what is not tolerated is the fault behind what is", PlanStep{Tolerate: []box.FaultType{box.OOM}}, box.Evidence{Status: exit(0), OOMKills: 1, PidsRefused: 1}, nil, StatusFailed, box.PidsLimit, "pids_limit", false},
		{"an expected fault that is tolerated too is not met", PlanStep{Tolerate: []box.FaultType{box.OOM}, Expect: Expect{Fault: box.OOM}}, box.Evidence{Status: exit(0), OOMKills: 1}, nil, StatusFailed, "", "expected the fault oom", false},

		{"a violation fails a step that ended with 0", PlanStep{}, box.Evidence{Status: exit(0)}, []Violation{{"link_escape", "l leads out"}, {"x", "second"}}, StatusFailed, "", "l leads out", false},
		{"a violation fails a step whose expected fault came", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{OOMKills: 1}, []Violation{{"v", "l leads out"}}, StatusFailed, box.OOM, "l leads out", false},

		{"nothing known is no verdict", PlanStep{}, box.Evidence{}, nil, StatusError, "", "no verdict", false},
		{"a denied request does not say how the step ended", PlanStep{}, box.Evidence{Denied: denied}, nil, StatusError, box.EgressDenied, "no verdict", false},
		{"what was lost is no verdict, even beside exit code 0", PlanStep{}, box.Evidence{Status: exit(0), Lost: "no counters"}, nil, StatusError, "", "no verdict: no counters", false},
		{"no verdict is not met by the expected fault", PlanStep{Expect: Expect{Fault: box.OOM}}, box.Evidence{OOMKills: 1, Lost: "no counters"}, nil, StatusError, box.OOM, "no counters", false},
		{"no verdict is never excused", PlanStep{ContinueOnErr: true}, box.Evidence{Lost: "no counters"}, nil, StatusError, "", "no counters", false},

		{"cancelled comes before no verdict, and tells it", PlanStep{}, box.Evidence{Cancelled: true, Lost: "no counters"}, nil, StatusCancelled, "", "cancelled while this step ran; no counters", false},
		{"cancelled comes before exit code 0", PlanStep{}, box.Evidence{Cancelled: true, Status: exit(0)}, nil, StatusCancelled, "", "cancelled", false},
		{"cancelled comes before an expected fault", PlanStep{Expect: Expect{Fault: box.Timeout}}, box.Evidence{Cancelled: true, DeadlinePassed: true}, nil, StatusCancelled, box.Timeout, "cancelled", false},
		{"cancelled is not excused", PlanStep{ContinueOnErr: true}, box.Evidence{Cancelled: true}, nil, StatusCancelled, "", "cancelled", false},

		{"continueOnError excuses an exit code", PlanStep{ContinueOnErr: true}, box.Evidence{Status: exit(1)}, nil, StatusFailed, "", "exit code 1", true},
		{"continueOnError excuses a fault", PlanStep{ContinueOnErr: true}, box.Evidence{OOMKills: 1}, nil, StatusFailed, box.OOM, "oom", true},
		{"continueOnError excuses a violation", PlanStep{ContinueOnErr: true}, box.Evidence{Status: exit(0)}, []Violation{{"v", "bad"}}, StatusFailed, "", "bad", true},
		{"what passed needs no excuse", PlanStep{ContinueOnErr: true}, box.Evidence{Status: exit(0)}, nil, StatusPassed, "", "", false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			sr := newStepResult(tc.step, box.Info{})
			sr.Violations = append(sr.Violations, tc.violations...)
			judge(sr, tc.step, tc.evidence)
			var fault box.FaultType
			if sr.Fault != nil {
				fault = sr.Fault.Type
			}
			if sr.Status != tc.status || fault != tc.fault || sr.Excused != tc.excused {
				t.Errorf("status %s, fault %q, excused %v; want %s, %q, %v", sr.Status, fault, sr.Excused, tc.status, tc.fault, tc.excused)
			}
			if !strings.Contains(sr.Reason, tc.says) || (tc.says == "") != (sr.Reason == "") {
				t.Errorf("reason %q, want it to say %q", sr.Reason, tc.says)
			}
			if sr.Events == nil {
				t.Error("events would be null in the report")
			}
		})
	}
}

func TestJudgeKeepsWhatWasSeen(t *testing.T) {
	t.Run("a signal stands beside a null exit code", func(t *testing.T) {
		sr := newStepResult(PlanStep{}, box.Info{})
		judge(sr, PlanStep{}, box.Evidence{Status: waited(9)})
		if sr.ExitCode != nil || sr.Signal == nil || *sr.Signal != "SIGKILL" {
			t.Errorf("%v %v", sr.ExitCode, sr.Signal)
		}
	})
	t.Run("events that are tolerated stay, all of them", func(t *testing.T) {
		s := PlanStep{Tolerate: []box.FaultType{box.OOM, box.PidsLimit}}
		sr := newStepResult(s, box.Info{})
		judge(sr, s, box.Evidence{Status: exit(0), OOMKills: 2, PidsRefused: 3})
		if len(sr.Events) != 2 || sr.Events[0].Count != 2 || sr.Events[1].Count != 3 || sr.Fault != nil || sr.Status != StatusPassed {
			t.Errorf("%+v", sr)
		}
	})
}

func TestNewStepResult(t *testing.T) {
	t.Run("a result that nobody judged never passes", func(t *testing.T) {
		sr := newStepResult(PlanStep{}, box.Info{})
		if sr.Status != StatusError || VerdictOf([]StepResult{*sr}) != VerdictError {
			t.Errorf("%s", sr.Status)
		}
	})
	t.Run("no list of it is null in the report", func(t *testing.T) {
		v := reflect.ValueOf(*newStepResult(PlanStep{}, box.Info{}))
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Type.Kind() == reflect.Slice && v.Field(i).IsNil() && !strings.Contains(f.Tag.Get("json"), "omitempty") {
				t.Errorf("%s is", f.Name)
			}
		}
	})
	t.Run("what is expected is told only where it is not exit code 0", func(t *testing.T) {
		for _, tc := range []struct {
			e    Expect
			told bool
		}{{Expect{}, false}, {wantCode(0), false}, {wantCode(2), true}, {Expect{Fault: box.OOM}, true}} {
			if sr := newStepResult(PlanStep{Expect: tc.e}, box.Info{}); (sr.Expected != nil) != tc.told {
				t.Errorf("%+v: %v", tc.e, sr.Expected)
			}
		}
	})
	t.Run("what an engine cannot see is each step's own copy", func(t *testing.T) {
		info := box.Info{Unobserved: []string{"escape_blocked: of children"}}
		a := newStepResult(PlanStep{}, info)
		a.Unobserved[0] = "changed"
		if info.Unobserved[0] == "changed" {
			t.Error("a step changed the engine's list")
		}
	})
}

func TestVerdictOfARun(t *testing.T) {
	type r = StepResult
	for _, tc := range []struct {
		sentence string
		steps    []StepResult
		want     string
	}{
		{"all passed is pass", []r{{Status: StatusPassed}, {Status: StatusPassed}}, VerdictPass},
		{"one failed is fail", []r{{Status: StatusPassed}, {Status: StatusFailed}, {Status: StatusPassed}}, VerdictFail},
		{"one skipped is fail", []r{{Status: StatusSkipped}, {Status: StatusPassed}}, VerdictFail},
		{"a failure that is excused is pass", []r{{Status: StatusFailed, Excused: true}, {Status: StatusPassed}}, VerdictPass},
		{"a skip that is excused is pass", []r{{Status: StatusSkipped, Excused: true}}, VerdictPass},
		{"one excused and one not is fail", []r{{Status: StatusFailed, Excused: true}, {Status: StatusFailed}}, VerdictFail},
		{"an error comes before a failure, wherever it stands", []r{{Status: StatusError}, {Status: StatusFailed}}, VerdictError},
		{"an error after a failure is an error", []r{{Status: StatusFailed}, {Status: StatusError}}, VerdictError},
		{"an error is never excused", []r{{Status: StatusError, Excused: true}}, VerdictError},
		{"cancelled comes before an error", []r{{Status: StatusError}, {Status: StatusCancelled}}, VerdictCancelled},
		{"cancelled is never excused", []r{{Status: StatusCancelled, Excused: true}}, VerdictCancelled},
		{"a status that is none of ours is an error", []r{{Status: "Passed"}}, VerdictError},
		{"no status is an error, even if excused", []r{{Excused: true}}, VerdictError},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := VerdictOf(tc.steps); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// fillTexts sets every text in a value, at whatever depth, and makes lists and
// pointers hold one element each.
func fillTexts(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillTexts(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillTexts(v.Index(0), text)
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fillTexts(e, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), e)
	case reflect.Struct:
		for i := range v.NumField() {
			fillTexts(v.Field(i), text)
		}
	}
}

// holding lists the places of a value whose text is still what it was.
func holding(v reflect.Value, at, text string) (out []string) {
	switch v.Kind() {
	case reflect.String:
		if v.String() == text {
			return []string{at}
		}
	case reflect.Pointer:
		return holding(v.Elem(), at, text)
	case reflect.Slice:
		return holding(v.Index(0), at, text)
	case reflect.Map:
		return holding(v.MapIndex(reflect.ValueOf("key")), at, text)
	case reflect.Struct:
		for i := range v.NumField() {
			out = append(out, holding(v.Field(i), strings.TrimPrefix(at+"."+v.Type().Field(i).Name, "."), text)...)
		}
	}
	return out
}

// TestMaskLeavesOurOwnWords: of all the texts of a result, exactly these are not
// looked at. A new field is either the step's, then mask has to know it, or
// ours, then it is put on this list.
func TestMaskLeavesOurOwnWords(t *testing.T) {
	ours := []string{
		// Words of ours, of which a verdict is made.
		"Status", "Fault.Type", "Events.Type", "Network", "EgressMode", "Egress.Protocol", "Egress.Verdict", "Egress.Reason",
		"Files.Change", "Files.Type", "Files.Mode", "Files.SHA256", "Workspace", "Violations.Type", "Limits.Enforced", "Limits.By", "Limits.DiskBy", "WorkspaceBy", "Patch.Path",
		"Signal", "Expected.Fault", "Unobserved", "Stdout.Path", "Tries.Patch.Path", "Tries.Stderr.Path", "Tries.Stdout.Path", "Stderr.Path", "Engine", "EngineVersion", "EngineDigest", "ImageDigest", "Kernel",
		"Setup.By", "Setup.EgressMode", "Setup.Events.Type", "Setup.Fault.Type", "Setup.Files.Change", "Setup.Files.Mode", "Setup.Files.SHA256", "Setup.Files.Type",
		"Setup.Network", "Setup.Signal", "Setup.Status", "Setup.Stderr.Path", "Setup.Stdout.Path",
		// Of the steps file, whose writer names the secret.
		"ID", "Name", "Setup.Step", "Egress.Rule", "EgressUnused", "EgressTooWide.Rule", "EgressPresets.Name", "PassedEnv",
		// Masked where they are made, since bytes are not masked but left out: see
		// TestResultsHoldNoSecret. Paths are ours.
		"Results", "ResultFiles.MIME", "ResultFiles.Path",
	}
	slices.Sort(ours)
	// Whatever is made of a text when it is shown, the value is not in that.
	for secret, texts := range map[string][]string{
		"passed":     {"passed", "pas\x1b[1;31ms\x1b[0med"},
		`pass\x07ed`: {`pass\x07ed`, "pass\aed", "pa\x1b[1mss\aed"},
		`pass\ned`:   {"pass\ned"},
		"pas## [ed":  {"pas##[ed"},
	} {
		for _, text := range texts {
			var sr StepResult
			fillTexts(reflect.ValueOf(&sr).Elem(), text)
			mask(gha.NewMasker(secret), &sr)
			got := holding(reflect.ValueOf(sr), "", text)
			slices.Sort(got)
			if d := cmp.Diff(ours, got); d != "" {
				t.Errorf("%q: texts that are not masked (-want +got):\n%s", text, d)
			}
			if shown := gha.Inert(sr.Reason); strings.Contains(shown, secret) {
				t.Errorf("%q is shown as %q", text, shown)
			}
		}
	}
}

func TestMask(t *testing.T) {
	for _, word := range []string{StatusPassed, StatusFailed, VerdictPass, "allowed", "committed", string(box.Timeout), "enforce"} {
		t.Run("a secret that reads "+word+" changes no verdict", func(t *testing.T) {
			s := PlanStep{ID: "a", EgressMode: "enforce"}
			for _, e := range []box.Evidence{{Status: exit(0)}, {DeadlinePassed: true, TimeoutS: 1}} {
				plain, masked := newStepResult(s, box.Info{Name: "native"}), newStepResult(s, box.Info{Name: "native"})
				plain.FilesTotal, masked.FilesTotal = 1, 1
				judge(plain, s, e)
				judge(masked, s, e)
				mask(gha.NewMasker(word), masked)
				if masked.Status != plain.Status || masked.Workspace != plain.Workspace || VerdictOf([]StepResult{*masked}) != VerdictOf([]StepResult{*plain}) {
					t.Errorf("%s became %s", plain.Status, masked.Status)
				}
				if plain.Fault != nil && masked.Fault.Type != plain.Fault.Type {
					t.Errorf("fault %s became %s", plain.Fault.Type, masked.Fault.Type)
				}
			}
		})
	}
	const secret = "hunter2hunter2"
	t.Run("a secret in a file's name takes the name's bytes with it", func(t *testing.T) {
		sr := &StepResult{Files: []FileChange{{Path: "x-" + secret, PathBytes: "eC1odW50ZXI=", Target: "/" + secret}, {Path: "plain", PathBytes: "cGxhaW4="}}}
		mask(gha.NewMasker(secret), sr)
		want := []FileChange{{Path: "x-***", Target: "/***"}, {Path: "plain", PathBytes: "cGxhaW4="}}
		if d := cmp.Diff(want, sr.Files); d != "" {
			t.Error(d)
		}
	})
	t.Run("a secret in a program's or a host's name is taken out of fault, events and requests", func(t *testing.T) {
		sr := newStepResult(PlanStep{}, box.Info{})
		judge(sr, PlanStep{}, box.Evidence{Status: exit(0), Escapes: []box.Escape{{Syscall: "mount", Program: "/" + secret}},
			Denied: []box.Denied{{Host: secret + ".test", Port: 1, Count: 1, Rule: secret + ".test"}}})
		sr.Egress = []EgressRecord{{Host: secret + ".test"}}
		sr.EgressProposal = []string{secret + ".test"}
		sr.EgressTooWide = []egress.Finding{{Rule: "*.test", Narrower: []string{secret + ".test"}}}
		mask(gha.NewMasker(secret), sr)
		if text := fmt.Sprintf("%+v %+v", *sr.Fault, *sr); strings.Contains(text, secret) {
			t.Errorf("it is there still: %s", text)
		}
	})
	t.Run("without a masker nothing changes", func(t *testing.T) {
		sr := &StepResult{Reason: secret}
		mask(nil, sr)
		if sr.Reason != secret {
			t.Errorf("%q", sr.Reason)
		}
	})
}

func TestOneLine(t *testing.T) {
	for _, tc := range []struct {
		sr   StepResult
		want string
	}{
		{StepResult{ID: "a", Status: StatusPassed}, "[2/3] a passed"},
		{StepResult{ID: "b", Status: StatusFailed, Reason: "why"}, "[2/3] b failed: why"},
	} {
		if got, want := oneLine(&tc.sr, 1, 0).String(), strings.TrimPrefix(tc.want, "[2/3] "); got != want {
			t.Errorf("of a call: got %q, want %q", got, want)
		}
		if got := oneLine(&tc.sr, 2, 3).String(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
