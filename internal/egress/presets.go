package egress

import (
	"slices"
	"strings"
)

// Preset is a list of rules under one name, for what many steps need.
type Preset struct {
	Name  string
	Doc   string
	Rules []string
	// From says of each rule where it was read; nil where the list is our own.
	From []string
}

// Presets lists what preset:NAME can name; a new one is one more line here. A
// preset holds exact names only, and only those its clients need to read from.
//
// What it opens is not only for reading: whoever has an account with one of
// these services can be sent data there. That is why there is no preset of
// everything.
func Presets() []Preset {
	return []Preset{
		{Name: "alpine", Doc: "packages of Alpine Linux", Rules: []string{"dl-cdn.alpinelinux.org:443"}},
		{Name: "docker-hub", Doc: "images of Docker Hub", Rules: []string{"auth.docker.io:443", "registry-1.docker.io:443", "production.cloudflare.docker.com:443"}},
		{Name: "ghcr", Doc: "images of GitHub's container registry", Rules: []string{"ghcr.io:443", "pkg-containers.githubusercontent.com:443"}},
		{Name: "github", Doc: "repositories, archives, releases and the API of GitHub, over HTTPS", Rules: []string{"github.com:443", "api.github.com:443", "codeload.github.com:443", "raw.githubusercontent.com:443", "objects.githubusercontent.com:443", "release-assets.githubusercontent.com:443"}},
		{Name: "github-ssh", Doc: "repositories of GitHub, over SSH", Rules: []string{"tcp://github.com:22"}},
		{Name: "gitlab", Doc: "repositories of gitlab.com, over HTTPS", Rules: []string{"gitlab.com:443"}},
		{Name: "gradle", Doc: "Gradle itself and its plugins", Rules: []string{"services.gradle.org:443", "downloads.gradle.org:443", "plugins.gradle.org:443", "plugins-artifacts.gradle.org:443"}},
		{Name: "hex", Doc: "packages of Elixir and Erlang", Rules: []string{"hex.pm:443", "repo.hex.pm:443", "builds.hex.pm:443"}},
		{Name: "nodejs", Doc: "headers and binaries of Node.js", Rules: []string{"nodejs.org:443"}},
		{Name: "nuget", Doc: "packages of .NET", Rules: []string{"api.nuget.org:443"}},
		{Name: "packagist", Doc: "packages of PHP", Rules: []string{"packagist.org:443", "repo.packagist.org:443"}},
		{Name: "quay", Doc: "images of Quay", Rules: []string{"quay.io:443", "cdn.quay.io:443", "cdn01.quay.io:443", "cdn02.quay.io:443", "cdn03.quay.io:443"}},
		{Name: "rubygems", Doc: "packages of Ruby", Rules: []string{"rubygems.org:443", "index.rubygems.org:443"}},
		{Name: "rustup", Doc: "toolchains of Rust", Rules: []string{"static.rust-lang.org:443"}},
		{Name: "ubuntu", Doc: "packages of Ubuntu", Rules: []string{"archive.ubuntu.com", "azure.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"}},
	}
}

// HostPresets lists the presets whose hosts are not ours to say: where a package
// client asks is what that client is set up for on this machine, a mirror or a
// company's own server more often than not. They have no rules here; whoever
// reads a steps file has them read from the clients.
func HostPresets() []Preset {
	return []Preset{
		{Name: "cargo", Doc: "crates of Rust, from where cargo is set up to take them"},
		{Name: "debian", Doc: "packages of Debian and its like, from the sources of apt"},
		{Name: "go", Doc: "modules of Go, through the proxy and the checksum database of the go command"},
		{Name: "maven", Doc: "artifacts of Maven, from the mirrors and repositories of its settings"},
		{Name: "npm", Doc: "packages of Node.js, from the registries of npm"},
		{Name: "pypi", Doc: "packages of Python, from the indexes of pip and uv"},
	}
}

// HostPreset gives the name of the host preset that an entry names; empty if it
// names none.
func HostPreset(to string) string {
	name, ok := strings.CutPrefix(to, presetPrefix)
	if ok && slices.ContainsFunc(HostPresets(), func(p Preset) bool { return p.Name == name }) {
		return name
	}
	return ""
}
