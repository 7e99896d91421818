package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// Lease is what was made for one process. It is written before anything is made,
// so that whatever kills us leaves it to be found; and it holds names alone:
// what undoes it is computed anew.
type Lease struct {
	Name    string  `json:"-"` // of the file
	UID     int     `json:"uid"`
	Groups  []Moved `json:"groups,omitempty"`
	Copy    string  `json:"copy,omitempty"`   // the folder of a copy of this program
	Sysctl  bool    `json:"sysctl,omitempty"` // the machine's setting was changed
	Was     string  `json:"was,omitempty"`    // from this, which was there before any run changed it
	Lasting bool    `json:"lasting,omitempty"`
}

// Moved is a control group and the one that its process came from.
type Moved struct {
	Dir  string `json:"dir"`
	From string `json:"from"`
}

// made says whether there is anything to undo.
func (l Lease) made() bool { return len(l.Groups) > 0 || l.Copy != "" || l.Sysctl }

// words are what was made, for people.
func (l Lease) words() (list []string) {
	if len(l.Groups) > 0 {
		var dirs []string
		for _, g := range l.Groups {
			dirs = append(dirs, g.Dir)
		}
		list = append(list, "it has the control group "+groupNames(dirs)+", which sudo made")
	}
	if l.Copy != "" {
		list = append(list, "it is a copy that sudo made, under the AppArmor profile "+profileName(l.Copy)+", which lets that program use user namespaces")
	}
	if l.Sysctl {
		list = append(list, "every program on this machine may use user namespaces until it ends")
	}
	return list
}

func (l Lease) path(state string) string { return filepath.Join(state, l.Name) }

// write makes the lease's file.
func (l Lease) write(f Facts) []Action {
	text, err := json.Marshal(l)
	if err != nil { // numbers and words: there is none
		text = nil
	}
	path := l.path(f.State)
	return []Action{
		house(f.root("make "+f.State, "", "mkdir", "-p", "-m", "0755", f.State)),
		house(f.root("write down in "+path+" what is made", string(text)+"\n", "tee", path)),
		house(f.root("let it be read", "", "chmod", "0644", path)),
	}
}

// house marks what nobody needs told.
func house(a Action) Action {
	a.House = true
	return a
}

// maxLease bounds a lease's file, and maxGroups what is in it.
const (
	maxLease  = 16 << 10
	maxGroups = 16
)

// settingPattern is what the machine's setting can be.
var settingPattern = lazy.Regexp(`^[0-9]{1,3}$`)

var copyPattern = lazy.Regexp(`^(0|[1-9][0-9]{0,9})-[0-9a-f]{64}$`)

// readLease reads one. The file is root's, but what it says was written for a
// user: only what we could have written is believed. A group has to have the
// lease's own name, which is that of a process.
func readLease(name, text string) (Lease, error) {
	if len(text) > maxLease {
		return Lease{}, errors.New("it is too long")
	}
	l := Lease{Name: name}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return Lease{}, err
	}
	if d.More() || len(l.Groups) > maxGroups || l.UID <= 0 {
		return Lease{}, errors.New("it is none of ours")
	}
	for _, g := range l.Groups {
		if !clean(g.Dir) || !clean(g.From) || filepath.Base(g.Dir) != name {
			return Lease{}, fmt.Errorf("%q and %q are no control groups of it", g.Dir, g.From)
		}
	}
	if l.Copy != "" && (!copyPattern().MatchString(l.Copy) || !strings.HasPrefix(l.Copy, strconv.Itoa(l.UID)+"-")) {
		return Lease{}, fmt.Errorf("%q is no copy of user %d's", l.Copy, l.UID)
	}
	if l.Was != "" && (!l.Sysctl || !settingPattern().MatchString(l.Was)) {
		return Lease{}, fmt.Errorf("%q is nothing that the machine's setting could have been", l.Was)
	}
	return l, nil
}

func clean(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

// Left is what is there of a lease when it is to be undone.
type Left struct {
	Lease   Lease
	Groups  []Moved // those that are there
	Members []int   // the processes in them, which go back
	Copy    bool    // the copy is there, and nobody else uses it
	In      string  // the folder that it is in
	Sysctl  bool    // nobody else needs the setting as it is
	Written bool    // the lease's own file is there
}

// Undo takes away what a lease says was made. Whose process is gone has nobody
// to go back: what was left in its groups is ended before.
func Undo(f Facts, l Left) []Action {
	var list []Action
	var dirs, back []string
	for _, g := range l.Groups {
		dirs, back = append(dirs, g.Dir), append(back, filepath.Join(g.From, "cgroup.procs"))
	}
	for _, pid := range l.Members {
		list = append(list, f.root(fmt.Sprintf("move process %d back", pid), strconv.Itoa(pid)+"\n", "tee", back...))
	}
	if len(dirs) > 0 {
		a := f.root("remove the control group "+groupNames(dirs), "", "rmdir", dirs...)
		a.Groups = dirs
		list = append(list, a)
	}
	if l.Copy {
		list = append(list, f.uncopy(l.In, l.Lease.Copy)...)
	}
	if l.Sysctl {
		was := l.Lease.Was
		if was == "" { // written by an earlier version
			was = "1"
		}
		list = append(list, f.root("restrict user namespaces as before: "+was, was+"\n", "tee", f.Setting))
	}
	if l.Written {
		a := f.root("remove "+l.Lease.path(f.State), "", "rm", "-f", l.Lease.path(f.State))
		a.House, a.Last = true, true
		list = append(list, a)
	}
	return list
}

// uncopy takes a copy of this program away, and its profile. A process that runs
// it goes on, and may make no further namespaces.
func (f Facts) uncopy(in, name string) []Action {
	path := copyPath(in, name)
	return []Action{
		f.root("unload the AppArmor profile "+profileName(name), profile(in, name), "apparmor_parser", "--remove"),
		f.root("remove "+path, "", "rm", "-f", path),
		house(f.root("remove its folder", "", "rmdir", filepath.Dir(path))),
	}
}
