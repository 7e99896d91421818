package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// Preparer adds to this host what is missing for one process, and takes it away
// again.
type Preparer struct {
	Setup  Setup
	Getenv func(string) string
	// Args are this program's arguments, with which it may be started again in
	// place of itself; nil: it never is.
	Args []string
	// PID is the process that it is for; 0 is this one.
	PID     int
	Lasting bool // until it is undone by name, and for each run of this account
	// Say is told each thing that is done, in words for people.
	Say func(string)
	// BeforeExec is called when nothing but starting again is left to do.
	BeforeExec func() error

	using *os.File // the copy that this process is, marked as in use

	paths Paths // empty: the machine's
	limit limits.Config
}

// rootTools are the programs that act as root.
var rootTools = []string{"mkdir", "chown", "chmod", "tee", "install", "rm", "rmdir", "setfacl", "apparmor_parser"}

func (p *Preparer) complete() {
	if p.PID == 0 {
		p.PID = os.Getpid()
	}
	if p.Say == nil {
		p.Say = func(string) {}
	}
	if p.paths.State == "" {
		p.paths = usualPaths
	}
	p.limit.XDGRuntimeDir = p.Getenv("XDG_RUNTIME_DIR")
}

// Added is what Begin came to.
type Added struct {
	Notes    []string // what was added, and what could not be
	Hints    []string // what is left to each run
	Complete bool     // nothing is missing any more
}

// Begin adds what is missing. It may start this program again in its own place,
// and then does not return. What it could not do is no error: whoever needs it
// will be refused for a cause of its own.
func (p *Preparer) Begin(ctx context.Context) (out Added) {
	p.complete()
	note := func(n string) {
		p.Say(n)
		out.Notes = append(out.Notes, n)
	}
	f, err := p.look(ctx)
	if err != nil {
		note("nothing was added to this host: " + err.Error())
		return out
	}
	if f.Started {
		if err := p.use(f.Self); err != nil {
			note(err.Error())
		}
		note("this program was started again, " + f.whereNow())
		for _, l := range p.leases() { // what it did when it was the one before
			if l.Name == f.Name {
				out.Notes = append(out.Notes, l.words()...)
			}
		}
	}
	plan := Plan(f)
	if f.Root != nil && (len(plan.Actions) > 0 || p.stale(f)) {
		plan, err = p.apply(ctx, f)
		for _, a := range plan.Actions { // which were said
			if !a.House {
				out.Notes = append(out.Notes, a.Does)
			}
		}
		if err != nil {
			note("not all that was missing could be added to this host: " + err.Error())
		}
	}
	for _, n := range plan.Notes {
		note(n)
	}
	for _, h := range plan.Hints {
		p.Say(h)
	}
	out.Hints = plan.Hints
	out.Complete = err == nil && len(plan.Notes) == 0
	if plan.Exec == nil || ctx.Err() != nil {
		return out
	}
	p.Say("this program is started again: " + commandLine(plan.Exec))
	note(p.exec(plan).Error())
	out.Complete = false
	return out
}

// whereNow is where a program that was started again is.
func (f Facts) whereNow() string {
	group, err := readSmall("/proc/self/cgroup")
	if err != nil {
		group = "?"
	}
	return fmt.Sprintf("from %s, in %s", f.Self, strings.TrimSpace(group[strings.LastIndex(strings.TrimSpace(group), ":")+1:]))
}

