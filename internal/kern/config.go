package kern

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// configName is kern's configuration among the parts of a box.
const configName = "kern.toml"

// maxConfig bounds it.
const maxConfig = 1 << 20

// config is kern's own configuration as the caller has it, in which profiles are
// defined. kern itself is given a folder of configuration with nothing in it: only
// a step that names a profile gets this file.
func (e *Engine) config() (string, error) {
	base := pinned.UserFolder(e.opts.Getenv, "XDG_CONFIG_HOME", ".config")
	if base == "" {
		return "", errors.New("profiles: kern's configuration, which defines them, is in no place: neither XDG_CONFIG_HOME nor HOME is an absolute path")
	}
	path := filepath.Join(base, "kern", "kern.toml")
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("profiles: kern's configuration, which defines them, cannot be read: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("it is larger than %d bytes", maxConfig)
	}
	if err != nil {
		return "", fmt.Errorf("profiles: kern's configuration %s: %w", path, err)
	}
	return string(text), nil
}

// profileIn says whether a profile of a configuration is one that a box here can
// have: what is wrong is an error that names it. kern, which reads all of it, has the
// last word on the rest; this is for a plan to be refused before anything of it has
// run.
//
// No box is shown a device of the host, which a vgpio is all about: a steps file may
// not name one, and here it is refused once more. kern would mostly leave it out with a note, since it is started without the host's devices, and the
// step would run; where it is started with them, by a normal user whose workspace is
// a copy, it would hand it in. And it is never the host's root here, without which it
// keeps a disk's files in memory, whatever folder the disk is to lie in.
func profileIn(config, profile string) error {
	kind, _, _ := strings.Cut(profile, ":")
	tables := tablesOf(config, profile)
	switch {
	case kind == "vgpio":
		return fmt.Errorf("profiles: %s: no box is shown a device of the host; take it out of the step", profile)
	case len(tables) == 0:
		return fmt.Errorf("profiles: kern's configuration has no %s; untrusted steps may name only what it defines", profile)
	case kind == "vdisk":
		for _, t := range tables {
			if t["backend"] != "ram" {
				return fmt.Errorf(`profiles: %s: its backend is %q, and kern, which is never the host's root here, would keep it in memory all the same; write backend = "ram" for that, or have the step write to its workspace, which diskMb bounds`, profile, t["backend"])
			}
			if t["persistent"] == "true" {
				return fmt.Errorf("profiles: %s: it is to be persistent, and what is in memory goes with the box; take that out, or have the step write to its workspace", profile)
			}
		}
	}
	return nil
}

// tablesOf are the tables of a configuration that define a profile, as kern writes
// them: of its kind, with its name and other plain values.
func tablesOf(config, profile string) (tables []map[string]string) {
	kind, name, _ := strings.Cut(profile, ":")
	var in map[string]string
	end := func() {
		if in != nil && in["name"] == name && name != "" {
			tables = append(tables, in)
		}
		in = nil
	}
	for line := range strings.Lines(config) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			end()
			if line == "[["+kind+"]]" {
				in = map[string]string{}
			}
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok && in != nil {
			in[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	end()
	return tables
}
