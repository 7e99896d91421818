package gvisor

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// Names on the stage, which is the root of the file system that runsc sees.
const (
	rootName   = "r" // the box's root
	deviceName = "d" // its /dev
	mountName  = "m" // what a step mounts, by number
	bundleName = "b" // the bundle, with its config.json
	stateName  = "x" // runsc's own folder
)

// setup is what the launcher builds. It is a value: tests compare it, the launcher
// applies it, in the order of its fields, so that all that is ours is put down
// before the first thing of the step's.
type setup struct {
	// Image: the first of View is a root file system of its own, over which lies a
	// layer in memory for the mount points that it lacks.
	Image bool    `json:"image,omitempty"`
	View  []mount `json:"view"`
	Links []pair  `json:"links,omitempty"`
	Files []file  `json:"files,omitempty"`
	// Own is the workspace and what the step names, an outer place before an inner
	// one.
	Own    []mount  `json:"own"`
	Config []byte   `json:"config"` // of the bundle
	Argv   []string `json:"argv"`   // of runsc
	KVM    bool     `json:"kvm,omitempty"`
}

// mount is one thing that is shown in the box.
type mount struct {
	Target string `json:"target"`
	// Source is what of the host is shown; empty for a file system in memory, which
	// the box's own kernel has. It is a real path: a link in it now was put there
	// since.
	Source   string `json:"source,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Mapped: what the box writes belongs to the caller, and what belongs to the
	// caller is the box's.
	Mapped bool `json:"mapped,omitempty"`
	// Named is the key of the step that names it: that it is missing, or finds no
	// place, is then the step's doing.
	Named string `json:"named,omitempty"`
	// At is where on the stage it lies: in the box's root, or a place of its own,
	// which the box's kernel then mounts. What somebody else changes in one of those
	// while the step runs is seen; of the root and the workspace, that kernel need
	// not ask about each file each time, since nobody else changes them.
	At string `json:"at,omitempty"`
	// Inside is the target of the mount whose own content must hold the mount
	// point, because nothing of ours is made there. Empty where it may be made.
	Inside string `json:"inside,omitempty"`
	// Base is where on the stage the mount point is looked for, and Rel its path
	// there.
	Base string `json:"base,omitempty"`
	Rel  string `json:"rel,omitempty"`
	// Lower makes it an overlay: these layers, the top one first, below what is
	// written to Source.
	Lower []string `json:"lower,omitempty"`
	// Protect are folders in it that the box only reads: each is mounted over itself
	// on the stage, where it is the host's kernel that refuses to write.
	Protect []string `json:"protect,omitempty"`
	Bytes   int64    `json:"bytes,omitempty"`
	Mode    uint32   `json:"mode,omitempty"`
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

// parts are what of the host a mount is made of: an overlay's layers, and then the
// folder that is written.
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

// shown is a mount as a source of the stage. Our own program is found by
// /proc/self/exe, which is a link.
func (m mount) shown(userns func(*unix.Stat_t) (int, error)) stage.Source {
	if !m.Mapped {
		userns = nil
	}
	return stage.Source{Path: m.Source, Links: m.Target == box.InitTarget, ReadOnly: m.ReadOnly, UserNS: userns}
}

type pair struct{ Path, Target string }

type file struct{ Path, Text string }

// overImage are the made-up files that are shown over an image's own.
var overImage = []string{"/etc/hosts", "/etc/resolv.conf", rootfs.ExtraCA}

// plan turns a spec and a view of the host into a setup, but for the orders to
// runsc. program is what becomes the first process.
func plan(s box.Spec, v rootfs.View, program string) setup {
	v = v.WithHosts(s.Hosts)
	var p setup
	if s.Root.Kind == box.RootDir {
		p.Image = true
		p.View = []mount{{Source: s.Root.Dir, Target: "/", ReadOnly: true, Mapped: true, Named: "image"}}
		for name, text := range v.Files {
			if slices.Contains(overImage, name) {
				p.Files = append(p.Files, file{name, text})
			}
		}
	} else {
		for _, b := range v.Binds {
			p.View = append(p.View, mount{Source: cmp.Or(v.Real[b], b), Target: b, ReadOnly: true})
		}
		for k, t := range v.Links {
			p.Links = append(p.Links, pair{k, t})
		}
		for name, text := range v.Files {
			p.Files = append(p.Files, file{name, text})
		}
		for _, t := range s.Toolchain {
			if !slices.ContainsFunc(p.View, func(o mount) bool { return box.Within(t, o.Target) }) {
				p.View = append(p.View, mount{Source: t, Target: t, ReadOnly: true})
			}
		}
	}
	outerFirst(p.View)
	p.View = append(p.View, mount{Source: program, Target: box.InitTarget, ReadOnly: true, Mapped: true})
	if s.Script != nil {
		p.Files = append(p.Files, file{box.StepDir + "/" + s.Script.Name, s.Script.Text})
	}
	slices.SortFunc(p.Files, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	p.Own = own(s, p)
	// What a step puts over a link that we make up takes its place.
	p.Links = slices.DeleteFunc(p.Links, func(l pair) bool {
		return slices.ContainsFunc(p.Own, func(m mount) bool { return m.Target == l.Path })
	})
	slices.SortFunc(p.Links, func(a, b pair) int { return strings.Compare(a.Path, b.Path) })
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
		if p.Image && (m.Target == "/tmp" || m.Target == box.HomeTarget) {
			m.Named = "image" // every box has these, so it is the image that has no room for them
		}
		list = append(list, m)
	}
	outerFirst(list)
	n := 0
	for i := range list {
		m := &list[i]
		m.At = rootName
		if m.Named == "mounts" {
			m.At = mountName + "/" + strconv.Itoa(n)
			n++
		}
		in, ok := holder(m.Target, list[:i], p)
		m.Base, m.Rel = rootName, m.Target
		if ok {
			m.Inside = in.Target
			if in.Source != "" && in.At != "" && in.At != rootName {
				m.Base, m.Rel = in.At, strings.TrimPrefix(m.Target[len(in.Target):], "/")
			}
		}
		if in.Source == "" {
			m.Inside = ""
		}
		if ok && in.Source == "" && in.Bytes > 0 {
			m.Base, m.Rel = "", "" // in a file system that the box's own kernel makes, and makes it in
		}
	}
	return list
}

func workspace(s box.Spec) mount {
	m := mount{Source: s.Workspace, Target: box.WorkspaceTarget, Mapped: true, Protect: s.Protect}
	if o := s.Overlay; o != nil {
		m.Source, m.Lower = o.Base, o.Lower
	}
	return m
}

// holder is the innermost thing a target lies in that is not of our making.
func holder(target string, list []mount, p setup) (in mount, ok bool) {
	look := func(m mount) {
		if m.Target != target && box.Within(target, m.Target) && len(m.Target) > len(in.Target) {
			in, ok = m, true
		}
	}
	for _, m := range p.View {
		if !p.Image && m.Target != box.InitTarget {
			look(m)
		}
	}
	for _, m := range list {
		look(m)
	}
	return in, ok
}

func outerFirst(list []mount) {
	slices.SortStableFunc(list, func(a, b mount) int { return cmp.Compare(box.Depth(a.Target), box.Depth(b.Target)) })
}

// expressible says what of a spec is nothing for this engine.
func expressible(s box.Spec) error {
	for _, a := range s.Addrs {
		if !a.Is4() {
			return fmt.Errorf("egressAllow: engine gvisor cannot give a box's loopback the address %s: only IPv4 addresses can be added", a)
		}
	}
	switch {
	case len(s.KernProfiles) > 0:
		return fmt.Errorf("profiles: %s is a profile of kern, and engine gvisor has none; give the step keys of its own instead (memoryMb, cpus, mounts), or another engine, whose boxes share the host's kernel", s.KernProfiles[0])
	case s.AppArmor != "":
		return errors.New("apparmor: the kernel in a box of engine gvisor has no AppArmor; take the key out, or name engine native or kern, whose boxes share the host's kernel")
	}
	for _, p := range s.Protect {
		if !box.Within(p, box.WorkspaceTarget) || path.Clean(p) != p || p == box.WorkspaceTarget {
			return fmt.Errorf("gvisor: bug: %s is no folder of the workspace", p)
		}
	}
	for _, m := range s.Mounts {
		if err := box.MountTarget("mounts", m.Target); err != nil {
			return err
		}
	}
	for _, t := range s.Tmpfs {
		if err := box.MountTarget("tmpfs", t.Target); err != nil {
			return err
		}
		if t.Bytes <= 0 { // which would be no bound
			return fmt.Errorf("tmpfs: %s needs a size", t.Target)
		}
	}
	if n := s.Script; n != nil && (n.Name == "" || n.Name != path.Base(n.Name) || n.Name == "." || n.Name == ".." || n.Name == path.Base(box.InitTarget)) {
		return fmt.Errorf("script name %q is not a file name", n.Name)
	}
	return nil
}
