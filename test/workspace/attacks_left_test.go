package workspace_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// leftAttacks are about what a step leaves: a full disk, poison, a daemon.
func leftAttacks() []attack {
	return []attack{{
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
