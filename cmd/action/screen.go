package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
)

// Who reads what we write is found out here. A terminal shows progress and
// colour, unless it says that it cannot (TERM=dumb) or NO_COLOR wants no colour.
// Everything else, the log of a runner too, gets plain text.

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// widthOf is the width of a terminal, and 0 for anything else: a file or a pipe
// has any width, and a CI log must not have names cut off.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// watched says whether a person watches what is written to w.
func (a *app) watched(w io.Writer) bool { return isTerminal(w) && a.getenv("GITHUB_ACTIONS") != "true" }

func (a *app) colour(w io.Writer) bool { return a.watched(w) && gha.WantsColour(a.getenv) }

// screen is what a table on w is read on.
func (a *app) screen(w io.Writer) report.Screen {
	return report.Screen{Width: widthOf(w), Colour: a.colour(w)}
}

// openLog begins the log of a run, by an outlet of what is read on to.
func (r *run) openLog(by io.Writer, to io.Writer, banner string) {
	r.log = gha.NewLog(by, gha.LogOptions{
		Banner: banner, Actions: r.actions,
		Terminal: r.app.watched(to) && gha.TakesEscapes(r.app.getenv), Colour: r.app.colour(to),
		Width: func() int { return widthOf(to) }, Now: time.Now, Masker: r.masker,
	})
}

// say writes a line of ours to to, in the colours of the stream that to leads to.
func (a *app) say(to, stream io.Writer, line gha.Line) {
	fmt.Fprintln(to, line.Shown(a.colour(stream)))
}

func warning(text string) gha.Line {
	return gha.Line{{Text: toolName + ": warning:", Style: gha.Doubt}, {Text: " " + text}}
}
