package workspace_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// linkAttacks are about what else a name leads to, and about changes that hide.
func linkAttacks(host string) []attack {
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
	}}
}
