package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// An account of this machine that may use sudo, or may not, is made in a mount
// namespace: with files of accounts of its own, and folders that are gone with it.
const (
	accountArg = "host-test-account"
	accountID  = 61_236
)

// account is what a process of that account is to do; it is told on stdin, and
// answers on stdout, both lines of JSON.
type account struct {
	Do      string // begin, end, kill, last, undo
	Already string // PATH
}

type accountSays struct {
	Notes    []string
	Complete bool
	Said     []string
	Limits   string // why nothing can be capped
	Where    []string
	Child    int // a process that it leaves in its groups
}

// accountMain makes the mounts, becomes the account and waits for words.
func accountMain(sudoers string) {
	dir := os.Getenv("ACCOUNT_DIR")
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	for _, d := range []string{"/run", "/usr/local/lib"} {
		err = errors.Join(err, unix.Mount(dir+d, d, "", unix.MS_BIND, ""))
	}
	for file, line := range map[string]string{
		"passwd":  fmt.Sprintf("boxtest-account:x:%d:%d::/:/bin/sh\n", accountID, accountID),
		"shadow":  "boxtest-account:*:19000:0:99999:7:::\n",
		"sudoers": sudoers + "\n",
	} {
		err = errors.Join(err, appended("/etc/"+file, filepath.Join(dir, strconv.Itoa(os.Getpid())+file), line))
	}
	err = errors.Join(err, unix.Setgroups([]int{accountID}), unix.Setresgid(accountID, accountID, accountID), unix.Setresuid(accountID, accountID, accountID))
	if err == nil {
		err = syscall.Exec("/proc/self/exe", []string{os.Args[0], accountArg, "", ""}, []string{"PATH=" + os.Getenv("PATH"), "HOME=/"})
	}
	fmt.Println("make the account:", err)
	os.Exit(1)
}

// appended covers a file of accounts with a copy that has one more line.
func appended(path, to, line string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, append(b, line...), 0o440), os.Chown(to, 0, 0), unix.Mount(to, path, "", unix.MS_BIND, ""))
}

// accountServe does as it is told.
func accountServe() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	p := &Preparer{Setup: SetupAuto, Getenv: os.Getenv}
	for in.Scan() {
		var a account
		var says accountSays
		if err := json.Unmarshal(in.Bytes(), &a); err != nil {
			os.Exit(1)
		}
		p.Say = func(line string) { says.Said = append(says.Said, line) }
		switch a.Do {
		case "begin", "last":
			if p.Lasting = a.Do == "last"; p.Lasting {
				p.PID = os.Getpid() // it is the shell itself
			}
			added := p.Begin(context.Background())
			says.Notes, says.Complete = added.Notes, added.Complete
		case "cut": // "last", cancelled once the group is made
			p.Lasting, p.PID = true, os.Getpid()
			ctx, cancel := context.WithCancel(context.Background())
			p.Say = func(line string) {
				says.Said = append(says.Said, line)
				if strings.Contains(line, "make the control group") {
					cancel()
				}
			}
			added := p.Begin(ctx)
			says.Notes, says.Complete = added.Notes, added.Complete
			cancel()
		case "end":
			p.End()
		case "undo":
			if err := p.Undo(context.Background()); err != nil {
				says.Said = append(says.Said, "not undone: "+err.Error())
			}
		case "box":
			child, err := sleepingBox()
			if says.Child = child; err != nil {
				says.Said = append(says.Said, err.Error())
			}
		case "child":
			cmd := exec.Command("/bin/sleep", "600")
			if err := cmd.Start(); err == nil {
				says.Child = cmd.Process.Pid
			}
		}
		_, where, err := openLimits()
		if says.Where = where; err != nil {
			says.Limits = err.Error()
		}
		if err := out.Encode(says); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// sleepingBox is a process in a group with caps, as a box's is.
func sleepingBox() (pid int, err error) {
	m, err := limits.Open(limits.Config{RunID: "live"})
	if err != nil {
		return 0, err
	}
	g, err := m.New("box", limits.Caps{MemoryBytes: 64 << 20, Pids: 8})
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/bin/sleep", "600")
	if fd := g.CgroupFD(); fd >= 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go cmd.Wait()
	return cmd.Process.Pid, g.Join(cmd.Process.Pid)
}

// shell is such a process, seen from outside.
type shell struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	err bytes.Buffer
}

