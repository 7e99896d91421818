package policy

import (
	"strings"
	"testing"
)

func compiledOf(t *testing.T, globs []string) Policy {
	t.Helper()
	p, err := Compile(globs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAListOfGlobsIsWithinACeilingByWhatItPermits(t *testing.T) {
	for sentence, tc := range map[string]struct {
		globs, ceiling []string
		want           bool
	}{
		"nothing is within nothing":                            {nil, nil, true},
		"nothing is within anything":                           {nil, []string{"out/**"}, true},
		"anything is not within nothing":                       {[]string{"a"}, nil, false},
		"everything is within everything":                      {[]string{"**"}, []string{"**"}, true},
		"everything is not within a folder":                    {[]string{"**"}, []string{"out/**"}, false},
		"a folder is within everything":                        {[]string{"out/**"}, []string{"**"}, true},
		"a folder is within itself":                            {[]string{"out/**"}, []string{"out/**"}, true},
		"a folder below is within a folder":                    {[]string{"out/a/**"}, []string{"out/**"}, true},
		"the folder itself is within the folder":               {[]string{"out"}, []string{"out/**"}, true},
		"a folder is not within what lies directly in it":      {[]string{"out/**"}, []string{"out/*"}, false},
		"another folder is not":                                {[]string{"src/**"}, []string{"out/**"}, false},
		"a file that matches a star":                           {[]string{"out/a.txt"}, []string{"out/*.txt"}, true},
		"a file that does not match a star":                    {[]string{"out/a.sh"}, []string{"out/*.txt"}, false},
		"a star within the same star":                          {[]string{"*.txt"}, []string{"*.txt"}, true},
		"a star with an end within a lone star":                {[]string{"*.txt"}, []string{"*"}, true},
		"a lone star within a star with an end":                {[]string{"*"}, []string{"*.txt"}, false},
		"a class within another class cannot be shown":         {[]string{"[ab]"}, []string{"[abc]"}, false},
		"braces are written out":                               {[]string{"{a,b}/**"}, []string{"a/**", "b/**"}, true},
		"one of several braces is outside":                     {[]string{"{a,c}/**"}, []string{"a/**", "b/**"}, false},
		"any depth within any depth with the same end":         {[]string{"**/a.txt"}, []string{"**/*.txt"}, true},
		"any depth with an end within any depth":               {[]string{"x/**/a"}, []string{"**/a"}, true},
		"any depth within one that must begin otherwise":       {[]string{"**/a"}, []string{"x/**/a"}, false},
		"a path within two of any depth":                       {[]string{"a/b/c/d"}, []string{"**/b/**/d"}, true},
		"the last glob is outside":                             {[]string{"out/a", "src"}, []string{"out/**"}, false},
		"a protected name is not within everything":            {[]string{".github/**"}, []string{"**"}, false},
		"a protected name is not within a star":                {[]string{".git/config"}, []string{"*/config"}, false},
		"a protected name is within itself":                    {[]string{".github/workflows/**"}, []string{".github/**"}, true},
		"a protected name in other letters is another":         {[]string{".GitHub/**"}, []string{".github/**"}, false},
		"a protected name further below is not within all":     {[]string{"sub/.git/hooks/**"}, []string{"**"}, false},
		"a protected name further below is not within folder":  {[]string{"sub/.git/hooks/**"}, []string{"sub/**"}, false},
		"a protected name further below is within itself":      {[]string{"sub/.git/hooks/**"}, []string{"sub/.git/**"}, true},
		"the short name of a protected one is one too":         {[]string{"git~1/**"}, []string{"**"}, false},
		"owners in docs are protected":                         {[]string{"docs/CODEOWNERS"}, []string{"docs/**"}, false},
		"the workspace's own folder needs naming":              {[]string{"."}, []string{"**"}, false},
		"the workspace's own folder is within itself":          {[]string{"."}, []string{"."}, true},
		"naming the workspace's own folder names nothing else": {[]string{"a"}, []string{"."}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := compiledOf(t, tc.globs).Within(compiledOf(t, tc.ceiling)); got != tc.want {
				t.Errorf("%q within %q: %v, want %v", tc.globs, tc.ceiling, got, tc.want)
			}
		})
	}
}

// TestWhatIsWithinACeilingPermitsNothingMore compares the answer about globs
// with the answer about paths.
func TestWhatIsWithinACeilingPermitsNothingMore(t *testing.T) {
	globs := []string{"**", "*", "a", "a/**", "a/*", "**/b", "*/b", "a/b", "**/a/**", "a/**/b", "[ab]", "{a,b}/**", ".git/**", "a/.git/**", ".git/*", "**/.git", "."}
	var paths []string
	for _, x := range []string{"a", "b", ".git", "c"} {
		paths = append(paths, x)
		for _, y := range []string{"a", "b", ".git", "c"} {
			paths = append(paths, x+"/"+y)
			for _, z := range []string{"a", "b", ".git"} {
				paths = append(paths, x+"/"+y+"/"+z)
			}
		}
	}
	permits := func(p Policy, path string) bool {
		names, _ := split(path)
		pinned := -1
		for i, n := range names {
			if pinned < 0 && n == ".git" {
				pinned = i
			}
		}
		return p.permits(names, pinned)
	}
	within := 0
	for _, g := range globs {
		for _, c := range globs {
			p, ceiling := compiledOf(t, []string{g}), compiledOf(t, []string{c})
			if !p.Within(ceiling) {
				continue
			}
			within++
			for _, path := range paths {
				if permits(p, path) && !permits(ceiling, path) {
					t.Errorf("%q is within %q, and permits %s, which that does not", g, c, path)
				}
			}
		}
	}
	if within < len(globs) {
		t.Errorf("only %d pairs are within each other", within)
	}
}

func TestComparingLongGlobsIsQuick(t *testing.T) {
	long := strings.Repeat("**/a/", 700) + "b"
	if compiledOf(t, []string{long}).Within(compiledOf(t, []string{strings.Repeat("**/a/", 700) + "c"})) {
		t.Error("one that ends in b is within one that ends in c")
	}
}
