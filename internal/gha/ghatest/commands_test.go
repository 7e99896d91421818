package ghatest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCommands shows that the parser sees what a runner would see. Without it,
// a test that finds no command would prove nothing.
func TestCommands(t *testing.T) {
	one := func(c Command) []Command { return []Command{c} }
	for name, c := range map[string]struct {
		in   string
		want []Command
	}{
		"reads name, properties and data": {"::error file=a%2Cb.go,line=3::x%0Ay%25",
			one(Command{1, "::", "error", map[string]string{"file": "a,b.go", "line": "3"}, "x\ny%"})},
		"skips white space that Unicode knows": {"\t\u00a0\u2003\u3000\u0085::group::g", one(Command{Line: 1, Form: "::", Name: "group", Data: "g"})},
		"reads names in any case":              {"::ERROR::x", one(Command{Line: 1, Form: "::", Name: "error", Data: "x"})},
		"ends a line at a lone CR":             {"a\r::debug::x", one(Command{Line: 2, Form: "::", Name: "debug", Data: "x"})},
		"counts CRLF as one line end":          {"a\r\n::debug::x\r\n", one(Command{Line: 2, Form: "::", Name: "debug", Data: "x"})},
		"finds the old form inside a line": {"text ##[error file=a;line=2]x",
			one(Command{1, "##[", "error", map[string]string{"file": "a", "line": "2"}, "x"})},
		"finds one behind more signs":            {"####[group]x", one(Command{Line: 1, Form: "##[", Name: "group", Data: "x"})},
		"reads UTF-16 behind its mark":           {"\xff\xfe:\x00:\x00e\x00:\x00:\x00x\x00\n\x00", one(Command{Line: 1, Form: "::", Name: "e", Data: "x"})},
		"reads big UTF-16 behind its mark":       {"\xfe\xff\x00:\x00:\x00e\x00:\x00:", one(Command{Line: 1, Form: "::", Name: "e"})},
		"reads UTF-32 behind its mark":           {"\xff\xfe\x00\x00:\x00\x00\x00:\x00\x00\x00e\x00\x00\x00:\x00\x00\x00:\x00\x00\x00", one(Command{Line: 1, Form: "::", Name: "e"})},
		"drops a UTF-8 mark":                     {"\xef\xbb\xbf::error::x", one(Command{Line: 1, Form: "::", Name: "error", Data: "x"})},
		"looks through weightless characters":    {"##\u200b[error]x", one(Command{Line: 1, Form: "##[", Name: "error", Data: "x"})},
		"looks through them in the newer form":   {"\u200b:\u00ad:error::x", one(Command{Line: 1, Form: "::", Name: "error", Data: "x"})},
		"sees nothing in the middle of a line":   {"a ::error::x", nil},
		"sees nothing without the second colons": {"::error x", nil},
		"sees nothing without a name":            {"::::x\n##[]x", nil},
		"sees nothing without the bracket":       {"##[error x", nil},
	} {
		if diff := cmp.Diff(c.want, Commands([]byte(c.in))); diff != "" {
			t.Errorf("%s: Commands(%q) (-want +got)\n%s", name, c.in, diff)
		}
	}
}
