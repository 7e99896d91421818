package gha

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// AnnotationKind is how loud an annotation is.
type AnnotationKind string

// The kinds of annotation.
const (
	Error   AnnotationKind = "error"
	Warning AnnotationKind = "warning"
	Notice  AnnotationKind = "notice"
)

const (
	// maxAnnotations is how many of a kind a runner shows of one step. It drops
	// the rest without a word.
	maxAnnotations = 10
	// maxMessage is how much of a message is kept, in the runner's own units.
	// It cuts at 4096.
	maxMessage = 4000
	maxTitle   = 200
)

// Annotation is one remark that the pages of a run and of a pull request show.
type Annotation struct {
	Kind    AnnotationKind
	Rank    int // higher is worse; the worst are shown
	Title   string
	Message string // may have several lines; may be untrusted
	File    string // may be empty
	Line    int    // 0: none
	Column  int    // of that line; 0: none
}

// Annotate shows at most ten annotations of each kind, the worst first. Where
// there are more, the tenth says how many.
func (e Env) Annotate(list []Annotation) error {
	for _, kind := range []AnnotationKind{Error, Warning, Notice} {
		var of []Annotation
		for _, a := range list {
			if a.Kind == kind {
				of = append(of, a)
			}
		}
		slices.SortStableFunc(of, func(a, b Annotation) int { return cmp.Compare(b.Rank, a.Rank) })
		if more := len(of) - (maxAnnotations - 1); more > 1 {
			of = append(of[:maxAnnotations-1:maxAnnotations-1], Annotation{
				Kind: kind, Title: "untrusted-steps",
				Message: fmt.Sprintf("and %d more; all of them are in the summary and the report", more),
			})
		}
		for _, a := range of {
			if err := e.annotate(a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e Env) annotate(a Annotation) error {
	fields := map[string]string{}
	if a.Title != "" {
		fields["title"] = cut(Inert(a.Title), maxTitle)
	}
	if a.File != "" {
		fields["file"] = Inert(a.File)
		if a.Line > 0 {
			fields["line"] = strconv.Itoa(a.Line)
			if a.Column > 0 {
				fields["col"] = strconv.Itoa(a.Column)
			}
		}
	}
	lines := strings.Split(a.Message, "\n")
	for i := range lines {
		lines[i] = Inert(lines[i])
	}
	message := cut(strings.Join(lines, "\n"), maxMessage)
	return try("annotate", func() {
		to := e.action().WithFieldsMap(fields)
		switch a.Kind {
		case Error:
			to.Errorf("%s", message)
		case Warning:
			to.Warningf("%s", message)
		default:
			to.Noticef("%s", message)
		}
	})
}

// cut shortens text to at most n UTF-16 units, which is what the runner counts,
// between two characters.
func cut(text string, n int) string {
	const more = " ..."
	used, keep := 0, 0
	for i, r := range text {
		if used <= n-len(more) {
			keep = i
		}
		if used += utf16.RuneLen(r); used > n {
			return text[:keep] + more
		}
	}
	return text
}
