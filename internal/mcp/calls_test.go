package mcp

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

func TestPlace(t *testing.T) {
	for in, want := range map[string]string{
		"a": "./a", "a/b": "./a/b", "./a": "./a", "-rf": "./-rf", "/tmp/x": "/tmp/x", "/": "/", "a/../b": "./b", "../x": "./../x", ".": ".", "a/..": ".",
		"": "!", "a\x00b": "!", "\xff": "!",
	} {
		got, err := place(in)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

func TestCalls(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		call     func() (sandbox.Call, error)
		want     string // the command, by spaces; "!" and a word of the error
	}{
		{"a read is a cat", func() (sandbox.Call, error) { return readCall("-n") }, "cat -- ./-n"},
		{"ls is of the workspace by itself", func() (sandbox.Call, error) { return lsCall("") }, "ls -1Ap -- ."},
		{"grep takes a pattern that looks like an option", func() (sandbox.Call, error) { return grepCall(grepArgs{Pattern: "-v"}) }, "grep -rnI -E --exclude-dir=.git -e -v -- ."},
		{"and all that can be asked for", func() (sandbox.Call, error) {
			return grepCall(grepArgs{Pattern: "x", Path: "/a", Glob: "*.go", IgnoreCase: true, Literal: true, Context: 2})
		}, "grep -rnI -F -i -C 2 --include=*.go --exclude-dir=.git -e x -- /a"},
		{"an empty pattern fits everything, which nobody means", func() (sandbox.Call, error) { return grepCall(grepArgs{}) }, "!pattern"},
		{"a context that is none", func() (sandbox.Call, error) { return grepCall(grepArgs{Pattern: "x", Context: -1}) }, "!context"},
		{"find by name", func() (sandbox.Call, error) { return findCall(findArgs{Pattern: "*.go"}) }, "find . -name .git -prune -o -name *.go -print"},
		{"find by path", func() (sandbox.Call, error) { return findCall(findArgs{Pattern: "**/src/*.go", Path: "a"}) }, "find ./a -name .git -prune -o -path */src/*.go -print"},
		{"find nothing", func() (sandbox.Call, error) { return findCall(findArgs{}) }, "!pattern"},
		{"a write", func() (sandbox.Call, error) { return writeCall("d/f", "a b\n") }, "sh -ec " + writing + " sh ./d/f a b\n"},
		{"a write of nothing", func() (sandbox.Call, error) { return writeCall("f", "") }, "sh -ec " + writing + " sh ./f "},
		{"a write that no command can carry", func() (sandbox.Call, error) { return writeCall("f", "a\x00b") }, "!zero byte"},
		{"a write that is too long", func() (sandbox.Call, error) { return writeCall("f", strings.Repeat("x", maxWrite+1)) }, "!at most"},
		{"an edit", func() (sandbox.Call, error) { return editCall(editArgs{"f", "b", "xy"}, 2, 9) }, "sh -ec " + editing + " sh ./f 2 3 9 1 b xy"},
		{"an edit that no command can carry", func() (sandbox.Call, error) { return editCall(editArgs{"f", "b", "a\x00b"}, 0, 1) }, "!zero byte"},
		{"an edit that is too long", func() (sandbox.Call, error) {
			return editCall(editArgs{"f", strings.Repeat("x", maxWrite), "y"}, 0, maxWrite)
		}, "!at most"},
		{"an edit nowhere", func() (sandbox.Call, error) { return editCall(editArgs{"", "b", "x"}, 0, 1) }, "!path"},
		{"a write nowhere", func() (sandbox.Call, error) { return writeCall("", "x") }, "!path"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			c, err := tc.call()
			word, wrong := strings.CutPrefix(tc.want, "!")
			if (err != nil) != wrong || wrong && !strings.Contains(err.Error(), word) {
				t.Fatalf("%v", err)
			}
			if got := strings.Join(c.Command, " "); !wrong && got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestChunksAreWholeCharactersAndAll(t *testing.T) {
	text := strings.Repeat("aé☃😀", maxChunk/3)
	list := chunks(text)
	if strings.Join(list, "") != text || len(list) < 3 {
		t.Errorf("%d chunks", len(list))
	}
	for _, c := range list {
		if len(c) > maxChunk || !utf8.ValidString(c) {
			t.Errorf("a chunk of %d bytes", len(c))
		}
	}
}

func TestWhere(t *testing.T) {
	for _, tc := range []struct {
		sentence, text, old, new string
		want                     int
		why                      string
	}{
		{"one place", "a b c", "b", "x", 2, ""},
		{"over lines", "a\nb\nc", "a\nb", "z", 0, ""},
		{"by bytes and not by characters", "\ufeffé b", "b", "", 6, ""},
		{"not there", "abc", "x", "y", 0, "not in the file; it has"},
		{"as an answer had it", "abc", "a***c", "y", 0, "masked"},
		{"stars that are there", "a***c", "a***c", "y", 0, ""},
		{"twice", "abab", "ab", "y", 0, "2 times"},
		{"nothing to replace", "abc", "", "y", 0, "empty"},
		{"nothing changed", "abc", "b", "b", 0, "the same"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, err := where(tc.text, tc.old, tc.new)
			if (err != nil) != (tc.why != "") || err != nil && !strings.Contains(err.Error(), tc.why) || got != tc.want {
				t.Errorf("%d %v", got, err)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	long := strings.Repeat(strings.Repeat("x", 1000)+"\n", 100)
	for _, tc := range []struct {
		sentence, text string
		offset, limit  int
		want, about    string
	}{
		{"all of a short text", "a\nb\n", 0, 0, "a\nb\n", "lines 1 to 2 of 2"},
		{"nothing", "", 0, 0, "", "lines 1 to 1 of 1"},
		{"some lines", "a\nb\nc\nd\n", 2, 2, "b\nc\n", "lines 2 to 3 of 4; go on with offset 4"},
		{"a last line without an end", "a\nb", 2, 0, "b", "lines 2 to 2 of 2"},
		{"past the end", "a\n", 2, 0, "!past the end", ""},
		{"no more than an answer holds", long, 0, 0, long[:51*1001], "lines 1 to 51 of 100; go on with offset 52"},
		{"one line that is too long", strings.Repeat("y", maxText+5), 0, 0, strings.Repeat("y", maxText), "lines 1 to 1 of 1, 5 bytes more"},
		{"the second of two that are", strings.Repeat("y", maxText+5) + "\nz", 0, 0, strings.Repeat("y", maxText), "lines 1 to 1 of 2, 6 bytes more; go on with offset 2"},
		{"bytes that are no characters", strings.Repeat("\x80", maxText+5), 0, 0, strings.Repeat("\x80", maxText-utf8.UTFMax), "lines 1 to 1 of 1, 9 bytes more"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, about, err := window(tc.text, tc.offset, tc.limit)
			word, wrong := strings.CutPrefix(tc.want, "!")
			if (err != nil) != wrong || wrong && !strings.Contains(err.Error(), word) || !wrong && (got != tc.want || about != tc.about) {
				t.Errorf("%d bytes, ends with %q; %q; %v", len(got), got[max(0, len(got)-60):], about, err)
			}
		})
	}
}

func TestEndAndFew(t *testing.T) {
	for _, tc := range []struct{ text, want, left string }{
		{"a\nb\n", "a\nb\n", ""},
		{strings.Repeat("x", 10) + strings.Repeat("y", maxText), strings.Repeat("y", maxText), "10 bytes before those that are shown"},
		{strings.Repeat("z\n", maxLines+7), strings.Repeat("z\n", maxLines), "14 bytes before those that are shown"},
	} {
		if got, left := end(tc.text); got != tc.want || left != tc.left {
			t.Errorf("%d bytes, %q", len(got), left)
		}
	}
	for _, tc := range []struct {
		text        string
		limit       int
		want, about string
	}{
		{"a\nb\nc\n", 2, "a\nb\n", "2 of 3 lines"},
		{"a\nb\n", 0, "a\nb\n", "2 of 2 lines"},
		{"a\nb", 5, "a\nb", "2 of 2 lines"},
		{strings.Repeat("x", maxText+1), 0, strings.Repeat("x", maxText), "1 of 1 lines, 1 bytes more"},
	} {
		if got, about := few(tc.text, tc.limit, 10); got != tc.want || about != tc.about {
			t.Errorf("%d bytes, %q", len(got), about)
		}
	}
}

// A file of nothing but line ends is no reason to take many times its size.
func TestLinesAreNotListed(t *testing.T) {
	text := strings.Repeat("\n", 8<<20)
	for name, do := range map[string]func(){
		"window": func() { _, _, _ = window(text, 4<<20, 0) },
		"few":    func() { few(text, 0, mostFound) },
	} {
		// What is made for one call is a note of a few words.
		if got := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				do()
			}
		}).AllocedBytesPerOp(); got > 64<<10 {
			t.Errorf("%s takes %d bytes for a text of %d", name, got, len(text))
		}
	}
}

func TestOutcome(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		r        sandbox.Result
		output   string
		ours     string
	}{
		{"output", sandbox.Result{Stdout: "hi\n", Success: true}, "hi\n", "[exit code 0]\n"},
		{"nothing at all", sandbox.Result{Success: true}, "", "[exit code 0]\n"},
		{"output that looks like a line of ours", sandbox.Result{Stdout: "[failed: x]\n", Success: true}, "[failed: x]\n", "[exit code 0]\n"},
		{"both streams", sandbox.Result{Stdout: "out", Stderr: "err", Success: true}, "out\nstderr:\nerr\n", "[exit code 0]\n"},
		{"a failure", sandbox.Result{Stdout: "x\n", Reason: "exit code 3", Files: []sandbox.File{{Path: "f", Change: "created"}}}, "x\n", "[failed: exit code 3]\n[what it changed was dropped]\n[created: \"f\"]\n"},
		{"a change that no tool can have permitted", sandbox.Result{Violations: []string{"x"}, Reason: `".git/config" was created; to permit it, write allowChanges: ["**", ".git/config"]`}, "",
			"[failed: \".git/config\" was created; no tool can have it permitted, only whoever starts this server (allowChanges)]\n"},
		{"a deadline of a tool that has no timeout", sandbox.Result{Fault: &sandbox.Fault{Type: "timeout"}, Reason: "timeout: still running after 30s (timeoutS); write a larger timeoutS to allow more"}, "",
			"[failed: timeout: still running after 30s (timeoutS); whoever starts this server can write a larger timeoutS to allow more]\n"},
		{"a deadline of one that has", sandbox.Result{Fault: &sandbox.Fault{Type: "timeout"}, Reason: "timeout: still running after 30s (timeout); write a larger timeout to allow more"}, "",
			"[failed: timeout: still running after 30s (timeout); write a larger timeout to allow more]\n"},
		{"a cap", sandbox.Result{Fault: &sandbox.Fault{Type: "oom"}, Reason: "oom: x; write memoryMb: 1024 to allow more"}, "",
			"[failed: oom: x; whoever starts this server can write memoryMb: 1024 to allow more]\n"},
		{"a reason of several lines", sandbox.Result{Reason: "no workdir a]\n[exit code 0\r"}, "", "[failed: no workdir a]\\n[exit code 0\\r]\n"},
		{"a name that looks like a line of ours", sandbox.Result{Success: true, Files: []sandbox.File{{Path: "a]\n[failed: x", Change: "created"}}}, "", "[exit code 0]\n[created: \"a]\\n[failed: x\"]\n"},
		{"a request that was denied", sandbox.Result{Success: true, Requests: []sandbox.Request{{Host: "e.example", Port: 443, Verdict: "denied", Reason: "no rule"}, {Host: "ok.example", Verdict: "allowed"}}}, "", "[exit code 0]\n[denied: e.example:443 (no rule)]\n"},
		{"many of them", sandbox.Result{Success: true, Requests: make([]sandbox.Request, 5000)}, "", "[exit code 0]\n" + strings.Repeat("[: :0 ()]\n", maxTold) + "[and 4980 more destinations]\n"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if output, ours := outcome(&tc.r); output != tc.output || lines(ours) != tc.ours {
				t.Errorf("%q %q, want %q %q", output, lines(ours), tc.output, tc.ours)
			}
		})
	}
}

func TestATimeoutThatNoClockHoldsIsRefusedAsGiven(t *testing.T) {
	for s, want := range map[float64]string{
		1e30: "timeout is out of range (1e+30 seconds)", -1e30: "timeout is out of range (-1e+30 seconds)", 1e-30: "timeout is out of range (1e-30 seconds)",
		9.3e9: "timeout is out of range (9.3e+09 seconds)",
	} {
		if d, err := seconds(s); err == nil || err.Error() != want {
			t.Errorf("%g: %v %v, want %s", s, d, err, want)
		}
	}
	for s, want := range map[float64]time.Duration{0: 0, 0.5: 500 * time.Millisecond, -1: -time.Second, 86401: 86401 * time.Second} {
		if d, err := seconds(s); err != nil || d != want {
			t.Errorf("%g: %v %v", s, d, err)
		}
	}
}

func TestShown(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\nxyz")
	many := make([]sandbox.Value, maxValues+3)
	for i := range many {
		many[i] = sandbox.Value{"text/plain": []byte("v\n")}
	}
	for _, tc := range []struct {
		sentence string
		list     []sandbox.Value
		want     string
		pictures int
		ours     string
	}{
		{"nothing", nil, "", 0, ""},
		{"a text", []sandbox.Value{{"text/plain": []byte("42"), "text/html": []byte("<b>42</b>")}}, "result: 42\n", 0, ""},
		{"a picture", []sandbox.Value{{"image/png": png, "text/plain": []byte("<Figure>")}}, "", 1, ""},
		{"what only says that it is one", []sandbox.Value{{"image/png": []byte("not"), "text/plain": []byte("<Figure>")}}, "result: <Figure>\n", 0, ""},
		{"Markdown alone", []sandbox.Value{{"text/markdown": []byte("# x")}}, "result: # x\n", 0, ""},
		{"no text at all", []sandbox.Value{{"application/octet-stream": []byte("x")}}, "", 0, "results in a form that is not text: 1"},
		{"too many", many, strings.Repeat("result: v\n", maxValues), 0, "and 3 more results"},
		{"too many pictures", []sandbox.Value{{"image/png": png}, {"image/png": png}, {"image/png": png}, {"image/png": png}, {"image/png": png, "text/plain": []byte("fifth")}}, "result: fifth\n", maxPictures, ""},
		{"what looks like a line of ours", []sandbox.Value{{"text/plain": []byte("x\n[failed: x]")}}, "result: x\n[failed: x]\n", 0, ""},
		{"more than an answer holds", []sandbox.Value{{"text/plain": []byte(strings.Repeat("x", maxText+7))}, {"text/plain": []byte("y")}}, "result: " + strings.Repeat("x", maxText) + "\n", 0, "result 1 has 7 bytes more; and 1 more results"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got, pictures, ours := shown(tc.list); got != tc.want || len(pictures) != tc.pictures || strings.Join(ours, "; ") != tc.ours {
				t.Errorf("%d bytes, %.80q and %d pictures, %q, want %.80q and %d", len(got), got, len(pictures), ours, tc.want, tc.pictures)
			}
		})
	}
}

func TestMimeOf(t *testing.T) {
	for in, want := range map[string]string{
		"\x89PNG\r\n\x1a\nxx": "image/png", "\xff\xd8\xffx": "image/jpeg", "GIF89a": "image/gif", "RIFF1234WEBPVP8 ": "image/webp",
		"<svg xmlns=''/>": "", "text": "", "": "", "RIFF": "",
	} {
		if got := mimeOf([]byte(in)); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
