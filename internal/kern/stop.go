package kern

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	// stopLimit bounds `kern stop`, which waits for a first process that
	// handles SIGTERM. Ours does not.
	stopLimit = 5 * time.Second
	gcLimit   = 5 * time.Second
)

// tidy ends what kern's own records still name, and has kern collect what it
// left, where it was killed and could not do so itself. As root there is
// nothing to do: kern's records lie on a stage that is gone with it.
func (k *running) tidy() error {
	if k.abandoned() {
		if err := k.verb(stopLimit, "stop", k.name); err != nil {
			return err
		}
	}
	k.mu.Lock()
	killed := k.killed
	k.mu.Unlock()
	if killed {
		return k.verb(gcLimit, "gc")
	}
	return nil
}

// abandoned says whether kern's records still name a box.
func (k *running) abandoned() bool {
	entries, err := os.ReadDir(filepath.Join(k.folder.runtime(), "kern", "instances"))
	return err == nil && len(entries) > 0
}

// verb runs kern itself. What it says and how it exits is not of interest: the
// control group is what ends a box for certain.
func (k *running) verb(limit time.Duration, args ...string) error {
	if _, err := os.Stat(filepath.Join(k.folder.runtime(), "kern")); errors.Is(err, fs.ErrNotExist) {
		return nil // it never got as far as making records
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", args...)
	cmd.Args[0] = "kern"
	cmd.Env, cmd.Dir = k.env, "/"
	cmd.ExtraFiles = []*os.File{k.bin.Sealed}
	cmd.WaitDelay = outputGrace
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		return fmt.Errorf("kern %s: %w", args[0], err)
	}
	return nil
}
