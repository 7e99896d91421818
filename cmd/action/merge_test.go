package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// downloaded is a folder as a job finds it that has fetched the reports of two
// shards, r1 and r2, beside what no report may lead to.
type downloaded struct {
	t   *testing.T
	dir string
}

const noticed = "a file of the host"

func download(t *testing.T) *downloaded {
	t.Helper()
	d := &downloaded{t, t.TempDir()}
	d.write("host/secret", noticed)
	d.put("r1", d.report(1, "a"))
	d.put("r2", d.report(2, "b"))
	return d
}

func (d *downloaded) report(index int, ids ...string) *steps.Result {
	zero := 0
	r := &steps.Result{Schema: 1, Verdict: "pass", Shard: &steps.Shard{Index: index, Of: 2, Plan: strings.Repeat("a", 64), Steps: ids, All: []string{"a", "b"}}}
	for _, id := range ids {
		r.Steps = append(r.Steps, steps.StepResult{
			ID: id, Name: id, Status: "passed", ExitCode: &zero, Network: "none", EgressMode: "enforce", Workspace: "unchanged",
			Stdout: steps.Output{Path: "steps/" + id + "/stdout.log"}, Stderr: steps.Output{Path: "steps/" + id + "/stderr.log"},
		})
	}
	return r
}

func (d *downloaded) put(name string, r *steps.Result) {
	d.t.Helper()
	var b bytes.Buffer
	if err := report.WriteJSON(&b, r); err != nil {
		d.t.Fatal(err)
	}
	d.write(name+"/report.json", b.String())
	d.write(name+"/egress.jsonl", `{"step":"`+name+`"}`+"\n")
	for _, s := range r.Steps {
		d.write(name+"/steps/"+s.ID+"/stdout.log", "out of "+s.ID+"\n")
		d.write(name+"/steps/"+s.ID+"/stderr.log", "")
	}
}

func (d *downloaded) write(name, text string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		d.t.Fatal(err)
	}
}

// link puts a link in the place of whatever is there.
func (d *downloaded) link(name, to string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := errors.Join(os.RemoveAll(path), os.Symlink(to, path)); err != nil {
		d.t.Fatal(err)
	}
}

// edit changes a report.json as text.
func (d *downloaded) edit(name, old, new string) {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(d.dir, name))
	if err != nil || !strings.Contains(string(b), old) {
		d.t.Fatalf("%s has no %q: %v", name, old, err)
	}
	d.write(name, strings.ReplaceAll(string(b), old, new))
}

// retry makes the step of the second shard one that passed at its second try.
func (d *downloaded) retry() {
	d.t.Helper()
	r := d.report(2, "b")
	s := &r.Steps[0]
	s.Attempts, s.Flaky, s.Notes = 2, true, []string{"try 1 of 2: the step ended with exit code 7", "a note of its own"}
	s.Tries = []steps.Try{{Reason: "the step ended with exit code 7", Stdout: steps.Output{Path: "steps/b/try-1/stdout.log", Bytes: 6}, Patch: &steps.Patch{Path: "steps/b/try-1/changes.patch", Bytes: 3}}}
	d.put("r2", r)
	d.write("r2/steps/b/try-1/stdout.log", "first\n")
	d.write("r2/steps/b/try-1/changes.patch", "...")
}

// figure makes the step of the second shard a cell that showed one.
func (d *downloaded) figure() {
	d.t.Helper()
	r := d.report(2, "b")
	r.Steps[0].Results = []steps.CellResult{{"image/png": "aGVsbG8="}}
	r.Steps[0].ResultFiles = []steps.ResultFile{{MIME: "image/png", Path: "steps/b/results/0.png", Bytes: 5}}
	d.put("r2", r)
	d.write("r2/steps/b/results/0.png", "hello")
}

// merge runs the verb over folders of dir, with its report in dir/out.
func (d *downloaded) merge(names ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	args := []string{"merge", "--out", filepath.Join(d.dir, "out")}
	for _, n := range names {
		args = append(args, filepath.Join(d.dir, n))
	}
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, lookupEnv: os.LookupEnv}
	code = a.main(args)
	return code, out.String(), errs.String()
}