// exec becomes what a plan says. It returns only if that cannot be.
func (p *Preparer) exec(plan Steps) error {
	if p.BeforeExec != nil {
		if err := p.BeforeExec(); err != nil {
			return fmt.Errorf("make ready to start again: %w", err)
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.ContainsFunc(plan.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	})
	return fmt.Errorf("start %s: %w", plan.Exec[0], syscall.Exec(plan.Exec[0], plan.Exec, append(env, plan.Env...)))
}

// look finds out what is missing, by doing it, and what could be added.
func (p *Preparer) look(ctx context.Context) (f Facts, err error) {
	f = p.bare()
	if f.Name, err = limits.NameFor(p.limit, p.PID); err != nil {
		return f, err
	}
	if f.Self, err = os.Executable(); err != nil {
		return f, err
	}
	// Whoever set this before us did not know which process we would be.
	f.Started = p.Getenv(Marker) == f.Name
	if p.Setup != SetupAuto && p.Setup != SetupSysctl {
		return f, nil
	}
	if f.UID != 0 {
		if _, _, err := openLimits(); err != nil {
			f.Limits = err.Error()
			p.lookGroups(ctx, &f)
		}
		p.lookNamespaces(ctx, &f)
	}
	f.Lifted, f.Was = p.lifted(f), p.before(f)
	// Nobody is asked to be root for nothing.
	if f.Limits != "" || f.Namespaces != "" || f.Lifted || p.stale(f) {
		p.lookRoot(ctx, &f)
	}
	return f, nil
}

// lookNamespaces finds out what may be done in a user namespace, and by whose
// doing it may not.
func (p *Preparer) lookNamespaces(ctx context.Context, f *Facts) {
	m := Here(p.Getenv)
	x := newExamination(m, Options{})
	if made := m.Try(ctx, Trial{What: tryMade}); !made.worked() {
		f.Namespaces, f.AppArmor, f.BySetting = made.why(), x.appArmorRefuses(made), x.setting()
	} else if inside := x.tryInside(ctx); !inside.worked() {
		f.Namespaces, f.AppArmor, f.BySetting = inside.why(), inside.denied() && x.restricted(inside), x.bySetting(inside)
	}
	if f.AppArmor {
		p.lookCopy(ctx, f)
	}
}

// lookRoot finds out how a command becomes root's.
func (p *Preparer) lookRoot(ctx context.Context, f *Facts) {
	if f.UID == 0 {
		f.Root = []string{}
		return
	}
	if err := trySudo(ctx); err != nil {
		f.RootWhy = "sudo does not work without a password: " + err.Error()
		return
	}
	f.Root = []string{f.Programs["sudo"], "-n", "--"}
}

// lookGroups finds out by what means a control group could be capped.
func (p *Preparer) lookGroups(ctx context.Context, f *Facts) {
	dir, _ := limits.UserManager(p.limit)
	switch run := f.Programs["systemd-run"]; {
	case dir == "":
		f.ScopeWhy = "no user manager answers"
	case run == "":
		f.ScopeWhy = "there is no systemd-run that only root can have put there"
	case !f.Started:
		// The same program, in the same kind of scope, does what it will do.
		argv := append(scopeOf(run), f.Self, tryArg, tryLimits, "")
		if a := ask(ctx, argv, "XDG_RUNTIME_DIR="+dir); a.worked() {
			f.Scope = dir
		} else {
			f.ScopeWhy = "in a scope of the user's manager nothing can be capped either: " + a.why()
		}
	}
	err := ownProcess(p.PID, f.UID)
	var site limits.Site
	if err == nil {
		site, err = limits.FindSite(p.limit, p.PID)
	}
	if err != nil {
		f.SiteWhy = err.Error()
		return
	}
	f.Site = &site
}

// ownProcess says why a process is not the account's own. Whose parent has ended
// is a child of the machine's first process, and so is what a service starts: that
// one would be moved to where the account can cap and freeze it.
func ownProcess(pid, uid int) error {
	text, err := readSmall(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(text, "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	ids := strings.Fields(line)
	if len(ids) != 4 || slices.ContainsFunc(ids, func(id string) bool { return id != strconv.Itoa(uid) }) {
		return fmt.Errorf("the process that it would be for, %d, is not user %d's own (its ids are %s): call it from a shell of that account, or let each run do it (run --host-setup auto)", pid, uid, strings.Join(ids, " "))
	}
	return nil
}

// lookCopy finds out whether this program lies, or could lie, where AppArmor can
// tell it from all others.
func (p *Preparer) lookCopy(ctx context.Context, f *Facts) {
	var err error
	if f.SHA256, err = sumOf("/proc/self/exe"); err != nil {
		f.CopyWhy = err.Error()
		return
	}
	f.Profile = exists(filepath.Join(f.Profiles, "abi/4.0"))
	passwd, perr := os.ReadFile("/etc/passwd")
	group, gerr := os.ReadFile("/etc/group")
	f.Alone = perr == nil && gerr == nil && alone(string(passwd), string(group), f.UID, f.GID)
	var why []string
	for _, dir := range f.Copies {
		// The folder itself is there only after the first time.
		above := dir
		if !exists(dir) {
			above = filepath.Dir(dir)
		}
		if err := onlyRoot(above); err != nil {
			why = append(why, err.Error())
			continue
		}
		f.CopyIn = dir
		break
	}
	f.CopyWhy = list(why)
	if f.CopyIn == "" {
		return
	}
	f.Kept = p.keeps(f.copyName())
	if f.Copied = isCopy(Sum{Path: f.copyPath(), SHA256: f.SHA256}) == nil; f.Copied {
		f.Works = ask(ctx, []string{f.copyPath(), tryArg, tryWhole, ""}).worked()
	}
}

// isCopy says why a file is not what it has to be.
func isCopy(want Sum) error {
	if err := onlyRoot(want.Path); err != nil {
		return err
	}
	got, err := sumOf(want.Path)
	if err != nil {
		return err
	}
	if got != want.SHA256 {
		return fmt.Errorf("%s has the SHA-256 %s, and not %s", want.Path, got, want.SHA256)
	}
	return nil
}

func sumOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ask runs this program, or its copy, to try something and tell.
func ask(ctx context.Context, argv []string, env ...string) Answer {
	said, err := run(ctx, argv, "", env...)
	if err != nil {
		return Answer{Done: []Op{{What: "start " + filepath.Base(argv[0]), Words: err.Error()}}}
	}
	var a Answer
	if err := json.Unmarshal([]byte(said), &a); err != nil {
		return Answer{Done: []Op{{What: "hear from " + filepath.Base(argv[0]), Words: err.Error()}}}
	}
	return a
}

const (
	// lockPatience bounds the wait for another run of this account's that prepares
	// this host.
	lockPatience = 30 * time.Second
	// othersPatience bounds the wait for other accounts, of whom any can hold the
	// folder of leases for ever, and must not keep what was made from being taken
	// away. What two of them can get in each other's way with is the machine's one
	// setting: a run from under which it is changed builds no box.
	othersPatience = 2 * time.Second
)

// lockPrefix begins the name of an account's lock, the rest of which is its id.
const lockPrefix = "lock-"

// lock keeps two runs from preparing this host at once: those of this account by a
// file that nobody else can open, which is made first where there is none.
func (p *Preparer) lock(ctx context.Context, f Facts) (unlock func(), err error) {
	if err := onlyRoot(p.paths.State); err != nil {
		return nil, err
	}
	path := filepath.Join(p.paths.State, lockPrefix+strconv.Itoa(f.UID))
	own, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		for _, a := range []Action{
			f.root("", "", "tee", path), f.root("", "", "chown", fmt.Sprintf("%d:%d", f.UID, f.GID), path), f.root("", "", "chmod", "0600", path),
		} {
			if err := perform(ctx, a.Argv, a.Stdin); err != nil {
				return nil, err
			}
		}
		if own, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0); err != nil {
			return nil, err
		}
	}
	if err := held(own, lockPatience); err != nil {
		own.Close()
		return nil, err
	}
	all, err := os.Open(p.paths.State)
	if err != nil {
		own.Close()
		return nil, err
	}
	if err := held(all, othersPatience); err != nil {
		p.Say(err.Error() + "; that of another account is not waited for")
	}
	return func() { all.Close(); own.Close() }, nil
}

// held locks a file, or says why it could not in time.
func held(file *os.File, patience time.Duration) error { return locks(file, unix.LOCK_EX, patience) }

func locks(file *os.File, how int, patience time.Duration) error {
	until := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(until) {
			return fmt.Errorf("lock %s, which another run holds: %w", file.Name(), err)
		}
		time.Sleep(wait)
	}
}

