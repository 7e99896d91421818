package container

import (
	"slices"
	"strings"
	"testing"
)

// all is what boxes need of Docker, for whoever makes them.
var all = []string{
	"--security-opt seccomp=seccomp.json", "--security-opt apparmor=unconfined", "--security-opt systempaths=unconfined",
	"--security-opt writable-cgroups=true", "--cgroupns=private",
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		name    string
		got     string
		has, no []string
	}{
		{"a user", Options(Who{}, Profile), all, []string{"--cap-add", "--privileged", "--user"}},
		{"root", Options(Who{Root: true}, Profile), append(slices.Clone(all), "--cap-add SYS_ADMIN"), []string{"--privileged", "no-new-privileges", "--cap-drop"}},
		{"the least", Least(Profile), append(slices.Clone(all), "--user UID:GID", "--cap-drop ALL", "--security-opt no-new-privileges"), []string{"--cap-add", "--privileged"}},
		{"no file for the filter", Options(Who{}, "unconfined"), []string{"--security-opt seccomp=unconfined"}, []string{Profile}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, w := range c.has {
				if n := strings.Count(" "+c.got+" ", " "+w+" "); n != 1 {
					t.Errorf("%q is in it %d times: %s", w, n, c.got)
				}
			}
			for _, w := range c.no {
				if strings.Contains(c.got, w) {
					t.Errorf("%q is in it: %s", w, c.got)
				}
			}
		})
	}
}

func TestFix(t *testing.T) {
	const command = "untrusted-steps run steps.yml"
	for _, c := range []struct {
		name string
		who  Who
		want []string // commands, in this order
	}{
		{"a user", Who{}, []string{
			"docker run " + Least(Profile), "podman run ", "docker run --cgroupns=private --privileged",
		}},
		{"root", Who{Root: true}, []string{
			"docker run " + Least(Profile), "docker run " + Options(Who{Root: true}, Profile), "podman run ", "docker run --cgroupns=private --privileged",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, line := range Fix(c.who, command) {
				if strings.HasPrefix(line, "# ") {
					continue
				}
				rest, ok := strings.CutSuffix(line, " --entrypoint untrusted-steps IMAGE run steps.yml")
				if !ok {
					t.Errorf("%s does not run the program", line)
				}
				got = append(got, rest)
			}
			if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			for _, line := range got {
				if strings.HasPrefix(line, "podman") && (strings.Contains(line, "systempaths") || strings.Contains(line, "writable-cgroups") || !strings.Contains(line, "unmask=")) {
					t.Errorf("podman does not know these words: %s", line)
				}
			}
		})
	}
}

// Whatever an image has for its entrypoint, the program is started once.
func TestACommandIsItsOwnEntrypoint(t *testing.T) {
	for command, want := range map[string]string{
		"untrusted-steps run 'a b.yml' --jobs 2": " --entrypoint untrusted-steps IMAGE run 'a b.yml' --jobs 2",
		"make gate":                              " IMAGE make gate",
	} {
		if got := inImage(command); got != want {
			t.Errorf("%s: %q", command, got)
		}
	}
}

func TestOneLine(t *testing.T) {
	for _, w := range []Who{{}, {Root: true}} {
		if h := Hint(w); !strings.HasPrefix(h, "# in a container: ") || !strings.Contains(h, Options(w, Profile)) {
			t.Errorf("the hint does not have the words: %s", h)
		}
		lines := JobOptions(w)
		if last := lines[len(lines)-1]; last != "options: "+Options(w, "unconfined") {
			t.Errorf("a job container is told %s", last)
		}
	}
}
