package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// answer gives the words of an offer, or what a shell is to offer itself.
func answer(o offer) string {
	var out []string
	for i, line := range strings.Split(strings.TrimSuffix(o.String(), "\n"), "\n") {
		word, _, _ := strings.Cut(line, "\t")
		if i > 0 || word != "words" {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}

// TestOffer: what can stand in place of the last word, or of the one behind ^.
func TestOffer(t *testing.T) {
	ids := map[string][]string{"f.yml": {"build", "test", "test-2"}}
	for line, want := range map[string]string{
		"ch":                                  "check",
		"x":                                   "",
		"compl":                               "completion", // and not the hidden verb
		"nothing ":                            "",
		"complete ":                           "",
		"run ":                                "files",
		"run f.yml ":                          "",
		"run --only-report ":                  "files",
		"run -- ":                             "files",
		"run -- --":                           "files",
		"run --on":                            "--only --only-report",
		"run --only-report --on":              "--only",
		"run --host":                          "--host-setup",
		"run --engine ":                       "auto kern native gvisor",
		"run --engine n":                      "native",
		"run --engine=n":                      "--engine=native",
		"run -engine=n":                       "-engine=native",
		"run --nothing=n":                     "",
		"run --json=":                         "",
		"run --jobs ":                         "",
		"run --out ":                          "folders",
		"run --out=":                          "folders",
		"run --policy ":                       "files",
		"run --policy p.yml ":                 "files",
		"run --allow-events ":                 "pull_request_target workflow_run issue_comment",
		"run --allow-events issue_comment,":   "issue_comment,pull_request_target issue_comment,workflow_run",
		"run --allow-events=issue_comment,w":  "--allow-events=issue_comment,workflow_run",
		"run --only ":                         "",
		"run f.yml --only ":                   "build test test-2",
		"run --json f.yml --only t":           "test test-2",
		"run --only ^ f.yml":                  "build test test-2",
		"run --only build,^ --jobs 2 f.yml":   "build,test build,test-2",
		"run --only=test,^ f.yml":             "--only=test,build --only=test,test-2",
		"run f.yml --only test,build,test-2,": "",
		"run f.yml --only $(x),":              "",
		"run other.yml --only ":               "",
		"plan f.yml --only b":                 "build",
		"check f.yml --only b":                "",
		"merge --only b":                      "",
		"merge --file f.yml --only b":         "build",
		"merge r1 r2 ":                        "files",
		"report --format j":                   "json junit",
		"report r.json --for":                 "--format",
		"schema ":                             "steps report policy",
		"schema report ":                      "",
		"kern p":                              "path",
		"completion ":                         "bash zsh fish",
		"help mer":                            "merge",
		"help run ":                           "",
		"version ":                            "",
		"version -":                           "--help",
		"snapshot --workspace ":               "folders",
	} {
		line, after, _ := strings.Cut(line, "^")
		words := strings.Split(line, " ")
		at := len(words) - 1
		if after != "" {
			words = append(words, strings.Fields(after)...)
		}
		got := commandLine{words: words, at: at}.offer(func(file string) []string { return ids[file] })
		if answer(got) != want {
			t.Errorf("%q: %q, want %q", line, answer(got), want)
		}
	}
}

// TestFromBash: bash parts words at =, and leaves quotes in them.
func TestFromBash(t *testing.T) {
	for _, c := range []struct {
		words string
		at    int
		want  string
		wants int
		apart bool
	}{
		{`run|--engine|=|na`, 3, `run|--engine=na`, 1, true},
		{`run|--engine|=`, 2, `run|--engine=`, 1, true},
		{`run|--engine|=|na|f.yml|--only|`, 6, `run|--engine=na|f.yml|--only|`, 4, false},
		{`run|--out|=|--json|f.yml`, 4, `run|--out=--json|f.yml`, 2, false},
		{`run|a|=|b`, 3, `run|a|=|b`, 3, false},
		{`run|'a b'\ c"d\"e"|$(x)`, 2, `run|a b cd"e|$(x)`, 2, false},
		{`run|'open`, 1, `run|open`, 1, false},
		{`run|a\`, 1, `run|a\`, 1, false},
	} {
		got := commandLine{words: strings.Split(c.words, "|"), at: c.at}.fromBash()
		if strings.Join(got.words, "|") != c.want || got.at != c.wants || got.apart != c.apart {
			t.Errorf("%s at %d: %q at %d, apart %v", c.words, c.at, got.words, got.at, got.apart)
		}
	}
}

// TestEveryFlagIsOffered: the program itself offers every verb, and every flag of
// each, with what it means.
func TestEveryFlagIsOffered(t *testing.T) {
	ask := func(words ...string) []string {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", append([]string{"complete", "zsh", fmt.Sprint(len(words) - 1)}, words...)...)
		cmd.Args[0] = toolName
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		for _, line := range lines[1:] {
			if word, does, ok := strings.Cut(line, "\t"); !ok || word == "" || does == "" || strings.ContainsAny(does, "\t\x1b") {
				t.Errorf("%q: %q", words, line)
			}
		}
		return lines[1:]
	}
	word := func(line string) string {
		w, _, _ := strings.Cut(line, "\t")
		return w
	}
	var got []string
	for _, line := range ask("") {
		got = append(got, word(line))
	}
	same(t, "verbs", verbNames(), got)
	for _, name := range verbNames() {
		var want, got []string
		for _, f := range verbOf(name).flags {
			want = append(want, "--"+f.name)
		}
		for _, line := range ask(name, "-") {
			got = append(got, word(line))
		}
		same(t, "flags of "+name, append(want, "--help"), got)
	}
}

// hostileIDs is a steps file whose ids try to be commands of a shell.
const hostileIDs = `steps:
  - {id: build, run: x}
  - {id: $(touch pwned), run: x}
  - {id: "` + "`touch pwned`" + `", run: x}
  - {id: "a; touch pwned", run: x}
  - {id: "b\ntouch pwned", run: x}
  - {id: "\e[31mb", run: x}
  - {id: '-b', run: x}
  - {id: "b\tx", run: x}
  - {id: test, run: x}
`

// place makes a folder with files that completion meets, and an untrusted-steps
// that nobody has read yet.
func place(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"s p.yml": hostileIDs, "untrusted-steps": "#!/bin/sh\ntouch pwned\n", "dfile": "", "d one/file": "", "home/h.yml": hostileIDs,
		"$(touch pwned).yml": hostileIDs,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.yml"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
			t.Error("completing ran something")
		}
	})
	return dir
}

func shellEnv(dir string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(dir, "home"), "TERM=dumb", "INPUTRC=/dev/null", "HISTFILE="}
}

// shell finds a shell, and holds our script for it to its syntax.
func shell(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	need.Met(t, name, err)
	if out, err := exec.Command(path, "-n", "completion/"+name).CombinedOutput(); err != nil {
		t.Fatalf("%s -n: %v\n%s", name, err, out)
	}
	return path
}

// TestBashCompletes: the function that bash calls gives what the program says, for
// the words as bash parts them.
func TestBashCompletes(t *testing.T) {
	bash, dir := shell(t, "bash"), place(t)
	const script = `
source <(untrusted-steps completion bash)
[ "$(complete -p untrusted-steps)" = 'complete -o default -F _untrusted_steps untrusted-steps' ] || exit 9
COMP_CWORD=$1; shift
COMP_WORDS=("$@")
_untrusted_steps
printf '%s\n' "${COMPREPLY[@]}"
`
	for _, c := range []struct {
		words string
		at    int
		want  string
	}{
		{"untrusted-steps|", 1, strings.Join(verbNames(), " ")},
		{"untrusted-steps|run|--on", 2, "--only --only-report"},
		{"untrusted-steps|run|--engine|=|n", 4, "native"},
		{"untrusted-steps|run|--engine|=", 3, "auto kern native gvisor"},
		{"untrusted-steps|run|", 2, ""}, // by readline
		{`untrusted-steps|run|s\ p.yml|--only|`, 4, "build test"},
		{`untrusted-steps|run|"s p.yml"|--only|=|build,`, 5, "build,test"},
		{"untrusted-steps|run|--only||~/h.yml", 3, "build test"},
		{`untrusted-steps|run|'$(touch pwned).yml'|--only|b`, 4, "build"},
		{"untrusted-steps|run|$(touch pwned)|--only|", 4, ""},
		{"untrusted-steps|run|s\\ p.yml|--only|`touch pwned`,", 4, ""},
		{"untrusted-steps|run|pipe.yml|--only|", 4, ""},
		{"untrusted-steps|run|/dev/tty|--only|", 4, ""},
		{"./untrusted-steps|kern|", 2, "install path"},
		{"$(touch pwned)|kern|i", 2, "install"},
	} {
		cmd := exec.Command(bash, append([]string{"--norc", "--noprofile", "-c", script, "bash", fmt.Sprint(c.at)}, strings.Split(c.words, "|")...)...)
		cmd.Dir, cmd.Env = dir, shellEnv(dir)
		cmd.WaitDelay = time.Second
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", c.words, err)
		}
		if got := strings.Join(strings.Fields(string(out)), " "); got != c.want {
			t.Errorf("%s at %d: %q, want %q", c.words, c.at, got, c.want)
		}
	}
}

// typed are lines with a tab at their end, and what a person gets as the words of
// the command by pressing it.
var typed = []struct{ line, want string }{
	{"untrusted-steps comp", "<completion>"},
	{"untrusted-steps run --eng", "<run><--engine>"},
	{"untrusted-steps run --engine=na", "<run><--engine=native>"},
	{"untrusted-steps run --engine na", "<run><--engine><native>"},
	{"untrusted-steps run s", "<run><s p.yml>"},
	{"untrusted-steps run --policy=s", "<run><--policy=s p.yml>"},
	{"untrusted-steps run --out d", "<run><--out><d one/>"},
	{"untrusted-steps run --out=d", "<run><--out=d one/>"},
	{"untrusted-steps run s\\ p.yml --only b", "<run><s p.yml><--only><build>"},
	{"untrusted-steps run 's p.yml' --only=build,", "<run><s p.yml><--only=build,test>"},
	{"untrusted-steps run --jobs d", "<run><--jobs><d>"},
	{"untrusted-steps version d", "<version><d>"},
}

// typing drives a shell on a terminal. The command is a function there that shows
// its words; what completes is the program.
func typing(t *testing.T, dir string, argv []string, setup ...string) {
	zsh := strings.HasSuffix(argv[0], "zsh") // takes a slash at the end away again
	t.Helper()
	p := openPTY(t, 200)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(shellEnv(dir), "PS1=> ")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.end, p.end, p.end
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	send := func(text, want string) bool {
		from := len(p.text())
		if _, err := io.WriteString(p, text); err != nil {
			t.Fatal(err)
		}
		ok := eventually(20*time.Second, func() bool { return strings.Contains(p.text()[from:], want) })
		if !ok {
			t.Errorf("%q: no %q in %q", text, want, p.text()[from:])
		}
		return ok
	}
	for i, line := range append(setup, `untrusted-steps() { printf '<%s>' "$@"; echo; }`) {
		if !send(fmt.Sprintf("%s; echo read''y%d\n", line, i), fmt.Sprintf("ready%d", i)) {
			return
		}
	}
	for i, c := range typed {
		if zsh {
			c.want = strings.ReplaceAll(c.want, "/>", ">")
		}
		if !send(c.line+"\t\n", c.want+"\n") {
			return
		}
		// Of the next line nothing is typed before the shell reads it.
		if !send(fmt.Sprintf("echo do''ne%d\n", i), fmt.Sprintf("done%d", i)) {
			return
		}
	}
	// What is typed is not run by a tab.
	send("./untrusted-steps kern inst\tall\x15echo do''ne\n", "done\n")
}

func TestBashOnATerminal(t *testing.T) {
	dir := place(t)
	typing(t, dir, []string{shell(t, "bash"), "--norc", "--noprofile", "-i"}, "source <(untrusted-steps completion bash)")
}

func TestZshOnATerminal(t *testing.T) {
	zsh := shell(t, "zsh")
	t.Run("sourced", func(t *testing.T) {
		typing(t, place(t), []string{zsh, "-f", "-i"}, "autoload -U compinit; compinit -u -D", "source <(untrusted-steps completion zsh)")
	})
	t.Run("in fpath", func(t *testing.T) {
		dir := place(t)
		functions := filepath.Join(dir, "home", "functions")
		if err := errors.Join(os.Mkdir(functions, 0o755), os.WriteFile(filepath.Join(functions, "_untrusted-steps"), []byte(zshScript), 0o644)); err != nil {
			t.Fatal(err)
		}
		typing(t, dir, []string{zsh, "-f", "-i"}, "fpath=(~/functions $fpath); autoload -U compinit; compinit -u -D")
	})
}

func TestFishCompletes(t *testing.T) {
	fish, dir := shell(t, "fish"), place(t)
	for line, want := range map[string]string{
		"untrusted-steps comp":                        "completion",
		"untrusted-steps run --on":                    "--only --only-report",
		"untrusted-steps run --engine=na":             "--engine=native",
		"untrusted-steps run --engine na":             "native",
		"untrusted-steps run s":                       "s p.yml",
		"untrusted-steps run --policy=s":              "--policy=s p.yml",
		"untrusted-steps run --out d":                 "d one/",
		"untrusted-steps run --out=d":                 "--out=d one/",
		"untrusted-steps run s\\ p.yml --only ":       "build test",
		"untrusted-steps run 's p.yml' --only=build,": "--only=build,test",
		"untrusted-steps run pipe.yml --only ":        "",
		"untrusted-steps run --jobs d":                "",
		"./untrusted-steps kern ":                     "install path",
	} {
		cmd := exec.Command(fish, "--no-config", "-c", `source (untrusted-steps completion fish | psub); complete -C "$argv[1]"`, line)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, shellEnv(dir), time.Second
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		var got []string
		for l := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
