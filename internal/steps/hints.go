package steps

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// maxNamesNoted is how many names a note repeats.
const maxNamesNoted = 5

const (
	hintNoNetwork = "this step has no network (no egressAllow); if it needs one, run it once with egressMode: audit"
	hintNoProxy   = "nothing reached the proxy: the program does not use http_proxy, or needs DNS, which boxes do not have; write tcp://NAME:PORT"
	hintManaged   = "pip does not install into this machine's Python; write setup: pip install NAME, which runs before the step and installs to .deps"
)

// hints are notes for whoever reads a result and wonders. They say what we know of
// the step's box, and change no verdict.
func hints(s PlanStep, sr *StepResult, out box.Outcome) (notes []string) {
	noRoute := out.NoRoute
	if n := unset(s.PassEnv, sr.PassedEnv); n != "" {
		notes = append(notes, "passEnv: not in the caller's environment, so the step did not have it: "+n)
	}
	for _, f := range out.Full {
		notes = append(notes, fullNote(s, f))
	}
	if lacksNetwork(sr) && (noRoute > 0 || networkWords().MatchString(sr.Tail)) {
		switch {
		case sr.Network == "none":
			notes = append(notes, hintNoNetwork)
		case sr.Network == "allowlist" && len(sr.Egress) == 0:
			notes = append(notes, hintNoProxy)
		}
	}
	// Of a step that passed too: somebody in it wanted out by another way.
	switch {
	case noRoute == 0:
	case sr.Network == "none":
		notes = append(notes, fmt.Sprintf("the kernel counted %s to reach an address, without a network to do so; which, it does not say", attempts(noRoute)))
	default:
		notes = append(notes, fmt.Sprintf("the kernel counted %s to reach an address past the proxy, where there is no way; which, it does not say", attempts(noRoute)))
	}
	// pip's own advice, to break the system's packages, helps nobody in a box.
	if s.Setup == "" && !s.InSetup && sr.Status == StatusFailed && strings.Contains(sr.Tail, "externally-managed-environment") {
		notes = append(notes, hintManaged)
	}
	var names []string
	for _, e := range sr.Egress {
		if e.Verdict == egress.Failed && e.Reason == egress.ReasonResolve && e.Host != egress.Others && !slices.Contains(names, e.Host) {
			names = append(names, e.Host)
		}
	}
	if len(names) > 0 {
		notes = append(notes, upToNames(names)+" did not resolve on this host")
	}
	return notes
}

// fullNote says which place in memory ran full, and the line to write.
func fullNote(s PlanStep, f box.FullTmpfs) string {
	bytes := s.ShmBytes
	for _, t := range s.Tmpfs {
		if t.Target == f.Target {
			bytes = t.Bytes
		}
	}
	mib := (bytes + 1<<20 - 1) >> 20
	what := fmt.Sprintf("all of its %d MiB were in use", mib)
	if f.Files {
		what = fmt.Sprintf("there was no room for one more file in its %d MiB", mib)
	}
	at := inert(f.Target)
	return fmt.Sprintf("%s was full: %s when the step ended; to allow more, write tmpfs: {%s: %dm}, which counts as memory (memoryMb)", at, what, at, 2*mib)
}

func attempts(n uint64) string {
	if n == 1 {
		return "an attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// networkWords are what resolvers and programs say that want a network. A name that
// is looked up leaves no other trace in a box, and any program can write these
// words: they are good for a hint only. A refused connection is none of them: in a
// box that is a place on its own loopback.
var networkWords = lazy.Regexp(`(?i)resolve (host|proxy|address)|name resolution|NameResolutionError|name or service not known|nodename nor servname|getaddrinfo|\bENOTFOUND\b|` +
	`\bEAI_AGAIN\b|no such host|UnknownHostException|failed to lookup address|bad address '|network is unreachable|\bENETUNREACH\b`)

// lacksNetwork says whether a step failed as one does that waits for a network or
// gives up on it: by its own exit code, or at its deadline. 126 and 127 are what
// shells say of a command that is not there. Most that fail so lack something else.
func lacksNetwork(sr *StepResult) bool {
	switch {
	case sr.Status != StatusFailed || len(sr.Violations) > 0:
		return false
	case sr.Fault != nil:
		return sr.Fault.Type == box.Timeout
	}
	return sr.ExitCode != nil && !slices.Contains([]int{0, 126, 127}, *sr.ExitCode)
}

func unset(asked, passed []string) string {
	var names []string
	for _, n := range asked {
		if !slices.Contains(passed, n) {
			names = append(names, n)
		}
	}
	return upToNames(names)
}

func upToNames(names []string) string {
	more := ""
	if n := len(names) - maxNamesNoted; n > 0 {
		names, more = names[:maxNamesNoted], fmt.Sprintf(" and %d more", n)
	}
	return inertAll(names, ", ") + more
}

// notFound are the words of shells for a command that is not there: dash's and
// busybox's, then bash's.
var notFound = lazy.Regexp(`^[^\n]*?: (?:line )?\d+: ([^\s:]+): (?:command )?not found$`)

// missing is the command that a step's shell did not find, by the last line of the
// step's own output. Any program can write that line: it is good for a hint only.
func missing(s PlanStep, sr *StepResult) string {
	if s.Language != "sh" && s.Language != "bash" || sr.Status != StatusFailed || sr.Fault != nil || sr.ExitCode == nil || *sr.ExitCode != 127 {
		return ""
	}
	last := strings.TrimRight(sr.Tail, "\r\n")
	last = last[strings.LastIndexByte(last, '\n')+1:]
	m := notFound().FindStringSubmatch(last)
	if m == nil {
		return ""
	}
	return m[1]
}

// depsPrograms is the note for a step that ended as one does whose command is not
// there, where its setup made programs: they are in a folder that is not on PATH.
// Where the shell says which command it was, it has to be one of them.
func depsPrograms(s PlanStep, sr *StepResult, over *layer) string {
	if over == nil || sr.Status != StatusFailed || sr.Fault != nil || sr.ExitCode == nil || *sr.ExitCode != 127 {
		return ""
	}
	name := missing(s, sr)
	for _, c := range over.changes {
		at := c.RawPath()
		if path.Dir(at) != depsPath || c.Change == workspace.Deleted || name != "" && path.Base(at) != name {
			continue
		}
		if name == "" || !plain(name) {
			name = "NAME"
		}
		return fmt.Sprintf("programs of %s are not on PATH: write python3 -m %s, or %s/%s", depsPath, name, depsPath, name)
	}
	return ""
}

// depsPath is where pip puts the programs of what it installs to .deps.
const depsPath = depsFolder + "/bin"
