package steps

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// maxScriptLines bounds how much of a script a printed plan repeats.
const maxScriptLines = 40

// WriteText prints the plan for a person to judge before anything runs: what
// runs, in which order, under which caps, with what to reach and to see. Texts
// of the file are shown as they are only where that is harmless, else quoted.
// Values of variables are not shown.
func (p *Plan) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "plan of %s: %s\n", inert(p.File), count(len(p.Steps), "step"))
	if p.Policy != nil {
		fmt.Fprintf(out, "within the policy %s, sha256 %s\n", inert(p.Policy.Path), p.Policy.SHA256)
	}
	if s := p.Shard; s != nil {
		fmt.Fprintf(out, "shard %d of %d: %d of %s\n", s.Index, s.Of, len(s.Steps), count(len(s.All), "step"))
	}
	switch {
	case p.Engine == "":
	case p.Kernel == box.OwnKernel.String():
		fmt.Fprintf(out, "engine %s: each box has a kernel of its own\n", p.Engine)
	default:
		fmt.Fprintf(out, "engine %s: boxes share the host's kernel\n", p.Engine)
	}
	if p.needsLater() {
		fmt.Fprintf(out, "because of needs, the order is: %s\n", inertAll(idsOf(order(p.Steps)), ", "))
	}
	for i := range p.Steps {
		p.Steps[i].writeText(out, i+1, len(p.Steps), p.Engine)
	}
	return out.Flush()
}

// needsLater says whether some step needs one that stands after it.
func (p *Plan) needsLater() bool {
	before := make(map[string]bool, len(p.Steps))
	for _, s := range p.Steps {
		if slices.ContainsFunc(s.Needs, func(id string) bool { return !before[id] }) {
			return true
		}
		before[s.ID] = true
	}
	return false
}

func idsOf(list []*PlanStep) []string {
	ids := make([]string, len(list))
	for i, s := range list {
		ids[i] = s.ID
	}
	return ids
}

func (p *PlanStep) writeText(w io.Writer, n, of int, choice string) {
	row := func(label string, lines ...string) {
		for _, line := range lines {
			fmt.Fprintf(w, "  %-10s %s\n", label, line)
			label = ""
		}
	}
	title := inert(p.ID)
	if p.Name != p.ID {
		title += "  " + inert(p.Name)
	}
	fmt.Fprintf(w, "\n[%d/%d] %s  (line %d)\n", n, of, title, p.Line)

	switch {
	case p.Code != "":
		what := p.Language
		if p.Kernel != "" {
			what += ", in the kernel " + inert(p.Kernel)
		}
		row("cell", what)
		row("", scriptLines(p.Code)...)
	case p.Language == "":
		row("command", inertAll(p.Command, " "))
	default:
		row("script", p.Language)
		row("", scriptLines(p.Script)...)
	}
	row("sha256", p.SHA256)
	if p.Setup != "" {
		row("setup", append(scriptLines(p.Setup), p.setupLines()...)...)
	}
	row("engine", p.engineLine(choice))
	row("image", p.image()...)
	row("workdir", inert(p.Workdir))
	row("needs", p.needs())
	row("limits", p.limits())
	row("deadline", seconds(p.TimeoutS))
	row("network", p.network()...)
	row("env", orNone(inertAll(p.envNames(), ", ")))
	if len(p.PassEnv) > 0 {
		row("passed in", inertAll(p.PassEnv, ", "))
	}
	if len(p.PassEnvUnset) > 0 {
		row("not set", inertAll(p.PassEnvUnset, ", ")+" (not in the caller's environment)")
	}
	for i, m := range p.Mounts {
		row(labelOnce("mounts", i), fmt.Sprintf("%s at %s, %s", inert(m.Source), inert(m.Target), mode(m.ReadOnly)))
	}
	for i, t := range append([]box.Tmpfs{{Target: shmTarget, Bytes: p.ShmBytes}}, p.Tmpfs...) {
		row(labelOnce("tmpfs", i), fmt.Sprintf("%s, %s", inert(t.Target), size(t.Bytes)))
	}
	row("dropped", orNone(inertAll(p.CapDrop, ", "))+" (capabilities)")
	if p.Profile != "" {
		row("profile", inert(p.Profile))
	}
	if p.AppArmor != "" {
		row("apparmor", inert(p.AppArmor))
	}
	if len(p.KernProfiles) > 0 {
		row("of kern", inertAll(p.KernProfiles, ", "))
	}
	row("output", "up to "+size(p.MaxOutput)+" each of stdout and stderr")
	row("changes", p.changes()...)
	row("if failed", map[bool]string{true: "its writes to the workspace are kept", false: "its writes to the workspace are discarded"}[p.OnFailure == OnFailureKeep])
	if p.Retries > 0 {
		row("retries", fmt.Sprintf("up to %d, only where what went wrong is not the code's", p.Retries))
	}
	row("files", map[bool]string{true: "changes are listed", false: "changes are not listed"}[p.TrackFiles])
	row("passes if", p.passes())
}

