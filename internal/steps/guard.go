package steps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/commit"
)

// Guard knows the host paths that no box may see: folders of the system,
// credentials, the control sockets of container engines, and where kern and
// this program keep their own state. What a step wrote into the latter would be
// taken for a commit to be completed, whatever the step's policy is.
//
// A path inside the workspace can be replaced by a link between the check of
// the file and the start of the step, by an earlier step. So whoever binds a
// source asks the guard once more just before, and binds what it answered
// without following links.
type Guard struct {
	exact  []place // refused themselves
	below  []place // refused with everything below
	above  []string
	eval   func(string) (string, error)
	stat   func(string) (os.FileInfo, error)
	inodes []inode
	// temp are the folders for temporary files, where boxes are made; links to them
	// are followed. workspace may lie in one, in a folder of ours.
	temp      []string
	tempNodes []inode
	workspace string
}

type place struct{ path, why string }

type inode struct {
	info os.FileInfo
	why  string
}

const (
	whySystem = "is a folder of the system"
	whyHome   = "is the home folder"
	whySocket = "holds sockets that control this machine"
	whyKern   = "is where kern keeps its own state"
	whyStore  = "is where what steps write is kept until it is committed"
	whyCache  = "is where this program keeps what it has fetched"
	whyCreds  = "holds credentials"
	whyTemp   = "is the folder for temporary files, where boxes are made of what lies there; mount a folder of your own below it"
	whyOurs   = "is of this program, which makes boxes of what lies there; mount a folder of your own beside it"
)

// credentials are names of files and folders that hold secrets, wherever they
// are. .cargo, .m2 and .gem are not among them: caches that steps need.
var credentials = []string{
	".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".password-store", ".netrc", ".git-credentials",
	".pypirc", ".npmrc", ".oci", ".terraform.d", ".databrickscfg", ".boto", ".s3cfg", ".rclone.conf",
}

// credentialPairs are two neighbouring names that hold secrets together.
var credentialPairs = [][2]string{
	{".config", "gcloud"}, {".config", "gh"}, {".config", "doctl"}, {".config", "rclone"},
}

// sockets are names of sockets that hand out the machine, wherever they are.
var sockets = []string{"docker.sock", "containerd.sock", "podman.sock", "crio.sock", "buildkitd.sock"}

// NewGuard collects the refused paths for one caller.
func NewGuard(opt Options) *Guard {
	g := &Guard{eval: opt.EvalSymlinks, stat: opt.Stat}
	if g.eval == nil {
		g.eval = filepath.EvalSymlinks
	}
	if g.stat == nil {
		g.stat = os.Stat
	}
	// First of all, since it may be one of the others as well, as root's is.
	if filepath.IsAbs(opt.Home) && filepath.Clean(opt.Home) != "/" {
		for _, home := range g.both(filepath.Clean(opt.Home)) {
			g.exact = append(g.exact, place{home, whyHome})
			g.above = append(g.above, home)
		}
	}
	for _, p := range []string{"/", "/etc", "/root", "/boot", "/proc", "/sys", "/dev", "/run", "/var/run"} {
		g.exact = append(g.exact, place{p, whySystem})
	}
	// A process's own folder in /proc leads to the whole host, and a device is
	// the machine itself. /dev/shm holds plain files.
	g.below = append(g.below, place{"/proc", whySystem}, place{"/sys", whySystem}, place{"/dev", whySystem})
	for _, p := range []string{"user", "docker", "docker.sock", "containerd", "podman", "crio", "buildkit", "systemd", "dbus"} {
		g.below = append(g.below, place{"/run/" + p, whySocket}, place{"/var/run/" + p, whySocket})
		g.above = append(g.above, "/run/"+p)
	}
	for _, dir := range kernDirs(opt) {
		for _, p := range g.both(dir) {
			g.below = append(g.below, place{p, whyKern})
			g.above = append(g.above, p)
		}
	}
	for _, dir := range cacheDirs(opt) {
		for _, p := range g.both(dir) {
			g.below = append(g.below, place{p, whyCache})
			g.above = append(g.above, p)
		}
	}
	for _, dir := range stateDirs(opt) {
		for _, p := range g.both(dir) {
			g.below = append(g.below, place{p, whyStore})
			g.above = append(g.above, p)
		}
	}
	for _, dir := range tempDirs() {
		g.temp = append(g.temp, g.both(dir)...)
		if info, err := g.stat(dir); err == nil {
			g.tempNodes = append(g.tempNodes, inode{info, whyTemp})
		}
	}
	if filepath.IsAbs(opt.Workspace) {
		g.workspace = filepath.Clean(opt.Workspace)
	}
	// A bind mount elsewhere of a refused folder is that folder still.
	for _, p := range append(slices.Clone(g.exact), place{"/run/docker.sock", whySocket}) {
		if info, err := g.stat(p.path); err == nil {
			g.inodes = append(g.inodes, inode{info, p.why})
		}
	}
	return g
}

