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
	minSetupS       = 120
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
	rootPattern    = `^(host|(rootfs|archive):.+|[A-Za-z0-9\[]([A-Za-z0-9._:/@\[\]-]*[A-Za-z0-9_.-])?)$`
	absPattern     = `^/`
	workdirPattern = `^(/|image$)`
	// As kern-sandbox takes them, but for vgpio:NAME.
	profilePattern  = `^(vcpu|vdisk):[A-Za-z0-9][A-Za-z0-9._-]*$`
	apparmorPattern = `^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}$`
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
	Code            script          `json:"code,omitempty"`
	Kernel          string          `json:"kernel,omitempty"`
	Language        string          `json:"language,omitempty"`
	Engine          string          `json:"engine,omitempty"` // empty: the run's own choice
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
	Setup           string          `json:"setup,omitempty"`
	SetupEgress     rules           `json:"setupEgress,omitempty"`
	SetupTimeoutS   float64         `json:"setupTimeoutS,omitempty"` // 0: the default
	SetupCache      []string        `json:"setupCache,omitempty"`
	DepsReadonly    bool            `json:"depsReadonly,omitempty"`
	Profiles        []string        `json:"profiles,omitempty"`
	AppArmor        string          `json:"apparmor,omitempty"`
	EnforceLimits   bool            `json:"enforceLimits,omitempty"`
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
	// setupListed and setupKept: setupEgress, setupCache is a list, if an empty one.
	setupListed, setupKept bool
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
	name string
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
var stepKeys = []key{
	{name: "id", perStep: true, pattern: idPattern, read: readID,
		doc: "Unique name of the step; it names the folder of its logs, and needs refers to it. Default: step-N, N counted from 1."},
	{name: "name", perStep: true, max: maxName, read: readName,
		doc: "What is shown for the step. Default: the id."},
	{name: "run", perStep: true, read: readRun,
		doc: "Script for language, run from a read-only file outside the workspace. A step has exactly one of run, command and code."},
	{name: "command", perStep: true, read: readCommand,
		doc: "Program and arguments, as a list; no shell reads them. A step has exactly one of run, command and code."},
	{name: "code", perStep: true, read: readCode,
		doc: "A cell of Python whose rich results are taken beside its output: the last expression, what display(value) shows, and every open figure of matplotlib. A step has exactly one of run, command and code."},
	{name: "kernel", pattern: idPattern, read: readKernel,
		doc: "Name of an interpreter that this cell shares with the other cells that name it, in the order of the file and in one box. Each has its own status, output, results and deadline; a fault ends the interpreter, and the cells after it are skipped. What shapes the box or judges what is written has to be the same for all of them. Default: an interpreter of its own."},
	{name: "language", def: "sh", words: languageWords, read: readLanguage,
		doc: "What reads run: sh (sh -e), bash (bash -eo pipefail), python or node, looked up in the box. Of code it can only be python, which is its default. Default: sh."},
	{name: "engine", null: true, words: engineWords, read: readEngine,
		doc: "What builds the step's box: kern or native, whose boxes share the host's kernel, or gvisor, whose boxes have one of their own. One that cannot be had is refused before anything runs; none takes its place. It may not differ from an engine that the run was told to take by name. null is the run's own choice. Default: null."},
	{name: "image", def: "host", pattern: rootPattern, read: readImage,
		doc: "Where the box's root file system comes from: host (this machine's own tools, read-only, nothing secret), rootfs:DIR (a folder), archive:FILE (what docker save wrote, or the layout of the OCI as a tar or a folder), or an image of a registry, by tag or by digest, such as python:3.12-slim. A relative path starts at the folder of the steps file. Of an image its variables are used, below env, and its WORKDIR where workdir says image; nothing else of its configuration. Default: host."},
	{name: "setup", null: true, read: readSetup,
		doc: "Script for sh (sh -e), run before the step in a box of its own, with network through the proxy: every public host, recorded, unless setupEgress says less. It runs once per run for all steps in which it and all that shapes its box are the same. pip installs to .deps in the workspace, which is on PYTHONPATH of the step. The step sees what it wrote to the workspace, and none of that is committed. If it fails, the step is startup_failed. Default: none."},
	{name: "setupEgress", null: true, read: readSetupEgress,
		doc: "Destinations that setup may reach, as egressAllow has them; everything else is refused. null is every public host, recorded and not refused, and what egressAllow names. Default: null."},
	{name: "setupTimeoutS", null: true, min: minTimeoutS, max: maxTimeoutS, read: readSetupTimeout,
		doc: "Deadline of setup in seconds. null is timeoutS, and at least 120. Default: null."},
	{name: "setupCache", null: true, read: readSetupCache,
		doc: "Files of the workspace, as a list. With this key what setup makes is kept for later runs, by the content of these files and all else that shapes its box; setup then sees these files and no other of the workspace. Not together with passEnv, mounts, profiles and an image of rootfs:. null keeps nothing. Default: null."},
	{name: "depsReadonly", def: true, read: readDepsReadonly,
		doc: "The step cannot change the .deps that its own setup made. Without a setup it has no effect. Default: true."},
	{name: "env", def: map[string]any{}, read: readEnv,
		doc: "Variables of the step, name to value; a plain number or boolean is taken as it is written. They come after those of the box and may replace them. Default: none. A step's env replaces that of defaults as a whole."},
	{name: "passEnv", def: []any{}, pattern: envPattern, read: readPassEnv,
		doc: "Names of variables handed in from the caller's environment, after env. Their values are masked in log, summary and report. One that the caller does not have stays unset. Default: none."},
	{name: "workdir", def: box.WorkspaceTarget, pattern: workdirPattern, read: readWorkdir,
		doc: "Absolute folder in the box where the step starts, or image for the WORKDIR of an image of a registry or an archive. Default: /workspace."},
	{name: "memoryMb", null: true, def: defaultMemoryMb, min: minMemoryMb, max: maxMemoryMb, read: readMemory,
		doc: "Memory cap in MiB, for all processes and tmpfs of the step together. Default: 512. null is no cap, which needs requireLimits: false."},
	{name: "pids", null: true, def: defaultPids, min: minPids, max: maxPids, read: readPids,
		doc: "How many processes and threads the step may have at a time. Default: 256. null is no cap, which needs requireLimits: false."},
	{name: "cpus", null: true, min: minCPUs, max: maxCPUs, read: readCPUs,
		doc: "How many CPUs' worth of time the step may use; fractions are allowed. Default: no cap."},
	{name: "timeoutS", def: defaultTimeoutS, min: minTimeoutS, max: maxTimeoutS, read: readTimeout,
		doc: "Deadline in seconds by our own clock; fractions are allowed. Default: 30."},
	{name: "requireLimits", def: true, read: readRequireLimits,
		doc: "The memory and pids caps must be in force, or nothing runs. Default: true."},
	{name: "diskMb", def: defaultDiskMb, min: minDiskMb, max: maxDiskMb, read: readDisk,
		doc: "How much the step may write to the workspace, in MiB; it may make 256 files and folders per MiB. Default: 1024."},
	{name: "network", def: false, read: readNetwork,
		doc: "true gives the step the host's own network, its loopback included. Exclusive with egressAllow. Default: false."},
	{name: "egressAllow", def: []any{}, read: readEgressAllow,
		doc: "Destinations the step may reach through the proxy: name, name:port, *.name (one label, not the bare name), **.name (any depth), tcp://name:port for what speaks no HTTP, preset:NAME (a list of ours; npm, pypi, go, cargo, maven and debian: what that client is set up for on this machine; plan prints it); without a port, 80 and 443. {to: RULE, private: true} is for a target that is not a public address, {to: RULE, force: true} for a rule that covers more than anyone can oversee. Everything else is refused. Exclusive with network. Default: none."},
	{name: "egressDeny", def: []any{}, read: readEgressDeny,
		doc: "Rules that win over any allow. Default: none."},
	{name: "egressMode", def: ModeEnforce, words: egressModes, read: readEgressMode,
		doc: "enforce, or audit: every public request goes through and is recorded, and the list that would allow it is proposed. A run in audit is labelled and is never an enforced one. Default: enforce."},
	{name: "egressMaxBytes", null: true, min: 1, max: 1 << 50, read: readEgressMaxBytes,
		doc: "How many bytes the step may move through the proxy, both ways together; past it connections are cut. Default: no bound."},
	{name: "expectDenied", def: []any{}, read: readExpectDenied,
		doc: "Rules whose refusal is a note and no fault. Default: none."},
	{name: "mounts", def: map[string]any{}, read: readMounts,
		doc: "Host paths shown in the box: absolute host path to absolute path in the box, or to [path, ro] or [path, rw]. A path alone is writable. Folders of the system, credentials and sockets of container engines are refused. Default: none."},
	{name: "tmpfs", def: map[string]any{"/tmp": "64m"}, pattern: sizePattern, read: readTmpfs,
		doc: "File systems in memory, counted against memoryMb: path to size (such as 256m; units k, m, g, t), or a list of paths of the default size. /tmp is always there, 64m or half of memoryMb if that is less, unless tmpfs is {}; /step/home resizes HOME and /dev/shm itself."},
	{name: "capDrop", def: []any{"ALL"}, pattern: capPattern, read: readCapDrop,
		doc: "Capabilities dropped from the box, as a list. Default: [ALL]."},
	{name: "profiles", def: []any{}, pattern: profilePattern, read: readProfiles,
		doc: "Profiles of kern's own configuration, kern.toml of the caller: vcpu:NAME, vdisk:NAME. Only engine kern has them; vgpio:NAME is refused, since no box is shown a device of the host. Default: none."},
	{name: "apparmor", null: true, pattern: apparmorPattern, read: readAppArmor,
		doc: "AppArmor profile that the step's command enters when it is started. It has to be loaded; where it is not, or AppArmor is off, the run is refused. Default: none."},
	{name: "securityProfile", null: true, words: []string{"untrusted"}, read: readSecurityProfile,
		doc: "untrusted, or null for none. Default: none."},
	{name: "enforceLimits", def: true, read: readEnforceLimits,
		doc: "In kern-sandbox, which way kern takes to its caps. Here they are in a control group of our own whatever this says, so false changes nothing, and a warning says so; requireLimits: false is what lets a step run without caps. Default: true."},
	{name: "maxOutputBytes", def: defaultOutput, min: 1, max: maxOutput, read: readMaxOutput,
		doc: "How many bytes of each of stdout and stderr are kept; the rest is counted and dropped. Default: 67108864 (64 MiB)."},
	{name: "trackFiles", def: true, read: readTrackFiles,
		doc: "List the files that the step changed in the workspace. Default: true."},
	{name: "needs", perStep: true, read: readNeeds,
		doc: "Id, or list of ids, of steps that must pass before this one runs. Default: none."},
	{name: "allowChanges", def: []any{"**"}, read: readAllowChanges,
		doc: "Globs of what the step may change in the workspace: * and ? within a name, [a-z], {a,b}, and ** for folders of any depth. A change elsewhere is a violation and nothing of the step is committed; so is a change to .git, .github, CODEOWNERS, .gitattributes or .gitmodules unless a glob names it. An empty list permits nothing. Default: [\"**\"]."},
	{name: "onFailure", def: OnFailureDiscard, words: []string{OnFailureDiscard, OnFailureKeep}, read: readOnFailure,
		doc: "What becomes of a failed step's writes to the workspace: discard or keep. Default: discard."},
	{name: "continueOnError", def: false, read: readContinueOnError,
		doc: "A failure of the step is reported and does not close the gate. Steps that need it are skipped all the same. Default: false."},
	{name: "retries", def: 0, min: 0, max: maxRetries, read: readRetries,
		doc: "How often the step may be run again where what went wrong is not the code's: the box could not be started, or it exited other than with 0 and requests it was allowed had failed upstream. Never after a denial, a violation or any other fault. Each try has a new box and sees the workspace as it was. Default: 0."},
	{name: "tolerate", def: []any{}, words: faultWords(), read: readTolerate,
		doc: "Fault types that do not fail the step: the exit code decides. Default: none."},
	{name: "expect", def: map[string]any{"exitCode": 0}, read: readExpect,
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

// writableKeys names the keys that can be written, in defaults or in a step.
func writableKeys(inDefaults bool) []string {
	var out []string
	for _, k := range stepKeys {
		if !(inDefaults && k.perStep) {
			out = append(out, k.name)
		}
	}
	return out
}

// perStepKeys names the keys that can be written in a step only.
func perStepKeys() (out []string) {
	for _, k := range stepKeys {
		if k.perStep {
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
