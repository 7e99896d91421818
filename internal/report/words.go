package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// maxNamed is how many steps a sentence names before it counts the rest.
const maxNamed = 5

// maxLimitations is how many sentences about the whole run there are at most.
const maxLimitations = 20

// maxID is how much of an id stands in a sentence. Ids that passed the check of
// a steps file are never longer.
const maxID = 64

// verdictLine says in one sentence what came of the run. It quotes step ids. A
// part of a plan is not taken for all of it.
func verdictLine(r *steps.Result) string {
	if s := r.Shard; s != nil {
		return fmt.Sprintf("%s (shard %d of %d)", verdictWords(r), s.Index, s.Of)
	}
	return verdictWords(r)
}

func verdictWords(r *steps.Result) string {
	n := len(r.Steps)
	ids := func(match func(*steps.StepResult) bool) []string {
		var out []string
		for i := range r.Steps {
			if s := &r.Steps[i]; match(s) {
				out = append(out, named(s))
			}
		}
		return out
	}
	status := func(word string) []string {
		return ids(func(s *steps.StepResult) bool { return s.Status == word && !s.Excused })
	}
	excused := ids(func(s *steps.StepResult) bool { return s.Excused })
	tail := ""
	if len(excused) > 0 {
		tail = fmt.Sprintf("; %d excused by continueOnError: %s", len(excused), some(excused))
	}
	if list := flakySteps(r); len(list) > 0 {
		tail += fmt.Sprintf("; %d flaky, not passed at the first try: %s", len(list), some(list))
	}
	switch r.Verdict {
	case steps.VerdictPass:
		return fmt.Sprintf("pass: %s%s%s", count(n-len(excused), "step passed", "steps passed"), inShards(r), tail)
	case steps.VerdictFail:
		parts := problems(r)
		if failed := status(steps.StatusFailed); len(failed) > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s failed: %s", len(failed), count(n, "step", "steps"), some(failed)))
		}
		if skipped := status(steps.StatusSkipped); len(skipped) > 0 {
			parts = append(parts, fmt.Sprintf("%d skipped: %s", len(skipped), some(skipped)))
		}
		if len(parts) == 0 {
			parts = []string{"the gate is closed"}
		}
		return "fail: " + strings.Join(parts, "; ") + tail
	case steps.VerdictRefused:
		if r.Merged != nil {
			return "refused: " + refusedShards(r) + ", because the host cannot enforce what the steps ask" + tail
		}
		return "refused: nothing ran, because this host cannot enforce what the steps ask"
	case steps.VerdictError:
		lost := status(steps.StatusError)
		if len(lost) == 0 && r.Merged != nil {
			return "error: no verdict of some shard" + tail
		}
		if len(lost) == 0 {
			return "error: no verdict, because what the run did could not be written down" + tail
		}
		return fmt.Sprintf("error: no verdict about %d of %s: %s%s", len(lost), count(n, "step", "steps"), some(lost), tail)
	case steps.VerdictCancelled:
		ended := ids(func(s *steps.StepResult) bool { return s.Status != steps.StatusCancelled })
		return fmt.Sprintf("cancelled: %d of %s had ended%s", len(ended), count(n, "step", "steps"), tail)
	}
	return fmt.Sprintf("no verdict: %q is not a word this program knows", r.Verdict)
}

func named(s *steps.StepResult) string {
	if o := outcome(s); o != "-" {
		return clip(s.ID, maxID) + " (" + clip(o, maxID) + ")"
	}
	return clip(s.ID, maxID)
}

// Outcome is what closed the gate, in a word or two: a fault, a violation or the
// exit code. It is "-" where there is none of these.
func Outcome(s *steps.StepResult) string { return outcome(s) }

