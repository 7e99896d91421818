package kernsandbox

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
)

// program is the program under test, set by TestMain.
var program string

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(boxtest.CommandMain(m, &program))
}

// call is one that both are asked for.
type call struct {
	Name      string            `json:"name"`
	Language  string            `json:"language,omitempty"`
	Code      string            `json:"code,omitempty"`
	Command   []string          `json:"command,omitempty"`
	Timeout   float64           `json:"timeout,omitempty"`
	MaxOutput int               `json:"maxOutput,omitempty"`
	CPUs      float64           `json:"cpus,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Allow     []string          `json:"allow,omitempty"`
	Setup     string            `json:"setup,omitempty"`
	Files     map[string]string `json:"files,omitempty"` // in the workspace beforehand
	Memory    int               `json:"memory,omitempty"`
	Cell      bool              `json:"cell,omitempty"`  // Code is one, and its results count
	Cells     []string          `json:"cells,omitempty"` // of one kernel, of which the last that ran counts
	// Mounts shows folders at /m, to read, and /w, to write: what is in /w/made
	// afterwards counts.
	Mounts bool `json:"mounts,omitempty"`
	// Only are the fields that are compared; none named is all.
	Only []string `json:"-"`
}

var calls = []call{
	{Name: "exit 0", Language: "python", Code: "print(sum(range(100)))"},
	{Name: "exit 3", Language: "sh", Code: "echo out; echo err >&2; exit 3"},
	{Name: "an exception", Language: "python", Code: "raise SystemExit(5)"},
	{Name: "bash", Language: "bash", Code: "a=(x y); [[ ${a[1]} == y ]] && echo ${#a[@]}"},
	{Name: "a failing line", Language: "bash", Code: "false\necho after"},
	{Name: "a long script", Language: "sh", Code: strings.Repeat("# 123456789\n", 20000) + "echo end"},
	{Name: "an argument", Command: []string{"printf", "%s|", "a b", "$HOME"}},
	{Name: "no such program", Command: []string{"no-such-program"}},
	{Name: "timeout", Command: []string{"sleep", "60"}, Timeout: 1},
	{Name: "exit 137", Command: []string{"sh", "-c", "exit 137"}},
	{Name: "exit 159", Command: []string{"sh", "-c", "exit 159"}},
	{Name: "kills itself", Command: []string{"sh", "-c", "kill -9 $$; echo alive"}},
	{Name: "escape", Command: []string{"unshare", "-U", "true"}},
	{Name: "escape of a child", Command: []string{"sh", "-c", "unshare -U true 2>/dev/null; exit 0"}},
	{Name: "output over its cap", Command: []string{"sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x"}, MaxOutput: 1000},
	{Name: "a file made", Language: "sh", Code: "echo x >made; mkdir d"},
	{Name: "a file changed in secret", Language: "sh", Code: "cp -p f g && printf BBBB >f && touch -r g f && rm g", Files: map[string]string{"f": "AAAA"}},
	{Name: "a file deleted", Language: "sh", Code: "rm f", Files: map[string]string{"f": "x"}},
	{Name: "no network", Language: "python", Code: "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 3)\nexcept OSError as e:\n    print(e.strerror)"},
	{Name: "a host that is not allowed", Language: "python", Allow: []string{"good.example.com"},
		Code: "import urllib.request\ntry:\n    urllib.request.urlopen('http://evil.example.com/', timeout=10)\nexcept Exception as e:\n    print(getattr(e, 'code', e))"},
	{Name: "a variable", Language: "sh", Code: `echo "[$A]"`, Env: map[string]string{"A": "b c"}},
	{Name: "a blank at the end of a variable", Language: "sh", Code: `echo "[$A]"`, Env: map[string]string{"A": "b "}},
	{Name: "the root file system", Language: "sh", Code: "touch /x || echo refused"},
	{Name: "cpus", Language: "sh", Code: `[ "$(nproc)" = 1 ] && echo one || echo all`, CPUs: 0.5},
	{Name: "node", Language: "node", Code: "console.log([1, 2].map(x => 2 * x)); console.error('err'); process.exitCode = 4"},
	{Name: "node, with await at the top", Language: "node", Code: "console.log(await Promise.resolve(5))"},
	{Name: "node, an exception", Language: "node", Code: "console.log(1); throw 5", Only: []string{"exit code", "fault", "stdout", "success"}},
	{Name: "rich results", Language: "python", Cell: true, Code: "class T:\n    def _repr_html_(self): return '<b>x</b>'\n    def __repr__(self): return 'T'\ndisplay(T())\nprint('out')\n6 * 7"},
	{Name: "a last expression that is silenced", Language: "python", Cell: true, Code: "print(1)\n6 * 7;"},
	{Name: "a cell that fails", Language: "python", Cell: true, Code: "display('before')\nprint(1)\n1 / 0"},
	{Name: "await at the top of a cell", Language: "python", Cell: true, Code: "import asyncio\nawait asyncio.sleep(0)\n1"},
	{Name: "a kernel", Cells: []string{"x = 1", "x += 41; print(x)", "x"}},
	{Name: "a kernel with a cell that fails", Cells: []string{"x = 1", "1 / 0", "x"}},
	{Name: "a kernel that ends itself", Cells: []string{"x = 1", "import os; os._exit(3)", "x"}},
	{Name: "mounts", Language: "sh", Mounts: true, Code: "cat /m/f; touch /m/g 2>/dev/null || echo refused; echo y >/w/made; ls /w"},
	// The package has no cap where it can have none, and says so: then it is not compared.
	{Name: "oom", Language: "python", Memory: 128, Code: "x = bytearray(600 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1", Only: []string{"fault", "success"}},
	{Name: "setup", Language: "python", Setup: "mkdir -p .deps && echo X=42 > .deps/made.py", Code: "import sys; sys.dont_write_bytecode = True\nimport made; print(made.X)\ntry:\n    open('.deps/x', 'w')\nexcept OSError as e:\n    print(e.strerror)"},
}

// outcome is what came of a call, in the words of both.
type outcome struct {
	Exit      *int     `json:"exit"`
	Fault     string   `json:"fault"`
	Stdout    string   `json:"stdout"`
	Stderr    string   `json:"stderr"`
	Files     []string `json:"files"`
	Truncated bool     `json:"truncated"`
	Success   bool     `json:"success"`
	Results   []string `json:"results"`
	Mount     string   `json:"mount"`
	Uncapped  bool     `json:"uncapped"` // there was to be a cap on memory, and none was in force
}

// allFields are those that are compared, in the order of the page.
var allFields = []string{"exit code", "fault", "stdout", "stderr", "files", "truncated", "success", "results", "mount"}

// fields are those that are compared, as the page writes them.
func (o outcome) fields() map[string]string {
	exit := "null"
	if o.Exit != nil {
		exit = strconv.Itoa(*o.Exit)
	}
	text := func(s string) string {
		if strings.HasPrefix(s, "kern: ") { // another one with each kern
			return "words of kern"
		}
		if strings.HasPrefix(s, "Traceback ") || strings.HasPrefix(s, "  File ") { // of another file in each
			lines := strings.Split(strings.TrimSpace(s), "\n")
			return "a traceback, " + lines[len(lines)-1]
		}
		q := strconv.Quote(s)
		return q[1 : len(q)-1]
	}
	or := func(s string) string {
		if s == "" {
			return "none"
		}
		return s
	}
	return map[string]string{
		"exit code": exit, "fault": or(o.Fault), "stdout": or(text(o.Stdout)), "stderr": or(text(o.Stderr)),
		"files": or(strings.Join(o.Files, ", ")), "truncated": strconv.FormatBool(o.Truncated), "success": strconv.FormatBool(o.Success),
		"results": or(strings.Join(o.Results, ", ")), "mount": or(text(o.Mount)),
	}
}

// row is a difference.
type row struct{ Call, Field, Theirs, Native, Kern string }

// TestTheSameCalls: whatever differs is on the page, and the page is right.
func TestTheSameCalls(t *testing.T) {
	boxtest.Boxes(t)
	boxtest.Need(t, "kern", "python3", "node")
	theirs := kernSandbox(t)
	native, kern := ours(t, "native"), ours(t, "kern")
	var got []row
	for _, c := range calls {
		a, n, k := theirs[c.Name].fields(), native[c.Name].fields(), kern[c.Name].fields()
		if theirs[c.Name].Uncapped {
			t.Logf("%s: no cap is in force in the package's box here, so it is compared with nothing: %v", c.Name, a)
			a = n
			if n["fault"] != "oom" {
				t.Errorf("%s: with a cap in force the fault is %s", c.Name, n["fault"])
			}
		}
		only := c.Only
		if only == nil {
			only = allFields
		}
		for _, f := range only {
			if a[f] != n[f] || a[f] != k[f] {
				got = append(got, row{c.Name, f, a[f], n[f], k[f]})
			}
		}
	}
	if diff := cmp.Diff(listed(t), got); diff != "" {
		var lines strings.Builder
		for _, r := range got {
			fmt.Fprintf(&lines, "| `%s` | %s | `%s` | `%s` | `%s` | |\n", r.Call, r.Field, r.Theirs, r.Native, r.Kern)
		}
		t.Errorf("differences on the page and as they are (-page +here)\n%s\n%s", diff, &lines)
	}
}

const page = "../../docs/kern-sandbox.md"

// listed reads the table of differences.
func listed(t *testing.T) (out []row) {
	t.Helper()
	for _, cells := range table(t, "| call |") {
		if len(cells) != 6 || cells[5] == "" {
			t.Errorf("a difference without a reason: %q", cells)
			continue
		}
		out = append(out, row{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}
	if len(out) == 0 {
		t.Error("the page lists no difference")
	}
	return out
}

// table gives the cells of the table that begins with a line.
func table(t *testing.T, begins string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, begins):
			in = true
		case in && strings.HasPrefix(line, "|---"):
		case in && strings.HasPrefix(line, "|"):
			var cells []string
			for _, c := range strings.Split(strings.Trim(line, "|"), " | ") {
				cells = append(cells, strings.Trim(strings.TrimSpace(c), "`"))
			}
			rows = append(rows, cells)
		default:
			in = false
		}
	}
	return rows
}

