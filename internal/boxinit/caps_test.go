package boxinit

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestKept(t *testing.T) {
	harmless := []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE}
	for name, c := range map[string]struct {
		drop []string
		want []int
	}{
		"nothing dropped leaves powers over one's own files, ids and ports": {nil, harmless},
		"ALL leaves none":                      {[]string{"ALL"}, nil},
		"all in small letters, with more":      {[]string{"KILL", "all"}, nil},
		"one of them dropped":                  {[]string{"CAP_KILL"}, slices.DeleteFunc(slices.Clone(harmless), func(c int) bool { return c == unix.CAP_KILL })},
		"one that is never kept":               {[]string{"sys_admin"}, harmless},
		"the newest one that is in the header": {[]string{"CHECKPOINT_RESTORE"}, harmless},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Kept(c.drop)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	for _, name := range []string{"FLY", "", "--privileged", "UNKNOWN<63>"} {
		if got, err := Kept([]string{name}); err == nil {
			t.Errorf("capDrop: %q is taken, and leaves %v", name, got)
		}
	}
}

func TestLost(t *testing.T) {
	if got := Lost(nil); !slices.Equal(got, []string{"ALL"}) {
		t.Errorf("nothing kept: %q", got)
	}
	kept, err := Kept([]string{"KILL"})
	if err != nil {
		t.Fatal(err)
	}
	got := Lost(kept)
	for _, want := range []string{"KILL", "SYS_ADMIN", "NET_RAW", "SETPCAP", "SYS_PTRACE", "MKNOD", "BPF", "CHECKPOINT_RESTORE"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not lost: %q", want, got)
		}
	}
	if slices.Contains(got, "CHOWN") || len(got)+len(kept) != 41 {
		t.Errorf("%d kept and %d lost of 41: %q", len(kept), len(got), got)
	}
}
