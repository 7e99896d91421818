package workspace_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// deepest is a path of 4000 bytes, the most that can be named in one piece.
const deepest = 2000

// scene is one run of the program: its steps are the attacks, and a folder of
// the host's, which the plan does not name, is what they are after.
type scene struct {
	*place
	*report
	host string
}

// hostFolder is somebody's folder beside everything: no step may read or change it.
func hostFolder(t testing.TB, w way) string {
	t.Helper()
	host := boxtest.OpenDir(t)
	do(t, os.WriteFile(filepath.Join(host, "secret"), []byte("of the host\n"), 0o644))
	if w.uid != 0 {
		do(t, os.Lchown(host, w.uid, w.uid), os.Lchown(filepath.Join(host, "secret"), w.uid, w.uid))
	}
	return host
}

// untouched holds that the host's folder is as it was.
func (s *scene) untouched(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.host, "secret"))
	names, err2 := os.ReadDir(s.host)
	do(t, err, err2)
	if string(b) != "of the host\n" || len(names) != 1 {
		t.Errorf("the host's file is now %q, beside it are %v", b, names)
	}
}

// violates holds that a step was dropped for a kind of violation.
func (s *scene) violates(t *testing.T, id, kind string) result {
	t.Helper()
	st := s.step(id)
	if st.Workspace != "discarded" || len(st.Violations) == 0 || slices.ContainsFunc(st.Violations, func(v struct{ Type, Message string }) bool { return v.Type != kind }) {
		t.Errorf("step %s: workspace %s, violations %+v, want it discarded for %s", id, st.Workspace, st.Violations, kind)
	}
	return st
}

func (s *scene) passes(t *testing.T, id, fate string) result {
	t.Helper()
	st := s.step(id)
	if st.Status != "passed" || len(st.Violations) > 0 || st.Workspace != fate {
		t.Errorf("step %s: %s, workspace %s, want it passed and %s: %s %+v %+v", id, st.Status, st.Workspace, fate, st.Reason, st.Fault, st.Violations)
	}
	return st
}

func (s *scene) at(path string) string { return filepath.Join(s.workspace, path) }

// absent holds that nothing has that name in the workspace.
func (s *scene) absent(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Lstat(s.at(p)); err == nil {
			t.Errorf("%q is in the workspace", p)
		}
	}
}

// has holds that changes are in a list.
func has(t *testing.T, list []workspace.Change, want ...string) {
	t.Helper()
	got := short(list)
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("the list has no %q: %q", w, clipped(got))
		}
	}
}

func clipped(list []string) []string { return list[:min(len(list), 40)] }

// asListed holds that the files of a list are on the disk as they were hashed.
func (s *scene) asListed(t *testing.T, st result) (files int) {
	t.Helper()
	for _, c := range st.Files {
		if c.Type != "file" || c.Change == workspace.Deleted {
			continue
		}
		b, err := os.ReadFile(s.at(c.RawPath()))
		do(t, err)
		if sum := sha256.Sum256(b); c.SHA256 != hex.EncodeToString(sum[:]) || c.Size != int64(len(b)) {
			t.Errorf("%s is listed with %d bytes and sum %s, and has %d and %x", c.Path, c.Size, c.SHA256, len(b), sum)
		}
		files++
	}
	return files
}

// hostile are names that break what is written down line by line, or hide in it.
var hostile = []string{
	"line\nbreak", "carriage\rreturn", "\x1b[31mred", "bidi\u202etxt.exe", "bad\xff\xfename",
	"::error file=x::y", "```", "| a | **b** |", "-rf", " ", strings.Repeat("n", 255),
}

// attack is one number of the list of attacks: what is there before, what steps
// do, and what must be true after it.
type attack struct {
	name   string
	before func(t *testing.T, p *place, host string)
	steps  []scriptStep
	after  func(t *testing.T, s *scene)
}

// octal is a text as printf writes it. A steps file may hold none of these names.
func octal(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, `\%03o`, s[i])
	}
	return b.String()
}

