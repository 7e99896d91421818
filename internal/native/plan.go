package native

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// setup is what the child builds, in the order of its fields. It is a value:
// the tests compare it, the child applies it.
//
// The order is the point. All that is ours is put down before the first thing of
// the step's, so that nothing of ours can end up in a folder that the step names.
type setup struct {
	Hostname    string `json:"hostname"`
	HostNetwork bool   `json:"hostNetwork,omitempty"`
	Overlay     bool   `json:"overlay,omitempty"` // the first of View is the root's lower layer
	// View is what the root is made of: the image, or parts of the host. Read-only.
	View  []mount `json:"view"`
	Links []pair  `json:"links,omitempty"`
	Files []file  `json:"files,omitempty"`
	// /proc and /dev come here, with this size for /dev/shm.
	ShmBytes int64 `json:"shmBytes"`
	// Own is the workspace and what the step names, an outer place before an
	// inner one, which it would hide otherwise.
	Own []mount `json:"own"`
}

// mount is one thing put into the box.
type mount struct {
	Target string `json:"target"`
	// Source is what of the host is shown; empty for a file system in memory. It
	// is a real path: a link in it now was put there since. Whoever may opens it:
	// the parent if it is root, else the child.
	Source   string `json:"source,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Mapped: what the box writes belongs to the caller, and what belongs to
	// the caller is the box's.
	Mapped bool `json:"mapped,omitempty"`
	// Named is the key of the step that names it; that it is missing, or finds no
	// place, is then the step's doing.
	Named string `json:"named,omitempty"`
	// Inside is the target of the mount whose own content must hold the mount
	// point, because nothing of ours is made there. Empty where it may be made.
	Inside string `json:"inside,omitempty"`
	// Lower makes it an overlay: these layers of the host, the top one first,
	// below what is written to the folder Source.
	Lower []string `json:"lower,omitempty"`
	// Bytes and Mode are those of a file system in memory.
	Bytes int64  `json:"bytes,omitempty"`
	Mode  uint32 `json:"mode,omitempty"`
}

// sources are the mounts that show something of the host, in the order in which
// their descriptors are handed over.
func (s setup) sources() []mount {
	list := slices.Clone(s.View)
	for _, m := range s.Own {
		list = append(list, m.parts()...)
	}
	return list
}

// parts are what of the host a mount is made of. An overlay's layers come before
// the folder that is written, and none of them is itself mounted at the target.
func (m mount) parts() []mount {
	if m.Source == "" {
		return nil
	}
	var list []mount
	for _, dir := range m.Lower {
		list = append(list, mount{Source: dir, Target: m.Target, ReadOnly: true, Mapped: m.Mapped, Named: m.Named})
	}
	m.Lower = nil
	return append(list, m)
}

type pair struct{ Path, Target string }

type file struct {
	Path string
	Text string
	Exec bool
}

// plan turns a spec and a view of the host into a setup.
func plan(s box.Spec, v rootfs.View) setup {
	v = v.WithHosts(s.Hosts)
	p := setup{Hostname: hostname(s.ID), HostNetwork: s.Network == box.NetworkHost, ShmBytes: cmp.Or(s.ShmBytes, box.DefaultShmBytes)}
	switch s.Root.Kind {
	case box.RootDir:
		p.Overlay = true
		p.View = []mount{{Source: s.Root.Dir, Target: "/", ReadOnly: true, Mapped: true, Named: "image"}}
		for _, f := range sorted(v.Files) {
			if f.Path == "/etc/hosts" || f.Path == "/etc/resolv.conf" || f.Path == rootfs.ExtraCA {
				p.Files = append(p.Files, f)
			}
		}
	default:
		for _, b := range v.Binds {
			p.View = append(p.View, mount{Source: cmp.Or(v.Real[b], b), Target: b, ReadOnly: true})
		}
		for k, t := range v.Links {
			p.Links = append(p.Links, pair{k, t})
		}
		slices.SortFunc(p.Links, func(a, b pair) int { return strings.Compare(a.Path, b.Path) })
		p.Files = sorted(v.Files)
	}
	for _, t := range s.Toolchain {
		if p.Overlay || slices.ContainsFunc(p.View, func(o mount) bool { return within(t, o.Target) }) {
			continue
		}
		p.View = append(p.View, mount{Source: t, Target: t, ReadOnly: true})
	}
	if s.Script != nil {
		p.Files = append(p.Files, file{Path: box.StepDir + "/" + s.Script.Name, Text: s.Script.Text})
	}
	p.Own = own(s, p)
	// What a step puts over a link that we make up takes its place.
	p.Links = slices.DeleteFunc(p.Links, func(l pair) bool {
		return slices.ContainsFunc(p.Own, func(m mount) bool { return m.Target == l.Path })
	})
	outerFirst(p.View)
	return p
}

// own lists what goes on top of the root.
func own(s box.Spec, p setup) []mount {
	list := []mount{workspace(s)}
	for _, m := range s.Mounts {
		list = append(list, mount{Source: m.Source, Target: path.Clean(m.Target), ReadOnly: m.ReadOnly, Mapped: true, Named: "mounts"})
	}
	for _, t := range s.Tmpfs {
		m := mount{Target: path.Clean(t.Target), Bytes: t.Bytes, Mode: 0o755, Named: "tmpfs"}
		if m.Target == "/tmp" {
			m.Mode = 0o1777
		}
		if p.Overlay && (m.Target == "/tmp" || m.Target == box.HomeTarget) {
			m.Named = "image" // every box has these, so it is the image that has no room for them
		}
		list = append(list, m)
	}
	outerFirst(list)
	for i := range list {
		list[i].Inside = holder(list[i].Target, list, p)
	}
	return list
}

func workspace(s box.Spec) mount {
	m := mount{Source: s.Workspace, Target: box.WorkspaceTarget, Mapped: true}
	if o := s.Overlay; o != nil {
		m.Source, m.Lower = o.Base, o.Lower
	}
	return m
}

// holder is the innermost mount a target lies in, if that is one in which no
// mount point is made, because it would be made on the host: a folder of its
// tools, the workspace, or one that the step names. What we make in the rest is
// gone with the box.
func holder(target string, list []mount, p setup) string {
	var in mount
	look := func(m mount) {
		if m.Target != target && within(target, m.Target) && len(m.Target) > len(in.Target) {
			in = m
		}
	}
	for _, m := range p.View {
		if !p.Overlay {
			look(m)
		}
	}
	for _, m := range list {
		look(m)
	}
	if in.Source == "" {
		return ""
	}
	return in.Target
}

func outerFirst(list []mount) {
	slices.SortStableFunc(list, func(a, b mount) int { return cmp.Compare(depth(a.Target), depth(b.Target)) })
}

// target refuses the places in a box that belong to us.
func target(key, t string) error {
	t = path.Clean(t)
	switch {
	case !path.IsAbs(t) || strings.ContainsRune(t, 0):
		return fmt.Errorf("%s: %q is not an absolute path", key, t)
	case t == "/" || within(t, "/proc") || within(t, "/sys") || within(t, "/dev"):
		return fmt.Errorf("%s: nothing can be mounted at %s", key, t)
	case within(t, box.StepDir) && (key != "tmpfs" || t != box.HomeTarget):
		return fmt.Errorf("%s: nothing can be mounted in %s", key, box.StepDir)
	}
	return nil
}

// expressible says which place of a spec is none for a mount.
func expressible(s box.Spec) error {
	for _, a := range s.Addrs {
		if !a.Is4() {
			return fmt.Errorf("egressAllow: engine native cannot give a box's loopback the address %s: only IPv4 addresses can be added", a)
		}
	}
	for _, m := range s.Mounts {
		if err := target("mounts", m.Target); err != nil {
			return err
		}
	}
	for _, t := range s.Tmpfs {
		if err := target("tmpfs", t.Target); err != nil {
			return err
		}
		if t.Bytes <= 0 { // the kernel reads 0 as "no bound"
			return fmt.Errorf("tmpfs: %s needs a size", t.Target)
		}
	}
	return nil
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

func sorted(files map[string]string) []file {
	var out []file
	for p, t := range files {
		out = append(out, file{Path: p, Text: t})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}

// hostname is the step's id as a host name can hold it.
func hostname(id string) string {
	b := []byte("box-" + id)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
			b[i] = '-'
		}
	}
	if len(b) > 60 {
		b = b[:60]
	}
	return strings.TrimRight(string(b), "-")
}
