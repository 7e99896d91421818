// Package box is the contract between what judges a step and what builds its
// box: the description of a box (Spec), what an engine must do (Engine), what
// was measured while a step ran (Evidence), and the one place that turns
// measurements into a verdict (Classify).
//
// It refuses to guess. A fact that nobody measured is absent from Evidence, and
// an absent fact never becomes a fault or a pass: it becomes "no verdict".
package box

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
)

// Paths inside every box, whichever engine built it.
const (
	// WorkspaceTarget is where the caller's workspace appears.
	WorkspaceTarget = "/workspace"
	// StepDir holds what the box needs of ours: the script, the home folder.
	// It is read-only apart from HomeTarget.
	StepDir = "/step"
	// HomeTarget is the box's HOME: an empty tmpfs, outside any real home.
	HomeTarget = StepDir + "/home"
	// ShmTarget is where shared memory lies, of the size ShmBytes.
	ShmTarget = "/dev/shm"
	// InitTarget is the program that runs as the box's first process.
	InitTarget = StepDir + "/init"
	// ControlTarget is the socket the first process reports on, for an engine
	// that cannot hand a descriptor over. It is gone before the step starts.
	ControlTarget = StepDir + "/control"
	// ProxyPort is the port on the box's own loopback where the egress proxy
	// answers. The address belongs to the box's network namespace alone.
	ProxyPort = 3128
)

// Default sizes, in bytes. All of them count as the box's memory.
const (
	DefaultTmpBytes  = 64 << 20
	DefaultHomeBytes = 64 << 20
	DefaultShmBytes  = 64 << 20
)

// Network says what a box can reach. The zero value is nothing at all.
type Network int

const (
	// NetworkNone is a network namespace with nothing but loopback.
	NetworkNone Network = iota
	// NetworkAllowlist is the same namespace plus our proxy on loopback.
	NetworkAllowlist
	// NetworkHost is the host's own network, its loopback included.
	NetworkHost
)

// String gives the word the report uses.
func (n Network) String() string {
	switch n {
	case NetworkAllowlist:
		return "allowlist"
	case NetworkHost:
		return "host"
	}
	return "none"
}

// RootKind says where a box's root file system comes from.
type RootKind int

const (
	// RootHost shows the runner's own tools, read-only, and nothing secret.
	RootHost RootKind = iota
	// RootDir is a folder with a root file system in it.
	RootDir
)

// Root is a box's root file system. Dir is set for RootDir only, and Name where
// the step calls it something else.
type Root struct {
	Kind RootKind
	Dir  string
	Name string
}

// Mount binds a host path into a box.
type Mount struct {
	Source, Target string // absolute; Source is a real path, checked by steps
	ReadOnly       bool
}

// Overlay is a workspace that the box can write without changing it: what it
// writes goes into a layer of its own. The engine mounts it in the box's user
// namespace, with the marks in user attributes, so that it takes no privilege.
type Overlay struct {
	Lower []string // layers, the top one first; real host paths, never written
	// Base is a folder that holds the folders UpperName and WorkName, both empty.
	Base string
	// UID and GID own the workspace, and so what the box writes.
	UID, GID int
	// Tree, if set, gives the folder as a mount of its own that nobody has put
	// anywhere; whoever asks closes it. Base is then only a name for it.
	Tree func() (fd int, err error)
}

// ErrNoOverlay: this host mounts no workspace as an overlay. Nothing has run.
var ErrNoOverlay = errors.New("the workspace cannot be an overlay here")

// NoOverlay says whether a box could not be built since there is no overlay.
func NoOverlay(err error) bool {
	var inside *boxinit.Failed
	return errors.Is(err, ErrNoOverlay) || errors.As(err, &inside) && inside.Op == boxinit.OverlayFailed
}

// Names in an overlay's base.
const (
	UpperName = "upper"
	WorkName  = "work"
)

// Tmpfs is a file system in memory, counted as the box's memory.
type Tmpfs struct {
	Target string
	Bytes  int64
}

// Script is a program text handed to an interpreter. It is run from a
// read-only file in StepDir, never from the workspace and never through argv,
// whose items the kernel cuts off at 128 KiB.
type Script struct {
	Name string // file name in StepDir, such as "script.sh"
	Text string
}

// Spec is all an engine needs to know to build one box. Every field has its
// final value: an engine fills in nothing.
type Spec struct {
	ID        string   // the step's id; it names folders and the host name
	Argv      []string // what the first process starts; Argv[0] is looked up on the box's PATH
	Env       []string // the whole environment of the step, "K=V"
	Workdir   string   // absolute, inside the box
	Script    *Script  // nil for a command
	Root      Root
	Toolchain []string // host folders shown read-only at the same path (RootHost only)
	Workspace string   // real host path bound read-write at WorkspaceTarget
	Overlay   *Overlay // what is shown there instead, if set; Workspace is then not used
	Mounts    []Mount
	Tmpfs     []Tmpfs // /tmp and HomeTarget are in here, with their sizes
	ShmBytes  int64
	Network   Network
	// Listen are places in the box's network, besides the proxy, where the way
	// out is found; Addrs are addresses that its loopback must have for that, and
	// Hosts are lines for its hosts file.
	Listen  []netip.AddrPort
	Addrs   []netip.Addr
	Hosts   []string
	CapDrop []string // names without CAP_, or ALL
	Profile string   // securityProfile: "" or "untrusted"
	// Protect are folders below WorkspaceTarget, there when the box is built, that
	// the box only reads.
	Protect []string
	// KernProfiles are names of kern's own configuration, and AppArmor is a loaded
	// profile that the step's command enters when it is started.
	KernProfiles []string
	AppArmor     string

	// FileBytes is how large a file the step may make, wherever it makes it.
	// 0: no bound.
	FileBytes     int64
	MemoryBytes   int64 // 0: no cap asked for
	Pids          int64 // 0: no cap asked for
	CPUs          float64
	TimeoutS      float64
	RequireLimits bool
}

// writesHost says whether the box is shown a folder of the host's that it can write
// to. The workspace is none: what a step writes there is judged before it counts.
func (s *Spec) writesHost() bool {
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return !m.ReadOnly })
}
