package egress_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// registries are where this machine's package clients are set up to ask: read
// from the clients, and nowhere written down. In boxes they are in variables
// that passEnv hands in.
type registries struct {
	env   map[string]string   // URLs, by variable
	hosts map[string][]string // by client
}

func (g registries) secrets() []string {
	var out []string
	for _, v := range g.env {
		out = append(out, v)
	}
	for _, list := range g.hosts {
		out = append(out, list...)
	}
	// The longest first, or a part of it would be left over.
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

func (g registries) environ() []string {
	var out []string
	for k, v := range g.env {
		out = append(out, k+"="+v)
	}
	return out
}

// pipAsks prints the index that pip asks, and the host of the files if that is
// another one.
const pipAsks = `
import os
from urllib.parse import urlsplit
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
c = Configuration(isolated=False)
c.load()
found = dict(c.items())
url = found.get("global.index-url") or found.get(":env:.index-url") or PyPI.simple_url
print(url)
print(PyPI.file_storage_domain if url == PyPI.simple_url else urlsplit(url).hostname)
`

var errNoRegistry = errors.New("a package client is missing, or says nothing of its registry")

// readRegistries asks each client.
func readRegistries() (registries, error) {
	g := registries{env: map[string]string{}, hosts: map[string][]string{}}
	ask := func(argv ...string) ([]string, error) {
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err != nil || lines[0] == "" {
			return nil, fmt.Errorf("%w: %s: %v", errNoRegistry, argv[0], err)
		}
		return lines, nil
	}
	npm, err := ask("npm", "config", "get", "registry")
	if err != nil {
		return g, err
	}
	g.env["NPM_CONFIG_REGISTRY"] = strings.TrimSuffix(npm[0], "/") + "/"
	pip, err := ask("/usr/bin/python3", "-c", pipAsks)
	if err != nil || len(pip) != 2 {
		return g, fmt.Errorf("%w: pip: %v", errNoRegistry, err)
	}
	g.env["PIP_INDEX_URL"] = pip[0]
	golang, err := ask("go", "env", "GOPROXY", "GOSUMDB")
	if err != nil || len(golang) != 2 {
		return g, fmt.Errorf("%w: go: %v", errNoRegistry, err)
	}
	g.env["GOPROXY"], _, _ = strings.Cut(strings.ReplaceAll(golang[0], "|", ","), ",")
	if g.env["DEBIAN_RELEASE"], err = aptRelease(); err != nil {
		return g, err
	}
	for client, name := range map[string]string{"npm": "NPM_CONFIG_REGISTRY", "pip": "PIP_INDEX_URL", "go": "GOPROXY", "apt": "DEBIAN_RELEASE"} {
		u, err := url.Parse(g.env[name])
		if err != nil || u.Hostname() == "" {
			return g, fmt.Errorf("%w: %s", errNoRegistry, name)
		}
		host := u.Hostname()
		if p := u.Port(); p != "" {
			host += ":" + p
		}
		g.hosts[client] = []string{host}
	}
	g.hosts["pip"] = append(g.hosts["pip"], pip[1])
	if db, _, _ := strings.Cut(golang[1], "+"); strings.Contains(db, ".") {
		g.hosts["go"] = append(g.hosts["go"], db)
	}
	return g, nil
}

var aptLine = regexp.MustCompile(`(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)`)

// aptRelease is the URL of a small file that apt would fetch.
func aptRelease() (string, error) {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append(files, "/etc/apt/sources.list") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		at, suite := "", ""
		if m := aptLine.FindSubmatch(b); m != nil {
			at, suite = string(m[1]), string(m[2])
		}
		for text := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(text, ":")
			switch words := strings.Fields(v); {
			case len(words) == 0 || at != "" && suite != "":
			case k == "URIs":
				at = words[0]
			case k == "Suites":
				suite = words[0]
			}
		}
		if at != "" && suite != "" {
			return strings.TrimSuffix(at, "/") + "/dists/" + suite + "/Release.gpg", nil
		}
	}
	return "", fmt.Errorf("%w: apt", errNoRegistry)
}

// client is one that fetches something small and leaves it in the workspace.
type client struct {
	id, of   string // a client of registries
	language string
	run      string
	file     string // what it leaves
	starts   string // and how that starts
}

var gzipped, zipped = "\x1f\x8b", "PK"