// outcome is the exit code, fault or violation of a step in a word or two.
func outcome(s *steps.StepResult) string {
	end := ending(s)
	switch {
	case violated(s) && unexpected(s):
		return string(s.Fault.Type) + ", " + violationWord(s)
	case violated(s):
		return violationWord(s)
	case s.Status != steps.StatusFailed || s.Expected == nil:
	case s.Expected.Fault != "":
		return end + ", expected " + string(s.Expected.Fault)
	case s.Expected.ExitCode != nil:
		return fmt.Sprintf("%s, expected exit %d", end, *s.Expected.ExitCode)
	}
	return end
}

// ending is how a step ended, whatever it was to end with.
func ending(s *steps.StepResult) string {
	switch {
	case s.Fault != nil:
		return string(s.Fault.Type)
	case s.ExitCode != nil:
		return fmt.Sprintf("exit %d", *s.ExitCode)
	case s.Signal != nil:
		return *s.Signal
	}
	return "-"
}

// note is what a reader must know beside the status, or nothing.
func note(s *steps.StepResult) string {
	switch {
	case s.Excused:
		return "excused"
	case isFlaky(s):
		return flaky(s)
	case s.Expected != nil && s.Status == steps.StatusPassed:
		return "expected"
	}
	return ""
}

// notesOf are what is said once per run, and apart from it which engine was taken
// and why: no lack, and of interest to those who ask.
func notesOf(r *steps.Result) (notes, engines []string) {
	for _, n := range r.Notes {
		// In a report made of several, which of them it is about comes first.
		_, behind, _ := strings.Cut(n, ": ")
		if strings.HasPrefix(n, steps.EngineNote) || strings.HasPrefix(n, "shard") && strings.HasPrefix(behind, steps.EngineNote) {
			engines = append(engines, n)
		} else {
			notes = append(notes, n)
		}
	}
	return notes, engines
}

