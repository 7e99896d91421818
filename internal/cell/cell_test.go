package cell

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

func word(kind byte, body string) string {
	return string(kind) + string(binary.BigEndian.AppendUint32(nil, uint32(len(body)))) + body
}

func form(mime, value string) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(mime)))
	b = append(b, mime...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return string(b) + value
}

func result(mime, value string) string { return word(kindResult, form(mime, value)) }

// heard is what comes of bytes that arrive.
func heard(t *testing.T, text io.Reader) (Results, []int) {
	t.Helper()
	w, err := OpenWire()
	if err != nil {
		t.Fatal(err)
	}
	var ends []int
	done := make(chan struct{})
	go func() {
		for n := range w.ends {
			ends = append(ends, n)
		}
		close(done)
	}()
	if _, err := io.Copy(w.outBox, text); err != nil {
		t.Fatal(err)
	}
	got := w.Close()
	close(w.ends)
	<-done
	return got, ends
}

func TestWireTakesWhatARunnerSays(t *testing.T) {
	got, ends := heard(t, strings.NewReader(word(kindHello, "")+
		word(kindResult, form("text/plain", "1")+form("text/html", "<b>1</b>"))+
		result("application/json", `{"a":1}`)+word(kindEnd, "\x07")+word(kindEnd, "\x00")))
	want := Results{List: []Result{
		{{"text/plain", []byte("1")}, {"text/html", []byte("<b>1</b>")}},
		{{"application/json", []byte(`{"a":1}`)}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(ends) == 0 || ends[0] != 7 {
		t.Errorf("%v", ends)
	}
}

func TestWireOfWhoeverWritesInItsPlace(t *testing.T) {
	fine := result("text/plain", "fine")
	const broken = "something else than results was written to where results are taken from; what came after it is not kept"
	for _, tc := range []struct {
		sentence string
		in       string
		kept     int
		notes    []string
	}{
		{"nothing", "", 0, nil},
		{"a word that there is not", fine + "GET / HTTP/1.1\r\n\r\n" + fine, 1, []string{broken}},
		{"half a head", fine + "r\x00", 1, []string{broken}},
		{"half a body", fine + result("text/plain", "lost")[:14], 1, []string{broken}},
		{"a length that promises all the memory there is", fine + "r\xff\xff\xff\xff" + fine, 1, []string{broken}},
		{"an end with no status", fine + word(kindEnd, ""), 1, []string{broken}},
		{"a greeting with something in it", word(kindHello, "x") + fine, 0, []string{broken}},
		{"greetings without end", strings.Repeat(word(kindHello, ""), 1000) + fine, 1, nil},
		{"a result in no form", word(kindResult, "") + fine, 1, nil},
		{"a form whose name is longer than all", word(kindResult, "\xff\xfftext/plain") + fine, 1, []string{"not kept of what the cell showed: what arrived is in no form that a result has"}},
		{"a form whose value is longer than all", word(kindResult, "\x00\x0atext/plain\xff\xff\xff\xff1") + fine, 1, []string{"not kept of what the cell showed: what arrived is in no form that a result has"}},
		{"more forms than one may have", word(kindResult, strings.Repeat(form("text/plain", "1"), maxForms+1)) + fine, 1, []string{"not kept of what the cell showed: a result in more than 16 forms"}},
		{"the same form twice", word(kindResult, form("text/plain", "first")+form("text/plain", "second")), 1, []string{"not kept of what the cell showed: a form that the same result has twice"}},
		{"names that are no types", result("text/html\r\nSet-Cookie: a", "x") + result("", "x") + result("../../etc", "x") + result("TEXT/HTML", "x") + result("text/html; charset=utf-7", "x") + result("a/"+strings.Repeat("b", 200), "x") + result("a/b/c", "x"), 0,
			[]string{"not kept of what the cell showed: a result in a form that is no MIME type (7 times)"}},
		{"text that is none", result("text/html", "\xff\xfe"), 0, []string{"not kept of what the cell showed: a result said to be text/html that is not UTF-8"}},
		{"JSON that is none", result("application/json", "{") + result("application/vnd.x+json", "x"), 0, []string{"not kept of what the cell showed: a result said to be application/json that is no JSON", "not kept of what the cell showed: a result said to be application/vnd.x+json that is no JSON"}},
		{"a page that says it is an image", result("image/png", "<script>") + result("image/jpeg", "<script>"), 0, []string{"not kept of what the cell showed: a result said to be image/png that does not begin as one", "not kept of what the cell showed: a result said to be image/jpeg that does not begin as one"}},
		{"so many that they are counted", strings.Repeat(fine, MaxResults+5), MaxResults, []string{"5 more results are not kept: a cell has at most 256, of 32 MiB together"}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, _ := heard(t, strings.NewReader(tc.in))
			if len(got.List) != tc.kept {
				t.Errorf("%d are kept, want %d", len(got.List), tc.kept)
			}
			if d := cmp.Diff(tc.notes, got.Notes); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWireBoundsBytes(t *testing.T) {
	big := result("text/plain", strings.Repeat("x", MaxBytes/4))
	got, _ := heard(t, strings.NewReader(strings.Repeat(big, 6)+result("text/plain", "small")))
	if len(got.List) != 4 || !cmp.Equal(got.Notes, []string{"3 more results are not kept: a cell has at most 256, of 32 MiB together"}) {
		t.Errorf("%d kept, %q", len(got.List), got.Notes)
	}
	huge := io.MultiReader(strings.NewReader("r"+string(binary.BigEndian.AppendUint32(nil, maxFrame+1))), io.LimitReader(zeroes{}, maxFrame+1), strings.NewReader(result("text/plain", "after")))
	got, _ = heard(t, huge)
	if len(got.List) != 1 || !cmp.Equal(got.Notes, []string{"not kept of what the cell showed: a result of more than 16 MiB"}) {
		t.Errorf("%d kept, %q", len(got.List), got.Notes)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Whatever arrives, what is kept is bounded and is what it says it is.
func FuzzResults(f *testing.F) {
	for _, s := range []string{"", result("text/plain", "1"), word(kindResult, form("image/png", "\x89PNG\r\n\x1a\n")+form("text/html", "<")), word(kindEnd, "\x00"), "r\xff\xff\xff\xffx", result("application/json", "[1]")} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		frames := newReader(bytes.NewReader(b))
		var c collection
		for {
			f, err := frames.next()
			if err != nil {
				c.broken = errors.Is(err, errBroken)
				break
			}
			if f.kind == kindResult {
				c.add(f)
			}
		}
		size := 0
		got := c.results()
		for _, r := range got.List {
			for i, v := range r {
				size += len(v.Data)
				if err := v.check(); err != nil {
					t.Error(err)
				}
				for _, other := range r[:i] {
					if other.MIME == v.MIME {
						t.Errorf("%s twice", v.MIME)
					}
				}
			}
		}
		if size > len(b) || len(got.List) > MaxResults {
			t.Errorf("%d results of %d bytes out of %d", len(got.List), size, len(b))
		}
		for _, n := range got.Notes {
			if len(n) > 400 || !utf8.ValidString(n) || strings.ContainsAny(n, "\r\n\x1b") {
				t.Errorf("a note of %d bytes: %q", len(n), n)
			}
		}
	})
}

// run gives cells to the runner, outside of any box, and says what comes of them.
func run(t *testing.T, cells ...string) (got []Results, ends []int, stdout, stderr string) {
	t.Helper()
	boxtest.Need(t, "python3")
	w, err := OpenWire()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := dir + "/" + scriptName
	if err := os.WriteFile(file, []byte(runner), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(pythonPath(t), file)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	cmd.Dir = t.TempDir()
	cmd.ExtraFiles = w.Files()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for i, code := range cells {
		last := i == len(cells)-1
		if err := w.Send(Cell{Name: fmt.Sprint(i + 1), Code: code, Last: last}); err != nil {
			t.Fatal(err)
		}
		if last {
			break
		}
		ends = append(ends, <-w.Ends())
		got = append(got, w.Take())
	}
	err = cmd.Wait()
	if x := (*exec.ExitError)(nil); err != nil && !errors.As(err, &x) {
		t.Fatal(err)
	}
	ends = append(ends, cmd.ProcessState.ExitCode())
	return append(got, w.Close()), ends, out.String(), errs.String()
}

// shown is the text of each result, by the first of these types that it has.
func shown(r Results) (out []string) {
	for _, one := range r.List {
		for _, mime := range []string{"text/html", "text/markdown", "image/png", "image/svg+xml", "application/json", "text/latex", "text/plain"} {
			i := indexOf(one, mime)
			if i >= 0 {
				out = append(out, mime+" "+string(one[i].Data))
				break
			}
		}
	}
	return out
}

func indexOf(r Result, mime string) int {
	for i, v := range r {
		if v.MIME == mime {
			return i
		}
	}
	return -1
}

func TestRunner(t *testing.T) {
	for _, tc := range []struct {
		sentence       string
		code           string
		want           []string
		end            int
		stdout, stderr string // stderr: a part
	}{
		{"the last expression is a result", "x = 6\nx * 7", []string{"text/plain 42"}, 0, "", ""},
		{"None is not, nor what ends with a semicolon, nor another expression", "1\nNone", nil, 0, "", ""},
		{"a semicolon keeps it quiet", "42;", nil, 0, "", ""},
		{"output stays output", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1", []string{"text/plain 1"}, 0, "out\n", "err\n"},
		{"display shows each value", "display(1, 'two')\ndisplay([3])", []string{"text/plain 1", "text/plain 'two'", "text/plain [3]"}, 0, "", ""},
		{"display of forms as they are", "display({'text/markdown': '# x'}, raw=True)", []string{"text/markdown # x"}, 0, "", ""},
		{"an object shows itself", "class A:\n  def _repr_html_(self): return '<i>a</i>'\nA()", []string{"text/html <i>a</i>"}, 0, "", ""},
		{"its bundle comes first", "class A:\n  def _repr_html_(self): return 'no'\n  def _repr_mimebundle_(self, include=None, exclude=None): return {'text/html': 'yes'}, {}\nA()", []string{"text/html yes"}, 0, "", ""},
		{"an image in base64 or bytes", "class A:\n  def __init__(self, v): self.v = v\n  def _repr_png_(self): return self.v\nimport base64\np = b'\\x89PNG\\r\\n\\x1a\\n'\ndisplay(A(p), A(base64.b64encode(p).decode()))", []string{"image/png \x89PNG\r\n\x1a\n", "image/png \x89PNG\r\n\x1a\n"}, 0, "", ""},
		{"JSON of an object", "class A:\n  def _repr_json_(self): return {'a': [1]}\nA()", []string{`application/json {"a": [1]}`}, 0, "", ""},
		{"a drawing and a formula", "class A:\n  def _repr_svg_(self): return '<svg/>'\nclass B:\n  def _repr_latex_(self): return '$x$'\ndisplay(A(), B())", []string{"image/svg+xml <svg/>", "text/latex $x$"}, 0, "", ""},
		{"a class is not its instance", "class A:\n  def _repr_html_(self): return 'x'\nA", []string{"text/plain <class '__main__.A'>"}, 0, "", ""},
		{"an object with every attribute has no form of its own", "class A:\n  def __getattr__(self, n): return lambda *a, **k: 'x'\n  def __repr__(self): return 'A'\nA()", []string{"text/plain A"}, 0, "", ""},
		{"a form that cannot be made is told, and the others are shown", "class A:\n  def _repr_html_(self): return 1/0\n  def __repr__(self): return 'A'\nA()", []string{"text/plain A"}, 0, "", "ZeroDivisionError"},
		{"a failure is exit code 1 with the cell's own lines", "def f():\n  return 1 / 0\nf()", nil, 1, "", "Traceback (most recent call last):\n  File \"<cell 1>\", line 3, in <module>\n    f()\n"},
		{"what was shown before it stays", "display(1)\nraise ValueError('no')", []string{"text/plain 1"}, 1, "", "ValueError: no\n"},
		{"a mistake in the code", "def (", nil, 1, "", "  File \"<cell 1>\", line 1\n    def (\n"},
		{"an exit status of its own", "import sys\ndisplay(1)\nsys.exit(7)", []string{"text/plain 1"}, 7, "", ""},
		{"a word in place of one", "import sys\nsys.exit('bye')", nil, 1, "", "bye\n"},
		{"a hard exit", "import os\nos._exit(9)", nil, 9, "", ""},
		{"the folder of the cell is searched for modules", "open('mine.py', 'w').write('a = 3')\nimport mine\nmine.a", []string{"text/plain 3"}, 0, "", ""},
		{"what is defined can be pickled", "import pickle\ndef f(): return 5\npickle.loads(pickle.dumps(f))()", []string{"text/plain 5"}, 0, "", ""},
		{"no file of ours is the main module", "hasattr(__import__('__main__'), '__file__'), __name__", []string{"text/plain (False, '__main__')"}, 0, "", ""},
		{"a child does not show results", "import os\npid = os.fork()\nif pid == 0:\n  display('child')\n  os._exit(0)\nos.waitpid(pid, 0)[1]", []string{"text/plain 0"}, 0, "", ""},
		{"a child that comes back ends", "import os\npid = os.fork()\nos.waitpid(pid, 0)[1] if pid else 1", []string{"text/plain 0"}, 0, "", ""},
		{"programs that it starts have none of our descriptors", "import subprocess\nsubprocess.run(['sh', '-c', 'for n in 3 4; do test -e /proc/self/fd/$n && echo $n; done; true'], close_fds=False).returncode", []string{"text/plain 0"}, 0, "", ""},
		{"threads show results too", "import threading\nt = threading.Thread(target=display, args=(1,))\nt.start()\nt.join()", []string{"text/plain 1"}, 0, "", ""},
		{"the end of the process runs what was to be run then", "import atexit\natexit.register(print, 'end')\nNone", nil, 0, "end\n", ""},
		{"a channel that the cell closed loses results and nothing else", "import os\nos.close(4)\ndisplay(1)\nprint('on')", nil, 0, "on\n", ""},
		{"figures at the end", figures + "plt.figure(0)\nplt.figure(1)", []string{"image/png \x89PNG\r\n\x1a\nfigure 0", "image/png \x89PNG\r\n\x1a\nfigure 1"}, 0, "closed\n", ""},
		{"figures of a cell that failed", figures + "plt.figure(0)\n1/0", []string{"image/png \x89PNG\r\n\x1a\nfigure 0"}, 1, "closed\n", "ZeroDivisionError"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, ends, stdout, stderr := run(t, tc.code)
			if d := cmp.Diff(tc.want, shown(got[0])); d != "" {
				t.Errorf("%s\n%s", d, stderr)
			}
			if ends[0] != tc.end || stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("ended with %d, %q, %q", ends[0], stdout, stderr)
			}
			if strings.Contains(stderr, scriptName) {
				t.Errorf("frames of ours in %s", stderr)
			}
			for _, n := range got[0].Notes {
				t.Errorf("note: %s", n)
			}
		})
	}
}

// figures is a module called matplotlib.pyplot that does what the runner asks of
// the real one; a figure returns no value of its own to show.
const figures = `import sys, types
plt = types.ModuleType('matplotlib.pyplot')
class Figure:
    axes = [1]
    def __init__(self, n): self.n = n
    def savefig(self, out, format, bbox_inches): out.write(b'\x89PNG\r\n\x1a\nfigure %d' % self.n)
made = {}
def figure(n):
    if n in made: return made[n]
    made[n] = Figure(n)
plt.figure, plt.get_fignums = figure, lambda: list(made)
plt.close = lambda what: (made.clear(), print('closed'))
sys.modules['matplotlib.pyplot'] = plt
`

func TestRunnerKeepsStateBetweenCells(t *testing.T) {
	got, ends, stdout, stderr := run(t, "x = 1\nimport sys\ndef f(): return 1/0", "f()", "sys.exit(3)", "x += 1\nprint('still')\nx")
	if d := cmp.Diff([]int{0, 1, 3, 0}, ends); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"text/plain 2"}, shown(got[3])); d != "" {
		t.Error(d)
	}
	if stdout != "still\n" || !strings.Contains(stderr, "File \"<cell 2>\", line 1, in <module>\n    f()\n") || !strings.Contains(stderr, "File \"<cell 1>\", line 3, in f\n") {
		t.Errorf("%q %q", stdout, stderr)
	}
}

// A cell that is longer than the pipe holds is taken all the same.
func TestRunnerTakesLongCells(t *testing.T) {
	got, ends, _, stderr := run(t, "x = '"+strings.Repeat("y", 1<<20)+"'\nlen(x)")
	if ends[0] != 0 || !cmp.Equal(shown(got[0]), []string{"text/plain 1048576"}) {
		t.Errorf("%v %v %s", ends, shown(got[0]), stderr)
	}
}

// pythonPath is the interpreter that boxes would have.
func pythonPath(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
		if _, err := os.Stat(dir + "/python3"); err == nil {
			return dir + "/python3"
		}
	}
	t.Fatal("python3 is needed and nowhere")
	return ""
}
