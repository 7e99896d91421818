package host

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/limits"
)

// Setup is how much may be added to this host, so that boxes can be built.
type Setup string

// The words for it. The zero value adds nothing.
const (
	SetupOff  Setup = "off"
	SetupAuto Setup = "auto" // the least that is missing, for this program alone
	// SetupSysctl is SetupAuto, but lifts AppArmor's restriction of user namespaces
	// for everything on the machine. Nobody gets that without asking for it.
	SetupSysctl Setup = "sysctl"
)

// ParseSetup reads the word of a flag or an input.
func ParseSetup(word string) (Setup, error) {
	switch s := Setup(word); s {
	case SetupOff, SetupAuto, SetupSysctl:
		return s, nil
	}
	return SetupOff, fmt.Errorf("%q is none of the words auto, off and sysctl", word)
}

// Facts are what a plan is made of. Each was seen, not read from a setting.
type Facts struct {
	Setup    Setup
	UID, GID int
	PID      int      // the process that it is for: this one, or the shell that asks
	Name     string   // of what is made for that process; see limits.NameFor
	Self     string   // this program's path
	Args     []string // its arguments, to start it again with; nil: it is not started again
	Started  bool     // it was, by us
	Lasting  bool     // until it is undone by name

	Limits     string // why nothing can be capped; empty if it can
	Scope      string // the folder of a user manager in whose scope it could; empty for none
	ScopeWhy   string
	Namespaces string // why nothing can be done in a user namespace; empty if it can
	AppArmor   bool   // and that is AppArmor's doing
	BySetting  bool   // by the machine's setting

	// Root are the words that make a command root's: none for root, nil where
	// nobody lets us.
	Root     []string
	RootWhy  string
	Programs map[string]string // those of the machine that only root can have put there

	Site    *limits.Site
	SiteWhy string

	Paths
	CopyIn  string // the folder for copies of this program; empty for none
	CopyWhy string
	SHA256  string // of this program
	Source  string // where it is copied from
	Copied  bool   // its copy is there, and is it
	Works   bool   // and can build boxes
	Kept    bool   // and stays until it is undone by name
	// Lifted: another run has the machine's setting changed as long as it is on.
	Lifted  bool
	Was     string // what the setting was before any run changed it
	Alone   bool   // nobody else is in the account's group
	Profile bool   // the tools of AppArmor know user namespaces
}

// Paths are the places on this machine that preparing it uses.
type Paths struct {
	State    string   // what is made for whom
	Copies   []string // where a copy of this program may be, the best first
	Profiles string   // what AppArmor loads when the machine starts
	Setting  string
}

// usualPaths are those of every Linux machine.
var usualPaths = Paths{
	State:    "/run/untrusted-steps",
	Copies:   []string{"/usr/local/lib/untrusted-steps", "/var/lib/untrusted-steps"},
	Profiles: "/etc/apparmor.d",
	Setting:  appArmorSetting,
}

// Action is one small command of root's, or of the caller's.
type Action struct {
	Does  string // for people
	Argv  []string
	Stdin string
	// Sum is what a file has to be after it, and that nobody but root can change it.
	Sum *Sum
	// Groups are control groups that it removes, the last words of Argv: those below go first, and the
	// kernel may take a moment to see that they are empty.
	Groups []string
	// House: it only makes room for others, which nobody needs told.
	House bool
	// Spare: without it less can be capped, and what follows is done all the same.
	Spare bool
	// Else is what is done in its place where it fails, and said.
	Else []Action
	// Last: it removes what says what there is to undo, so only if all is undone.
	Last bool
}

// Sum is a file with its SHA-256.
type Sum struct{ Path, SHA256 string }

// Steps are a plan.
type Steps struct {
	Actions []Action
	Lease   *Lease   // what they make, written down before it is made
	Exec    []string // what this process becomes then; nil: nothing
	Env     []string // more variables for that
	Notes   []string // what is missing and cannot be added
	Hints   []string // what need not be added
	Try     string   // a copy of this program that has to build boxes after the actions
}

