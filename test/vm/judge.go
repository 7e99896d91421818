package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// result is what a check left in the shared folder.
type result struct {
	status *int // of its command; nil if the command did not end
	stdout string
	stderr string
	report []byte // report.json, if there is one
}

// verdict is what a check amounts to.
type verdict struct {
	ok   bool
	seen string
}

func wrong(format string, args ...any) verdict { return verdict{seen: fmt.Sprintf(format, args...)} }
func right(format string, args ...any) verdict {
	return verdict{ok: true, seen: fmt.Sprintf(format, args...)}
}

// report is what is looked at in report.json.
type report struct {
	Verdict string
	Host    struct {
		Cgroup string
		Proof  []struct {
			Control string
			OK      bool
			How     string
		}
	}
	Steps []struct {
		ID, Engine, Status string
		Limits             struct{ By string }
	}
}

// controls are those that the design names; there may be more.
var controls = []string{
	"memory_cap", "pids_cap", "denied_name", "raw_address", "metadata_address", "host_loopback", "capabilities", "seccomp", "host_processes",
}

func (r result) parse() (report, error) {
	var p report
	if r.report == nil {
		return p, fmt.Errorf("no report")
	}
	if err := json.Unmarshal(r.report, &p); err != nil {
		return p, fmt.Errorf("report.json: %w", err)
	}
	return p, nil
}

// passes wants a run that passed, by this engine, on cgroup2, after everything
// was proved.
func passes(engine string) func(result) verdict {
	return func(r result) verdict {
		if v, ended := r.ended(0); !ended {
			return v
		}
		p, err := r.parse()
		switch {
		case err != nil:
			return wrong("exit 0, but %v", err)
		case p.Verdict != "pass":
			return wrong("exit 0, but the verdict is %q", p.Verdict)
		case p.Host.Cgroup != "v2":
			return wrong("it is no test of cgroup2: the report says %q", p.Host.Cgroup)
		case len(p.Steps) == 0:
			return wrong("exit 0, but no step ran")
		}
		proved := map[string]bool{}
		for _, c := range p.Host.Proof {
			if proved[c.Control] = c.OK; !c.OK {
				return wrong("not proved: %s: %s", c.Control, c.How)
			}
		}
		want := controls
		if engine == ownKernel {
			want = append(slices.Clone(want), "own_kernel")
		}
		for _, c := range want {
			if !proved[c] {
				return wrong("%s was not proved", c)
			}
		}
		for _, s := range p.Steps {
			if s.Engine != engine || s.Status != "passed" || s.Limits.By != "cgroup2" {
				return wrong("step %s: engine %q, status %q, limits by %q", s.ID, s.Engine, s.Status, s.Limits.By)
			}
		}
		return right("pass, %d controls proved", len(p.Host.Proof))
	}
}

// refuses wants a run that was refused, with these words, and ran nothing.
func refuses(words refusal) func(result) verdict {
	return func(r result) verdict {
		if v := declines(words)(r); !v.ok {
			return v
		}
		p, err := r.parse()
		switch {
		case err != nil:
			return wrong("refused, but %v", err)
		case p.Verdict != "refused":
			return wrong("exit 3, but the verdict is %q", p.Verdict)
		}
		for _, s := range p.Steps {
			if s.Status == "passed" || s.Status == "failed" {
				return wrong("refused, but step %s ran", s.ID)
			}
		}
		return right("refused, with the words")
	}
}

// declines wants a command that is no run to be refused, with these words.
func declines(words refusal) func(result) verdict {
	return func(r result) verdict {
		if v, ended := r.ended(3); !ended {
			return v
		}
		for _, w := range words {
			if !strings.Contains(r.stderr, w) {
				return wrong("refused without the words %q: %s", w, lastLine(r.stderr))
			}
		}
		return right("refused, with the words")
	}
}

