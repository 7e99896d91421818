package seccomp

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestDecisions keeps what is decided about every call, to be read in review
// when the profile changes.
func TestDecisions(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		names := make([]string, 0, len(m.calls))
		for name := range m.calls {
			names = append(names, name)
		}
		sort.Strings(names)
		var b bytes.Buffer
		for _, name := range names {
			fmt.Fprintf(&b, "%s %d: %s\n", name, m.calls[name], m.rules[name])
		}
		golden(t, m.arch.name+".txt", b.Bytes())

		unknown, err := Unknown(m.arch.name)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, m.arch.name+"-unknown.txt", []byte(strings.Join(unknown, "\n")+"\n"))
	})
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-golden +got; -update rewrites it):\n%s", path, diff)
	}
}

// TestNumbersAgreeWithAnotherTable holds our table against one that others
// keep. Where the two differ, ours was compared with the kernel's headers.
func TestNumbersAgreeWithAnotherTable(t *testing.T) {
	onBoth(t, func(t *testing.T, m machine) {
		theirs, err := arch.GetInfo(m.arch.name)
		if err != nil {
			t.Fatal(err)
		}
		if uint32(theirs.ID) != m.arch.audit {
			t.Errorf("audit name is 0x%x there, 0x%x here", theirs.ID, m.arch.audit)
		}
		newer := []string{"file_getattr", "file_setattr", "listns", "rseq_slice_yield", "uprobe"}
		for name, n := range m.calls {
			switch got, ok := theirs.SyscallNames[name]; {
			case slices.Contains(newer, name):
			case m.arch.name == "arm64" && name == "newfstatat": // it says fstatat
			case !ok || uint32(got) != n:
				t.Errorf("%s is %d here, %d (known: %t) there", name, n, got, ok)
			}
		}
		for name, n := range theirs.SyscallNames {
			switch got, ok := m.calls[name]; {
			case m.arch.name == "arm64" && n >= 403 && n <= 423: // 32-bit machines only
			case m.arch.name == "arm64" && (name == "fstatat" || name == "arch_specific_syscall"):
			case !ok || got != uint32(n):
				t.Errorf("%s is %d there, %d (known: %t) here", name, n, got, ok)
			}
		}
	})
}

func TestSomeNumbersAreThoseOfThisMachine(t *testing.T) {
	m := newMachine(t, hostArch(t))
	for name, want := range map[string]uint32{
		"mount": unix.SYS_MOUNT, "clone": unix.SYS_CLONE, "newfstatat": unix.SYS_NEWFSTATAT, "prlimit64": unix.SYS_PRLIMIT64,
		"seccomp": unix.SYS_SECCOMP, "openat": unix.SYS_OPENAT, "mount_setattr": unix.SYS_MOUNT_SETATTR,
	} {
		if got := m.calls[name]; got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// hostArch is this machine's architecture, if there is a filter for it.
func hostArch(t testing.TB) string {
	t.Helper()
	if _, err := architectureOf(runtime.GOARCH); err != nil {
		t.Fatal(err)
	}
	return runtime.GOARCH
}
