package html

import (
	"bytes"
	_ "embed" // for the two assets
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// MaxBytes is more than the page ever has. The rooms below are parts of it; what
// they leave is for the frame and the assets.
const MaxBytes = 16 << 20

// Room for each part, in bytes of the page: escaped, as a browser gets it.
const (
	rowsRoom     = 896 << 10
	barsRoom     = 384 << 10
	shellsRoom   = 512 << 10 // of each step, its result and why
	extrasRoom   = 768 << 10 // and what else was seen of it
	staticRoom   = 256 << 10 // tables for readers without scripts, each half
	requestsRoom = 1 << 20
	filesRoom    = 1792 << 10
	idsRoom      = 256 << 10
	logsRoom     = 2560 << 10
	diffsRoom    = 1 << 20
	imagesRoom   = 4 << 20 // of results
	resultsRoom  = 1 << 20 // what else is shown of them
)

//go:embed app.css
var style string

//go:embed app.js
var script string

// Options are what the page needs beside the result.
type Options struct {
	// Verdict is the sentence on top.
	Verdict string
	// Engines is what built the boxes, with its version.
	Engines string
	// Warnings are what was not enforced or not seen in this run.
	Warnings []string
	// Top are lines about all steps together, the most important first.
	Top []Top
	// Words says how each step went, as the other forms of the report do.
	Words func(*steps.StepResult) Words
	// Look says in a word why a changed file comes before others, whatever its
	// step's list of such files says; empty where it does not.
	Look func(*steps.FileChange) string
	// Meaning says a reason for a request's end in a sentence.
	Meaning func(reason string) string
	// Files is the report folder, for logs and patches. nil: there is none at
	// hand, and the page says so.
	Files fs.FS
}

// Top is a line on top of the page: a word, and what it is true of.
type Top struct {
	Word  string
	Items []string
}

// Words are the short texts about a step.
type Words struct {
	Outcome, Note, Reason, Time, Memory, Requests, Files string
	Tries, Notes                                         []string
	Boundary                                             string // the engine of the box, and whose kernel it had
}

// Write writes the page.
func Write(w io.Writer, r *steps.Result, o Options) error {
	if o.Words == nil || o.Look == nil || o.Meaning == nil {
		return errors.New("report.html: bug: no words for the steps were handed in")
	}
	p := &page{r: r, o: o}
	data, err := p.data()
	if err != nil {
		return fmt.Errorf("report.html: %w", err)
	}
	// The one thing that keeps the data from ending its element. encoding/json
	// sees to it; a page for which that is not true is not written.
	if bytes.ContainsAny(data, "<>&") {
		return errors.New("report.html: bug: the data could end its element")
	}
	var b bytes.Buffer
	p.head(&b)
	p.body(&b)
	b.WriteString(`<script type="application/json" id="data">`)
	b.Write(data)
	b.WriteString("</script>\n<script>" + script + "</script>\n</body>\n</html>\n")
	if b.Len() > MaxBytes {
		return fmt.Errorf("report.html: bug: %d bytes are more than a page may have", b.Len())
	}
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("report.html: %w", err)
	}
	return nil
}

// page is one page on its way.
type page struct {
	r *steps.Result
	o Options

	requests []request
	files    []file
	left     left
}

// failing lists the steps by index, those that did not pass first.
func (p *page) failing() (bad, good []int) {
	for i := range p.r.Steps {
		if p.r.Steps[i].Status == steps.StatusPassed {
			good = append(good, i)
		} else {
			bad = append(bad, i)
		}
	}
	return bad, good
}
