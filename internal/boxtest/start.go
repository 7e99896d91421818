package boxtest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// startFacts are about how the step's command is started, or is not.
func (s *suite) startFacts(t *testing.T) {
	t.Run("a script longer than one argument may be is run", func(t *testing.T) {
		t.Parallel()
		j := s.spec(t, "sh", "-e", box.StepDir+"/script.sh")
		j.Script = &box.Script{Name: "script.sh", Text: "# " + strings.Repeat("x", 300<<10) + "\necho \"$(wc -c < /step/script.sh)\"\nexit 0\n"}
		r := s.run(t, j)
		r.passed(t)
		if got, want := strings.TrimSpace(r.stdout), itoa(len(j.Script.Text)); got != want {
			t.Errorf("the script has %s bytes in the box, want %s", got, want)
		}
	})

	t.Run("the step starts in its workdir, and a missing one is startup_failed", func(t *testing.T) {
		t.Parallel()
		j := s.shell(t, "pwd")
		j.Workdir = "/workspace/sub"
		if err := os.Mkdir(j.Workspace+"/sub", 0o755); err != nil {
			t.Fatal(err)
		}
		if r := s.run(t, j); strings.TrimSpace(r.stdout) != "/workspace/sub" {
			t.Errorf("control: %s", r.describe())
		}
		j.Workdir = "/workspace/none"
		r := s.run(t, j)
		r.faulted(t, box.StartupFailed)
		mentions(t, r, "/workspace/none")
		put(t, j.Workspace, "file", "", 0o644)
		j.Workdir = "/workspace/file"
		s.run(t, j).faulted(t, box.StartupFailed)
	})

	t.Run("a command that cannot be started is exec_failed and is named", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct{ what, command string }{
			{"missing on PATH", "no-such-command"}, {"a missing path", "/usr/bin/no-such-command"}, {"missing in the workspace", "./none"},
			{"not executable", "./plain"}, {"a folder", "./dir"}, {"an unknown interpreter", "./script"}, {"no program at all", "./garbage"}, {"an empty file", "./empty"},
		} {
			t.Run(tc.what, func(t *testing.T) {
				j := s.spec(t, tc.command)
				put(t, j.Workspace, "plain", "#!/bin/sh\n", 0o644)
				put(t, j.Workspace, "script", "#!/no/such/interpreter\n", 0o755)
				put(t, j.Workspace, "garbage", "\x00\x01\x02", 0o755)
				put(t, j.Workspace, "empty", "", 0o755)
				if err := os.Mkdir(j.Workspace+"/dir", 0o755); err != nil {
					t.Fatal(err)
				}
				r := s.run(t, j)
				r.faulted(t, box.ExecFailed)
				mentions(t, r, tc.command)
			})
		}
		t.Run("a missing interpreter, or loader, is not told as a missing script", func(t *testing.T) {
			j := s.spec(t, "./script")
			put(t, j.Workspace, "script", "#!/no/such/interpreter\n", 0o755)
			r := s.run(t, j)
			r.faulted(t, box.ExecFailed)
			mentions(t, r, `"./script" is there, but the interpreter its first line names, or its loader, is not`)
			j.Argv = []string{"script"}
			j.Env = box.Environment{Path: append([]string{"/workspace"}, boxPath...)}.List()
			mentions(t, s.run(t, j), `"script" is there`)
			j.Argv = []string{"./none"}
			mentions(t, s.run(t, j), `"./none" is not in the box`)
		})
		t.Run("control: a script of the workspace runs", func(t *testing.T) {
			j := s.spec(t, "./good")
			put(t, j.Workspace, "good", "#!/bin/sh\nexit 9\n", 0o755)
			s.run(t, j).exited(t, 9)
		})
		t.Run("a program in the workspace is not found by its bare name", func(t *testing.T) {
			j := s.spec(t, "good")
			j.Env = box.Environment{Path: append([]string{"", "."}, boxPath...)}.List()
			put(t, j.Workspace, "good", "#!/bin/sh\nexit 9\n", 0o755)
			s.run(t, j).faulted(t, box.ExecFailed)
		})
	})

	t.Run("a command that only the caller has is exec_failed with the mount that shows it, and that mount does", func(t *testing.T) {
		t.Parallel()
		home := workspace(t)
		for _, d := range []string{"/tool", "/tool/bin"} {
			if err := os.Mkdir(home+d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		put(t, home, "tool/bin/"+noSuchTool, "#!/bin/sh\necho shown\n", 0o755)
		j := s.spec(t, noSuchTool)
		j.callerPath = "/usr/bin:" + home + "/tool/bin"
		r := s.run(t, j)
		r.faulted(t, box.ExecFailed)
		mentions(t, r, fmt.Sprintf("%q is not in the box (image: host); it is at %s on this machine: to show it, write mounts: {%s: [%s, ro]} and env: {PATH: ", noSuchTool, home+"/tool/bin/"+noSuchTool, home+"/tool", home+"/tool"))
		j.Mounts = append(j.Mounts, box.Mount{Source: home + "/tool", Target: home + "/tool", ReadOnly: true})
		j.Tmpfs = []box.Tmpfs{{Target: box.HomeTarget, Bytes: mib}} // the test's folder lies in /tmp
		j.Env = box.Environment{Path: append([]string{home + "/tool/bin"}, boxPath...)}.List()
		if r := s.run(t, j); r.stdout != "shown\n" {
			t.Errorf("with the mount: %s", r.describe())
		}
		// Only the name is looked up, and only where the step cannot write.
		j = s.spec(t, "nothing/../../"+noSuchTool)
		j.callerPath = home + "/tool/bin/x:" + home + "/tool/bin"
		if r := s.run(t, j); strings.Contains(r.Fault.Message, "on this machine") {
			t.Errorf("a path is looked up on the host: %s", r.Fault.Message)
		}
		j = s.spec(t, noSuchTool)
		put(t, j.Workspace, noSuchTool, "", 0o755)
		j.callerPath = j.Workspace
		if r := s.run(t, j); strings.Contains(r.Fault.Message, "on this machine") {
			t.Errorf("the workspace is looked into on the host: %s", r.Fault.Message)
		}
	})

	t.Run("the step's stdin is empty and its session its own", func(t *testing.T) {
		t.Parallel()
		a := s.ask(t, probe.Do("read", "/dev/stdin"), probe.Do("own session"), probe.Do("overwrite", "/dev/stdout", ""), probe.Do("ids"))
		if a[0].Text != "" {
			t.Errorf("stdin gives %q", a[0].Text)
		}
		if !a[1].OK() || itoa(int(a[1].N)) != a[1].Text {
			t.Errorf("the step is not the leader of a session without a terminal: %s", tell(a[1]))
		}
		works(t, "open /dev/stdout again", a[2])
		if a[3].Text != "0 0 0 0" {
			t.Errorf("the step's ids are %q, want 0 as in its passwd file", a[3].Text)
		}
	})
}

// mentions fails unless the fault's message has the word in it.
func mentions(t testing.TB, r result, word string) {
	t.Helper()
	if r.Fault == nil || !strings.Contains(r.Fault.Message, word) {
		t.Errorf("the fault is %s, want it to name %s", fmt.Sprint(r.Fault), word)
	}
}
