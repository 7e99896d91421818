package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

const (
	// maxText is how much of an output or a file an answer holds, and maxLines how
	// many lines of it: what a model reads, it pays for.
	maxText  = 50 << 10
	maxLines = 2000
	// maxWrite bounds what write takes: it travels as arguments of a command, of which
	// the kernel takes 2 MiB in all and 128 KiB each.
	maxWrite = 1 << 20
	maxChunk = 96 << 10
	// maxEdit bounds a file that edit changes: the shell has it in memory, more than once.
	maxEdit = 8 << 20
	// maxImage bounds an image that read shows.
	maxImage = 4 << 20
	// maxTold is how many files, and how many destinations, an answer names.
	maxTold = 20
	// maxCalls is how many calls have a box at the same time. Caps are those of a box,
	// and an agent can ask for any number at once.
	maxCalls = 4
)

// place is a path as an argument of a command: relative to the workspace, or
// absolute in the box, and never an option.
func place(p string) (string, error) {
	switch {
	case p == "":
		return "", errors.New("path is empty")
	case strings.ContainsRune(p, 0) || !utf8.ValidString(p):
		return "", errors.New("path is not the name of a file")
	case path.IsAbs(p):
		return path.Clean(p), nil
	}
	if p = path.Clean(p); p == "." {
		return p, nil
	}
	return "./" + p, nil
}

// seconds is a timeout as a model gives it. One that no clock holds is refused as it was
// given: turned round to another number, or to none, it would be one that nobody meant.
func seconds(s float64) (time.Duration, error) {
	d := time.Duration(s * float64(time.Second))
	if math.IsNaN(s) || math.Abs(s) > math.MaxInt64/float64(time.Second)/2 || d == 0 && s != 0 {
		return 0, fmt.Errorf("%s is out of range (%g seconds)", toolTimeout, s)
	}
	return d, nil
}

// writing is the script of write: the path, and then the content in pieces. It
// makes folders as they are needed.
const writing = `p=$1; shift; d=${p%/*}; [ "$d" = "$p" ] || [ -z "$d" ] || mkdir -p -- "$d"; printf %s "$@" > "$p"`

func writeCall(p, content string) (sandbox.Call, error) {
	at, err := place(p)
	switch {
	case err != nil:
		return sandbox.Call{}, err
	case len(content) > maxWrite:
		return sandbox.Call{}, fmt.Errorf("content has %d bytes, at most %d can be written at once; write it in parts with run_code", len(content), maxWrite)
	case strings.ContainsRune(content, 0):
		return sandbox.Call{}, errors.New("content has a zero byte in it, which no command takes as an argument; write it with run_code")
	}
	return sandbox.Call{Command: append([]string{"sh", "-ec", writing, "sh", at}, chunks(content)...)}, nil
}

// editing is the script of edit: the path, where the old text begins and ends, how
// large the file was, in how many pieces the old text is here; these, and those of the
// new one. It writes only if the file is as large as it was and has the old text where
// it had it, and else ends with editChanged: between the look at a file and this
// another call can have changed it. Only the old and the new text come from outside of
// the box. What is around them is the file's own, byte for byte: the shell drops line
// ends at the end of what it reads, and for that an x stands there, and zero bytes,
// which the sizes show.
const editing = `LC_ALL=C p=$1 at=$2 end=$3 size=$4 n=$5; shift 5
old=; while [ "$n" -gt 0 ]; do old=$old$1; shift; n=$((n - 1)); done
bytes() { printf %s "$1" | wc -c; }
a=$(head -c "$at" < "$p" && printf x)
m=$(tail -c "+$((at + 1))" < "$p" | head -c "$((end - at))" && printf x)
b=$(tail -c "+$((end + 1))" < "$p" && printf x)
[ "$m" = "${old}x" ] && [ "$(bytes "$a")" -eq "$((at + 1))" ] && [ "$(bytes "$b")" -eq "$((size - end + 1))" ] || exit 75
{ printf %s "${a%x}"; printf %s "$@"; printf %s "${b%x}"; } > "$p"`

