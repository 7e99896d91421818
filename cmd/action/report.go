package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// report writes a report.json again in another form. Its exit status says
// whether that was done, and not what the verdict is: that was the run's.
func (a *app) report(args []string) int {
	format := ""
	o, code, ok := a.flags("report", args, func(fs *flag.FlagSet, _ *options) { fs.StringVar(&format, "format", "", "") })
	if !ok {
		return code
	}
	var names []string
	var chosen *report.Format
	for i, f := range report.Formats {
		names = append(names, f.Name)
		if f.Name == format {
			chosen = &report.Formats[i]
		}
	}
	switch {
	case chosen != nil:
	case format == "":
		return a.misused("report: --format is missing; the formats are %s", strings.Join(names, ", "))
	default:
		return a.misused("report: --format %q: the formats are %s", format, strings.Join(names, ", "))
	}
	r, err := a.readReport(o.file)
	if err != nil {
		return a.wrong("report: %s: %v", gha.Inert(o.file), err)
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
