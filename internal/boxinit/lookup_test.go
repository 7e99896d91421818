package boxinit

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// tree makes a small file system: a path that ends in / is a folder, x before
// the path makes the file executable.
func tree(t *testing.T, paths ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, p := range paths {
		mode := os.FileMode(0o644)
		if p[0] == '+' {
			p, mode = p[1:], 0o755
		}
		full := filepath.Join(root, p)
		dir := filepath.Dir(full)
		if p[len(p)-1] == '/' {
			dir = full
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir == full {
			continue
		}
		if err := os.WriteFile(full, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLookup(t *testing.T) {
	const noent, acces = int(syscall.ENOENT), int(syscall.EACCES)
	root := tree(t, "+bin/tool", "bin/plain", "bin/folder/", "+later/tool", "+later/plain", "+later/folder", "+work/tool", "+work/own", "+work/sub/own", "work/plain", "work/bin/", "+work/bin/local", "afile")
	if err := os.Symlink("tool", filepath.Join(root, "bin/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "bin/dangling")); err != nil {
		t.Fatal(err)
	}
	// @ stands for the root of the tree.
	at := func(s string) string {
		out := ""
		for _, c := range s {
			if c == '@' {
				out += root
			} else {
				out += string(c)
			}
		}
		return out
	}
	// The places of relative PATH entries depend on where we are; in the box
	// the first process is in /. Here it is the worst place there is.
	t.Chdir(filepath.Join(root, "work"))
	for _, tc := range []struct {
		sentence, name, path, workdir string
		want                          string // empty if it fails
		op                            string
		errno                         int
	}{
		{"an absolute path is taken as it is", "@/bin/tool", "", "@/work", "@/bin/tool", "", 0},
		{"an absolute path that is missing", "@/bin/none", "@/bin", "@/work", "", "exec", noent},
		{"an absolute path to a folder", "@/bin/folder", "", "@/work", "", "exec", acces},
		{"an absolute path to what is not executable", "@/bin/plain", "@/later", "@/work", "", "exec", acces},
		{"an absolute path through a file", "@/afile/x", "", "@/work", "", "exec", int(syscall.ENOTDIR)},
		{"a path with a slash belongs to the workdir, not to PATH", "./tool", "@/bin", "@/work", "@/work/tool", "", 0},
		{"a relative path goes down", "sub/own", "@/bin", "@/work", "@/work/sub/own", "", 0},
		{"a relative path goes up", "../bin/tool", "", "@/work", "@/bin/tool", "", 0},
		{"a relative path that is missing is not looked up on PATH", "./plain2", "@/bin", "@/work", "", "exec", noent},
		{"a relative path to what is not executable", "./plain", "@/later", "@/work", "", "exec", acces},
		{"a bare name is looked up on PATH, first entry first", "tool", "@/bin:@/later", "@/work", "@/bin/tool", "", 0},
		{"a bare name on a later entry", "tool", "@/none:@/afile:@/later", "@/work", "@/later/tool", "", 0},
		{"what is not executable is passed over for what is", "plain", "@/bin:@/later", "@/work", "@/later/plain", "", 0},
		{"a folder is passed over for a program", "folder", "@/bin:@/later", "@/work", "@/later/folder", "", 0},
		{"if there is only what is not executable, that is said", "plain", "@/bin:@/none", "@/work", "", "exec", acces},
		{"a link to a program is one", "link", "@/bin", "@/work", "@/bin/link", "", 0},
		{"a link to nowhere is none", "dangling", "@/bin", "@/work", "", "exec", noent},
		{"a bare name is never found in the workdir", "own", "@/bin", "@/work", "", "exec", noent},
		{"an empty entry of PATH is not the workdir", "own", ":@/bin:", "@/work", "", "exec", noent},
		{"a dot on PATH is not the workdir", "own", ".:./:@/bin", "@/work", "", "exec", noent},
		{"a relative entry of PATH is ignored", "local", "bin:../work/bin", "@/work", "", "exec", noent},
		{"entries after an ignored one count", "tool", ":.:@/bin", "@/work", "@/bin/tool", "", 0},
		{"without a PATH nothing is found", "tool", "", "@/work", "", "exec", noent},
		{"an empty name is found nowhere", "", "@/bin", "@/work", "", "exec", acces},
		{"a missing workdir is the workdir's failure, whatever the command", "@/bin/tool", "", "@/none", "", "workdir", noent},
		{"a workdir that is a file is the workdir's failure", "@/bin/tool", "", "@/afile", "", "workdir", int(syscall.ENOTDIR)},
		{"a workdir below a file is the workdir's failure", "tool", "@/bin", "@/afile/x", "", "workdir", int(syscall.ENOTDIR)},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, failed := lookup(Start{Argv: []string{at(tc.name)}, Env: []string{"OTHER=1", "PATH=" + at(tc.path)}, Workdir: at(tc.workdir)})
			if tc.want != "" {
				if failed != nil || got != at(tc.want) {
					t.Fatalf("%q, %v; want %q", got, failed, at(tc.want))
				}
				return
			}
			if failed == nil {
				t.Fatalf("found %q", got)
			}
			name := at(tc.name)
			if tc.op == "workdir" {
				name = at(tc.workdir)
			}
			if got != "" || failed.Op != tc.op || failed.Errno != tc.errno || failed.Name != name {
				t.Errorf("%q, %+v; want %s of %q with errno %d", got, failed, tc.op, name, tc.errno)
			}
		})
	}
}

func TestPathOf(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		env      []string
		want     string
	}{
		{"no environment has no PATH", nil, ""},
		{"a name that only begins like it is another", []string{"PATHX=/x", "path=/y", "XPATH=/z"}, ""},
		{"of two the last holds, as exec sees it", []string{"PATH=/a", "PATH=/b"}, "/b"},
		{"a value may hold an equals sign", []string{"PATH=/a=b"}, "/a=b"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := pathOf(tc.env); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
