package delta

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name  string
		needs string
		stack []string // top first
		upper string
		want  []string
	}{
		{"an empty upper is no change", "", []string{"dir a\nfile a/b x"}, "", []string{}},
		{"a new file, folder, link, FIFO and socket are created", "", []string{"file a x"},
			"dir n\nfile n/f 0600 y\nlink l /etc\nfifo p\nsock s",
			[]string{`created symlink "l" 0777 -> /etc`, `created dir "n" 0755`, `created file "n/f" 0600`, `created fifo "p" 0600`, `created socket "s" 0600`}},
		{"103: other content of the same size is modified", "", []string{"file a one"}, "file a two", []string{`modified file "a" 0644`}},
		{"103: other content of another size is modified, with its new mode", "", []string{"file a one"}, "file a 0755 three", []string{`modified file "a" 0755`}},
		{"a file with the same content and mode is no change", "", []string{"dir d\nfile d/a one"}, "dir d\nfile d/a one", []string{}},
		{"other permissions are a change of mode, of a file, a folder and the workspace itself", "", []string{"dir d\nfile d/a one"}, "dir d 0700\nfile d/a 04755 one\nmode . 0711",
			[]string{`mode dir "." 0711`, `mode dir "d" 0700`, `mode file "d/a" 4755`}},
		{"the workspace itself has its place in the order", "", []string{"file +a x\nfile b x"}, "file +a y\nfile b y\nmode . 0700",
			[]string{`modified file "+a" 0644`, `mode dir "." 0700`, `modified file "b" 0644`}},
		{"another link target is modified", "", []string{"link l a\nlink m a"}, "link l b\nlink m a", []string{`modified symlink "l" 0777 -> b`}},
		{"a whiteout is a deletion", "", []string{"file a x\nfile b x"}, "white a", []string{`deleted file "a" 0644`}},
		{"a whiteout over nothing is nothing", "", []string{"file b x"}, "white a\ndir d\nwhite d/e", []string{`created dir "d" 0755`}},
		{"104: a whiteout over a folder lists each entry below it", "", []string{"dir d\ndir d/e\nfile d/e/f x\nlink d/l t"}, "white d",
			[]string{`deleted dir "d" 0755`, `deleted dir "d/e" 0755`, `deleted file "d/e/f" 0644`, `deleted symlink "d/l" 0777 -> t`}},
		{"what an opaque folder does not have is deleted", "", []string{"dir d\nfile d/a x\nfile d/b x\ndir d/s\nfile d/s/c x\nfile d/s/d x"}, "dir d\nopaque d\nfile d/b x\ndir d/s\nfile d/s/c y",
			[]string{`deleted file "d/a" 0644`, `modified file "d/s/c" 0644`, `deleted file "d/s/d" 0644`}},
		{"a folder below an opaque one shows nothing from below", "", []string{"dir d\ndir d/e\nfile d/e/f x"}, "dir d\nopaque d\ndir d/e",
			[]string{`deleted file "d/e/f" 0644`}},
		{"104: a folder replaced by a file", "", []string{"dir d\nfile d/a x"}, "file d y", []string{`retyped file "d" 0644`, `deleted file "d/a" 0644`}},
		{"104: a file replaced by a folder", "", []string{"file d x"}, "dir d\nopaque d\nfile d/a x", []string{`retyped dir "d" 0755`, `created file "d/a" 0644`}},
		{"a folder over a file needs no mark to hide it", "", []string{"file d x"}, "dir d\nfile d/a x", []string{`retyped dir "d" 0755`, `created file "d/a" 0644`}},
		{"106: a file replaced by a FIFO, a FIFO by a file", "", []string{"file a x\nfifo b"}, "fifo a\nfile b x", []string{`retyped fifo "a" 0600`, `retyped file "b" 0644`}},
		{"106: devices are told apart by their number", "devices root", []string{"null a\nnull b\nfile c x"}, "null a\nfile b x\nnull c",
			[]string{`retyped file "b" 0644`, `retyped device "c" 0600`}},

		{"an earlier step's file is what is compared with", "", []string{"file a two", "file a one"}, "file a two", []string{}},
		{"an earlier step's deletion is nothing to be deleted again", "", []string{"white a", "file a one"}, "white a", []string{}},
		{"a file that an earlier step deleted is created", "", []string{"white a", "file a one"}, "file a one", []string{`created file "a" 0644`}},
		{"an earlier step's opaque folder hides what is below", "", []string{"dir d\nopaque d\nfile d/n x", "dir d\nfile d/o x"}, "white d",
			[]string{`deleted dir "d" 0755`, `deleted file "d/n" 0644`}},
		{"folders of all layers are merged", "", []string{"dir d\nfile d/top x", "dir d\nwhite d/low", "dir d\nfile d/low x\nfile d/base x"}, "white d",
			[]string{`deleted dir "d" 0755`, `deleted file "d/base" 0644`, `deleted file "d/top" 0644`}},
		{"a file in the middle ends the merge", "", []string{"dir d\nfile d/top x", "file d x", "dir d\nfile d/low x"}, "dir d\nfile d/low x",
			[]string{`created file "d/low" 0644`}},
		{"a folder's mode is that of its topmost layer", "", []string{"dir d 0700", "dir d 0755"}, "dir d 0700", []string{}},

		{"forged: a device 0:0 in the workspace is a device", "", []string{"white a\nwhite b\nwhite c"}, "white a\nfile b x",
			[]string{`deleted device "a" 0000`, `retyped file "b" 0644`}},
		{"forged: an opaque mark in the workspace is nothing", "", []string{"", "dir d\nopaque d\nfile d/a x"}, "dir d\nfile d/a y", []string{`modified file "d/a" 0644`}},
		{"100: a link in the workspace is not followed", "", []string{"link d /etc\nlink e /etc"}, "dir d\nfile d/passwd x\nfile e x",
			[]string{`retyped dir "d" 0755`, `created file "d/passwd" 0644`, `retyped file "e" 0644`}},

		{"a renamed file names the path it had", "", []string{"file a content"}, "white a\nfile b content", []string{`deleted file "a" 0644`, `created file "b" 0644 from a`}},
		{"a renamed folder: each file by its last name", "", []string{"dir d\nfile d/a same\nfile d/b same\nfile d/c other"}, "white d\ndir e\nfile e/a same\nfile e/b same\nfile e/z other",
			[]string{`deleted dir "d" 0755`, `deleted file "d/a" 0644`, `deleted file "d/b" 0644`, `deleted file "d/c" 0644`,
				`created dir "e" 0755`, `created file "e/a" 0644 from d/a`, `created file "e/b" 0644 from d/b`, `created file "e/z" 0644 from d/c`}},
		{"what is ambiguous, empty or still there was not renamed", "", []string{"file a x\nfile b x\nfile e \"\"\nfile k keep"}, "white a\nwhite b\nfile c x\nwhite e\nfile f \"\"\nfile l keep",
			[]string{`deleted file "a" 0644`, `deleted file "b" 0644`, `created file "c" 0644`, `deleted file "e" 0644`, `created file "f" 0644`, `created file "l" 0644`}},
		{"a name that is not UTF-8 is not paired, and exact", "", []string{"file \"\\xff\" content"}, "white \"\\xff\"\nfile \"\\xfe\" content",
			[]string{`created file "\xfe" 0644`, `deleted file "\xff" 0644`}},
		{"paths sort by their bytes", "", []string{""}, "dir a\nfile a/x 1\ndir a-\nfile a-/x 1\nfile a.c 1\nfile a0 1",
			[]string{`created dir "a" 0755`, `created dir "a-" 0755`, `created file "a-/x" 0644`, `created file "a.c" 0644`, `created file "a/x" 0644`, `created file "a0" 0644`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.needs != "" {
				boxtest.Need(t, "root", "devices")
			}
			stack := layers(t, tt.stack...)
			upper := t.TempDir()
			do(t, os.Chmod(upper, 0o755))
			build(t, upper, tt.upper)
			d := mustRead(t, stack, upper)
			if diff := cmp.Diff(tt.want, shorts(d.Changes())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			holdToItself(t, d)
		})
	}
}

