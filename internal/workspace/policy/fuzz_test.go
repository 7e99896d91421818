package policy

import (
	"encoding/base64"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// No change outside the globs is ever committed, whatever bytes a path has, and
// each change is accounted for.
func FuzzJudge(f *testing.F) {
	for _, s := range []string{"out/a\nb.txt\n.git/config\n.git/index", "out\x00../x", "a/b/c\na/b\na", ".GIT/x\nsub/.git/x", "out/\xff\xfe/x", "deep/in/it.txt\ndeep/in\ndeep", ".git/objects\n.git"} {
		f.Add(s, []byte{0, 1, 2, 3, 4, 5, 6, 7})
	}
	globs := []string{"out/**", "*.txt", "deep/in/it.txt", ".git/hooks/*"}
	p, err := Compile(globs)
	if err != nil {
		f.Fatal(err)
	}
	// The same, said by hand.
	means := func(raw string) bool {
		return raw == "out" || strings.HasPrefix(raw, "out/") ||
			strings.HasSuffix(raw, ".txt") && !strings.Contains(raw, "/") || raw == "deep/in/it.txt" ||
			strings.HasPrefix(raw, ".git/hooks/") && strings.Count(raw, "/") == 2
	}
	kinds := []string{workspace.Created, workspace.Modified, workspace.Deleted, workspace.Mode, workspace.Retyped, "other"}
	types := []string{"file", "dir", "symlink", "fifo", "socket", "device", "door"}
	f.Fuzz(func(t *testing.T, text string, how []byte) {
		var changes []workspace.Change
		for i, raw := range strings.Split(text, "\n") {
			b := 0
			if len(how) > 0 {
				b = int(how[i%len(how)])
			}
			c := workspace.Change{Path: raw, Change: kinds[b%len(kinds)], Type: types[b/8%len(types)], Mode: []string{"0644", "4755", "2755", "x"}[b%4], Target: raw}
			if !utf8.ValidString(raw) {
				c.Path, c.PathBytes = strings.ToValidUTF8(raw, "\uFFFD"), base64.StdEncoding.EncodeToString([]byte(raw))
			}
			changes = append(changes, c)
		}
		look := func(at string) (Found, error) {
			return Found{Type: types[len(at)%3], Target: text[:min(len(text), 20)]}, nil
		}
		v := p.Judge(changes, Env{Before: look, After: look, Tools: []string{"/usr"}})
		for _, c := range v.Commit {
			raw := c.RawPath()
			parent := c.Change == workspace.Created && c.Type == "dir" && slices.ContainsFunc(changes, func(o workspace.Change) bool {
				return o.Change == workspace.Created && strings.HasPrefix(o.RawPath(), raw+"/") && means(o.RawPath())
			})
			if !means(raw) && !parent {
				t.Errorf("%q is committed", raw)
			}
			if raw != path.Clean(raw) || strings.HasPrefix(raw, "/") || strings.HasPrefix(raw, "..") && !strings.HasPrefix(raw, "...") && path.Dir(raw) == ".." {
				t.Errorf("%q is committed, and no path of the workspace", raw)
			}
			if c.Type != "symlink" && c.Change != workspace.Deleted && c.Type != "dir" && c.Mode != "0644" {
				t.Errorf("%q is committed with mode %s", raw, c.Mode)
			}
		}
		for _, c := range v.Dropped {
			if c.RawPath() != ".git" && !strings.HasPrefix(c.RawPath(), ".git/") {
				t.Errorf("%q is dropped", c.RawPath())
			}
		}
		if n := len(v.Commit) + len(v.Dropped) + len(v.Special); n < len(changes) && len(v.Violations) == 0 || n > len(changes) {
			t.Errorf("%d of %d changes are accounted for", n, len(changes))
		}
		for _, x := range v.Violations {
			if !utf8.ValidString(x.Message) || strings.ContainsAny(x.Message, "\n\r\x1b\x00") {
				t.Errorf("the message %q", x.Message)
			}
		}
	})
}

// Whatever is accepted as a glob can be matched, and means no path outside.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"**", "a/{b,c}/*", `\[`, "[a-z]", "[^/]", "{a,{b,c}}", "{a}", "[{]", "a[!b]c/**", "{,}", "***", "{[},],x}"} {
		f.Add(s, "a/b")
	}
	f.Fuzz(func(t *testing.T, glob, raw string) {
		p, err := Compile([]string{glob})
		if err != nil {
			return
		}
		if len(p.patterns) == 0 {
			t.Fatal("a glob that is nothing")
		}
		names, ok := split(raw)
		if !ok {
			return
		}
		_ = p.permits(names, -1)
		if len(names) > 0 && !strings.Contains(glob, names[0]) && !strings.Contains(glob, `\`) && !strings.Contains(glob, "{") && p.permits(names, 0) {
			t.Errorf("%q names %q", glob, names[0])
		}
	})
}