// kernDirs is where kern's runtime registry, images, configuration and volumes
// can be: the configured place and the default one of each.
func kernDirs(opt Options) []string {
	var out []string
	for _, x := range []struct{ name, inHome string }{
		{"XDG_RUNTIME_DIR", ""}, {"XDG_CACHE_HOME", ".cache"}, {"XDG_CONFIG_HOME", ".config"}, {"XDG_DATA_HOME", ".local/share"},
	} {
		if base := opt.XDG[x.name]; filepath.IsAbs(base) {
			out = append(out, filepath.Join(base, "kern"))
		}
		if x.inHome != "" && filepath.IsAbs(opt.Home) {
			out = append(out, filepath.Join(opt.Home, x.inHome, "kern"))
		}
	}
	return out
}

// cacheDirs is where images are that steps run in, and the binary of kern. A step
// that wrote there would write into the box of the next job.
func cacheDirs(opt Options) []string {
	var out []string
	if base := opt.XDG["XDG_CACHE_HOME"]; filepath.IsAbs(base) {
		out = append(out, filepath.Join(base, "untrusted-steps"))
	}
	if filepath.IsAbs(opt.Home) {
		out = append(out, filepath.Join(opt.Home, ".cache", "untrusted-steps"))
	}
	return out
}

// stateDirs is where transactions are whose workspace can have none beside it.
func stateDirs(opt Options) []string {
	var out []string
	if base := opt.XDG["XDG_STATE_HOME"]; filepath.IsAbs(base) {
		out = append(out, filepath.Join(base, "untrusted-steps"))
	}
	if filepath.IsAbs(opt.Home) {
		out = append(out, filepath.Join(opt.Home, ".local", "state", "untrusted-steps"))
	}
	return out
}

// tempDirs are where boxes can be made by this process and by others of the same
// user: its own folder for temporary files, and those that engines fall back to. A
// runtime folder is refused as a whole.
func tempDirs() []string {
	out := []string{"/tmp", "/dev/shm"}
	if dir, err := filepath.Abs(os.TempDir()); err == nil && dir != "/" && !slices.Contains(out, dir) {
		out = append(out, dir)
	}
	return out
}

// both gives a path, and its real path if that is another one.
func (g *Guard) both(path string) []string {
	real, _, err := g.real(path)
	if err != nil || real == path {
		return []string{path}
	}
	return []string{path, real}
}

// Source judges a host path that a box wants to see. It answers with the real
// path, or with why the box may not. A path that does not exist is judged by
// its name and by what exists above it, and given back as it is: whether it is
// there shows when the step starts.
func (g *Guard) Source(path string) (real, why string) {
	if why := badPath(path); why != "" {
		return "", why
	}
	if !filepath.IsAbs(path) {
		return "", "is not absolute"
	}
	path = filepath.Clean(path)
	real, missing, err := g.real(path)
	if err != nil {
		return "", "cannot be looked at: " + inertWords(reason(err))
	}
	for _, p := range []string{path, real} {
		if why := g.refused(p); why != "" {
			if p != path {
				why = "leads to " + inert(p) + ", which " + why
			}
			return "", why
		}
	}
	if missing {
		return path, ""
	}
	if info, err := g.stat(real); err == nil {
		for _, i := range g.inodes {
			if os.SameFile(info, i.info) {
				return "", i.why
			}
		}
	}
	return real, ""
}

