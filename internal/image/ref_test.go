package image

import (
	"strings"
	"testing"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParse(t *testing.T) {
	for _, tc := range []struct{ sentence, text, want string }{
		{"a name alone is Docker Hub's, and its latest", "python", "docker.io/library/python:latest"},
		{"a tag stays", "python:3.12-slim", "docker.io/library/python:3.12-slim"},
		{"a digest needs no tag", "python@" + someDigest, "docker.io/library/python@" + someDigest},
		{"a digest and a tag are both kept", "python:3.12@" + someDigest, "docker.io/library/python:3.12@" + someDigest},
		{"a user of Docker Hub", "grafana/grafana:11", "docker.io/grafana/grafana:11"},
		{"Docker Hub by its other name", "index.docker.io/library/python", "docker.io/library/python:latest"},
		{"Docker Hub by name, and no user", "docker.io/python", "docker.io/library/python:latest"},
		{"another registry", "ghcr.io/owner/app:v1", "ghcr.io/owner/app:v1"},
		{"a registry with a port", "registry.example.com:5000/a/b_c/d-e.f:T_1.x", "registry.example.com:5000/a/b_c/d-e.f:T_1.x"},
		{"localhost needs no port", "localhost/app", "localhost/app:latest"},
		{"localhost with one", "localhost:5000/app", "localhost:5000/app:latest"},
		{"capitals make a host of the first part", "Example.COM/app", "example.com/app:latest"},
		{"an address", "127.0.0.1:5000/app", "127.0.0.1:5000/app:latest"},
		{"an IPv6 address", "[::1]:5000/app", "[::1]:5000/app:latest"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			r, err := Parse(tc.text)
			if err != nil || r.String() != tc.want {
				t.Fatalf("%s: got %s (%v), want %s", tc.text, r, err, tc.want)
			}
			if again, err := Parse(r.String()); err != nil || again != r {
				t.Errorf("%s reads as %s (%v)", r, again, err)
			}
		})
	}
}

func TestN157MalformedReferencesAreRefused(t *testing.T) {
	for _, text := range []string{
		"", " ", "python ", " python", "-python", "--help", "-v", "python:-x", "python:--privileged", "/python", "python/", "a//b", "../python", "a/../b", "./a", ".", "..",
		"/etc/passwd", "a/..", "docker.io/../x", "docker.io/", "python:", "python:a:b", "python@", "python@sha256:", "python@sha256:0123",
		"python@" + strings.ToUpper(someDigest), "python@sha512:" + strings.Repeat("a", 128), "python@md5:" + strings.Repeat("a", 64), "python@" + someDigest + "x", "python@" + someDigest + "@" + someDigest,
		"python\n", "py\nthon", "python:3\n", "python:3\r", "python\x00", "python:\x00", "\tpython", "python:3.12\u200b", "pythоn", "ﬀ", "python:３", "python：3", "Python", "PYTHON", "lib/Python",
		"a..b", "a.-b", "a___b", "_a", "a_", ".a", "a.", "-a/b", "a/-b", "http://example.com/a", "https://example.com/a:1", "user@example.com/a", "user:pass@example.com/a", "example.com:0/a", "example.com:99999/a",
		"example.com:x/a", "example.com:080/a", "example.com:/a", ":5000/a", "-example.com/a", "example-.com/a", "exa_mple.com/a", "example..com/a", "[::1/a", "[::1]x/a", "[fe80::1%25eth0]/a", "[1.2.3.4]/a", "[]/a",
		strings.Repeat("a", 256), "a/" + strings.Repeat("b", 255), "python:" + strings.Repeat("a", 129), strings.Repeat("0", 64), "a%2fb", "a?b", "a#b", "a$b", "$(id)", "a;b", "a|b", "a`b`", "a\\b", "a'b", `a"b`, "oci://a", "docker://a",
	} {
		if r, err := Parse(text); err == nil {
			t.Errorf("%q is taken for %s", text, r)
		}
	}
}

func TestPin(t *testing.T) {
	for text, want := range map[string]string{
		"python": "python@" + someDigest, "python:3.12": "python:3.12@" + someDigest, "ghcr.io/a/b:c@sha256:old": "ghcr.io/a/b:c@" + someDigest,
	} {
		if got := Pin(text, someDigest); got != want {
			t.Errorf("%s pinned is %s, want %s", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"python", "python:3@" + someDigest, "localhost:5000/a/b", "[::1]:1/a", "../a", "a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Errorf("%q: %s reads as %s (%v)", s, r, again, err)
		}
		if strings.ContainsAny(r.String(), " \t\r\n\x00\\?#%$;|'\"`") || strings.Contains(r.String(), "..") {
			t.Errorf("%q is taken for %q", s, r.String())
		}
	})
}
