package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/delta"
)

// What setups made is kept from run to run in a folder of the caller's own:
//
//	KEY/upper        what the setup wrote, as a layer
//	KEY/setup.json   what that is; without it there is nothing. Its time is when it
//	                 was last of use, and it is locked while a run uses the layer
//	KEY/size         bytes of the disk that it has
//	us-setup-N       what is being put there, or taken away
//
// KEY is the sum of all that shapes a setup's box: see setupKey, and of the files of
// the workspace that it sees, for a setup that is kept sees no others. An entry gets
// there by a rename, whole, after the box that made it has ended. No box is ever shown
// the folder, and it is believed only where nobody else can write to it or put another
// in its place.
const (
	setupRecord = "setup.json"
	setupUpper  = "upper"
	setupSize   = "size"
	// setupVersion is that of the way in which setups are run and kept.
	setupVersion = 1
)

const (
	maxSetupFiles  = 64
	maxSetupFile   = 64 << 20
	maxSetupRecord = 256 << 20
)

// keptSetup is what is known of what a setup made.
type keptSetup struct {
	Version int                `json:"version"`
	Step    string             `json:"step"`
	Deps    bool               `json:"deps"`
	Changes []workspace.Change `json:"changes"`
}

func readSetupCache(c *checker, k key, v value, s *step) {
	s.SetupCache, s.setupKept = nil, v.kind != nullKind
	if !s.setupKept {
		return
	}
	if len(v.items) > maxSetupFiles {
		c.add(v.pos, fmt.Sprintf("setupCache has %d items", len(v.items)), "", fmt.Sprintf("at most %d", maxSetupFiles))
		return
	}
	s.SetupCache = c.list(k, v, func(item value) (string, bool) {
		name, ok := c.text("an item of setupCache", "a file of the workspace", item)
		if ok && (name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../") || len(name) > maxPath) {
			c.wrong(item, "not a path of a file within the workspace", "a clean relative path, such as requirements.txt")
			return "", false
		}
		return name, ok
	})
}

// cacheTogether refuses what would make what is kept depend on more than its key
// says, or hold what is secret.
func (c *checker) cacheTogether(s *step) {
	v, ok := s.written["setupCache"]
	if !ok || !s.setupKept || s.Setup == "" {
		return
	}
	for _, other := range []struct {
		name string
		is   bool
	}{{"passEnv", len(s.PassEnv) > 0}, {"mounts", len(s.Mounts) > 0}, {"profiles", len(s.Profiles) > 0}} {
		if other.is {
			c.add(v.pos, "setupCache and "+other.name+" exclude each other", "", "one of them",
				"what a setup makes is kept for later runs, and must depend on nothing but the file, the image and what setupCache lists")
		}
	}
	// Of a folder only the path is known: whoever changed what lies in it for one run
	// would have what its programs made in every later one.
	if s.rootDir != "" {
		c.add(v.pos, "setupCache and an image of rootfs: exclude each other", "", "an image of a registry, archive: or host",
			"what a setup makes is kept by the content of its image, and a folder has no sum that names it")
	}
}

// unfit says that a file which setupCache lists cannot be shown for what is in its
// place. That is the doing of whoever wrote the workspace, as a step before this one,
// and a fault; that we could not read or write is no verdict.
type unfit struct{ why string }

func (u unfit) Error() string { return "setupCache: " + u.why }

// unfitBy is what came of looking at a listed file, or of opening it.
func unfitBy(name string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return unfit{inert(name) + " cannot be read: permission denied"}
	}
	return fmt.Errorf("look at %s, which setupCache lists: %w", inert(name), err)
}