// setupLines say in what box a setup runs.
func (p *PlanStep) setupLines() []string {
	s := p.setupStep()
	lines := append([]string{"once, in a box of its own, deadline " + seconds(s.TimeoutS) + ", network:"}, s.network()...)
	if p.SetupKept {
		lines = append(lines, "sees of the workspace: "+orNone(inertAll(p.SetupCache, ", ")), "what it makes is kept for later runs")
	}
	if p.DepsReadonly {
		lines = append(lines, "the step cannot change the "+depsFolder+" it makes")
	}
	return lines
}

// needs names what must pass first, and what would have had to if all steps ran.
func (p *PlanStep) needs() string {
	text := orNone(inertAll(p.Needs, ", "))
	if len(p.NeedsLeftOut) == 0 {
		return text
	}
	if text += "; "; len(p.Needs) == 0 {
		text = ""
	}
	return text + inertAll(p.NeedsLeftOut, ", ") + " (left out by --only)"
}

func (p *PlanStep) image() []string {
	if p.Origin.None() {
		if p.Root.Kind == box.RootDir {
			return []string{inert(p.Image) + " = " + inert(p.Root.Dir)}
		}
		return []string{inert(p.Image)}
	}
	lines := []string{inert(p.Image) + " = " + inert(p.Origin.String())}
	switch {
	case p.ImageDigest == "":
		lines = append(lines, "not in the store yet, so its digest is not known")
	case p.ImageDigest != p.Origin.Ref.Digest:
		lines = append(lines, "in the store: "+inert(p.ImageDigest))
	}
	if len(p.ImageEnv) > 0 {
		lines = append(lines, "sets "+inertAll(p.ImageEnv, ", "))
	}
	for _, u := range p.ImageUnused {
		lines = append(lines, "not used: "+inert(u))
	}
	return lines
}

func (p *PlanStep) limits() string {
	caps := []string{"memory " + capped(p.MemoryMb, " MiB"), "pids " + capped(p.Pids, ""), "cpus no cap"}
	if p.CPUs > 0 {
		caps[2] = "cpus " + strconv.FormatFloat(p.CPUs, 'g', -1, 64)
	}
	must := "required: nothing runs unless memory and pids are capped"
	if !p.RequireLimits {
		must = "not required: the step runs even if nothing is capped"
	}
	caps = append(caps, "disk "+strconv.FormatInt(p.DiskMb, 10)+" MiB")
	return strings.Join(caps, ", ") + " (" + must + ")"
}

