package steps

import (
	"fmt"
	"path"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Verdict words of a run.
const (
	VerdictPass      = "pass"
	VerdictFail      = "fail"
	VerdictRefused   = "refused"
	VerdictError     = "error"
	VerdictCancelled = "cancelled"
)

// Status words of a step.
const (
	StatusPassed    = "passed"
	StatusFailed    = "failed"
	StatusSkipped   = "skipped"
	StatusCancelled = "cancelled"
	StatusError     = "error"
)

// EngineNote is how the note begins that says which engine was taken, and why.
const EngineNote = "engine: "

// Result is what happened in one run: the content of report.json, schema 1.
// Fields are only ever added.
type Result struct {
	Schema  int          `json:"schema"`
	Verdict string       `json:"verdict" jsonschema:"enum=pass,enum=fail,enum=refused,enum=error,enum=cancelled"`
	Tool    Tool         `json:"tool"`
	Host    Host         `json:"host"`
	Steps   []StepResult `json:"steps"`
	// Refusal is why nothing ran, with the command that would help.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Policy is the ceiling that the steps file was held to.
	Policy *PolicyRef `json:"policy,omitempty"`
	// Notes are things said once per run, such as why this engine.
	Notes []string `json:"notes,omitempty"`
	// File is the steps file, from the root of the checkout where there is one;
	// empty if the steps came from elsewhere. It is for reports that point at it.
	File string `json:"file,omitempty"`
	// Shard is which part of a plan this run was of, where that was split.
	Shard *Shard `json:"shard,omitempty"`
	// Merged is there in a report that was made of those of shards.
	Merged    *Merged `json:"merged,omitempty"`
	StartedAt string  `json:"startedAt,omitempty"` // RFC 3339, UTC
	// DurationMs is the wall-clock time of the whole run.
	DurationMs int64 `json:"durationMs"`
}

// Shard is a part of a plan that was split over several runs.
type Shard struct {
	Index int `json:"index"` // from 1
	Of    int `json:"of"`
	// Plan is the SHA-256 of the whole plan in a form that is the same on every
	// machine.
	Plan  string   `json:"plan"`
	Steps []string `json:"steps"` // ids of this part, in the order of the list
	All   []string `json:"all"`   // ids of all parts
}

// Merged is what a report was made of.
type Merged struct {
	Of     int           `json:"of"`
	Plan   string        `json:"plan"`
	Shards []MergedShard `json:"shards"` // those that are in it
	// Problems are sentences in our own words: what is missing, there twice or of
	// another plan. With any of them the verdict is not pass.
	Problems []string `json:"problems"`
}

// MergedShard is one run of those that a report was made of.
type MergedShard struct {
	Index      int    `json:"index"`
	Verdict    string `json:"verdict" jsonschema:"enum=pass,enum=fail,enum=refused,enum=error,enum=cancelled"`
	Steps      int    `json:"steps"`
	Host       Host   `json:"host"`
	StartedAt  string `json:"startedAt,omitempty"`
	DurationMs int64  `json:"durationMs"`
	// Policy is the SHA-256 of the policy that the run was held to; empty is none.
	Policy string `json:"policy,omitempty"`
}

// Tool names the program that wrote the report.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Host is where the run took place.
type Host struct {
	OS     string `json:"os"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	Cgroup string `json:"cgroup"` // "v1", "v2" or "" where no caps are possible
	// CgroupFound is what there is where no caps are possible: "v1", "v2" or "".
	CgroupFound string  `json:"cgroupFound,omitempty"`
	Runner      string  `json:"runner"` // "github", "local", ...
	Proof       []Proof `json:"proof"`
}

// Proof is one control that was seen to work on this host before step 1.
type Proof struct {
	Control string  `json:"control"`
	OK      bool    `json:"ok"`
	How     string  `json:"how"`
	Ms      float64 `json:"ms"`
	// Engine is the one whose boxes showed it. Where a run had several, each of them
	// has its entries, those of the run's own choice first.
	Engine string `json:"engine,omitempty"`
}

// Refusal is why nothing ran.
type Refusal struct {
	Cause string   `json:"cause"`
	Fix   []string `json:"fix"`
}

// StepResult is what happened to one step.
type StepResult struct {
	ID            string      `json:"id"`
	Name          string      `json:"name"`
	Engine        string      `json:"engine"`
	EngineVersion string      `json:"engineVersion"`
	EngineDigest  string      `json:"engineDigest,omitempty"`
	Kernel        string      `json:"kernel,omitempty" jsonschema:"enum=host,enum=own"` // which answers the step's system calls
	ImageDigest   string      `json:"imageDigest,omitempty"`                            // of an OCI image, as it was resolved
	Status        string      `json:"status" jsonschema:"enum=passed,enum=failed,enum=skipped,enum=cancelled,enum=error"`
	ExitCode      *int        `json:"exitCode"`
	Signal        *string     `json:"signal"`
	Fault         *box.Fault  `json:"fault"`
	Events        []box.Event `json:"events"`
	Unobserved    []string    `json:"unobserved"`
	DurationMs    int64       `json:"durationMs"`
	StartupMs     int64       `json:"startupMs"`
	// StartedMs is when the step began, since the run began.
	StartedMs int64 `json:"startedMs"`
	// Line is where the step stands in the steps file; 0 is unknown.
	Line int `json:"line,omitempty"`
	// Shard is where the step ran, in a report that was made of several.
	Shard   int            `json:"shard,omitempty"`
	Stdout  Output         `json:"stdout"`
	Stderr  Output         `json:"stderr"`
	Limits  Limits         `json:"limits"`
	Usage   Usage          `json:"usage"`
	Network string         `json:"network" jsonschema:"enum=none,enum=allowlist,enum=host"`
	Egress  []EgressRecord `json:"egress"`
	// EgressMode, EgressProposal and EgressUnused belong to the allowlist.
	EgressMode     string   `json:"egressMode" jsonschema:"enum=enforce,enum=audit"`
	EgressProposal []string `json:"egressProposal"`
	EgressUnused   []string `json:"egressUnused"`
	// EgressTooWide are rules that allow more than was used.
	EgressTooWide []egress.Finding `json:"egressTooWide,omitempty"`
	// EgressPresets are those that the step's rules name, as the plan had them.
	EgressPresets []EgressPreset `json:"egressPresets,omitempty"`
	// Setup is what became of the step's setup; nil if it has none.
	Setup   *SetupResult `json:"setup,omitempty"`
	Results []CellResult `json:"results"`
	// ResultFiles are values of Results that have a file of their own.
	ResultFiles []ResultFile `json:"resultFiles,omitempty"`
	Files       []FileChange `json:"files"`
	FilesTotal  int          `json:"filesTotal"`
	Workspace   string       `json:"workspace" jsonschema:"enum=committed,enum=discarded,enum=kept,enum=unchanged"`
	Violations  []Violation  `json:"violations"`
	// WorkspaceBy is how the step was kept from writing to the workspace itself:
	// by an overlay over it, or with a copy of it.
	WorkspaceBy string `json:"workspaceBy,omitempty" jsonschema:"enum=overlay,enum=copy"`
	// First are paths of files that a reviewer should see before all others. One that
	// ends in a slash is a folder of installed packages, with many such files in it.
	First []string `json:"first,omitempty"`
	// Patch is what the step changed, as git apply takes it.
	Patch *Patch `json:"patch,omitempty"`
	// Notes are sentences in our own words about what is no failure.
	Notes []string `json:"notes,omitempty"`
	// Reason is one sentence in our own words: why the status is what it is.
	Reason string `json:"reason,omitempty"`
	// Excused: continueOnError kept a failure from closing the gate.
	Excused bool `json:"excused,omitempty"`
	// Attempts is how often the step was run, where it may be run again. What is
	// told of it is told of the last time, but for requests, which are those of
	// all, and notes, which say how the others ended.
	Attempts int `json:"attempts,omitempty"`
	// Flaky: it passed, and not the first time.
	Flaky bool `json:"flaky,omitempty"`
	// Tries are those before the last.
	Tries []Try `json:"tries,omitempty"`
	// Expected is what the step file expects, where it is not exit code 0.
	Expected *Expect `json:"expected,omitempty"`
	// dropped: the step passed, and what it wrote together with others is not in
	// the workspace.
	dropped bool
	// Tail is the end of the step's output for the summary; untrusted text,
	// secrets masked. It is not part of report.json.
	Tail string `json:"-"`
	// EngineNote is what the engine itself said; untrusted text.
	EngineNote string `json:"engineNote,omitempty"`
	// PassedEnv are the names of the variables handed in from the caller.
	PassedEnv []string `json:"passedEnv,omitempty"`
}

// Try is how a step ended that was then run again. What it wrote to the workspace
// is dropped.
type Try struct {
	Reason     string `json:"reason"`
	DurationMs int64  `json:"durationMs"`
	// Stdout, Stderr and Patch have no path where there is no such file.
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
	Patch  *Patch `json:"patch,omitempty"`
}

// MaxTries is how often a step is run at most.
const MaxTries = maxRetries + 1

// TrySays is the note about a try of Tries.
func (s *StepResult) TrySays(i int) string {
	return fmt.Sprintf("try %d of %d: %s", i+1, s.Attempts, s.Tries[i].Reason)
}

// TryFolder is where the files of a step's n-th try are once another one has
// begun, within the report folder.
func TryFolder(id string, n int) string { return path.Join("steps", id, fmt.Sprintf("try-%d", n)) }

// Output is one stream of a step as kept on disk.
type Output struct {
	Path      string `json:"path"` // relative to the report folder
	Bytes     int64  `json:"bytes"`
	Truncated bool   `json:"truncated"`
}

// Limits are the caps a step ran under.
type Limits struct {
	MemoryMb int64   `json:"memoryMb"`
	Pids     int64   `json:"pids"`
	CPUs     float64 `json:"cpus"`
	DiskMb   int64   `json:"diskMb"`
	// DiskBy is what holds diskMb: a file system of the step's own (loop, tmpfs),
	// or a look from outside every so often (sampler).
	DiskBy   string   `json:"diskBy,omitempty" jsonschema:"enum=loop,enum=tmpfs,enum=sampler"`
	Enforced []string `json:"enforced"`
	By       string   `json:"by"`
}

// Usage is what a step used, as the control group counted it.
type Usage struct {
	PeakMemoryBytes int64 `json:"peakMemoryBytes"`
	CPUMs           int64 `json:"cpuMs"`
	PeakPids        int64 `json:"peakPids"`
	// What the step had written to the workspace when it ended.
	DiskBytes  int64 `json:"diskBytes,omitempty"`
	DiskInodes int64 `json:"diskInodes,omitempty"`
}

// Patch is a step's changes as a patch in the report folder.
type Patch struct {
	Path  string `json:"path"` // relative to the report folder
	Bytes int64  `json:"bytes"`
	Files int    `json:"files"` // that have a diff
	// Left counts what a patch cannot carry, such as empty folders; the patch
	// begins with what that is.
	Left int `json:"left,omitempty"`
	// Masked counts files with masked lines in the patch.
	Masked int `json:"masked,omitempty"`
	// MaskedFiles are the first of these.
	MaskedFiles []string `json:"maskedFiles,omitempty"`
}

// EgressRecord is one destination a step asked for, with one outcome.
type EgressRecord struct {
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	Verdict  string `json:"verdict" jsonschema:"enum=allowed,enum=denied,enum=failed"`
	Reason   string `json:"reason"`
	Rule     string `json:"rule"`
	Count    uint64 `json:"count"`
	BytesIn  uint64 `json:"bytesIn"`
	BytesOut uint64 `json:"bytesOut"`
	// Expected: expectDenied speaks of this refusal, so it is no fault.
	Expected bool `json:"expected,omitempty"`
	// Setup: it was the step's setup that asked, in its own box.
	Setup bool `json:"setup,omitempty"`
}

// CellResult is a rich value of a cell, in each form that it has: a MIME type and
// the value. Untrusted text, secrets masked. Of a type that is no text (all but
// text/*, JSON and XML, SVG among that) the value is base64. In place of one above
// 64 KiB, and of what comes after 4 MiB of them, stands the path of its file, and
// ResultFiles lists that.
type CellResult map[string]string

// ResultFile is the file of a form of the i-th result, nil if it has none.
func (s *StepResult) ResultFile(i int, mime string) *ResultFile {
	for k := range s.ResultFiles {
		if f := &s.ResultFiles[k]; f.Result == i && f.MIME == mime {
			return f
		}
	}
	return nil
}

// ResultFile is the file of a value. What a browser would run stands in a file
// that is called text.
type ResultFile struct {
	Result int    `json:"result"` // place in Results, from 0
	MIME   string `json:"mime"`
	Path   string `json:"path"` // relative to the report folder
	Bytes  int64  `json:"bytes"`
}

// FileChange is one path a step changed in the workspace.
type FileChange struct {
	Path      string `json:"path"`
	PathBytes string `json:"pathBytes,omitempty"` // base64, where Path is not the whole truth
	Change    string `json:"change" jsonschema:"enum=created,enum=modified,enum=deleted,enum=mode,enum=retyped"`
	Type      string `json:"type" jsonschema:"enum=file,enum=dir,enum=symlink,enum=fifo,enum=socket,enum=device"`
	Size      int64  `json:"size"`
	Mode      string `json:"mode"` // four octal digits
	SHA256    string `json:"sha256,omitempty"`
	Target    string `json:"target,omitempty"` // of a symlink
	// From is the path whose content a created file has, where that was deleted
	// in the same step and nothing else had it: most likely it was renamed.
	From string `json:"from,omitempty"`
	// Unreadable: the kernel did not let us look at the content.
	Unreadable bool `json:"unreadable,omitempty"`
}

// Violation is something a step did to the workspace that it may not.
type Violation struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}