func file(t testing.TB, path, text string) {
	t.Helper()
	do(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

func attacks(host string) []attack {
	hostileText := "mkdir a107; cd a107\n"
	for _, n := range hostile {
		hostileText += "echo hostile > \"$(printf './" + octal(n) + "')\"\n"
	}
	swap := "mkdir -p a101; (while :; do echo turn >> a101/turns-%[2]s; rm -rf a101/d; mkdir a101/d; echo mine > a101/d/secret; echo mine > a101/d/more; rm -rf a101/d; ln -s %[1]s a101/d; done) & while [ $(cat a101/turns-%[2]s 2>/dev/null | wc -l) -lt 25 ]; do sleep 0.01; done; exit 0"
	return []attack{{
		name: "I100 a link out of the workspace is followed by nobody, and is listed with its target",
		before: func(t *testing.T, p *place, host string) {
			do(t, os.Mkdir(filepath.Join(p.workspace, "a100"), 0o755), os.Symlink(host, filepath.Join(p.workspace, "a100", "old")))
			file(t, filepath.Join(p.workspace, "a100/real/f"), "inside\n")
			do(t, os.Symlink("real", filepath.Join(p.workspace, "a100", "in")))
		},
		steps: []scriptStep{
			{id: "a100-make", text: "cd a100; ln -s /etc/passwd abs; ln -s ../../../../secret up; ln -s " + host + " dir; ln -s ~/.ssh home; ln -s /proc/self/root root; ln -s real ok"},
			{id: "a100-old", text: "cd a100; ! cat old/secret; ! echo x > old/secret; ! echo x > old/new; cat in/f; echo more > in/f"},
			{id: "a100-replace", text: "cd a100; rm old; mkdir old; echo mine > old/secret; echo mine > old/new"},
		},
		after: func(t *testing.T, s *scene) {
			st := s.violates(t, "a100-make", "link_escape")
			targets := map[string]string{}
			for _, c := range st.Files {
				targets[c.Path] = c.Target
			}
			for p, want := range map[string]string{"a100/abs": "/etc/passwd", "a100/up": "../../../../secret", "a100/dir": s.host, "a100/root": "/proc/self/root", "a100/ok": "real"} {
				if targets[p] != want {
					t.Errorf("%s is listed with the target %q, want %q", p, targets[p], want)
				}
			}
			s.absent(t, "a100/abs", "a100/up", "a100/dir", "a100/home", "a100/root", "a100/ok")
			if st := s.passes(t, "a100-old", "committed"); s.stdout(st.ID) != "inside\n" {
				t.Errorf("control: through the link inside it read %q", s.stdout(st.ID))
			}
			has(t, s.passes(t, "a100-replace", "committed").Files, "retyped dir a100/old", "created file a100/old/secret")
			if b, err := os.ReadFile(s.at("a100/real/f")); err != nil || string(b) != "more\n" {
				t.Errorf("control: what was written through the link inside is %q, %v", b, err)
			}
			s.untouched(t)
		},
	}, {
		name: "I101 a folder and a link that take turns until the end lead our side nowhere",
		steps: []scriptStep{
			{id: "a101-a", text: fmt.Sprintf(swap, host, "a101-a")}, {id: "a101-b", text: fmt.Sprintf(swap, host, "a101-b")}, {id: "a101-c", text: fmt.Sprintf(swap, "../../../../../../.."+host, "a101-c")},
		},
		after: func(t *testing.T, s *scene) {
			for _, id := range []string{"a101-a", "a101-b", "a101-c"} {
				switch st := s.step(id); {
				case st.Workspace == "committed" && len(st.Violations) == 0: // ended as a folder, or as nothing
				default:
					s.violates(t, id, "link_escape")
				}
				if turns := slices.IndexFunc(s.step(id).Files, func(c workspace.Change) bool { return c.Path == "a101/turns-"+id && c.Size >= 25*5 }); turns < 0 {
					t.Errorf("control: step %s took too few turns: %q", id, short(s.step(id).Files))
				}
			}
			if to, err := os.Readlink(s.at("a101/d")); err == nil {
				t.Errorf("a link to %s was committed", to)
			}
			s.untouched(t)
			// The control: outside, the same link leads to the host's file.
			dir := boxtest.OpenDir(t)
			file(t, filepath.Join(dir, "target", "secret"), "theirs")
			if out, err := exec.Command("sh", "-ec", "cd "+dir+"; ln -s "+dir+"/target d; echo mine > d/secret").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if b, _ := os.ReadFile(filepath.Join(dir, "target", "secret")); string(b) != "mine\n" {
				t.Errorf("control: outside, through the link, the file is %q", b)
			}
		},
	}, {
		name: "I102 a file that may only be read gets no second name, and a second name outside keeps what it had",
		before: func(t *testing.T, p *place, host string) {
			at := filepath.Join(p.workspace, "a102")
			file(t, filepath.Join(at, "own"), "own\n")
			file(t, filepath.Join(p.dir, "out-linked"), "linked\n")
			do(t, os.Link(filepath.Join(p.dir, "out-linked"), filepath.Join(at, "linked")))
		},
		steps: []scriptStep{{
			id:   "a102",
			text: "cd a102; ! ln /ro/secret stolen; ! ln /usr/bin/env env; ! ln /etc/passwd passwd; cp /ro/secret copy; ln own second; echo changed > linked; ! echo x > /ro/secret",
			keys: "  mounts: {" + host + ": [/ro, ro]}\n",
		}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a102", "committed")
			has(t, st.Files, "created file a102/copy", "created file a102/second", "modified file a102/linked")
			s.absent(t, "a102/stolen", "a102/env", "a102/passwd")
			if b, err := os.ReadFile(filepath.Join(s.dir, "out-linked")); err != nil || string(b) != "linked\n" {
				t.Errorf("the other name, outside, is now %q, %v", b, err)
			}
			if b, err := os.ReadFile(s.at("a102/copy")); err != nil || string(b) != "of the host\n" {
				t.Errorf("control: the copy is %q, %v", b, err)
			}
			s.untouched(t)
		},
	}, {
		name: "I103 a change of the same size with its time put back is reported",
		before: func(t *testing.T, p *place, host string) {
			for _, n := range []string{"same", "touched"} {
				file(t, filepath.Join(p.workspace, "a103", n), "aaaa\n")
				do(t, os.Chtimes(filepath.Join(p.workspace, "a103", n), time.Unix(1e9, 0), time.Unix(1e9, 0)))
			}
		},
		steps: []scriptStep{
			{id: "a103", text: "cd a103; touch -r same /tmp/ref; echo bbbb > same; touch -r /tmp/ref same"},
			{id: "a103-time", text: "touch a103/touched"},
		},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a103", "committed")
			if diff := cmp.Diff([]string{"modified file a103/same"}, short(st.Files)); diff != "" {
				t.Errorf("the list (-want +got)\n%s", diff)
			}
			s.asListed(t, st)
			if info, err := os.Stat(s.at("a103/same")); err != nil || info.Size() != 5 || info.ModTime().Unix() != 1e9 {
				t.Errorf("control: size and time are as before: %v, %v", info, err)
			}
			if st := s.passes(t, "a103-time", "unchanged"); len(st.Files) > 0 {
				t.Errorf("a change of a time alone is listed: %q", short(st.Files))
			}
		},
	}, {
		name: "I104 what is deleted, renamed, renamed by case or made a folder is each reported, deletions to the last",
		before: func(t *testing.T, p *place, host string) {
			for i := range 400 {
				file(t, filepath.Join(p.workspace, "a104", "many", fmt.Sprint(i)), "x")
			}
			for _, n := range []string{"gone", "old", "case", "file", "kept", "tree/in"} {
				file(t, filepath.Join(p.workspace, "a104", n), "text of "+n+"\n")
			}
		},
		steps: []scriptStep{{id: "a104", text: "cd a104; rm gone; mv old new; mv case CASE; rm file; mkdir file; echo x > file/x; rm -r tree; echo x > tree; rm -r many"}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a104", "committed")
			want := []string{
				"created file a104/CASE", "created file a104/file/x", "created file a104/new", "deleted dir a104/many", "deleted file a104/case",
				"deleted file a104/gone", "deleted file a104/old", "deleted file a104/tree/in", "retyped dir a104/file", "retyped file a104/tree",
			}
			for i := range 400 {
				want = append(want, fmt.Sprintf("deleted file a104/many/%d", i))
			}
			got := short(st.Files)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the list (-want +got)\n%s", diff)
			}
			for _, c := range st.Files {
				if from := map[string]string{"a104/new": "a104/old", "a104/CASE": "a104/case"}[c.Path]; from != "" && c.From != from {
					t.Errorf("%s is said to come from %q, want %s", c.Path, c.From, from)
				}
			}
			if b, err := os.ReadFile(s.at("a104/kept")); err != nil || string(b) != "text of kept\n" {
				t.Errorf("control: what was left alone is %q, %v", b, err)
			}
			s.absent(t, "a104/many", "a104/gone", "a104/old", "a104/case")
		},
	}, {
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
		name: "I107 a folder without permissions and one of two thousand levels are walked to their end or said not to be",
		steps: []scriptStep{
			{id: "a107-shut", text: "mkdir -p a107s/shut; echo x > a107s/shut/in; chmod 000 a107s/shut"},
			{id: "a107-deep", text: fmt.Sprintf("mkdir a107d; cd a107d; python3 -c 'import os\nfor i in range(%d): os.mkdir(\"d\"); os.chdir(\"d\")\nopen(\"end\", \"w\").write(\"x\")'", deepest)},
		},
		after: func(t *testing.T, s *scene) {
			st := s.step("a107-shut")
			has(t, st.Files, "created dir a107s/shut")
			if !s.normal() {
				has(t, s.passes(t, "a107-shut", "committed").Files, "created file a107s/shut/in")
			} else if st.Workspace != "committed" && st.Reason == "" && len(st.Notes) == 0 {
				t.Errorf("a folder that cannot be read: workspace %s, and nobody says why", st.Workspace)
			} else if st.Workspace == "committed" {
				do(t, os.Chmod(s.at("a107s/shut"), 0o700))
				if _, err := os.Stat(s.at("a107s/shut/in")); err != nil {
					t.Errorf("the folder was committed without what lies in it: %v", err)
				}
			}
			st = s.passes(t, "a107-deep", "committed")
			if st.FilesTotal != deepest+2 {
				t.Errorf("%d changes are listed, want %d", st.FilesTotal, deepest+2)
			}
			last := "a107d/" + strings.Repeat("d/", deepest) + "end"
			has(t, st.Files, "created file "+last)
			if _, err := os.Stat(s.at(last)); err != nil {
				t.Errorf("control: the deepest file is not there: %v", err)
			}
		},
	}, {
		name: "I108 nothing is passed over for its name",
		before: func(t *testing.T, p *place, host string) {
			file(t, filepath.Join(p.workspace, ".gitignore"), "build/\n*.o\n.deps/\nnode_modules/\n.env*\n")
		},
		steps: []scriptStep{{id: "a108", text: "for f in .deps/x a/.deps/x node_modules/x a/node_modules/p/x build/x x.o .cache/x .venv/x .env.local .untrusted-steps/x .DS_Store; do mkdir -p $(dirname $f); echo x > $f; done"}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a108", "committed")
			for _, n := range strings.Fields(".deps/x a/.deps/x node_modules/x a/node_modules/p/x build/x x.o .cache/x .venv/x .env.local .untrusted-steps/x .DS_Store") {
				has(t, st.Files, "created file "+n)
			}
			if n := s.asListed(t, st); n != 11 {
				t.Errorf("control: %d files are on the disk as listed, want 11", n)
			}
		},
	}, {
		name: "I109 I114 what git, CI and reviews obey is dropped, and no patch carries what lies in .git",
		steps: []scriptStep{
			{id: "a109", text: "mkdir -p .github/workflows docs; for f in .git/config .git/hooks/pre-commit .git/info/attributes .github/workflows/ci.yml CODEOWNERS docs/CODEOWNERS .gitattributes .gitmodules; do echo evil >> $f; done; chmod +x .git/hooks/pre-commit; echo fine > fine"},
			{id: "a109-spelt", text: "mkdir -p .GIT/hooks '.git.' 'git~1'; echo evil > .GIT/hooks/post-checkout; echo evil > .git./config; echo evil > 'git~1/config'"},
			{id: "a109-named", text: "mkdir -p .github/workflows; echo named > .github/workflows/ok.yml", keys: "  allowChanges: ['.github/**']\n"},
			{id: "a109-first", text: "for f in package-lock.json Makefile .npmrc action.yml zz; do echo x > $f; done"},
		},
		after: func(t *testing.T, s *scene) {
			st := s.violates(t, "a109", "protected_path")
			said := fmt.Sprint(st.Violations)
			for _, p := range strings.Fields(".git/config .git/hooks/pre-commit .git/info/attributes .github/workflows/ci.yml CODEOWNERS docs/CODEOWNERS .gitattributes .gitmodules") {
				if !strings.Contains(said, `"`+p+`"`) {
					t.Errorf("no violation names %s: %s", p, said)
				}
			}
			s.absent(t, ".git/hooks/pre-commit", ".git/info/attributes", ".github/workflows/ci.yml", "CODEOWNERS", "docs", ".gitattributes", ".gitmodules", "fine")
			if b, err := os.ReadFile(s.at(".git/config")); err != nil || strings.Contains(string(b), "evil") {
				t.Errorf(".git/config is now %q, %v", b, err)
			}
			s.violates(t, "a109-spelt", "protected_path")
			s.absent(t, ".GIT", ".git.", "git~1")
			has(t, s.passes(t, "a109-named", "committed").Files, "created file .github/workflows/ok.yml")
			st = s.passes(t, "a109-first", "committed")
			for _, n := range []string{"package-lock.json", "Makefile", ".npmrc", "action.yml"} {
				if !slices.Contains(st.First, n) {
					t.Errorf("a reviewer is first shown %q, want %s among it", st.First, n)
				}
			}
			if slices.Contains(st.First, "zz") {
				t.Errorf("control: any file is shown first: %q", st.First)
			}
			s.patchIsHarmless(t)
		},
	}, {
		name: "I110 J123 a sparse file, too many files and a full disk are disk_limit or bounded",
		steps: []scriptStep{
			{id: "a110-sparse", text: "truncate -s 1T a110-big", keys: "  diskMb: 16\n"},
			{id: "a110-inodes", text: "mkdir a110; i=0; while [ $i -lt 6000 ]; do : > a110/$i; i=$((i+1)); done", keys: "  diskMb: 8\n"},
			{id: "a110-fill", text: "cat /dev/zero > a110-zero; i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero > a110-$i; i=$((i+1)); done", keys: "  diskMb: 16\n"},
			{id: "a110-fits", text: "truncate -s 8M a110-hole; head -c 1000000 /dev/zero > a110-full", keys: "  diskMb: 16\n"},
		},
		after: func(t *testing.T, s *scene) {
			for _, id := range []string{"a110-inodes", "a110-fill"} {
				if st := s.step(id); st.Fault == nil || st.Fault.Type != "disk_limit" || st.Workspace != "discarded" {
					t.Errorf("step %s: workspace %s, %s, fault %+v, want disk_limit", id, st.Workspace, st.Reason, st.Fault)
				}
			}
			switch st := s.step("a110-sparse"); {
			case st.Status == "passed" && st.Workspace == "committed":
				// A hole is no room taken: then it has to be one on the disk as well.
				var info unix.Stat_t
				if do(t, unix.Lstat(s.at("a110-big"), &info)); info.Blocks*512 > 1<<20 {
					t.Errorf("the hole takes %d bytes on the disk", info.Blocks*512)
				}
			default:
				if st.Status != "failed" || st.Workspace != "discarded" {
					t.Errorf("the sparse file: %s, workspace %s, %s %+v", st.Status, st.Workspace, st.Reason, st.Fault)
				}
				s.absent(t, "a110-big")
			}
			if st := s.step("a110-sparse"); st.DurationMs > 20_000 {
				t.Errorf("the sparse file kept us busy for %d ms", st.DurationMs)
			}
			s.absent(t, "a110", "a110-zero", "a110-0")
			s.asListed(t, s.passes(t, "a110-fits", "committed"))
		},
	}, {
		name: "I111 I112 what a step leaves outside the workspace is gone in the next: files, shell profiles, git's configuration, PATH, tools",
		steps: []scriptStep{
			{id: "a111-write", text: poison + "echo there > a111; cat /tmp/a111 $HOME/.bashrc; git config --global --get user.name"},
			{id: "a111-look", text: "cat a111; for f in /tmp/a111 /dev/shm/a111 /var/tmp/a111 $HOME/.bashrc $HOME/.profile $HOME/.gitconfig $HOME/.cache/a111 $HOME/bin/git /usr/local/bin/a111 /opt/hostedtoolcache/a111; do [ ! -e $f ] || echo left $f; done; git config --global --get user.name || :; echo $PATH $BASH_ENV $ENV $GIT_CONFIG_GLOBAL"},
		},
		after: func(t *testing.T, s *scene) {
			s.passes(t, "a111-write", "committed")
			if got := s.stdout("a111-write"); got != "mine\nmine\npoison\n" {
				t.Errorf("control: within the step it is there: %q", got)
			}
			s.passes(t, "a111-look", "unchanged")
			if got := s.stdout("a111-look"); !strings.HasPrefix(got, "there\n") || strings.Contains(got, "left") || strings.Contains(got, "poison") || strings.Contains(got, "a111bin") {
				t.Errorf("the next step sees %q", got)
			}
			for _, f := range []string{"/tmp/a111", "/dev/shm/a111", "/var/tmp/a111", "/usr/local/bin/a111", "/opt/hostedtoolcache/a111"} {
				if _, err := os.Lstat(f); err == nil {
					t.Errorf("%s is on the host", f)
				}
			}
		},
	}, {
		name:  "I113 what still writes when a step ends is dead before its files are hashed",
		steps: []scriptStep{{id: "a113", text: "mkdir a113; for k in 1 2 3; do setsid sh -c 'i=0; while :; do echo $i >> a113/grow'$k'; echo $i > a113/turn'$k'; i=$((i+1)); done' >/dev/null 2>&1 </dev/null & done; until [ -e a113/turn1 ] && [ -e a113/turn2 ] && [ -e a113/turn3 ]; do sleep 0.01; done; sleep 0.1; exit 0"}},
		after: func(t *testing.T, s *scene) {
			st := s.passes(t, "a113", "committed")
			if n := s.asListed(t, st); n != 6 {
				t.Errorf("control: %d files were written, want 6", n)
			}
			for _, c := range st.Files {
				if strings.Contains(c.Path, "grow") && c.Size == 0 {
					t.Errorf("control: %s did not grow", c.Path)
				}
			}
			time.Sleep(200 * time.Millisecond)
			s.asListed(t, st)
		},
	}}
}