// confines wants a run that passed, with both the step in the profile and the one
// in none. What each can do and cannot, it looks at itself.
func confines(engine string) func(result) verdict {
	return func(r result) verdict {
		v := passes(engine)(r)
		if !v.ok {
			return v
		}
		p, err := r.parse()
		if err != nil {
			return wrong("%v", err)
		}
		var ids []string
		for _, s := range p.Steps {
			ids = append(ids, s.ID)
		}
		if want := []string{"free", "confined"}; !slices.Equal(ids, want) {
			return wrong("the steps are %q, want %q", ids, want)
		}
		return right("confined, and free without")
	}
}

// diagnoses wants doctor to be content, or else to find these causes and to say of
// each what it costs, what to type and how to see that it is mended.
func diagnoses(engine string, finds []find) func(result) verdict {
	return func(r result) verdict {
		want := 0
		if len(finds) > 0 {
			want = 3
		}
		if v, ended := r.ended(want); !ended {
			return v
		}
		var d struct {
			Ready   bool
			Engines []struct {
				Name string
				Ran  bool
			}
			Findings []struct {
				Check, Status, Found, Costs, Verify string
				Fix                                 []string
			}
		}
		if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
			return wrong("exit %d, and no JSON: %v", want, err)
		}
		if d.Ready != (want == 0) || len(d.Engines) != 1 || d.Engines[0].Name != engine || d.Engines[0].Ran != d.Ready {
			return wrong("exit %d, but ready is %v and the engines are %v", want, d.Ready, d.Engines)
		}
		found := 0
		for _, f := range d.Findings {
			if f.Status != "ok" && f.Status != "warn" && (len(finds) == 0 || f.Costs == "" || len(f.Fix) == 0 || f.Verify == "") {
				return wrong("%s is %q without all that is to be said of it: %s", f.Check, f.Status, f.Found)
			}
			for _, w := range finds {
				if f.Check == w.check && f.Status == "fail" && strings.Contains(f.Found, w.found) &&
					slices.ContainsFunc(f.Fix, func(line string) bool { return strings.HasPrefix(line, w.fix) }) {
					found++
				}
			}
		}
		switch {
		case found != len(finds):
			return wrong("%d of the %d causes are named with what to type: %s", found, len(finds), r.stdout)
		case want == 0:
			return right("a full box ran")
		}
		return right("refused, with cause and fix")
	}
}

// testLine is the end of a test, in the output of a verbose run.
var testLine = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+) \(`)

// holds wants a conformance suite that passed. How many facts it measured is
// told, and which it could not.
func holds(r result) verdict {
	ended := map[string][]string{}
	var parents []string
	for _, m := range testLine.FindAllStringSubmatch(r.stdout, -1) {
		ended[m[1]] = append(ended[m[1]], m[2])
		for at := m[2]; strings.Contains(at, "/"); {
			at = at[:strings.LastIndexByte(at, '/')]
			parents = append(parents, at)
		}
	}
	facts := func(how string) []string {
		return slices.DeleteFunc(ended[how], func(n string) bool { return slices.Contains(parents, n) })
	}
	passed, failed, skipped := facts("PASS"), facts("FAIL"), facts("SKIP")
	v, ok := r.ended(0)
	switch {
	case len(failed) > 0:
		return wrong("%d of %d facts do not hold: %s", len(failed), len(passed)+len(failed), strings.Join(failed, ", "))
	case !ok:
		return v
	case len(passed) == 0:
		return wrong("exit 0, but nothing was measured")
	case len(skipped) > 0:
		return right("%d facts hold, %d skipped: %s", len(passed), len(skipped), strings.Join(skipped, ", "))
	}
	return right("%d facts hold", len(passed))
}

// ended says whether the command ended with this status, and else what it did.
func (r result) ended(want int) (verdict, bool) {
	switch {
	case r.status == nil:
		return wrong("did not end: %s", lastLine(r.stderr)), false
	case *r.status != want:
		return wrong("exit %d, want %d: %s", *r.status, want, lastLine(r.stderr)), false
	}
	return verdict{}, true
}

// lastLine is where a program says what is wrong, if it says it at the end.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