// holdToItself asks a delta for each path of its list, once as it knows it and
// once as one that was told nothing.
func holdToItself(t *testing.T, d *Delta) {
	t.Helper()
	naive := &Delta{stack: d.stack, after: d.after}
	for _, c := range d.Changes() {
		p := c.RawPath()
		for side, ask := range map[string][2]func(string) (Found, error){
			"before": {d.Before, naive.Before}, "after": {d.After, naive.After},
		} {
			known, err := ask[0](p)
			do(t, err)
			sought, err := ask[1](p)
			do(t, err)
			if diff := cmp.Diff(known, sought); diff != "" {
				t.Errorf("%s %q (-known +sought):\n%s", side, p, diff)
			}
		}
		for _, open := range []func(string) (*os.File, error){d.OpenAfter, naive.OpenAfter} {
			f, err := open(p)
			if want := c.Type == "file" && c.Change != deleted; (err == nil) != want {
				t.Errorf("open %q after: %v", p, err)
			}
			if err == nil {
				f.Close()
			}
		}
		was, err := d.Before(p)
		do(t, err)
		for _, open := range []func(string) (*os.File, error){d.OpenBefore, naive.OpenBefore} {
			f, err := open(p)
			if (err == nil) != (was.Type == "file") {
				t.Errorf("open %q before: %v", p, err)
			}
			if err == nil {
				f.Close()
			}
		}
	}
}
