package checks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

const (
	// batch is how many annotations one request takes.
	batch = 50
	// maxBatches bounds the requests of one run. GitHub takes about eighty
	// writes a minute before it has enough of anybody.
	maxBatches = 10
	// maxMessage is a quarter of what the API takes, in bytes: fifty of them are
	// to make a request that gets there in time.
	maxMessage = 16 << 10
)

// Annotation is a remark on a line of a file, as the API takes it.
type Annotation struct {
	Path, Level, Title, Message string
	Line                        int
	Column                      int // of that line; 0: none
}

// batches cuts the annotations into what single requests take, the worst first.
// Where there are too many the last one says how many are left out.
func batches(in Input) [][]Annotation {
	order := []gha.AnnotationKind{gha.Error, gha.Warning, gha.Notice}
	list := slices.Clone(in.Annotations)
	slices.SortStableFunc(list, func(a, b gha.Annotation) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind)), cmp.Compare(b.Rank, a.Rank))
	})
	rest := "report.json"
	if in.Unstarted != nil {
		rest = "the log"
	}
	if more := len(list) - (maxBatches*batch - 1); more > 1 {
		list = append(list[:maxBatches*batch-1:maxBatches*batch-1], gha.Annotation{
			Kind: list[maxBatches*batch-1].Kind, Title: DefaultName,
			Message: fmt.Sprintf("and %d more; all of them are in %s", more, rest),
		})
	}
	out := make([]Annotation, len(list))
	for i, a := range list {
		out[i] = annotation(in, a)
	}
	return slices.Collect(slices.Chunk(out, batch))
}

func annotation(in Input, a gha.Annotation) Annotation {
	out := Annotation{Path: a.File, Line: max(a.Line, 1), Title: cut(in.Mask(gha.Inert(a.Title)), maxTitle)}
	switch {
	case inTree(a.File):
		if a.Line > 0 {
			out.Column = max(a.Column, 0)
		}
	case inTree(in.Place.Workflow) && strings.Contains(in.Place.Workflow, "/"):
		// The steps stand in the workflow, or in a file outside of the tree. The
		// API wants a path, and the workflow is where the gate is.
		out.Path, out.Line = in.Place.Workflow, 1
	default:
		out.Path, out.Line = ".github", 1
	}
	switch a.Kind {
	case gha.Warning:
		out.Level = "warning"
	case gha.Notice:
		out.Level = "notice"
	default:
		out.Level = "failure"
	}
	lines := strings.Split(in.Mask(a.Message), "\n")
	for i := range lines {
		lines[i] = gha.Inert(lines[i])
	}
	// Masked again: making a line inert removes colour codes, which could have
	// stood inside a value.
	out.Message = cut(in.Mask(strings.Join(lines, "\n")), maxMessage)
	if strings.TrimSpace(out.Message) == "" { // the API takes no empty one
		out.Message = cmp.Or(out.Title, DefaultName)
	}
	return out
}