// leases are those that are written down. One that cannot be read is passed over,
// and said.
func (p *Preparer) leases() []Lease {
	list, _ := p.written()
	return list
}

// written are the leases, and the files of those that are not written yet, by which
// nothing was made so far: see Lease.write.
func (p *Preparer) written() (list []Lease, unwritten []string) {
	entries, err := os.ReadDir(p.paths.State)
	if err != nil {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(p.paths.State, e.Name())
		if strings.HasPrefix(e.Name(), lockPrefix) {
			continue // an account's own file, in which it may write what it likes
		}
		// What a lease says is done as root.
		if err := rootsFile(path); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				p.Say(fmt.Sprintf("%s is left alone: %v", path, err))
			}
			continue
		}
		text, err := readSmall(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another run has just ended
		}
		if errors.Is(err, fs.ErrPermission) || err == nil && text == "" {
			unwritten = append(unwritten, e.Name())
			continue
		}
		var l Lease
		if err == nil {
			l, err = readLease(e.Name(), text)
		}
		if err != nil {
			p.Say(fmt.Sprintf("%s is left alone: %v", path, err))
			continue
		}
		list = append(list, l)
	}
	return list, unwritten
}

// rootsFile says why a file is not one that only root can have written. The folder it
// is in was looked at by lock.
func rootsFile(path string) error {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case err != nil:
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("it is no plain file")
	case st.Uid != 0 || st.Mode&0o022 != 0:
		return fmt.Errorf("user %d or others could have written it (mode %04o)", st.Uid, st.Mode&0o7777)
	}
	return nil
}

