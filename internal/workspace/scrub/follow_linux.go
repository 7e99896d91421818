package scrub

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// inside gives the path in the workspace that a file's text leads to. The
// path is taken as git takes it: relative to the file, ~ for the caller's home.
// It is only text so far; nothing on the way was looked at.
func (f *finder) inside(from, target string) (string, bool) {
	if target == "" || strings.IndexByte(target, 0) >= 0 {
		return "", false
	}
	if rest, ok := strings.CutPrefix(target, "~/"); ok && f.o.Home != "" {
		target = f.o.Home + "/" + rest
	}
	if !strings.HasPrefix(target, "/") {
		folder, _ := split(from)
		return strings.TrimPrefix(folder+"/"+target, "/"), true
	}
	return f.below(target)
}

// below gives what is left of an absolute path below the workspace.
func (f *finder) below(path string) (string, bool) {
	path = filepath.Clean(path)
	for _, name := range f.names {
		if path == name {
			return ".", true
		}
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(name, "/")+"/"); ok {
			return rest, true
		}
	}
	return "", false
}

// resolve walks a path the way the kernel would, but on our side: every link is
// read and taken apart, and one that leaves the workspace ends it. The workspace
// itself is "".
func (f *finder) resolve(path string) (real string, ok bool) {
	var done []string
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(done) == 0 {
				return "", false
			}
			done = done[:len(done)-1]
			continue
		}
		if len(done)+len(rest) > f.o.MaxDepth {
			return "", false
		}
		fd, err := folderAt(f.root, strings.Join(done, "/"))
		if err != nil {
			return "", false
		}
		st, err := lstatAt(fd, name)
		target := ""
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, err = readLink(fd, name)
		}
		unix.Close(fd)
		switch {
		case err != nil:
			return "", false
		case target == "":
			done = append(done, name)
			continue
		}
		if links++; links > maxLinks {
			return "", false
		}
		if strings.HasPrefix(target, "/") {
			below, ok := f.below(target)
			if !ok {
				return "", false
			}
			done, target = nil, below
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return strings.Join(done, "/"), true
}

