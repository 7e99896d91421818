package registry

import (
	"archive/zip"
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
)

// machine is one whose clients are as a test says.
type machine struct {
	env   []string
	files map[string]string
	says  map[string]string // by client: what it prints
}

func (m machine) reader() Reader {
	return Reader{
		Environ: append([]string{"HOME=/home/me"}, m.env...),
		ReadFile: func(path string) ([]byte, error) {
			text, ok := m.files[path]
			if !ok {
				return nil, fs.ErrNotExist
			}
			return []byte(text), nil
		},
		List: func(dir string) ([]string, error) {
			var names []string
			for _, path := range slices.Sorted(maps.Keys(m.files)) {
				if rest, ok := strings.CutPrefix(path, dir+"/"); ok {
					name, _, _ := strings.Cut(rest, "/")
					names = append(names, name)
				}
			}
			return slices.Compact(names), nil
		},
		Find: func(name string) (string, error) {
			if _, ok := m.says[name]; !ok {
				return "", errors.New(name + " is not installed")
			}
			return "/opt/tools/bin/" + name, nil
		},
		Run: func(_ []string, argv ...string) ([]byte, error) {
			return []byte(m.says[argv[0][len("/opt/tools/bin/"):]]), nil
		},
		Asked: func(_ []string, _, _ string, argv ...string) (string, error) {
			return m.says[argv[0][len("/opt/tools/bin/"):]], nil
		},
	}
}

const (
	npmSays = "https://npm.example/\n"
	pipSays = "https://index.example/simple\nhttps://files.example\n"
	goSays  = `{"GOPROXY":"https://proxy.example,direct","GOSUMDB":"sum.example"}`
)