// unmade are the files of those that were killed before they had written one.
func (p *Preparer) unmade() []string {
	_, unwritten := p.written()
	return slices.DeleteFunc(unwritten, func(name string) bool { return !limits.Gone(p.limit, name) })
}

// stale says whether something of this account's is left that nobody will undo.
func (p *Preparer) stale(f Facts) bool {
	list := p.leases()
	return slices.ContainsFunc(list, func(l Lease) bool { return p.abandoned(f, l) }) || len(p.unused(f, list)) > 0 || len(p.unmade()) > 0
}

// abandoned says whether a lease's process has ended without undoing it. Root
// clears up after everybody. A setting that was to last is not one's shell's.
func (p *Preparer) abandoned(f Facts, l Lease) bool {
	return (f.UID == 0 || l.UID == f.UID) && limits.Gone(p.limit, l.Name) && !(l.Lasting && l.Sysctl)
}

// lifted says whether another run that is on has the machine's setting changed.
func (p *Preparer) lifted(f Facts) bool {
	others := false
	for _, l := range p.leases() {
		switch {
		case !l.Sysctl:
		case l.Name == f.Name:
			return false // it holds it as well
		default:
			others = others || !limits.Gone(p.limit, l.Name)
		}
	}
	return others
}

// before is what the machine's setting was before any run changed it: what one of
// those has written down, also one that was killed and not cleared up after, else
// what it is.
func (p *Preparer) before(f Facts) string {
	for _, l := range p.leases() {
		if l.Sysctl && l.Was != "" {
			return l.Was
		}
	}
	return p.setting()
}

// setting is what it is now; empty if that is nothing we know.
func (p *Preparer) setting() string {
	text, err := readSmall(p.paths.Setting)
	if text = strings.TrimSpace(text); err != nil || !settingPattern().MatchString(text) {
		return ""
	}
	return text
}

// copyAt is a copy of this program, of this version or another.
type copyAt struct{ in, name string }

// copiesOf are the copies that were made for an account.
func (p *Preparer) copiesOf(uid int) (list []copyAt) {
	for _, in := range p.paths.Copies {
		if onlyRoot(in) != nil {
			continue
		}
		entries, _ := os.ReadDir(in)
		for _, e := range entries {
			if copyPattern().MatchString(e.Name()) && strings.HasPrefix(e.Name(), strconv.Itoa(uid)+"-") {
				list = append(list, copyAt{in, e.Name()})
			}
		}
	}
	return list
}

// unused are those copies that neither a lease nor the machine's own profiles
// hold: a restart of the machine ends the leases.
func (p *Preparer) unused(f Facts, leases []Lease) []copyAt {
	return slices.DeleteFunc(p.copiesOf(f.UID), func(c copyAt) bool {
		return p.keeps(c.name) || slices.ContainsFunc(leases, func(l Lease) bool { return l.Copy == c.name }) || inUse(c.path())
	})
}

// keeps says whether a copy is there until it is undone by name.
func (p *Preparer) keeps(copy string) bool {
	return exists(filepath.Join(p.paths.Profiles, profileName(copy)))
}

