package native

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/native/build"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// plan turns a spec and a view of the host into a setup.
func plan(s box.Spec, v rootfs.View) build.Setup {
	v = v.WithHosts(s.Hosts)
	p := build.Setup{Hostname: box.Hostname(s.ID), HostNetwork: s.Network == box.NetworkHost, ShmBytes: cmp.Or(s.ShmBytes, box.DefaultShmBytes)}
	switch s.Root.Kind {
	case box.RootDir:
		p.Overlay = true
		p.View = []build.Mount{{Source: s.Root.Dir, Target: "/", ReadOnly: true, Mapped: true, Named: "image"}}
		for _, f := range sorted(v.Files) {
			if f.Path == "/etc/hosts" || f.Path == "/etc/resolv.conf" || f.Path == rootfs.ExtraCA {
				p.Files = append(p.Files, f)
			}
		}
	default:
		for _, b := range v.Binds {
			p.View = append(p.View, build.Mount{Source: cmp.Or(v.Real[b], b), Target: b, ReadOnly: true})
		}
		for k, t := range v.Links {
			p.Links = append(p.Links, build.Link{Path: k, Target: t})
		}
		slices.SortFunc(p.Links, func(a, b build.Link) int { return strings.Compare(a.Path, b.Path) })
		p.Files = sorted(v.Files)
	}
	for _, t := range s.Toolchain {
		if p.Overlay || slices.ContainsFunc(p.View, func(o build.Mount) bool { return box.Within(t, o.Target) }) {
			continue
		}
		p.View = append(p.View, build.Mount{Source: t, Target: t, ReadOnly: true})
	}
	if s.Script != nil {
		p.Files = append(p.Files, build.File{Path: box.StepDir + "/" + s.Script.Name, Text: s.Script.Text})
	}
	p.Own, p.AppArmor = own(s, p), s.AppArmor != ""
	// What a step puts over a link that we make up takes its place.
	p.Links = slices.DeleteFunc(p.Links, func(l build.Link) bool {
		return slices.ContainsFunc(p.Own, func(m build.Mount) bool { return m.Target == l.Path })
	})
	outerFirst(p.View)
	return p
}

// own lists what goes on top of the root.
func own(s box.Spec, p build.Setup) []build.Mount {
	list := []build.Mount{workspace(s)}
	for _, m := range s.Mounts {
		list = append(list, build.Mount{Source: m.Source, Target: path.Clean(m.Target), ReadOnly: m.ReadOnly, Mapped: true, Named: "mounts"})
	}
	for _, t := range s.Tmpfs {
		m := build.Mount{Target: path.Clean(t.Target), Bytes: t.Bytes, Mode: 0o755, Named: "tmpfs"}
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

func workspace(s box.Spec) build.Mount {
	m := build.Mount{Source: s.Workspace, Target: box.WorkspaceTarget, Mapped: true, Protect: s.Protect}
	if o := s.Overlay; o != nil {
		m.Source, m.Lower = o.Base, o.Lower
	}
	return m
}

// holder is the innermost mount a target lies in, if that is one in which no
// mount point is made, because it would be made on the host: a folder of its
// tools, the workspace, or one that the step names. What we make in the rest is
// gone with the box.
func holder(target string, list []build.Mount, p build.Setup) string {
	var in build.Mount
	look := func(m build.Mount) {
		if m.Target != target && box.Within(target, m.Target) && len(m.Target) > len(in.Target) {
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

func outerFirst(list []build.Mount) {
	slices.SortStableFunc(list, func(a, b build.Mount) int { return cmp.Compare(box.Depth(a.Target), box.Depth(b.Target)) })
}

// expressible says which place of a spec is none for a mount.
func expressible(s box.Spec) error {
	for _, a := range s.Addrs {
		if !a.Is4() {
			return fmt.Errorf("egressAllow: engine native cannot give a box's loopback the address %s: only IPv4 addresses can be added", a)
		}
	}
	if len(s.KernProfiles) > 0 {
		return fmt.Errorf("profiles: %s is a profile of kern, and engine native has none; take --engine kern, or the step's own keys", s.KernProfiles[0])
	}
	for _, p := range s.Protect {
		if !box.Within(p, box.WorkspaceTarget) || path.Clean(p) != p || p == box.WorkspaceTarget {
			return fmt.Errorf("native: bug: %s is no folder of the workspace", p)
		}
	}
	if s.AppArmor != "" {
		if err := box.AppArmorProfile(s.AppArmor); err != nil {
			return err
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
		if t.Bytes <= 0 { // the kernel reads 0 as "no bound"
			return fmt.Errorf("tmpfs: %s needs a size", t.Target)
		}
	}
	return nil
}

func sorted(files map[string]string) []build.File {
	var out []build.File
	for p, t := range files {
		out = append(out, build.File{Path: p, Text: t})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out
}
