package patch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const numbers = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n"

func TestGitAppliesAPatch(t *testing.T) {
	for _, c := range []struct {
		sentence      string
		before, after tree
		contains      string
	}{
		{"of a line that changed", tree{"f": text(numbers)}, tree{"f": text(strings.Replace(numbers, "8", "eight", 1))}, "\n-8\n+eight\n"},
		{"of lines at both ends", tree{"f": text(numbers)}, tree{"f": text("0\n" + numbers + "17\n")}, "+17\n"},
		{"of a new file", tree{}, tree{"f": text("a\nb\n")}, "new file mode 100644"},
		{"of a new empty file", tree{}, tree{"f": text("")}, "new file mode 100644"},
		{"of a deleted file", tree{"f": text("a\n")}, tree{}, "deleted file mode 100644"},
		{"of a deleted empty file", tree{"f": text("")}, tree{}, "deleted file mode 100644"},
		{"of a file that became empty", tree{"f": text("a\n")}, tree{"f": text("")}, "-a\n"},
		{"of a file that is no longer empty", tree{"f": text("")}, tree{"f": text("a")}, "+a\n\\ No newline"},
		{"of a last line that lost its end", tree{"f": text("a\nb\n")}, tree{"f": text("a\nb")}, "\\ No newline at end of file\n"},
		{"of a last line that got its end", tree{"f": text("a\nb")}, tree{"f": text("a\nb\n")}, "\\ No newline at end of file\n"},
		{"of text that speaks of no newline", tree{"f": text("a\n\\ No newline at end of file\n")}, tree{"f": text("a")}, ""},
		{"of lines that look like headers", tree{"f": text("-- a/x\n")}, tree{"f": text("++ b/y\ndiff --git a/z b/z\n@@ -1 +1 @@\n")}, ""},
		{"of CRLF", tree{"f": text("a\r\nb\r\n")}, tree{"f": text("a\r\nc\r\n\r\n")}, "+c\r\n"},
		{"of a lone CR", tree{"f": text("a\rb\n")}, tree{"f": text("a\rc\n\r")}, ""},
		{"of spaces at ends of lines", tree{"f": text("a \n\n\n")}, tree{"f": text("a\t \n\n \n")}, ""},
		{"of binary", tree{"f": text("a\x00b")}, tree{"f": text("a\x00c")}, "GIT binary patch\nliteral 3\n"},
		{"of new and of deleted binary", tree{"f": text("a\x00b")}, tree{"g": text("\xff\xfe")}, "literal 0\n"},
		{"of text that became binary", tree{"f": text("a\n")}, tree{"f": text("\x00")}, "literal 1\n"},
		{"of binary that became text", tree{"f": text("\x00")}, tree{"f": text("a\n")}, "literal 2\n"},
		{"of binary that became empty", tree{"f": text("\x00")}, tree{"f": text("")}, "literal 0\n"},
		{"of a NUL beyond the first 8000 bytes", tree{"f": text("a\n")}, tree{"f": text(strings.Repeat("a\n", 8000) + "\x00")}, "GIT binary"},
		{"of what is not UTF-8", tree{"f": text("a\xffb\n")}, tree{"f": text("a\xfeb\n")}, "GIT binary"},
		{"of a file that became executable", tree{"f": text("a\n")}, tree{"f": {mode: 0o755, text: "a\n"}}, "old mode 100644\nnew mode 100755\n"},
		{"of mode and content", tree{"f": {mode: 0o755, text: "a\n"}}, tree{"f": text("b\n")}, "new mode 100644\nindex "},
		{"of mode and binary content", tree{"f": {mode: 0o755, text: "a\x00"}}, tree{"f": text("b\x00")}, "GIT binary"},
		{"of a new link", tree{}, tree{"l": link("no/where")}, "new file mode 120000"},
		{"of a link that points elsewhere", tree{"l": link("a")}, tree{"l": link("b")}, "-a\n\\ No newline at end of file\n+b\n"},
		{"of a deleted link", tree{"l": link("a"), "k": text("")}, tree{"k": text("")}, "deleted file mode 120000"},
		{"of a link with a strange target", tree{}, tree{"l": link("a\nb\xff"), "m": link("a\nb")}, ""},
		{"of a file that became a link", tree{"f": text("a\n")}, tree{"f": link("g")}, "deleted file mode 100644"},
		{"of a link that became a file", tree{"f": link("g")}, tree{"f": text("a\n")}, "deleted file mode 120000"},
		{"of a folder that became a file", tree{"d/a": text("a\n"), "d/e/b": text("b\n")}, tree{"d": text("d\n")}, ""},
		{"of a file that became a folder", tree{"d": text("d\n")}, tree{"d/a": text("a\n"), "d/e/b": text("b\n")}, ""},
		{"of a folder that became a link", tree{"d/a": text("a\n"), "e/a": text("b\n")}, tree{"d": link("e"), "e/a": text("b\n")}, ""},
		{"of a link that became a folder", tree{"d": link("e"), "e/a": text("b\n")}, tree{"d/a": text("a\n"), "e/a": text("b\n")}, ""},
		{"of a rename", tree{"a": text("x\n")}, tree{"b": text("x\n")}, ""},
		{"of a file beside others of the same beginning", tree{"a": text("1\n"), "a.b": text("1\n"), "a/c": text("")}, nil, ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			if c.after == nil {
				c.before, c.after = tree{}, tree{"a.b": text("1\n"), "a/c": text("2\n"), "a-": text("3\n")}
			}
			sum, p := applies(t, c.before, c.after)
			if sum.Files == 0 || sum.Lost != nil || sum.Refused != nil {
				t.Errorf("summary %+v", sum)
			}
			if !strings.Contains(p, c.contains) {
				t.Errorf("no %q in\n%s", c.contains, p)
			}
			if !strings.HasPrefix(p, "diff --git ") {
				t.Errorf("a patch that carries everything begins with %q", p[:20])
			}
		})
	}
}

