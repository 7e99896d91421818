package steps

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
)

const (
	allowedSource = "an absolute host path outside system folders, credentials, sockets and the home folder itself"
	allowedTarget = "an absolute path in the box; not / or /workspace, nor anything in /dev, /proc, /sys, /step"
	// allowedTmpfs is the same for a file system in memory.
	allowedTmpfs = allowedTarget + "; but /dev/shm and /step/home, which get this size"
	// shmTarget is the one place in /dev that is a step's to size.
	shmTarget   = box.ShmTarget
	allowedSize = "a whole number and a unit: k, m, g or t"
	// maxTmpfsBytes bounds a tmpfs of a step without a memory cap.
	maxTmpfsBytes = 1 << 40
	// maxMounts and maxTmpfs bound what one box is built from.
	maxMounts = 128
	maxTmpfs  = 32
)

// coverable is why nothing may be put at a place in the box; empty if it may.
func coverable(target string) string {
	switch {
	case target == "/":
		return "would replace what every box is made of"
	case within(target, "/dev"):
		return "would replace or be hidden by the devices that every box has"
	case target == box.WorkspaceTarget:
		return "would hide the workspace"
	case within(target, "/proc") || within(target, "/sys"):
		return "would replace files of the kernel"
	case within(target, box.StepDir):
		return "would replace what the box itself needs"
	}
	return ""
}

func readMounts(c *checker, k key, v value, s *step) {
	s.Mounts, s.mountedAs = nil, map[string]string{}
	if v.kind != mapKind {
		c.mistyped(k.name, v, k.allowed())
		return
	}
	if len(v.pairs) > maxMounts {
		c.add(v.pos, fmt.Sprintf("mounts has %d entries", len(v.pairs)), "", fmt.Sprintf("at most %d", maxMounts))
		return
	}
	for _, p := range v.pairs {
		m := box.Mount{Source: c.source(p.key)}
		var ok bool
		if m.Target, m.ReadOnly, ok = c.target(p.val); !ok || m.Source == "" {
			continue
		}
		if ws := c.opt.Workspace; !m.ReadOnly && ws != "" && (within(m.Source, ws) || within(ws, m.Source)) {
			// What is written there would be in the workspace at once, whatever
			// becomes of the step.
			c.wrong(p.key, "this mount source holds the workspace or lies in it, and could be written", "such a source with [path, ro]",
				"the workspace itself is at "+box.WorkspaceTarget+" without a mount")
			continue
		}
		if i := slices.IndexFunc(s.Mounts, func(o box.Mount) bool { return o.Target == m.Target }); i >= 0 {
			c.wrong(p.val, "two mounts have the same target", "one mount at each place")
			continue
		}
		s.Mounts = append(s.Mounts, m)
		s.mountedAs[m.Target] = p.key.text
	}
	// What is mounted first would be hidden by a mount above it.
	slices.SortStableFunc(s.Mounts, func(a, b box.Mount) int { return comparePaths(a.Target, b.Target) })
}

// comparePaths puts every folder before what is in it.
func comparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

func (c *checker) source(key value) string {
	why := ""
	if slices.Contains(strings.Split(key.text, "/"), "..") {
		why = "has .. in it"
	}
	if mode := dockerMode(key.text); mode != "" {
		why = "ends with " + mode
	}
	real := ""
	if why == "" {
		real, why = c.guard.Mount(key.text)
	}
	if why == "" {
		return real
	}
	var hints []string
	if dockerMode(key.text) != "" {
		hints = append(hints, hintMode)
	}
	if key.text != "" && !filepath.IsAbs(key.text) {
		hints = append(hints, "the workspace itself is at "+box.WorkspaceTarget+" without a mount")
	}
	c.wrong(key, "this mount source "+why, allowedSource, hints...)
	return ""
}

// target reads PATH, or [PATH, ro] or [PATH, rw].
func (c *checker) target(v value) (target string, readOnly, ok bool) {
	const allowed = "a path in the box, [path, ro] or [path, rw]"
	at := v
	if v.kind == listKind {
		if len(v.items) != 2 {
			c.wrong(v, fmt.Sprintf("a mount target has %d items", len(v.items)), allowed)
			return "", false, false
		}
		at = v.items[0]
		mode, modeOK := c.word("the mode of a mount", []string{"ro", "rw"}, v.items[1])
		if !modeOK {
			return "", false, false
		}
		readOnly = mode == "ro"
	}
	text, ok := c.text("the target of a mount", allowed, at)
	if !ok {
		return "", false, false
	}
	if mode := dockerMode(text); mode != "" {
		c.wrong(at, "this mount target ends with "+mode, allowed, hintMode)
		return "", false, false
	}
	return c.place("this mount target ", at, text, allowedTarget), readOnly, true
}

