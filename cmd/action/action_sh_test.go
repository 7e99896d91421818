package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// told is a stand-in for the program in an action's tree: it says how it was
// called. $KERN is the exit status of `kern install`.
const told = `#!/bin/sh
echo "called: $* pid $$ file ${UNTRUSTED_STEPS_FILE-none}"
echo "path $PATH"
echo "$* has token ${UNTRUSTED_STEPS_TOKEN-none}"
echo "$* has input ${INPUT_TOKEN-none}"
[ "$*" != "kern install" ] || exit "${KERN:-0}"
exit 41
`

// script is a run of scripts/action.sh.
type script struct {
	env   []string
	empty bool // no binary in the tree
	// path are commands on PATH besides the shell's own tools, name to text.
	path map[string]string
	// links are made before it, name to target.
	links map[string]string
	// What the runner's files have afterwards.
	output, summary string
}

func (s *script) run(t *testing.T) (code, pid int, out string) {
	t.Helper()
	dir := boxtest.OpenDir(t)
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	src, err := os.ReadFile(filepath.Join(moduleRoot(t), "scripts/action.sh"))
	if err != nil {
		t.Fatal(err)
	}
	write("scripts/action.sh", string(src))
	if !s.empty {
		write("dist/untrusted-steps-linux-"+runtime.GOARCH, told)
	}
	for name, text := range s.path {
		write(filepath.Join("path", name), strings.ReplaceAll(text, "HERE", dir))
	}
	// Only what the script needs: no go of this machine.
	for _, name := range []string{"bash", "sh", "uname", "mktemp", "chmod"} {
		real, err := exec.LookPath(name)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Join(dir, "tools"), 0o755), os.Symlink(real, filepath.Join(dir, "tools", name)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range s.links {
		if err := os.Symlink(strings.ReplaceAll(to, "HERE", dir), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("output", "")
	write("summary", "")
	cmd := exec.Command(filepath.Join(dir, "tools/bash"), filepath.Join(dir, "scripts/action.sh"))
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=" + filepath.Join(dir, "path") + ":" + filepath.Join(dir, "tools"), "UNTRUSTED_STEPS_ACTION=" + dir, "TMPDIR=" + dir,
		"GITHUB_OUTPUT=" + filepath.Join(dir, "output"), "GITHUB_STEP_SUMMARY=" + filepath.Join(dir, "summary"),
	}, s.env...)
	for i := range cmd.Env {
		cmd.Env[i] = strings.ReplaceAll(cmd.Env[i], "HERE", dir)
	}
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	for name, into := range map[string]*string{"output": &s.output, "summary": &s.summary} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		*into = string(b)
	}
	return cmd.ProcessState.ExitCode(), cmd.Process.Pid, strings.ReplaceAll(b.String(), dir, "HERE")
}

