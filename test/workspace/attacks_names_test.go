package workspace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deepest is a path of 4000 bytes, the most that can be named in one piece.
const deepest = 2000

// hostile are names that break what is written down line by line, or hide in it.
var hostile = []string{
	"line\nbreak", "carriage\rreturn", "\x1b[31mred", "bidi\u202etxt.exe", "bad\xff\xfename",
	"::error file=x::y", "```", "| a | **b** |", "-rf", " ", strings.Repeat("n", 255),
}

// octal is a text as printf writes it. A steps file may hold none of these names.
func octal(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\%03o`, s[i])
	}
	return b.String()
}

// nameAttacks are about files that are none, and names that say more than a name.
func nameAttacks() []attack {
	hostileText := "mkdir a107; cd a107\n"
	for _, n := range hostile {
		hostileText += "echo hostile > \"$(printf './" + octal(n) + "')\"\n"
	}
	return []attack{{
		name:  "I106 a FIFO and a socket are listed, not opened and not committed, and a device cannot be made",
		steps: []scriptStep{{id: "a106", text: "mkdir a106; cd a106; mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; ! mknod dev c 1 3; ! mknod disk b 8 0; echo x > plain"}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a106", "committed")
			if diff := cmp.Diff([]string{"created dir a106", "created fifo a106/pipe", "created file a106/plain", "created socket a106/sock"}, short(st.Files)); diff != "" {
				t.Errorf("the list (-want +got)\n%s", diff)
			}
			s.absent(t, "a106/pipe", "a106/sock", "a106/dev", "a106/disk")
			if _, err := os.Stat(s.at("a106/plain")); err != nil {
				t.Errorf("control: %v", err)
			}
		},
	}, {
		name:  "I107 hostile names are listed byte for byte and escaped wherever people read them",
		steps: []scriptStep{{id: "a107", text: hostileText}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a107", "committed")
			want := []string{"created dir a107"}
			for _, n := range hostile {
				want = append(want, "created file a107/"+n)
				if _, err := os.Lstat(s.at("a107/" + n)); err != nil {
					t.Errorf("control: %v", err)
				}
			}
			got := short(st.Files)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the list (-want +got)\n%s", diff)
			}
			summary, err := os.ReadFile(filepath.Join(s.out, "summary.md"))
			do(t, err)
			for where, text := range map[string]string{"the log": s.log, "the summary": string(summary)} {
				for _, bad := range []string{"line\nbreak", "carriage\r", "\x1b[31mred", "\u202e", "\xff", "\n::error file=x", "\n```\n| a"} {
					if strings.Contains(text, bad) {
						t.Errorf("%s has %q as it is", where, bad)
					}
				}
			}
		},
	}, {
		name: "I107 a folder without permissions and one of two thousand levels are walked to their end",
		steps: []scriptStep{
			{id: "a107-shut", text: "mkdir -p a107s/shut; echo x > a107s/shut/in; chmod 000 a107s/shut"},
			{id: "a107-deep", text: fmt.Sprintf("mkdir a107d; cd a107d; python3 -c 'import os\nfor i in range(%d): os.mkdir(\"d\"); os.chdir(\"d\")\nopen(\"end\", \"w\").write(\"x\")'", deepest)},
		},
		after: func(t *testing.T, s *scene) {
			has(t, s.passes(t, "a107-shut", "committed").Files, "created dir a107s/shut", "created file a107s/shut/in")
			do(t, os.Chmod(s.at("a107s/shut"), 0o700))
			if _, err := os.Stat(s.at("a107s/shut/in")); err != nil {
				t.Errorf("control: the folder was committed without what lies in it: %v", err)
			}
			st := s.passes(t, "a107-deep", "committed")
			if st.FilesTotal != deepest+2 {
				t.Errorf("%d changes are listed, want %d", st.FilesTotal, deepest+2)
			}
			last := "a107d/" + strings.Repeat("d/", deepest) + "end"
			has(t, st.Files, "created file "+last)
			if _, err := os.Stat(s.at(last)); err != nil {
				t.Errorf("control: the deepest file is not there: %v", err)
			}
		},
	}}
}
