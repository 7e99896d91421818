package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// report writes a report.json again in another form. Its exit status says
// whether that was done, and not what the verdict is: that was the run's.
func (a *app) report(args []string) int {
	o, code, ok := a.parse("report", args)
	if !ok {
		return code
	}
	var chosen report.Format
	for _, f := range report.Formats { // parse has let none but these through
		if f.Name == o.format {
			chosen = f
		}
	}
	r, err := a.readReport(o.file)
	if err != nil {
		return a.next(a.wrong("report: %s: %v", gha.Inert(o.file), err), "name the report.json of a run, the folder with it, or - for standard input")
	}
	if chosen.On != nil {
		err = chosen.On(a.stdout, r, a.screen(a.stdout))
	} else {
		err = chosen.Write(a.stdout, r)
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "untrusted-steps: %v\n", err)
		return exitNoVerdict
	}
	return exitPass
}

func (a *app) readReport(name string) (*steps.Result, error) {
	var in io.Reader = a.stdin
	if name != "-" {
		if st, err := os.Stat(name); err == nil && st.IsDir() {
			name = filepath.Join(name, "report.json")
		}
		// A pipe or a device, which would be read for ever, is not even waited for.
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
			return nil, fmt.Errorf("it is not a regular file")
		}
		in = f
	}
	return report.Read(in)
}
