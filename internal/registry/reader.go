package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// Reader reads the settings of package clients. The zero value has nothing to
// read, so every preset is refused.
type Reader struct {
	// Environ is the caller's environment.
	Environ []string
	// ReadFile gives a file of the machine or of the user, and an error that is
	// fs.ErrNotExist if there is none.
	ReadFile func(path string) ([]byte, error)
	// List gives the names in a folder, in order.
	List func(dir string) ([]string, error)
	// Find gives the real path of a client that may be run.
	Find func(name string) (string, error)
	// Run runs a client and gives what it prints.
	Run func(env []string, argv ...string) ([]byte, error)
	// Asked runs a client that will ask for something over the network, and
	// gives the host and port it asks for first, without letting it. The two
	// variables are told a proxy and a new folder for the client's own files.
	Asked func(env []string, proxyVar, folderVar string, argv ...string) (string, error)
}

// maxHosts bounds a preset. More is not a set-up but a mistake.
const maxHosts = 64

// found collects the hosts of a preset.
type found struct {
	home   string
	rules  []string
	from   []string
	looked []string // where nothing needed to be found
}

// Preset reads one of egress.HostPresets.
func (r Reader) Preset(name string) (egress.Preset, error) {
	read := map[string]func(*found) error{
		"cargo": r.cargo, "debian": r.apt, "go": r.golang, "maven": r.maven, "npm": r.npm, "pypi": r.pip,
	}[name]
	if read == nil {
		return egress.Preset{}, fmt.Errorf("preset %s: nobody here knows how to read it", name)
	}
	f := &found{home: r.env("HOME")}
	err := read(f)
	if err == nil && len(f.rules) == 0 {
		err = errors.New("nothing says where its packages come from")
	}
	if err == nil && len(f.rules) > maxHosts {
		err = fmt.Errorf("its settings name more than %d hosts", maxHosts)
	}
	if err != nil {
		return egress.Preset{}, fmt.Errorf("preset %s: %w (looked at %s); the hosts can be named instead of the preset", name, err, strings.Join(f.looked, ", "))
	}
	return egress.Preset{Name: name, Rules: f.rules, From: f.from}, nil
}

// env looks up a variable; an empty one is none.
func (r Reader) env(name string) string {
	for _, kv := range slices.Backward(r.Environ) {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

// only gives those variables of the caller whose names start with one of these.
func (r Reader) only(prefixes ...string) []string {
	var out []string
	for _, kv := range r.Environ {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(strings.ToUpper(kv), p) }) {
			out = append(out, kv)
		}
	}
	return out
}

// read gives a file's text, and "" if there is none. A file that is there and
// cannot be used is an error: without it we would speak of other hosts than the
// client.
func (r Reader) read(f *found, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	f.look(f.show(path))
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is not an absolute path, and the current folder may be anybody's", path)
	}
	if r.ReadFile == nil {
		return "", nil
	}
	b, err := r.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.show(path), err)
	}
	return string(b), nil
}

// inHome is a path below HOME; "" without one.
func (r Reader) inHome(rel string) string {
	home := r.env("HOME")
	if !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Join(home, rel)
}

// configDir is the user's folder of settings.
func (r Reader) configDir(rel string) string {
	if base := r.env("XDG_CONFIG_HOME"); base != "" {
		return filepath.Join(base, rel)
	}
	return r.inHome(filepath.Join(".config", rel))
}

func (r Reader) find(name string) (string, error) {
	if r.Find == nil {
		return "", fmt.Errorf("%s is not installed", name)
	}
	return r.Find(name)
}

func (r Reader) run(f *found, env []string, argv ...string) (string, error) {
	f.look("the program " + argv[0])
	path, err := r.find(argv[0])
	if err != nil || r.Run == nil {
		return "", fmt.Errorf("%s could not be asked: %w", argv[0], err)
	}
	out, err := r.Run(env, append([]string{path}, argv[1:]...)...)
	if err != nil {
		return "", fmt.Errorf("%s could not be asked: %w", argv[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (f *found) look(at string) {
	if !slices.Contains(f.looked, at) {
		f.looked = append(f.looked, at)
	}
}

// show is a path as people write it.
func (f *found) show(path string) string {
	if rest, ok := strings.CutPrefix(path, f.home+"/"); ok && f.home != "" {
		return "~/" + rest
	}
	return path
}
