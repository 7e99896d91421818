package registry

import (
	"path/filepath"
	"strings"
)

// npm reads the registry, and those of single scopes. Environment, user and
// machine are asked in npm's own order; the project, which it would ask between
// the first two, is not.
func (r Reader) npm(f *found) error {
	f.look("NPM_CONFIG_* variables")
	registry, from := "", ""
	scopes := map[string]bool{}
	env := map[string]string{}
	take := func(key, value, where string) error {
		switch {
		case key == "registry" && registry == "" && value != "":
			registry, from = value, "npm's registry "+where
		case strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") && !scopes[key]:
			scopes[key] = true
			return f.add(value, "npm's "+key+" "+where)
		}
		return nil
	}
	for _, kv := range r.Environ {
		name, value, _ := strings.Cut(kv, "=")
		const prefix = "npm_config_"
		if len(name) <= len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) || value == "" {
			continue
		}
		key := strings.ReplaceAll(strings.ToLower(name[len(prefix):]), "_", "-")
		env[key] = value
		if err := take(key, value, "in the environment"); err != nil {
			return err
		}
	}
	user := env["userconfig"]
	if user == "" {
		user = r.inHome(".npmrc")
	}
	prefix := env["prefix"]
	for _, file := range []func() string{
		func() string { return user },
		func() string { return r.npmGlobal(env["globalconfig"], prefix) },
	} {
		path := file()
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		for _, s := range npmrc(text, r.env) {
			if s.key == "prefix" && prefix == "" {
				prefix = s.value
			}
			if s.key == "globalconfig" && env["globalconfig"] == "" {
				env["globalconfig"] = s.value
			}
			if err := take(s.key, s.value, "in "+f.show(path)); err != nil {
				return err
			}
		}
	}
	if registry == "" {
		// In global mode npm reads no project's file.
		out, err := r.run(f, r.only("HOME="), "npm", "config", "get", "registry", "--global", "--userconfig=/dev/null")
		if err != nil {
			return err
		}
		registry, from = out, "npm's registry, as npm has it built in"
	}
	return f.add(registry, from)
}

// npmGlobal is the machine's file: where the variable says, or beside the
// program.
func (r Reader) npmGlobal(path, prefix string) string {
	if path != "" {
		return path
	}
	if prefix == "" {
		node, err := r.find("node")
		if err != nil {
			return ""
		}
		prefix = filepath.Dir(filepath.Dir(node))
	}
	return filepath.Join(prefix, "etc", "npmrc")
}
