package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// Keychain finds who we are to a registry, in the configuration that docker login and
// podman login write. The steps never see it.
//
// That configuration can name a program to ask. One is started only from a folder of
// PATH that lies outside the workspace and that nobody but root and the caller can
// write: an earlier step of a job may have put a folder of its own into PATH.
type Keychain struct {
	// Files are looked for in this order; the first that is there is the one.
	Files     []string
	Path      string   // PATH of the caller
	Env       []string // of the program that is asked
	Workspace string   // what steps can write
}

const maxAuthFile = 1 << 20

// KeychainFiles are the places where a configuration can be.
func KeychainFiles(getenv func(string) string) (files []string) {
	add := func(dir string, name ...string) {
		if filepath.IsAbs(dir) {
			files = append(files, filepath.Join(append([]string{dir}, name...)...))
		}
	}
	if d := getenv("DOCKER_CONFIG"); d != "" {
		add(d, "config.json")
	} else {
		add(getenv("HOME"), ".docker", "config.json")
	}
	add(getenv("REGISTRY_AUTH_FILE"))
	add(getenv("XDG_RUNTIME_DIR"), "containers", "auth.json")
	if d := getenv("XDG_CONFIG_HOME"); d != "" {
		add(d, "containers", "auth.json")
	} else {
		add(getenv("HOME"), ".config", "containers", "auth.json")
	}
	return files
}

type authFile struct {
	Auths       map[string]authEntry `json:"auths"`
	CredHelpers map[string]string    `json:"credHelpers"`
	CredsStore  string               `json:"credsStore"`
}

type authEntry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Resolve implements authn.Keychain.
func (k *Keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), r)
}

// ResolveContext implements authn.ContextKeychain.
func (k *Keychain) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	f, at, err := k.read()
	if err != nil || f == nil {
		return authn.Anonymous, err
	}
	// A helper that is named for a registry goes before what stands in the file.
	names := authNames(r)
	for _, n := range names {
		if h := f.CredHelpers[n]; h != "" {
			return k.ask(ctx, h, n, at)
		}
	}
	if f.CredsStore != "" {
		server := names[len(names)-1]
		if f.Auths != nil {
			// Docker notes with an empty entry what its store knows.
			known := ""
			for _, n := range names {
				if _, ok := f.Auths[n]; ok {
					known = n
					break
				}
			}
			if known == "" {
				return authn.Anonymous, nil
			}
			server = known
		}
		return k.ask(ctx, f.CredsStore, server, at)
	}
	for _, n := range names {
		if e, ok := f.Auths[n]; ok {
			return e.authenticator(at)
		}
	}
	return authn.Anonymous, nil
}

// authNames are the names a registry can have in a configuration, the most specific
// first: podman has entries for single repositories.
func authNames(r authn.Resource) []string {
	registry := r.RegistryStr()
	names := []string{}
	if full := r.String(); full != registry {
		for p := full; p != "" && p != registry && p != "."; p = filepath.Dir(p) {
			names = append(names, p)
		}
	}
	names = append(names, registry, "https://"+registry, "https://"+registry+"/v1/", "https://"+registry+"/v2/")
	if registry == dockerHost {
		names = append(names, dockerHub, "https://"+dockerHost+"/v1/")
	}
	return names
}

func (e authEntry) authenticator(at string) (authn.Authenticator, error) {
	c := authn.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
	if e.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(string(raw), ":")
		if err != nil || !ok {
			return nil, fmt.Errorf("an auth in %s is no user and password", at)
		}
		c.Username, c.Password = user, strings.Trim(password, "\x00")
	}
	if c == (authn.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(c), nil
}

// read reads the first configuration there is.
func (k *Keychain) read() (*authFile, string, error) {
	for _, name := range k.Files {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("read who we are to registries: %w", err)
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxAuthFile {
			return nil, "", fmt.Errorf("read who we are to registries: %s is no file of at most %d bytes", name, maxAuthFile)
		}
		raw, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
		if err != nil {
			return nil, "", fmt.Errorf("read who we are to registries: %w", err)
		}
		var a authFile
		if json.Unmarshal(raw, &a) != nil { // its own words would quote a secret
			return nil, "", fmt.Errorf("read who we are to registries: %s is not the JSON that docker login writes", name)
		}
		return &a, name, nil
	}
	return nil, "", nil
}

var helperShape = lazy.Regexp(`^[a-z0-9][a-z0-9._-]{0,63}$`)

const helperTimeout = 30 * time.Second

// ask runs docker-credential-NAME the way Docker does.
func (k *Keychain) ask(ctx context.Context, name, server, at string) (authn.Authenticator, error) {
	program, err := k.helper(name)
	if err != nil {
		return nil, fmt.Errorf("%s says to ask a program for the password to %s: %w", at, server, err)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "get")
	cmd.Env, cmd.Dir = pinned.Environ(k.Env, k.path(), k.Workspace), "/"
	cmd.Stdin = strings.NewReader(server)
	var out bytes.Buffer
	cmd.Stdout = &limitedBuffer{b: &out}
	if err := pinned.Run(cmd); err != nil {
		if strings.Contains(out.String(), "credentials not found") {
			return authn.Anonymous, nil
		}
		return nil, fmt.Errorf("ask %s for the password to %s: %w", program, server, err)
	}
	var got struct{ Username, Secret string }
	if json.Unmarshal(out.Bytes(), &got) != nil {
		return nil, fmt.Errorf("ask %s for the password to %s: its answer is not JSON", program, server)
	}
	if got.Username == "<token>" {
		return authn.FromConfig(authn.AuthConfig{IdentityToken: got.Secret}), nil
	}
	return authn.FromConfig(authn.AuthConfig{Username: got.Username, Password: got.Secret}), nil
}

// helper finds a program that can be trusted.
func (k *Keychain) helper(name string) (string, error) {
	if !helperShape().MatchString(name) {
		return "", errors.New("its name is none of a helper; log in again without one")
	}
	name = "docker-credential-" + name
	for _, dir := range filepath.SplitList(k.Path) {
		at := filepath.Join(dir, name)
		real, err := filepath.EvalSymlinks(at)
		if !filepath.IsAbs(dir) || err != nil {
			continue
		}
		why := scratch.Way(at, scratch.RootOrUs)
		for _, p := range []string{filepath.Clean(dir), real} {
			if pinned.In(p, k.Workspace) {
				why = fmt.Errorf("%s lies in the workspace", p)
			}
		}
		if why != nil {
			return "", fmt.Errorf("%s is not started, because %w; log in again without a helper", at, why)
		}
		return real, nil
	}
	return "", fmt.Errorf("%s is in no folder of PATH", name)
}

// path is PATH of a helper, which starts others as well: what it may be taken from.
func (k *Keychain) path() string {
	return strings.Join(slices.DeleteFunc(filepath.SplitList(k.Path), func(dir string) bool {
		return scratch.Way(dir, scratch.RootOrUs) != nil
	}), ":")
}

// limitedBuffer keeps what a helper can have to say.
type limitedBuffer struct{ b *bytes.Buffer }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if l.b.Len()+len(p) > maxAuthFile {
		return 0, errors.New("it says too much")
	}
	return l.b.Write(p)
}
