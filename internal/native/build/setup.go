package build

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/stage"
)

// Setup is what the child builds, in the order of its fields. It is a value:
// the tests compare it, the child applies it.
//
// The order is the point. All that is ours is put down before the first thing of
// the step's, so that nothing of ours can end up in a folder that the step names.
type Setup struct {
	Hostname    string `json:"hostname"`
	HostNetwork bool   `json:"hostNetwork,omitempty"`
	Overlay     bool   `json:"overlay,omitempty"` // the first of View is the root's lower layer
	// View is what the root is made of: the image, or parts of the host. Read-only.
	View  []Mount `json:"view"`
	Links []Link  `json:"links,omitempty"`
	Files []File  `json:"files,omitempty"`
	// /proc and /dev come here, with this size for /dev/shm.
	ShmBytes int64 `json:"shmBytes"`
	// Own is the workspace and what the step names, an outer place before an
	// inner one, which it would hide otherwise.
	Own []Mount `json:"own"`
	// AppArmor: the step's command enters a profile.
	AppArmor bool `json:"appArmor,omitempty"`
}

// Mount is one thing put into the box.
type Mount struct {
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
	// Protect are folders in it that the box only reads: each is mounted over itself
	// right after it.
	Protect []string `json:"protect,omitempty"`
	// Bytes and Mode are those of a file system in memory.
	Bytes int64  `json:"bytes,omitempty"`
	Mode  uint32 `json:"mode,omitempty"`
}

// Sources are the mounts that show something of the host, in the order in which
// their descriptors are handed over.
func (s Setup) Sources() []Mount {
	list := slices.Clone(s.View)
	for _, m := range s.Own {
		list = append(list, m.parts()...)
	}
	return list
}

// parts are what of the host a mount is made of. An overlay's layers come before
// the folder that is written, and none of them is itself mounted at the target.
func (m Mount) parts() []Mount {
	if m.Source == "" {
		return nil
	}
	var list []Mount
	for _, dir := range m.Lower {
		list = append(list, Mount{Source: dir, Target: m.Target, ReadOnly: true, Mapped: m.Mapped, Named: m.Named})
	}
	m.Lower = nil
	return append(list, m)
}

// Shown is a mount as a source of the stage.
func (m Mount) Shown(userns func(*unix.Stat_t) (int, error)) stage.Source {
	if !m.Mapped {
		userns = nil
	}
	return stage.Source{Path: m.Source, ReadOnly: m.ReadOnly, UserNS: userns}
}

// Link is a symbolic link of ours.
type Link struct{ Path, Target string }

// File is a file that we make up, and that the box cannot change.
type File struct {
	Path string
	Text string
	Exec bool
}
