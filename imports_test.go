// Package untrustedsteps_test holds what is true of the whole module: which
// part may know which, and what each may use of other people's work.
package untrustedsteps_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/untrusted-steps/untrusted-steps"

// mayImport is the direction of imports. A package may import of ours what its
// row names and nothing else; one without a row is a mistake here or there.
//
// The flow is: egress, limits, workspace <- box <- kern, native, steps <-
// report <- cmd/action. Around it stand leaves that know nothing of the others.
var mayImport = map[string]string{
	// Leaves: each knows one thing about the kernel, the network or a runner.
	"internal/container": "",
	"internal/disk":      "",
	"internal/egress":    "",
	"internal/gha":       "",
	"internal/idmap":     "",
	"internal/image":     "pinned scratch",
	"internal/lazy":      "",
	"internal/limits":    "container",
	"internal/memfd":     "",
	"internal/overlay":   "",
	"internal/rootfs":    "",
	"internal/scratch":   "",
	"internal/seccomp":   "",
	"internal/stage":     "",
	"internal/workspace": "",
	// The workspace as a transaction: each part knows the list of changes and none
	// of the others.
	"internal/workspace/archive": "",
	"internal/workspace/clone":   "workspace",
	"internal/workspace/commit":  "workspace",
	"internal/workspace/delta":   "workspace",
	"internal/workspace/patch":   "workspace",
	"internal/workspace/policy":  "workspace",
	"internal/workspace/scrub":   "workspace",
	// What package clients are set up for, as rules.
	"internal/registry": "egress pinned scratch",
	// What runs inside a box, as its first process. What it imports runs there.
	"internal/boxinit":       "seccomp",
	"internal/boxinit/entry": "boxinit",
	"internal/native/build":  "boxinit overlay stage",
	// The contract, and the run of one box.
	"internal/box": "boxinit egress idmap limits seccomp workspace",
	// Cells, and the interpreters that run them.
	"internal/cell": "box",
	// Engines know the contract, and not each other.
	"internal/kern":   "box boxinit boxinit/entry idmap overlay pinned rootfs scratch seccomp",
	"internal/native": "box boxinit idmap memfd native/build rootfs seccomp stage",
	"internal/gvisor": "box boxinit boxinit/entry idmap overlay pinned rootfs scratch seccomp stage",
	// A program of somebody else's, believed by its sum.
	"internal/pinned": "memfd",
	// What this host can enforce, and the program that runs in its probe boxes.
	"internal/host":        "box boxinit container egress gha host/inside idmap limits overlay scratch seccomp",
	"internal/host/inside": "",
	// The flow of a run knows no engine.
	"internal/steps": "box cell disk egress gha image limits report/rich scratch workspace workspace/clone workspace/commit workspace/delta " +
		"workspace/patch workspace/policy workspace/scrub",
	// What runs stand on. It knows all engines.
	"internal/session":     "box egress gha gvisor host image kern limits native registry rootfs scratch steps",
	"internal/report":      "box egress gha report/html report/rich report/span scratch steps workspace/policy",
	"internal/report/html": "gha report/rich report/span steps",
	"internal/report/rich": "",
	"internal/report/span": "steps",
	// What a pull request is told of a run.
	"internal/gha/checks": "gha report steps",
	"cmd/action":          "box boxinit egress gha gha/checks gvisor host host/inside idmap image kern limits mcp pinned registry report sandbox scratch seccomp session shard steps workspace workspace/archive workspace/scrub",
	"internal/shard":      "box gha steps",
	"internal/mcp":        "gha sandbox",
	// The same for programs of other people's.
	"sandbox":          "cell gha report scratch session steps workspace workspace/archive workspace/scrub",
	"test/container":   "",
	"test/egress":      "",
	"test/kernsandbox": "",
	"test/vm":          "",
	"test/workspace":   "",
	"internal/bench":   "",
	// For tests. The probe runs in boxes and must need nothing.
	"internal/boxtest":              "box boxinit boxtest/need boxtest/probe egress idmap image limits rootfs seccomp workspace",
	"internal/boxtest/need":         "",
	"internal/boxtest/probe":        "",
	"internal/gha/ghatest":          "",
	"internal/boxtest/probe/static": "boxtest/probe",
}

// forAll is a leaf that anybody may import: it keeps the start of boxes short.
const forAll = "internal/lazy"

// onlyForTests may be imported by tests, and by themselves.
var onlyForTests = []string{"internal/boxtest", "internal/gha/ghatest"}

