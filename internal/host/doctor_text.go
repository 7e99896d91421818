package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// WriteJSON writes the report for programs. In a job it goes to the log: names and
// words that others chose act no more there than in the text.
func (r *Report) WriteJSON(w io.Writer) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return err
	}
	_, err := w.Write(gha.InertJSON(nil, b.Bytes()))
	return err
}

// words are the statuses as people see them: what is wrong stands out without
// colour.
var words = map[Status]string{OK: "ok", Warn: "warn", Fail: "FAIL"}

// WriteText writes the report for people. Names of folders and words of other
// programs are in it, which others may have chosen: each line is inert.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintln(&b, gha.Inert(fmt.Sprintf(format, args...))) }
	line("%s, Linux %s, user %d", r.Place, r.Kernel, r.User)
	line("")
	for _, f := range r.Findings {
		word, ok := words[f.Status]
		if !ok {
			word = words[Fail]
		}
		line("%-4s  %-17s %s", word, f.Check, oneLine(f.Found))
		if f.Costs != "" {
			line("      costs   %s", oneLine(f.Costs))
		}
		for _, fix := range f.Fix {
			if strings.HasPrefix(fix, "#") {
				line("      %s", oneLine(fix))
			} else {
				line("      try     %s", oneLine(fix))
			}
		}
		if f.Verify != "" && f.Status != OK {
			line("      verify  %s", f.Verify)
		}
	}
	line("")
	var ran []string
	for _, e := range r.Engines {
		if e.Ran {
			ran = append(ran, e.Name)
		}
	}
	if r.Ready {
		line("steps can run here: a full box ran, with caps, by %s", strings.Join(ran, " and "))
	} else {
		line("steps cannot run here: no full box ran with its caps")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// oneLine puts what may have several on one.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
