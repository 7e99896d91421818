package scrub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Limits on what is read. Over the first two a file is hidden unread; over the
// others the workspace is beyond its limits, which is the doing of whoever
// filled it.
const (
	maxConfig = 1 << 20  // a configuration, or another file of credentials
	maxLog    = 16 << 20 // a reflog of git
	// DefaultMaxEntries is how many names are looked at.
	DefaultMaxEntries = workspace.DefaultMaxEntries
	// DefaultMaxFound is how many files may have to be read.
	DefaultMaxFound = 20_000
	maxLogs         = 100_000   // reflogs: a repository has one for each branch
	maxRead         = 256 << 20 // in all
	maxLinks        = 40        // on the way to one file, as in the kernel
	maxEnvNotes     = 5
	// maxMaskDepth is how deep a file is hidden by itself. Below that the folder
	// at that depth is hidden whole: no project is so deep, and to make each
	// folder of a layer is work that somebody could want us to have.
	maxMaskDepth = 256
)

// Options of Find. The zero value means the defaults, and nobody's home.
type Options struct {
	Home       string // the caller's home folder; "" if there is none
	Workers    int    // default: one per CPU
	MaxEntries int64
	MaxDepth   int // default: workspace.DefaultMaxDepth
	MaxFound   int
}

func (o Options) withDefaults() Options {
	if o.Workers <= 0 {
		o.Workers = runtime.NumCPU()
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = DefaultMaxEntries
	}
	if o.MaxDepth <= 0 {
		o.MaxDepth = workspace.DefaultMaxDepth
	}
	if o.MaxFound <= 0 {
		o.MaxFound = DefaultMaxFound
	}
	return o
}

// Find reads the names in a workspace, and of the files those that may hold a
// secret. Nobody may write to the workspace meanwhile.
func Find(ctx context.Context, dir string, o Options) (Mask, error) {
	o = o.withDefaults()
	root, err := openAt(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Mask{}, fmt.Errorf("look for secrets: open %s: %w", dir, err)
	}
	defer unix.Close(root)
	f := newFinder(dir, root, o)
	w := &walk{maxEntries: o.MaxEntries, maxDepth: o.MaxDepth, stopped: ctx.Err, keep: interesting, each: f.folder, closed: f.closed}
	if err := w.run(root, o.Workers); err != nil {
		return Mask{}, err
	}
	f.home()
	if err := f.follow(ctx); err != nil {
		return Mask{}, err
	}
	if err := f.otherNames(ctx); err != nil {
		return Mask{}, err
	}
	f.noteEnv()
	return f.done()
}

func newFinder(dir string, root int, o Options) *finder {
	return &finder{o: o, root: root, names: places(dir), hidden: map[string]bool{}, seen: map[string]int{}, linked: map[inode]string{}}
}

// done makes the mask of what was found.
func (f *finder) done() (Mask, error) {
	f.tooDeep()
	f.mask.Hidden = make([]string, 0, len(f.hidden))
	for p := range f.hidden {
		f.mask.Hidden = append(f.mask.Hidden, p)
	}
	f.mask.settle()
	if err := f.lookAtFolders(); err != nil {
		return Mask{}, err
	}
	return f.mask, nil
}

// places are the names under which the workspace is known.
func places(dir string) []string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	out := []string{filepath.Clean(abs)}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != out[0] {
		out = append(out, real)
	}
	return out
}

type inode struct{ dev, ino uint64 }

// ref is a file that a configuration leads to.
type ref struct {
	path string // relative to the workspace
	kind int    // what it is then: kindHide, or what the link to it was
	by   string // who says so, for the note
}

type finder struct {
	o     Options
	root  int
	names []string // absolute paths of the workspace

	mu     sync.Mutex // guards what follows
	mask   Mask
	hidden map[string]bool
	seen   map[string]int // paths that were judged, as what
	refs   []ref
	linked map[inode]string // files with a secret and a second name
	envs   []string
	logs   int
	read   int64
}

// interesting says which names the finder wants to be told of. It is asked about
// every name there is, and must be quick.
func interesting(at *folder, name []byte, _ uint64, kind byte) bool {
	if at.flags&(inLogs|isAddress) != 0 {
		return kind != unix.DT_DIR
	}
	switch name[0] {
	case 'H':
		return string(name) == "HEAD"
	case 'F':
		return string(name) == "FETCH_HEAD"
	case 'o':
		return string(name) == "objects"
	case 'c':
		switch string(name) {
		case "commondir", "credentials":
			return true
		}
		return bytes.HasPrefix(name, []byte("config"))
	case '.', '_', 'g', 'h', 'p', 'a', 'n', 'N':
		return kind != unix.DT_DIR && named(string(name), at.base()) != kindNone
	}
	return false
}