// apply carries a plan out, with nobody else at it. It clears up first, and looks
// again: somebody else may have added what was missing.
func (p *Preparer) apply(ctx context.Context, f Facts) (plan Steps, err error) {
	var done []Action
	err = p.locked(ctx, &f, func() error {
		swept := p.sweep(ctx, f)
		if f.AppArmor {
			p.lookCopy(ctx, &f)
		}
		f.Lifted, f.Was = p.lifted(f), p.before(f)
		plan = Plan(f)
		var err error
		done, err = p.carryOut(ctx, plan.Actions)
		if err == nil && plan.Try != "" { // seen to work, or not kept
			if a := ask(ctx, []string{plan.Try, tryArg, tryWhole, ""}); !a.worked() {
				err = fmt.Errorf("the copy of this program, %s, builds no box either: %s", plan.Try, a.why())
			}
		}
		if err == nil {
			return swept
		}
		// Also what a cancel stopped half way.
		away, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
		defer cancel()
		if plan.Lease != nil {
			err = errors.Join(err, p.undo(away, f, *plan.Lease, true))
		}
		if f.Lasting && plan.Try != "" && !f.Copied {
			err = errors.Join(err, p.forget(away, f, copyAt{f.CopyIn, f.copyName()}))
		}
		plan.Exec, done = nil, nil
		return errors.Join(swept, err)
	})
	plan.Actions = done
	return plan, err
}

// carryOut runs actions in order, up to the first that fails.
func (p *Preparer) carryOut(ctx context.Context, list []Action) (done []Action, err error) {
	for _, a := range list {
		if err := perform(ctx, a.Argv, a.Stdin); a.Spare && err != nil && ctx.Err() == nil {
			p.Say(fmt.Sprintf("could not %s: %v", a.Does, err))
			continue
		} else if err != nil && a.Else != nil && ctx.Err() == nil {
			p.Say(fmt.Sprintf("could not %s: %v", a.Does, err))
			instead, err := p.carryOut(ctx, a.Else)
			if done = append(done, instead...); err != nil {
				return done, err
			}
			continue
		} else if err != nil {
			return done, fmt.Errorf("%s: %w", a.Does, err)
		}
		if a.Sum != nil {
			if err := isCopy(*a.Sum); err != nil {
				return done, fmt.Errorf("%s: %w", a.Does, err)
			}
		}
		p.tell(a)
		done = append(done, a)
	}
	return done, nil
}

// sweep takes away what killed runs of this account have left.
func (p *Preparer) sweep(ctx context.Context, f Facts) error {
	var errs []error
	for _, l := range p.leases() {
		if p.abandoned(f, l) {
			p.Say("taking away what a killed run had left: " + l.Name)
			errs = append(errs, p.undo(ctx, f, l, false))
		}
	}
	errs = append(errs, p.dropUnmade(ctx, f))
	for _, c := range p.unused(f, p.leases()) {
		p.Say("taking away a copy of this program that nobody uses: " + c.name)
		errs = append(errs, p.forget(ctx, f, c))
	}
	return errors.Join(errs...)
}

// dropUnmade removes their files, whosever they are: there is nothing to undo.
func (p *Preparer) dropUnmade(ctx context.Context, f Facts) error {
	var list []Action
	for _, name := range p.unmade() {
		path := filepath.Join(f.State, name)
		list = append(list, house(f.root("remove "+path, "", "rm", "-f", path)))
	}
	return p.takeAway(ctx, list)
}

// forget takes a copy away, with the profile that the machine loads.
func (p *Preparer) forget(ctx context.Context, f Facts, c copyAt) error {
	free, busy := take(c.path())
	if busy {
		p.Say("a run that is on keeps its copy of this program: " + c.name)
		return nil
	}
	defer free()
	list := f.uncopy(c.in, c.name)
	if p.keeps(c.name) {
		file := filepath.Join(f.Profiles, profileName(c.name))
		list = append(list, f.root("remove "+file, "", "rm", "-f", file))
	}
	return p.takeAway(ctx, list)
}

