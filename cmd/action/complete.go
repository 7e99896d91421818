package main

import (
	_ "embed"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// The scripts ask the hidden verb complete for everything, so that none of them
// knows a verb or a flag.
var (
	//go:embed completion/bash
	bashScript string
	//go:embed completion/zsh
	zshScript string
	//go:embed completion/fish
	fishScript string
)

var shells = []string{"bash", "zsh", "fish"}

func (a *app) completion(args []string) int {
	o, code, ok := a.parse("completion", args)
	if !ok {
		return code
	}
	return a.print(map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[o.operands[0]])
}

// complete is `complete SHELL INDEX WORD...`: what can stand in place of the word
// of that index, counted from 0, among those behind the program's name. It comes
// from a key that a person pressed to see what there is, so it runs nothing, and
// reads nothing but the steps file that the line itself names.
func (a *app) complete(args []string) int {
	if len(args) < 2 {
		return exitUsage
	}
	at, err := strconv.Atoi(args[1])
	if err != nil || at < 0 || at > len(args)-2 {
		return exitUsage
	}
	words := append(slices.Clone(args[2:]), "")[:max(len(args)-2, at+1)]
	line := commandLine{words: words, at: at}
	if args[0] == "bash" {
		line = line.fromBash()
	}
	return a.print(line.offer(func(file string) []string { return idsOf(file, a.getenv("HOME")) }).String())
}

// offer is what a shell may offer for a word: names of files or folders, which it
// knows best itself, or these words. The zero value is nothing.
type offer struct {
	files, folders bool
	words          []offered
}

type offered struct{ word, does string }

// String is the answer to a script: what kind it is, and a line for each word with
// its meaning behind a tab.
func (o offer) String() string {
	switch {
	case o.files:
		return "files\n"
	case o.folders:
		return "folders\n"
	}
	var b strings.Builder
	b.WriteString("words\n")
	for _, w := range o.words {
		b.WriteString(w.word)
		if w.does != "" {
			b.WriteString("\t" + w.does)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// add offers a word that begins as what is there.
func (o *offer) add(begun, word, does string) {
	if strings.HasPrefix(word, begun) {
		o.words = append(o.words, offered{word, does})
	}
}

// commandLine is the words behind the program's name, of which one is completed.
type commandLine struct {
	words []string
	at    int
	// apart: the shell takes what stands before a = for a word of its own.
	apart bool
}

// fromBash makes words of what bash says they are: it parts them at =, and leaves
// quotes and backslashes in them.
func (c commandLine) fromBash() commandLine {
	out := commandLine{}
	for i, w := range c.words {
		w = unquoted(w)
		n := len(out.words)
		switch {
		case n > 0 && w == "=" && strings.HasPrefix(out.words[n-1], "-") && !strings.Contains(out.words[n-1], "="):
			out.words[n-1] += "="
		case n > 0 && c.words[i-1] == "=" && strings.HasPrefix(out.words[n-1], "-") && strings.HasSuffix(out.words[n-1], "="):
			out.words[n-1] += w
		default:
			out.words = append(out.words, w)
		}
		if i == c.at {
			out.at = len(out.words) - 1
			out.apart = strings.Contains(out.words[out.at], "=") && strings.HasPrefix(out.words[out.at], "-")
		}
	}
	return out
}

// unquoted takes quotes and backslashes out of a word, and nothing else: variables
// and commands in it stay the text that they are.
func unquoted(word string) string {
	var b strings.Builder
	quote := byte(0)
	for i := 0; i < len(word); i++ {
		switch c := word[i]; {
		case c == '\\' && quote != '\'' && i+1 < len(word):
			i++
			b.WriteByte(word[i])
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case c == quote && quote != 0:
			quote = 0
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// offer says what can stand in place of the word. ids reads the ids of the steps
// in a file.
func (c commandLine) offer(ids func(file string) []string) (o offer) {
	word := c.words[c.at]
	if c.at == 0 {
		for _, v := range verbs() {
			if !v.hidden {
				o.add(word, v.name, v.does)
			}
		}
		return o
	}
	v := verbOf(c.words[0])
	if v == nil || v.hidden {
		return o
	}
	all := v.scan(c.words[1:])
	read := func() []string { return ids(v.stepsFile(all)) }
	before := v.scan(c.words[1:c.at])
	if n := len(before); n > 0 && before[n-1].flag != nil && !before[n-1].hasValue {
		return before[n-1].flag.offer("", word, read)
	}
	if strings.HasPrefix(word, "-") && !slices.Contains(c.words[1:c.at], "--") {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return v.offerFlags(word, before)
		}
		if f := v.flag(strings.TrimLeft(name, "-")); f != nil && f.arg != "" {
			lead := name + "="
			if c.apart {
				lead = ""
			}
			return f.offer(lead, value, read)
		}
		return o
	}
	t := v.takes
	taken := 0
	for _, b := range before {
		if b.name == "" {
			taken++
		}
	}
	switch {
	case t == nil || taken > 0 && !t.many:
	case t.kind == aFile:
		o.files = true
	default:
		for _, w := range t.words() {
			does := ""
			if v.name == "help" {
				does = verbOf(w).does
			}
			o.add(word, w, does)
		}
	}
	return o
}

// offerFlags are the flags that are not there yet.
func (v *verb) offerFlags(begun string, before []argument) (o offer) {
	for _, f := range v.flags {
		if !slices.ContainsFunc(before, func(a argument) bool { return a.name == f.name }) {
			o.add(begun, "--"+f.name, f.brief())
		}
	}
	o.add(begun, "--help", "all there is to say of "+v.name)
	return o
}

// brief is the first sentence of what a flag means.
func (f *flagDef) brief() string {
	s, _, _ := strings.Cut(f.does, ". ")
	return strings.TrimSuffix(s, ".")
}

// listed is what a list of ids or of our words can be so far.
var listed = lazy.Regexp(`^[A-Za-z0-9._,-]*$`)

// offer says what the value of a flag can be, behind a lead that is part of the
// word.
func (f *flagDef) offer(lead, begun string, ids func() []string) (o offer) {
	switch f.kind {
	case aFile:
		o.files = true
	case aFolder:
		o.folders = true
	case aWord:
		for _, w := range f.words() {
			o.add(lead+begun, lead+w, "")
		}
	case someIDs, someWords:
		if !listed().MatchString(begun) {
			return o
		}
		from := ids
		if f.kind == someWords {
			from = f.words
		}
		done := begun[:strings.LastIndexByte(begun, ',')+1]
		for _, w := range from() {
			if !slices.Contains(strings.Split(done, ","), w) {
				o.add(lead+begun, lead+done+w, "")
			}
		}
	}
	return o
}

// stepsFile is the steps file that a command line names, or "".
func (v *verb) stepsFile(all []argument) string {
	for _, a := range all {
		if a.flag != nil && a.flag.name == flagFile.name {
			return a.value
		}
		if a.name == "" && v.takes != nil && v.takes.kind == aFile && !v.takes.many {
			return a.value
		}
	}
	return ""
}

// idsOf reads the ids of the steps in a file. One that cannot be read has none: a
// person is typing, and nobody waits for a pipe or opens a device.
func idsOf(file, home string) []string {
	if rest, ok := strings.CutPrefix(file, "~/"); ok && home != "" {
		file = filepath.Join(home, rest)
	}
	if st, err := os.Stat(file); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := openRegular(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, readAtMost))
	if err != nil {
		return nil
	}
	return steps.IDsOf(src)
}