// names are those that trouble quoting, and those of attack 107.
var names = []string{
	"plain", "two words", " lead", "trail ", "a b/x", "dir /x", "x b", `q"uote`, `back\slash`, "tab\t", "new\nline", "new\ndiff --git a", "cr\r",
	"\x1b[31m", "\x7f", "\xff\xfe", "ümlaut", "\u202egnp.exe", "-x", "--index", "a -> b", "*", "?", "#", ".hidden", "dev", "null",
	".gitignored", "git", "...", ".. ", "a.git", strings.Repeat("n", 255), "\u0085", "'", "$(x)", "%s", "{a => b}",
}

func TestGitAppliesAPatchOfAnyName(t *testing.T) {
	before, after := tree{}, tree{}
	for i, n := range names {
		before["change/"+n] = text("a\n")
		after["change/"+n] = text("b\n")
		after["new/"+n] = text(fmt.Sprint(i))
		after["empty/"+n] = text("")
		before["gone/"+n] = text("a\n")
		before["mode/"+n] = text("a\n")
		after["mode/"+n] = file{mode: 0o755, text: "a\n"}
		before["bin/"+n] = text("\x00")
		after["bin/"+n] = text("\x01\x00")
		after["link/"+n] = link("to")
		after[n+"/"+n] = text("below\n")
	}
	delete(after, "null/null")
	sum, p := applies(t, before, after)
	if sum.Lost != nil || sum.Refused != nil || sum.Files != len(after)+len(names) {
		t.Errorf("%d files, lost %q, refused %q", sum.Files, sum.Lost, sum.Refused)
	}
	if i := strings.IndexAny(p, "\x1b\x7f\r"); i >= 0 {
		t.Errorf("a name is in the patch as it is: %q", p[max(0, i-100):i+1])
	}
}