// forTests says whether a package is one of those, or below one.
func forTests(name string) bool {
	return slices.ContainsFunc(onlyForTests, func(o string) bool { return name == o || strings.HasPrefix(name, o+"/") })
}

// rule is why only some packages may import something of other people's, or
// something powerful of the standard library.
type rule struct {
	prefix string
	by     string // packages, or "all"
	tests  string // packages whose tests may as well
	why    string
}

// rules: the first whose prefix fits holds. What is not of the standard library
// and fits none may not be imported: a new dependency takes a line and a reason.
var rules = []rule{
	{"C", "", "", "the program is one static file, and cgo would need a libc in every box"},
	{"github.com/stretchr/testify", "", "", "tests use the standard library and go-cmp"},
	{"plugin", "", "", "nothing is loaded at run time"},

	{"gopkg.in/yaml.v3", "internal/steps", "cmd/action internal/egress", "YAML comes in at one place, which knows its traps; tests read back what users are told to paste"},
	{"github.com/bmatcuk/doublestar", "internal/workspace/policy", "", "what may change is judged at one place"},
	{"github.com/rogpeppe/go-internal/diff", "internal/workspace/patch", "", "patches are written at one place"},
	{"github.com/sethvargo/go-githubactions", "internal/gha", "", "one writer of commands to the runner"},
	{"github.com/google/go-github", "internal/gha/checks", "", "one place talks to the API of GitHub, and holds a token for it"},
	{"github.com/moby/profiles/seccomp", "internal/seccomp", "", "the profile is data for one compiler"},
	{"github.com/opencontainers/runtime-spec", "internal/gvisor internal/seccomp", "test/container", "the form of that profile, and of what runsc is told; tests start containers by it"},
	{"github.com/elastic/go-seccomp-bpf", "internal/seccomp", "", "filters are made at one place"},
	{"golang.org/x/net/bpf", "internal/seccomp", "", "filters are made at one place"},
	{"golang.org/x/net", "internal/egress", "", "names of hosts are judged at one place"},
	{"github.com/moby/sys/capability", "internal/boxinit", "all", "what a step may keep is said at one place"},
	{"github.com/google/go-containerregistry", "internal/image", "cmd/action", "registries are spoken to at one place, by the library that all speak to them with; tests have its registry in memory"},
	{"github.com/klauspost/compress/zstd", "internal/image", "", "layers are packed with it, and the library above brings it along"},
	{"github.com/modelcontextprotocol/go-sdk", "internal/mcp", "cmd/action", "one server of the protocol, by the library of those who wrote it"},
	{"golang.org/x/term", "cmd/action", "", "only the program itself knows whether a person watches"},
	{"golang.org/x/sync", "all", "all", "the Go project's own"},
	{"golang.org/x/sys", "all", "all", "the Go project's own"},

	{"github.com/google/go-cmp", "", "all", "comparison in tests"},
	{"github.com/rogpeppe/go-internal", "", "cmd/action", "scripts for the command"},
	{"github.com/santhosh-tekuri/jsonschema", "", "all", "reports are held to their schema in tests"},
	{"github.com/invopop/jsonschema", "", "internal/steps", "the schemas are generated by a test"},
	{"github.com/rhysd/actionlint", "", "cmd/action", "the example workflows are linted by a test"},

	{"os/exec", "internal/disk internal/gvisor internal/host internal/idmap internal/image internal/kern internal/native internal/pinned internal/registry internal/boxtest internal/boxtest/probe test/vm", "all", "only engines start programs, mkfs.ext4, who asks a package client for its settings or a helper of docker login for a password, and who tries and prepares the host; and what runs machines for tests"},
	{"net/http", "internal/egress internal/gha/checks internal/image internal/kern internal/boxtest", "all", "the proxy speaks HTTP, kern and images are fetched by it and the API of GitHub spoken to; nothing else talks to anybody"},
	{"testing", "internal/boxtest internal/boxtest/need", "all", "the program has no test code in it"},
	{"unsafe", "internal/boxinit internal/seccomp internal/boxtest/probe internal/native internal/kern", "all", "system calls that have no wrapper, and nothing else"},
}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// listed reads what the go command knows, for both architectures.
func listed(t *testing.T) []goPackage {
	t.Helper()
	var out []goPackage
	at := map[string]int{}
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=1")
		b, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		d := json.NewDecoder(strings.NewReader(string(b)))
		for {
			var p goPackage
			if err := d.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			i, known := at[p.ImportPath]
			if !known {
				at[p.ImportPath] = len(out)
				out = append(out, p)
				continue
			}
			both(&out[i].Imports, p.Imports)
			both(&out[i].TestImports, p.TestImports)
			both(&out[i].XTestImports, p.XTestImports)
		}
	}
	if len(out) < 10 {
		t.Fatalf("go list names %d packages only", len(out))
	}
	return out
}