func (p *PlanStep) network() []string {
	switch {
	case p.Network:
		return []string{"THE HOST'S OWN, ITS LOOPBACK INCLUDED"}
	case p.EgressMode == ModeAudit:
		return append([]string{"AUDIT: EVERY PUBLIC HOST, WRITTEN DOWN AND NOT REFUSED"}, p.refusedLines()...)
	case len(p.EgressAllow) == 0:
		return []string{"none"}
	}
	lines := []string{"only through the proxy, to"}
	for _, e := range p.EgressAllow {
		lines = append(lines, "- "+inert(e.String()))
		lines = append(lines, p.presetLines(e.To)...)
	}
	if p.EgressMaxBytes > 0 {
		lines = append(lines, "up to "+size(p.EgressMaxBytes)+" in all")
	}
	return append(lines, p.refusedLines()...)
}

func (p *PlanStep) refusedLines() []string {
	var lines []string
	for _, r := range p.EgressDeny {
		lines = append(append(lines, "never "+inert(r)), p.presetLines(r)...)
	}
	for _, r := range p.ExpectDenied {
		lines = append(append(lines, "a refusal of "+inert(r)+" is expected"), p.presetLines(r)...)
	}
	return lines
}

// presetLines shows what a preset stands for, and which setting says so.
func (p *PlanStep) presetLines(to string) []string {
	var lines []string
	for _, e := range p.EgressPresets {
		if to != "preset:"+e.Name {
			continue
		}
		for _, r := range e.Rules {
			line := "    " + inert(r.Rule)
			if r.From != "" {
				line += "  (" + inert(r.From) + ")"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func (p *PlanStep) envNames() []string {
	names := make([]string, len(p.Env))
	for i, e := range p.Env {
		names[i] = e.Name
	}
	return names
}

func (p *PlanStep) passes() string {
	s := ""
	switch {
	case p.Expect.Fault != "":
		s = "it ends with the fault " + string(p.Expect.Fault)
	case p.Expect.ExitCode != nil:
		s = "it exits with " + strconv.Itoa(*p.Expect.ExitCode)
	}
	for i, t := range p.Tolerate {
		s += map[bool]string{true: ", tolerating ", false: ", "}[i == 0] + string(t)
	}
	if p.ContinueOnErr {
		s += "; a failure does not close the gate"
	}
	return s
}

// scriptLines shows a script behind a gutter: no line of it begins where a
// reader, or a runner, looks for ours.
func scriptLines(script string) []string {
	lines := strings.Split(strings.TrimRight(script, "\n"), "\n")
	more := len(lines) - maxScriptLines
	if more > 0 {
		lines = lines[:maxScriptLines]
	}
	out := make([]string, 0, len(lines)+1)
	for _, line := range lines {
		out = append(out, strings.TrimRight("| "+inertLine(line), " "))
	}
	if more > 0 {
		out = append(out, "| ... "+count(more, "more line"))
	}
	return out
}

// inertLine shows a line of a script; its own quotes and blanks stay readable.
// Colour codes are shown, not left out: who judges a script must see them.
func inertLine(s string) string {
	return gha.Inert(strings.NewReplacer("\t", "    ", "\x1b", `\x1b`).Replace(s))
}

func inertAll(list []string, sep string) string {
	out := make([]string, len(list))
	for i, s := range list {
		// With a blank in it, one argument would look like two.
		if out[i] = inert(s); out[i] == s && strings.ContainsAny(s, " ,") {
			out[i] = strconv.Quote(s)
		}
	}
	return strings.Join(out, sep)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func labelOnce(label string, i int) string {
	if i > 0 {
		return ""
	}
	return label
}

func mode(readOnly bool) string {
	if readOnly {
		return "read-only"
	}
	return "writable"
}

func capped(n int64, unit string) string {
	if n == 0 {
		return "no cap"
	}
	return strconv.FormatInt(n, 10) + unit
}

func seconds(s float64) string { return strconv.FormatFloat(s, 'f', -1, 64) + " s" }

// size prints bytes in the largest unit that needs no fraction.
func size(n int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n&(1<<u.shift-1) == 0 {
			return strconv.FormatInt(n>>u.shift, 10) + " " + u.name
		}
	}
	return count(int(n), "byte")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
