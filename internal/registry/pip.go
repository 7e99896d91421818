package registry

import (
	"path/filepath"
	"strings"
)

// pipDefault prints the index that is compiled into pip, and the host of its
// files. In isolated mode Python looks at no variable, no folder of the user and
// not at the current one.
const pipDefault = `from pip._internal.models.index import PyPI
print(PyPI.simple_url)
print("https://" + PyPI.file_storage_domain)`

// pip reads the indexes of pip, and those of uv in the environment. Settings for
// one command stand beside the general ones, so all of them count.
func (r Reader) pip(f *found) error {
	f.look("PIP_* and UV_* variables")
	indexes := map[string]bool{} // by section: who came first wins
	urls := map[string]bool{}
	take := func(section, key, value, where string) error {
		switch key {
		case "index-url":
			if indexes[section] {
				return nil
			}
			indexes[section] = true
		case "extra-index-url", "find-links":
		default:
			return nil
		}
		for _, u := range strings.Fields(value) {
			if key == "find-links" && !strings.Contains(u, "://") {
				continue // a folder
			}
			urls[u] = true
			if err := f.add(u, "pip's "+key+" "+where); err != nil {
				return err
			}
		}
		return nil
	}
	for _, key := range []string{"INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS"} {
		if v := r.env("PIP_" + key); v != "" {
			if err := take("global", strings.ToLower(strings.ReplaceAll(key, "_", "-")), v, "in the environment"); err != nil {
				return err
			}
		}
	}
	uv, err := r.uv(f)
	if err != nil {
		return err
	}
	for _, path := range r.pipFiles() {
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		for _, s := range pipConf(text) {
			if err := take(s.section, s.key, s.value, "in "+f.show(path)); err != nil {
				return err
			}
		}
	}
	// Who names the usual index by hand needs the host of its files as well.
	out, err := r.run(f, nil, "python3", "-I", "-c", pipDefault)
	index, files, _ := strings.Cut(out, "\n")
	switch {
	case indexes["global"] && (err != nil || !sameIndex(urls, index)):
		return nil
	case err != nil && uv:
		return nil
	case err != nil:
		return err
	}
	if !indexes["global"] && !uv {
		if err := f.add(index, "pip's index, as pip has it built in"); err != nil {
			return err
		}
	}
	if indexes["global"] || !uv {
		return f.add(files, "the files of pip's index, as pip has it built in")
	}
	return nil
}

func sameIndex(urls map[string]bool, index string) bool {
	for u := range urls {
		if strings.TrimSuffix(u, "/") == strings.TrimSuffix(index, "/") {
			return true
		}
	}
	return false
}

// uv says whether its variables name an index of their own.
func (r Reader) uv(f *found) (own bool, err error) {
	for _, name := range []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"} {
		for _, u := range strings.Fields(r.env(name)) {
			if _, named, ok := strings.Cut(u, "="); ok && !strings.Contains(beforeURL(u), "/") && strings.Contains(beforeURL(u), "=") {
				u = named
			}
			if err := f.add(u, "uv's "+name+" in the environment"); err != nil {
				return false, err
			}
			own = own || name == "UV_DEFAULT_INDEX" || name == "UV_INDEX_URL"
		}
	}
	return own, nil
}

// pipFiles is where pip looks, what counts more before what counts less. The
// file of a virtual environment is not among them: that is a project's.
func (r Reader) pipFiles() []string {
	own := r.env("PIP_CONFIG_FILE")
	if own == "/dev/null" {
		return nil
	}
	dirs := r.env("XDG_CONFIG_DIRS")
	if dirs == "" {
		dirs = "/etc/xdg"
	}
	list := []string{own, r.configDir("pip/pip.conf"), r.inHome(".pip/pip.conf"), "/etc/pip.conf"}
	for _, d := range filepath.SplitList(dirs) {
		if filepath.IsAbs(d) {
			list = append(list, filepath.Join(d, "pip/pip.conf"))
		}
	}
	return list
}
