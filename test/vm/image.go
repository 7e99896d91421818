package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// imageParts are what an image and its saved state are made by: with another of
// them, or another emulator, they are made anew.
var imageParts = []string{"test/vm/image", "test/vm/devices.go"}

// cacheDir is where images are kept.
func cacheDir() (string, error) {
	if d := os.Getenv("VM_CACHE"); d != "" {
		return filepath.Abs(d)
	}
	d, err := os.UserCacheDir()
	return filepath.Join(d, "untrusted-steps", "vm"), err
}

// openImage gives the image, and makes it if need be.
func openImage(ctx context.Context, say func(string, ...any)) (image, error) {
	cache, err := cacheDir()
	if err != nil {
		return image{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image{}, err
	}
	unlock, err := lock(filepath.Join(cache, "lock"), syscall.LOCK_EX)
	if err != nil {
		return image{}, err
	}
	defer unlock()
	if _, err := exec.LookPath(emulator); err != nil {
		if err := command(ctx, "apt-get", "-q", "update"); err != nil {
			return image{}, err
		}
		if err := command(ctx, "apt-get", "-qy", "install", "--no-install-recommends", "qemu-system-x86"); err != nil {
			return image{}, err
		}
	}
	k, err := key(ctx)
	if err != nil {
		return image{}, err
	}
	i := image{dir: filepath.Join(cache, k)}
	if err := os.MkdirAll(i.dir, 0o755); err != nil {
		return image{}, err
	}
	// While somebody holds one, nobody takes it away.
	if i.release, err = lock(i.file("used"), syscall.LOCK_SH); err != nil {
		return image{}, err
	}
	if _, err := os.Stat(i.file("ready")); err == nil {
		return i, nil
	}
	// One is 700 MB: those of other keys go.
	removeUnused(cache, i.dir)
	say("building the machine's image in %s: two to three minutes, once", i.dir)
	if err := command(ctx, "test/vm/image/build", i.dir); err != nil {
		return image{}, err
	}
	if err := i.saveSomehow(ctx, say); err != nil {
		return image{}, err
	}
	return i, os.WriteFile(i.file("ready"), nil, 0o644)
}

// saveSomehow tries a few times: an emulated boot is not as sure as a real one.
// It has to work, as CI cannot wait for every machine to boot.
func (i image) saveSomehow(ctx context.Context, say func(string, ...any)) (err error) {
	for range 3 {
		say("booting it, to save its state")
		if err = i.save(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		say("that failed: %v", err)
	}
	return fmt.Errorf("save the machine's state: %w", err)
}

// key names the parts' content and the emulator's version.
func key(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, p := range imageParts {
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	out, err := exec.CommandContext(ctx, emulator, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", emulator, err)
	}
	h.Write(out)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// command runs one, and shows what it says only if it fails.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// removeUnused takes away the images in a folder that nobody holds, but for one.
func removeUnused(cache, keep string) {
	images, _ := filepath.Glob(filepath.Join(cache, "*", "used"))
	for _, u := range images {
		if filepath.Dir(u) == keep {
			continue
		}
		if release, err := lock(u, syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			_ = os.RemoveAll(filepath.Dir(u))
			_ = release()
		}
	}
}

// lock takes a lock on a file, which it makes.
func lock(path string, how int) (release func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f.Close, nil
}