// Marker tells a program that was started again that it was. Its value is the
// name of the process, which nobody knew who has set it before.
const Marker = "UNTRUSTED_STEPS_STARTED"

// Plan is the least that is missing, from what is there.
func Plan(f Facts) Steps {
	var p Steps
	if f.Setup != SetupAuto && f.Setup != SetupSysctl || f.UID == 0 {
		return p
	}
	lease := Lease{Name: f.Name, UID: f.UID, Lasting: f.Lasting}
	program := p.namespaces(f, &lease)
	scope := p.groups(f, &lease)
	if lease.made() {
		p.Actions = append(lease.write(f), p.Actions...)
		p.Lease = &lease
	}
	if f.Args == nil || f.Started || program == "" && !scope {
		return p
	}
	if program == "" {
		program = f.Self
	}
	if scope {
		p.Exec = scopeOf(f.Programs["systemd-run"])
		p.Env = append(p.Env, "XDG_RUNTIME_DIR="+f.Scope)
	}
	p.Exec = append(append(p.Exec, program), f.Args...)
	p.Env = append(p.Env, Marker+"="+f.Name)
	return p
}

// scopeOf puts what follows into a scope of the user's own manager. The scope
// becomes what follows: it keeps the process id, so signals find it.
func scopeOf(systemdRun string) []string {
	return []string{systemdRun, "--user", "--scope", "--quiet", "-p", "Delegate=yes", "--"}
}

// root makes a command root's. Its arguments are paths, numbers and words of
// ours; nothing goes through a shell.
func (f Facts) root(does, stdin, name string, args ...string) Action {
	argv := append(append([]string{}, f.Root...), f.Programs[name])
	return Action{Does: does, Argv: append(argv, args...), Stdin: stdin}
}

// lacks says why commands of these names cannot be root's.
func (f Facts) lacks(names ...string) string {
	if f.Root == nil {
		return f.RootWhy
	}
	for _, n := range names {
		if f.Programs[n] == "" {
			return "this machine has no " + n + " that only root can have put there"
		}
	}
	return ""
}

// namespaces makes them usable where AppArmor takes the capabilities away in
// them. It gives the program to be started in place of this one.
func (p *Steps) namespaces(f Facts, lease *Lease) (program string) {
	if f.Namespaces == "" {
		// What another run takes back at its end must not be missing from here on.
		if lease.Sysctl = f.Lifted && f.lacks("mkdir", "tee", "chmod", "rm") == ""; lease.Sysctl {
			lease.Was = f.Was
		}
		return ""
	}
	note := func(format string, args ...any) string {
		p.Notes = append(p.Notes, "user namespaces stay as they are: "+fmt.Sprintf(format, args...))
		return ""
	}
	switch {
	case !f.AppArmor:
		return note("what is wrong with them is nothing that can be added for one run (%s)", f.Namespaces)
	case f.Setup == SetupSysctl && !f.BySetting:
		return note("it is not the setting kernel.apparmor_restrict_unprivileged_userns that restricts them")
	case f.Setup == SetupSysctl:
		if why := f.lacks("tee", "mkdir", "chmod", "rm"); why != "" {
			return note("%s", why)
		}
		lease.Sysctl, lease.Was = true, f.Was
		p.Actions = append(p.Actions, f.root("let every program on this machine use user namespaces", "0\n", "tee", f.Setting))
		return ""
	case f.Started:
		return note("this program was started again from %s, and still may not: %s", f.Self, f.Namespaces)
	case f.Copied && f.Works && (f.Kept || f.Root == nil):
		return f.copyPath()
	}
	if why := f.lacks("mkdir", "chown", "chmod", "install", "tee", "rm", "rmdir", "apparmor_parser"); why != "" {
		return note("%s", why)
	}
	if !f.Profile {
		return note("AppArmor's tools here know no profile that allows them (they are older than 4.0)")
	}
	if f.CopyIn == "" {
		return note("there is no folder for a copy of this program that only root can write: %s", f.CopyWhy)
	}
	if !f.Lasting {
		lease.Copy = f.copyName()
	}
	p.Actions = append(p.Actions, f.copyActions()...)
	p.Try = f.copyPath()
	return f.copyPath()
}

