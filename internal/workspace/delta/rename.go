package delta

import (
	"path"
	"unicode/utf8"
)

// pair finds for created files the deleted ones they were renamed from: those
// that have the same content, where there is exactly one on each side, or one on
// each side with that last name. Of anything else no more can be said than that
// it was created: a wrong "renamed" would hide a change from a reader.
func pair(items []*item) {
	type side struct {
		n    int
		only *item
	}
	type match struct{ created, deleted side }
	type key struct{ sum, name string }
	all, named := map[string]*match{}, map[key]*match{}
	put := func(m *match, i *item) {
		s := &m.created
		if i.kind == deleted {
			s = &m.deleted
		}
		s.n, s.only = s.n+1, i
	}
	for _, i := range items {
		e := &i.entry
		if i.kind != created && i.kind != deleted || e.Type != "file" || e.Size == 0 || e.SHA256 == "" || !utf8.ValidString(e.Path) {
			continue
		}
		k := key{e.SHA256, path.Base(e.Path)}
		if all[k.sum] == nil {
			all[k.sum] = &match{}
		}
		if named[k] == nil {
			named[k] = &match{}
		}
		put(all[k.sum], i)
		put(named[k], i)
	}
	join := func(m *match) {
		if m.created.n == 1 && m.deleted.n == 1 {
			m.created.only.from = m.deleted.only.entry.Path
		}
	}
	for _, m := range named {
		join(m)
	}
	for _, m := range all {
		join(m)
	}
}