// pythonPackage gives a folder, and an environment in which Python finds the package
// and that our kern, which has an image.
func pythonPackage(t testing.TB) (dir string, env []string) {
	t.Helper()
	dir = boxtest.OpenDir(t)
	lib := filepath.Join(dir, "lib")
	install := exec.Command("python3", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", lib, kern.Wheel)
	if out, err := install.CombinedOutput(); err != nil {
		need.Met(t, "registries", fmt.Errorf("pip got no %s: %v: %s", kern.Wheel, err, out))
	}
	kern := os.Getenv("KERN_BIN")
	env = append(os.Environ(), "PYTHONPATH="+lib, "PYTHONDONTWRITEBYTECODE=1")
	for name, sub := range map[string]string{"XDG_CACHE_HOME": "c", "XDG_CONFIG_HOME": "f", "XDG_DATA_HOME": "d", "XDG_RUNTIME_DIR": "r"} {
		at := filepath.Join(dir, sub)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+at)
	}
	if kern == "" {
		out, err := exec.Command(program, "kern", "path").Output()
		if err != nil {
			t.Fatalf("find kern: %v", err)
		}
		kern = strings.TrimSpace(string(out))
	}
	env = append(env, "KERN_BIN="+kern)
	archive := filepath.Join(dir, "image.tar")
	if err := os.WriteFile(archive, emptyImage(t), 0o600); err != nil {
		t.Fatal(err)
	}
	load := exec.Command(kern, "load", "-i", archive)
	load.Env = env
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load the image: %v: %s", err, out)
	}
	return dir, env
}