func (f *folder) base() string {
	switch {
	case f.flags&isDocker != 0:
		return ".docker"
	case f.flags&isHg != 0:
		return ".hg"
	}
	return ""
}

// descend says how a folder below another is to be read. The walker asks it
// when it knows what kind of folder the upper one is.
func descend(at *folder, name string) (flags int, ok bool) {
	git := at.flags&isDotGit != 0
	switch {
	case at.flags&(inLogs|isAddress) != 0:
		return at.flags & (inLogs | isAddress), true
	case git:
		switch name {
		case "objects", "refs":
			// Names in here are hashes and branches: nothing is what it is called.
			return 0, false
		case "logs":
			return inLogs, true
		case "remotes", "branches":
			return isAddress, true
		case "modules", "worktrees":
			return inGit, true
		}
		return 0, true
	}
	// Names of modules may have slashes in them.
	flags = at.flags & inGit
	switch name {
	case ".git":
		flags |= isDotGit
	case ".docker":
		flags |= isDocker
	case ".hg":
		flags |= isHg
	}
	return flags, true
}

// folder is told of what a folder holds, before the folders below it are read.
func (f *finder) folder(fd int, at *folder, names []entry) error {
	has := map[string]byte{}
	for _, n := range names {
		has[n.name] = n.kind
	}
	// A folder that git would take for a repository, bare or of a module.
	if has["HEAD"] != 0 && (has["objects"] != 0 || has["commondir"] != 0) {
		at.flags |= isDotGit
	}
	for _, n := range names {
		kind := kindNone
		switch {
		case at.flags&(inLogs|isAddress) != 0:
			kind = kindLog
		case n.name == "config" || n.name == "config.worktree":
			switch {
			case at.flags&isDotGit != 0:
				kind = kindGit
			case at.flags&inGit != 0 && n.kind != unix.DT_DIR:
				kind = kindGit
			}
		case at.flags&isDotGit != 0 && strings.HasPrefix(n.name, "config") && n.kind != unix.DT_DIR:
			// What an editor, or git when it was killed, left beside it.
			kind = kindGit
		case at.flags&isDotGit != 0 && n.name == "credentials":
			kind = kindHide
		case at.flags&isDotGit != 0 && n.name == "FETCH_HEAD":
			kind = kindLog
		case n.kind != unix.DT_DIR:
			kind = named(n.name, at.base())
		}
		if kind == kindNone {
			continue
		}
		if err := f.judge(fd, at.path(n.name), n.name, kind); err != nil {
			return err
		}
	}
	return nil
}

// closed hides a folder of ours that its mode keeps us out of. It would not keep
// the box out: the box is the same user, may change the mode in its own layer,
// and then reads what we could not. What is somebody else's stays closed to it.
func (f *finder) closed(fd int, at *folder, name string) error {
	path := at.path(name)
	st, err := lstatAt(fd, name)
	switch {
	case errors.Is(err, unix.EACCES):
		// The folder above can be listed and not entered.
		if path, _ = split(path); path == "" {
			return fmt.Errorf("look for secrets: the workspace may not be entered: %w", err)
		}
	case err != nil:
		return nil
	case int(st.Uid) != os.Geteuid():
		return nil
	}
	f.hide(path, shown(path)+" is not in the box: its mode keeps us from looking for secrets in it")
	return nil
}

// judge looks at one file and says what a box is to see of it.
func (f *finder) judge(fd int, path, name string, kind int) error {
	f.mu.Lock()
	if f.seen[path] >= kind {
		f.mu.Unlock()
		return nil
	}
	f.seen[path] = kind
	if kind == kindLog {
		f.logs++
	}
	many := len(f.seen)-f.logs > f.o.MaxFound || f.logs > maxLogs
	f.mu.Unlock()
	if many {
		return fmt.Errorf("look for secrets: %w: more files than are read may hold one", workspace.ErrLimit)
	}
	st, err := lstatAt(fd, name)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if folder, _ := split(path); folder != "" && errors.Is(err, unix.EACCES) {
			f.hide(folder, shown(folder)+" is not in the box: its files cannot be looked at")
			return nil
		}
		return fmt.Errorf("look for secrets: %s: %w", shown(path), err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return f.file(fd, path, name, kind, st)
	case unix.S_IFLNK:
		f.link(fd, path, name, kind)
	case unix.S_IFDIR:
		if kind != kindLog {
			f.hide(path, shown(path)+" is not in the box: a folder stands where a file of credentials would")
		}
	default:
		if kind != kindLog && kind != kindNote {
			f.hide(path, shown(path)+" is not in the box: it is no regular file")
		}
	}
	return nil
}

// link is for a file of credentials that is a symbolic link. It is not
// followed; what it leads to is judged by the path, if that is in the workspace.
func (f *finder) link(fd int, path, name string, kind int) {
	switch kind {
	case kindLog, kindNote:
		return
	case kindGit, kindHide:
		f.hide(path, shown(path)+" is not in the box: it is a link")
	}
	target, err := readLink(fd, name)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refer(path, target, kind)
}