const editChanged = 75

func editCall(a editArgs, at, size int) (sandbox.Call, error) {
	p, err := place(a.Path)
	switch {
	case err != nil:
		return sandbox.Call{}, err
	case len(a.OldText)+len(a.NewText) > maxWrite:
		return sandbox.Call{}, fmt.Errorf("oldText and newText have %d bytes, at most %d can be replaced at once; replace it in parts", len(a.OldText)+len(a.NewText), maxWrite)
	case strings.ContainsRune(a.NewText, 0):
		return sandbox.Call{}, errors.New("newText has a zero byte in it, which no command takes as an argument; write it with run_code")
	}
	old := chunks(a.OldText)
	argv := []string{"sh", "-ec", editing, "sh", p, strconv.Itoa(at), strconv.Itoa(at + len(a.OldText)), strconv.Itoa(size), strconv.Itoa(len(old))}
	return sandbox.Call{Command: append(append(argv, old...), chunks(a.NewText)...)}, nil
}

// chunks cuts a text into arguments, between characters.
func chunks(s string) (out []string) {
	for len(s) > maxChunk {
		n := maxChunk
		for !utf8.RuneStart(s[n]) {
			n--
		}
		out, s = append(out, s[:n]), s[n:]
	}
	return append(out, s)
}

func readCall(p string) (sandbox.Call, error) {
	at, err := place(p)
	return sandbox.Call{Command: []string{"cat", "--", at}}, err
}

func lsCall(p string) (sandbox.Call, error) {
	if p == "" {
		p = "."
	}
	at, err := place(p)
	return sandbox.Call{Command: []string{"ls", "-1Ap", "--", at}}, err
}

// listCall lists all that is below a folder, a type and a size to each.
func listCall(p string) (sandbox.Call, error) {
	if p == "" {
		p = "."
	}
	at, err := place(p)
	return sandbox.Call{Command: []string{"find", at, "-name", ".git", "-prune", "-o", "-mindepth", "1", "-exec", "ls", "-ldn", "--", "{}", "+"}}, err
}

func grepCall(a grepArgs) (sandbox.Call, error) {
	if a.Path == "" {
		a.Path = "."
	}
	at, err := place(a.Path)
	switch {
	case err != nil:
		return sandbox.Call{}, err
	case a.Pattern == "":
		return sandbox.Call{}, errors.New("pattern is empty")
	case a.Context < 0 || a.Context > 100:
		return sandbox.Call{}, fmt.Errorf("context is %d; 0 to 100 lines can be shown around a match", a.Context)
	}
	argv := []string{"grep", "-rnI"}
	if a.Literal {
		argv = append(argv, "-F")
	} else {
		argv = append(argv, "-E")
	}
	if a.IgnoreCase {
		argv = append(argv, "-i")
	}
	if a.Context > 0 {
		argv = append(argv, "-C", strconv.Itoa(a.Context))
	}
	if a.Glob != "" {
		argv = append(argv, "--include="+a.Glob)
	}
	return sandbox.Call{Command: append(argv, "--exclude-dir=.git", "-e", a.Pattern, "--", at)}, nil
}

func findCall(a findArgs) (sandbox.Call, error) {
	if a.Path == "" {
		a.Path = "."
	}
	at, err := place(a.Path)
	if err == nil && a.Pattern == "" {
		err = errors.New("pattern is empty")
	}
	by, pattern := "-name", a.Pattern
	if strings.Contains(pattern, "/") {
		by, pattern = "-path", "*/"+strings.TrimPrefix(strings.TrimPrefix(pattern, "**/"), "/")
	}
	return sandbox.Call{Command: []string{"find", at, "-name", ".git", "-prune", "-o", by, pattern, "-print"}}, err
}