// Mount judges a host path that a step wants in its box, of which more is refused
// than Source does: the folders that boxes are made in. Whoever can write there puts
// another script in the place of the next step's before it runs, and whoever can read
// there finds its sockets, its files and its environment. So read-only is no better.
func (g *Guard) Mount(path string) (real, why string) {
	real, why = g.Source(path)
	if why != "" {
		return "", why
	}
	path = filepath.Clean(path)
	for _, p := range []string{path, real} {
		why := g.refusedTemp(p)
		if why == "" {
			continue
		}
		if p != path {
			why = "leads to " + inert(p) + ", which " + why
		}
		return "", why
	}
	if info, err := g.stat(real); err == nil {
		for _, i := range g.tempNodes {
			if os.SameFile(info, i.info) {
				return "", i.why
			}
		}
	}
	return real, ""
}

// refusedTemp judges a cleaned absolute path by the folders that boxes are made in.
func (g *Guard) refusedTemp(path string) string {
	for _, dir := range g.temp {
		switch {
		case path == dir:
			return whyTemp
		case within(dir, path):
			return "holds " + inert(dir) + ", which " + whyTemp
		case !within(path, dir):
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(path, dir+"/"), "/")
		// A sandbox that was given no workspace has one in its own folder.
		if scratch.Named(name) && (g.workspace == "" || !within(path, g.workspace)) {
			return whyOurs
		}
	}
	return ""
}

// systemFolders hold the programs of the machine and of everybody, and cannot be
// the workspace, where steps write. What is of one project may lie below some of
// them, as /usr/src/app does in many an image.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/var", "/home", "/usr/local"}

// systemTrees are those of which nothing can be.
var systemTrees = []string{"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/etc", "/boot"}

// Workspace judges the folder that steps work in, of which more is refused than of
// what a step is shown.
func (g *Guard) Workspace(path string) (real, why string) {
	real, why = g.Source(path)
	if why == "" && (slices.Contains(systemFolders, real) || slices.ContainsFunc(systemTrees, func(dir string) bool { return within(real, dir) })) {
		return "", whySystem
	}
	return real, why
}

// refused judges a cleaned absolute path by its name.
func (g *Guard) refused(path string) string {
	for _, p := range g.exact {
		if path == p.path {
			return p.why
		}
	}
	for _, p := range g.below {
		if within(path, p.path) && !strings.HasPrefix(path, "/dev/shm/") {
			return p.why
		}
	}
	// kern's place where there is no runtime folder: /tmp/kern-UID.
	if rest, ok := strings.CutPrefix(path, "/tmp/kern-"); ok {
		if uid, _, _ := strings.Cut(rest, "/"); uid != "" && strings.Trim(uid, "0123456789") == "" {
			return whyKern
		}
	}
	for _, p := range g.above {
		if within(p, path) {
			return "holds " + inert(p) + ", which no box may see"
		}
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, ".") && strings.HasSuffix(part, commit.StoreSuffix) {
			return whyStore
		}
		if slices.Contains(credentials, part) {
			return whyCreds + " (" + part + ")"
		}
		if i > 0 && slices.Contains(credentialPairs, [2]string{parts[i-1], part}) {
			return whyCreds + " (" + parts[i-1] + "/" + part + ")"
		}
	}
	if slices.Contains(sockets, parts[len(parts)-1]) {
		return "is a socket that controls this machine"
	}
	return ""
}

// real follows the links of a path. Of one that does not exist it follows those
// of what exists above it.
func (g *Guard) real(path string) (real string, missing bool, err error) {
	rest := ""
	for p := path; ; p = filepath.Dir(p) {
		real, err := g.eval(p)
		if err == nil {
			return filepath.Join(real, rest), rest != "", nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) || p == "/" {
			return "", false, err
		}
		rest = filepath.Join(filepath.Base(p), rest)
	}
}

// reason is an error without the path in it.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// within says whether a cleaned path is the folder or lies below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// badPath is why a text is no path at all; empty if it may be one.
func badPath(path string) string {
	switch {
	case path == "":
		return "is empty"
	case len(path) > maxPath:
		return "is longer than any path can be"
	case strings.ContainsRune(path, 0):
		return "has a NUL character in it"
	}
	return ""
}

// cleanTarget judges a path inside a box and gives its shortest form. ".." is
// refused, not resolved: what it means depends on links in the image.
func cleanTarget(path string) (clean, why string) {
	if why := badPath(path); why != "" {
		return "", why
	}
	if path[0] != '/' {
		return "", "is not absolute"
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "", "has .. in it"
	}
	return filepath.Clean(path), ""
}