// TestActionScript: what stands between the runner and the program.
func TestActionScript(t *testing.T) {
	for _, c := range []struct {
		name string
		script
		code     int
		has, not []string
	}{
		{"the binary in the tree is taken, its status is the action's, and auto installs kern first",
			script{}, 41, []string{"called: kern install pid", "called:  pid"}, nil},
		{"engine native installs nothing",
			script{env: []string{"UNTRUSTED_STEPS_ENGINE=native"}}, 41, []string{"called:  pid"}, []string{"kern install"}},
		{"auto goes on without kern, and says so",
			script{env: []string{"KERN=3"}}, 41, []string{"called:  pid", "engine auto takes native"}, nil},
		{"engine kern without kern is for the program to refuse, which can tell whoever waits for it",
			script{env: []string{"KERN=3", "UNTRUSTED_STEPS_ENGINE=kern"}}, 41, []string{"kern cannot be installed", "called:  pid"}, []string{"native"}},
		{"a job's own kern is not replaced",
			script{env: []string{"KERN_BIN=/opt/kern", "UNTRUSTED_STEPS_ENGINE=kern"}}, 41, []string{"called:  pid"}, []string{"kern install"}},
		{"neither a binary nor Go is refused with the way out",
			script{empty: true}, 3, []string{"add actions/setup-go"}, nil},
		{"a build that fails is refused: it is no failed step",
			script{empty: true, path: map[string]string{"go": "#!/bin/sh\necho some compiler error\nexit 1\n"}}, 3,
			[]string{"some compiler error", "could not be built here, so nothing ran"}, []string{"called"}},
		{"nor is a folder for the build that cannot be made",
			script{empty: true, env: []string{"RUNNER_TEMP=/nowhere"}, path: map[string]string{"go": "#!/bin/sh\n"}}, 3,
			[]string{"so nothing ran"}, []string{"called"}},
		{"an unknown machine is refused",
			script{path: map[string]string{"uname": "#!/bin/sh\necho riscv64\n"}}, 3, []string{"no build for riscv64"}, []string{"called"}},
		{"the token is for the program alone",
			script{env: []string{"UNTRUSTED_STEPS_TOKEN=t0k"}}, 41, []string{"kern install has token none", "\n has token t0k"}, nil},
		{"and not for a build",
			script{empty: true, env: []string{"UNTRUSTED_STEPS_TOKEN=t0k"}, path: map[string]string{"go": "#!/bin/sh\necho go has ${UNTRUSTED_STEPS_TOKEN-none}\nexit 1\n"}}, 3,
			[]string{"go has none"}, []string{"t0k"}},
		{"nor does Go's file of settings take part in one",
			script{empty: true, path: map[string]string{"go": "#!/bin/sh\n[ $1 != env ] || { for i in 1 2 3 4 5 6 7 8; do echo v$i; done; exit; }\necho settings $GOENV flags ${GOFLAGS-none} proxy $GOPROXY cache $GOCACHE\nexit 1\n"}}, 3,
			[]string{"settings off flags proxy v1 cache v8"}, nil},
		{"nor a go of the workspace, or of wherever the job stands",
			script{empty: true, env: []string{"GITHUB_WORKSPACE=HERE/path"}, path: map[string]string{"go": "#!/bin/sh\necho called\n", "uname": "#!/bin/sh\necho called\n"}}, 3,
			[]string{"there is no Go to build it"}, []string{"called"}},
		{"nor where the runner's word for the workspace is a link, and PATH has the folder",
			script{links: map[string]string{"ws": "path"}, env: []string{"GITHUB_WORKSPACE=HERE/ws"}, path: map[string]string{"uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"nor where a link to the workspace is on PATH",
			script{links: map[string]string{"ws": "path"}, env: []string{"GITHUB_WORKSPACE=HERE/path", "PATH=HERE/ws:HERE/tools"}, path: map[string]string{"uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"nor one below it, by way of a link",
			script{links: map[string]string{"ws": "path", "way": "path/bin"}, env: []string{"GITHUB_WORKSPACE=HERE/ws", "PATH=HERE/way:HERE/tools"}, path: map[string]string{"bin/uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"nor one of the folder that the steps work in",
			script{env: []string{"UNTRUSTED_STEPS_WORKSPACE=HERE/path"}, path: map[string]string{"uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"which may be named from where the job stands, and be a link",
			script{links: map[string]string{"change": "path"}, env: []string{"UNTRUSTED_STEPS_WORKSPACE=change"}, path: map[string]string{"uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"a folder beside the workspace, whose name begins like its, is no part of it",
			script{env: []string{"GITHUB_WORKSPACE=HERE/pat"}, path: map[string]string{"uname": "#!/bin/sh\necho mine >&2\necho x86_64\n"}}, 41,
			[]string{"mine"}, nil},
		{"a folder whose name has a colon in it is not taken for two",
			script{links: map[string]string{"odd": "path/a:bin", "bin": "path"}, env: []string{"PATH=HERE/odd:HERE/tools"}, path: map[string]string{"a:bin/x": "", "uname": "#!/bin/sh\necho theirs >&2\n"}}, 41,
			[]string{"called:  pid"}, []string{"theirs"}},
		{"nor has anything before it the token by a runner's other name",
			script{env: []string{"UNTRUSTED_STEPS_TOKEN=t0k", "INPUT_TOKEN=t0k"}}, 41, []string{"kern install has input none", "\n has token t0k", "\n has input none"}, []string{"has input t0k"}},
		{"nor a build",
			script{empty: true, env: []string{"INPUT_TOKEN=t0k"}, path: map[string]string{"go": "#!/bin/sh\necho go has ${INPUT_TOKEN-none}\nexit 1\n"}}, 3,
			[]string{"go has none"}, []string{"t0k"}},
		{"nor by a link to it",
			script{empty: true, links: map[string]string{"way": "path"}, env: []string{"GITHUB_WORKSPACE=HERE/path", "PATH=HERE/way:HERE/tools/../path:HERE/path/:HERE/tools"}, path: map[string]string{"go": "#!/bin/sh\necho called\n"}}, 3,
			[]string{"there is no Go to build it"}, []string{"called"}},
		{"nor where the link is what the job names",
			script{empty: true, links: map[string]string{"way": "path"}, env: []string{"GITHUB_WORKSPACE=HERE/way/"}, path: map[string]string{"go": "#!/bin/sh\necho called\n"}}, 3,
			[]string{"there is no Go to build it"}, []string{"called"}},
		{"nor of the workspace that the steps get",
			script{empty: true, links: map[string]string{"way": "path"}, env: []string{"UNTRUSTED_STEPS_WORKSPACE=way"}, path: map[string]string{"go": "#!/bin/sh\necho called\n"}}, 3,
			[]string{"there is no Go to build it"}, []string{"called"}},
		{"nor another Go, which go looks up, or would find among modules there",
			script{empty: true, env: []string{"GITHUB_WORKSPACE=HERE/ws", "PATH=HERE/ws:HERE/path:HERE/tools", "GOROOT=HERE/ws"}, path: map[string]string{
				"go":           "#!/bin/sh\n[ $1 != env ] || { for i in 1 2 3 4 5 6 HERE/ws/7 8; do echo $i; done; exit; }\ngo1.99\necho modules $GOMODCACHE cache $GOCACHE root ${GOROOT-none}\nexit 1\n",
				"../ws/go1.99": "#!/bin/sh\necho called\n"}}, 3,
			[]string{"untrusted-steps-build-", "/GOMODCACHE cache 8 root none"}, []string{"called", "modules HERE/ws"}},
		{"what runs the steps has the caller's PATH",
			script{env: []string{"GITHUB_WORKSPACE=HERE/path"}}, 41, []string{"path HERE/path:"}, nil},
		{"without a token there is none",
			script{env: []string{"UNTRUSTED_STEPS_TOKEN="}}, 41, []string{"\n has token none"}, nil},
		{"an input is never read as a script",
			script{env: []string{"UNTRUSTED_STEPS_FILE=$(touch ran); `touch ran` \"; touch ran; \""}}, 41,
			[]string{"file $(touch ran); `touch ran` \"; touch ran; \""}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, pid, out := c.script.run(t)
			if code != c.code {
				t.Errorf("exit status %d, want %d", code, c.code)
			}
			for _, w := range c.has {
				if !strings.Contains(out, w) {
					t.Errorf("%q is not in the output", w)
				}
			}
			for _, w := range c.not {
				if strings.Contains(out, w) {
					t.Errorf("%q is in the output", w)
				}
			}
			// Where there is no program, nobody else can tell the runner.
			if told := code == 3; (c.output == "verdict=refused\n") != told || strings.Contains(c.summary, "refused, nothing ran") != told {
				t.Errorf("the output is %q, the summary %q", c.output, c.summary)
			}
			// The runner signals the process it started: it must be the program.
			if code == 41 && !strings.Contains(out, "called:  pid "+strconv.Itoa(pid)+" ") {
				t.Errorf("the program is not the process %d that was started", pid)
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// TestActionScriptWritesToNothingElse: in the place of a file of the runner's there may
// be another thing, and it may not be there.
func TestActionScriptWritesToNothingElse(t *testing.T) {
	for name, env := range map[string][]string{
		"a link":    {"GITHUB_OUTPUT=HERE/way", "GITHUB_STEP_SUMMARY=HERE/way"},
		"a folder":  {"GITHUB_OUTPUT=HERE", "GITHUB_STEP_SUMMARY=HERE/tools"},
		"a device":  {"GITHUB_OUTPUT=/dev/full", "GITHUB_STEP_SUMMARY=/dev/full"},
		"no folder": {"GITHUB_OUTPUT=/nowhere/output", "GITHUB_STEP_SUMMARY=/nowhere/summary"},
		"nothing":   {"GITHUB_OUTPUT=", "GITHUB_STEP_SUMMARY="},
	} {
		s := script{empty: true, links: map[string]string{"way": "output"}, env: env}
		if code, _, out := s.run(t); code != 3 || s.output != "" || s.summary != "" || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: exit status %d, output %q, summary %q\n%s", name, code, s.output, s.summary, out)
		}
	}
}

// TestActionScriptEndsAreDocumented: where the script ends before there is a program,
// no check is written, and docs/checks.md has each of these ends by its words.
func TestActionScriptEndsAreDocumented(t *testing.T) {
	words := column(t, document(t, "docs/checks.md"), "the log says")
	text := document(t, "scripts/action.sh")
	said := regexp.MustCompile(`\brefuse "([^"]*)"`).FindAllStringSubmatch(text, -1)
	// One is what refuse itself does.
	if all := strings.Count(text, "exit 3"); all != 1 || len(words) != len(said) {
		t.Errorf("scripts/action.sh has %d times exit 3, refuses with %d reasons, and docs/checks.md has %d", all, len(said), len(words))
	}
	for _, m := range said {
		if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m[1], w) }) {
			t.Errorf("docs/checks.md does not have that nothing is told where the action ends with %q", m[1])
		}
	}
}
