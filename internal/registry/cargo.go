package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// cratesIO is cargo's own name for the registry that is used where none is
// named.
const cratesIO = "crates-io"

// maxReplaced bounds how often one source may stand in for another.
const maxReplaced = 8

// cargo reads the registries that are set up, what stands in for the usual one
// and, where nothing does, the one that is built into the program.
func (r Reader) cargo(f *found) error {
	f.look("CARGO_REGISTRIES_* variables")
	home := r.env("CARGO_HOME")
	if home == "" {
		home = r.inHome(".cargo")
	}
	conf := map[string]string{} // by dotted key
	from := map[string]string{}
	for _, name := range []string{"config", "config.toml"} {
		path := below(home, name)
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		values, err := toml(text)
		if err != nil {
			return fmt.Errorf("%s: %w", f.show(path), err)
		}
		for k, v := range values {
			if _, ok := conf[k]; !ok { // the older name counts more
				conf[k], from[k] = v, "in "+f.show(path)
			}
		}
	}
	for _, kv := range r.Environ {
		k, v, _ := strings.Cut(kv, "=")
		if name, ok := strings.CutPrefix(k, "CARGO_REGISTRIES_"); ok && v != "" {
			if name, ok = strings.CutSuffix(name, "_INDEX"); ok {
				key := "registries." + strings.ToLower(strings.ReplaceAll(name, "_", "-")) + ".index"
				conf[key], from[key] = v, "in the environment"
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		if name, ok := strings.CutPrefix(key, "registries."); ok && strings.HasSuffix(name, ".index") {
			if err := r.cargoIndex(f, home, conf[key], "cargo's "+key+" "+from[key]); err != nil {
				return err
			}
		}
	}
	name := cratesIO
	for range maxReplaced {
		next, ok := conf["source."+name+".replace-with"]
		if !ok {
			break
		}
		name = next
	}
	if name == cratesIO {
		return r.cargoBuiltIn(f, home)
	}
	for _, key := range []string{"source." + name + ".registry", "registries." + name + ".index"} {
		if u, ok := conf[key]; ok {
			return r.cargoIndex(f, home, u, "cargo's "+key+" "+from[key])
		}
	}
	for _, key := range []string{".directory", ".local-registry"} {
		if _, ok := conf["source."+name+key]; ok {
			return nil // on this machine
		}
	}
	return fmt.Errorf("cargo's source %.60q, which stands in for its registry, has no registry of its own", name)
}

// cargoBuiltIn has cargo ask for its own index, and looks whom it calls.
func (r Reader) cargoBuiltIn(f *found, home string) error {
	f.look("the program cargo")
	path, err := r.find("cargo")
	if err != nil {
		return err
	}
	if r.Asked == nil {
		return errors.New("cargo could not be asked")
	}
	env := append(r.only("HOME=", "RUSTUP_HOME=", "RUSTUP_TOOLCHAIN="), "CARGO_NET_RETRY=0", "CARGO_NET_OFFLINE=false")
	to, err := r.Asked(env, "CARGO_HTTP_PROXY", "CARGO_HOME", path, "search", "--limit", "1", "a")
	if err != nil {
		return fmt.Errorf("cargo could not be asked: %w", err)
	}
	return r.cargoIndex(f, home, "sparse+https://"+to+"/", "cargo's index, as cargo has it built in")
}

// cargoIndex takes an index, and the host of its files, which the index itself
// says and cargo keeps once it has asked.
func (r Reader) cargoIndex(f *found, home, index, from string) error {
	index, sparse := strings.CutPrefix(index, "sparse+")
	u, err := url.Parse(strings.TrimSpace(index))
	if err != nil {
		return fmt.Errorf("%s is no URL that can be read here", from)
	}
	dl := ""
	dir := below(home, "registry/index")
	if r.List != nil && dir != "" && sparse {
		names, _ := r.List(dir) // none before the first use
		for _, n := range names {
			// NAME-HASH
			if i := strings.LastIndexByte(n, '-'); i < 0 || n[:i] != u.Hostname() {
				continue
			}
			text, err := r.read(f, filepath.Join(dir, n, "config.json"))
			if err != nil {
				return err
			}
			var c struct {
				DL string `json:"dl"`
			}
			if json.Unmarshal([]byte(text), &c) == nil && c.DL != "" {
				dl = c.DL
			}
		}
	}
	if dl == "" {
		from += " (where its files lie, cargo knows only after it has asked once)"
	}
	if err := f.add(index, from); err != nil {
		return err
	}
	// {crate} and the like stand in the path only.
	dl, _, _ = strings.Cut(dl, "{")
	if dl == "" {
		return nil
	}
	return f.add(dl, "the files of "+from)
}
