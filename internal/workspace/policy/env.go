package policy

import "errors"

// Found is what lies at a path of a tree: the fields of the package that reads
// the trees, which can be converted to it.
type Found struct {
	Type   string // a word of workspace.Change; empty: nothing is there
	Mode   uint32 // twelve bits
	Size   int64
	Target string // of a symlink, its exact bytes
}

// Look says what lies at a path, relative to the workspace, raw bytes, no link
// followed; "." is the workspace itself. An error is: not known.
type Look func(path string) (Found, error)

// Env is what judging needs to know beyond the list of changes. Without a Look,
// what depends on it is a violation.
type Env struct {
	Before Look // the tree the step found
	After  Look // the tree it left
	// Modules are the folders of submodules, as .gitmodules has them. One need not
	// be there: a step before may have removed it while it was empty.
	Modules []string
	// Tools are the absolute folders of the box that are the same, read-only, on
	// this machine: a link into one of them may be committed.
	Tools []string
	// Real says where a path of Tools leads on this machine once every link is
	// followed, and is empty if there is nothing: /usr/lib/ssl/private lies in
	// /etc. nil: a path is believed as written.
	Real func(path string) string
}

var errNoLook = errors.New("nobody can say what lies there")

func (e Env) before(path string) (Found, error) { return e.Before.at(path) }
func (e Env) after(path string) (Found, error)  { return e.After.at(path) }

func (l Look) at(path string) (Found, error) {
	if l == nil {
		return Found{}, errNoLook
	}
	return l(path)
}