// copyName is the folder of a copy: whose, and of what. Only the caller can enter
// it, so that nobody else gains what its profile allows: by an access list, or by
// their group where there are none.
func (f Facts) copyName() string { return fmt.Sprintf("%d-%s", f.UID, f.SHA256) }

func (f Facts) copyPath() string { return copyPath(f.CopyIn, f.copyName()) }

func copyPath(in, name string) string { return filepath.Join(in, name, "untrusted-steps") }

// profileName is short: AppArmor shows it where a process's label is shown.
func profileName(copyName string) string {
	uid, sum, _ := strings.Cut(copyName, "-")
	return "untrusted-steps-" + uid + "-" + sum[:min(len(sum), 12)]
}

// profile lets one program, by its path, make user namespaces and use them, and
// confines it in nothing else. What it starts inherits that: kern, which is
// started from memory, as well as a box's first process. A step inherits it too,
// and has a filter before the calls that would use it.
func profile(in, copyName string) string {
	return fmt.Sprintf("abi <abi/4.0>,\n\nprofile %s %s flags=(unconfined) {\n  userns,\n}\n", profileName(copyName), copyPath(in, copyName))
}

// copyActions put a copy of this program where only root can write, and let it
// use user namespaces.
func (f Facts) copyActions() []Action {
	name, path := f.copyName(), f.copyPath()
	var list []Action
	if !f.Copied {
		dir := filepath.Dir(path)
		install := f.root("copy this program to "+path, "", "install", "-m", "0755", "-o", "0", "-g", "0", f.Source, path)
		install.Sum = &Sum{Path: path, SHA256: f.SHA256}
		list = append(list, house(f.root("make "+f.CopyIn, "", "mkdir", "-p", "-m", "0755", f.CopyIn)))
		group := f.root(fmt.Sprintf("let group %d enter it", f.GID), "", "chown", "0:"+strconv.Itoa(f.GID), dir)
		switch {
		case f.Programs["setfacl"] != "":
			// Whether others are in the group only a directory may know: see alone. Not
			// every file system has access lists.
			list = append(list, house(f.root("make "+dir, "", "mkdir", "-p", "-m", "0700", dir)))
			enter := house(f.root(fmt.Sprintf("let user %d enter it", f.UID), "", "setfacl", "-m", fmt.Sprintf("u:%d:--x", f.UID), dir))
			group.Does = fmt.Sprintf("let all of group %d enter %s, where setfacl cannot let user %d alone", f.GID, dir, f.UID)
			enter.Else = []Action{group, house(f.root("open it to them", "", "chmod", "0710", dir))}
			list = append(list, enter)
		case f.Alone:
			list = append(list, house(f.root("make "+dir, "", "mkdir", "-p", "-m", "0710", dir)), house(group))
		default:
			group.Does = fmt.Sprintf("let all of group %d enter %s, for want of setfacl (package acl), which lets user %d alone", f.GID, dir, f.UID)
			list = append(list, house(f.root("make "+dir, "", "mkdir", "-p", "-m", "0710", dir)), group)
		}
		list = append(list, install)
	}
	text := profile(f.CopyIn, name)
	does := "load the AppArmor profile " + profileName(name) + ", which lets that program use user namespaces"
	if !f.Lasting {
		return append(list, f.root(does, text, "apparmor_parser", "--replace", "--skip-cache"))
	}
	file := filepath.Join(f.Profiles, profileName(name))
	return append(list,
		f.root("write "+file, text, "tee", file),
		house(f.root("let it be read", "", "chmod", "0644", file)),
		f.root(does, "", "apparmor_parser", "--replace", "--skip-cache", file))
}