// where is the one place of a text that is to be replaced. One that is there twice,
// or not at all, is none that anybody meant.
func where(text, old, replacement string) (at int, err error) {
	switch n := strings.Count(text, old); {
	case old == "":
		return 0, errors.New("oldText is empty; write makes a file")
	case n == 0 && strings.Contains(old, gha.Masked):
		return 0, errors.New("oldText is not in the file; " + gha.Masked + " in an answer stands for a value that is masked, so take a text beside it")
	case n == 0:
		return 0, errors.New("oldText is not in the file; it has to be there letter for letter, blanks too")
	case n > 1:
		return 0, fmt.Errorf("oldText is %d times in the file; take more of what stands around it, until it is there once", n)
	case old == replacement:
		return 0, errors.New("oldText and newText are the same")
	}
	return strings.Index(text, old), nil
}

// window is a part of a text by its lines, the first of them 1, and in words which
// part it is. Lines are counted where they stand: of a text of nothing but line ends
// a list of lines would take many times its size.
func window(text string, offset, limit int) (part, about string, err error) {
	lines := strings.Count(text, "\n")
	if text == "" || !strings.HasSuffix(text, "\n") {
		lines++
	}
	from := max(offset, 1) - 1
	if from > 0 && from >= lines {
		return "", "", fmt.Errorf("offset %d is past the end: there are %d lines", offset, lines)
	}
	most := maxLines
	if limit > 0 {
		most = min(limit, maxLines)
	}
	for range from {
		text = text[strings.IndexByte(text, '\n')+1:]
	}
	to, size := from, 0
	for to < min(from+most, lines) {
		n := len(text) - size
		if i := strings.IndexByte(text[size:], '\n'); i >= 0 {
			n = i + 1
		}
		if size+n > maxText && size > 0 {
			break
		}
		size += n
		to++
	}
	part, left := cut(text[:size])
	about = fmt.Sprintf("lines %d to %d of %d", from+1, to, lines)
	if left != "" {
		about += ", " + left
	}
	if to < lines {
		about += fmt.Sprintf("; go on with offset %d", to+1)
	}
	return part, about, nil
}

// cut keeps the beginning of a text that is too long, and says what it leaves out.
func cut(s string) (part, left string) {
	if len(s) <= maxText {
		return s, ""
	}
	n := maxText
	for n > maxText-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n], fmt.Sprintf("%d bytes more", len(s)-n)
}

// end keeps the end of an output that is too long: what went wrong is told there.
// It says what it leaves out.
func end(s string) (part, left string) {
	from := 0
	if len(s) > maxText {
		from = len(s) - maxText
		for from < len(s) && !utf8.RuneStart(s[from]) {
			from++
		}
	}
	for n := strings.Count(s[from:], "\n"); n > maxLines; n-- {
		from += strings.IndexByte(s[from:], '\n') + 1
	}
	if from == 0 {
		return s, ""
	}
	return s[from:], fmt.Sprintf("%d bytes before those that are shown", from)
}

// few keeps the first lines of a list, and says how many there are.
func few(text string, limit, most int) (part, about string) {
	if limit <= 0 || limit > most {
		limit = most
	}
	lines := strings.Count(text, "\n")
	if !strings.HasSuffix(text, "\n") {
		lines++
	}
	size := len(text)
	if lines > limit {
		size = 0
		for range limit {
			size += strings.IndexByte(text[size:], '\n') + 1
		}
	}
	part, left := cut(text[:size])
	about = fmt.Sprintf("%d of %d lines", min(lines, limit), lines)
	if left != "" {
		about += ", " + left
	}
	return part, about
}

// mimeOf is the type of an image that a model can be shown; "" for anything else.
func mimeOf(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(b, []byte("GIF87a")), bytes.HasPrefix(b, []byte("GIF89a")):
		return "image/gif"
	case len(b) > 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP":
		return "image/webp"
	}
	return ""
}

// picture is an image that a model is shown.
type picture struct {
	mime string
	data []byte
}

const (
	// maxValues and maxPictures bound how much of what code has shown is passed on.
	maxValues   = 20
	maxPictures = 4
)

