package workspace

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestDiff(t *testing.T) {
	long := strings.Repeat("n", 255)
	tests := []struct {
		name   string
		before string
		step   func(t *testing.T, at func(string) string)
		want   []string
	}{
		{"113: nothing done is nothing changed, whatever is there",
			"dir d 0700\nfile d/a 0600 x\nlink d/l /etc\nfifo p\nsock s\nhard h d/a\ndir empty",
			func(t *testing.T, at func(string) string) {}, []string{}},
		{"lists a new folder and each thing in it",
			"file a x",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), "dir n 0750\ndir n/m\nfile n/m/f 0640 y\nlink n/l ../a\nfifo n/p\nsock n/s")
			},
			[]string{`created dir "n" 0750`, `created symlink "n/l" 0777 -> ../a`, `created dir "n/m" 0755`,
				`created file "n/m/f" 0640`, `created fifo "n/p" 0600`, `created socket "n/s" 0600`}},
		{"104: a removed folder lists every entry below it",
			"dir d\ndir d/e\nfile d/e/f x\nlink d/l t",
			func(t *testing.T, at func(string) string) { do(t, os.RemoveAll(at("d"))) },
			[]string{`deleted dir "d" 0755`, `deleted dir "d/e" 0755`, `deleted file "d/e/f" 0644`, `deleted symlink "d/l" 0777 -> t`}},
		{"104: a rename is a deletion and a creation, in folders too",
			"dir d\nfile d/f x\nfile Readme y",
			func(t *testing.T, at func(string) string) {
				do(t, os.Rename(at("d"), at("e")), os.Rename(at("Readme"), at("README")))
			},
			[]string{`created file "README" 0644`, `deleted file "Readme" 0644`, `deleted dir "d" 0755`,
				`deleted file "d/f" 0644`, `created dir "e" 0755`, `created file "e/f" 0644`}},
		{"104: a file replaced by a folder is retyped and what is in it created",
			"file a x",
			func(t *testing.T, at func(string) string) {
				do(t, os.Remove(at("a")))
				build(t, at("."), "dir a\nfile a/b y")
			},
			[]string{`retyped dir "a" 0755`, `created file "a/b" 0644`}},
		{"104: a folder replaced by a link is retyped and what was in it deleted",
			"dir a\nfile a/b y",
			func(t *testing.T, at func(string) string) {
				do(t, os.RemoveAll(at("a")), os.Symlink("/etc", at("a")))
			},
			[]string{`retyped symlink "a" 0777 -> /etc`, `deleted file "a/b" 0644`}},
		{"103: same size, other content, time stamps put back",
			"file a one",
			func(t *testing.T, at func(string) string) {
				st, err := os.Stat(at("a"))
				do(t, err)
				overwrite(t, at("a"), 0, "two")
				do(t, os.Chtimes(at("a"), st.ModTime(), st.ModTime()))
			},
			[]string{`modified file "a" 0644`}},
		{"103: other content of the same size by a file renamed over it",
			"file a one",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), "file b two")
				do(t, os.Rename(at("b"), at("a")))
			},
			[]string{`modified file "a" 0644`}},
		{"a touched file is no change",
			"file a one\ndir d",
			func(t *testing.T, at func(string) string) {
				now := time.Now().Add(time.Hour)
				do(t, os.Chtimes(at("a"), now, now), os.Chtimes(at("d"), now, now))
				overwrite(t, at("a"), 0, "one")
			}, []string{}},
		{"another inode with the same content is no change",
			"file a one\ndir d\nfile d/f x\nlink l t",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), "file b one\nlink m t\ndir e\nfile e/f x")
				do(t, os.Rename(at("b"), at("a")), os.Rename(at("m"), at("l")), os.RemoveAll(at("d")), os.Rename(at("e"), at("d")))
			}, []string{}},
		{"content there and back is no change",
			"file a one",
			func(t *testing.T, at func(string) string) {
				overwrite(t, at("a"), 0, "two")
				overwrite(t, at("a"), 0, "one")
			}, []string{}},
		{"a change of permissions is a change of mode, set-id bits shown",
			"file a x\ndir d\nfile s 0755 y",
			func(t *testing.T, at func(string) string) {
				do(t, syscall.Chmod(at("a"), 0o600), syscall.Chmod(at("d"), 0o1777), syscall.Chmod(at("s"), 0o6755))
			},
			[]string{`mode file "a" 0600`, `mode dir "d" 1777`, `mode file "s" 6755`}},
		{"other content with other permissions is modified",
			"file a x",
			func(t *testing.T, at func(string) string) {
				overwrite(t, at("a"), 0, "y")
				do(t, os.Chmod(at("a"), 0o700))
			},
			[]string{`modified file "a" 0700`}},
		{"the workspace itself is a path, in its place",
			"file a x",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), "file -x x\nfile b x")
				do(t, os.Chmod(at("."), 0o711))
			},
			[]string{`created file "-x" 0644`, `mode dir "." 0711`, `created file "b" 0644`}},
		{"another link target is modified, and a dangling link is a link",
			"link l a\nlink k gone",
			func(t *testing.T, at func(string) string) { do(t, os.Remove(at("l")), os.Symlink("b", at("l"))) },
			[]string{`modified symlink "l" 0777 -> b`}},
		{"102: a new name for a file is created, the file is as it was",
			"file a x",
			func(t *testing.T, at func(string) string) { do(t, os.Link(at("a"), at("b"))) },
			[]string{`created file "b" 0644`}},
		{"102: a write through one name shows under each",
			"file a x\nhard b a\ndir d\nhard d/c a",
			func(t *testing.T, at func(string) string) { overwrite(t, at("b"), 0, "y") },
			[]string{`modified file "a" 0644`, `modified file "b" 0644`, `modified file "d/c" 0644`}},
		{"106: a file replaced by a FIFO or a socket",
			"file a x\nfile b x",
			func(t *testing.T, at func(string) string) {
				do(t, os.Remove(at("a")), os.Remove(at("b")))
				build(t, at("."), "fifo a\nsock b")
			},
			[]string{`retyped fifo "a" 0600`, `retyped socket "b" 0600`}},
		{"108, 109: nothing is skipped by name",
			"dir .git\nfile .git/config x\ndir node_modules\ndir .deps\nfile .gitignore *\ndir .github\ndir .github/workflows\nfile .github/workflows/ci.yml x",
			func(t *testing.T, at func(string) string) {
				overwrite(t, at(".git/config"), 0, "y")
				overwrite(t, at(".github/workflows/ci.yml"), 0, "y")
				build(t, at("."), "dir .git/hooks\nfile .git/hooks/post-checkout 0755 x\nfile .deps/a x\nfile node_modules/.a x\nfile .kern-env x\nfile ignored x\nfile CODEOWNERS x\nfile .npmrc x")
			},
			[]string{`created file ".deps/a" 0644`, `modified file ".git/config" 0644`, `created dir ".git/hooks" 0755`,
				`created file ".git/hooks/post-checkout" 0755`, `modified file ".github/workflows/ci.yml" 0644`, `created file ".kern-env" 0644`,
				`created file ".npmrc" 0644`, `created file "CODEOWNERS" 0644`, `created file "ignored" 0644`, `created file "node_modules/.a" 0644`}},
		{"107: names of any bytes",
			"file a x",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), `file "new\nline" x
					file "\xff\xfe" x
					file "\x1b[31m" x
					file "r\r" x
					dir "\u202e"
					file "\u202e/\xc3" x
					file "`+long+`" x`)
			},
			[]string{`created file "\x1b[31m" 0644`, `created file "new\nline" 0644`, `created file "` + long + `" 0644`,
				`created file "r\r" 0644`, `created dir "\u202e" 0755`, `created file "\u202e/\xc3" 0644`, `created file "\xff\xfe" 0644`}},
		{"paths sort by their bytes, a folder's content among its siblings",
			"",
			func(t *testing.T, at func(string) string) {
				build(t, at("."), "dir a\nfile a/x 1\ndir a-\nfile a-/x 1\ndir a-b\nfile a-b/x 1\nfile a.c 1\nfile a0 1")
			},
			[]string{`created dir "a" 0755`, `created dir "a-" 0755`, `created file "a-/x" 0644`, `created dir "a-b" 0755`,
				`created file "a-b/x" 0644`, `created file "a.c" 0644`, `created file "a/x" 0644`, `created file "a0" 0644`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			build(t, root, tt.before)
			before := mustSnapshot(t, root, nil)
			tt.step(t, func(p string) string { return filepath.Join(root, p) })
			for _, workers := range []int{1, 4} {
				for _, prev := range []*Tree{before, nil} {
					after, err := Snapshot(context.Background(), root, prev, Options{Workers: workers})
					if err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(tt.want, shorts(Diff(before, after))); d != "" {
						t.Errorf("workers %d, with prev %v (-want +got):\n%s", workers, prev != nil, d)
					}
					if again := Diff(after, mustSnapshot(t, root, after)); len(again) != 0 {
						t.Errorf("a second snapshot differs: %v", shorts(again))
					}
				}
			}
		})
	}
}

