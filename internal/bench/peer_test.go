package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// peer asks bubblewrap for the box that engine native builds from the same view
// and spec.
type peer struct {
	program string
	args    []string
	files   []*os.File // for --file, at their beginning before each start
}

// masked and readOnly are what engine native covers of /proc; TestPeer holds the
// lists to what is really mounted.
var (
	masked   = []string{"acpi", "asound", "interrupts", "kcore", "keys", "latency_stats", "timer_list", "timer_stats", "sched_debug", "scsi", "kallsyms", "kmsg"}
	readOnly = []string{"1", "bus", "fs", "irq", "sys", "sysrq-trigger"}
	devices  = []string{"null", "zero", "full", "random", "urandom"}
)

// newPeer gives nil, with a word of why, where there is no bubblewrap.
func newPeer(b testing.TB, s box.Spec, v rootfs.View, withFilter bool) *peer {
	b.Helper()
	program, err := exec.LookPath("bwrap")
	if err != nil {
		b.Logf("no bubblewrap to compare with: %v", err)
		return nil
	}
	p := &peer{program: program}
	add := func(args ...string) { p.args = append(p.args, args...) }
	add("--unshare-all", "--uid", "0", "--gid", "0", "--hostname", "box-"+s.ID, "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv")
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		add("--setenv", name, value)
	}
	for _, dir := range v.Binds {
		add("--ro-bind", dir, dir)
	}
	for _, link := range sortedKeys(v.Links) {
		add("--symlink", v.Links[link], link)
	}
	for i, path := range sortedKeys(v.Files) {
		name := filepath.Join(b.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(name, []byte(v.Files[path]), 0o644); err != nil {
			b.Fatal(err)
		}
		add("--file", fmt.Sprint(p.open(b, name)), path)
	}
	add("--bind", s.Workspace, box.WorkspaceTarget)
	for _, t := range s.Tmpfs {
		add("--perms", map[bool]string{true: "1777", false: "0755"}[t.Target == "/tmp"], "--size", fmt.Sprint(t.Bytes), "--tmpfs", t.Target)
	}
	// --proc covers a part of what engine native does, and --dev makes another
	// /dev, so both are said in full.
	add("--proc", "/proc", "--tmpfs", "/dev")
	for _, d := range devices {
		add("--dev-bind", "/dev/"+d, "/dev/"+d)
	}
	for _, l := range [][2]string{{"fd", ""}, {"stdin", "/0"}, {"stdout", "/1"}, {"stderr", "/2"}} {
		add("--symlink", "/proc/self/fd"+l[1], "/dev/"+l[0])
	}
	add("--perms", "1777", "--size", fmt.Sprint(s.ShmBytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
	covered := []string{"sysrq-trigger", "irq", "bus"} // by --proc itself
	for _, name := range readOnly {
		if !slices.Contains(covered, name) && exists("/proc/"+name) {
			add("--ro-bind", "/proc/"+name, "/proc/"+name)
		}
	}
	for _, name := range masked {
		st, err := os.Stat("/proc/" + name)
		switch {
		case err != nil:
		case st.IsDir():
			add("--tmpfs", "/proc/"+name, "--remount-ro", "/proc/"+name)
		default:
			add("--dev-bind", "/dev/null", "/proc/"+name)
		}
	}
	if withFilter {
		f, err := seccomp.Compile(runtime.GOARCH, seccomp.Options{})
		if err != nil {
			b.Fatal(err)
		}
		name := filepath.Join(b.TempDir(), "filter")
		if err := os.WriteFile(name, f.Raw(), 0o644); err != nil {
			b.Fatal(err)
		}
		add("--seccomp", fmt.Sprint(p.open(b, name)))
	}
	add("--remount-ro", "/", "--chdir", s.Workdir)
	return p
}

func (p *peer) open(b testing.TB, name string) (fd int) {
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	p.files = append(p.files, f)
	return 2 + len(p.files)
}

func (p *peer) command(argv ...string) (*exec.Cmd, error) {
	for _, f := range p.files {
		if _, err := f.Seek(0, 0); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(p.program, append(slices.Clone(p.args), argv...)...)
	cmd.ExtraFiles, cmd.Env = p.files, []string{}
	return cmd, nil
}

func (p *peer) run(argv ...string) (string, error) {
	cmd, err := p.command(argv...)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out.String())
	}
	return out.String(), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func sortedKeys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// mounts reads a mountinfo as "place type ro|rw", each place once, the topmost.
func mounts(text string) []string {
	at := map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+2 {
			continue
		}
		mode, _, _ := strings.Cut(f[5], ",")
		at[f[4]] = f[4] + " " + f[sep+1] + " " + mode
	}
	var out []string
	for _, place := range sortedKeys(at) {
		out = append(out, at[place])
	}
	return out
}

// TestPeer: bubblewrap builds the same mounts, or the comparison is none.
func TestPeer(t *testing.T) {
	boxtest.Need(t, "root", "userns", "seccomp")
	s, v := spec(t), hostView()
	p := newPeer(t, s, v, true)
	if p == nil {
		return // there is nothing that could be claimed of it
	}
	e := nativeEngine(v)
	defer e.Close()
	var text bytes.Buffer
	s.Argv = []string{"cat", "/proc/self/mountinfo"}
	if _, err := boxRun(e, s, nil, &text); err != nil {
		t.Fatal(err)
	}
	theirs, err := p.run(s.Argv...)
	if err != nil {
		t.Fatal(err)
	}
	ours := mounts(text.String())
	if len(ours) < 15 {
		t.Fatalf("engine native has %d mounts only:\n%s", len(ours), text.String())
	}
	// No package for this: what this program imports starts in every box of ours
	// that it measures.
	if o, p := strings.Join(ours, "\n"), strings.Join(mounts(theirs), "\n"); o != p {
		t.Errorf("the boxes differ; engine native:\n%s\n\nbubblewrap:\n%s", o, p)
	}
}
