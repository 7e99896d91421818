package registry

import (
	"strconv"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

func TestWhatCannotBeAPresetIsRefusedInWordsWithoutSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		preset string
		m      machine
		want   string
	}{
		"npm is not there and nothing is set":      {"npm", machine{}, "npm could not be asked: npm is not installed (looked at NPM_CONFIG_* variables, ~/.npmrc, the program npm); the hosts can be named instead"},
		"pip is not there":                         {"pypi", machine{}, "python3 could not be asked"},
		"go is not there":                          {"go", machine{}, "go could not be asked"},
		"go takes modules from where they are":     {"go", machine{env: []string{"GOPROXY=direct", "GOSUMDB=off"}}, "names no proxy"},
		"cargo is not there":                       {"cargo", machine{}, "cargo is not installed"},
		"cargo takes crates from a folder":         {"cargo", machine{files: map[string]string{"/home/me/.cargo/config.toml": "[source.crates-io]\nreplace-with='v'\n[source.v]\ndirectory='/x'"}}, "nothing says where"},
		"cargo's sources go round":                 {"cargo", machine{files: map[string]string{"/home/me/.cargo/config.toml": "[source.crates-io]\nreplace-with='v'\n[source.v]\nreplace-with='v'"}}, "has no registry of its own"},
		"cargo's file is in a form of its own":     {"cargo", machine{files: map[string]string{"/home/me/.cargo/config.toml": "[registries]\na = { index = 5 }"}}, "config.toml: line 2: the table of registries.a is not read here"},
		"cargo asks over ssh":                      {"cargo", machine{env: []string{"CARGO_REGISTRIES_X_INDEX=ssh://git@corp.example/x"}}, "is not for HTTP"},
		"maven is not there":                       {"maven", machine{}, "maven is not installed"},
		"maven's settings are none":                {"maven", machine{files: map[string]string{"/home/me/.m2/settings.xml": "{}"}}, "~/.m2/settings.xml is not the XML of settings"},
		"apt has no sources":                       {"debian", machine{}, "nothing says where its packages come from (looked at /etc/apt/sources.list.d, /etc/apt/sources.list)"},
		"apt has a mirror's list over the network": {"debian", machine{files: map[string]string{"/etc/apt/sources.list": "deb mirror+https://m.example/list x main"}}, "of a kind that is not read here"},
		"an address":                               {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=http://me:s3cret@10.0.0.5:8081/npm/"}}, `write {to: "tcp://10.0.0.5:8081", private: true}`},
		"an address of IPv6":                       {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=http://me:s3cret@[fd00::5]/npm/"}}, `write {to: "tcp://[fd00::5]:80", private: true}`},
		"an address in disguise":                   {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=http://me:s3cret@0x7f000001/npm/"}}, "is an address"},
		"a star":                                   {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=https://*.example.com/"}}, "names no single host"},
		"a metadata service":                       {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=http://metadata.google.internal/"}}, "metadata service"},
		"no host":                                  {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=https:///me:s3cret"}}, "npm's registry in the environment"},
		"no URL":                                   {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=https://me:s3cret@x:y:z/"}}, "npm's registry in the environment is no URL"},
		"no scheme":                                {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=npm.example"}}, "is no URL"},
		"a variable that is not set":               {"npm", machine{files: map[string]string{"/home/me/.npmrc": "registry=https://${NOT_SET}/"}}, "npm's registry in ~/.npmrc is no URL"},
		"a file named from where we are":           {"npm", machine{env: []string{"NPM_CONFIG_USERCONFIG=.npmrc"}}, "is not an absolute path"},
		"too many hosts":                           {"pypi", machine{env: []string{"PIP_INDEX_URL=https://x.example", "PIP_EXTRA_INDEX_URL=" + manyURLs()}}, "more than 64 hosts"},
		"no such preset":                           {"rpm", machine{}, "nobody here knows"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.m.reader().Preset(c.preset)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") || len(p.Rules) > 0 {
				t.Errorf("got %v, %v, want %q", p.Rules, err, c.want)
			}
		})
	}
}

func manyURLs() string {
	var b strings.Builder
	for i := range maxHosts + 1 {
		b.WriteString("https://h" + strconv.Itoa(i) + ".example ")
	}
	return b.String()
}

func TestEveryPresetOfTheHostIsReadAndAReaderOfNothingRefusesThem(t *testing.T) {
	for _, p := range egress.HostPresets() {
		_, err := Reader{}.Preset(p.Name)
		if err == nil || strings.Contains(err.Error(), "nobody here knows") {
			t.Errorf("preset %s of nothing: %v", p.Name, err)
		}
	}
}
