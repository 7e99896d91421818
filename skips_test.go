package untrustedsteps_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// A test that is skipped tests nothing. So there is one place that skips, which
// CI can forbid to, and CI forbids it wherever it can serve the need.

// skipper is the file that may skip a test.
const skipper = "internal/boxtest/need/need.go"

// notInCI are the needs that CI does not serve, and why.
var notInCI = map[string]string{
	"normal user": "CI is root, and starts the tests of normal users itself",
	"docker":      "a daemon of root's and 250 MB of packages, for words that the tests with runc have shown to be needed; it runs where dockerd is",
	"ipv6":        "many container networks have none",
	"cargo":       "a compiler's download for one test of a setting; it runs where cargo is",
	"mvn":         "the same",
}

func TestOneFileSkipsTests(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".txtar"):
			b, err := os.ReadFile(path)
			if m := regexp.MustCompile(`(?m)^\s*(\[[^\]]*\]\s*)*skip\b.*`).Find(b); m != nil {
				t.Errorf("%s skips: %s", path, m)
			}
			return err
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		calls, err := skips(path, nil)
		if err != nil {
			return err
		}
		seen += len(calls)
		if len(calls) > 0 && path != skipper {
			t.Errorf("%s calls %s; a need that can be required goes through %s", path, strings.Join(calls, ", "), skipper)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen == 0 {
		t.Errorf("%s skips no test: this test looks for the wrong thing", skipper)
	}
}

// skips lists the calls in a file that skip a test.
func skips(path string, text any) (calls []string, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
			calls = append(calls, s.Sel.Name)
		}
		return true
	})
	return calls, nil
}

func TestSkipsAreFound(t *testing.T) {
	calls, err := skips("x_test.go", "package x\nfunc f(t testing.TB) { t.Skip(); g := b.in.Skipf; func() { t.SkipNow() }() }\n")
	if err != nil || !slices.Equal(calls, []string{"Skip", "Skipf", "SkipNow"}) {
		t.Errorf("found %v (%v), want all three", calls, err)
	}
}

// TestCIRequires: a name that is misspelt there would require nothing.
func TestCIRequires(t *testing.T) {
	b, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^require="(.*)"$`).FindSubmatch(b)
	if m == nil {
		t.Fatal(".ci/run has no line require=\"...\"")
	}
	listed := strings.Split(string(m[1]), ",")
	// kern is on top of the list, where it can be had.
	if !strings.Contains(string(b), "\n  export BOX_REQUIRE=\"$require,kern\"\n") || !strings.Contains(string(b), "\n  export BOX_REQUIRE=\"$require\"\n") {
		t.Error(".ci/run does not require the list with kern, and the list where there is none")
	}
	if !strings.Contains(string(b), "\nexport BOX_REQUIRE=\"$BOX_REQUIRE,runsc\"\n") {
		t.Error(".ci/run does not require runsc")
	}
	all := append(listed, "kern", "runsc")
	for _, n := range need.Names() {
		_, excused := notInCI[n]
		switch required := slices.Contains(all, n); {
		case required && excused:
			t.Errorf("notInCI excuses %q, which .ci/run requires", n)
		case !required && !excused:
			t.Errorf(".ci/run does not require %q, and notInCI does not say why", n)
		}
	}
	for _, n := range all {
		if !slices.Contains(need.Names(), n) {
			t.Errorf(".ci/run requires %q, which is no need", n)
		}
	}
}