// follow judges what configurations and links led to, and what that leads to.
func (f *finder) follow(ctx context.Context) error {
	for count := 0; len(f.refs) > 0; count++ {
		if count > f.o.MaxFound {
			return fmt.Errorf("look for secrets: %w: more than %d files included", workspace.ErrLimit, f.o.MaxFound)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		r := f.refs[0]
		f.refs = f.refs[1:]
		real, ok := f.resolve(r.path)
		if !ok || real == "" {
			continue
		}
		folder, name := split(real)
		fd, err := folderAt(f.root, folder)
		if err != nil {
			continue
		}
		st, err := lstatAt(fd, name)
		// A setting that leads to a folder is a mistake in it. To hide that
		// folder could be to hide the project.
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			err = f.judge(fd, real, name, r.kind)
			f.led(r, real)
		} else {
			err = nil
		}
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// led says why a file is hidden that nobody would take for one of credentials.
func (f *finder) led(r ref, real string) {
	if r.kind == kindHide && real != r.by {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mask.Notes = append(f.mask.Notes, fmt.Sprintf("%s is what %s leads to for credentials", shown(real), shown(r.by)))
	}
}

// home hides the credentials of the caller's home, if that lies in the
// workspace or is it. A workspace that lies in a home shows nothing of it.
func (f *finder) home() {
	if f.o.Home == "" || !filepath.IsAbs(f.o.Home) {
		return
	}
	homes := []string{f.o.Home}
	if real, err := filepath.EvalSymlinks(f.o.Home); err == nil && real != f.o.Home {
		homes = append(homes, real)
	}
	for _, home := range homes {
		at, ok := f.below(home)
		if !ok {
			continue
		}
		for _, p := range homeHidden {
			f.hideOf(at, p)
		}
		for _, p := range homeGit {
			f.refs = append(f.refs, ref{at + "/" + p, kindGit, p})
		}
	}
}

// hideOf hides one path of a home, as a name and as what it leads to: a home
// whose .config is a link into a folder of settings is a common thing.
func (f *finder) hideOf(home, path string) {
	full := home + "/" + path
	folder, name := split(full)
	if at, ok := f.resolve(folder); ok {
		f.hideIfThere(strings.TrimPrefix(at+"/"+name, "/"), path)
	}
	if real, ok := f.resolve(full); ok && real != "" {
		f.hideIfThere(real, path)
	}
}

func (f *finder) hideIfThere(path, what string) {
	folder, name := split(path)
	fd, err := folderAt(f.root, folder)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	st, err := lstatAt(fd, name)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hideLocked(path, st, fmt.Sprintf("%s is not in the box: it is the caller's ~/%s", shown(path), what))
}

// otherNames looks for second names of files that hold a secret: under each of
// them the box could read it. It is a second walk, which only a workspace with
// such a file pays for.
func (f *finder) otherNames(ctx context.Context) error {
	if len(f.linked) == 0 {
		return nil
	}
	inodes := map[uint64]bool{}
	for i := range f.linked {
		inodes[i.ino] = true
	}
	shownAs := map[string]bool{}
	for _, file := range f.mask.Files {
		shownAs[file.Path] = true
	}
	w := &walk{maxEntries: f.o.MaxEntries, maxDepth: f.o.MaxDepth, stopped: ctx.Err}
	w.closed = func(int, *folder, string) error { return nil } // the first walk hid it
	w.keep = func(_ *folder, _ []byte, ino uint64, kind byte) bool { return kind == unix.DT_REG && inodes[ino] }
	w.each = func(fd int, at *folder, names []entry) error {
		for _, n := range names {
			st, err := lstatAt(fd, n.name)
			if err != nil {
				continue
			}
			f.mu.Lock()
			first, ok := f.linked[inode{st.Dev, st.Ino}]
			if path := at.path(n.name); ok && path != first && !shownAs[path] && !f.hidden[path] {
				f.hidden[path] = true
				f.mask.Notes = append(f.mask.Notes, fmt.Sprintf("%s is not in the box: it is the same file as %s", shown(path), shown(first)))
			}
			f.mu.Unlock()
		}
		return nil
	}
	return w.run(f.root, f.o.Workers)
}

// tooDeep hides the folder at maxMaskDepth for whatever lies below it.
func (f *finder) tooDeep() {
	hide := map[string]bool{}
	for _, file := range f.mask.Files {
		if up, deep := cutAt(file.Path, maxMaskDepth); deep {
			hide[up] = true
		}
	}
	for p := range f.hidden {
		if up, deep := cutAt(p, maxMaskDepth); deep {
			delete(f.hidden, p)
			hide[up] = true
		}
	}
	for p := range hide {
		f.hidden[p] = true
		f.mask.Notes = append(f.mask.Notes, fmt.Sprintf("%s is not in the box: a file of credentials lies more than %d folders deep in it", shown(p), maxMaskDepth))
	}
}

// lookAtFolders learns the modes that the layer's folders must have: in an
// overlay the uppermost folder's mode is what the box sees.
func (f *finder) lookAtFolders() error {
	if f.mask.Empty() {
		return nil
	}
	for _, p := range f.mask.parents() {
		fd, err := folderAt(f.root, p)
		if err != nil {
			return fmt.Errorf("look for secrets: %s: %w", shown(p), err)
		}
		var st unix.Stat_t
		err = again(func() error { return unix.Fstat(fd, &st) })
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("look for secrets: %s: %w", shown(p), err)
		}
		f.mask.folders = append(f.mask.folders, folderLook{p, st.Mode & 0o7777, modified(st)})
	}
	slices.SortFunc(f.mask.folders, func(a, b folderLook) int { return strings.Compare(a.path, b.path) })
	return nil
}
