package steps

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace/patch"
)

// Proposal is what an audit found out about one step.
type Proposal struct {
	Step  *PlanStep
	Allow []string // entries as a file writes them
}

// Propose writes the lists that an audit found into the steps file: the result
// is a patch in unified form, empty if there is nothing to change. name is the file
// from the folder where the patch is to be applied. In each step
// the list stands in the place of egressMode and of the old list. skipped are
// the steps that are written in a way that lines cannot be put into, such as
// {run: x} on one line, or by defaults; their list is in the report.
func Propose(name string, src []byte, proposals []Proposal) (patch string, skipped []string) {
	text := string(src)
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	var edits []edit
	for _, p := range proposals {
		if len(p.Allow) == 0 {
			continue
		}
		e, ok := listPlace(lines, p)
		if !ok {
			skipped = append(skipped, p.Step.ID)
			continue
		}
		edits = append(edits, e...)
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.at - b.at })
	return unified(name, lines, edits), skipped
}

// edit replaces lines at..at+remove-1, counted from 0, by insert.
type edit struct {
	at, remove int
	insert     []string
}

// listPlace finds where a step's list goes.
func listPlace(lines []string, p Proposal) ([]edit, bool) {
	keys := p.Step.Keys
	if len(keys) == 0 {
		return nil, false
	}
	col := keys[0].Column
	for i, k := range keys {
		// Block style has one key on a line, all in one column.
		if k.Column != col || (i > 0 && k.Line == keys[i-1].Line) {
			return nil, false
		}
	}
	if first := lines[keys[0].Line-1]; strings.Contains(first[:min(col-1, len(first))], "{") {
		return nil, false
	}
	indent := strings.Repeat(" ", col-1)
	insert := []string{indent + "egressAllow:\n"}
	for _, a := range p.Allow {
		insert = append(insert, indent+"  - "+item(a)+"\n")
	}
	var edits []edit
	put := false
	for i, k := range keys {
		if k.Name != "egressMode" && k.Name != "egressAllow" {
			continue
		}
		if strings.TrimSpace(lines[k.Line-1][:col-1]) != "" {
			return nil, false // the key stands behind the dash
		}
		e := edit{at: k.Line - 1, remove: length(lines, keys, i)}
		if !put {
			e.insert, put = insert, true
		}
		edits = append(edits, e)
	}
	if put {
		return edits, true
	}
	// egressMode comes from defaults: the list goes before the second key, or
	// behind the only one.
	at := keys[0].Line - 1 + length(lines, keys, 0)
	if at == len(lines) && !strings.HasSuffix(lines[at-1], "\n") {
		return nil, false
	}
	return []edit{{at: at, insert: insert}}, true
}

// length is how many lines the key at i takes, with its value: up to the next
// line that is not further in than the key is.
func length(lines []string, keys []KeyPlace, i int) int {
	start := keys[i].Line - 1
	n := 1
	for start+n < len(lines) {
		line := strings.TrimRight(lines[start+n], "\r\n")
		trimmed := strings.TrimLeft(line, " ")
		in := len(line) - len(trimmed)
		switch {
		case trimmed == "":
		case in > keys[i].Column-1:
		case in == keys[i].Column-1 && strings.HasPrefix(trimmed, "- "): // a list may stand in its key's column
		default:
			return trim(lines, start, n)
		}
		n++
	}
	return trim(lines, start, n)
}

// trim leaves empty lines behind a value where they are.
func trim(lines []string, start, n int) int {
	for n > 1 && strings.TrimSpace(lines[start+n-1]) == "" {
		n--
	}
	return n
}

// item is an entry as an item of a YAML list. A rule is plain text; what could
// be anything else is quoted.
func item(entry string) string {
	if strings.HasPrefix(entry, "{") { // an entry with markers writes itself
		return entry
	}
	for _, r := range entry {
		if !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:/", r)) {
			return strconv.Quote(entry)
		}
	}
	return entry
}

const patchContext = 3

// unified writes edits, which are sorted and apart, as a patch.
func unified(name string, lines []string, edits []edit) string {
	if len(edits) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", patch.Quoted("a/", name), patch.Quoted("b/", name))
	moved := 0 // lines added so far
	for i := 0; i < len(edits); {
		j := i + 1
		for j < len(edits) && edits[j].at-(edits[j-1].at+edits[j-1].remove) <= 2*patchContext {
			j++
		}
		from := max(0, edits[i].at-patchContext)
		to := min(len(lines), edits[j-1].at+edits[j-1].remove+patchContext)
		var body strings.Builder
		at, added, removed := from, 0, 0
		for _, e := range edits[i:j] {
			for ; at < e.at; at++ {
				write(&body, ' ', lines[at])
			}
			for ; at < e.at+e.remove; at++ {
				write(&body, '-', lines[at])
				removed++
			}
			for _, l := range e.insert {
				write(&body, '+', l)
				added++
			}
		}
		for ; at < to; at++ {
			write(&body, ' ', lines[at])
		}
		old := to - from
		fmt.Fprintf(&b, "@@ -%d,%d +%d,%d @@\n%s", from+1, old, from+1+moved, old-removed+added, body.String())
		moved += added - removed
		i = j
	}
	return b.String()
}

func write(b *strings.Builder, sign byte, line string) {
	b.WriteByte(sign)
	b.WriteString(line)
	if !strings.HasSuffix(line, "\n") {
		b.WriteString("\n\\ No newline at end of file\n")
	}
}
