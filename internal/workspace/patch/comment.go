package patch

import (
	"fmt"
	"strings"
)

const (
	// maxNotes is how many paths a comment names; the Summary has all.
	maxNotes = 100
	// maxNoteName is how much of a name a comment shows.
	maxNoteName = 200
)

// comment is what stands ahead of the first diff. git apply skips lines that
// are no header; these begin with #, and a name in them is quoted, so that no
// step can put a header there.
func (p *writer) comment() string {
	var b strings.Builder
	list := func(title string, notes []Note) {
		if len(notes) == 0 {
			return
		}
		fmt.Fprintf(&b, "# %s:\n", title)
		for i, n := range notes {
			if i == maxNotes {
				fmt.Fprintf(&b, "#   and %d more\n", len(notes)-i)
				break
			}
			name, cut := n.Path, ""
			if len(name) > maxNoteName {
				name, cut = name[:maxNoteName], "..."
			}
			b.WriteString("#   " + quote(name) + cut)
			if n.Why != "" {
				b.WriteString(": " + n.Why)
			}
			b.WriteByte('\n')
		}
	}
	list("This patch does not carry all that changed", p.sum.Lost)
	list("Left out, since no patch may touch these paths", p.sum.Refused)
	list("Values of secrets are masked here, so that these files may not apply, or get the mask as content", p.masked)
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	return b.String()
}
