package steps

import (
	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Plan is a steps file with every default filled in. Nothing later reads the
// file: what is not in the plan does not happen. Steps stand in the order of the
// file, which is the order in which they run as far as needs allow.
type Plan struct {
	File  string     `json:"file"`
	Steps []PlanStep `json:"steps"`
	// Policy is the ceiling the file was held to; nil if there was none.
	Policy *PolicyRef `json:"policy,omitempty"`
	// Warnings are what a reader of the file should know.
	Warnings []Warning `json:"warnings,omitempty"`
	// ImagePlaces are where images of registries are named, in the order of the file,
	// in defaults too.
	ImagePlaces []ImagePlace `json:"-"`
	// Shard says which part this is of a plan that was split. Steps are then only
	// those of the part, and may be none.
	Shard *Shard `json:"shard,omitempty"`
	// Engine is the one that the run was told to take, and Kernel whose kernel its boxes have, host
	// or own; empty where it is for a run to find out.
	Engine string `json:"engine,omitempty"`
	Kernel string `json:"kernel,omitempty"`
}

// PlanStep is one step, ready to run. The values of passEnv are not in it:
// they are looked up when the step runs, so a plan can be printed.
type PlanStep struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	Language string   `json:"language,omitempty"` // empty for command
	Script   string   `json:"script,omitempty"`
	Command  []string `json:"command,omitempty"`
	Code     string   `json:"code,omitempty"`   // of a cell
	Kernel   string   `json:"kernel,omitempty"` // that it shares with other cells
	SHA256   string   `json:"sha256"`           // of what it runs, as a policy names it
	// Engine builds the step's box; empty is the one that the run takes. BoxKernel is
	// whose kernel its box has, host or own; empty where it is for a run to find out.
	Engine    string   `json:"engine,omitempty"`
	BoxKernel string   `json:"boxKernel,omitempty"`
	Image     string   `json:"image"` // as written
	Root      box.Root `json:"-"`
	Origin    Origin   `json:"-"` // of an OCI image
	// What is known of that image without asking anybody: its digest, the variables
	// it sets, and what of its configuration has no effect.
	ImageDigest string   `json:"imageDigest,omitempty"`
	ImageEnv    []string `json:"imageEnv,omitempty"`
	ImageUnused []string `json:"imageUnused,omitempty"`
	Env         []EnvVar `json:"env"` // in the order of the file
	PassEnv     []string `json:"passEnv"`
	// PassEnvUnset are those of PassEnv that the caller did not have when the
	// plan was made. They stay unset.
	PassEnvUnset   []string        `json:"passEnvUnset,omitempty"`
	Workdir        string          `json:"workdir"`
	MemoryMb       int64           `json:"memoryMb"`
	Pids           int64           `json:"pids"`
	CPUs           float64         `json:"cpus"` // 0: no cap
	TimeoutS       float64         `json:"timeoutS"`
	RequireLimits  bool            `json:"requireLimits"`
	DiskMb         int64           `json:"diskMb"` // what it may write to the workspace
	Network        bool            `json:"network"`
	EgressAllow    []egress.Entry  `json:"egressAllow"`             // canonical rules
	EgressPresets  []EgressPreset  `json:"egressPresets,omitempty"` // that the rules name
	EgressDeny     []string        `json:"egressDeny"`
	EgressMode     string          `json:"egressMode"`
	EgressMaxBytes int64           `json:"egressMaxBytes"` // 0: no bound
	ExpectDenied   []string        `json:"expectDenied"`
	Needs          []string        `json:"needs"`
	NeedsLeftOut   []string        `json:"needsLeftOut,omitempty"` // ids that the file says it needs, and that do not run
	AllowChanges   []string        `json:"allowChanges"`           // globs; none: nothing may change
	OnFailure      string          `json:"onFailure"`              // OnFailureDiscard or OnFailureKeep
	Retries        int64           `json:"retries"`
	ContinueOnErr  bool            `json:"continueOnError"`
	Tolerate       []box.FaultType `json:"tolerate"`
	Expect         Expect          `json:"expect"`
	MaxOutput      int64           `json:"maxOutputBytes"`
	TrackFiles     bool            `json:"trackFiles"`
	CapDrop        []string        `json:"capDrop"`
	Profile        string          `json:"securityProfile,omitempty"`
	Tmpfs          []box.Tmpfs     `json:"tmpfs"`    // with the default /tmp
	ShmBytes       int64           `json:"shmBytes"` // of /dev/shm
	Mounts         []box.Mount     `json:"mounts"`   // sources are real paths
	// MountedAs are the sources of mounts as written, by target.
	MountedAs map[string]string `json:"-"`
	// Setup is what runs before the step, in a box of its own; the other keys that
	// begin so are nothing without it. Of SetupEgress nil is every public host.
	Setup         string         `json:"setup,omitempty"`
	SetupEgress   []egress.Entry `json:"setupEgress,omitempty"`
	SetupWatched  bool           `json:"setupWatched,omitempty"`
	SetupTimeoutS float64        `json:"setupTimeoutS,omitempty"`
	SetupCache    []string       `json:"setupCache,omitempty"`
	SetupKept     bool           `json:"setupKept,omitempty"` // from run to run
	DepsReadonly  bool           `json:"depsReadonly,omitempty"`
	KernProfiles  []string       `json:"profiles,omitempty"`
	AppArmor      string         `json:"apparmor,omitempty"`
	// InSetup: this is the setup of a step, as a step.
	InSetup bool       `json:"-"`
	Line    int        `json:"-"` // of the step in the file
	Keys    []KeyPlace `json:"-"` // where its own keys stand
}

// EnvVar is one variable of a step's environment.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Expect is what a step must end with to pass: an exit code, or a fault.
type Expect struct {
	ExitCode *int          `json:"exitCode,omitempty"`
	Fault    box.FaultType `json:"fault,omitempty"`
}