var clients = []client{
	{"curl", "npm", "sh", `curl -fsS --max-time 30 -o curl.tgz "${NPM_CONFIG_REGISTRY}is-number/-/is-number-7.0.0.tgz"`, "curl.tgz", gzipped},
	{"curl-apt", "apt", "sh", `curl -fsS --max-time 30 -o release.asc "$DEBIAN_RELEASE"`, "release.asc", "-----BEGIN PGP"},
	{"npm", "npm", "sh", `npm pack --silent is-number@7.0.0`, "is-number-7.0.0.tgz", gzipped},
	{"pip", "pip", "sh", `python3 -m pip download -q --no-deps --no-cache-dir six==1.16.0`, "six-1.16.0-py2.py3-none-any.whl", zipped},
	{"go", "go", "sh", `cd "$HOME"; go mod init example.com/m 2>/dev/null; go mod download github.com/google/uuid@v1.6.0
cp go/pkg/mod/cache/download/github.com/google/uuid/@v/v1.6.0.zip /workspace/uuid.zip`, "uuid.zip", zipped},
	{"urllib", "npm", "python", `import os, urllib.request
with urllib.request.urlopen(os.environ["NPM_CONFIG_REGISTRY"] + "is-number/7.0.0", timeout=30) as r, open("urllib.json", "wb") as f:
    f.write(r.read())`, "urllib.json", `{"`},
}

// fetching writes a steps file with every client. What stands under keys is of
// the step.
func fetching(keys func(c client) string) string {
	var b strings.Builder
	// Clients try again what was refused, which here would only take time.
	b.WriteString("version: 1\ndefaults:\n  timeoutS: 60\n  memoryMb: 2048\n  tmpfs: {/tmp: 256m, /step/home: 512m}\n" +
		"  env: {PIP_RETRIES: 0, NPM_CONFIG_FETCH_RETRIES: 0, NPM_CONFIG_UPDATE_NOTIFIER: false, GOTOOLCHAIN: local, GOFLAGS: -modcacherw}\n" +
		"  passEnv: [NPM_CONFIG_REGISTRY, PIP_INDEX_URL, GOPROXY, DEBIAN_RELEASE]\nsteps:\n")
	for _, c := range clients {
		fmt.Fprintf(&b, "- id: %s\n  language: %s\n  run: %s\n", c.id, c.language, quoted(c.run))
		for text := range strings.Lines(keys(c)) {
			b.WriteString("  " + text)
		}
	}
	return b.String()
}

// quoted is a text as YAML and JSON both read it.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// list writes a list of rules, as they are proposed: each is YAML.
func list(rules []string) string {
	out := "egressAllow:\n"
	for _, r := range rules {
		if !strings.HasPrefix(r, "{") {
			r = quoted(r)
		}
		out += "- " + r + "\n"
	}
	return out
}

func haveRegistries(t *testing.T) registries {
	t.Helper()
	g, err := readRegistries()
	need.Met(t, "registries", err)
	return g
}

func (g registries) fetch(t *testing.T, engine string, keys func(c client) string) *run {
	t.Helper()
	return start(t, job{engine: engine, env: g.environ(), secret: g.secrets(), steps: fetching(keys)})
}

// arrived holds that every client got its package, and by allowed requests only.
func (g registries) arrived(r *run, reason string) {
	r.t.Helper()
	for _, c := range clients {
		b, err := os.ReadFile(filepath.Join(r.workspace, c.file))
		if err != nil || !strings.HasPrefix(string(b), c.starts) {
			r.errorf("step %s: the workspace has no %s: %v, %.40q\n%s", c.id, c.file, err, b, r.stderr(c.id))
		}
		st := r.step(c.id)
		if st.Fault != nil || len(st.Egress) == 0 {
			r.errorf("step %s: fault %+v, ledger %+v", c.id, st.Fault, st.Egress)
		}
		if !slices.ContainsFunc(st.Files, func(f struct{ Path, Change string }) bool { return f.Path == c.file && f.Change == "created" }) {
			r.errorf("step %s: its files are %+v, want %s among them", c.id, st.Files, c.file)
		}
		for _, e := range st.Egress {
			if e.Verdict != "allowed" || e.Reason != reason || e.BytesIn == 0 || e.BytesOut == 0 || e.Protocol != "https" && e.Protocol != "http" {
				r.errorf("step %s: the ledger has %+v", c.id, e)
			}
		}
	}
}