// shown is what code has shown: pictures as pictures, all else in its plainest form,
// and in words of ours what is left out.
func shown(list []sandbox.Value) (theirs string, pictures []picture, ours []string) {
	var words strings.Builder
	silent := 0
	for i, v := range list {
		if i == maxValues || words.Len() > maxText {
			ours = append(ours, fmt.Sprintf("and %d more results", len(list)-i))
			break
		}
		p := picture{"image/png", v.PNG()}
		if len(p.data) == 0 {
			p = picture{"image/jpeg", v.JPEG()}
		}
		text := v.Text()
		if text == "" {
			text = v.Markdown()
		}
		switch {
		case len(p.data) > 0 && len(p.data) <= maxImage && mimeOf(p.data) == p.mime && len(pictures) < maxPictures:
			pictures = append(pictures, p)
		case text != "":
			part, left := cut(text)
			words.WriteString("result: " + strings.TrimSuffix(part, "\n") + "\n")
			if left != "" {
				ours = append(ours, fmt.Sprintf("result %d has %s", i+1, left))
			}
		default:
			silent++
		}
	}
	if silent > 0 {
		ours = append(ours, fmt.Sprintf("results in a form that is not text: %d", silent))
	}
	return words.String(), pictures, ours
}

// outcome is a result in words, for a model: the output of the code, and lines of
// ours about how it ended and what it changed. There is always one of these: where
// there was none, the last line of the output could pass for it.
func outcome(r *sandbox.Result) (output string, ours []string) {
	var b strings.Builder
	for _, stream := range []struct{ name, text string }{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if stream.text == "" {
			continue
		}
		part, left := end(stream.text)
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteString("\n")
		}
		if stream.name == "stderr" {
			b.WriteString("stderr:\n")
		}
		b.WriteString(part)
		if left != "" {
			ours = append(ours, "of "+stream.name+" there are "+left)
		}
	}
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n")
	}
	if r.Truncated {
		ours = append(ours, "output beyond the bound was dropped")
	}
	if r.Success {
		ours = append(ours, fmt.Sprintf("exit code %d", r.ExitCode))
	} else {
		ours = append(ours, "failed: "+why(r))
		if len(r.Files) > 0 && !r.Kept {
			ours = append(ours, "what it changed was dropped")
		}
	}
	for i, q := range r.Requests {
		if i == maxTold {
			ours = append(ours, fmt.Sprintf("and %d more destinations", len(r.Requests)-i))
			break
		}
		if q.Verdict != "allowed" {
			ours = append(ours, fmt.Sprintf("%s: %s:%d (%s)", q.Verdict, q.Host, q.Port, q.Reason))
		}
	}
	for i, f := range r.Files {
		if i == maxTold {
			ours = append(ours, fmt.Sprintf("and %d more changed", len(r.Files)-i))
			break
		}
		ours = append(ours, f.Change+": "+strconv.Quote(f.Path))
	}
	return b.String(), ours
}

// why is the reason of a failure for a model: it cannot write the keys that a steps
// file would be told to, but for the timeout of a tool that has one.
func why(r *sandbox.Result) string {
	const permit, write, starts = "; to permit ", "; write ", "; whoever starts this server can "
	if i := strings.LastIndex(r.Reason, permit); i >= 0 && len(r.Violations) > 0 {
		return r.Reason[:i] + "; no tool can have it permitted, only whoever starts this server (allowChanges)"
	}
	i := strings.LastIndex(r.Reason, write)
	if r.Fault == nil || i < 0 || strings.Contains(r.Reason[i:], " "+toolTimeout+" ") {
		return r.Reason
	}
	return r.Reason[:i] + starts + strings.TrimPrefix(r.Reason[i:], "; ")
}

// lines are those of ours, each in brackets and no more than one line, whatever
// it quotes.
func lines(ours []string) string {
	var b strings.Builder
	for _, line := range ours {
		fmt.Fprintf(&b, "[%s]\n", gha.Inert(strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(line)))
	}
	return b.String()
}