func TestWhatAPatchDoesNotCarryIsSaid(t *testing.T) {
	for _, c := range []struct {
		sentence      string
		before, after tree
		o             Options
		want          []Note
		files         int
	}{
		{"permission bits of a new file", tree{}, tree{"f": {mode: 0o600}}, Options{}, []Note{{"f", "mode 0600 becomes 0644"}}, 1},
		{"permission bits of an executable", tree{}, tree{"f": {mode: 0o700}}, Options{}, []Note{{"f", "mode 0700 becomes 0755"}}, 1},
		{"bits that git does not see", tree{"f": text("a")}, tree{"f": {mode: 0o640, text: "a"}}, Options{}, []Note{{"f", "mode 0640, which git takes for 0644"}}, 0},
		{"bits that git does not see, beside content", tree{"f": text("a")}, tree{"f": {mode: 0o640, text: "b"}}, Options{},
			[]Note{{"f", "mode 0640, which git takes for 0644"}}, 1},
		{"bits beside those that git sees", tree{"f": text("a")}, tree{"f": {mode: 0o711, text: "a"}}, Options{}, []Note{{"f", "mode 0711 becomes 0755"}}, 1},
		{"nothing of bits that were there before", tree{"f": {mode: 0o600, text: "a"}}, tree{"f": {mode: 0o600, text: "b"}}, Options{}, nil, 1},
		{"an empty folder", tree{}, tree{"d/e": dir(), "d/f": text("")}, Options{}, []Note{{"d/e", "an empty folder, which git does not know"}}, 1},
		{"the removal of an empty folder", tree{"d/e": dir(), "d/f": text("")}, tree{}, Options{},
			[]Note{{"d/e", "the removal of an empty folder, which git does not know"}}, 1},
		{"a folder's mode", tree{"e": dir()}, tree{"d": {kind: "dir", mode: 0o700}, "d/f": text(""), "e": {kind: "dir", mode: 0o711}}, Options{},
			[]Note{{"d", "mode 0700 of a folder"}, {"e", "mode 0711 of a folder"}}, 1},
		{"a FIFO", tree{}, tree{"p": {kind: "fifo"}}, Options{}, []Note{{"p", "a fifo"}}, 0},
		{"the removal of a FIFO", tree{"p": {kind: "fifo"}}, tree{}, Options{}, []Note{{"p", "the removal of a fifo"}}, 0},
		{"a file that became a FIFO", tree{"p": text("a")}, tree{"p": {kind: "fifo"}}, Options{}, []Note{{"p", "a fifo"}}, 1},
		{"a large file", tree{}, tree{"f": text("12345"), "g": text("1234")}, Options{MaxFile: 4}, []Note{{"f", "a file of more than 4 bytes"}}, 1},
		{"what a whole patch cannot hold", tree{}, tree{"f": text("1"), "g": text(strings.Repeat("1", 400)), "h": text("1")}, Options{MaxTotal: 400},
			[]Note{{"g", "the patch would be longer than 400 bytes"}, {"h", "the patch would be longer than 400 bytes"}}, 1},
		{"what is too much to read", tree{"f": text(strings.Repeat("1", 3000))}, tree{"f": text(strings.Repeat("1", 3001))}, Options{MaxTotal: 1000},
			[]Note{{"f", "more than 4000 bytes were read for this patch"}}, 0},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			d := dirs{t.TempDir(), t.TempDir()}
			lay(t, d.before, c.before)
			lay(t, d.after, c.after)
			var b bytes.Buffer
			sum, err := Write(context.Background(), &b, d.changes(t), d, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, sum.Lost); diff != "" || sum.Files != c.files {
				t.Errorf("%d files, want %d; lost (-want +got):\n%s", sum.Files, c.files, diff)
			}
			for _, n := range c.want {
				if !strings.Contains(b.String(), fmt.Sprintf("#   %q: %s\n", n.Path, n.Why)) {
					t.Errorf("the comment does not say %q:\n%s", n, b.String())
				}
			}
		})
	}
}

// fixed is a Source of what a test says.
type fixed struct {
	before, after map[string]Found
	open          error
	t             *testing.T
}

func (f fixed) Before(p string) (Found, error)       { return f.before[p], nil }
func (f fixed) After(p string) (Found, error)        { return f.after[p], nil }
func (f fixed) OpenBefore(string) (*os.File, error)  { return nil, f.open }
func (f fixed) OpenAfter(p string) (*os.File, error) { return nil, f.open }

