package boxtest

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// Options say what is special about a run. What is special about an engine is in
// the table of differences.
type Options struct {
	// NoUser leaves out the second run, as a normal user.
	NoUser bool
	// User names the groups of facts of that second run; none named is all. It is
	// for an engine whose boxes take long to start.
	User []string
}

// atOnce bounds how many boxes are alive at a time: the facts about time are
// not to measure the machine's load.
const atOnce = 4

// roleVar makes a test binary that the suite starts again do one thing only.
const roleVar = "BOXTEST_ROLE"

// patienceVar says how many times slower than usual this machine is; an emulated
// one sets it.
const patienceVar = "BOXTEST_PATIENCE"

// patient is a time that what goes well may take.
func patient(usually time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(patienceVar)); err == nil && n > 0 {
		return time.Duration(n) * usually
	}
	return usually
}

// suite is one engine under test, as one user.
type suite struct {
	engine box.Engine
	differ Differences
	dir    string // of this run, readable for everybody
	probe  string // the probe program, on the host
	limits *limits.Manager
	slots  chan struct{}
}

// facts is the suite, in order. Each function is a group of sentences.
var facts = []struct {
	name string
	run  func(*suite, *testing.T)
}{
	{"host", (*suite).hostFacts}, // first: it shares this process's descriptors
	{"life", (*suite).lifeFacts},
	{"files", (*suite).fileFacts},
	{"workspace", (*suite).workspaceFacts},
	{"mounts", (*suite).mountFacts},
	{"overlay", (*suite).overlayFacts},
	{"start", (*suite).startFacts},
	{"live", (*suite).liveFacts},
	{"image", (*suite).imageFacts},
	{"options", (*suite).optionFacts},
	{"seen", (*suite).seenFacts},
	{"network", (*suite).networkFacts},
	{"egress", (*suite).egressFacts},
	{"greed", (*suite).greedFacts},
	{"calls", (*suite).callFacts},
	{"proc", (*suite).procFacts},
	{"limits", (*suite).limitFacts},
	{"verdict", (*suite).verdictFacts},
	{"published", (*suite).publishedFacts},
}

// Run measures every fact of an engine's boxes: as the user we are and, where
// that is root, once more as a normal user in a process of its own. The
// package's TestMain has to call Become first.
func Run(t *testing.T, e box.Engine, o Options) {
	if os.Getenv(roleVar) == roleParent {
		parent(t, e)
		return
	}
	Need(t, "userns", "seccomp")
	if os.Getenv(roleVar) == roleUser {
		run(t, e)
		return
	}
	name := "as a normal user"
	if os.Geteuid() == 0 {
		name = "as root"
	}
	t.Run(name, func(t *testing.T) { run(t, e) })
	if os.Geteuid() == 0 && !o.NoUser {
		t.Run("as a normal user", func(t *testing.T) { runAsUser(t, o.User) })
	}
}

func run(t *testing.T, e box.Engine) {
	s := &suite{engine: e, differ: differences(e.Info().Name), dir: OpenDir(t), slots: make(chan struct{}, atOnce)}
	s.probe = program(t, s.dir)
	t.Run("what the engine does not see is published", func(t *testing.T) {
		for _, wrong := range unpublished(s.differ, e.Info()) {
			t.Error(wrong)
		}
	})

	// Without control groups the facts about limits skip, and say why.
	if m, err := limits.Open(limits.Config{RunID: runID()}); err == nil {
		s.limits = m
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) { f.run(s, t) })
	}
}

// runID tells our control groups from those of any other run.
func runID() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it cannot fail
	return hex.EncodeToString(b)
}

// OpenDir makes a folder that another user can enter, unlike t.TempDir.
func OpenDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
