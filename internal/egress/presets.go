package egress

// Preset is a list of rules under one name, for what many steps need.
type Preset struct {
	Name  string
	Doc   string
	Rules []string
}

// Presets lists what preset:NAME can name; a new one is one more line here. A
// preset holds exact names only, and only those its clients need to read from.
//
// What it opens is not only for reading: whoever has an account with one of
// these services can be sent data there. That is why there is no preset of
// everything.
func Presets() []Preset {
	return []Preset{
		{"alpine", "packages of Alpine Linux", []string{"dl-cdn.alpinelinux.org:443"}},
		{"docker-hub", "images of Docker Hub", []string{"auth.docker.io:443", "registry-1.docker.io:443", "production.cloudflare.docker.com:443"}},
		{"ghcr", "images of GitHub's container registry", []string{"ghcr.io:443", "pkg-containers.githubusercontent.com:443"}},
		{"github", "repositories, archives, releases and the API of GitHub, over HTTPS", []string{"github.com:443", "api.github.com:443", "codeload.github.com:443", "raw.githubusercontent.com:443", "objects.githubusercontent.com:443", "release-assets.githubusercontent.com:443"}},
		{"github-ssh", "repositories of GitHub, over SSH", []string{"tcp://github.com:22"}},
		{"gitlab", "repositories of gitlab.com, over HTTPS", []string{"gitlab.com:443"}},
		{"gradle", "Gradle itself and its plugins", []string{"services.gradle.org:443", "downloads.gradle.org:443", "plugins.gradle.org:443", "plugins-artifacts.gradle.org:443"}},
		{"hex", "packages of Elixir and Erlang", []string{"hex.pm:443", "repo.hex.pm:443", "builds.hex.pm:443"}},
		{"nodejs", "headers and binaries of Node.js", []string{"nodejs.org:443"}},
		{"nuget", "packages of .NET", []string{"api.nuget.org:443"}},
		{"packagist", "packages of PHP", []string{"packagist.org:443", "repo.packagist.org:443"}},
		{"quay", "images of Quay", []string{"quay.io:443", "cdn.quay.io:443", "cdn01.quay.io:443", "cdn02.quay.io:443", "cdn03.quay.io:443"}},
		{"rubygems", "packages of Ruby", []string{"rubygems.org:443", "index.rubygems.org:443"}},
		{"rustup", "toolchains of Rust", []string{"static.rust-lang.org:443"}},
		{"ubuntu", "packages of Ubuntu", []string{"archive.ubuntu.com", "azure.archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com"}},
	}
}
