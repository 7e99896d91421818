package steps

import (
	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

// The bounds of what a step may ask for.
const (
	minMemoryMb, maxMemoryMb = 16, 1 << 20
	minPids, maxPids         = 2, 4194304 // the kernel's own pid_max ends there
	minCPUs, maxCPUs         = 0.01, 1024 // the kernel takes no quota below 1 ms in 100
	minTimeoutS, maxTimeoutS = 0.001, 86400
	maxOutput                = 16 << 30
	minDiskMb, maxDiskMb     = 1, 1 << 20 // 1 TiB

	// maxRetries is small: what fails six times is not a network that hiccups.
	maxRetries = 5

	maxSteps = 10_000
	maxName  = 256
	// maxString is what the kernel lets through execve as one argument or one
	// variable, the NUL at its end not counted.
	maxString = 128<<10 - 1
	maxPath   = 4095
)

// What a step gets where the file says nothing.
const (
	defaultMemoryMb = 512
	defaultPids     = 256
	defaultTimeoutS = 30
	defaultOutput   = 64 << 20
	defaultDiskMb   = DefaultDiskMb
)

// DefaultDiskMb is what a step may write where the file says nothing.
const DefaultDiskMb = 1024

const (
	idPattern   = `^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`
	envPattern  = `^[A-Za-z_][A-Za-z0-9_]*$`
	sizePattern = `^[1-9][0-9]*[kmgt]$`
	capPattern  = `^(CAP_)?[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`
	// The grammar of names of images is not in it; Load has that.
	rootPattern = `^(host|(rootfs|archive):.+|[A-Za-z0-9\[]([A-Za-z0-9._:/@\[\]-]*[A-Za-z0-9_.-])?)$`
	absPattern  = `^/`
)

// IsID says whether a text has the form of a step's id: one that names a folder,
// and acts nowhere within a line.
func IsID(text string) bool { return idShape().MatchString(text) }

var languageWords = []string{"sh", "bash", "python", "node"}

// file is a steps file, as the JSON Schema shows it.
type file struct {
	Version  int     `json:"version,omitempty"`
	Defaults *step   `json:"defaults,omitempty"`
	Steps    []*step `json:"steps"`
}

// step is one step as written, on top of what defaults say, on top of what we
// say. A field is filled by the row of its key in stepKeys.
type step struct {
	ID              string          `json:"id,omitempty"`
	Name            string          `json:"name,omitempty"`
	Run             script          `json:"run,omitempty"`
	Command         []argument      `json:"command,omitempty"`
	Language        string          `json:"language,omitempty"`
	Image           string          `json:"image,omitempty"`
	Env             environment     `json:"env,omitempty"`
	PassEnv         []string        `json:"passEnv,omitempty"`
	Workdir         string          `json:"workdir,omitempty"`
	MemoryMb        int64           `json:"memoryMb,omitempty"` // 0: no cap
	Pids            int64           `json:"pids,omitempty"`     // 0: no cap
	CPUs            float64         `json:"cpus,omitempty"`     // 0: no cap
	TimeoutS        float64         `json:"timeoutS,omitempty"`
	RequireLimits   bool            `json:"requireLimits,omitempty"`
	DiskMb          int64           `json:"diskMb,omitempty"`
	Network         bool            `json:"network,omitempty"`
	EgressAllow     rules           `json:"egressAllow,omitempty"`
	EgressDeny      []string        `json:"egressDeny,omitempty"`
	EgressMode      string          `json:"egressMode,omitempty"`
	EgressMaxBytes  int64           `json:"egressMaxBytes,omitempty"` // 0: no bound
	ExpectDenied    []string        `json:"expectDenied,omitempty"`
	Mounts          mounts          `json:"mounts,omitempty"`
	Tmpfs           tmpfs           `json:"tmpfs,omitempty"`
	CapDrop         []string        `json:"capDrop,omitempty"`
	SecurityProfile string          `json:"securityProfile,omitempty"`
	MaxOutputBytes  int64           `json:"maxOutputBytes,omitempty"`
	TrackFiles      bool            `json:"trackFiles,omitempty"`
	Needs           names           `json:"needs,omitempty"`
	AllowChanges    []string        `json:"allowChanges,omitempty"`
	OnFailure       string          `json:"onFailure,omitempty"`
	ContinueOnError bool            `json:"continueOnError,omitempty"`
	Retries         int64           `json:"retries,omitempty"`
	Tolerate        []box.FaultType `json:"tolerate,omitempty"`
	Expect          expectation     `json:"expect,omitempty"`

	rootDir   string            // real path, for rootfs:
	origin    Origin            // of an OCI image
	mountedAs map[string]string // sources of mounts as written, by target
	presets   []EgressPreset    // that its rules name
	at        pos               // of the step
	keyAt     []KeyPlace        // where the step's own keys stand
	written   map[string]value  // what is in force for a key, in the step or in defaults
	own       map[string]value  // what the step itself wrote
	// bad keys had something wrong: what follows from them together with other
	// keys is then not worth saying.
	bad map[string]bool
}

// KeyPlace is where a key of a step stands in the file.
type KeyPlace struct {
	Name         string
	Line, Column int
}

// These types look in the file unlike what they become; the schema of each is
// beside the test that generates it.
type (
	script      string
	argument    string
	environment []EnvVar
	names       []string
	mounts      []box.Mount
	expectation Expect
	tmpfs       []tmpfsEntry
)

type tmpfsEntry struct {
	target string
	bytes  int64 // 0: the default
	size   string
	at     pos
}

// key is all there is to say about one key of a step.
type key struct {
	name  string
	built bool
	// perStep keys cannot stand in defaults: they say what one step is.
	perStep bool
	// null is allowed and means "none".
	null bool
	// def is the default as the file would write it; nil is none.
	def any
	// min and max bound a number, or the length of a text.
	min, max float64
	words    []string
	pattern  string
	doc      string
	read     func(*checker, key, value, *step)
}

// stepKeys is every key of a step, in the order in which they are documented.
// A key without read is part of the format and refused by name.
var stepKeys = []key{
	{name: "id", built: true, perStep: true, pattern: idPattern, read: readID,
		doc: "Unique name of the step; it names the folder of its logs, and needs refers to it. Default: step-N, N counted from 1."},
	{name: "name", built: true, perStep: true, max: maxName, read: readName,
		doc: "What is shown for the step. Default: the id."},
	{name: "run", built: true, perStep: true, read: readRun,
		doc: "Script for language, run from a read-only file outside the workspace. A step has exactly one of run and command."},
	{name: "command", built: true, perStep: true, read: readCommand,
		doc: "Program and arguments, as a list; no shell reads them. A step has exactly one of run and command."},
	{name: "code", perStep: true,
		doc: "A cell whose rich results are captured."},
	{name: "language", built: true, def: "sh", words: languageWords, read: readLanguage,
		doc: "What reads run: sh (sh -e), bash (bash -eo pipefail), python or node, looked up in the box. Default: sh."},
	{name: "image", built: true, def: "host", pattern: rootPattern, read: readImage,
		doc: "Where the box's root file system comes from: host (this machine's own tools, read-only, nothing secret), rootfs:DIR (a folder), archive:FILE (what docker save wrote, or the layout of the OCI as a tar or a folder), or an image of a registry, by tag or by digest, such as python:3.12-slim. A relative path starts at the folder of the steps file. Of an image its variables are used, below env, and nothing else of its configuration. Default: host."},
	{name: "setup", doc: "Command run once before, with network, in its own box."},
	{name: "env", built: true, def: map[string]any{}, read: readEnv,
		doc: "Variables of the step, name to value; a plain number or boolean is taken as it is written. They come after those of the box and may replace them. Default: none. A step's env replaces that of defaults as a whole."},
	{name: "passEnv", built: true, def: []any{}, pattern: envPattern, read: readPassEnv,
		doc: "Names of variables handed in from the caller's environment, after env. Their values are masked in log, summary and report. One that the caller does not have stays unset. Default: none."},
	{name: "workdir", built: true, def: box.WorkspaceTarget, pattern: absPattern, read: readWorkdir,
		doc: "Absolute folder in the box where the step starts. Default: /workspace."},
	{name: "memoryMb", built: true, null: true, def: defaultMemoryMb, min: minMemoryMb, max: maxMemoryMb, read: readMemory,
		doc: "Memory cap in MiB, for all processes and tmpfs of the step together. Default: 512. null is no cap, which needs requireLimits: false."},
	{name: "pids", built: true, null: true, def: defaultPids, min: minPids, max: maxPids, read: readPids,
		doc: "How many processes and threads the step may have at a time. Default: 256. null is no cap, which needs requireLimits: false."},
	{name: "cpus", built: true, null: true, min: minCPUs, max: maxCPUs, read: readCPUs,
		doc: "How many CPUs' worth of time the step may use; fractions are allowed. Default: no cap."},
	{name: "timeoutS", built: true, def: defaultTimeoutS, min: minTimeoutS, max: maxTimeoutS, read: readTimeout,
		doc: "Deadline in seconds by our own clock; fractions are allowed. Default: 30."},
	{name: "requireLimits", built: true, def: true, read: readRequireLimits,
		doc: "The memory and pids caps must be in force, or nothing runs. Default: true."},
	{name: "diskMb", built: true, def: defaultDiskMb, min: minDiskMb, max: maxDiskMb, read: readDisk,
		doc: "How much the step may write to the workspace, in MiB; it may make 256 files and folders per MiB. Default: 1024."},
	{name: "network", built: true, def: false, read: readNetwork,
		doc: "true gives the step the host's own network, its loopback included. Exclusive with egressAllow. Default: false."},
	{name: "egressAllow", built: true, def: []any{}, read: readEgressAllow,
		doc: "Destinations the step may reach through the proxy: name, name:port, *.name (one label, not the bare name), **.name (any depth), tcp://name:port for what speaks no HTTP, preset:NAME (a list of ours; npm, pypi, go, cargo, maven and debian: what that client is set up for on this machine; plan prints it); without a port, 80 and 443. {to: RULE, private: true} is for a target that is not a public address, {to: RULE, force: true} for a rule that covers more than anyone can oversee. Everything else is refused. Exclusive with network. Default: none."},
	{name: "egressDeny", built: true, def: []any{}, read: readEgressDeny,
		doc: "Rules that win over any allow. Default: none."},
	{name: "egressMode", built: true, def: ModeEnforce, words: egressModes, read: readEgressMode,
		doc: "enforce, or audit: every public request goes through and is recorded, and the list that would allow it is proposed. A run in audit is labelled and is never an enforced one. Default: enforce."},
	{name: "egressMaxBytes", built: true, null: true, min: 1, max: 1 << 50, read: readEgressMaxBytes,
		doc: "How many bytes the step may move through the proxy, both ways together; past it connections are cut. Default: no bound."},
	{name: "expectDenied", built: true, def: []any{}, read: readExpectDenied,
		doc: "Rules whose refusal is a note and no fault. Default: none."},
	{name: "mounts", built: true, def: map[string]any{}, read: readMounts,
		doc: "Host paths shown in the box: absolute host path to absolute path in the box, or to [path, ro] or [path, rw]. A path alone is writable. Folders of the system, credentials and sockets of container engines are refused. Default: none."},
	{name: "tmpfs", built: true, def: map[string]any{"/tmp": "64m"}, pattern: sizePattern, read: readTmpfs,
		doc: "File systems in memory, counted against memoryMb: path to size (such as 256m; units k, m, g, t), or a list of paths of the default size. /tmp is always there, 64m or half of memoryMb if that is less, unless tmpfs is {}; /step/home resizes HOME and /dev/shm itself."},
	{name: "capDrop", built: true, def: []any{"ALL"}, pattern: capPattern, read: readCapDrop,
		doc: "Capabilities dropped from the box, as a list. Default: [ALL]."},
	{name: "profiles", doc: "Reusable profiles of kern."},
	{name: "apparmor", doc: "A loaded AppArmor profile to enter."},
	{name: "securityProfile", built: true, null: true, words: []string{"untrusted"}, read: readSecurityProfile,
		doc: "untrusted, or null for none. Default: none."},
	{name: "enforceLimits", doc: "Which path kern takes to its caps."},
	{name: "maxOutputBytes", built: true, def: defaultOutput, min: 1, max: maxOutput, read: readMaxOutput,
		doc: "How many bytes of each of stdout and stderr are kept; the rest is counted and dropped. Default: 67108864 (64 MiB)."},
	{name: "trackFiles", built: true, def: true, read: readTrackFiles,
		doc: "List the files that the step changed in the workspace. Default: true."},
	{name: "depsReadonly", doc: "Whether a step can change what its own setup installed."},
	{name: "needs", built: true, perStep: true, read: readNeeds,
		doc: "Id, or list of ids, of steps that must pass before this one runs. Default: none."},
	{name: "allowChanges", built: true, def: []any{"**"}, read: readAllowChanges,
		doc: "Globs of what the step may change in the workspace: * and ? within a name, [a-z], {a,b}, and ** for folders of any depth. A change elsewhere is a violation and nothing of the step is committed; so is a change to .git, .github, CODEOWNERS, .gitattributes or .gitmodules unless a glob names it. An empty list permits nothing. Default: [\"**\"]."},
	{name: "onFailure", built: true, def: OnFailureDiscard, words: []string{OnFailureDiscard, OnFailureKeep}, read: readOnFailure,
		doc: "What becomes of a failed step's writes to the workspace: discard or keep. Default: discard."},
	{name: "continueOnError", built: true, def: false, read: readContinueOnError,
		doc: "A failure of the step is reported and does not close the gate. Steps that need it are skipped all the same. Default: false."},
	{name: "retries", built: true, def: 0, min: 0, max: maxRetries, read: readRetries,
		doc: "How often the step may be run again where what went wrong is not the code's: the box could not be started, or it exited other than with 0 and requests it was allowed had failed upstream. Never after a denial, a violation or any other fault. Each try has a new box and sees the workspace as it was. Default: 0."},
	{name: "tolerate", built: true, def: []any{}, words: faultWords(), read: readTolerate,
		doc: "Fault types that do not fail the step: the exit code decides. Default: none."},
	{name: "expect", built: true, def: map[string]any{"exitCode": 0}, read: readExpect,
		doc: "What the step must end with to pass: {exitCode: N}, N from 0 to 255, or {fault: TYPE}. Default: {exitCode: 0}."},
}

// fileKeys describes the keys of the file itself.
var fileKeys = map[string]string{
	"version":  "Version of the format: 1, which is also the default.",
	"defaults": "Keys that hold for every step that does not write them itself.",
	"steps":    "The steps, in the order in which they run.",
}

// stepKey finds the row of a key.
func stepKey(name string) (key, bool) {
	for _, k := range stepKeys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// builtKeys names the keys that can be written, in defaults or in a step.
func builtKeys(inDefaults bool) []string {
	var out []string
	for _, k := range stepKeys {
		if k.built && !(inDefaults && k.perStep) {
			out = append(out, k.name)
		}
	}
	return out
}

// perStepKeys names the keys that can be written in a step only.
func perStepKeys() (out []string) {
	for _, k := range stepKeys {
		if k.built && k.perStep {
			out = append(out, k.name)
		}
	}
	return out
}

func faultWords() []string {
	out := make([]string, len(box.Kinds))
	for i, k := range box.Kinds {
		out[i] = string(k.Type)
	}
	return out
}
