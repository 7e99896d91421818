package limits

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// mount is one mounted control group hierarchy.
type mount struct {
	root        string // which folder of the hierarchy is shown
	point       string // where
	v2          bool
	readOnly    bool
	controllers []string // v1 only
}

// parseMountinfo finds the control group mounts in /proc/self/mountinfo.
func parseMountinfo(text string) []mount {
	var found []mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 3 || g[0] != "cgroup2" && g[0] != "cgroup" {
			continue
		}
		super := strings.Split(g[2], ",")
		m := mount{
			root:     unescape(f[3]),
			point:    unescape(f[4]),
			v2:       g[0] == "cgroup2",
			readOnly: slices.Contains(strings.Split(f[5], ","), "ro") || slices.Contains(super, "ro"),
		}
		if !m.v2 {
			m.controllers = super
		}
		found = append(found, m)
	}
	return found
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// membership is a process's own groups, from /proc/PID/cgroup: by controller,
// and under "" for cgroup2.
type membership map[string]string

func parseMembership(text string) membership {
	m := membership{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			m[""] = f[2]
			continue
		}
		for _, c := range strings.Split(f[1], ",") {
			if c != "" {
				m[c] = f[2]
			}
		}
	}
	return m
}

// spot is one group as we reach it (dir) and as /proc/PID/cgroup names it (path).
type spot struct {
	dir  string
	path string
}

func (s spot) child(name string) spot {
	return spot{dir: path.Join(s.dir, name), path: path.Join(s.path, name)}
}

func (s spot) parent() spot {
	return spot{dir: path.Dir(s.dir), path: path.Dir(s.path)}
}

// locate finds the folder of a group on a mount that may show only a part of
// the hierarchy.
func (m mount) locate(group string) (spot, error) {
	if strings.HasPrefix(group, "/..") {
		return spot{}, fmt.Errorf("our group %s is outside this control group namespace", group)
	}
	rel, ok := below(m.root, group)
	if !ok {
		return spot{}, fmt.Errorf("our group %s is not shown by the mount %s, which starts at %s", group, m.point, m.root)
	}
	return spot{dir: path.Join(m.point, rel), path: path.Clean(group)}, nil
}

// top is the mount's own folder.
func (m mount) top() spot { return spot{dir: m.point, path: m.root} }

// below gives the path from a group to one at or under it.
func below(top, group string) (rel string, ok bool) {
	top, group = path.Clean(top), path.Clean(group)
	switch {
	case top == group:
		return ".", true
	case top == "/":
		return strings.TrimPrefix(group, "/"), true
	}
	return strings.CutPrefix(group, top+"/")
}

// disabledControllers lists what /proc/cgroups says the kernel was started
// without.
func disabledControllers(text string) []string {
	var off []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && !strings.HasPrefix(line, "#") && f[3] == "0" {
			off = append(off, f[0])
		}
	}
	return off
}