// TestMergeOfHostileReports: attack 144. A report that is not as a run leaves one
// is refused, and nothing of it, and nothing it leads to, is in the folder.
func TestMergeOfHostileReports(t *testing.T) {
	for _, tc := range []struct {
		name   string
		poison func(d *downloaded)
		says   string
	}{
		{"no report at all", func(d *downloaded) { os.Remove(filepath.Join(d.dir, "r2/report.json")) }, "r2: there is no report.json in it"},
		{"no JSON", func(d *downloaded) { d.write("r2/report.json", "{") }, "it is no report.json"},
		{"a key twice", func(d *downloaded) { d.edit("r2/report.json", `"verdict":`, `"Verdict": "fail", "verdict":`) }, "twice in one place"},
		{"a word that is none", func(d *downloaded) { d.edit("r2/report.json", `"passed"`, `"::error::passed"`) }, "its status is"},
		{"a number where a list belongs", func(d *downloaded) { d.edit("r2/report.json", `"events": []`, `"events": 7`) }, "it is no report.json"},
		{"a path with ..", func(d *downloaded) { d.edit("r2/report.json", "steps/b/stdout.log", "steps/b/../../../host/secret") }, "not where a run writes it"},
		{"an absolute path", func(d *downloaded) {
			d.edit("r2/report.json", "steps/b/stdout.log", filepath.Join(d.dir, "host/secret"))
		}, "not where a run writes it"},
		{"an id that is a path", func(d *downloaded) { d.edit("r2/report.json", `"b"`, `"../../host"`) }, "twice or no id"},
		{"a report that is a link", func(d *downloaded) { d.link("r2/report.json", "../r1/report.json") }, "links are not followed"},
		{"a folder that is a link", func(d *downloaded) { d.link("r2", "r1") }, "links are not followed"},
		{"a log that is a link", func(d *downloaded) { d.link("r2/steps/b/stdout.log", "../../../host/secret") }, "links are not followed"},
		{"a log that is a link to another of the same report", func(d *downloaded) { d.link("r2/steps/b/stdout.log", "stderr.log") }, "links are not followed"},
		{"a step's folder that is a link", func(d *downloaded) {
			d.write("host/stdout.log", noticed)
			d.link("r2/steps/b", "../../host")
		}, "links are not followed"},
		{"steps as a link", func(d *downloaded) { d.link("r2/steps", "../r1/steps") }, "links are not followed"},
		{"a list of requests that is a link", func(d *downloaded) { d.link("r2/egress.jsonl", "../host/secret") }, "links are not followed"},
		{"a list of requests that is something else", func(d *downloaded) { d.write("r2/egress.jsonl", "::error::x\n") }, "line 1 is no request"},
		{"a request without an end", func(d *downloaded) { d.write("r2/egress.jsonl", `{"x":"`+strings.Repeat("x", 2<<20)+`"}`) }, "token too long"},
		{"a log that is a pipe", func(d *downloaded) {
			path := filepath.Join(d.dir, "r2/steps/b/stdout.log")
			if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o644)); err != nil {
				d.t.Fatal(err)
			}
		}, "not a regular file"},
		{"a log that is a folder", func(d *downloaded) {
			path := filepath.Join(d.dir, "r2/steps/b/stdout.log")
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o755)); err != nil {
				d.t.Fatal(err)
			}
		}, "not a regular file"},
		{"a log larger than all logs may be", func(d *downloaded) {
			if err := os.Truncate(filepath.Join(d.dir, "r2/steps/b/stdout.log"), report.MaxCopied+1); err != nil {
				d.t.Fatal(err)
			}
		}, "larger than 8 GiB"},
		{"a try's log that is a link", func(d *downloaded) {
			d.retry()
			d.link("r2/steps/b/try-1/stdout.log", "../../../../host/secret")
		}, "links are not followed"},
		{"a try's folder that is a link", func(d *downloaded) {
			d.retry()
			d.write("host/stdout.log", noticed)
			d.link("r2/steps/b/try-1", "../../../host")
		}, "links are not followed"},
		{"a try's log elsewhere", func(d *downloaded) {
			d.retry()
			d.edit("r2/report.json", "steps/b/try-1/stdout.log", "steps/b/try-1/../../../../host/secret")
		}, "not where a run writes it"},
		{"a result's file that is a link", func(d *downloaded) {
			d.figure()
			d.link("r2/steps/b/results/0.png", "../../../../host/secret")
		}, "links are not followed"},
		{"a folder of results that is a link", func(d *downloaded) {
			d.figure()
			d.write("host/0.png", noticed)
			d.link("r2/steps/b/results", "../../../host")
		}, "links are not followed"},
		{"a result's file elsewhere", func(d *downloaded) {
			d.figure()
			d.edit("r2/report.json", "steps/b/results/0.png", "steps/b/results/../../../../host/secret")
		}, "not where a run writes it"},
		{"a policy whose sum is none", func(d *downloaded) {
			d.edit("r2/report.json", `"verdict": "pass"`, `"policy": {"path": "p", "sha256": "##[error]x"}, "verdict": "pass"`)
		}, "the sum of its policy is"},
		{"a report larger than any", func(d *downloaded) {
			if err := os.Truncate(filepath.Join(d.dir, "r2/report.json"), report.MaxFile+1); err != nil {
				d.t.Fatal(err)
			}
		}, "larger than 256 MiB"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := download(t)
			tc.poison(d)
			code, stdout, stderr := d.merge("r1", "r2")
			if code != exitUsage || !strings.Contains(stderr, tc.says) || stdout != "" {
				t.Errorf("exit %d\nstdout %q\nstderr %s", code, stdout, stderr)
			}
			if cmds := ghatest.Commands([]byte(stderr)); len(cmds) > 0 {
				t.Errorf("a runner acts on %v", cmds)
			}
			for _, name := range []string{"report.json", "summary.md", "egress.jsonl", "steps"} {
				if _, err := os.Lstat(filepath.Join(d.dir, "out", name)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("there is a %s in the folder: %v", name, err)
				}
			}
			if b, err := os.ReadFile(filepath.Join(d.dir, "host/secret")); err != nil || string(b) != noticed {
				t.Errorf("the host's file is %q: %v", b, err)
			}
		})
	}
}

