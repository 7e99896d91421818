package steps

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModulePaths(t *testing.T) {
	text := "[submodule \"a\"]\n\tpath = lib/a\n\turl = ../a\n[submodule \"b\"] path=\"lib b\"\r\n\tPATH =  c  \n# path\n\tpathological = x\n"
	got, err := modulePaths(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lib/a", "lib b", "c"}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := modulePaths(strings.NewReader(strings.Repeat("x\n", maxModules))); err == nil {
		t.Error("a file without end was read")
	}
}
