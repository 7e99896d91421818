package kern

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// installLimit bounds one source.
const installLimit = 5 * time.Minute

// InstallOptions say where to install and from what. The zero value of a field
// but Getenv is the usual.
type InstallOptions struct {
	Getenv func(string) string
	Env    []string // for pip, which has its own settings; nil is ours
	// Avoid are folders from which no Python and no pip is taken, whatever PATH says:
	// the workspace, which is code that nobody has read. An empty one is none.
	Avoid  []string
	Arch   string
	Client *http.Client
	// Release is where kern's releases are, with %s for version and machine.
	Release string
	// Temp is where downloads go; empty is the usual place.
	Temp string
	// Log is told what is tried; nil tells nobody.
	Log func(string)

	pins []pin // nil is the real ones
}

// Install puts the pinned kern into the cache and gives its path. Where a good
// one is there already nothing is fetched. Whatever a source delivers, only
// bytes of the pinned SHA-256 are installed.
func Install(ctx context.Context, o InstallOptions) (string, error) {
	o = o.complete()
	p, ok := pinAmong(o.pins, o.Arch)
	if !ok {
		return "", fmt.Errorf("no kern is pinned for %s; build it, set KERN_BIN, and accept it with --kern-sha256", o.Arch)
	}
	path := cachePath(o.Getenv, p.SHA256)
	if path == "" {
		return "", errors.New("no place to install kern: neither XDG_CACHE_HOME nor HOME is an absolute path")
	}
	if sumOfFile(path) == p.SHA256 && pinned.Executable(path) == nil {
		return path, nil
	}
	var tried []error
	for _, src := range []struct {
		name  string
		fetch func(context.Context, InstallOptions, pin) ([]byte, error)
	}{
		{"pip download " + wheelPackage + "==" + wheelVersion, fromWheel},
		{"the release of kern " + p.Version, fromRelease},
	} {
		o.Log("kern: trying " + src.name)
		data, err := fetchFrom(ctx, src.fetch, o, p)
		if err == nil {
			return path, place755(path, data)
		}
		tried = append(tried, fmt.Errorf("%s: %w", src.name, err))
		if ctx.Err() != nil {
			break
		}
	}
	return "", fmt.Errorf("kern %s for %s could not be had: %w", p.Version, o.Arch, inOneLine(tried))
}

func (o InstallOptions) complete() InstallOptions {
	if o.Arch == "" {
		o.Arch = thisArch
	}
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	if o.Release == "" {
		o.Release = releaseURL
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.pins == nil {
		o.pins = pins
	}
	return o
}

// inOneLine is several errors as one, on one line.
func inOneLine(errs []error) error {
	err := errs[0]
	for _, more := range errs[1:] {
		err = fmt.Errorf("%w; %w", err, more)
	}
	return err
}

func fetchFrom(ctx context.Context, fetch func(context.Context, InstallOptions, pin) ([]byte, error), o InstallOptions, p pin) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	data, err := fetch(ctx, o, p)
	if err != nil {
		return nil, err
	}
	if sum := sumOf(data); sum != p.SHA256 {
		return nil, fmt.Errorf("what came has the SHA-256 %s and not %s; it was not kept", sum, p.SHA256)
	}
	return data, nil
}

// place755 writes a program so that nobody ever sees half of it.
func place755(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install kern: %w", err)
	}
	f, err := os.CreateTemp(dir, ".kern-")
	if err != nil {
		return fmt.Errorf("install kern: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("install kern: %w", err)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(0o755); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// sumOfFile is empty where there is no such file or it is no program's size.
func sumOfFile(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var b bytes.Buffer
	if err := copyAtMost(&b, f, maxBinary); err != nil {
		return ""
	}
	return sumOf(b.Bytes())
}