// machine is a folder that stands for parts of this machine.
func newMachine(t *testing.T) string {
	t.Helper()
	boxtest.Need(t, "root", "sudo", "limits")
	dir := boxtest.OpenDir(t)
	for _, d := range []string{"run", "usr/local/lib"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const everything = "boxtest-account ALL=(ALL) NOPASSWD:ALL"

func newShell(t *testing.T, dir, sudoers string) *shell {
	t.Helper()
	s := &shell{t: t, cmd: exec.Command("/proc/self/exe", accountArg, sudoers, "")}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	s.cmd.Env = []string{"ACCOUNT_DIR=" + dir, "PATH=" + os.Getenv("PATH")}
	s.cmd.Stderr = &s.err
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewScanner(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

func (s *shell) tell(do string) (says accountSays) {
	s.t.Helper()
	b, err := json.Marshal(account{Do: do})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.in.Write(append(b, '\n')); err != nil {
		s.t.Fatalf("%v: %s", err, &s.err)
	}
	if !s.out.Scan() {
		s.t.Fatalf("%s: no answer: %v %s", do, s.out.Err(), &s.err)
	}
	if err := json.Unmarshal(s.out.Bytes(), &says); err != nil {
		s.t.Fatalf("%v: %s", err, s.out.Text())
	}
	return says
}

// made are the groups of this machine that were made for a process, and the
// leases in a folder.
func made(t *testing.T, dir string, pid int) (groups, leases []string) {
	t.Helper()
	site, err := limits.FindSite(limits.Config{}, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, parent := range site.Parents {
		found, _ := filepath.Glob(fmt.Sprintf("%s/untrusted-steps-*-%d-*-host-0-host.box", parent, pid))
		groups = append(groups, found...)
	}
	leases, _ = filepath.Glob(fmt.Sprintf("%s/run/untrusted-steps/untrusted-steps-*-%d-*-host-0-host.box", dir, pid))
	return groups, leases
}

// TestGroupBySudo: a normal user gets a group of its own through sudo, can cap in
// it, and nothing is left afterwards.
func TestGroupBySudo(t *testing.T) {
	dir := newMachine(t)
	s := newShell(t, dir, everything)
	pid := s.cmd.Process.Pid
	if before := s.tell("look"); before.Limits == "" {
		t.Fatalf("control: without anything the account can cap, in %q", before.Where)
	}
	began := s.tell("begin")
	if began.Limits != "" || !began.Complete {
		t.Fatalf("%+v", began)
	}
	for _, w := range began.Where {
		if !strings.Contains(w, fmt.Sprintf("-%d-", pid)) {
			t.Errorf("it caps in %s, which is not its own", w)
		}
	}
	if n := strings.Join(began.Notes, "\n"); !strings.Contains(n, "make the control group") || !strings.Contains(n, fmt.Sprintf("move process %d into it", pid)) {
		t.Errorf("the notes are %q", began.Notes)
	}
	groups, leases := made(t, dir, pid)
	if len(groups) == 0 || len(leases) != 1 {
		t.Fatalf("groups %q, leases %q", groups, leases)
	}
	for _, g := range groups {
		// What caps the group itself is not the user's.
		for _, f := range []string{"pids.max", "memory.max", "memory.limit_in_bytes"} {
			if st, err := os.Stat(filepath.Join(g, f)); err == nil && st.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("%s/%s belongs to the user", g, f)
			}
		}
	}
	if again := s.tell("begin"); len(again.Notes) != 0 {
		t.Errorf("a second time it does %q", again.Notes)
	}

	// Two at once have nothing in common.
	other := newShell(t, dir, everything)
	if o := other.tell("begin"); o.Limits != "" {
		t.Fatalf("beside it: %+v", o)
	}
	if o := other.tell("end"); o.Limits == "" {
		t.Errorf("beside it, after its end: %+v", o)
	}
	if still := s.tell("look"); still.Limits != "" {
		t.Errorf("the end of one took the group of the other: %s", still.Limits)
	}

	ended := s.tell("end")
	if groups, leases := made(t, dir, pid); len(groups)+len(leases) > 0 || ended.Limits == "" {
		t.Errorf("left are the groups %q and leases %q: %+v", groups, leases, ended)
	}
	if nothing := s.tell("end"); len(nothing.Said) > 0 {
		t.Errorf("a second end does %q", nothing.Said)
	}
}

// TestCancelledHalfWay: what was made up to there is taken away, though it is late.
func TestCancelledHalfWay(t *testing.T) {
	dir := newMachine(t)
	s := newShell(t, dir, everything)
	cut := s.tell("cut")
	if cut.Complete || cut.Limits == "" || !strings.Contains(strings.Join(cut.Said, "\n"), "make the control group") {
		t.Fatalf("control: it was not cancelled half way: %+v", cut)
	}
	if groups, leases := made(t, dir, s.cmd.Process.Pid); len(groups)+len(leases) > 0 {
		t.Errorf("left are the groups %q and leases %q: %q", groups, leases, cut.Said)
	}
}

// TestSweptAfterAKill: attack O161. What a killed run has left is taken away by
// the next one, by identity.
func TestSweptAfterAKill(t *testing.T) {
	dir := newMachine(t)
	killed := newShell(t, dir, everything)
	pid := killed.cmd.Process.Pid
	if began := killed.tell("begin"); began.Limits != "" {
		t.Fatalf("%+v", began)
	}
	child := killed.tell("child").Child
	if child == 0 {
		t.Fatal("it left no process")
	}
	groups, leases := made(t, dir, pid)
	if len(groups) == 0 || len(leases) != 1 {
		t.Fatalf("groups %q, leases %q", groups, leases)
	}
	// Another run does not touch what a living one has.
	next := newShell(t, dir, everything)
	if began := next.tell("begin"); strings.Contains(strings.Join(began.Said, "\n"), "killed") {
		t.Errorf("it takes a living run for a killed one: %q", began.Said)
	}
	next.tell("end")
	if now, _ := made(t, dir, pid); !slices.Equal(now, groups) {
		t.Fatalf("of the living run there are %q", now)
	}
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.cmd.Wait()

	began := next.tell("begin")
	if !strings.Contains(strings.Join(began.Said, "\n"), "taking away what a killed run had left") || began.Limits != "" {
		t.Errorf("%+v", began)
	}
	next.tell("end")
	if groups, leases := made(t, dir, pid); len(groups)+len(leases) > 0 {
		t.Errorf("left are the groups %q and leases %q", groups, leases)
	}
	for range 100 { // it was its parent's to wait for, which is gone
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the process that it left lives")
}

// TestPrepareAndUndo: a shell keeps its group until that is undone by name, and is
// where it was then.
func TestPrepareAndUndo(t *testing.T) {
	dir := newMachine(t)
	s := newShell(t, dir, everything)
	pid := s.cmd.Process.Pid
	where := func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := where()
	if began := s.tell("last"); began.Limits != "" || !began.Complete {
		t.Fatalf("%+v", began)
	}
	// Another run of the account leaves it what it has.
	other := newShell(t, dir, everything)
	other.tell("begin")
	other.tell("end")
	if still := s.tell("look"); still.Limits != "" {
		t.Errorf("another run has taken it away: %s", still.Limits)
	}
	undone := s.tell("undo")
	if groups, leases := made(t, dir, pid); len(groups)+len(leases) > 0 {
		t.Errorf("left are the groups %q and leases %q: %+v", groups, leases, undone)
	}
	if after := where(); after != before {
		t.Errorf("it is in\n%swant\n%s", after, before)
	}
	if again := s.tell("undo"); !slices.Equal(again.Said, []string{"there is nothing to take away"}) {
		t.Errorf("a second time: %q", again.Said)
	}
}

// TestWithoutSudo: nothing is added, and it is said why. A sudo that somebody put
// on PATH is not asked.
func TestWithoutSudo(t *testing.T) {
	dir := newMachine(t)
	fake := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(fake, 0o777), os.WriteFile(filepath.Join(fake, "sudo"), []byte("#!/bin/sh\ntouch "+dir+"/run/asked\nexec \"$@\"\n"), 0o755), os.Chmod(dir+"/run", 0o777)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	s := newShell(t, dir, "# nobody else")
	began := s.tell("begin")
	if began.Complete || began.Limits == "" || !strings.Contains(strings.Join(began.Notes, "\n"), "sudo does not work without a password") {
		t.Errorf("%+v", began)
	}
	if _, err := os.Stat(dir + "/run/asked"); err == nil {
		t.Error("the sudo on PATH was asked")
	}
	// Nor is a folder of leases believed that others can write.
	with := newShell(t, dir, everything)
	if began := with.tell("begin"); began.Complete || !strings.Contains(strings.Join(began.Notes, "\n"), "can be written by others than root") {
		t.Errorf("%+v", began)
	}
}

// TestSharedThings: what several runs use stays until the last of them ends, and
// what the machine keeps stays after that.
func TestSharedThings(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	copyName := "1001-" + sum
	err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(in("state"), 0o755), os.MkdirAll(in("copies/"+copyName), 0o755), os.Mkdir(in("profiles"), 0o755),
		os.WriteFile(in("copies/"+copyName+"/untrusted-steps"), nil, 0o755), os.WriteFile(in("setting"), []byte("0\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("/bin/sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	lease := func(pid int) Lease {
		name, err := limits.NameFor(limits.Config{}, pid)
		if err != nil {
			t.Fatal(err)
		}
		l := Lease{Name: name, UID: 1001, Copy: copyName, Sysctl: true, Was: "2"}
		b, err := json.Marshal(l)
		if err = errors.Join(err, os.WriteFile(l.path(in("state")), b, 0o644)); err != nil {
			t.Fatal(err)
		}
		return l
	}
	first, second := lease(os.Getpid()), lease(sleep.Process.Pid)
	var said []string
	p := &Preparer{Setup: SetupAuto, Getenv: os.Getenv, Say: func(line string) { said = append(said, line) },
		paths: Paths{State: in("state"), Copies: []string{in("copies")}, Profiles: in("profiles"), Setting: in("setting")}}
	p.complete()
	f := p.bare()
	f.Root = []string{}
	f.Programs["apparmor_parser"] = "/usr/bin/true" // this machine may have none
	there := func(name string) bool { return exists(in(name)) }
	is := func(when string, setting string, copied bool, leases int) {
		t.Helper()
		b, _ := os.ReadFile(in("setting"))
		list, _ := os.ReadDir(in("state"))
		if strings.TrimSpace(string(b)) != setting || there("copies/"+copyName) != copied || len(list) != leases {
			t.Errorf("%s: the setting is %q, the copy is there: %v, leases: %d\n%s", when, b, there("copies/"+copyName), len(list), strings.Join(said, "\n"))
		}
	}
	f.Name = first.Name
	if p.lifted(f) {
		t.Error("a run that holds the setting itself would hold it again")
	}
	if err := p.undo(context.Background(), f, first, true); err != nil {
		t.Error(err)
	}
	is("after the first", "0", true, 1)
	if !p.lifted(f) {
		t.Error("a run beside the second does not see that the setting will be taken back")
	}
	if p.abandoned(f, second) {
		t.Error("the second run is taken for a killed one")
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	if !p.abandoned(f, second) {
		t.Error("the killed run is not found")
	}
	if err := p.sweep(context.Background(), f); err != nil {
		t.Error(err)
	}
	is("after the second, which was killed", "2", false, 0)

	// A copy without a lease, as a restart of the machine leaves it, goes; one
	// that the machine's profiles know stays, until it is undone by name.
	err = errors.Join(os.MkdirAll(in("copies/"+copyName), 0o755), os.WriteFile(in("copies/"+copyName+"/untrusted-steps"), nil, 0o755),
		os.WriteFile(in("profiles/"+profileName(copyName)), nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	f.UID = 1001
	if left := p.unused(f, nil); len(left) != 0 {
		t.Errorf("a copy that the machine keeps is taken for unused: %v", left)
	}
	if err := errors.Join(os.Remove(in("profiles/"+profileName(copyName))), p.sweep(context.Background(), f)); err != nil {
		t.Error(err)
	}
	is("after a restart", "2", false, 0)
	// What is no copy of ours is nobody's to remove.
	if err := errors.Join(os.MkdirAll(in("copies/1001-mine"), 0o755), os.MkdirAll(in("copies/1002-"+sum), 0o755), p.sweep(context.Background(), f)); err != nil {
		t.Error(err)
	}
	if !there("copies/1001-mine") || !there("copies/1002-"+sum) {
		t.Error("a folder of somebody else's was removed")
	}
}

// TestACopyInUseStays: of a copy that stays until it is undone by name no run has a
// lease. Undoing leaves it, with its profile, as long as one is on that was started
// from it, and says so; and one that comes too late finds out.
func TestACopyInUseStays(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	copyName := "0-" + sum
	program, kept := in("copies/"+copyName+"/untrusted-steps"), in("profiles/"+profileName(copyName))
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(in("state"), 0o755), os.MkdirAll(filepath.Dir(program), 0o755), os.Mkdir(in("profiles"), 0o755),
		os.WriteFile(program, nil, 0o755), os.WriteFile(kept, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	var said []string
	preparer := func() *Preparer {
		p := &Preparer{Setup: SetupAuto, Getenv: os.Getenv, Say: func(line string) { said = append(said, line) },
			paths: Paths{State: in("state"), Copies: []string{in("copies")}, Profiles: in("profiles"), Setting: in("setting")}}
		p.complete()
		return p
	}
	undo, run := preparer(), preparer()
	f := undo.bare()
	f.Root, f.Programs["apparmor_parser"] = []string{}, "/usr/bin/true"
	c := copyAt{in("copies"), copyName}
	if err := errors.Join(run.use("/usr/bin/true"), run.use(program)); err != nil {
		t.Fatal(err)
	}
	if err := undo.forget(t.Context(), f, c); err != nil {
		t.Error(err)
	}
	if !exists(program) || !exists(kept) || !strings.Contains(strings.Join(said, "\n"), "keeps its copy of this program: "+copyName) {
		t.Errorf("a copy that a run uses was taken away: %q", said)
	}
	if err := os.Rename(kept, kept+".x"); err != nil {
		t.Fatal(err)
	}
	if left := undo.unused(f, nil); len(left) > 0 {
		t.Errorf("it counts as unused: %v", left)
	}
	if err := os.Rename(kept+".x", kept); err != nil {
		t.Fatal(err)
	}
	run.leave()
	if inUse(program) {
		t.Error("it is in use when nobody uses it any more")
	}

	// A run that is started while it is being taken away waits, and finds out.
	free, busy := take(program)
	if busy {
		t.Fatal("it is in use")
	}
	late := make(chan error)
	go func() { late <- preparer().use(program) }()
	select {
	case err := <-late:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	free()
	if err := <-late; err == nil || !strings.Contains(err.Error(), "is being taken away") {
		t.Errorf("a run in a copy that is gone: %v", err)
	}
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := undo.forget(t.Context(), f, c); err != nil {
		t.Error(err)
	}
	if exists(program) || exists(kept) {
		t.Errorf("nobody uses it, and it is still there: %q", said)
	}
}

// The setting goes back to what it was before the first of several runs, and is left
// where somebody else has changed it since.
func TestTheSettingGoesBackToWhatItWas(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	setting := filepath.Join(dir, "setting")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "state"), 0o755), os.WriteFile(setting, []byte("3\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var said []string
	p := &Preparer{Setup: SetupSysctl, Getenv: os.Getenv, Say: func(line string) { said = append(said, line) },
		paths: Paths{State: filepath.Join(dir, "state"), Copies: []string{filepath.Join(dir, "copies")}, Profiles: dir, Setting: setting}}
	p.complete()
	f := p.bare()
	f.Root, f.UID = []string{}, 1001
	f.Name, err = limits.NameFor(limits.Config{}, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	f.Namespaces, f.AppArmor, f.BySetting = "denied", true, true
	for _, c := range []struct{ meanwhile, want string }{{"0", "3"}, {"1", "1"}, {"", "3"}} {
		if err := os.WriteFile(setting, []byte("3\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f.Was = p.before(f)
		plan := Plan(f)
		if _, err := p.carryOut(t.Context(), plan.Actions); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(setting); string(b) != "0\n" {
			t.Fatalf("%q: %+v", b, plan)
		}
		// A second run sees what the first has written down, and not what is there.
		if got := p.before(f); got != "3" {
			t.Errorf("another run would restore %q", got)
		}
		if err := os.WriteFile(setting, []byte(c.meanwhile+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := p.undo(t.Context(), f, *plan.Lease, true); err != nil {
			t.Error(err)
		}
		if b, _ := os.ReadFile(setting); strings.TrimSpace(string(b)) != c.want {
			t.Errorf("changed to %q meanwhile: it is %q\n%q", c.meanwhile, b, said)
		}
	}
}

// TestLocked: two that prepare this host at once wait for each other.
func TestLocked(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &Preparer{Getenv: os.Getenv, paths: Paths{State: dir}}
	p.complete()
	f := p.bare()
	f.Root = []string{}
	unlock, err := p.lock(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		unlock, err := p.lock(context.Background(), f)
		if err == nil {
			unlock()
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("the second did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	unlock()
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// A process that is not the account's own is moved nowhere: prepare of a shell that
// has ended, or of a service, is a child of the machine's first process.
func TestNoProcessOfAnotherIsMoved(t *testing.T) {
	sleeper := exec.Command("/bin/sleep", "600")
	must(t, sleeper.Start())
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	uid := os.Geteuid()
	if err := ownProcess(sleeper.Process.Pid, uid); err != nil {
		t.Error(err)
	}
	for pid, uid := range map[int]int{sleeper.Process.Pid: uid + 1, 1 << 30: uid} {
		if ownProcess(pid, uid) == nil {
			t.Errorf("process %d is user %d's", pid, uid)
		}
	}
	p := &Preparer{Setup: SetupAuto, Getenv: os.Getenv, PID: sleeper.Process.Pid, Lasting: true}
	p.complete()
	f := Facts{UID: uid + 1, Programs: map[string]string{}}
	p.lookGroups(context.Background(), &f)
	if f.Site != nil || !strings.Contains(f.SiteWhy, "own") {
		t.Errorf("the group of another's process would be made at %v (%q)", f.Site, f.SiteWhy)
	}
}

// What is undone takes no caps away from a step: the group that a run's boxes are
// in stays until they are gone.
func TestUndoTakesNoBoxOutOfItsGroup(t *testing.T) {
	dir := newMachine(t)
	s := newShell(t, dir, everything)
	if began := s.tell("last"); began.Limits != "" {
		t.Fatalf("%+v", began)
	}
	box := s.tell("box")
	if box.Child == 0 || len(box.Said) > 0 {
		t.Fatalf("%+v", box)
	}
	at := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", box.Child))
		must(t, err)
		return string(text)
	}
	before := at()
	if !strings.Contains(before, "-box.box") {
		t.Fatalf("it is in %s", before)
	}
	undone := s.tell("undo")
	if said := strings.Join(undone.Said, "\n"); !strings.Contains(said, "has the box of a run that is on") || strings.Contains(said, "back") {
		t.Errorf("it said %q", undone.Said)
	}
	if after := at(); after != before {
		t.Errorf("the box was in\n%sand is in\n%s", before, after)
	}
	if undone.Limits != "" {
		t.Errorf("the run can cap no further step: %s", undone.Limits)
	}
	// Whoever ends a run that hangs has it all back.
	must(t, syscall.Kill(box.Child, syscall.SIGKILL))
	must(t, s.cmd.Process.Kill())
	_ = s.cmd.Wait()
	next := newShell(t, dir, everything)
	next.tell("undo")
	if groups, leases := made(t, dir, s.cmd.Process.Pid); len(groups)+len(leases) > 0 {
		t.Errorf("left are the groups %q and leases %q", groups, leases)
	}
}

// A run that is killed while it writes down what it will make leaves an empty file.
// The next one takes it away; that of a process which is on is being written.
func TestAnEmptyLeaseOfAKilledRunIsTakenAway(t *testing.T) {
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("/run", "untrusted-steps-test-")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	var said []string
	p := &Preparer{Setup: SetupAuto, Getenv: os.Getenv, Say: func(line string) { said = append(said, line) }, paths: Paths{State: dir}}
	p.complete()
	sleep := exec.Command("/bin/sleep", "600")
	must(t, sleep.Start())
	gone, err := limits.NameFor(limits.Config{}, sleep.Process.Pid)
	must(t, err)
	on, err := limits.NameFor(limits.Config{}, os.Getpid())
	must(t, err)
	for _, name := range []string{gone, on, "other"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	f := p.bare()
	f.Root = []string{}
	if p.stale(f) {
		t.Error("what is being written is taken for left over")
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	if !p.stale(f) {
		t.Error("it is not found")
	}
	must(t, p.sweep(context.Background(), f))
	if exists(filepath.Join(dir, gone)) || !exists(filepath.Join(dir, on)) || !exists(filepath.Join(dir, "other")) {
		list, _ := os.ReadDir(dir)
		t.Errorf("there are %v", list)
	}
	if len(said) > 0 {
		t.Errorf("it said %q", said)
	}
}

// What an account can write is no lease, whatever it says: undoing one is root's work.
func TestAnAccountWritesNoLease(t *testing.T) {
	dir := newMachine(t)
	state := filepath.Join(dir, "run/untrusted-steps")
	must(t, os.MkdirAll(state, 0o755))
	mine, from, victim := filepath.Join(dir, "x"), filepath.Join(dir, "from"), filepath.Join(dir, "victim")
	put := func(path, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	put(victim, "important")
	must(t, os.MkdirAll(from, 0o755))
	must(t, os.Symlink(victim, filepath.Join(from, "cgroup.procs")))
	for _, name := range []string{fmt.Sprintf("lock-%d", accountID), "lease"} {
		group := filepath.Join(mine, name)
		put(filepath.Join(group, "cgroup.procs"), "1\n")
		put(filepath.Join(state, name), fmt.Sprintf(`{"uid":1000,"lasting":true,"groups":[{"dir":%q,"from":%q}]}`, group, from))
		must(t, os.Chown(filepath.Join(state, name), accountID, accountID))
	}
	p := &Preparer{paths: Paths{State: state}, Say: func(s string) { t.Log(s) }}
	if list, unwritten := p.written(); len(list)+len(unwritten) > 0 {
		t.Errorf("leases are %+v and %q", list, unwritten)
	}
	// The control: the same from root is one.
	must(t, os.Chown(filepath.Join(state, "lease"), 0, 0))
	if list := p.leases(); len(list) != 1 || list[0].Name != "lease" {
		t.Errorf("leases are %+v", list)
	}
}

// Another account that holds the folder of leases for ever keeps nobody from
// preparing this host, nor what was made from being taken away; and it cannot hold
// what only this account can open.
func TestAnotherAccountHoldsUpNobody(t *testing.T) {
	dir := newMachine(t)
	state := filepath.Join(dir, "run/untrusted-steps")
	first := newShell(t, dir, everything)
	if began := first.tell("begin"); began.Limits != "" {
		t.Fatalf("%+v", began)
	}
	held, err := os.Open(state)
	must(t, err)
	defer held.Close()
	must(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	st, err := os.Stat(filepath.Join(state, fmt.Sprintf("lock-%d", accountID)))
	must(t, err)
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != accountID || st.Mode() != 0o600 {
		t.Errorf("the account's own lock is user %d's, %v", sys.Uid, st.Mode())
	}
	if ended := first.tell("end"); ended.Limits == "" {
		t.Errorf("%+v", ended)
	}
	if groups, leases := made(t, dir, first.cmd.Process.Pid); len(groups)+len(leases) > 0 {
		t.Errorf("left are the groups %q and leases %q", groups, leases)
	}
	second := newShell(t, dir, everything)
	if began := second.tell("begin"); began.Limits != "" || !began.Complete {
		t.Errorf("%+v", began)
	}
	second.tell("end")
}

// Of several groups the kernel may see one empty before another: what one try has
// removed is not asked of the next.
func TestGroupsThatAreFreeOneAfterTheOther(t *testing.T) {
	dir := t.TempDir()
	tool, first, second := filepath.Join(dir, "rmdir"), filepath.Join(dir, "first"), filepath.Join(dir, "second")
	// As rmdir does with a group that has a process still: it goes on to the next.
	must(t, os.WriteFile(tool, []byte(`#!/bin/sh
rc=0
for d; do
  if [ -e "$d.busy" ]; then rm "$d.busy"; rc=1; else rmdir "$d" || rc=1; fi
done
exit $rc
`), 0o755))
	must(t, os.Mkdir(first, 0o755))
	must(t, os.Mkdir(second, 0o755))
	must(t, os.WriteFile(second+".busy", nil, 0o644))
	a := Action{Does: "remove them", Argv: []string{tool, first, second}, Groups: []string{first, second}}
	p := &Preparer{Getenv: os.Getenv, Say: func(string) {}}
	began := time.Now()
	if err := p.takeAwayOne(t.Context(), a); err != nil {
		t.Error(err)
	}
	if exists(first) || exists(second) || time.Since(began) >= groupPatience {
		t.Errorf("left: first %v, second %v, after %v", exists(first), exists(second), time.Since(began))
	}
	// And where others have removed them all, there is nothing to do.
	if err := p.takeAwayOne(t.Context(), a); err != nil {
		t.Error(err)
	}
}
