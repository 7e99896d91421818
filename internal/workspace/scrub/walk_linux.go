package scrub

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	// bufferSize is what a walker reads of a folder at once.
	bufferSize = 64 << 10
	// openFolders is how many folders of one path a walker keeps open. Those
	// above are found again through "..", so that a deep tree, which a step can
	// make, costs no descriptors.
	openFolders = 16
)

// Layout of struct linux_dirent64.
const (
	direntLen  = 16
	direntType = 18
	direntName = 19
)

// folder is a folder on the way, for its path.
type folder struct {
	up    *folder
	name  string
	depth int
	flags int
}

// What is known of a folder from those above it.
const (
	inGit     = 1 << iota // directly in a git folder, or below its modules or worktrees
	inLogs                // below the logs of a git folder
	isDotGit              // it is named .git
	isDocker              // it is named .docker
	isHg                  // it is named .hg
	isAddress             // the old folders of git that hold addresses: remotes, branches
)

func (f *folder) path(name string) string {
	if f.up == nil {
		return name
	}
	parts := []string{name}
	for ; f.up != nil; f = f.up {
		parts = append(parts, f.name)
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(parts, "/")
}

// walk reads the names of a tree, several folders at a time, and opens nothing
// but folders.
type walk struct {
	maxEntries int64
	maxDepth   int
	stopped    func() error
	// each is asked about every name that is no folder. fd is its folder.
	each func(fd int, at *folder, names []entry) error
	// keep says which names each is to be asked about, and how a folder goes on.
	keep func(at *folder, name []byte, ino uint64, kind byte) bool
	// closed is told of a folder that may not be looked into.
	closed func(fd int, at *folder, name string) error

	entries atomic.Int64
	slots   chan struct{}
	group   sync.WaitGroup
	mu      sync.Mutex
	err     error
	failed  atomic.Bool
	buffers sync.Pool
}

// entry is a name in a folder.
type entry struct {
	name string
	kind byte // DT_
	ino  uint64
}

func (w *walk) run(root int, workers int) error {
	w.slots = make(chan struct{}, max(workers-1, 0))
	w.buffers.New = func() any { b := make([]byte, bufferSize); return &b }
	fd, err := openQuiet(root, ".", openDir)
	if err != nil {
		return fmt.Errorf("open the workspace: %w", err)
	}
	w.start(fd, &folder{})
	w.group.Wait()
	return w.err
}

func (w *walk) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.failed.Store(true)
}

// start walks a folder on this goroutine, and closes it.
func (w *walk) start(fd int, at *folder) {
	l := &line{w: w, frames: []frame{{fd: fd}}, buf: w.buffers.Get().(*[]byte)}
	defer func() {
		for _, f := range l.frames {
			if f.fd >= 0 {
				unix.Close(f.fd)
			}
		}
		w.buffers.Put(l.buf)
	}()
	if err := l.visit(at); err != nil {
		w.fail(err)
	}
}

// frame is an open folder of a line; fd is -1 while it is closed.
type frame struct {
	fd       int
	dev, ino uint64
}

// line is one walker on its way down.
type line struct {
	w      *walk
	frames []frame
	buf    *[]byte
}

func (l *line) top() int { return l.frames[len(l.frames)-1].fd }

func (l *line) push(fd int) error {
	l.frames = append(l.frames, frame{fd: fd})
	i := len(l.frames) - 1 - openFolders
	if i < 0 || l.frames[i].fd < 0 {
		return nil
	}
	f := &l.frames[i]
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return err
	}
	f.dev, f.ino = st.Dev, st.Ino
	unix.Close(f.fd)
	f.fd = -1
	return nil
}

// pop leaves a folder. What ".." leads to must be what it was: the folder may
// have been moved meanwhile.
func (l *line) pop() error {
	last := l.frames[len(l.frames)-1]
	l.frames = l.frames[:len(l.frames)-1]
	defer unix.Close(last.fd)
	up := &l.frames[len(l.frames)-1]
	if up.fd >= 0 {
		return nil
	}
	fd, err := openQuiet(last.fd, "..", openDir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		unix.Close(fd)
		return err
	}
	up.fd = fd
	if st.Dev != up.dev || st.Ino != up.ino {
		return workspace.ErrMoved
	}
	return nil
}

func (l *line) visit(at *folder) error {
	w := l.w
	if w.failed.Load() {
		return nil
	}
	if err := w.stopped(); err != nil {
		return err
	}
	if at.depth > w.maxDepth {
		return fmt.Errorf("look for secrets: %w: folders more than %d deep", workspace.ErrLimit, w.maxDepth)
	}
	folders, names, err := l.list(at)
	if err != nil {
		return fmt.Errorf("look for secrets in %s: %w", shown(at.path("")), err)
	}
	if err := w.each(l.top(), at, names); err != nil {
		return err
	}
	for _, name := range folders {
		flags, ok := descend(at, name)
		if !ok {
			continue
		}
		fd, err := openQuiet(l.top(), name, openDir)
		switch err {
		case nil:
		case unix.EACCES, unix.EPERM:
			if err := w.closed(l.top(), at, name); err != nil {
				return err
			}
			continue
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
			continue
		default:
			return fmt.Errorf("look for secrets in %s: %w", shown(at.path(name)), err)
		}
		child := &folder{up: at, name: name, depth: at.depth + 1, flags: flags}
		select {
		case w.slots <- struct{}{}:
			w.group.Go(func() {
				defer func() { <-w.slots }()
				w.start(fd, child)
			})
			continue
		default:
		}
		if err := l.push(fd); err != nil {
			return err
		}
		if err := l.visit(child); err != nil {
			return err
		}
		if err := l.pop(); err != nil {
			return err
		}
	}
	return nil
}

// list reads the names of the folder on top: those of folders, and those of
// the rest that somebody asks for.
func (l *line) list(at *folder) (folders []string, names []entry, err error) {
	for {
		var got int
		err := again(func() (err error) {
			got, err = unix.Getdents(l.top(), *l.buf)
			return err
		})
		if err == unix.EACCES || err == unix.EPERM {
			return folders, names, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if got == 0 {
			return folders, names, nil
		}
		count := int64(0)
		for rest := (*l.buf)[:got]; len(rest) > 0; {
			size := int(binary.NativeEndian.Uint16(rest[direntLen:]))
			if size < direntName || size > len(rest) {
				return nil, nil, fmt.Errorf("the kernel's list of a folder does not parse")
			}
			name := rest[direntName:size]
			if end := bytes.IndexByte(name, 0); end >= 0 {
				name = name[:end]
			}
			kind, ino := rest[direntType], binary.NativeEndian.Uint64(rest)
			rest = rest[size:]
			if string(name) == "." || string(name) == ".." || len(name) == 0 {
				continue
			}
			count++
			if kind == unix.DT_UNKNOWN {
				st, err := lstatAt(l.top(), string(name))
				if err != nil {
					continue
				}
				kind = byte(st.Mode >> 12)
			}
			if kind == unix.DT_DIR {
				folders = append(folders, string(name))
			}
			if l.w.keep(at, name, ino, kind) {
				names = append(names, entry{string(name), kind, ino})
			}
		}
		if l.w.entries.Add(count) > l.w.maxEntries {
			return nil, nil, fmt.Errorf("%w: more than %d entries", workspace.ErrLimit, l.w.maxEntries)
		}
	}
}