// undo takes away what a lease says was made.
func (p *Preparer) undo(ctx context.Context, f Facts, l Lease, alive bool) error {
	left := Left{Lease: l, Written: exists(l.path(f.State))}
	var dirs []string
	for _, g := range l.Groups {
		if exists(filepath.Join(g.Dir, "cgroup.procs")) {
			left.Groups, dirs = append(left.Groups, g), append(dirs, g.Dir)
		}
	}
	var errs []error
	if len(dirs) > 0 && alive {
		var err error
		left.Members, err = limits.Members(dirs)
		errs = append(errs, err)
	} else if len(dirs) > 0 {
		errs = append(errs, limits.Clear(p.limit, dirs))
	}
	others := slices.DeleteFunc(p.leases(), func(o Lease) bool {
		return o.Name == l.Name || limits.Gone(p.limit, o.Name) && !(o.Lasting && o.Sysctl)
	})
	if l.Copy != "" && !p.keeps(l.Copy) && !slices.ContainsFunc(others, func(o Lease) bool { return o.Copy == l.Copy }) {
		for _, c := range p.copiesOf(l.UID) {
			if c.name != l.Copy {
				continue
			}
			free, busy := take(c.path())
			if busy { // a run that has no lease, as one without sudo
				p.Say("a run that is on keeps its copy of this program: " + c.name)
				continue
			}
			defer free()
			left.Copy, left.In = true, c.in
		}
	}
	left.Sysctl = l.Sysctl && !slices.ContainsFunc(others, func(o Lease) bool { return o.Sysctl })
	// What is there by now may be what somebody else has chosen since.
	if now := p.setting(); left.Sysctl && now != "0" && now != "" {
		if left.Sysctl = false; now != l.Was {
			p.Say("kernel.apparmor_restrict_unprivileged_userns was changed meanwhile, and stays " + now)
		}
	}
	return errors.Join(append(errs, p.takeAway(ctx, Undo(f, left)))...)
}

// takeAway runs all actions, whatever becomes of each.
func (p *Preparer) takeAway(ctx context.Context, list []Action) error {
	var errs []error
	for _, a := range list {
		if a.Last && len(errs) > 0 {
			break
		}
		err := p.takeAwayOne(ctx, a)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Does, err))
			continue
		}
		p.tell(a)
	}
	return errors.Join(errs...)
}

// takeAwayOne runs one action. A group is removed once those below it are, and
// once the kernel has seen that nothing is in them any more.
func (p *Preparer) takeAwayOne(ctx context.Context, a Action) error {
	until := time.Now().Add(groupPatience)
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		var below error
		// One that an earlier try has removed would fail all later ones.
		argv := slices.Clone(a.Argv[:len(a.Argv)-len(a.Groups)])
		for _, dir := range a.Groups {
			if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			argv = append(argv, dir)
			below = errors.Join(below, limits.RemoveBelow(dir))
		}
		if len(a.Groups) > 0 && len(argv)+len(a.Groups) == len(a.Argv) {
			return nil
		}
		err := perform(ctx, argv, a.Stdin)
		if err == nil || len(a.Groups) == 0 || time.Now().After(until) || ctx.Err() != nil {
			if err != nil {
				err = errors.Join(err, below)
			}
			return err
		}
		time.Sleep(wait)
	}
}

// tell says what was done.
func (p *Preparer) tell(a Action) {
	if !a.House {
		p.Say(a.Does)
	}
}

// groupPatience bounds the wait for the kernel to see that a group is empty.
const groupPatience = 5 * time.Second

// endPatience bounds taking away. A runner that cancels waits for less, and what
// it leaves by killing us the next run takes away.
const endPatience = time.Minute

// End takes away what Begin has added, in this process or in what it was before
// it was started again. It says what could not be; the next run tries again.
func (p *Preparer) End() {
	p.complete()
	p.leave()
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	if err := p.end(ctx); err != nil {
		p.Say("not all that was added to this host could be taken away, the next run tries again: " + err.Error())
	}
}

func (p *Preparer) end(ctx context.Context) error {
	f := p.bare()
	var err error
	if f.Name, err = limits.NameFor(p.limit, p.PID); err != nil {
		return err
	}
	if !exists(filepath.Join(p.paths.State, f.Name)) {
		return nil
	}
	return p.locked(ctx, &f, func() error {
		for _, l := range p.leases() {
			if l.Name == f.Name {
				return p.undo(ctx, f, l, true)
			}
		}
		return nil
	})
}