func TestPackageClientsFetchThroughAnAllowRuleForTheirRegistry(t *testing.T) {
	g := haveRegistries(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := g.fetch(t, engine, func(c client) string { return list(g.hosts[c.of]) })
		r.exits(0)
		g.arrived(r, "")
		// Nothing that a step was told in confidence is in what is kept.
		for _, name := range []string{"report.json", "summary.md"} {
			b, err := os.ReadFile(filepath.Join(r.out, name))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range g.env {
				if strings.Contains(string(b), v) {
					t.Errorf("%s has the value of %s, which passEnv handed in", name, k)
				}
			}
		}
	})
}

// presetOf is the preset of a client.
var presetOf = map[string]string{"npm": "preset:npm", "pip": "preset:pypi", "go": "preset:go", "apt": "preset:debian"}

// A preset stands for what the client's own settings say, so the client gets
// through it, and the report says to whom and why.
func TestAPresetOfAClientStandsForWhatThatClientIsSetUpFor(t *testing.T) {
	g := haveRegistries(t)
	holds := func(r *run, id string, got []preset, of string) {
		t.Helper()
		if len(got) != 1 || "preset:"+got[0].Name != presetOf[of] {
			r.fatalf("step %s: its presets are %+v, want %s", id, got, presetOf[of])
		}
		for _, host := range g.hosts[of] {
			if !slices.ContainsFunc(got[0].Rules, func(p presetRule) bool {
				h, _, _ := strings.Cut(host, ":")
				return strings.HasPrefix(p.Rule, h+":") && p.From != ""
			}) {
				r.errorf("step %s: the preset stands for %+v, want %s among them", id, got[0].Rules, host)
			}
		}
	}
	// What the plan says is what the client's own program told us.
	cmd := exec.Command(program, "plan", "--json", "-")
	cmd.Dir = boxtest.OpenDir(t)
	cmd.Stdin = strings.NewReader(fetching(func(c client) string { return list([]string{presetOf[c.of]}) }))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	var planned struct {
		Steps []struct {
			EgressPresets []preset
		}
	}
	if err := json.Unmarshal(out, &planned); err != nil {
		t.Fatal(err)
	}
	for i, c := range clients {
		holds(&run{t: t, secret: g.secrets()}, c.id, planned.Steps[i].EgressPresets, c.of)
	}
	eachEngine(t, func(t *testing.T, engine string) {
		r := g.fetch(t, engine, func(c client) string { return list([]string{presetOf[c.of]}) })
		r.exits(0)
		g.arrived(r, "")
		for _, c := range clients {
			holds(r, c.id, r.step(c.id).Presets, c.of)
		}
	})
}

func TestWithoutTheRuleTheSameClientIsDeniedAndToldTheRule(t *testing.T) {
	g := haveRegistries(t)
	eachEngine(t, func(t *testing.T, engine string) {
		r := g.fetch(t, engine, func(client) string { return list([]string{"elsewhere.example.com"}) })
		r.exits(1)
		for _, c := range clients {
			st := r.step(c.id)
			if st.Status != "failed" || st.ExitCode == nil || *st.ExitCode == 0 || st.Fault == nil || st.Fault.Type != "egress_denied" {
				r.errorf("step %s: %s, fault %+v", c.id, st.Reason, st.Fault)
				continue
			}
			told := false
			for _, h := range g.hosts[c.of] {
				told = told || strings.Contains(st.Fault.Message, fmt.Sprintf("add %q to egressAllow", h))
			}
			if !told {
				r.errorf("step %s: the fault does not name the rule to add: %s", c.id, st.Fault.Message)
			}
			for _, e := range st.Egress {
				if e.Verdict != "denied" || e.Reason != "no_rule" || e.BytesIn+e.BytesOut > 0 {
					r.errorf("step %s: the ledger has %+v", c.id, e)
				}
			}
			if _, err := os.Stat(filepath.Join(r.workspace, c.file)); err == nil {
				r.errorf("step %s: %s is there all the same", c.id, c.file)
			}
			if len(st.Unused) != 1 || st.Unused[0] != "elsewhere.example.com" {
				r.errorf("step %s: unused rules are %v", c.id, st.Unused)
			}
		}
	})
}