// groups make it possible to cap. It says whether by a scope, which is root's
// doing in nothing and vanishes by itself.
func (p *Steps) groups(f Facts, lease *Lease) (scope bool) {
	if f.Limits == "" {
		return false
	}
	if f.Scope != "" && !f.Started && !f.Lasting {
		return true
	}
	note := func(why string) bool {
		p.Notes = append(p.Notes, "control groups stay as they are: "+why)
		return false
	}
	var why []string
	if f.Started {
		why = append(why, "this program was started again, and still can cap nothing: "+f.Limits)
	} else if f.ScopeWhy != "" {
		why = append(why, f.ScopeWhy)
	}
	if f.Lasting && f.Scope != "" {
		p.Hints = append(p.Hints, "each run makes a control group of its own by the user's systemd: untrusted-steps run --host-setup auto FILE")
		return false
	}
	if lacks := f.lacks("mkdir", "chown", "chmod", "tee", "rm", "rmdir"); lacks != "" {
		return note(strings.Join(append(why, lacks), "; "))
	}
	if f.Site == nil {
		return note(strings.Join(append(why, f.SiteWhy), "; "))
	}
	var dirs, owned, into []string
	for i, parent := range f.Site.Parents {
		dir := filepath.Join(parent, f.Name)
		dirs, owned, into = append(dirs, dir), append(owned, dir), append(into, filepath.Join(dir, "cgroup.procs"))
		for _, file := range delegated[f.Site.Kind] {
			owned = append(owned, filepath.Join(dir, file))
		}
		lease.Groups = append(lease.Groups, Moved{Dir: dir, From: f.Site.Own[i]})
	}
	if len(f.Site.Off) > 0 {
		p.Actions = append(p.Actions, f.root("let control groups below "+f.Site.Parents[0]+" be capped; that stays", "+"+strings.Join(f.Site.Off, " +"),
			"tee", filepath.Join(f.Site.Parents[0], "cgroup.subtree_control")))
	}
	if f.Site.CPUOff {
		// systemd switches it on where a unit asks for it, as that of a user manager
		// does. The kernel may refuse, for example because of real-time processes.
		a := f.root("let CPU time be shared out below "+f.Site.Parents[0]+"; that stays", "+cpu", "tee", filepath.Join(f.Site.Parents[0], "cgroup.subtree_control"))
		a.Spare = true
		p.Actions = append(p.Actions, a)
	}
	owner := fmt.Sprintf("%d:%d", f.UID, f.GID)
	p.Actions = append(p.Actions, f.root("make the control group "+groupNames(dirs), "", "mkdir", dirs...))
	for _, l := range f.Site.Keep { // its files stay root's
		p.Actions = append(p.Actions, f.root("limit it as process "+strconv.Itoa(f.PID)+" is now: "+l.File+" "+l.Value, l.Value+"\n",
			"tee", filepath.Join(dirs[0], l.File)))
	}
	p.Actions = append(p.Actions,
		house(f.root("give it to user "+strconv.Itoa(f.UID), "", "chown", append([]string{owner}, owned...)...)),
		f.root(fmt.Sprintf("move process %d into it", f.PID), strconv.Itoa(f.PID)+"\n", "tee", into...))
	return false
}

// groupNames are the folders of a group, for people: cgroup1 has several.
func groupNames(dirs []string) string {
	if len(dirs) == 1 {
		return dirs[0]
	}
	return fmt.Sprintf("%s (and in %d more hierarchies)", dirs[0], len(dirs)-1)
}

// delegated are the files of a group that its owner has to be able to write, and
// no others: what caps it stays root's.
var delegated = map[string][]string{
	limits.Kind2: {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"},
	limits.Kind1: {"cgroup.procs", "tasks"},
}