// kernSandbox makes the calls with the package.
func kernSandbox(t *testing.T) map[string]outcome {
	t.Helper()
	dir, env := pythonPackage(t)
	list := filepath.Join(dir, "calls.json")
	text, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "w")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	shown := filepath.Join(dir, "mounts")
	mounts(t, shown)
	cmd := exec.Command("python3", "testdata/calls.py", imageName, list, work, shown)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = env, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kern-sandbox: %v\n%s", err, &stderr)
	}
	var got map[string]outcome
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

const imageName = "compare:1"

// emptyImage is an image with folders and links only: both are given the host's own
// /usr, so that both run the same programs.
func emptyImage(t testing.TB) []byte {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(w *tar.Writer, h *tar.Header, text []byte) {
		h.Size = int64(len(text))
		err := w.WriteHeader(h)
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"usr", "etc", "tmp", "workspace", "proc", "dev", "sys", "root"} {
		put(w, &tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		put(w, &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: "usr/" + name, Mode: 0o777}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) string {
		s := sha256.Sum256(b)
		return hex.EncodeToString(s[:])
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer.Bytes())}},
	})
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": sum(config) + ".json", "RepoTags": []string{imageName}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	var image bytes.Buffer
	o := tar.NewWriter(&image)
	put(o, &tar.Header{Name: "layer.tar", Mode: 0o644}, layer.Bytes())
	put(o, &tar.Header{Name: sum(config) + ".json", Mode: 0o644}, config)
	put(o, &tar.Header{Name: "manifest.json", Mode: 0o644}, manifest)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return image.Bytes()
}

