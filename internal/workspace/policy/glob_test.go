package policy

import (
	"strings"
	"testing"
	"time"
)

func TestRefusesGlobs(t *testing.T) {
	for sentence, tc := range map[string]struct{ glob, word string }{
		"an empty one":                         {"", "empty"},
		"an absolute one":                      {"/etc/**", "absolute"},
		"an absolute one among braces":         {"{/etc,out}/x", "absolute"},
		"one that climbs":                      {"../x", ".."},
		"one that climbs in the middle":        {"a/../b", ".."},
		"one that climbs with a backslash":     {`a/\.\./b`, ".."},
		"one that climbs out of braces":        {"a/{..,b}/c", ".."},
		"a dot component":                      {"./out", "./"},
		"an empty component":                   {"a//b", "empty"},
		"an empty alternative as a component":  {"a/{,b}/c", "empty"},
		"a slash at the end":                   {"out/", "slash"},
		"a class without its end":              {"a[b", "syntax"},
		"an empty class":                       {"a[]", "syntax"},
		"a slash in a class":                   {"a[b/c]d", "syntax"},
		"a brace without its end":              {"{a,b", "syntax"},
		"a brace without its start":            {"a}", "syntax"},
		"a backslash at the end":               {`a\`, "syntax"},
		"a backslash before a slash":           {`a\/b`, "syntax"},
		"a NUL":                                {"a\x00b", "NUL"},
		"what is not UTF-8":                    {"a\xffb", "UTF-8"},
		"one of many kilobytes":                {strings.Repeat("a", maxGlob+1), "longest"},
		"braces that come to a million":        {strings.Repeat("{a,b}", 20), "too many"},
		"braces within braces without measure": {strings.Repeat("{", 40) + strings.Repeat("}", 40), "braces"},
	} {
		t.Run(sentence, func(t *testing.T) {
			_, err := Compile([]string{"ok", tc.glob})
			if err == nil {
				t.Fatalf("%q is accepted", tc.glob)
			}
			if !strings.Contains(err.Error(), tc.word) || tc.glob != "" && !strings.Contains(err.Error(), "glob ") {
				t.Errorf("the error says neither the glob nor %q: %v", tc.word, err)
			}
		})
	}
}

func TestGlobsMeanWhatTheySay(t *testing.T) {
	for _, tc := range []struct{ glob, yes, no string }{
		{"**", "a a/b .a a/.b/c .", ""},
		{"*", "a .a a\xff", "a/b ."},
		{".", ".", "a"},
		{"out/**", "out out/a out/a/b", "a out2 a/out"},
		{"out", "out", "out/a"},
		{"**/out/**", "out a/out a/out/b", "outs"},
		{"*.txt", "a.txt .txt", "a/b.txt a.txt/b"},
		{"**/*.txt", "a.txt a/b.txt", "a.txt/b"},
		{"**.txt", "a.txt", "a/b.txt"},
		{"a?c", "abc a\xffc aßc", "a/c ac"},
		{"a[!x]c", "abc", "a/c axc"},
		{"a[^x]c", "abc", "a/c axc"},
		{"{a,b/c}/d", "a/d b/c/d", "b/d c/d"},
		{"a{,.b}", "a a.b", "b"},
		{"{a,{b,c}}", "a b c", "d {a"},
		{`a\*`, "a*", "ab"},
		{`\{a\}`, "{a}", "a"},
		{"[{]a", "{a", "a"},
		{"{[}],x}", "} x", "{"},
		{"a/**/b/**/c", "a/b/c a/x/b/y/z/c a/b/b/c", "a/c a/b a/b/c/d"},
		{"A", "A", "a"},
	} {
		p := compiled(t, tc.glob)
		check := func(path string, want bool) {
			names, ok := split(path)
			if !ok {
				t.Fatalf("%q is no path", path)
			}
			if got := p.permits(names, -1); got != want {
				t.Errorf("%q permits %q: %v", tc.glob, path, got)
			}
		}
		for path := range strings.FieldsSeq(tc.yes) {
			check(path, true)
		}
		for path := range strings.FieldsSeq(tc.no) {
			check(path, false)
		}
	}
}

func TestNoGlobPermitsNothing(t *testing.T) {
	for _, p := range []Policy{{}, compiled(t)} {
		if p.permits([]string{"a"}, -1) || p.permits(nil, -1) {
			t.Error("a policy without globs permits something")
		}
	}
}

func TestEscapedPathIsPermittedByItsGlob(t *testing.T) {
	for _, path := range []string{"a", "a/b", "*", "[a]", "{a,b}", `a\b`, "a\nb", "a b", "-a", "!a", "a\xff\xfeb", "ü/→", ".git/hooks/*"} {
		p := compiled(t, escape(path))
		names, _ := split(path)
		if !p.permits(names, -1) || p.permits([]string{"other"}, -1) {
			t.Errorf("%q is not what %q means", path, escape(path))
		}
	}
}

func TestMatchingTakesNoExponentialTime(t *testing.T) {
	begun := time.Now()
	p := compiled(t, strings.Repeat("**/a/", 500)+"b", strings.Repeat("*a", 1000)+"b")
	names := strings.Split(strings.TrimSuffix(strings.Repeat("a/", 2000), "/"), "/")
	if p.permits(names, -1) || p.permits([]string{strings.Repeat("a", 255)}, -1) {
		t.Error("permitted")
	}
	// It is some milliseconds.
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}
