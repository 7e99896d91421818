package main

import (
	"fmt"
	"strings"
)

// helpWidth is how wide help is: a terminal of the old size shows it whole.
const helpWidth = 80

// overview is help without a verb: what there is, and where to begin.
func overview() string {
	var b strings.Builder
	b.WriteString("Run steps nobody has read yet, each in its own box.\n\nUsage: untrusted-steps VERB [flags] ...\n\n")
	for _, v := range verbs() {
		if !v.hidden {
			row(&b, 2, 29, v.synopsis(), v.does)
		}
	}
	b.WriteString("\nBegin with:\n")
	for _, name := range []string{"check", "plan", "run"} {
		row(&b, 2, 29, verbOf(name).examples[0].line, "")
	}
	b.WriteString("\nExit status of run and merge:\n")
	for _, line := range []string{
		"0 no step closes the gate      1 a step failed or was skipped",
		"2 the file or flags are wrong  3 this host cannot enforce it, nothing ran",
		"4 no verdict for some step     130 cancelled",
	} {
		row(&b, 2, 0, "", line)
	}
	b.WriteString("\nuntrusted-steps help VERB has all flags, files, variables and examples.\n")
	return b.String()
}

// help is all about one verb.
func (v *verb) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s\n\nUsage:\n  %s %s", toolName, v.name, v.does, toolName, v.name)
	rest := strings.TrimPrefix(v.synopsis(), v.name)
	if len(v.flags) > 0 {
		rest = " [flags]" + rest
	}
	b.WriteString(rest + "\n")
	for _, p := range v.about {
		b.WriteByte('\n')
		if strings.HasPrefix(p, " ") {
			b.WriteString(p + "\n")
			continue
		}
		row(&b, 0, 0, "", p)
	}
	section := func(title string, n int) {
		if n > 0 {
			fmt.Fprintf(&b, "\n%s:\n", title)
		}
	}
	flags := v.flags
	section("Flags (anywhere after the verb; --name VALUE or --name=VALUE)", len(flags))
	for _, f := range flags {
		fmt.Fprintf(&b, "  %s\n", strings.TrimSpace("--"+f.name+" "+f.arg))
		row(&b, 6, 0, "", f.explained())
	}
	section("Exit status", len(v.exits))
	for _, e := range v.exits {
		row(&b, 2, 5, fmt.Sprintf("%3d", e.code), e.does)
	}
	entries := func(title string, list []entry) {
		section(title, len(list))
		for _, e := range list {
			row(&b, 2, 0, "", e.name)
			row(&b, 6, 0, "", e.does)
		}
	}
	entries("Files", v.files)
	entries("Environment", v.env)
	section("Examples", len(v.examples))
	for _, e := range v.examples {
		fmt.Fprintf(&b, "  # %s\n  %s\n", e.does, e.line)
	}
	return b.String()
}

// explained is what a flag means, with what it can be and what it is by default.
func (f *flagDef) explained() string {
	text := f.does
	if f.kind == aWord {
		text += choices(" One of ", f.words) + "."
	}
	switch {
	case f.required:
		text += " Required."
	case f.def != "":
		text += " Default: " + f.def + "."
	case f.without != "":
		text += " Default: " + f.without + "."
	}
	return text
}

// row writes a word and, from a column on, what it means, in as many lines as
// that needs. A word that reaches into the column has a line of its own.
func row(b *strings.Builder, indent, column int, word, text string) {
	line := strings.Repeat(" ", indent) + word
	column += indent
	if text == "" {
		b.WriteString(line + "\n")
		return
	}
	if word != "" && len(line) >= column {
		b.WriteString(line + "\n")
		line = ""
	}
	line += strings.Repeat(" ", column-len(line))
	used := 0
	for _, w := range strings.Split(text, " ") {
		if used > 0 && len(line)+1+len(w) > helpWidth {
			b.WriteString(line + "\n")
			line, used = strings.Repeat(" ", column), 0
		}
		if used > 0 {
			line += " "
		}
		line += w
		used++
	}
	b.WriteString(line + "\n")
}

// help is the verb of that name.
func (a *app) help(args []string) int {
	o, code, ok := a.parse("help", args)
	if !ok {
		return code
	}
	if len(o.operands) == 0 {
		return a.print(overview())
	}
	return a.print(verbOf(o.operands[0]).help())
}
