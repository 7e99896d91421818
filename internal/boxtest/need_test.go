package boxtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

func TestMain(m *testing.M) {
	Become(os.Args)
	os.Exit(m.Run())
}

// recorder is a test that writes down how it was ended.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper() {}
func (r *recorder) Skipf(format string, a ...any) {
	r.said = "skip: " + fmt.Sprintf(format, a...)
	runtime.Goexit()
}
func (r *recorder) Fatalf(format string, a ...any) {
	r.said = "fatal: " + fmt.Sprintf(format, a...)
	runtime.Goexit()
}

// askNeed runs Need on a test that is nobody's.
func askNeed(t *testing.T, names ...string) string {
	return said(t, func(t testing.TB) { Need(t, names...) })
}

func said(t *testing.T, ask func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan bool)
	go func() {
		defer close(done)
		ask(r)
	}()
	<-done
	return r.said
}

// A test that tried the thing itself is judged as a probe is.
func TestMet(t *testing.T) {
	lacks := errors.New("none here")
	for _, tc := range []struct {
		sentence, require, name string
		missing                 error
		want                    string
	}{
		{"nothing missing lets the test run", "act", "act", nil, ""},
		{"something missing skips it, with why", "", "act", lacks, "skip: needs act: none here"},
		{"something missing that is required fails it", "root,act", "act", lacks, "fatal: BOX_REQUIRE requires act, which this host lacks: none here"},
		{"a name of two words can be required", "root,change times,act", "change times", lacks, "fatal: BOX_REQUIRE requires change times"},
		{"a name that nobody knows fails it, even with nothing missing", "", "magic", nil, `fatal: no need is called "magic"`},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Setenv(need.Require, tc.require)
			got := said(t, func(t testing.TB) { need.Met(t, tc.name, tc.missing) })
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNeed(t *testing.T) {
	lacking, there := "root", "normal user"
	if os.Geteuid() == 0 {
		lacking, there = there, lacking
	}
	t.Setenv(need.Require, "")
	for _, tc := range []struct {
		sentence, require string
		names             []string
		want              string
	}{
		{"a need that is met lets the test run", "", []string{there}, ""},
		{"a need that is not met skips the test with the probe's reason", "", []string{lacking}, "skip: needs " + lacking + ": we are "},
		{"the first that is not met is named", "", []string{there, lacking}, "skip: needs " + lacking},
		{"a need that is required and not met fails the test", "userns," + lacking, []string{lacking}, "fatal: BOX_REQUIRE requires " + lacking},
		{"another need being required does not", "userns", []string{lacking}, "skip: "},
		{"part of a required name does not", lacking + "s", []string{lacking}, "skip: "},
		{"an unknown need fails the test", "", []string{"magic"}, `fatal: boxtest: no need that can be probed is called "magic"`},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Setenv(need.Require, tc.require)
			got := askNeed(t, tc.names...)
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// A probe that did nothing would let every test run, or none.
func TestEveryNeedIsProbed(t *testing.T) {
	seen := map[string]bool{}
	for i, n := range trials {
		if seen[n.name] {
			t.Errorf("two needs are called %s", n.name)
		}
		seen[n.name] = true
		if !slices.Contains(need.Names(), n.name) {
			t.Errorf("%s is probed, and no need is called that", n.name)
		}
		err := probed(i)
		t.Logf("%s: %v", n.name, err)
		if err != nil && strings.Contains(err.Error(), "boxtest: bug") {
			t.Errorf("%s: %v", n.name, err)
		}
	}
	for _, n := range []string{"root", "userns", "overlay", "seccomp", "idmap", "limits", "kern"} {
		if !seen[n] {
			t.Errorf("there is no need called %s", n)
		}
	}
}

// An engine's program is looked for where a run looks for it, and named for what
// tests start; a variable that is set already is the only place.
func TestEngineProgramIsFound(t *testing.T) {
	dir := OpenDir(t)
	put := func(name, answer string) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, []byte("#!/bin/sh\necho "+answer+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	kept, named, wrong := put("kept", "thing 1"), put("named", "thing 2"), put("wrong", "other")
	t.Cleanup(func() { delete(finders, "thing") })
	for _, tc := range []struct {
		sentence, named string
		found           string
		err             error
		want, fails     string
	}{
		{"one that is found is named", "", kept, nil, kept, ""},
		{"one that is named is the only place", named, kept, nil, named, ""},
		{"one that is named and is another program is refused", wrong, kept, nil, wrong, "is not thing"},
		{"one that is found and is another program is refused", "", wrong, nil, wrong, "is not thing"},
		{"none is told in the finder's words", "", "", errors.New("there is none, `get thing`"), "", "`get thing`"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			t.Setenv("BOXTEST_THING", tc.named)
			FindBy("thing", func() (string, error) { return tc.found, tc.err })
			err := identifies("BOXTEST_THING", "thing", "thing ", "get thing")()
			if tc.fails == "" && err != nil || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("%v, want %q", err, tc.fails)
			}
			if got := os.Getenv("BOXTEST_THING"); got != tc.want {
				t.Errorf("the variable names %q, want %q", got, tc.want)
			}
		})
	}
}

// What root alone can enter is copied for the tests of a normal user.
func TestEngineProgramsForEverybody(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own") // 0700, as a cache
	if err := errors.Join(os.Mkdir(own, 0o700), os.WriteFile(filepath.Join(own, "runsc"), []byte("text"), 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BOXTEST_ONE", filepath.Join(own, "runsc"))
	t.Setenv("BOXTEST_TWO", "")
	dir := OpenDir(t)
	got := forEverybody(t, dir, "BOXTEST_ONE", "BOXTEST_TWO")
	if len(got) != 1 {
		t.Fatalf("%q", got)
	}
	_, path, _ := strings.Cut(got[0], "=")
	st, err := os.Stat(path)
	if err != nil || filepath.Dir(path) != dir || st.Mode().Perm()&0o005 != 0o005 {
		t.Errorf("%s: %v %v", got[0], st, err)
	}
}

// The probe's list of escapes was written down apart from the product's; they
// have to come to the same calls.
func TestTheProbeKnowsEveryEscape(t *testing.T) {
	want, got := seccomp.EscapeCalls(), probe.Escapes()
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("escapes of the product and of the probe (-want +got):\n%s", diff)
	}
	if len(got) != 24 {
		t.Errorf("%d escapes, want 24", len(got))
	}
}

func TestDifferencesArePublished(t *testing.T) {
	escapes := Differences{ChildEscapes: true}
	for _, tc := range []struct {
		sentence   string
		differ     Differences
		unobserved []string
		want       string // part of the one complaint
	}{
		{"no difference and nothing confessed", Differences{}, nil, ""},
		{"a difference that is told", escapes, []string{"escape_blocked: in a child"}, ""},
		{"a difference that is not told", escapes, nil, "does not say so"},
		{"a difference told as another fault", Differences{}, []string{"oom: never"}, "the table of differences says it does"},
		{"a confession without a difference", Differences{}, []string{"escape_blocked: in a child"}, "the table of differences says it does"},
		{"what can be seen of /proc is no fault", Differences{ProcShown: []string{"/proc/interrupts"}}, nil, ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := unpublished(tc.differ, box.Info{Name: "e", Unobserved: tc.unobserved})
			if tc.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || tc.want == "" || !strings.Contains(got[0], tc.want) {
				t.Errorf("got %q, want one that contains %q", got, tc.want)
			}
		})
	}
	if got := unpublished(escapes, box.Info{Unobserved: []string{"escape_blocked: x", "words"}}); len(got) != 2 {
		t.Errorf("a line without a fault type: got %q, want two complaints", got)
	}
	if diff := cmp.Diff(Differences{}, differences("native")); diff != "" {
		t.Errorf("native has differences: %s", diff)
	}
	if diff := cmp.Diff(Differences{}, differences("unheard-of")); diff != "" {
		t.Errorf("an engine without a row has differences: %s", diff)
	}
}
