package container_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// passed holds a run to be a whole one: caps in force, the escape stopped, and
// what was written the caller's.
func (e ended) passed(t *testing.T) {
	t.Helper()
	if e.code != 0 || e.report.Verdict != "pass" || len(e.report.Steps) != 3 {
		t.Fatalf("exit status %d, verdict %q\n%s", e.code, e.report.Verdict, e.out)
	}
	for _, s := range e.report.Steps {
		for _, c := range []string{"memory", "pids"} {
			if !slices.Contains(s.Limits.Enforced, c) {
				t.Errorf("step %s ran without the cap on %s", s.ID, c)
			}
		}
	}
	if strings.Contains(e.out, "gets a copy") {
		t.Errorf("each step got a copy of the workspace\n%s", e.out)
	}
	if !slices.Equal(e.files, []string{"made 0"}) {
		t.Errorf("the workspace has %q, want made, and that it is its owner's", e.files)
	}
}

// refused holds a run to have done nothing, and to say why and what helps.
func (e ended) refused(t *testing.T, why string, fix []string) {
	t.Helper()
	if e.code != 3 || len(e.files) > 0 {
		t.Fatalf("exit status %d, files %q; it was to be refused\n%s", e.code, e.files, e.out)
	}
	if !strings.Contains(e.out, why) {
		t.Errorf("the reason is not %q\n%s", why, e.out)
	}
	for _, line := range fix {
		if !strings.Contains(e.out, line) {
			t.Errorf("it does not say %s\n%s", line, e.out)
		}
	}
}

// steps of the test's list, with each engine.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	for _, e := range []string{"native", "kern", "gvisor"} {
		t.Run(e, func(t *testing.T) { test(t, e) })
	}
}

// TestWords: with all of them a normal user without any capability can make boxes,
// and so can root with one.
func TestWords(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		t.Run("a normal user", func(t *testing.T) { least(t, engine).run(t).passed(t) })
		t.Run("root", func(t *testing.T) { asRoot(t, engine).run(t).passed(t) })
		t.Run("root, with all in the image but the workspace", func(t *testing.T) {
			s := asRoot(t, engine)
			s.inImage = true
			s.run(t).passed(t)
		})
	})
}

// TestEachWordIsNeeded: with one left away nothing runs, and all are said.
func TestEachWordIsNeeded(t *testing.T) {
	forUser := container.Fix(container.Who{}, "untrusted-steps run ")
	forRoot := container.Fix(container.Who{Root: true}, "untrusted-steps run ")
	const native = "native"
	for _, c := range []struct {
		name string
		with setting
		edit func(*setting)
		why  string
		fix  []string
	}{
		{"a plain container", setting{engine: native, filter: docker(t)}, func(*setting) {}, "control group file system of this container is read-only", forRoot},
		{"a plain container, steps without caps", setting{engine: native, filter: docker(t), uncapped: true}, func(*setting) {}, "operation not permitted", forRoot},
		{"a plain container of a user, steps without caps", setting{engine: native, uid: user, filter: docker(t), uncapped: true}, func(*setting) {}, "make namespaces", forUser},
		{"seccomp", least(t, native), func(s *setting) { s.filter = docker(t) }, "make namespaces", forUser},
		{"systempaths", least(t, native), func(s *setting) { s.unmasked = false }, "mount /proc", forUser},
		{"writable-cgroups", least(t, native), func(s *setting) { s.groups = false }, "read-only", forUser},
		{"seccomp for root", asRoot(t, native), func(s *setting) { s.filter = docker(t) }, "operation not permitted", forRoot},
		{"systempaths for root", asRoot(t, native), func(s *setting) { s.unmasked = false }, "mount /proc", forRoot},
		{"writable-cgroups for root", asRoot(t, native), func(s *setting) { s.groups = false }, "read-only", forRoot},
		{"SYS_ADMIN for root", asRoot(t, native), func(s *setting) { s.more = nil }, "make a mount of it", forRoot},
		{"kern, systempaths", least(t, "kern"), func(s *setting) { s.unmasked = false }, "mount(proc) failed", forUser},
		{"kern, SYS_ADMIN for root", asRoot(t, "kern"), func(s *setting) { s.more = nil }, "operation not permitted", forRoot},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := c.with
			c.edit(&s)
			s.run(t).refused(t, c.why, commands(c.fix))
		})
	}
}

// commands are the lines of a fix that can be typed.
func commands(fix []string) (list []string) {
	for _, l := range fix {
		if !strings.HasPrefix(l, "#") {
			list = append(list, strings.TrimSpace(l))
		}
	}
	return list
}

// TestEachCallIsNeeded: without any one of the calls beyond Docker's default, no
// box can be made, or steps do not get the workspace as an overlay.
func TestEachCallIsNeeded(t *testing.T) {
	for _, call := range seccomp.BoxCalls() {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			s := least(t, "native")
			s.filter = without(s.filter, call)
			e := s.run(t)
			needed := e.code == 3 || strings.Contains(e.out, "gets a copy")
			if call == "clone3" && !unified(t) {
				needed = !needed // it is for cgroup2
			}
			if !needed {
				t.Errorf("without it: exit status %d\n%s", e.code, e.out)
			}
		})
	}
}

// TestWorkspaceInTheImage: root maps no ids in a container's own layers, a normal
// user's steps get copies there.
func TestWorkspaceInTheImage(t *testing.T) {
	s := asRoot(t, "native")
	s.elsewhere = true
	s.run(t).refused(t, "map ids", []string{"docker run -v /work"})
}

// TestPod: the fields of the pod in examples/kubernetes, as a runtime gets them. No
// field gives it a control group to divide.
func TestPod(t *testing.T) {
	pod := setting{uid: user, none: true, quiet: true, filter: ours(t), unmasked: true, pod: true}
	eachEngine(t, func(t *testing.T, engine string) {
		pod := pod
		pod.engine = engine
		t.Run("steps that require caps are refused", func(t *testing.T) { pod.run(t).refused(t, "read-only", nil) })
		t.Run("others run", func(t *testing.T) {
			pod := pod
			pod.uncapped = true
			e := pod.run(t)
			if e.code != 0 || e.report.Verdict != "pass" || !slices.Equal(e.files, []string{"made 0"}) || strings.Contains(e.out, "gets a copy") {
				t.Errorf("exit status %d, verdict %q, files %q\n%s", e.code, e.report.Verdict, e.files, e.out)
			}
		})
	})
	for name, edit := range map[string]func(*setting){
		"procMount":      func(s *setting) { s.unmasked = false },
		"seccompProfile": func(s *setting) { s.filter = docker(t) },
	} {
		t.Run("without "+name, func(t *testing.T) {
			s := pod
			s.engine, s.uncapped = "native", true
			edit(&s)
			s.run(t).refused(t, "no box can be built here", nil)
		})
	}
}

// unified says whether memory is on cgroup2 here.
func unified(t *testing.T) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return !strings.Contains(string(b), ":memory:")
}
