package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.String()] {
			t.Errorf("there are two rows %s", r)
		}
		seen[r.String()] = true
		if r.facts && (len(r.refuse) > 0 || r.way == hostSetup || r.way == asTold) {
			t.Errorf("%s: the suite does not start itself like that", r)
		}
		if r.engine == ownKernel && r.facts {
			t.Errorf("%s: the suite of that engine would take hours here", r)
		}
		if r.doctor && (len(r.finds) == 0) != (len(r.refuse) == 0) || !r.doctor && len(r.finds) > 0 {
			t.Errorf("%s: doctor and a run do not find the same", r)
		}
		var names []string
		for _, c := range r.checks(false) {
			names = append(names, c.name)
			inScope := r.way == inScope || r.way == ownRules || r.way == confined && r.setup == runnerManager ||
				r.way == prepared && r.setup.denied && c.name == "conformance"
			if strings.Contains(c.command, "systemd-run") != inScope {
				t.Errorf("%s: the command is %q", r, c.command)
			}
			byItself := r.way == hostSetup || (r.way == prepared || r.way == bySetting || r.way == confined && r.setup.denied) && r.setup.manager
			if c.name != "conformance" && c.name != "prepare" && r.way != asTold &&
				(!strings.Contains(c.command, "--engine "+r.engine) || strings.Contains(c.command, "--host-setup auto") != byItself) {
				t.Errorf("%s: the command is %q", r, c.command)
			}
			if reads := strings.Contains(c.command, "/proc/sys/kernel/apparmor_restrict"); reads != (r.setup.setting && (r.way == lifted || r.way == bySetting)) {
				t.Errorf("%s: the command is %q", r, c.command)
			}
			if c.refused != (c.name == "not-loaded" || len(r.refuse) > 0) {
				t.Errorf("%s: it is wanted that %s is refused: %v", r, c.name, c.refused)
			}
			if cleans := strings.Contains(c.command, "prepare --undo"); cleans != (r.way == prepared || r.way == bySetting && c.name != "prepare") {
				t.Errorf("%s: the command is %q", r, c.command)
			}
		}
		want := []string{"quickstart"}
		switch {
		case r.way == confined:
			want = []string{"confined", "not-loaded"}
		case r.way == bySetting && r.setup.denied:
			want = []string{"prepare"}
		}
		if r.doctor {
			want = append(want, "doctor")
		}
		if r.facts {
			want = append(want, "conformance")
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: the checks are %q, want %q", r, names, want)
		}
	}
}

// Doctor is asked in every set-up, as it comes and where something was added to it.
func TestDoctorIsAsked(t *testing.T) {
	for _, s := range []setup{rootService, runnerManager, runnerAlone, runnerDenied, runnerSetting} {
		for _, w := range []way{asItComes, prepared} {
			for _, e := range engines {
				if w == prepared && s == rootService {
					continue // root needs nothing of it
				}
				if !slices.ContainsFunc(rows(), func(r row) bool { return r.setup == s && r.way == w && r.engine == e && r.doctor }) {
					t.Errorf("%s, %s, %s: doctor is not asked", s.name, w, e)
				}
			}
		}
	}
}

// Each engine has one row in CI, with facts.
func TestSmoke(t *testing.T) {
	chosen, err := choose(rows(), true, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range chosen {
		got = append(got, r.engine)
		if list := r.checks(true); !strings.Contains(list[len(list)-1].command, smokeGroups) {
			t.Errorf("%s: the checks are %v", r, list)
		}
	}
	if !slices.Equal(slices.Sorted(slices.Values(got)), []string{"kern", "native"}) {
		t.Errorf("CI has the engines %q", got)
	}
}

func TestChoose(t *testing.T) {
	if got, err := choose(rows(), false, "without.*kern"); err != nil || len(got) != 4 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"no such row", "("} {
		if _, err := choose(rows(), false, bad); err == nil {
			t.Errorf("-only %q fits something", bad)
		}
	}
}

// A misspelt need would require nothing.
func TestNeeds(t *testing.T) {
	for _, r := range rows() {
		for _, n := range r.needs() {
			if !slices.Contains(need.Names(), n) {
				t.Errorf("%s requires %q, which is no need", r, n)
			}
		}
	}
}

// Every fact that is left out is one of the suite, in its group, and has a reason.
func TestUnmeasured(t *testing.T) {
	files, err := filepath.Glob("../../internal/boxtest/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no suite: %v", err)
	}
	var suite strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		suite.Write(b)
	}
	if !strings.Contains(suite.String(), `"BOXTEST_PATIENCE"`) {
		t.Error("the suite does not know that it is to be patient")
	}
	for _, u := range unmeasured {
		if !strings.Contains(suite.String(), `"`+u.fact+`"`) || !strings.Contains(suite.String(), `{"`+u.group+`", `) {
			t.Errorf("there is no fact %q in a group %q", u.fact, u.group)
		}
		if u.why == "" || strings.ContainsAny(u.fact, "'/") {
			t.Errorf("%q has no reason, or cannot be named in a shell", u.fact)
		}
	}
	if got := len(strings.Split(skips("^as_root$"), "|")); len(unmeasured) > 0 && got != len(unmeasured) {
		t.Errorf("%d are skipped", got)
	}
}

// What the refusal says is typed, and no more than its first advice.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		name, refused string
		want          int
		typed         string
	}{
		{"one line", `echo 'refused: x
  try: echo first >>$HOME/typed
  # or as root:
  try: echo second >>$HOME/typed' >&2; (exit 3)`, 0, "first\n"},
		{"several, with a word before", `echo 'refused: x
  # do this, and run in it:
  try: export WORD=first
  try: echo $WORD >>$HOME/typed; exit 7' >&2; (exit 3)`, 7, "first\n"},
		{"not refused", `true`, 99, ""},
		{"another error", `echo '  try: echo first >>$HOME/typed' >&2; (exit 4)`, 99, ""},
	} {
		home := t.TempDir()
		cmd := exec.Command("bash", "-c", told("(eval "+quote2(c.refused)+")"))
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
		out, _ := cmd.CombinedOutput()
		typed, _ := os.ReadFile(filepath.Join(home, "typed"))
		if got := cmd.ProcessState.ExitCode(); got != c.want || string(typed) != c.typed {
			t.Errorf("%s: exit %d, want %d; typed %q, want %q\n%s", c.name, got, c.want, typed, c.typed, out)
		}
	}
}

func quote2(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func TestTable(t *testing.T) {
	r := rows()[1]
	lines := []outcome{
		{row: r, what: "quickstart", refused: true, verdict: right("refused")},
	}
	if !all(lines) || all(nil) {
		t.Error("a refusal that was wanted is wrong, or nothing at all is right")
	}
	if all(append(lines, outcome{row: r, verdict: wrong("x")})) {
		t.Error("what is wrong does not matter")
	}
	var b strings.Builder
	table(&b, lines)
	for _, want := range []string{"refused", "exit 3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, b.String())
		}
	}
}