// limitations lists, worst first, what was not enforced or not seen in this
// run, and in which steps. An empty list means: nothing of the kind.
func limitations(r *steps.Result) []string {
	type row struct{ before, after string }
	var order []row
	ids := map[row][]string{}
	add := func(s *steps.StepResult, before, after string) {
		k := row{before, after}
		if ids[k] == nil {
			order = append(order, k)
		}
		ids[k] = append(ids[k], clip(s.ID, maxID))
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if !boxed(s) {
			continue
		}
		for _, what := range []string{"memory", "pids"} {
			if !slices.Contains(s.Limits.Enforced, what) {
				add(s, "no "+what+" cap was in force in ", "")
			}
		}
		if s.Limits.CPUs > 0 && !slices.Contains(s.Limits.Enforced, "cpu") {
			add(s, "no cpu cap was in force in ", "")
		}
		if s.Network == "host" {
			add(s, "the network of ", " was the host's own: nothing limited or recorded it")
		}
		if s.EgressMode == "audit" {
			add(s, "the requests of ", " were recorded and NOT blocked (egressMode: audit)")
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		for _, u := range s.Unobserved {
			if boxed(s) {
				add(s, "not seen in ", ": "+u)
			}
		}
	}
	var out []string
	for _, p := range r.Host.Proof {
		if !p.OK {
			out = append(out, "this host did not show that "+p.Control+" holds: "+provedBy(r, p)+p.How)
		}
	}
	for _, k := range order {
		out = append(out, k.before+some(ids[k])+k.after)
	}
	if n := len(out) - maxLimitations; n > 0 {
		out = append(out[:maxLimitations], fmt.Sprintf("and %d more of these; all of them are in report.json", n))
	}
	return out
}

// ran says whether anything of a step was started.
func ran(s *steps.StepResult) bool {
	return s.ExitCode != nil || s.Signal != nil || s.Fault != nil || s.DurationMs > 0 || s.StartupMs > 0 ||
		s.Limits.By != "" || len(s.Limits.Enforced) > 0
}

// boxed says whether anything of a step was started in a box: where none was built, as
// of an image that could not be had, nothing was in force because nothing was there.
func boxed(s *steps.StepResult) bool {
	none := s.Fault != nil && s.Fault.Type == box.StartupFailed && s.Setup == nil &&
		s.DurationMs == 0 && s.StartupMs == 0 && s.Limits.By == "" && len(s.Limits.Enforced) == 0
	return ran(s) && !none
}

// enforcedBy says which caps held and whose they are, for all steps at once.
func enforcedBy(r *steps.Result) string {
	var by, caps []string
	for i := range r.Steps {
		l := r.Steps[i].Limits
		if l.By != "" && !slices.Contains(by, l.By) {
			by = append(by, l.By)
		}
		for _, c := range l.Enforced {
			if !slices.Contains(caps, c) {
				caps = append(caps, c)
			}
		}
	}
	var disk []string
	for i := range r.Steps {
		if b := r.Steps[i].Limits.DiskBy; heldBy[b] != "" && !slices.Contains(disk, b) {
			disk = append(disk, b)
		}
	}
	held := ""
	if len(disk) > 0 {
		held = "; disk by " + strings.Join(disk, ", ")
	}
	if len(caps) == 0 {
		return "caps: none in force" + held
	}
	return "caps: " + strings.Join(caps, ", ") + " (" + strings.Join(by, ", ") + ")" + held
}

// engines names the engines of a run.
func engines(r *steps.Result) string {
	var out []string
	for i := range r.Steps {
		s := &r.Steps[i]
		e := strings.TrimSpace(s.Engine + " " + s.EngineVersion)
		if s.Kernel == box.OwnKernel.String() {
			e += " (each of its boxes has a kernel of its own)"
		}
		if e != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return "engine: none"
	}
	return "engine: " + strings.Join(out, "; ")
}

// severalEngines says whether the steps of a run had boxes of more than one engine.
func severalEngines(r *steps.Result) bool {
	one := ""
	for i := range r.Steps {
		switch e := r.Steps[i].Engine; {
		case one == "":
			one = e
		case e != "" && e != one:
			return true
		}
	}
	return false
}

// boundary is the engine of a step and whose kernel its box had.
func boundary(s *steps.StepResult) string {
	switch {
	case s.Engine == "":
		return "-"
	case s.Kernel == box.OwnKernel.String():
		return clip(s.Engine, maxWord) + ", its own"
	}
	return clip(s.Engine, maxWord) + ", the host's"
}

// memory is the peak against the cap.
func memory(s *steps.StepResult) string {
	if !ran(s) {
		return "-"
	}
	peak := fmt.Sprintf("%d", (s.Usage.PeakMemoryBytes+(1<<20)-1)>>20)
	if s.Usage.PeakMemoryBytes == 0 {
		peak = "?"
	}
	if !slices.Contains(s.Limits.Enforced, "memory") {
		return peak + " MiB, no cap"
	}
	return fmt.Sprintf("%s of %d MiB", peak, s.Limits.MemoryMb)
}

// requests counts what was asked of the network.
func requests(s *steps.StepResult) string {
	if s.Network == "host" {
		return "host network"
	}
	n := map[string]uint64{}
	for _, e := range s.Egress {
		n[e.Verdict] += e.Count
	}
	if s.Network != "allowlist" && len(n) == 0 {
		return "-"
	}
	out := fmt.Sprintf("%d ok, %d denied", n["allowed"], n["denied"])
	if n["failed"] > 0 {
		out += fmt.Sprintf(", %d failed", n["failed"])
	}
	if s.EgressMode == "audit" {
		out += " (audit)"
	}
	return out
}

// filesChanged counts, and says what became of the changes.
func filesChanged(s *steps.StepResult) string {
	n := max(s.FilesTotal, len(s.Files))
	word := s.Workspace
	if _, ok := becameWords[word]; !ok {
		word = ""
	}
	switch {
	case n == 0 && wrote(s):
		return word
	case n == 0:
		return "-"
	case word == "":
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d, %s", n, word)
}

// elapsed is how long a step took, if it began at all.
func elapsed(s *steps.StepResult) string {
	if !ran(s) {
		return "-"
	}
	return took(s.DurationMs)
}

// took is a time for people: three digits are enough.
func took(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// some names the first of a list and counts the rest.
func some(list []string) string {
	if len(list) <= maxNamed {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
}