func TestAPathOutOfTheTreeIsRefused(t *testing.T) { // attack 114
	for path, why := range map[string]string{
		"":                     "an empty path",
		"/etc/passwd":          "an absolute path",
		"../x":                 "a path with the part ..",
		"a/../../x":            "a path with the part ..",
		"a/..":                 "a path with the part ..",
		"./a":                  "a path with the part .",
		"a//b":                 "a path with an empty part",
		"a/":                   "a path with an empty part",
		"a\x00b":               "a path with a NUL",
		".git":                 "a path into git's own folder",
		".git/hooks/pre-push":  "a path into git's own folder",
		"sub/.GiT/config":      "a path into git's own folder",
		".git./config":         "a path into git's own folder",
		".git /config":         "a path into git's own folder",
		".git . /config":       "a path into git's own folder",
		".git::$INDEX/config":  "a path into git's own folder",
		"GIT~1/config":         "a path into git's own folder",
		`a\.git\config`:        "a path into git's own folder",
		".g\u200cit/config":    "a path into git's own folder",
		"\ufeff.git/config":    "a path into git's own folder",
		"link:.gitmodules":     "a link in the place of .gitmodules",
		"link:a/.GITMODULES. ": "a link in the place of .gitmodules",
		"link:gitmod~1":        "a link in the place of .gitmodules",
		"link:GI7EBA~1":        "a link in the place of .gitmodules",
		"link:gi7e~123":        "a link in the place of .gitmodules",
	} {
		path, isLink := strings.CutPrefix(path, "link:")
		f := Found{Type: "symlink", Target: "x"}
		if !isLink {
			f = Found{Type: "file"}
		}
		var b bytes.Buffer
		src := fixed{after: map[string]Found{path: f}, open: errors.New("opened"), t: t}
		sum, err := Write(context.Background(), &b, []workspace.Change{{Path: path, Change: workspace.Created, Type: f.Type}}, src, Options{})
		if err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if diff := cmp.Diff(Summary{Bytes: int64(b.Len()), Refused: []Note{{path, why}}}, sum); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
		if !strings.HasPrefix(b.String(), "# Left out") || strings.Contains(b.String(), "diff --git") {
			t.Errorf("%q: %q", path, b.String())
		}
	}
	for _, path := range []string{
		".gitignore", ".gitattributes", ".gitmodules", ".github/workflows/x.yml", "git", "git~2", "x.git", ".git-x", "....", "..a", "a/...", ".gitx/..b", "gitmod~1",
	} {
		if why := refusal(path, false); why != "" {
			t.Errorf("%q is refused: %s", path, why)
		}
	}
	if why := refusal("gi7e", true); why != "" {
		t.Errorf("an ordinary link is refused: %s", why)
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	file := map[string]Found{"f": {Type: "file", Mode: 0o644, Size: 3}}
	for _, c := range []struct {
		sentence string
		change   workspace.Change
		open     error
		want     string
	}{
		{"by the list of changes", workspace.Change{Path: "f", Type: "file", Unreadable: true}, errors.New("opened"), "cannot be read"},
		{"by the system", workspace.Change{Path: "f", Type: "file"}, fmt.Errorf("open f: %w", fs.ErrPermission), "cannot be read"},
		{"of a folder", workspace.Change{Path: "f", Type: "dir", Unreadable: true}, nil, "a folder that cannot be read"},
	} {
		src := fixed{after: file, open: c.open}
		if c.change.Type == "dir" {
			src.after = map[string]Found{"f": {Type: "dir", Mode: 0}}
		}
		sum, err := Write(context.Background(), &bytes.Buffer{}, []workspace.Change{c.change}, src, Options{})
		if err != nil || len(sum.Lost) != 1 || sum.Lost[0] != (Note{"f", c.want}) || sum.Files != 0 {
			t.Errorf("%s: %+v, %v", c.sentence, sum, err)
		}
	}
	broken := errors.New("the disk is broken")
	var b bytes.Buffer
	_, err := Write(context.Background(), &b, []workspace.Change{{Path: "f", Type: "file"}}, fixed{after: file, open: broken}, Options{})
	if !errors.Is(err, broken) || b.Len() > 0 {
		t.Errorf("any other error is one of the patch, and nothing is written: %v, %q", err, b.String())
	}
}

func TestAFileThatChangesWhileItIsReadIsNotCarried(t *testing.T) {
	for _, size := range []int64{2, 4} {
		d := dirs{t.TempDir(), t.TempDir()}
		lay(t, d.after, tree{"f": text("abc")})
		src := resized{d, size}
		sum, err := Write(context.Background(), &bytes.Buffer{}, d.changes(t), src, Options{})
		if err != nil || len(sum.Lost) != 1 || sum.Lost[0].Why != "changed while it was read" {
			t.Errorf("size %d: %+v, %v", size, sum, err)
		}
	}
}

type resized struct {
	dirs
	size int64
}

func (r resized) After(p string) (Found, error) {
	f, err := r.dirs.After(p)
	f.Size = r.size
	return f, err
}

// The comment is the one place where a name stands outside of a header.
func TestACommentHoldsNoHeader(t *testing.T) {
	d := dirs{t.TempDir(), t.TempDir()}
	after := tree{}
	for i := range 150 {
		after[fmt.Sprintf("x\ndiff --git a/../y b/..\x1b[2J\u202e%d", i)] = file{kind: "fifo"}
	}
	after[strings.Repeat("d/", 150)+"p"] = file{kind: "fifo"}
	lay(t, d.after, after)
	var b bytes.Buffer
	sum, err := Write(context.Background(), &b, d.changes(t), d, Options{})
	if err != nil || len(sum.Lost) < 151 {
		t.Fatalf("%d lost, %v", len(sum.Lost), err)
	}
	for line := range strings.Lines(b.String()) {
		if line != "\n" && !strings.HasPrefix(line, "# ") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r > '~' }) || len(line) > 1000 {
			t.Errorf("line %q", line)
		}
	}
	if !strings.Contains(b.String(), fmt.Sprintf("#   and %d more\n", len(sum.Lost)-maxNotes)) {
		t.Errorf("the rest is not counted:\n%s", b.String())
	}
}
