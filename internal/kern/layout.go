package kern

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// Names in the folder that a box is made of, on disk or on the launcher's stage.
const (
	rootName    = "r" // the box's root, or what is laid over it
	runtimeName = "x" // kern's runtime folder; short, since sockets go there
	homeName    = "h" // kern's other folders
	stepName    = "s" // what is shown at box.StepDir
	treeName    = "t" // sources, on the stage only
	fileName    = "f" // made-up files shown over an image's
)

// source is one thing of the host that goes into a box.
type source struct {
	Path     string
	Target   string // in the box; "/" is its root
	ReadOnly bool
	Dir      bool
	// Mapped: what the box writes there belongs to the caller.
	Mapped bool
	// Named is the key of the step that names it; a missing source is then the
	// step's doing.
	Named string
	// Lower makes it an overlay: these layers, the top one first, below what is
	// written to Path. Tree may give Path as a mount of its own.
	Lower []string
	Tree  func() (int, error)
	// Owner, if set, is whose all its layers are; else each is its own owner's.
	Owner *idmap.Ids
}

// shown are the folders that a source's content is found in, the first one first.
// What an overlay writes to is empty when a box is built.
func (s source) shown() []string {
	if len(s.Lower) > 0 {
		return s.Lower
	}
	return []string{s.Path}
}

// opened are the folders and files of the host that a source is made of: an
// overlay's layers come first, and last what is written.
func (s source) opened() []source {
	var list []source
	for _, dir := range s.Lower {
		list = append(list, source{Path: dir, Target: s.Target, ReadOnly: true, Mapped: s.Mapped, Dir: true, Owner: s.Owner})
	}
	s.Lower = nil
	return append(list, s)
}

// hostFile says what a path on the host is.
type hostFile interface {
	// IsDir fails where there is nothing, and, unless follow is set, where a
	// link leads to it.
	IsDir(path string, follow bool) (bool, error)
}

