package image

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

// Ref names an image of a registry, with everything filled in that Docker fills in.
type Ref struct {
	Registry   string // docker.io, ghcr.io, localhost:5000
	Repository string // library/python
	Tag        string // "" with a digest only
	Digest     string // sha256:..., or ""
}

const (
	dockerHub  = "docker.io"
	dockerHost = "index.docker.io" // where Docker Hub answers
	maxName    = 255               // of registry and repository, as Docker has it
)

// The grammar of names. It is Docker's, less what is for digests of other kinds: of
// those nothing else than SHA-256 is in use.
var (
	domainShape = lazy.Regexp(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	pathShape   = lazy.Regexp(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagShape    = lazy.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	digestShape = lazy.Regexp(`^sha256:[a-f0-9]{64}$`)
	hexShape    = lazy.Regexp(`^[a-f0-9]{64}$`)
)

// Parse reads a reference as Docker understands it: python is
// docker.io/library/python:latest. Nothing is looked up.
func Parse(text string) (Ref, error) {
	r, tagged, err := parseName(text)
	if err != nil {
		return Ref{}, err
	}
	if !tagged && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

// ParseName reads a reference or a repository's name; tagged says whether there was
// a tag in it.
func ParseName(text string) (r Ref, tagged bool, err error) { return parseName(text) }

func parseName(text string) (r Ref, tagged bool, err error) {
	if text == "" || len(text) > 2*maxName+256 {
		return r, false, errors.New("it is empty, or longer than any reference can be")
	}
	name, digest, pinned := strings.Cut(text, "@")
	if pinned {
		if !digestShape().MatchString(digest) {
			return r, false, errors.New("its digest is not sha256: and 64 digits from 0 to f")
		}
		r.Digest = digest
	}
	// A colon behind the last slash begins a tag; one before it, a port.
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		if name, r.Tag = name[:i], name[i+1:]; !tagShape().MatchString(r.Tag) {
			return r, false, errors.New("its tag is not 1 to 128 letters, digits, and . _ - after the first")
		}
		tagged = true
	}
	r.Registry, r.Repository = split(name)
	switch {
	case !pathShape().MatchString(r.Repository):
		return r, false, errors.New("its name is not made of lower-case letters, digits, single separators and /")
	case hexShape().MatchString(name):
		return r, false, errors.New("its name looks like the digest of an image, and is none")
	case len(r.Registry)+1+len(r.Repository) > maxName:
		return r, false, fmt.Errorf("its name has more than %d bytes", maxName)
	}
	return r, tagged, registryName(r.Registry)
}

// split tells the registry from the repository, by Docker's rule: the first part is a
// registry if it looks like a host.
func split(name string) (registry, repository string) {
	first, rest, more := strings.Cut(name, "/")
	if !more || !strings.ContainsAny(first, ".:") && first != "localhost" && strings.ToLower(first) == first {
		registry, repository = dockerHub, name
	} else {
		registry, repository = strings.ToLower(first), rest
	}
	if registry == dockerHost {
		registry = dockerHub
	}
	if registry == dockerHub && !strings.Contains(repository, "/") {
		repository = "library/" + repository
	}
	return registry, repository
}

// registryName judges a host with or without a port.
func registryName(registry string) error {
	host, port := registry, ""
	if i := strings.LastIndexByte(registry, ':'); i > strings.LastIndexByte(registry, ']') {
		host, port = registry[:i], registry[i+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return errors.New("its registry has a port that is none")
		}
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		v6, ok = strings.CutSuffix(v6, "]")
		if a, err := netip.ParseAddr(v6); !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return errors.New("its registry is an address that is none")
		}
		return nil
	}
	if !domainShape().MatchString(host) {
		return errors.New("its registry is not the name of a host")
	}
	return nil
}

// Name is the repository with its registry.
func (r Ref) Name() string { return r.Registry + "/" + r.Repository }

// String is the reference with everything in it that there is.
func (r Ref) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// Pin is the reference as it was written, held to a digest.
func Pin(text, digest string) string {
	name, _, _ := strings.Cut(text, "@")
	return name + "@" + digest
}

// IsDigest says whether a text is the digest of an image.
func IsDigest(text string) bool { return digestShape().MatchString(text) }