// hintMode is for those who write mounts as Docker does.
const hintMode = "the mode is an item of its own: [path, ro] or [path, rw]"

// dockerMode is the mode at the end of a path that is written as Docker writes
// it. Taken for a part of the name, :ro would make a folder that can be written.
func dockerMode(path string) string {
	for _, mode := range []string{":ro", ":rw"} {
		if strings.HasSuffix(strings.TrimRight(path, "/"), mode) {
			return mode
		}
	}
	return ""
}

// place reads a path in the box where something is to be put.
func (c *checker) place(what string, v value, text, allowed string) string {
	clean, why := cleanTarget(text)
	if why == "" {
		why = coverable(clean)
	}
	if why != "" {
		c.wrong(v, what+why, allowed)
	}
	return clean
}

// hostOwned says whether a target is one of the folders that image host is made
// of. A box with one of them covered has no loader, no tools or no names; what
// lies in one can be covered.
func hostOwned(target string) bool {
	return slices.Contains([]string{"/etc", "/usr", "/bin", "/sbin"}, target) || strings.HasPrefix(target, "/lib") && strings.Count(target, "/") == 1
}

// hostPlaces refuses to cover what image host is made of. It is asked when the
// whole step is read: which image it has may stand after its mounts.
func (c *checker) hostPlaces(s *step) {
	if s.Image != "host" || s.bad["image"] {
		return
	}
	const allowed = "with image: host, not /etc, /usr, /bin, /sbin or /lib* themselves; a path in them that the host has too"
	judge := func(key, what string, v value) {
		if clean, why := cleanTarget(v.text); why == "" && !s.bad[key] && hostOwned(clean) {
			c.wrong(v, what+" would hide the host's own "+clean+", which image: host is made of", allowed)
		}
	}
	mounts := s.written["mounts"]
	for _, p := range mounts.pairs {
		at := p.val
		if at.kind == listKind && len(at.items) > 0 {
			at = at.items[0]
		}
		judge("mounts", "this mount target", at)
	}
	memory := s.written["tmpfs"]
	for _, p := range memory.pairs {
		judge("tmpfs", "this tmpfs", p.key)
	}
	for _, item := range memory.items {
		judge("tmpfs", "this tmpfs", item)
	}
}

func readTmpfs(c *checker, k key, v value, s *step) {
	s.Tmpfs = nil
	if n := len(v.items) + len(v.pairs); n > maxTmpfs {
		c.add(v.pos, fmt.Sprintf("tmpfs has %d entries", n), "", fmt.Sprintf("at most %d", maxTmpfs))
		return
	}
	add := func(at value, size value, bytes int64) {
		target := ""
		if text, ok := c.text("the place of a tmpfs", "a path in the box", at); !ok {
			return
		} else if clean, why := cleanTarget(text); why == "" && (clean == box.HomeTarget || clean == shmTarget) {
			target = clean // places of ours that a step may resize
		} else {
			target = c.place("this tmpfs ", at, text, allowedTmpfs)
		}
		if slices.ContainsFunc(s.Tmpfs, func(o tmpfsEntry) bool { return o.target == target }) {
			c.wrong(at, "two tmpfs have the same place", "one at each place")
			return
		}
		s.Tmpfs = append(s.Tmpfs, tmpfsEntry{target: target, bytes: bytes, size: size.text, at: size.pos})
	}
	switch v.kind {
	case listKind:
		for _, item := range v.items {
			add(item, item, 0)
		}
	case mapKind:
		for _, p := range v.pairs {
			p.key.kind = textKind
			if bytes, ok := c.size(p.val); ok {
				add(p.key, p.val, bytes)
			}
		}
	default:
		c.mistyped(k.name, v, k.allowed())
	}
}

// size reads 64m. Zero and a number without a unit are refused: to the kernel
// the one is "no limit", the other bytes.
func (c *checker) size(v value) (int64, bool) {
	// Quotes, as for any other text, would not make a size of a number.
	var meant []string
	if strings.Trim(v.text, "0123456789") == "" && strings.Trim(v.text, "0") != "" {
		meant = []string{"did you mean " + v.text + "m?"}
	}
	switch v.kind {
	case intKind, floatKind, boolKind:
		c.mistyped("the size of a tmpfs", v, allowedSize, meant...)
		return 0, false
	}
	text, ok := c.text("the size of a tmpfs", allowedSize, v)
	if !ok {
		return 0, false
	}
	if !sizeShape().MatchString(text) {
		c.wrong(v, "not the size of a tmpfs", allowedSize, meant...)
		return 0, false
	}
	shift := map[byte]uint{'k': 10, 'm': 20, 'g': 30, 't': 40}[text[len(text)-1]]
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if err != nil || n > maxTmpfsBytes>>shift {
		c.wrong(v, "the size of a tmpfs is out of range", "at most 1t")
		return 0, false
	}
	return n << shift, true
}