func TestChangeSaysWhatIsThere(t *testing.T) {
	root := t.TempDir()
	build(t, root, "file gone hello")
	before := mustSnapshot(t, root, nil)
	do(t, os.Remove(filepath.Join(root, "gone")))
	build(t, root, "file \"a\\xff\" 0600 hello\nlink l some/where\nsparse big 0x10000000000 end")
	got, err := json.Marshal(Diff(before, mustSnapshot(t, root, before)))
	do(t, err)
	sum := "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	want := `[{"path":"a�","pathBytes":"Yf8=","change":"created","type":"file","size":5,"mode":"0600","sha256":"` + sum + `"},` +
		`{"path":"big","change":"created","type":"file","size":1099511627776,"mode":"0644"},` +
		`{"path":"gone","change":"deleted","type":"file","size":5,"mode":"0644","sha256":"` + sum + `"},` +
		`{"path":"l","change":"created","type":"symlink","size":10,"mode":"0777","target":"some/where"}]`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDiffListsDevicesAndLooksAtTheirNumber(t *testing.T) {
	need.Root(t)
	root := t.TempDir()
	build(t, root, "char null\nfile plain x")
	before := mustSnapshot(t, root, nil)
	do(t, os.Remove(filepath.Join(root, "null")), os.Remove(filepath.Join(root, "plain")))
	do(t, syscall.Mknod(filepath.Join(root, "null"), syscall.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
	// A whiteout of an overlay is a device like any other here.
	do(t, syscall.Mknod(filepath.Join(root, "plain"), syscall.S_IFCHR|0o600, 0))
	want := []string{`modified device "null" 0600`, `retyped device "plain" 0600`}
	if d := cmp.Diff(want, shorts(Diff(before, mustSnapshot(t, root, before)))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestChangesStopsWhenTold(t *testing.T) {
	root := t.TempDir()
	before := mustSnapshot(t, root, nil)
	build(t, root, "dir a\ndir a/b\nfile a/b/c x\nfile a/d x\nfile e x")
	after := mustSnapshot(t, root, before)
	all := Diff(before, after)
	for stop := range len(all) + 1 {
		var got []Change
		if stop > 0 {
			for c := range Changes(before, after) {
				if got = append(got, c); len(got) == stop {
					break
				}
			}
		}
		if d := cmp.Diff(all[:stop], got, cmp.Transformer("", func(l []Change) []string { return shorts(l) })); d != "" {
			t.Errorf("stopped after %d (-want +got):\n%s", stop, d)
		}
	}
}
