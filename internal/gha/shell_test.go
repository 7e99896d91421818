package gha

import (
	"os/exec"
	"strings"
	"testing"
)

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{
		"/a/b-c": "/a/b-c", "/a b": "'/a b'", "/a'b": `'/a'\''b'`, "": "''", "/$(x)": "'/$(x)'", "~": "'~'", "a;b": "'a;b'", "#a": "'#a'", "a\nb": "'a\nb'",
	} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
	for _, word := range append([]string{"a;$(touch PWN);b.yml", "`id`", "*", "[a-z]", "{a,b}", "!!", "a\\", "-", "é", "=x", "a=b"}, hostile...) {
		if strings.Contains(word, "\x00") {
			continue // in no command, and in no name of a file
		}
		if got, err := exec.Command("sh", "-c", "printf %s "+ShellWord(word)).Output(); err != nil || string(got) != word {
			t.Errorf("a shell takes %q for %q, %v", word, got, err)
		}
	}
}