// mounts makes what calls with Mounts are shown.
func mounts(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Join(dir, "m"), filepath.Join(dir, "w")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "m", "f"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// ours makes the calls with the program, each in a workspace of its own.
func ours(t *testing.T, engine string) map[string]outcome {
	t.Helper()
	out := map[string]outcome{}
	for _, c := range calls {
		out[c.Name] = run(t, engine, c)
	}
	return out
}

func run(t *testing.T, engine string, c call) (o outcome) {
	t.Helper()
	dir := boxtest.OpenDir(t)
	ws, report := filepath.Join(dir, "ws"), filepath.Join(dir, "out")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range c.Files {
		if err := os.WriteFile(filepath.Join(ws, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	step := map[string]any{"id": "one", "timeoutS": 30}
	set := func(key string, v any, is bool) {
		if is {
			step[key] = v
		}
	}
	set("command", c.Command, c.Command != nil)
	set("run", c.Code, c.Code != "" && !c.Cell)
	set("code", c.Code, c.Cell)
	set("language", c.Language, c.Language != "" && !c.Cell)
	set("memoryMb", c.Memory, c.Memory > 0)
	shown := filepath.Join(dir, "mounts")
	mounts(t, shown)
	set("mounts", map[string][]string{shown + "/m": {"/m", "ro"}, shown + "/w": {"/w", "rw"}}, c.Mounts)
	set("timeoutS", c.Timeout, c.Timeout > 0)
	set("maxOutputBytes", c.MaxOutput, c.MaxOutput > 0)
	set("cpus", c.CPUs, c.CPUs > 0)
	set("env", c.Env, c.Env != nil)
	set("egressAllow", c.Allow, c.Allow != nil)
	set("setup", c.Setup, c.Setup != "")
	set("setupEgress", []string{}, c.Setup != "")
	list := []any{step}
	if c.Cells != nil {
		list = nil
		for i, code := range c.Cells {
			list = append(list, map[string]any{"id": "c" + strconv.Itoa(i), "kernel": "k", "code": code})
		}
	}
	text, err := json.Marshal(map[string]any{"steps": list})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "steps.yml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "run", "--engine", engine, "--workspace", ws, "--out", report, file)
	said, _ := cmd.CombinedOutput() // its exit status is the gate's, and the report has all
	text, err = os.ReadFile(filepath.Join(report, "report.json"))
	if err != nil {
		t.Fatalf("%s, %s: %v\n%s", c.Name, engine, err, said)
	}
	type stream struct {
		Path      string
		Truncated bool
	}
	var r struct {
		Steps []struct {
			Status   string
			ExitCode *int
			Fault    *struct{ Type string }
			Stdout   stream
			Stderr   stream
			Files    []struct{ Path, Change, Type string }
			Results  []map[string]string
		}
	}
	if err := json.Unmarshal(text, &r); err != nil || len(r.Steps) != len(list) {
		t.Fatalf("%s, %s: %v\n%s", c.Name, engine, err, said)
	}
	s := r.Steps[len(r.Steps)-1]
	for n := len(r.Steps) - 2; c.Cells != nil && s.Status == "skipped" && n >= 0; n-- { // what ended the kernel
		s = r.Steps[n]
	}
	if s.Status != "passed" && s.Status != "failed" {
		t.Fatalf("%s, %s: %s\n%s", c.Name, engine, s.Status, said)
	}
	o = outcome{Exit: s.ExitCode, Truncated: s.Stdout.Truncated || s.Stderr.Truncated, Success: s.Status == "passed"}
	if s.Fault != nil {
		o.Fault = s.Fault.Type
	}
	read := func(from stream) string {
		if from.Path == "" {
			return ""
		}
		b, err := os.ReadFile(filepath.Join(report, from.Path))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(b)
	}
	o.Stdout, o.Stderr = read(s.Stdout), read(s.Stderr)
	for _, f := range s.Files {
		name := f.Path
		if f.Type != "file" {
			name += " (" + f.Type + ")"
		}
		if f.Change == "deleted" {
			name += " (deleted)"
		}
		o.Files = append(o.Files, name)
	}
	slices.Sort(o.Files)
	for _, v := range s.Results {
		for _, mime := range slices.Sorted(maps.Keys(v)) {
			o.Results = append(o.Results, mime+" "+v[mime])
		}
	}
	if made, err := os.ReadFile(filepath.Join(shown, "w", "made")); err == nil {
		o.Mount = string(made)
	}
	return o
}

// TestEveryRowNamesTestsThatAreThere: what the page says of a feature, some test
// holds. A test is a function, a script of cmd/action/testdata, or a fact of the
// conformance suite by the start of its sentence.
func TestEveryRowNamesTestsThatAreThere(t *testing.T) {
	sources := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		sources[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	holds := func(where func(path string) bool, text string) bool {
		for path, source := range sources {
			if where(path) && strings.Contains(source, text) {
				return true
			}
		}
		return false
	}
	features, behaviour := table(t, "| in kern-sandbox |"), table(t, "| of kern |")
	if len(features) < 50 || len(behaviour) < 60 {
		t.Errorf("the page has %d features, and %d lines of kern's behaviour", len(features), len(behaviour))
	}
	for _, cells := range append(features, behaviour...) {
		if len(cells) == 3 && strings.HasPrefix(cells[0], "**") && cells[1] == "-" && cells[2] == "-" {
			continue // what the lines below it are about
		}
		if len(cells) != 3 {
			t.Errorf("a row of %d cells: %q", len(cells), cells)
			continue
		}
		names := strings.Split(strings.TrimSpace(cells[2]), "; ")
		for _, name := range names {
			name = strings.Trim(name, "`")
			fact, isFact := strings.CutPrefix(name, "fact: ")
			switch {
			case name == "" || name == "-":
				// What is left out has no test, but a reason.
				if !strings.HasPrefix(cells[1], "left out:") {
					t.Errorf("%s names no test", cells[0])
				}
			case strings.HasSuffix(name, ".txtar"):
				if _, err := os.Stat(filepath.Join("../../cmd/action/testdata", name)); err != nil {
					t.Errorf("%s: %v", cells[0], err)
				}
			case isFact:
				if !holds(func(p string) bool { return strings.Contains(p, "internal/boxtest/") }, `"`+fact) {
					t.Errorf("%s: the suite has no fact that begins with %q", cells[0], fact)
				}
			default:
				if !holds(func(p string) bool { return strings.HasSuffix(p, "_test.go") }, "func "+name+"(") {
					t.Errorf("%s: there is no test %s", cells[0], name)
				}
			}
		}
	}
}
