package steps

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

const (
	// maxErrors bounds how many problems one file can make us print.
	maxErrors = 1000
	// maxQuoted bounds how much of an offending text is repeated.
	maxQuoted = 80
	// maxAside is how long a list of what is allowed stands within a sentence. A
	// longer one would hide the hint, so it comes after it.
	maxAside = 100
)

// FileError is one thing that is wrong in a steps file.
type FileError struct {
	File         string
	Line, Column int // both count from 1; columns count characters
	What         string
	Text         string   // the offending text, as it is in the file; untrusted
	Allowed      string   // what may stand there instead
	Hints        []string // what to do next, each its own line
	// Policy is the line of a policy that this goes beyond; nil if it is none.
	Policy *PolicyLine
}

// PolicyLine is what a policy says, and where.
type PolicyLine struct {
	File         string
	Line, Column int
	Says         string // in our words
}

// Error is "file:line:column: what (text; what is allowed there)", followed by
// the line of the policy, if it is one of those, and a line for each hint. Whatever stood in the file is quoted, and each line is
// inert as a whole too: what is harmless in two parts may not be in one.
func (e *FileError) Error() string {
	first := fmt.Sprintf("%s:%d:%d: %s", inert(e.File), e.Line, e.Column, e.What)
	var more []string
	if e.Text != "" {
		more = append(more, quoted(e.Text))
	}
	long := len(e.Allowed) > maxAside
	if e.Allowed != "" && !long {
		more = append(more, "allowed: "+e.Allowed)
	}
	if len(more) > 0 {
		first += " (" + strings.Join(more, "; ") + ")"
	}
	lines := []string{gha.Inert(first)}
	if p := e.Policy; p != nil {
		lines = append(lines, gha.Inert(fmt.Sprintf("  %s:%d:%d: %s", inert(p.File), p.Line, p.Column, p.Says)))
	}
	for _, h := range e.Hints {
		lines = append(lines, "  hint: "+gha.Inert(h))
	}
	if long {
		lines = append(lines, "  allowed: "+gha.Inert(e.Allowed))
	}
	return strings.Join(lines, "\n")
}

// Warning is something in a steps file that is allowed and that its reader
// should know.
type Warning struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"` // of the file; untrusted
	What   string `json:"what"`
}

// In is the warning as a line about a file.
func (w Warning) In(file string) string {
	return gha.Inert(fmt.Sprintf("%s:%d:%d: warning: %s: %s", inert(file), w.Line, w.Column, inert(w.Text), w.What))
}

// Errors is all that is wrong in a steps file, in the order of the file. A
// caller that sees it knows that nothing ran.
type Errors []*FileError

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// asErrors finds the list in an error of this package.
func asErrors(err error) Errors {
	var list Errors
	errors.As(err, &list)
	return list
}

// sorted puts problems in the order of the file, and bounds their number.
func (e Errors) sorted() Errors {
	sort.SliceStable(e, func(i, j int) bool {
		if e[i].Line != e[j].Line {
			return e[i].Line < e[j].Line
		}
		return e[i].Column < e[j].Column
	})
	// Said once, a long list of what is allowed helps; five times it hides the rest.
	told := map[string]bool{}
	for _, one := range e {
		if len(one.Allowed) <= maxAside {
			continue
		}
		if told[one.Allowed] {
			one.Allowed = ""
			continue
		}
		told[one.Allowed] = true
	}
	if len(e) > maxErrors {
		last := e[maxErrors]
		rest := len(e) - maxErrors
		e = append(e[:maxErrors:maxErrors], &FileError{
			File: last.File, Line: last.Line, Column: last.Column,
			What: fmt.Sprintf("and %d more problems from here on", rest),
		})
	}
	return e
}

// quoted makes a text from the file harmless and short. Quoting alone is not
// enough: it keeps what a runner takes for a command anywhere in a line.
func quoted(s string) string {
	const more = "..."
	cut := false
	if utf8.RuneCountInString(s) > maxQuoted {
		n := 0
		for i := range s {
			if n == maxQuoted {
				s, cut = s[:i], true
				break
			}
			n++
		}
	}
	s = gha.Inert(strconv.Quote(s))
	if cut {
		s += more
	}
	return s
}

// inert leaves a plain text as it is and quotes any other, whole: for what a
// person reads in a plan.
func inert(s string) string {
	if plain(s) {
		return s
	}
	return gha.Inert(strconv.Quote(s))
}

// plain says whether a text can be shown as it is: printable, on one line, no
// blanks at its ends, and nothing that a runner or an eye would take for something
// else.
func plain(s string) bool {
	if s == "" || s != strings.TrimSpace(s) || !utf8.ValidString(s) ||
		strings.HasPrefix(s, "::") || strings.HasPrefix(s, `"`) || gha.Inert(s) != s {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// inertWords is for words of a library inside one of our sentences: quoted only
// if they repeat something odd.
func inertWords(s string) string {
	if plain(s) {
		return s
	}
	return quoted(s)
}