// TestMergeOfUntrustedWords: what reports say acts nowhere.
func TestMergeOfUntrustedWords(t *testing.T) {
	d := download(t)
	r := d.report(2, "b")
	evil := "\n::error::forged\n##[error]forged\r::set-output name=verdict::pass"
	r.Notes, r.Steps[0].Reason, r.Steps[0].Name = []string{evil}, evil, evil
	r.Host.Kernel, r.Steps[0].Status, r.Tool.Version, r.File = evil, "failed", evil, evil
	r.Verdict, r.Refusal = "refused", &steps.Refusal{Cause: evil, Fix: []string{evil}}
	d.put("r2", r)
	d.write("r2/egress.jsonl", `{"host":"##[error]forged"}`+"\n")
	code, stdout, stderr := d.merge("r1", "r2")
	if code != exitRefused {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	texts := map[string][]byte{"stdout": []byte(stdout), "stderr": []byte(stderr)}
	for _, name := range []string{"report.json", "summary.md", "junit.xml", "results.sarif", "egress.jsonl"} {
		b, err := os.ReadFile(filepath.Join(d.dir, "out", name))
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = b
	}
	for name, text := range texts {
		for _, c := range ghatest.Commands(text) {
			if c.Name != "stop-commands" {
				t.Errorf("%s: a runner acts on %v", name, c)
			}
		}
	}
	if strings.Contains(stdout, "nothing ran") {
		t.Errorf("it says that nothing ran, and shard 1 did:\n%s", stdout)
	}
}

// TestMergeKeepsTries: that a step was flaky, why, and where what it printed is.
func TestMergeKeepsTries(t *testing.T) {
	d := download(t)
	d.retry()
	code, stdout, stderr := d.merge("r1", "r2")
	if code != exitPass || !strings.Contains(stdout, "pass: 2 steps passed in 2 shards; 1 flaky, not passed at the first try: b (try 2)\n") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	for name, want := range map[string]string{
		"steps/b/try-1/stdout.log": "first\n", "steps/b/try-1/changes.patch": "...", "summary.md": "a note of its own",
		"junit.xml": "flaky: passed at try 2 only", "results.sarif": "step b passed at try 2 only", "report.html": `"name":"try 1 stdout","note":"","text":"first"`,
		"report.json": `"flaky": true`,
	} {
		if b, err := os.ReadFile(filepath.Join(d.dir, "out", name)); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s does not have %q: %v", name, want, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(d.dir, "r2/steps/b/try-1")); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := d.merge("r1", "r2"); code != exitPass || !strings.Contains(stdout, "not all logs and patches were beside the reports of b") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestMergeKeepsResults: the figures and long values of cells come along, and what was
// not beside the report is not named.
func TestMergeKeepsResults(t *testing.T) {
	d := download(t)
	long := strings.Repeat("long ", 20_000)
	r := d.report(2, "b")
	s := &r.Steps[0]
	s.Results = []steps.CellResult{{"image/png": "aGVsbG8=", "text/plain": "a figure"}, {"text/plain": "steps/b/results/1.text.plain.txt"}}
	s.ResultFiles = []steps.ResultFile{
		{Result: 0, MIME: "image/png", Path: "steps/b/results/0.png", Bytes: 5},
		{Result: 1, MIME: "text/plain", Path: "steps/b/results/1.text.plain.txt", Bytes: int64(len(long))},
	}
	d.put("r2", r)
	d.write("r2/steps/b/results/0.png", "hello")
	d.write("r2/steps/b/results/1.text.plain.txt", long)
	d.write("r2/steps/b/results/2.png", "not in the report")
	if code, stdout, stderr := d.merge("r1", "r2"); code != exitPass || strings.Contains(stdout, "not all logs") {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	for name, want := range map[string]string{"steps/b/results/0.png": "hello", "steps/b/results/1.text.plain.txt": long} {
		if b, err := os.ReadFile(filepath.Join(d.dir, "out", name)); err != nil || string(b) != want {
			t.Errorf("%s has %d bytes, want %d: %v", name, len(b), len(want), err)
		}
	}
	if _, err := os.Lstat(filepath.Join(d.dir, "out/steps/b/results/2.png")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what no result names came along: %v", err)
	}
	for _, name := range []string{"0.png", "1.text.plain.txt"} {
		if err := os.Remove(filepath.Join(d.dir, "r2/steps/b/results", name)); err != nil {
			t.Fatal(err)
		}
	}
	if code, stdout, stderr := d.merge("r1", "r2"); code != exitPass || !strings.Contains(stdout, "not all logs and patches were beside the reports of b") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	b, err := os.ReadFile(filepath.Join(d.dir, "out/report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var merged steps.Result
	if err := json.Unmarshal(b, &merged); err != nil {
		t.Fatal(err)
	}
	// What stands in the report itself is still there.
	want := []steps.CellResult{{"image/png": "aGVsbG8=", "text/plain": "a figure"}, {}}
	if diff := cmp.Diff(want, merged.Steps[1].Results); diff != "" || len(merged.Steps[1].ResultFiles) > 0 {
		t.Errorf("(-want +got)\n%s\nfiles %+v", diff, merged.Steps[1].ResultFiles)
	}
}

// TestMergeInputHoldsToThePolicy: the gate's job says which one it has to be.
func TestMergeInputHoldsToThePolicy(t *testing.T) {
	d := download(t)
	d.write("policy.yml", "diskMb: 10\n")
	sum := sha256.Sum256([]byte("diskMb: 10\n"))
	for i, id := range []string{"a", "b"} {
		r := d.report(i+1, id)
		r.Policy = &steps.PolicyRef{Path: "elsewhere.yml", SHA256: hex.EncodeToString(sum[:])}
		d.put(fmt.Sprintf("reports/r%d", i+1), r)
	}
	merge := func() (int, string) {
		env := map[string]string{
			"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": d.dir, "UNTRUSTED_STEPS_MERGE": filepath.Join(d.dir, "reports"),
			"UNTRUSTED_STEPS_POLICY": filepath.Join(d.dir, "policy.yml"), "UNTRUSTED_STEPS_OUT": filepath.Join(d.dir, "out"),
		}
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, getenv: func(n string) string { return env[n] }, lookupEnv: os.LookupEnv, unsetenv: func(string) error { return nil }}
		return a.main(nil), out.String() + errs.String()
	}
	if code, said := merge(); code != exitPass {
		t.Errorf("exit %d\n%s", code, said)
	}
	d.write("policy.yml", "diskMb: 11\n")
	if code, said := merge(); code != exitFail || !strings.Contains(said, "shard 1 of 2 ran under another policy") {
		t.Errorf("exit %d\n%s", code, said)
	}
}

func TestMergeWithoutLogs(t *testing.T) {
	d := download(t)
	if err := os.RemoveAll(filepath.Join(d.dir, "r2/steps")); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := d.merge("r1", "r2")
	if code != exitPass || !strings.Contains(stdout, "not all logs and patches were beside the reports of b") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	b, err := os.ReadFile(filepath.Join(d.dir, "out/report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r steps.Result
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Steps[1].Stdout.Path != "" || r.Steps[0].Stdout.Path != "steps/a/stdout.log" {
		t.Errorf("the report names %q and %q", r.Steps[0].Stdout.Path, r.Steps[1].Stdout.Path)
	}
	if b, err := os.ReadFile(filepath.Join(d.dir, "out/egress.jsonl")); err != nil || string(b) != "{\"step\":\"r1\"}\n{\"step\":\"r2\"}\n" {
		t.Errorf("the requests are %q: %v", b, err)
	}
}

// TestMergeOut: what is read is not what is replaced, and where nothing is merged an
// earlier report stays whole, as with any exit 2.
func TestMergeOut(t *testing.T) {
	d := download(t)
	for _, tc := range []struct{ out, from string }{{"r1", "r1"}, {"r1/steps/a", "r1"}, {"all", "all/steps/r"}} {
		d.put("all/steps/r", d.report(1, "a"))
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, lookupEnv: os.LookupEnv}
		if code := a.main([]string{"merge", "--out", filepath.Join(d.dir, tc.out), filepath.Join(d.dir, tc.from), filepath.Join(d.dir, "r2")}); code != exitUsage {
			t.Errorf("%s into %s: exit %d\n%s%s", tc.from, tc.out, code, &out, &errs)
		}
		if _, err := os.Stat(filepath.Join(d.dir, tc.from, "report.json")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(d.dir, tc.from, "steps/a/stdout.log")); err != nil {
			t.Error(err)
		}
	}
	if code, _, stderr := d.merge("r1", "r2"); code != exitPass {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	// Beside what is read, in the same folder, it is in nobody's way.
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, lookupEnv: os.LookupEnv}
	if code := a.main([]string{"merge", "--out", filepath.Join(d.dir, "r1/all"), filepath.Join(d.dir, "r1"), filepath.Join(d.dir, "r2")}); code != exitPass {
		t.Errorf("into a folder beside the report: exit %d\n%s%s", code, &out, &errs)
	}
	d.link("r2/steps/b/stdout.log", "/etc/passwd")
	if code, _, stderr := d.merge("r1", "r2"); code != exitUsage {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, name := range []string{"report.json", "summary.md", "steps/b/stdout.log"} {
		if _, err := os.Stat(filepath.Join(d.dir, "out", name)); err != nil {
			t.Errorf("of the merge before: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(d.dir, "r2/steps/b/stdout.log")); err != nil {
		t.Fatal(err)
	}
	d.put("r2", d.report(2, "b"))
	d.write("r2/egress.jsonl", "no request\n")
	if code, _, stderr := d.merge("r1", "r2"); code != exitUsage {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if b, err := os.ReadFile(filepath.Join(d.dir, "out/egress.jsonl")); err != nil || strings.Count(string(b), "\n") != 2 {
		t.Errorf("the requests of the merge before are %q: %v", b, err)
	}
}

// TestMergeOfAFolderOfReports: the verb takes what the input of the action takes.
func TestMergeOfAFolderOfReports(t *testing.T) {
	d := download(t)
	d.put("reports/part-1", d.report(1, "a"))
	d.put("reports/part-2", d.report(2, "b"))
	if code, stdout, stderr := d.merge("reports"); code != exitPass || !strings.Contains(stdout, "2 shards of 2") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	d.write("reports/notes.txt", "not a report")
	if code, _, stderr := d.merge("reports"); code != exitUsage || !strings.Contains(stderr, "/reports: there is no report.json in it\n") {
		t.Errorf("with another file in it: exit %d\n%s", code, stderr)
	}
	if err := os.Mkdir(filepath.Join(d.dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := d.merge("empty"); code != exitUsage || !strings.Contains(stderr, "/empty: there is no report.json in it\n") {
		t.Errorf("an empty folder: exit %d\n%s", code, stderr)
	}
}

func TestMergeMisused(t *testing.T) {
	d := download(t)
	r1 := filepath.Join(d.dir, "r1")
	many := []string{"merge", "--out", filepath.Join(d.dir, "out")}
	for i := range maxReports + 1 {
		many = append(many, fmt.Sprint("r", i))
	}
	for name, args := range map[string][]string{
		"no --out": {"merge", r1}, "no report": {"merge", "--out", filepath.Join(d.dir, "out")},
		"the same report twice": {"merge", "--out", filepath.Join(d.dir, "out"), r1, r1},
		"too many reports":      many,
		"only without a file":   {"merge", "--out", filepath.Join(d.dir, "out"), "--only", "a", r1},
		"a file that is none":   {"merge", "--out", filepath.Join(d.dir, "out"), "--file", filepath.Join(d.dir, "none.yml"), r1},
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }, lookupEnv: os.LookupEnv}
		if code := a.main(args); code != exitUsage || errs.Len() == 0 || out.Len() > 0 {
			t.Errorf("%s: exit %d, %s%s", name, code, &out, &errs)
		}
	}
}
