package policy

import (
	"encoding/base64"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// tree is what lies at each path: d is a folder, f a file, s a folder with the
// set-group-id bit, and "-> x" a link.
type tree map[string]string

func (t tree) look(path string) (Found, error) {
	switch text := t[path]; {
	case path == ".", text == "d":
		return Found{Type: "dir", Mode: 0o755}, nil
	case text == "s":
		return Found{Type: "dir", Mode: 0o2755}, nil
	case text == "":
		return Found{}, nil
	case strings.HasPrefix(text, "-> "):
		return Found{Type: "symlink", Mode: 0o777, Target: strings.TrimPrefix(text, "-> ")}, nil
	}
	return Found{Type: "file", Mode: 0o644}, nil
}

func change(kind, typ, path string) workspace.Change {
	c := workspace.Change{Path: path, Change: kind, Type: typ, Mode: "0644"}
	if typ == "dir" {
		c.Mode = "0755"
	}
	if !utf8.ValidString(path) {
		c.PathBytes = base64.StdEncoding.EncodeToString([]byte(path))
		c.Path = strings.ToValidUTF8(path, "\uFFFD")
	}
	return c
}

func link(path, target string) workspace.Change {
	c := change(workspace.Created, "symlink", path)
	c.Mode, c.Target = "0777", target
	return c
}

func withMode(c workspace.Change, mode string) workspace.Change { c.Mode = mode; return c }

// parse reads changes as "created file path", one a line.
func parse(t testing.TB, lines string) []workspace.Change {
	t.Helper()
	var out []workspace.Change
	for line := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
		w := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if len(w) != 3 {
			t.Fatalf("not a change: %q", line)
		}
		out = append(out, change(w[0], w[1], w[2]))
	}
	return out
}

func compiled(t testing.TB, globs ...string) Policy {
	t.Helper()
	p, err := Compile(globs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// told is a verdict in short.
func told(v Verdict) []string {
	out := []string{}
	for _, c := range v.Commit {
		out = append(out, "commit "+c.RawPath())
	}
	for _, c := range v.Dropped {
		out = append(out, "drop "+c.RawPath())
	}
	for _, c := range v.Special {
		out = append(out, "special "+c.RawPath())
	}
	for _, x := range v.Violations {
		out = append(out, x.Type+" "+strings.SplitN(x.Message, `"`, 3)[1])
	}
	return out
}