// shown makes the folder of the files that a kept setup sees, in place of the
// workspace, and gives the sum of them, and those that are not there: for the setup
// they are not there either. The error is unfit where a file is at fault.
func (v *view) shown(ctx context.Context, files []string) (sum string, missing []string, err error) {
	d, err := v.read(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("look at the files of setupCache: %w", err)
	}
	txn, err := v.t.store.New("setup-files") // goes with the run
	if err != nil {
		return "", nil, err
	}
	// By its descriptor: a path leads below folders that a stranger may rename.
	root, err := os.OpenRoot(txn.UpperAt())
	if err != nil {
		return "", nil, err
	}
	defer root.Close()
	h := sha256.New()
	for _, name := range files {
		at, err := d.Before(name)
		if err != nil {
			return "", nil, unfitBy(name, err)
		}
		fmt.Fprintf(h, "%q %q %o\n", name, at.Type, at.Mode&0o777)
		switch at.Type {
		case "":
			missing = append(missing, name)
			continue
		case "file":
		default:
			return "", nil, unfit{fmt.Sprintf("%s is a %s, and only files can be listed", inert(name), at.Type)}
		}
		if err := v.copyShown(root, d, name, at, h); err != nil {
			if errors.As(err, new(unfit)) {
				return "", nil, err
			}
			return "", nil, fmt.Errorf("show the setup %s: %w", inert(name), err)
		}
	}
	v.stack = []delta.Layer{{Dir: txn.Upper()}}
	return hex.EncodeToString(h.Sum(nil)), missing, nil
}

func (v *view) copyShown(root *os.Root, d *delta.Delta, name string, at delta.Found, h io.Writer) error {
	if at.Size > maxSetupFile {
		return unfit{fmt.Sprintf("%s has %d bytes, of at most %d", inert(name), at.Size, maxSetupFile)}
	}
	from, err := d.OpenBefore(name)
	if err != nil {
		return unfitBy(name, err)
	}
	defer from.Close()
	own := func(path string) error {
		if os.Geteuid() != 0 {
			return nil
		}
		return root.Lchown(path, v.t.owner.uid, v.t.owner.gid)
	}
	for i, c := range name { // the folders above it, each once
		if c != '/' {
			continue
		}
		switch err := root.Mkdir(name[:i], 0o755); {
		case err == nil:
			if err := own(name[:i]); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	to, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(at.Mode&0o777))
	if err != nil {
		return err
	}
	n, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(from, maxSetupFile+1))
	if err == nil && n > maxSetupFile {
		err = unfit{fmt.Sprintf("%s grew beyond %d bytes", inert(name), maxSetupFile)}
	}
	if err = errors.Join(err, to.Chmod(os.FileMode(at.Mode&0o777)), to.Close()); err != nil {
		return err
	}
	fmt.Fprintf(h, " %d\n", n)
	return own(name)
}

// keptKey names what a setup makes among what is kept.
func (r *Runner) keptKey(s PlanStep, files string) string {
	h := sha256.New()
	// One digest may stand for the images of several processors.
	fmt.Fprintf(h, "%d %s %s\n%s\n%s\n%d:%d\n", setupVersion, runtime.GOARCH, r.EngineOf(s).Info().Name, r.setupKey(s), files, r.Tree.owner.uid, r.Tree.owner.gid)
	if s.Image == "host" {
		r.hostIdentity(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hostTools are what a setup of image host usually runs; another one of these makes
// another thing. What else of the host it runs, nobody can know beforehand, and
// docs/setup.md says so. No step can write to any of it.
var hostTools = []string{"sh", "bash", "python3", "pip", "pip3", "node", "npm", "go", "cargo", "make", "gcc"}

func (r *Runner) hostIdentity(w io.Writer) {
	release, _ := os.ReadFile("/etc/os-release")
	fmt.Fprintf(w, "%q %q\n", release, r.BoxPath)
	for _, dir := range r.BoxPath {
		for _, name := range hostTools {
			if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
				real, _ := filepath.EvalSymlinks(filepath.Join(dir, name))
				fmt.Fprintf(w, "%q %q %d %d\n", filepath.Join(dir, name), real, st.Size(), st.ModTime().UnixNano())
			}
		}
	}
}
