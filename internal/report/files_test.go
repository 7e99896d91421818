package report

import (
	"fmt"
	"html"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

func created(paths ...string) []steps.FileChange {
	var out []steps.FileChange
	for _, p := range paths {
		out = append(out, steps.FileChange{Path: p, Change: "created", Type: "file", Mode: "0644"})
	}
	return out
}

func TestAStepThatFailedByAViolationSaysSo(t *testing.T) {
	r := writers()
	for _, f := range Formats[1:3] {
		text := html.UnescapeString(strings.Join(strings.Fields(render(t, f, r)), " "))
		want := []string{"violation: protected_path +1", "disk_limit, violation: workspace_limit", "3, discarded", "1, kept", "5, committed",
			"the step wrote 1025 MiB: diskMb is 1024"}
		if f.Name == "table" {
			want = append(want, `guarded: violation: protected_path: ".git/hooks/pre-commit" was created; git obeys it; and 2 more violations`,
				"build changed, look first: modified file go.sum (812 bytes): says which packages are installed next time; deleted file a.txt",
				`build: note: what git refreshes by itself is not committed: ".git/index"`, "4 of 1024 MiB", "1025 of 1024 MiB",
				"unlisted changed, look first: Makefile: commands of the next build")
			if strings.Contains(text, "guarded changed") {
				t.Error("what is not in the workspace is to be looked at first")
			}
		} else {
			want = append(want, "Changed files, 3 in all (discarded: none of them is in the workspace)", "Changed files, 1 in all (kept: they are in the workspace, although the step failed)",
				"Changed files, 5 in all (committed: they are in the workspace)", "| created file b.txt (3 bytes), renamed from a.txt", `| created file \xff (0 bytes)`,
				"The step left a link that leads out of the workspace.", "Written: 4 of 1024 MiB (diskMb) in 5 files and folders, held by a file system of its own (loop).",
				"Written: 1025 of 1024 MiB, watched from outside (sampler).", "The step worked on a copy of the workspace",
				"<code>steps/build/changes.patch</code>, with 4 files. It leaves out 1 thing, named at its top. Secrets are masked in 2 files of it",
				"Changes are not listed (committed: they are in the workspace)", "disk by loop, sampler")
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q", f.Name, w)
			}
		}
	}
}

func TestAViolationOfAStepThatMetItsFaultIsWhatIsShown(t *testing.T) {
	s := writers().Steps[2]
	s.Expected = &steps.Expect{Fault: s.Fault.Type}
	if got, want := outcome(&s), "violation: workspace_limit"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := reason(&s); strings.Contains(got, "disk_limit") {
		t.Errorf("got %q", got)
	}
	s.Status = steps.StatusError // no verdict: the violation decided nothing
	s.Reason = "no verdict: x"
	if got := reason(&s); got != s.Reason {
		t.Errorf("got %q", got)
	}
}

func TestFilesAreRolledUpByTopFolderOnlyWhereThereAreMany(t *testing.T) {
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("node_modules/%02d/index.js", i))
	}
	for name, c := range map[string]struct {
		files []steps.FileChange
		first []string
		n     int
		want  string
	}{
		"few are listed one by one": {created("a/1", "a/2", "b"), nil, 5,
			"| created  file    a/1 (0 bytes)\n| created  file    a/2 (0 bytes)\n| created  file    b (0 bytes)"},
		"many of one folder are one line": {created(append([]string{"a"}, many...)...), nil, 5,
			"| created  file    a (0 bytes)\n| node_modules/: 20 changes, 20 created"},
		"a folder's own creation is among them": {append([]steps.FileChange{{Path: "node_modules", Change: "created", Type: "dir"}}, created(many...)...), nil, 5,
			"| node_modules/: 21 changes, 21 created"},
		"a folder with few is listed": {created(append([]string{"src/a", "src/b"}, many...)...), nil, 5,
			"| created  file    src/a (0 bytes)\n| created  file    src/b (0 bytes)\n| node_modules/: 20 changes, 20 created"},
		"what is deleted or armed is never in a sum": {append([]steps.FileChange{
			{Path: "node_modules/x", Change: "deleted", Type: "file"}, {Path: "node_modules/y", Change: "mode", Type: "file", Mode: "4755"},
			{Path: "node_modules/z", Change: "retyped", Type: "symlink", Mode: "0777", Target: "/"}}, created(many...)...), nil, 5,
			"| deleted  file    node_modules/x\n| mode     file    node_modules/y (0 bytes) mode 4755\n| retyped  symlink node_modules/z -> /\n| node_modules/: 20 changes, 20 created"},
		"nor what is to be seen first": {created(append(many, "node_modules/p/package.json")...), []string{"node_modules/p/package.json"}, 5,
			"| ! created  file    node_modules/p/package.json (0 bytes): " + policy.Why("package.json") + "\n" + block(nil)[:3] + "\n\n" +
				"Changed files, 21 in all (committed: they are in the workspace)\n\n```text\n| node_modules/: 20 changes, 20 created"},
	} {
		s := exited("a", steps.StatusPassed, 0)
		s.Workspace, s.Files, s.FilesTotal, s.First = "committed", c.files, len(c.files), c.first
		if got := files(&s, c.n); !strings.Contains(got, c.want+"\n```") || strings.Contains(got, "more") {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}

func TestWhatIsInNoLineIsCounted(t *testing.T) {
	s := exited("a", steps.StatusPassed, 0)
	s.Workspace = "committed"
	for i := range 20 {
		s.Files = append(s.Files, created(fmt.Sprintf("f%02d", i), fmt.Sprintf("d%02d/x", i))...)
		s.Files = append(s.Files, steps.FileChange{Path: fmt.Sprintf("g%02d", i), Change: "deleted", Type: "file"})
		s.First = append(s.First, fmt.Sprintf("g%02d", i))
	}
	s.FilesTotal = 100 // 40 more than the result has
	got := files(&s, 5)
	// 20 are to be seen first and 5 of them are; of 40 others 5 are.
	for _, want := range []string{"| ! deleted  file    g04\n```\n\nand 15 more", "and 75 more"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n| "); n != 10 {
		t.Errorf("%d lines", n)
	}
}

func TestAPathIsFoundByItsExactBytes(t *testing.T) {
	s := exited("a", steps.StatusPassed, 0)
	s.Files = []steps.FileChange{
		{Path: "\uFFFD", PathBytes: "/w==", Change: "deleted", Type: "file"},
		{Path: "\uFFFD", PathBytes: "/g==", Change: "deleted", Type: "file"},
	}
	s.First = []string{"\xfe"}
	if diff := cmp.Diff([]string{"! deleted  file    \xfe"}, firstLines(&s, 5)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	gone, _, _ := otherLines(&s, 5)
	if diff := cmp.Diff([]string{"deleted  file    \xff"}, gone); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