func both(list *[]string, more []string) {
	for _, m := range more {
		if !slices.Contains(*list, m) {
			*list = append(*list, m)
		}
	}
}

func ours(path string) (name string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func in(list, name string) bool {
	return list == "all" || slices.Contains(strings.Fields(list), name)
}

// TestImportsPointOneWay: what a package may know of the others is what its row
// says.
func TestImportsPointOneWay(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range listed(t) {
		name, _ := ours(p.ImportPath)
		if name == "." {
			if len(p.Imports) > 0 {
				t.Errorf("the module's root has a package; it is for tests only")
			}
			continue
		}
		row, ok := mayImport[name]
		if !ok {
			t.Errorf("%s has no row in mayImport: say what it may know", name)
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			other, mine := ours(imp)
			if !mine {
				continue
			}
			if forTests(other) && !forTests(name) {
				t.Errorf("%s imports %s, which is for tests", name, other)
			}
			if other != forAll && !in(row, strings.TrimPrefix(other, "internal/")) {
				t.Errorf("%s imports %s; it may import: %s", name, other, row)
			}
		}
	}
	for name, row := range mayImport {
		if !seen[name] {
			t.Errorf("mayImport has a row for %s, which there is not", name)
		}
		for other := range strings.FieldsSeq(row) {
			_, public := mayImport[other]
			if _, ok := mayImport["internal/"+other]; !ok && !public {
				t.Errorf("mayImport: %s may import %s, which has no row", name, other)
			}
		}
	}
	if cycle := findCycle(); cycle != "" {
		t.Errorf("mayImport goes in a circle: %s", cycle)
	}
}

// findCycle holds the table itself to its claim.
func findCycle() string {
	state := map[string]int{} // 1: on the way, 2: done
	var visit func(name string, way string) string
	visit = func(name, way string) string {
		way += " " + name
		switch state[name] {
		case 1:
			return way
		case 2:
			return ""
		}
		state[name] = 1
		for other := range strings.FieldsSeq(mayImport[name]) {
			if c := visit("internal/"+other, way); c != "" {
				return c
			}
		}
		state[name] = 2
		return ""
	}
	for name := range mayImport {
		if c := visit(name, ""); c != "" {
			return c
		}
	}
	return ""
}

// TestOtherPeoplesWork: what is imported from outside stands in the rules.
func TestOtherPeoplesWork(t *testing.T) {
	for _, p := range listed(t) {
		name, _ := ours(p.ImportPath)
		if name == "." {
			continue
		}
		for _, imp := range p.Imports {
			if why := refused(name, imp, false); why != "" {
				t.Errorf("%s imports %s: %s", name, imp, why)
			}
		}
		for _, imp := range append(slices.Clone(p.TestImports), p.XTestImports...) {
			if why := refused(name, imp, true); why != "" {
				t.Errorf("tests of %s import %s: %s", name, imp, why)
			}
		}
	}
	// The control: the rules refuse what they are there for.
	for _, c := range []struct{ name, imp string }{
		{"internal/report", "gopkg.in/yaml.v3"}, {"cmd/action", "github.com/sethvargo/go-githubactions"},
		{"internal/box", "C"}, {"internal/steps", "os/exec"}, {"internal/limits", "example.com/new"},
	} {
		if refused(c.name, c.imp, false) == "" {
			t.Errorf("%s may import %s", c.name, c.imp)
		}
	}
	if refused("internal/box", "github.com/stretchr/testify/assert", true) == "" {
		t.Error("tests may import testify")
	}
}

// refused says why a package, or its tests, may not import something.
func refused(name, imp string, test bool) string {
	if _, mine := ours(imp); mine {
		return ""
	}
	for _, r := range rules {
		if imp != r.prefix && !strings.HasPrefix(imp, r.prefix+"/") {
			continue
		}
		if in(r.by, name) || test && in(r.tests, name) {
			return ""
		}
		return r.why
	}
	if first, _, _ := strings.Cut(imp, "/"); strings.Contains(first, ".") {
		return "no rule names it; a new dependency takes a line and a reason in imports_test.go"
	}
	return ""
}
