package box

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// maxCallerPath bounds how many folders of the caller's PATH are looked at.
const maxCallerPath = 256

// execMessage names what could not be run, and where it was looked for.
func execMessage(s Spec, f *boxinit.Failed) string {
	image := "host"
	switch {
	case s.Root.Name != "":
		image = s.Root.Name
	case s.Root.Kind == RootDir:
		image = "rootfs " + s.Root.Dir
	}
	switch errno := syscall.Errno(f.Errno); {
	case errno == unix.ENOENT && f.Op == "interpreter":
		return fmt.Sprintf("%q is there, but the interpreter its first line names, or its loader, is not (image: %s)", f.Name, image)
	case errno == unix.ENOENT:
		return fmt.Sprintf("%q is not in the box (image: %s)", f.Name, image)
	case errno == unix.EACCES:
		return fmt.Sprintf("%q cannot be executed in the box (image: %s): a program needs chmod +x, and a script a first line such as #!/bin/sh as well", f.Name, image)
	case errno == unix.ENOEXEC:
		return fmt.Sprintf("%q is no program that this machine can start (image: %s): a script needs a first line such as #!/bin/sh", f.Name, image)
	case errno == unix.E2BIG:
		return fmt.Sprintf("%q: the command and its environment are too long for the kernel", f.Name)
	}
	return fmt.Sprintf("%q cannot be started in the box (image: %s): %s", f.Name, image, f.Why)
}

// execAdvice is the line that would show a command which is not in the box.
func execAdvice(s Spec, f *boxinit.Failed, callerPath string) string {
	if syscall.Errno(f.Errno) != unix.ENOENT || f.Op == "interpreter" {
		return ""
	}
	return onHost(s, f.Name, callerPath)
}

// onHost says where the caller's own PATH has a command that image host lacks,
// and the line that would show it; empty if it is nowhere.
//
// The name comes from nobody yet trusted, so it is looked up as a name and never
// as a path, and only programs are told of: what else is on this machine is none
// of a step's business. Nor is a folder looked at that a step can write, where it
// could leave a link that makes the hint ask for somebody's files.
func onHost(s Spec, name, callerPath string) string {
	if s.Root.Kind != RootHost || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return ""
	}
	dirs := filepath.SplitList(callerPath)
	for _, dir := range dirs[:min(len(dirs), maxCallerPath)] {
		if !filepath.IsAbs(dir) {
			continue
		}
		at := filepath.Join(dir, name)
		real, err := filepath.EvalSymlinks(at)
		if err != nil {
			continue
		}
		if st, err := os.Stat(real); err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
			continue
		}
		holder, err := filepath.EvalSymlinks(filepath.Dir(at))
		if err != nil || writable(s, at) || writable(s, holder) || writable(s, real) {
			continue
		}
		var lines []string
		for _, folder := range toolFolders(at, real) {
			if !shown(s, folder) {
				lines = append(lines, fmt.Sprintf("%s: [%s, ro]", yamlPath(folder), yamlPath(folder)))
			}
		}
		path := fmt.Sprintf("env: {PATH: %s}", yamlPath(strings.TrimSuffix(dir+":"+boxPath(s), ":")))
		if lines == nil {
			return fmt.Sprintf("it is at %s on this machine, which the box shows: write %s", yamlPath(at), path)
		}
		return fmt.Sprintf("it is at %s on this machine: to show it, write mounts: {%s} and %s", yamlPath(at), strings.Join(lines, ", "), path)
	}
	return ""
}

// boxPath is the PATH that a step has.
func boxPath(s Spec) string {
	for _, kv := range s.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			return v
		}
	}
	return ""
}

// NotFound is a hint about a command that a shell in the box did not find, as the
// step itself says; empty where the caller has none of that name to show. What the
// step says is no evidence of anything: it is only ever a hint.
func NotFound(s Spec, name, callerPath string) string {
	if !plainName().MatchString(name) {
		return ""
	}
	where := onHost(s, name, callerPath)
	if where == "" {
		return ""
	}
	return fmt.Sprintf("the step's shell did not find %q; %s", name, where)
}

var plainName = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}$`)

// writable says whether a step can change what lies at a path of the host.
func writable(s Spec, p string) bool {
	if inFolder(p, s.Workspace) {
		return true
	}
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return !m.ReadOnly && inFolder(p, m.Source) })
}

// shown says whether a path of the host is at its own place in every box, or in
// this one by a mount.
func shown(s Spec, p string) bool {
	top, _, _ := strings.Cut(p[1:], "/")
	if slices.Contains([]string{"usr", "bin", "sbin"}, top) || strings.HasPrefix(top, "lib") {
		return true
	}
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Source == m.Target && inFolder(p, m.Source) })
}

func inFolder(p, dir string) bool {
	return dir != "" && (p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/"))
}

// toolFolders are the folders that a box needs to run a program: that of its
// name, and that of the file behind it where it is a link into another one.
func toolFolders(at, real string) []string {
	folders := []string{toolFolder(at)}
	switch other := toolFolder(real); {
	case inFolder(real, folders[0]):
	case inFolder(at, other):
		folders[0] = other
	default:
		folders = append(folders, other)
	}
	return folders
}

// toolFolder is the smallest folder that is likely to hold all of a tool: the
// one above bin. It is never a home, nor .local, which holds far more than
// tools, nor a folder at the top of the tree.
func toolFolder(program string) string {
	dir := filepath.Dir(program)
	if slices.Contains([]string{"bin", "sbin", "shims"}, filepath.Base(dir)) {
		if above := filepath.Dir(dir); !tooMuch(above) && filepath.Base(above) != ".local" {
			return above
		}
	}
	if tooMuch(dir) {
		return program
	}
	return dir
}

// tooMuch says whether a folder is a home or at the top of the tree.
func tooMuch(dir string) bool {
	return strings.Count(dir, "/") < 2 || slices.Contains([]string{"/home", "/Users"}, filepath.Dir(dir))
}

var plainPath = lazy.Regexp(`^/[A-Za-z0-9/._+:-]*$`)

// yamlPath writes a path so that it can be pasted into a steps file.
func yamlPath(p string) string {
	if plainPath().MatchString(p) {
		return p
	}
	return strconv.Quote(p)
}
