package kern

import (
	"fmt"
	"path"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// mountPoint is somewhere in a folder of the host that kern will make or mount
// something at.
type mountPoint struct {
	Key    string // of the step, that names the place: image, mounts or tmpfs
	In     source // whose content it lies in
	Rel    string // below In.Path
	Target string // in the box
	Dir    bool   // a folder is wanted; else a file
	// Missing: it need not be there. kern can make it, in the layer that it lays
	// over an image; anywhere else it would be made on the host.
	Missing bool
}

// touched is what kern itself touches in a box's root, beside the targets of
// mounts. It walks the folders by their names, before it has entered the box:
// an image whose /sys is a link has kern make a folder at the other end, on the
// host, and an image whose /etc/hostname is a FIFO has it wait for ever.
var touched = struct{ dirs, files []string }{
	dirs:  []string{"/proc", "/sys", "/sys/devices", "/sys/fs", "/sys/fs/cgroup", "/dev", "/etc", box.StepDir},
	files: []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", rootfs.ExtraCA},
}

// mountPoints lists what has to be looked at before kern is started: every mount
// point that lies in a folder which is not of our making.
func mountPoints(s box.Spec, list []source) []mountPoint {
	var out []mountPoint
	add := func(key, target string, dir bool) {
		in, ok := holder(target, list)
		if !ok {
			return // in the root that we make
		}
		rel := strings.TrimPrefix(target[len(strings.TrimSuffix(in.Target, "/")):], "/")
		out = append(out, mountPoint{Key: key, In: in, Rel: rel, Target: target, Dir: dir, Missing: in.Target == "/"})
	}
	if s.Root.Kind == box.RootDir {
		for _, d := range touched.dirs {
			add("image", d, true)
		}
		for _, f := range touched.files {
			add("image", f, false)
		}
	}
	for _, src := range list {
		switch {
		case src.Named == "mounts":
			add("mounts", src.Target, src.Dir)
		case src.Target == box.WorkspaceTarget:
			add("image", src.Target, src.Dir)
		}
	}
	for _, t := range s.Tmpfs {
		if !box.Within(t.Target, box.StepDir) {
			add("tmpfs", t.Target, true)
		}
	}
	return out
}

// holder is the innermost source that a target lies in.
func holder(target string, list []source) (in source, ok bool) {
	for _, src := range list {
		if src.Target != target && box.Within(target, src.Target) && len(src.Target) > len(in.Target) {
			in, ok = src, true
		}
	}
	return in, ok
}

// clash finds a place that a step names and that cannot be in the root we make
// for image host: what is there already is of another kind, or a file where a
// folder would have to be.
func clash(s box.Spec, v rootfs.View, list []source) error {
	files := map[string]bool{}
	for p := range v.Files {
		files[p] = true
	}
	dirs := map[string]bool{}
	for _, src := range list {
		if src.Named == "" {
			(map[bool]map[string]bool{true: dirs, false: files})[src.Dir][src.Target] = true
		}
	}
	check := func(key, target string, dir bool) error {
		switch {
		case dir && files[target]:
			return &box.StartupError{Why: fmt.Sprintf("%s: %s is a file, and a folder cannot be put there", key, target)}
		case !dir && dirs[target]:
			return &box.StartupError{Why: fmt.Sprintf("%s: %s is a folder, and a file cannot be put there", key, target)}
		}
		for up := path.Dir(target); up != "/"; up = path.Dir(up) {
			if files[up] {
				return &box.StartupError{Why: fmt.Sprintf("%s: %s cannot be, since %s is a file", key, target, up)}
			}
			if to, link := v.Links[up]; link {
				return &box.StartupError{Why: fmt.Sprintf("%s: %s has a link in its path, %s to %s", key, target, up, to)}
			}
		}
		return nil
	}
	for _, src := range list {
		if src.Named == "mounts" {
			if err := check("mounts", src.Target, src.Dir); err != nil {
				return err
			}
		}
	}
	for _, t := range s.Tmpfs {
		if err := check("tmpfs", t.Target, true); err != nil {
			return err
		}
	}
	return nil
}
