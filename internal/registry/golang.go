package registry

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// golang reads the proxies and the checksum database. What comes straight from
// where a module is developed ("direct") has no host of its own here.
func (r Reader) golang(f *found) error {
	f.look("GOPROXY and GOSUMDB")
	vars := []string{"GOPROXY", "GOSUMDB", "GONOSUMDB"}
	values, from := map[string]string{}, map[string]string{}
	take := func(name, value, where string) {
		if values[name] == "" && value != "" {
			values[name], from[name] = value, name+" "+where
		}
	}
	for _, name := range vars {
		take(name, r.env(name), "in the environment")
	}
	path := r.env("GOENV")
	if path == "" {
		path = r.configDir("go/env")
	}
	if path != "off" {
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && slices.Contains(vars, k) {
				take(k, v, "in "+f.show(path))
			}
		}
	}
	if values["GOPROXY"] == "" || values["GOSUMDB"] == "" {
		// Neither the user's file again, nor a project, nor another toolchain.
		own := append(r.only("HOME=", "GOROOT="), "GOENV=off", "GOWORK=off", "GOTOOLCHAIN=local", "GO111MODULE=on")
		out, err := r.run(f, own, "go", "env", "-json", "GOPROXY", "GOSUMDB")
		built := map[string]string{}
		if err == nil {
			err = json.Unmarshal([]byte(out), &built)
		}
		// Without the program, and with a proxy named, the database is the only
		// thing that is not known; a proxy serves that too.
		if err != nil && values["GOPROXY"] == "" {
			return err
		}
		for _, name := range vars {
			take(name, built[name], "as go has it built in")
		}
	}
	for _, u := range strings.FieldsFunc(values["GOPROXY"], func(c rune) bool { return c == ',' || c == '|' }) {
		if u = strings.TrimSpace(u); u == "direct" || u == "off" {
			continue
		}
		if err := f.add(u, "go's "+from["GOPROXY"]); err != nil {
			return err
		}
	}
	if len(f.rules) == 0 {
		return errors.New("go's " + from["GOPROXY"] + " names no proxy")
	}
	if slices.Contains(strings.Split(values["GONOSUMDB"], ","), "*") {
		return nil
	}
	// NAME, NAME+KEY, or either with a URL behind it.
	switch db := strings.Fields(values["GOSUMDB"]); {
	case len(db) == 0 || db[0] == "off":
		return nil
	case len(db) > 1:
		return f.add(db[1], "go's "+from["GOSUMDB"])
	default:
		name, _, _ := strings.Cut(db[0], "+")
		return f.add("https://"+name, "go's "+from["GOSUMDB"])
	}
}
