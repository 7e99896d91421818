package kern

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
)

// maxOrder bounds the order a launcher reads. Its largest part are the made-up
// files of /etc.
const maxOrder = 8 << 20

// order is all a launcher does: build the stage if there is one, give up root,
// become kern. It arrives once the launcher stands in its control group.
type order struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	// Stage is nil for a normal user, whose kern sees the host's files.
	Stage *stage `json:"stage,omitempty"`
}

// stage is the file system that kern is started in: nothing but what the box is
// made of.
type stage struct {
	UID   int    `json:"uid"` // never 0
	GID   int    `json:"gid"`
	Trees []tree `json:"trees"`
	Parts parts  `json:"parts"`
	// Own: the launcher is in a user namespace of its own, as a workspace that is
	// an overlay needs it. It is UID already, and has every capability there.
	Own bool `json:"own,omitempty"`
	// Open is what the launcher opens itself, in the order of the descriptors
	// that root would have sent along.
	Open []opening `json:"open,omitempty"`
}

// tree is a place on the stage and how many descriptors it takes: one, or an
// overlay's layers and then one.
type tree struct {
	At    string `json:"at"`
	Lower int    `json:"lower,omitempty"`
}

// opening is a folder or file of the host to be shown.
type opening struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	Links    bool   `json:"links,omitempty"` // links in its path are the host's own
}

// descriptors is how many come along with the order.
func (s *stage) descriptors() int {
	if s == nil || len(s.Open) > 0 {
		return 0
	}
	return s.layers()
}

// layers is how many mounts the trees are made of.
func (s *stage) layers() int {
	n := 0
	for _, t := range s.Trees {
		n += 1 + t.Lower
	}
	return n
}

// parts are folders, links and files to be made below some folder, which an
// image cannot lead astray because nothing of an image is there yet.
type parts struct {
	Dirs    []string          `json:"dirs"`    // in order
	Private []string          `json:"private"` // folders of kern's own, mode 0700
	Empty   []string          `json:"empty"`   // files to mount a file on
	Links   map[string]string `json:"links,omitempty"`
	Files   map[string]string `json:"files,omitempty"`
}

// make makes the parts below base. private is told of each private folder.
func (p parts) make(base string, private func(path string) error) error {
	at := func(s string) string { return filepath.Join(base, s) }
	for _, d := range p.Dirs {
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			return err
		}
	}
	for _, d := range p.Private {
		if err := os.MkdirAll(at(d), 0o700); err != nil {
			return err
		}
		if err := private(at(d)); err != nil {
			return err
		}
	}
	for _, f := range p.Empty {
		if err := write(at(f), ""); err != nil {
			return err
		}
	}
	for _, l := range keys(p.Links) {
		if err := os.MkdirAll(filepath.Dir(at(l)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(p.Links[l], at(l)); err != nil {
			return err
		}
	}
	for _, f := range keys(p.Files) {
		if err := write(at(f), p.Files[f]); err != nil {
			return err
		}
	}
	return nil
}

func write(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func keys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// readOrder waits for the order. An end without one means that whoever started
// us is gone or changed its mind.
func readOrder(r io.Reader) (order, error) {
	var o order
	b, err := io.ReadAll(io.LimitReader(r, maxOrder+1))
	switch {
	case err != nil:
		return o, fmt.Errorf("read the order: %w", err)
	case len(b) == 0:
		return o, io.EOF
	case len(b) > maxOrder:
		return o, fmt.Errorf("the order is over %d bytes", maxOrder)
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return o, fmt.Errorf("read the order: %w", err)
	}
	if len(o.Argv) == 0 {
		return o, fmt.Errorf("the order names no command")
	}
	if o.Stage != nil && (o.Stage.UID <= 0 || o.Stage.GID <= 0) {
		return o, fmt.Errorf("the order would start kern as root")
	}
	return o, nil
}
