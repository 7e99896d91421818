package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// WriteJSON writes report.json: the same bytes for the same result, arrays
// never null, one line per changed file.
//
// The report may go to standard output, where a runner looks for commands. JSON
// itself keeps lines apart; what is left is written as \u escapes, which change
// no value: the runner's opening, and characters that nobody can see.
func WriteJSON(w io.Writer, r *steps.Result) error {
	out := &jsonWriter{w: bufio.NewWriter(w)}
	head := *r
	head.Steps = []steps.StepResult{}
	head.Host.Proof = list(head.Host.Proof)
	if r.Refusal != nil {
		refusal := *r.Refusal
		refusal.Fix = list(refusal.Fix)
		head.Refusal = &refusal
	}
	before, after, err := around(head, "", "steps")
	if err != nil {
		return err
	}
	out.text(before)
	for i := range r.Steps {
		if err := out.step(&r.Steps[i], i > 0); err != nil {
			return err
		}
	}
	out.closing(len(r.Steps), "  ")
	out.text(append(after, '\n'))
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("write the report: %w", out.err)
	}
	return nil
}

// step writes one step. The files go out one by one: there may be a million.
func (o *jsonWriter) step(s *steps.StepResult, more bool) error {
	before, after, err := around(filled(*s), "    ", "files")
	if err != nil {
		return err
	}
	o.opening(more, "    ")
	o.text(before)
	for i := range s.Files {
		line, err := json.Marshal(&s.Files[i])
		if err != nil {
			return fmt.Errorf("write the report: step %s: %w", s.ID, err)
		}
		o.opening(i > 0, "        ")
		o.text(line)
	}
	o.closing(len(s.Files), "      ")
	o.text(after)
	return nil
}

// filled has an empty array wherever a result has none, and no files.
func filled(s steps.StepResult) steps.StepResult {
	s.Files = []steps.FileChange{}
	s.Events = list(s.Events)
	s.Unobserved = list(s.Unobserved)
	s.Limits.Enforced = list(s.Limits.Enforced)
	s.Egress = list(s.Egress)
	s.EgressProposal = list(s.EgressProposal)
	s.EgressUnused = list(s.EgressUnused)
	s.Violations = list(s.Violations)
	s.Results = append([]steps.CellResult{}, s.Results...)
	for i, c := range s.Results {
		if c == nil {
			s.Results[i] = steps.CellResult{}
		}
	}
	return s
}

func list[T string | box.Event | steps.Proof | steps.EgressRecord | steps.Violation](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// around is the JSON of v up to and from the end of its empty array key. No
// text inside v can look like the place: a line end within a text is escaped.
func around(v any, indent, key string) (before, after []byte, err error) {
	b, err := json.MarshalIndent(v, indent, "  ")
	if err != nil {
		return nil, nil, fmt.Errorf("write the report: %w", err)
	}
	place := []byte("\n" + indent + `  "` + key + `": [`)
	before, after, ok := bytes.Cut(b, append(place, ']'))
	if !ok {
		return nil, nil, fmt.Errorf("report: bug: no array %q in the result", key)
	}
	return append(before, place...), append([]byte("]"), after...), nil
}

// jsonWriter escapes what may act outside of JSON, and keeps the first error.
type jsonWriter struct {
	w   *bufio.Writer
	buf []byte
	err error
}

func (o *jsonWriter) opening(more bool, indent string) {
	if more {
		o.text([]byte(","))
	}
	o.text([]byte("\n" + indent))
}

func (o *jsonWriter) closing(n int, indent string) {
	if n > 0 {
		o.text([]byte("\n" + indent))
	}
}

// text writes a piece of JSON.
func (o *jsonWriter) text(b []byte) {
	if o.err == nil {
		o.buf = gha.InertJSON(o.buf[:0], b)
		_, o.err = o.w.Write(o.buf)
	}
}
