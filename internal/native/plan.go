package native

import (
	"fmt"
	"path"
	"sort"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// setup is what the child builds, in the order of its fields. It is a value:
// the tests compare it, the child applies it.
type setup struct {
	Hostname    string  `json:"hostname"`
	HostNetwork bool    `json:"hostNetwork,omitempty"`
	Overlay     bool    `json:"overlay,omitempty"` // the first bind is the root's lower layer
	Binds       []bind  `json:"binds"`
	Links       []pair  `json:"links,omitempty"`
	Files       []file  `json:"files,omitempty"`
	Tmpfs       []tmpfs `json:"tmpfs"`
	ShmBytes    int64   `json:"shmBytes"`
}

// bind is one mount from the host. Sources are opened by whoever may: the
// parent if it is root, else the child.
type bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Mapped: what the box writes belongs to the caller, and what belongs to
	// the caller is the box's.
	Mapped bool `json:"mapped,omitempty"`
	// Named: the step names it, so a missing source is the step's fault.
	Named string `json:"named,omitempty"`
}

type pair struct{ Path, Target string }

type file struct {
	Path string
	Text string
	Exec bool
}

type tmpfs struct {
	Target string
	Bytes  int64
	Mode   uint32
}

// plan turns a spec and a view of the host into a setup.
func plan(s box.Spec, v rootfs.View) setup {
	v = v.WithHosts(s.Hosts)
	p := setup{Hostname: hostname(s.ID), HostNetwork: s.Network == box.NetworkHost, ShmBytes: s.ShmBytes}
	switch s.Root.Kind {
	case box.RootDir:
		p.Overlay = true
		p.Binds = append(p.Binds, bind{Source: s.Root.Dir, Target: "/", ReadOnly: true, Mapped: true, Named: "image"})
		for _, f := range sorted(v.Files) {
			if f.Path == "/etc/hosts" || f.Path == "/etc/resolv.conf" {
				p.Files = append(p.Files, f)
			}
		}
	default:
		for _, b := range v.Binds {
			p.Binds = append(p.Binds, bind{Source: b, Target: b, ReadOnly: true})
		}
		for k, t := range v.Links {
			p.Links = append(p.Links, pair{k, t})
		}
		sort.Slice(p.Links, func(i, j int) bool { return p.Links[i].Path < p.Links[j].Path })
		p.Files = sorted(v.Files)
	}
	p.Binds = append(p.Binds, bind{Source: s.Workspace, Target: box.WorkspaceTarget, Mapped: true})
	for _, m := range s.Mounts {
		p.Binds = append(p.Binds, bind{Source: m.Source, Target: path.Clean(m.Target), ReadOnly: m.ReadOnly, Mapped: true, Named: "mounts"})
	}
	if s.Script != nil {
		p.Files = append(p.Files, file{Path: box.StepDir + "/" + s.Script.Name, Text: s.Script.Text})
	}
	for _, t := range s.Tmpfs {
		mode := uint32(0o755)
		if t.Target == "/tmp" {
			mode = 0o1777
		}
		p.Tmpfs = append(p.Tmpfs, tmpfs{t.Target, t.Bytes, mode})
	}
	// An outer mount goes first, or it would hide the inner one.
	sort.SliceStable(p.Tmpfs, func(i, j int) bool { return depth(p.Tmpfs[i].Target) < depth(p.Tmpfs[j].Target) })
	sort.SliceStable(p.Binds, func(i, j int) bool { return depth(p.Binds[i].Target) < depth(p.Binds[j].Target) })
	return p
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

// keep lists the capabilities a step keeps over its own user namespace. With
// the default capDrop, ALL, there are none.
func keep(drop []string) ([]int, error) {
	have := map[string]int{}
	for n, c := range keepable {
		have[n] = c
	}
	for _, d := range drop {
		d = strings.TrimPrefix(strings.ToUpper(d), "CAP_")
		if d == "ALL" {
			return nil, nil
		}
		if _, known := capabilities[d]; !known {
			return nil, fmt.Errorf("capDrop: %s is no capability this kernel interface knows", d)
		}
		delete(have, d)
	}
	var out []int
	for _, c := range have {
		out = append(out, c)
	}
	sort.Ints(out)
	return out, nil
}