// poison is what a step leaves for later ones.
const poison = `echo mine > /tmp/a111; echo mine > $HOME/.bashrc; echo mine > $HOME/.profile; mkdir -p $HOME/.cache $HOME/bin; echo x > $HOME/.cache/a111; echo x > $HOME/bin/git
for f in /dev/shm/a111 /var/tmp/a111 /usr/local/bin/a111 /opt/hostedtoolcache/a111; do { echo x > $f; } 2>/dev/null || :; done
git config --global user.name poison; export PATH=/tmp/a111bin:$PATH BASH_ENV=/tmp/a111 ENV=/tmp/a111
`

// patchIsHarmless holds that the patch of a step that wrote to .git carries the
// rest of what it did and nothing of that: applied elsewhere, it would plant it.
func (s *scene) patchIsHarmless(t *testing.T) {
	t.Helper()
	patch := filepath.Join(s.out, "steps", "a109", "changes.patch")
	b, err := os.ReadFile(patch)
	do(t, err)
	for line := range strings.Lines(string(b)) {
		for _, start := range []string{"diff --git", "--- ", "+++ ", "rename ", "copy "} {
			if strings.HasPrefix(line, start) && (strings.Contains(line, ".git/") || strings.Contains(line, "..")) {
				t.Errorf("the patch has %q", line)
			}
		}
	}
	if !strings.Contains(string(b), ".git/hooks/pre-commit") {
		t.Error("the patch does not say what it leaves out")
	}
	clone := boxtest.OpenDir(t)
	for _, args := range [][]string{{"init", "-q"}, {"apply", patch}} {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = clone, []string{"PATH=" + os.Getenv("PATH"), "HOME=/no-home", "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(clone, "fine")); err != nil {
		t.Errorf("control: the patch does not apply: %v", err)
	}
	if err := filepath.WalkDir(filepath.Join(clone, ".git"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "evil") {
			t.Errorf("the patch wrote %s", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAttacksOnTheWorkspace(t *testing.T) {
	boxtest.Need(t, "git", "python3")
	eachWay(t, func(t *testing.T, w way) {
		host := hostFolder(t, w)
		p := newPlace(t, w)
		list := attacks(host)
		var steps []scriptStep
		for _, a := range list {
			if a.before != nil {
				a.before(t, p, host)
			}
			steps = append(steps, a.steps...)
		}
		p.repository(t, map[string]string{"README": "text\n"})
		do(t, os.Chtimes(filepath.Join(p.workspace, "a103/same"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
		p.give(t)
		s := &scene{place: p, report: p.run(t, w.file("", steps...)), host: host}
		s.exits(1) // some of the steps are violations
		for _, a := range list {
			t.Run(a.name, func(t *testing.T) { a.after(t, s) })
		}
		p.clean(t)
		if t.Failed() {
			t.Logf("notes %q\n%s", s.Notes, s.log[max(0, len(s.log)-4000):])
		}
	})
}
