package box

import (
	"slices"
	"strings"
	"testing"
)

func TestEnvironment(t *testing.T) {
	plain := []string{"PATH=/usr/bin:/bin", "HOME=/step/home", "USER=root", "TMPDIR=/tmp", "LANG=C.UTF-8", "GIT_OPTIONAL_LOCKS=0"}
	path := []string{"/usr/bin", "/bin"}
	for _, tc := range []struct {
		sentence string
		env      Environment
		want     []string
	}{
		{"without anything there are our six and nothing else", Environment{Path: path}, plain},
		{"a bundle is named to every client, before egress, image and step",
			Environment{Path: path, CABundle: "/ca.pem", Egress: []string{"HTTP_PROXY=p"}, Image: []string{"I=1"}, Step: []string{"S=1"}},
			slices.Concat(plain, []string{"SSL_CERT_FILE=/ca.pem", "CURL_CA_BUNDLE=/ca.pem", "REQUESTS_CA_BUNDLE=/ca.pem",
				"NODE_EXTRA_CA_CERTS=/ca.pem", "GIT_SSL_CAINFO=/ca.pem", "HTTP_PROXY=p", "I=1", "S=1"})},
		{"the image wins over ours, in our place", Environment{Path: path, Image: []string{"PATH=/img/bin", "LANG=de"}},
			[]string{"PATH=/img/bin", "HOME=/step/home", "USER=root", "TMPDIR=/tmp", "LANG=de", "GIT_OPTIONAL_LOCKS=0"}},
		{"the step wins over the image, which keeps its place", Environment{Path: path, Image: []string{"A=img", "B=img"}, Step: []string{"C=step", "A=step"}},
			slices.Concat(plain, []string{"A=step", "B=img", "C=step"})},
		{"of two of the same source the last wins", Environment{Path: path, Step: []string{"A=1", "A=2"}}, slices.Concat(plain, []string{"A=2"})},
		{"a value may be empty and may hold an equals sign", Environment{Path: path, Step: []string{"A=", "B=x=y"}}, slices.Concat(plain, []string{"A=", "B=x=y"})},
		{"names differ by case", Environment{Path: path, Step: []string{"path=x"}}, slices.Concat(plain, []string{"path=x"})},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := tc.env.List()
			if !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
			seen := map[string]bool{}
			for _, kv := range got {
				name, _, ok := strings.Cut(kv, "=")
				if !ok || name == "" || seen[name] {
					t.Errorf("%q is no variable, or its name is there twice", kv)
				}
				seen[name] = true
			}
		})
	}
}

// The caller's own environment holds tokens; nothing of it may be read.
func TestEnvironmentTakesNothingOfOurs(t *testing.T) {
	t.Setenv("GITHUB_TOKEN", "secret-of-the-caller")
	t.Setenv("HOME", "/secret-of-the-caller")
	t.Setenv("SSL_CERT_FILE", "/secret-of-the-caller")
	if got := strings.Join(Environment{Path: []string{"/bin"}, CABundle: "/ca"}.List(), "\n"); strings.Contains(got, "secret-of-the-caller") {
		t.Errorf("it is in the box: %s", got)
	}
}

func TestSignalNameAndNetworkWords(t *testing.T) {
	for n, want := range map[Network]string{NetworkNone: "none", NetworkAllowlist: "allowlist", NetworkHost: "host", Network(7): "none"} {
		if got := n.String(); got != want {
			t.Errorf("network %d is %q, want %q", int(n), got, want)
		}
	}
	if got := SignalName(64); got != "signal 64" {
		t.Errorf("SignalName(64) = %q", got)
	}
}