// sources lists what of the host a box is made of, apart from the step folder
// and our own program.
func sources(s box.Spec, v rootfs.View, host hostFile) ([]source, error) {
	var list []source
	add := func(src source) error {
		dir, err := host.IsDir(src.Path, src.Named == "")
		if err != nil {
			if src.Named != "" {
				return &box.StartupError{Why: fmt.Sprintf("%s: cannot show %s: %v", src.Named, src.Path, err)}
			}
			return fmt.Errorf("look at %s: %w", src.Path, err)
		}
		src.Dir = dir
		list = append(list, src)
		return nil
	}
	if s.Root.Kind == box.RootDir {
		if err := add(source{Path: s.Root.Dir, Target: "/", ReadOnly: true, Mapped: true, Named: "image"}); err != nil {
			return nil, err
		}
		if !list[0].Dir {
			return nil, &box.StartupError{Why: fmt.Sprintf("image: %s is not a folder", s.Root.Dir)}
		}
	} else {
		shown := slices.Clone(v.Binds)
		for _, t := range s.Toolchain {
			if !slices.ContainsFunc(shown, func(b string) bool { return box.Within(t, b) }) {
				shown = append(shown, t)
			}
		}
		sort.Strings(shown) // an outer folder before what lies in it
		for _, b := range shown {
			if err := add(source{Path: b, Target: b, ReadOnly: true}); err != nil {
				return nil, err
			}
		}
	}
	ws := source{Path: s.Workspace, Target: box.WorkspaceTarget, Mapped: true}
	if o := s.Overlay; o != nil {
		ws.Path, ws.Lower, ws.Tree, ws.Owner = o.Base, o.Lower, o.Tree, &idmap.Ids{UID: o.UID, GID: o.GID}
	}
	if err := add(ws); err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	// An outer mount goes first, or it would hide the inner one.
	mounts := slices.Clone(s.Mounts)
	slices.SortStableFunc(mounts, func(a, b box.Mount) int { return strings.Count(a.Target, "/") - strings.Count(b.Target, "/") })
	for _, m := range mounts {
		if err := add(source{Path: m.Source, Target: m.Target, ReadOnly: m.ReadOnly, Mapped: true, Named: "mounts"}); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// layout is a box ready to be put down: the parts to make, and what kern will
// be told.
type layout struct {
	Parts parts
	Paths Paths
	// Trees says where each source goes on the stage, in their order, then the
	// step folder, then our own program. Nil where there is no stage.
	Trees []tree
}

// lay arranges a box below base. On a stage base is "/" and kern sees the
// sources below it; else kern sees them where they are on the host.
func lay(s box.Spec, v rootfs.View, list []source, base, step, self string, staged bool) layout {
	l := layout{Paths: Paths{Step: step, Init: self}}
	l.Parts.Dirs = []string{rootName}
	l.Parts.Private = []string{runtimeName, homeName}
	l.Paths.Rootfs = filepath.Join(base, rootName)
	at := func(src source, i int) string {
		if !staged {
			return src.Path
		}
		t := treeName + "/" + strconv.Itoa(i)
		if src.Target == "/" {
			t = rootName
		} else {
			l.Parts.spot(t, src.Dir)
		}
		l.Trees = append(l.Trees, tree{At: t, Lower: len(src.Lower)})
		return "/" + t
	}
	for i, src := range list {
		m := box.Mount{Source: at(src, i), Target: src.Target, ReadOnly: src.ReadOnly}
		switch {
		case src.Target == "/":
			l.Paths.Rootfs = m.Source
		case src.Target == box.WorkspaceTarget && src.Named == "":
			l.Paths.Workspace = m.Source
		case src.Named == "mounts":
			l.Paths.Mounts = append(l.Paths.Mounts, m)
		default:
			l.Paths.Binds = append(l.Paths.Binds, m)
		}
	}
	if staged {
		l.Parts.spot(treeName+"/step", true)
		l.Parts.spot(treeName+"/init", false)
		l.Trees = append(l.Trees, tree{At: treeName + "/step"}, tree{At: treeName + "/init"})
		l.Paths.Step, l.Paths.Init = "/"+treeName+"/step", "/"+treeName+"/init"
	}
	if s.Root.Kind == box.RootDir {
		// Over an image only what its network needs.
		for _, name := range overImage {
			if text, ok := v.Files[name]; ok {
				at := fileName + "/" + path.Base(name)
				l.Parts.Files = with(l.Parts.Files, at, text)
				l.Paths.Binds = append(l.Paths.Binds, box.Mount{Source: filepath.Join(base, at), Target: name, ReadOnly: true})
			}
		}
		return l
	}
	// Mount points are made beforehand, so that the box's root shows what was
	// meant and kern has nothing to make up.
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", box.WorkspaceTarget, box.StepDir} {
		l.Parts.spot(path.Join(rootName, d), true)
	}
	for _, t := range s.Tmpfs {
		if !box.Within(t.Target, box.StepDir) && !insideBind(t.Target, list) {
			l.Parts.spot(path.Join(rootName, t.Target), true)
		}
	}
	for _, src := range list {
		if !insideBind(src.Target, list) {
			l.Parts.spot(path.Join(rootName, src.Target), src.Dir)
		}
	}
	for p, t := range v.Links {
		l.Parts.Links = with(l.Parts.Links, path.Join(rootName, p), t)
	}
	for p, t := range v.Files {
		l.Parts.Files = with(l.Parts.Files, path.Join(rootName, p), t)
	}
	// What a step puts over a file or a link that we make up takes its place.
	l.Parts.Empty = slices.DeleteFunc(l.Parts.Empty, func(p string) bool { _, made := l.Parts.Files[p]; return made })
	for _, p := range slices.Concat(l.Parts.Dirs, l.Parts.Empty) {
		delete(l.Parts.Links, p)
	}
	return l
}

// overImage are the made-up files that are shown over an image's own.
var overImage = []string{"/etc/hosts", "/etc/resolv.conf", rootfs.ExtraCA}

func with(m map[string]string, k, v string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[k] = v
	return m
}

// insideBind says whether a target lies below another mount, whose own content
// has to hold the mount point.
func insideBind(target string, list []source) bool {
	return slices.ContainsFunc(list, func(o source) bool {
		return o.Target != target && o.Target != "/" && box.Within(target, o.Target)
	})
}

// spot adds a mount point.
func (p *parts) spot(at string, dir bool) {
	at = strings.TrimPrefix(path.Clean(at), "/")
	if dir {
		if !slices.Contains(p.Dirs, at) {
			p.Dirs = append(p.Dirs, at)
		}
		return
	}
	if !slices.Contains(p.Empty, at) {
		p.Empty = append(p.Empty, at)
	}
}