func superPOM(t *testing.T, id, url string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	f, err := z.Create(superPOMName)
	if err != nil {
		t.Fatal(err)
	}
	repo := "<id>" + id + "</id><url>" + url + "</url>"
	if _, err := f.Write([]byte("<project><repositories><repository>" + repo + "</repository></repositories><pluginRepositories><pluginRepository>" + repo + "</pluginRepository></pluginRepositories></project>")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAPresetIsWhereTheClientIsSetUpToAsk(t *testing.T) {
	pom := superPOM(t, "central", "https://central.example/maven2")
	jar := "/opt/tools/lib/maven-model-builder-3.9.jar"
	for name, c := range map[string]struct {
		preset string
		m      machine
		want   []string // RULE PLACE
	}{
		"npm's own, where nothing is set": {"npm", machine{says: map[string]string{"npm": npmSays}}, []string{"npm.example:443 as npm has it built in"}},
		"npm's user file, with scopes, quotes, comments and variables": {"npm", machine{env: []string{"MIRROR=mirror.example"}, files: map[string]string{
			"/home/me/.npmrc": "; registry=https://no.example\nregistry = \"https://${MIRROR}:8443/npm/\" ; mine\n@corp:registry=http://corp.example/\n//mirror.example/:_authToken=secret\n",
		}}, []string{"corp.example:80 @corp:registry in ~/.npmrc", "mirror.example:8443 in ~/.npmrc"}},
		"npm's variable before its file, in any case": {"npm", machine{env: []string{"npm_CONFIG_registry=https://env.example"}, files: map[string]string{"/home/me/.npmrc": "registry=https://file.example"}},
			[]string{"env.example:443 in the environment"}},
		"npm's file that a variable names": {"npm", machine{env: []string{"NPM_CONFIG_USERCONFIG=/tmp/x/.npmrc"}, files: map[string]string{"/tmp/x/.npmrc": "registry=https://u.example", "/home/me/.npmrc": "registry=https://file.example"}},
			[]string{"u.example:443 in /tmp/x/.npmrc"}},
		"npm's file of the machine, beside node": {"npm", machine{says: map[string]string{"node": ""}, files: map[string]string{"/opt/tools/etc/npmrc": "registry=https://all.example\n[section]\nregistry=https://no.example"}},
			[]string{"all.example:443 in /opt/tools/etc/npmrc"}},
		"a registry with a password gives its host only": {"npm", machine{env: []string{"NPM_CONFIG_REGISTRY=https://me:s3cret@npm.example/x"}}, []string{"npm.example:443 in the environment"}},

		"pip's own index and its files": {"pypi", machine{says: map[string]string{"python3": pipSays}}, []string{"index.example:443 built in", "files.example:443 built in"}},
		"pip's file, for all commands and for one": {"pypi", machine{says: map[string]string{"python3": pipSays}, files: map[string]string{
			"/etc/pip.conf": "[global]\nindex-url = https://user:pw@mirror.example/simple?a=b\nextra_index_url: https://one.example/simple\n  http://two.example:8080/simple\nfind-links = /opt/wheels\n[install]\nindex-url = https://install.example/simple\n[list]\nformat = columns\n",
		}}, []string{"mirror.example:443 in /etc/pip.conf", "one.example:443 extra-index-url in /etc/pip.conf", "two.example:8080 in /etc/pip.conf", "install.example:443 in /etc/pip.conf"}},
		"pip's file of the user before that of the machine": {"pypi", machine{files: map[string]string{
			"/etc/pip.conf": "[global]\nindex-url=https://all.example/simple", "/home/me/.config/pip/pip.conf": "[global]\nindex-url=https://user.example/simple",
		}}, []string{"user.example:443 in ~/.config/pip/pip.conf"}},
		"pip's usual index by hand has its files too": {"pypi", machine{env: []string{"PIP_INDEX_URL=https://index.example/simple/"}, says: map[string]string{"python3": pipSays}},
			[]string{"index.example:443 in the environment", "files.example:443 built in"}},
		"uv's index in place of pip's, and one beside it": {"pypi", machine{env: []string{"UV_DEFAULT_INDEX=https://uv.example/simple", "UV_INDEX=corp=https://corp.example/simple"}, says: map[string]string{"python3": pipSays}},
			[]string{"uv.example:443 UV_DEFAULT_INDEX", "corp.example:443 UV_INDEX"}},

		"go's own proxy and database": {"go", machine{says: map[string]string{"go": goSays}}, []string{"proxy.example:443 GOPROXY as go has it built in", "sum.example:443 GOSUMDB as go has it built in"}},
		"go's list of proxies, and a database with a key and a URL": {"go", machine{env: []string{"GOPROXY=https://a.example|http://b.example:3000,direct,off", "GOSUMDB=sum.example+abc123 https://db.example"}},
			[]string{"a.example:443 in the environment", "b.example:3000 in the environment", "db.example:443 in the environment"}},
		"go's file of the user":              {"go", machine{files: map[string]string{"/home/me/.config/go/env": "GOPROXY=https://file.example\nGOSUMDB=off\n"}}, []string{"file.example:443 in ~/.config/go/env"}},
		"go without a database for anything": {"go", machine{env: []string{"GOPROXY=https://a.example", "GOSUMDB=sum.example", "GONOSUMDB=*"}}, []string{"a.example:443 in the environment"}},

		"cargo's own index": {"cargo", machine{says: map[string]string{"cargo": "index.example:443"}}, []string{"index.example:443 cargo knows only after it has asked once"}},
		"cargo's own index, and the files it has been told of": {"cargo", machine{says: map[string]string{"cargo": "index.example:443"}, files: map[string]string{
			"/home/me/.cargo/registry/index/index.example-6f17/config.json": `{"dl":"https://static.example/crates","api":"https://api.example"}`,
			"/home/me/.cargo/registry/index/other.example-6f17/config.json": `{"dl":"https://no.example/crates"}`,
		}}, []string{"index.example:443 as cargo has it built in", "static.example:443 the files of cargo's index"}},
		"cargo's replaced source, in its forms": {"cargo", machine{files: map[string]string{"/home/me/.cargo/config.toml": `
[source.crates-io]
replace-with = 'mirror' # a comment
[source."mirror"]
registry = "sparse+https://crates.example/index/"
[registries]
corp = { index = "https://corp.example/git", token = "x" }
[build]
rustflags = [
  "-C", "x=y",
]
`}}, []string{"corp.example:443 registries.corp.index", "crates.example:443 source.mirror.registry"}},
		"cargo's registry in the environment": {"cargo", machine{env: []string{"CARGO_REGISTRIES_MY_CORP_INDEX=sparse+https://corp.example/"}, files: map[string]string{
			"/home/me/.cargo/config": "source.crates-io.replace-with = \"my-corp\"",
		}}, []string{"corp.example:443 in the environment"}},

		"maven's own repository": {"maven", machine{says: map[string]string{"mvn": ""}, files: map[string]string{jar: pom}}, []string{"central.example:443 as maven has it built in"}},
		"maven's mirror of all": {"maven", machine{env: []string{"NEXUS=nexus.example"}, says: map[string]string{"mvn": ""}, files: map[string]string{jar: pom,
			"/home/me/.m2/settings.xml": `<settings xmlns="urn:settings"><mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf><url>https://${env.NEXUS}/all</url></mirror></mirrors></settings>`,
		}}, []string{"nexus.example:443 maven's mirror in ~/.m2/settings.xml"}},
		"maven's mirror of others, a blocked one, and a repository of a profile": {"maven", machine{says: map[string]string{"mvn": ""}, files: map[string]string{jar: pom,
			"/opt/tools/conf/settings.xml": `<settings><mirrors>
<mirror><mirrorOf>*,!central,!corp</mirrorOf><url>https://no.example/</url></mirror>
<mirror><mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror></mirrors>
<profiles><profile><repositories><repository><id>corp</id><url>https://corp.example/repo</url></repository></repositories></profile></profiles></settings>`,
		}}, []string{"corp.example:443 in /opt/tools/conf/settings.xml", "central.example:443 built in"}},
		"maven's mirror without the program": {"maven", machine{files: map[string]string{"/home/me/.m2/settings.xml": `<settings><mirrors><mirror><mirrorOf>*</mirrorOf><url>https://nexus.example/all</url></mirror></mirrors></settings>`}},
			[]string{"nexus.example:443 maven's mirror"}},

		"apt's sources in both forms": {"debian", machine{files: map[string]string{
			"/etc/apt/sources.list":                    "# deb http://no.example/debian x main\ndeb [arch=amd64 signed-by=/k.gpg] http://one.example/debian stable main\ndeb-src\thttps://two.example:8443/debian stable main\ndeb cdrom:[disc]/ stable main\n",
			"/etc/apt/sources.list.d/a.sources":        "Types: deb\n# URIs: http://no.example\nURIs: http://three.example/debian\n https://four.example/debian\nSuites: stable\n\nTypes: deb\nEnabled: no\nURIs: http://off.example/debian\n",
			"/etc/apt/sources.list.d/b.list.disabled":  "deb http://no.example/debian x main\n",
			"/etc/apt/sources.list.d/mirrors.list":     "deb mirror+file:/etc/apt/mirrors.txt stable main\n",
			"/etc/apt/mirrors.txt":                     "http://five.example/ubuntu/\tpriority:1\n# http://no.example\n",
			"/etc/apt/sources.list.d/local-files.list": "deb file:/srv/debs ./\n",
		}}, []string{"one.example:80 in /etc/apt/sources.list", "two.example:8443 in /etc/apt/sources.list", "three.example:80 a.sources", "four.example:443 a.sources", "five.example:80 apt's mirror in /etc/apt/mirrors.txt"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.m.reader().Preset(c.preset)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for i, w := range c.want {
				rule, place, _ := strings.Cut(w, " ")
				want = append(want, rule)
				if i < len(p.From) && !strings.Contains(p.From[i], place) {
					t.Errorf("%s comes from %q, want %q", rule, p.From[i], place)
				}
			}
			got = append(got, p.Rules...)
			if diff := cmp.Diff(want, got); diff != "" || len(p.From) != len(p.Rules) {
				t.Errorf("(-want +got)\n%s\nfrom %q", diff, p.From)
			}
			if p.Name != c.preset {
				t.Errorf("the preset is called %q", p.Name)
			}
			// What comes out is good for a list as it is.
			if rules, err := egress.ParseEntryIn([]egress.Preset{p}, egress.Entry{To: "preset:" + c.preset}); err != nil || len(rules) != len(p.Rules) {
				t.Errorf("as an entry: %v, %v", rules, err)
			}
		})
	}
}
