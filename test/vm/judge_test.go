package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func status(n int) *int { return &n }

// passing is a report in which all is as wanted; change makes it something else.
func passing(t *testing.T, change func(*report)) []byte {
	t.Helper()
	var p report
	p.Verdict, p.Host.Cgroup = "pass", "v2"
	for _, c := range controls {
		p.Host.Proof = append(p.Host.Proof, struct {
			Control string
			OK      bool
			How     string
		}{c, true, "seen"})
	}
	p.Steps = append(p.Steps, struct {
		ID, Engine, Status string
		Limits             struct{ By string }
	}{ID: "hello", Engine: "native", Status: "passed", Limits: struct{ By string }{"cgroup2"}})
	if change != nil {
		change(&p)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPasses(t *testing.T) {
	for _, c := range []struct {
		name string
		r    result
		seen string // part of it; empty: it is right
	}{
		{"all as wanted", result{status: status(0), report: passing(t, nil)}, ""},
		{"no status is a failure", result{report: passing(t, nil), stderr: "one\ntwo\n"}, "did not end: two"},
		{"another status", result{status: status(1), report: passing(t, nil)}, "exit 1, want 0"},
		{"refused", result{status: status(3), report: passing(t, nil)}, "exit 3, want 0"},
		{"no report", result{status: status(0)}, "no report"},
		{"a broken report", result{status: status(0), report: []byte("{")}, "report.json"},
		{"another verdict", result{status: status(0), report: passing(t, func(p *report) { p.Verdict = "fail" })}, `"fail"`},
		{"cgroup1", result{status: status(0), report: passing(t, func(p *report) { p.Host.Cgroup = "v1" })}, `"v1"`},
		{"no steps", result{status: status(0), report: passing(t, func(p *report) { p.Steps = nil })}, "no step ran"},
		{"another engine", result{status: status(0), report: passing(t, func(p *report) { p.Steps[0].Engine = "kern" })}, `engine "kern"`},
		{"a step that was skipped", result{status: status(0), report: passing(t, func(p *report) { p.Steps[0].Status = "skipped" })}, `"skipped"`},
		{"a step without caps", result{status: status(0), report: passing(t, func(p *report) { p.Steps[0].Limits.By = "" })}, `limits by ""`},
		{"a control that does not hold", result{status: status(0), report: passing(t, func(p *report) { p.Host.Proof[3].OK = false })}, "not proved: raw_address: seen"},
		{"a control that was not tried", result{status: status(0), report: passing(t, func(p *report) { p.Host.Proof = p.Host.Proof[1:] })}, "memory_cap was not proved"},
	} {
		wants(t, c.name, passes("native")(c.r), c.seen)
	}
}

// wants is a verdict: right where seen is empty, else wrong with these words.
func wants(t *testing.T, name string, v verdict, seen string) {
	t.Helper()
	if v.ok != (seen == "") || !strings.Contains(v.seen, seen) {
		t.Errorf("%s: ok %v, %q; want %q", name, v.ok, v.seen, seen)
	}
}

func TestRefuses(t *testing.T) {
	nothing := passing(t, func(p *report) { p.Verdict, p.Steps = "refused", nil })
	for _, c := range []struct {
		name string
		r    result
		seen string
	}{
		{"with all words", result{status: status(3), stderr: "x this y\nthat", report: nothing}, ""},
		{"without one", result{status: status(3), stderr: "x this y", report: nothing}, `without the words "that"`},
		{"it passed", result{status: status(0), stderr: "this that", report: passing(t, nil)}, "exit 0, want 3"},
		{"no status", result{stderr: "this that", report: nothing}, "did not end"},
		{"no report", result{status: status(3), stderr: "this that"}, "no report"},
		{"another verdict", result{status: status(3), stderr: "this that", report: passing(t, func(p *report) { p.Steps = nil })}, `"pass"`},
		{"a step ran", result{status: status(3), stderr: "this that", report: passing(t, func(p *report) { p.Verdict = "refused" })}, "step hello ran"},
	} {
		wants(t, c.name, refuses(refusal{"this", "that"})(c.r), c.seen)
	}
}

func TestConfines(t *testing.T) {
	steps := func(ids ...string) func(*report) {
		return func(p *report) {
			one := p.Steps[0]
			p.Steps = nil
			for _, id := range ids {
				one.ID = id
				p.Steps = append(p.Steps, one)
			}
		}
	}
	failed := func(p *report) {
		steps("free", "confined")(p)
		p.Verdict = "fail"
	}
	for _, c := range []struct {
		name string
		r    result
		seen string
	}{
		{"both steps", result{status: status(0), report: passing(t, steps("free", "confined"))}, ""},
		{"not the one that is confined", result{status: status(0), report: passing(t, steps("free"))}, "the steps are"},
		{"not the one that is free", result{status: status(0), report: passing(t, steps("confined"))}, "the steps are"},
		{"one failed", result{status: status(1), report: passing(t, failed)}, "exit 1, want 0"},
	} {
		wants(t, c.name, confines("native")(c.r), c.seen)
	}
}

func TestDiagnoses(t *testing.T) {
	const (
		well = `{"ready": true, "engines": [{"name": "native", "ran": true}], "findings": [{"check": "kernel", "status": "ok"}, {"check": "sudo", "status": "warn"}]}`
		ill  = `{"ready": false, "engines": [{"name": "native", "ran": false}], "findings": [
			{"check": "control-groups", "status": "fail", "found": "so it is", "costs": "all", "fix": ["# words", "type this", "or that"], "verify": "look"}]}`
	)
	finds := []find{{"control-groups", "so it", "type"}, {"control-groups", "so it", "or that"}}
	for _, c := range []struct {
		name  string
		finds []find
		r     result
		seen  string
	}{
		{"well", nil, result{status: status(0), stdout: well}, ""},
		{"ill, and it says so", finds, result{status: status(3), stdout: ill}, ""},
		{"ill, and it is content", finds, result{status: status(0), stdout: well}, "exit 0, want 3"},
		{"well, and it is not content", nil, result{status: status(3), stdout: ill}, "exit 3, want 0"},
		{"no status", nil, result{stdout: well}, "did not end"},
		{"no JSON", nil, result{status: status(0), stdout: "fine"}, "no JSON"},
		{"content without a box", nil, result{status: status(0), stdout: strings.Replace(well, `"ran": true`, `"ran": false`, 1)}, "the engines are"},
		{"by another engine", nil, result{status: status(0), stdout: strings.Replace(well, `"native"`, `"kern"`, 1)}, "the engines are"},
		{"content, and a check failed", nil, result{status: status(0), stdout: strings.Replace(well, `"warn"`, `"fail"`, 1)}, `sudo is "fail"`},
		{"refused, and ready", finds, result{status: status(3), stdout: strings.Replace(ill, `"ready": false`, `"ready": true`, 1)}, "ready is true"},
		{"another cause", finds, result{status: status(3), stdout: strings.Replace(ill, "so it is", "so what", 1)}, "0 of the 2 causes"},
		{"another check", finds, result{status: status(3), stdout: strings.Replace(ill, "control-groups", "disk", 1)}, "0 of the 2 causes"},
		{"another thing to type", finds, result{status: status(3), stdout: strings.Replace(ill, "or that", "or not", 1)}, "1 of the 2 causes"},
		{"no way to see that it is mended", finds, result{status: status(3), stdout: strings.Replace(ill, `"look"`, `""`, 1)}, "without all that is to be said"},
		{"not what it costs", finds, result{status: status(3), stdout: strings.Replace(ill, `"all"`, `""`, 1)}, "without all that is to be said"},
	} {
		wants(t, c.name, diagnoses("native", c.finds)(c.r), c.seen)
	}
}

func TestHolds(t *testing.T) {
	const good = "--- PASS: TestConformance (9.00s)\n    --- PASS: TestConformance/as_root (8.00s)\n" +
		"        --- PASS: TestConformance/as_root/a (1.00s)\n        --- PASS: TestConformance/as_root/b (1.00s)\n"
	for _, c := range []struct {
		name string
		r    result
		seen string
	}{
		{"all hold", result{status: status(0), stdout: good + "PASS\n"}, ""},
		{"one does not", result{status: status(1), stdout: strings.Replace(good, "PASS: TestConformance/as_root/b", "FAIL: TestConformance/as_root/b", 1)},
			"1 of 2 facts do not hold: TestConformance/as_root/b"},
		{"one does not, though the status is 0", result{status: status(0), stdout: strings.Replace(good, "PASS: TestConformance/as_root/b", "FAIL: TestConformance/as_root/b", 1)},
			"1 of 2 facts do not hold"},
		{"its parent does not", result{status: status(1), stdout: strings.Replace(good, "PASS: TestConformance/as_root ", "FAIL: TestConformance/as_root ", 1)}, "exit 1, want 0"},
		{"it ended in between", result{status: status(2), stdout: good, stderr: "panic: test timed out"}, "panic: test timed out"},
		{"no status", result{stdout: good}, "did not end"},
		{"nothing ran", result{status: status(0), stdout: "testing: warning: no tests to run\nPASS\n"}, "nothing was measured"},
	} {
		wants(t, c.name, holds(c.r), c.seen)
	}
	if v := holds(result{status: status(0), stdout: good + "        --- SKIP: TestConformance/as_root/c (0.00s)\n"}); !v.ok || v.seen != "2 facts hold, 1 skipped: TestConformance/as_root/c" {
		t.Errorf("skipped: %+v", v)
	}
}
