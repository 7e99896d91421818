package kern

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Nothing here depends on which release of the package is the newest today: whoever
// asks pip for it names the one of the pins, so a new one is taken on purpose.
func TestThePackageIsAskedForByItsPin(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	ci, err := os.ReadFile(filepath.Join(root, ".ci/run"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(ci), " "+Wheel+";") {
		t.Errorf(".ci/run does not ask for %s", Wheel)
	}
	// A word of its own behind pip, or a text of a program that is nothing else.
	loose := regexp.MustCompile(`\bpip3? .*\b` + wheelPackage + `(["' ;]|$)|"` + wheelPackage + `"`)
	if !loose.MatchString("pip download -d x "+wheelPackage+"; then") || loose.MatchString("pip download "+Wheel+"; then") {
		t.Fatal("the control is not found, or what is pinned is")
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		at, _ := filepath.Rel(root, path)
		switch {
		case !d.Type().IsRegular(), at == "internal/kern/pins.go":
			return nil
		case filepath.Ext(at) == ".go", filepath.Ext(at) == ".yml", filepath.Ext(at) == ".md", filepath.Ext(at) == "", filepath.Ext(at) == ".sh":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if loose.MatchString(strings.TrimRight(line, "\n")) {
				t.Errorf("%s: %s", at, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