func TestWhatAnAuditProposesIsEnoughToBeEnforced(t *testing.T) {
	g := haveRegistries(t)
	eachEngine(t, func(t *testing.T, engine string) {
		audit := g.fetch(t, engine, func(client) string { return "egressMode: audit\n" })
		audit.exits(0)
		g.arrived(audit, "audit")
		proposed := map[string][]string{}
		patched := audit.patched()
		for _, c := range clients {
			st := audit.step(c.id)
			if st.Mode != "audit" || len(st.Proposal) == 0 {
				audit.errorf("step %s: mode %s, proposal %v", c.id, st.Mode, st.Proposal)
			}
			proposed[c.id] = st.Proposal
			for _, p := range st.Proposal {
				if !strings.Contains(audit.log, "- "+p) {
					audit.errorf("step %s: the log does not propose %s:\n%s", c.id, p, audit.log)
				}
			}
		}
		if s, err := os.ReadFile(filepath.Join(audit.out, "summary.md")); err != nil || !strings.Contains(string(s), "egressMode: audit") {
			audit.errorf("the summary does not say that it tells of an audit: %v\n%s", err, s)
		}
		for name, file := range map[string]string{
			"the list": fetching(func(c client) string { return list(proposed[c.id]) }), "the patch": patched,
		} {
			r := start(t, job{engine: engine, env: g.environ(), secret: g.secrets(), steps: file})
			r.exits(0)
			g.arrived(r, "")
			for _, c := range clients {
				st := r.step(c.id)
				if st.Mode != "enforce" || len(st.Proposal) > 0 || len(st.Unused) > 0 {
					r.errorf("%s, step %s: mode %s, proposal %v, unused %v", name, c.id, st.Mode, st.Proposal, st.Unused)
				}
			}
		}
	})
}

// patched gives the steps file with what an audit wrote as a patch to it.
func (r *run) patched() string {
	r.t.Helper()
	cmd := exec.Command("git", "apply", "-p1", filepath.Join(r.out, "egress-allow.patch"))
	cmd.Dir, cmd.Env = r.dir, []string{"PATH=" + os.Getenv("PATH"), "GIT_CEILING_DIRECTORIES=" + filepath.Dir(r.dir)}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.fatalf("apply the patch of an audit: %v\n%s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(r.dir, "steps.yml"))
	if err != nil {
		r.fatalf("%v", err)
	}
	if strings.Contains(string(b), "egressMode: audit") {
		r.fatalf("the patched file is still one of an audit")
	}
	return string(b)
}

// Node's fetch, unlike npm, does not look at the proxy's variables. It must then
// have no network at all; a tcp:// rule is a way to give it one host.
func TestNodesFetchHasNoNetworkUnlessARuleGivesItOne(t *testing.T) {
	g := haveRegistries(t)
	host := g.hosts["npm"][0]
	const script = `const ask = process.env.NPM_CONFIG_REGISTRY + "is-number/7.0.0";
fetch(ask).then(async r => require("fs").writeFileSync("node.json", await r.text())).catch(e => { console.error(e.cause?.code); process.exit(9); });`
	eachEngine(t, func(t *testing.T, engine string) {
		r := start(t, job{engine: engine, env: g.environ(), secret: g.secrets(), steps: fmt.Sprintf(`
defaults: {language: node, memoryMb: 2048, passEnv: [NPM_CONFIG_REGISTRY]}
steps:
- {id: closed, run: %[1]s, egressAllow: [%[2]s], expect: {exitCode: 9}}
- {id: open, run: %[1]s, egressAllow: ["tcp://%[2]s:443"]}
`, quoted(script), host)})
		r.exits(0)
		if st := r.step("closed"); len(st.Egress) > 0 || len(st.Unused) != 1 {
			r.errorf("without a proxy's help, the ledger has %+v, unused %v", st.Egress, st.Unused)
		}
		if e := r.stderr("closed"); e != "EAI_AGAIN" && e != "ENOTFOUND" {
			r.errorf("node fetch fails with %q, want a name that does not resolve", e)
		}
		if e := r.only("open", host, 443); e.Verdict != "allowed" || e.Protocol != "tcp/tls" || e.BytesIn == 0 {
			r.errorf("with a tcp:// rule, the ledger has %+v", e)
		}
		if b, err := os.ReadFile(filepath.Join(r.workspace, "node.json")); err != nil || !strings.HasPrefix(string(b), `{"`) {
			r.errorf("with a tcp:// rule, node fetch leaves %.40q: %v", b, err)
		}
		if l := r.lines(); len(l) != 1 || l[0].SNI != host {
			r.errorf("egress.jsonl has %+v, want one line with the name in the ClientHello", l)
		}
	})
}
