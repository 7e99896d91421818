package gha

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestInert(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"leaves plain text alone":                       {"ok  \tTestX 0.1s [100%] #1 a::b", "ok  \tTestX 0.1s [100%] #1 a::b"},
		"leaves letters of other scripts alone":         {"café 日本語 🙂", "café 日本語 🙂"},
		"leaves a no-break space alone":                 {"├──\u00a0a", "├──\u00a0a"},
		"breaks the runner's opening":                   {"x ##[error]y", "x ## [error]y"},
		"breaks an opening behind more signs":           {"####[group]", "#### [group]"},
		"breaks an opening made by a vanished colour":   {"##\x1b[31m[error]", "## [error]"},
		"breaks an opening with a colour between signs": {"#\x1b[0m#[error]", "## [error]"},
		"breaks an opening with marks inside":           {"#\u0301#\u0301[error]", "#\u0301#\u0301 [error]"},
		"writes a zero-width character out":             {"##\u200b[error]", `##\u200b[error]`},
		"takes colours away":                            {"\x1b[1;31mFAIL\x1b[0m", "FAIL"},
		"shows a code that clears the line":             {"a\x1b[2Kb", `a\x1b[2Kb`},
		"shows a code that sets the title":              {"\x1b]0;t\x07", `\x1b]0;t\x07`},
		"shows an unfinished code":                      {"\x1b[31", `\x1b[31`},
		"shows C0 controls":                             {"a\x00\x08b\x7f", `a\x00\x08b\x7f`},
		"shows C1 controls":                             {"a\u009b31mb\u0085", `a\u009b31mb\u0085`},
		"shows bytes that are not UTF-8":                {"a\xff\xc3(", `a\xff\xc3(`},
		"shows overlong and surrogate bytes":            {"\xc0\xae\xed\xa0\x80", `\xc0\xae\xed\xa0\x80`},
		"keeps an honest replacement character":         {"\ufffd", "\ufffd"},
		"shows line ends":                               {"a\r\nb\u2028c", `a\r\nb\u2028c`},
		"shows direction changes":                       {"\u202egpj.exe\u2066", `\u202egpj.exe\u2066`},
		"shows byte order marks":                        {"\ufeffa", `\ufeffa`},
		"shows the soft hyphen, fillers and tags":       {"a\u00ad\u3164\U000e0041", `a\u00ad\u3164\U000e0041`},
		"drops the selector of an emoji":                {"\u26a0\ufe0f", "\u26a0"},
		"shows a selector hidden in a name":             {"a\ufe0fb\U000e0100", `a\ufe0fb\U000e0100`},
		"shows marks beyond the fourth":                 {"a" + strings.Repeat("\u0301", 5), "a" + strings.Repeat("\u0301", 4) + `\u0301`},
		"shows a mark that would sit on what is before": {"\u0301a", `\u0301a`},
		"shows odd spaces":                              {"a\u200ab\u1680", `a\u200ab\u1680`},
		"shows private and unassigned characters":       {"\ue000\U0010ffff", `\ue000\U0010ffff`},
	} {
		if got := Inert(c.in); got != c.want {
			t.Errorf("%s: Inert(%q) = %q, want %q", name, c.in, got, c.want)
		}
	}
}

func TestInertASCIIIsASCII(t *testing.T) {
	if got, want := InertASCII("a\tcafé 🙂\x1b[1mb"), `a\tcaf\u00e9 \U0001f642b`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzInert(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Inert(s)
		if !utf8.ValidString(got) {
			t.Errorf("Inert(%q) = %q is not UTF-8", s, got)
		}
		if strings.Contains(strings.Map(weightless, got), "##[") {
			t.Errorf("Inert(%q) = %q opens a command", s, got)
		}
		for _, r := range got {
			if (unicode.IsControl(r) && r != '\t') || unicode.Is(unicode.Cf, r) || unicode.In(r, unicode.Zl, unicode.Zp) {
				t.Errorf("Inert(%q) = %q has %U", s, got, r)
			}
		}
		if again := Inert(got); again != got {
			t.Errorf("Inert is not stable: %q, then %q", got, again)
		}
	})
}

// hostile is what a step might print to make a runner act.
var hostile = []string{
	"::error file=a.go,line=1::forged",
	"   \t::add-mask::a",
	"\u00a0\u2003\u3000\u0085::set-output name=verdict::pass",
	"x\r::warning::after a lone CR",
	"x\r\n::notice::after CRLF\r\r\n::debug::x\n",
	"\n::set-env name=LD_PRELOAD::/x\n::add-path::/x\n::save-state name=a::b",
	"::stop-commands::abc\n::abc::\n::ABC::",
	"text ##[error]x\n##[add-mask]a\n##[group]g\n####[endgroup]",
	"##\u200b[error]x\n#\u00ad#[error]x\n##\x00[error]\n\u200b::error::x\n:\u200d:error::x",
	"##\x1b[31m[error]x\n\x1b[0m::error::x",
	"#\u0301#[error]x\n\u0301::error::x",
	"\xff\xfe" + utf16le("::error::utf-16\n"),
	"\xfe\xff\x00:\x00:\x00e\x00:\x00:",
	"\xff\xfe\x00\x00:\x00\x00\x00:\x00\x00\x00",
	"\ufeff::error::utf-8 mark",
	"\u2028::error::x\u2029::error::y\x0b::error::z\x0c::error::z",
	strings.Repeat("a", maxLine) + "::error::past the limit",
	strings.Repeat("#", maxLine) + "[error]x",
	strings.Repeat("é", maxLine) + "\n",
	"\x1b]8;;https://evil.example\x07link\x1b]8;;\x07\x1b[2J\x1b[1A::error::x",
	"\u202e::rorre::",
	"\xc3",
	"step-1 | ::error::forged gutter",
	"::ERROR::upper case\n::Group::x",
}

func utf16le(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteByte(byte(r))
		b.WriteByte(byte(r >> 8))
	}
	return b.String()
}