// Undo takes away all that was added for this account and is not in use: what is
// there until it is undone by name, and what killed runs have left.
func (p *Preparer) Undo(ctx context.Context) error {
	p.complete()
	f := p.bare()
	if len(p.leases()) == 0 && len(p.copiesOf(f.UID)) == 0 && len(p.unmade()) == 0 {
		p.Say("there is nothing to take away")
		return nil
	}
	return p.locked(ctx, &f, func() error {
		errs := []error{p.dropUnmade(ctx, f)}
		for _, l := range p.leases() {
			gone := limits.Gone(p.limit, l.Name)
			switch box, err := p.boxIn(l); {
			case f.UID != 0 && l.UID != f.UID:
			case !gone && err != nil:
				errs = append(errs, err)
			case !gone && box != "":
				p.Say(fmt.Sprintf("the control group of process %s has the box of a run that is on, and stays: %s", l.Name, box))
			case gone, l.Lasting:
				errs = append(errs, p.undo(ctx, f, l, !gone))
			default:
				p.Say("a run that is on keeps what it was given: " + l.Name)
			}
		}
		leases := p.leases()
		for _, c := range p.copiesOf(f.UID) {
			if slices.ContainsFunc(leases, func(l Lease) bool { return l.Copy == c.name }) {
				p.Say("a run that is on keeps its copy of this program: " + c.name)
				continue
			}
			errs = append(errs, p.forget(ctx, f, c))
		}
		return errors.Join(errs...)
	})
}

// boxIn is a box in a lease's control group.
func (p *Preparer) boxIn(l Lease) (string, error) {
	var dirs []string
	for _, g := range l.Groups {
		dirs = append(dirs, g.Dir)
	}
	return limits.InUse(p.limit, dirs)
}

// bare are the facts that taking away needs.
func (p *Preparer) bare() Facts {
	f := Facts{Setup: p.Setup, UID: os.Geteuid(), GID: os.Getegid(), PID: p.PID, Lasting: p.Lasting, Args: p.Args, Paths: p.paths, Programs: map[string]string{},
		Source: fmt.Sprintf("/proc/%d/exe", os.Getpid())}
	for _, name := range append([]string{"systemd-run", "sudo"}, rootTools...) {
		if path, err := program(name); err == nil {
			f.Programs[name] = path
		}
	}
	return f
}

// locked does something as root, with nobody else at it.
func (p *Preparer) locked(ctx context.Context, f *Facts, do func() error) error {
	p.lookRoot(ctx, f)
	if why := f.lacks("mkdir", "chown", "chmod", "tee", "rm", "rmdir"); why != "" {
		return errors.New(why)
	}
	if err := perform(ctx, f.root("", "", "mkdir", "-p", "-m", "0755", f.State).Argv, ""); err != nil {
		return err
	}
	unlock, err := p.lock(ctx, *f)
	if err != nil {
		return err
	}
	defer unlock()
	return do()
}

// Look says what Begin would do, and does nothing. Where sudo asks for a password
// it says what an administrator could do, who has one.
func (p *Preparer) Look(ctx context.Context) (Steps, error) {
	p.complete()
	f, err := p.look(ctx)
	if err != nil {
		return Steps{}, err
	}
	if f.Root == nil {
		f.Root = []string{"sudo"}
	}
	f.Source = f.Self // this process is over by then
	return Plan(f), nil
}

// Helps says whether Begin would add all that is missing here, and changes nothing.
func (p *Preparer) Helps(ctx context.Context) bool {
	p.complete()
	f, err := p.look(ctx)
	if err != nil {
		return false
	}
	plan := Plan(f)
	return len(plan.Notes) == 0 && (plan.Exec != nil || len(plan.Actions) > 0)
}

// Text is a plan as commands of a shell, one a line.
func (p Steps) Text() string {
	var b strings.Builder
	line := func(text string) { fmt.Fprintln(&b, gha.Inert(text)) }
	for _, a := range p.Actions {
		line("# " + a.Does)
		feed := ""
		if a.Stdin != "" {
			feed = "printf " + gha.ShellWord(strings.NewReplacer(`\`, `\\`, "%", "%%", "\n", `\n`).Replace(a.Stdin)) + " | "
		}
		line(feed + commandLine(a.Argv))
	}
	if p.Exec != nil {
		line("# start again as")
		line(commandLine(append(append([]string{"env"}, p.Env...), p.Exec...)))
	}
	for _, n := range append(p.Notes, p.Hints...) {
		line("# " + n)
	}
	if b.Len() == 0 {
		line("# nothing is missing")
	}
	return b.String()
}

// commandLine writes a command as a shell would read it.
func commandLine(argv []string) string {
	var words []string
	for _, w := range argv {
		words = append(words, gha.ShellWord(w))
	}
	return strings.Join(words, " ")
}
