package native

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// A part of the host that was a link when the host was read is shown. One that
// has become a link since is not: a step can have made it, in a folder of tools
// that lies where it can write.
func TestAPartOfTheHostThatIsALink(t *testing.T) {
	boxtest.Need(t, "userns", "seccomp")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"real", "work"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/real/file", []byte("shown"), 0o644); err != nil {
		t.Fatal(err)
	}
	for at, to := range map[string]string{"link": "real", "filelink": "real/file", "workspace": "work"} {
		if err := os.Symlink(to, dir+"/"+at); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		sentence, bind, real, workspace, out, lost string
	}{
		{"a link that was there is shown by its name", "/link", "/real", "/work", "shown", ""},
		{"a file that was a link is shown by its name", "/filelink", "/real/file", "/work", "shown", ""},
		{"a folder that has become a link is not", "/link", "", "/work", "", "there is a link in its path"},
		{"nor a file behind one", "/link/file", "", "/work", "", "there is a link in its path"},
		{"nor a workspace that has become one", "/real", "", "/workspace", "", "there is a link in its path"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			e := testEngine()
			defer e.Close()
			host := e.View
			e.View = func(name string, network bool) rootfs.View {
				v := host(name, network)
				v.Binds = append(v.Binds, dir+tc.bind)
				if tc.real != "" {
					v.Real = map[string]string{dir + tc.bind: dir + tc.real}
				}
				return v
			}
			var out bytes.Buffer
			at := dir + tc.bind
			got := box.Run(context.Background(), box.Job{Engine: e, Group: limits.None(), Stdout: &out, Stderr: io.Discard, MaxOutput: 1 << 10, Spec: box.Spec{
				ID: "t", Argv: []string{"sh", "-c", "cat " + at + "/file 2>/dev/null || cat " + at}, Workdir: box.WorkspaceTarget, Workspace: dir + tc.workspace,
				Env: box.Environment{Path: []string{"/usr/bin", "/bin"}}.List(), Tmpfs: []box.Tmpfs{{Target: box.HomeTarget, Bytes: 1 << 20}}, CapDrop: []string{"ALL"}, TimeoutS: 60,
			}})
			if tc.lost == "" && got.Evidence.Lost != "" || !strings.Contains(got.Evidence.Lost, tc.lost) || out.String() != tc.out {
				t.Errorf("the box printed %q (no verdict: %q), want %q and %q", out.String(), got.Evidence.Lost, tc.out, tc.lost)
			}
		})
	}
}