// refer remembers what a file leads to. The caller holds mu.
func (f *finder) refer(from, target string, kind int) {
	if p, ok := f.inside(from, target); ok {
		f.refs = append(f.refs, ref{p, kind, from})
	}
}

// referAll remembers all that a configuration leads to. The caller holds mu.
func (f *finder) referAll(from string, s scrubbed) {
	for _, target := range append(s.files, s.tools...) {
		f.refer(from, target, kindHide)
	}
	folder, _ := split(from)
	for _, target := range s.tools {
		f.refer(folder, target, kindHide)
	}
}

func (f *finder) file(fd int, path, name string, kind int, st unix.Stat_t) error {
	if kind == kindNote {
		f.mu.Lock()
		f.envs = append(f.envs, path)
		f.mu.Unlock()
		return nil
	}
	limit := int64(maxConfig)
	if kind == kindLog {
		limit = maxLog
	}
	text, err := readFile(fd, name, limit)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read += int64(len(text)); f.read > maxRead {
		return fmt.Errorf("look for secrets: %w: more than %d bytes in files that may hold one", workspace.ErrLimit, maxRead)
	}
	var out scrubbed
	switch {
	case errors.Is(err, errTooLarge):
		f.hideLocked(path, st, shown(path)+" is not in the box: it is too large to look for secrets in it")
		return nil
	case err != nil:
		f.hideLocked(path, st, shown(path)+" is not in the box: it cannot be read to look for secrets in it")
		return nil
	}
	switch kind {
	case kindGit:
		out, err = scrubGitConfig(text)
		f.referAll(path, out)
	case kindNpm:
		out, err = scrubNpm(text)
	case kindYarn:
		out, err = scrubYarn(text)
	case kindLog:
		out, err = scrubLog(text)
	case kindNetrc:
		if credentialed.Match(text) || withoutUser(string(text)) != string(text) {
			f.hideLocked(path, st, shown(path)+" is not in the box: it holds a password")
		}
		return nil
	case kindDocker:
		if low := bytes.ToLower(text); bytes.Contains(low, []byte("auth")) || bytes.Contains(low, []byte("token")) || bytes.Contains(low, []byte("password")) || bytes.Contains(low, []byte(`\u`)) {
			f.hideLocked(path, st, shown(path)+" is not in the box: it holds credentials")
		}
		return nil
	default:
		f.hideLocked(path, st, shown(path)+" is not in the box: it is there to hold credentials")
		// Included configurations include others.
		if more, err := scrubGitConfig(text); err == nil {
			f.referAll(path, more)
		}
		return nil
	}
	if err != nil {
		// The error says a line and what is wrong there, never what it holds.
		f.hideLocked(path, st, fmt.Sprintf("%s is not in the box, because what is secret in it cannot be told: %v", shown(path), err))
		return nil
	}
	if !out.changed() {
		return nil
	}
	f.second(path, st)
	f.mask.Files = append(f.mask.Files, File{Path: path, Mode: st.Mode & 0o7777, Modified: modified(st), Text: out.text, kind: kind})
	f.mask.Notes = append(f.mask.Notes, noteOf(path, out.gone))
	if kind == kindGit && out.byCheckout() {
		f.mask.Checkout = append(f.mask.Checkout, path)
	}
	return nil
}

// noteOf is one line, however much went.
func noteOf(path string, gone []string) string {
	const most = 4
	var words []string
	had := map[string]bool{}
	for _, g := range gone {
		if had[g] {
			continue
		}
		had[g] = true
		if len(words) < most {
			words = append(words, shown(g))
		}
	}
	more := ""
	if n := len(had) - len(words); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s is in the box without %s%s", shown(path), strings.Join(words, ", "), more)
}

func modified(st unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }

func (f *finder) hide(path, note string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hideLocked(path, unix.Stat_t{}, note)
}

func (f *finder) hideLocked(path string, st unix.Stat_t, note string) {
	f.second(path, st)
	if !f.hidden[path] {
		f.hidden[path] = true
		f.mask.Notes = append(f.mask.Notes, note)
	}
}

// second remembers a file that has another name somewhere.
func (f *finder) second(path string, st unix.Stat_t) {
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
		f.linked[inode{st.Dev, st.Ino}] = path
	}
}

// noteEnv says what is left because it is the project's.
func (f *finder) noteEnv() {
	for i, p := range f.envs {
		if i == maxEnvNotes {
			f.mask.Notes = append(f.mask.Notes, fmt.Sprintf("and %d more files named .env are in the box as they are", len(f.envs)-i))
			return
		}
		f.mask.Notes = append(f.mask.Notes, shown(p)+" is in the box as it is: it is the project's own")
	}
}
