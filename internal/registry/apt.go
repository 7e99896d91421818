package registry

import (
	"fmt"
	"path/filepath"
	"strings"
)

const aptDir = "/etc/apt"

// apt reads the sources of the machine, in both of their forms.
func (r Reader) apt(f *found) error {
	files := []string{aptDir + "/sources.list"}
	f.look(aptDir + "/sources.list.d")
	if r.List != nil {
		names, err := r.List(aptDir + "/sources.list.d")
		if err != nil {
			return fmt.Errorf("list %s/sources.list.d: %w", aptDir, err)
		}
		for _, n := range names {
			files = append(files, filepath.Join(aptDir, "sources.list.d", n))
		}
	}
	for _, path := range files {
		var uris []string
		switch filepath.Ext(path) {
		case ".list":
			text, err := r.read(f, path)
			if err != nil {
				return err
			}
			uris = aptLines(text)
		case ".sources":
			text, err := r.read(f, path)
			if err != nil {
				return err
			}
			uris = aptStanzas(text)
		}
		for _, u := range uris {
			if err := r.aptSource(f, u, "apt's source in "+path); err != nil {
				return err
			}
		}
	}
	return nil
}

// aptSource takes a URI of apt. A mirror's list on this machine, as hosted
// runners have it, stands for the mirrors in it.
func (r Reader) aptSource(f *found, uri, from string) error {
	scheme, _, _ := strings.Cut(uri, ":")
	switch strings.ToLower(scheme) {
	case "http", "https":
		return f.add(uri, from)
	case "file", "copy", "cdrom":
		return nil
	case "mirror+file", "mirror":
		path, ok := strings.CutPrefix(uri, "mirror+file:")
		if !ok {
			break
		}
		path = filepath.Clean("/" + strings.TrimLeft(path, "/"))
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if w := strings.Fields(line); len(w) > 0 && !strings.HasPrefix(w[0], "#") {
				if err := r.aptSource(f, w[0], "apt's mirror in "+path); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return fmt.Errorf("%s is of a kind that is not read here (%.20q)", from, scheme)
}

// aptLines gives the URIs of one-line sources: deb [options] URI suite ...
func aptLines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(line), "\t", " "), " ")
		if kind != "deb" && kind != "deb-src" {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if w := strings.Fields(rest); len(w) > 0 {
			out = append(out, w[0])
		}
	}
	return out
}

// aptStanzas gives the URIs of sources in fields. A field may go on over lines,
// and a stanza may be turned off.
func aptStanzas(text string) []string {
	var out, uris []string
	enabled, field := true, ""
	end := func() {
		if enabled {
			out = append(out, uris...)
		}
		uris, enabled, field = nil, true, ""
	}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			end()
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		value := line
		if line[0] != ' ' && line[0] != '\t' {
			field, value, _ = strings.Cut(line, ":")
			field = strings.ToLower(strings.TrimSpace(field))
		}
		switch field {
		case "uris":
			uris = append(uris, strings.Fields(value)...)
		case "enabled":
			switch strings.ToLower(strings.TrimSpace(value)) {
			case "no", "false", "without", "off", "disable", "0":
				enabled = false
			}
		}
	}
	end()
	return out
}
