package gha

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names of the action's outputs.
const (
	OutputVerdict      = "verdict"
	OutputReport       = "report"
	OutputFaults       = "faults"
	OutputFailedSteps  = "failed-steps"
	OutputChangedFiles = "changed-files"
)

// OutputNames lists the outputs, for action.yml and its test.
var OutputNames = []string{OutputVerdict, OutputReport, OutputFaults, OutputFailedSteps, OutputChangedFiles}

// maxOutput is how long one output may be. A job takes 1 MB of all of them.
const maxOutput = 256 << 10

// Outputs are what the action tells later steps. They decorate: the gate is the
// exit status, since any step with commands can lose an output.
//
// Workflows paste outputs into scripts, so no text that a step chose is among
// them: changed files are a number, and their names are in the report.
type Outputs struct {
	Verdict      string
	Report       string   // path of report.json
	Faults       []string // each "step:fault type"
	FailedSteps  []string // ids
	ChangedFiles int
}

// WriteOutputs sets all outputs.
func (e Env) WriteOutputs(o Outputs) error {
	for _, kv := range [][2]string{
		{OutputVerdict, o.Verdict},
		{OutputReport, o.Report},
		{OutputFaults, strings.Join(o.Faults, ",")},
		{OutputFailedSteps, strings.Join(o.FailedSteps, ",")},
		{OutputChangedFiles, strconv.Itoa(o.ChangedFiles)},
	} {
		if err := e.SetOutput(kv[0], kv[1]); err != nil {
			return err
		}
	}
	return nil
}

// SetOutput sets one output. A value that is not one line of text is refused:
// the library ends a value with a line that never changes, so a value with that
// line in it could set other outputs.
func (e Env) SetOutput(name, value string) error {
	const variable = "GITHUB_OUTPUT"
	if !slices.Contains(OutputNames, name) {
		return fmt.Errorf("set output %q: this action has no such output", name)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unseen) || strings.Contains(value, "\t") {
		return fmt.Errorf("set output %s: the value %q is not one line of plain text", name, value[:min(len(value), 80)])
	}
	if strings.HasPrefix(value, "_GitHubActionsFileCommand") {
		return fmt.Errorf("set output %s: the value is a marker of the output file", name)
	}
	if len(value) > maxOutput {
		return fmt.Errorf("set output %s: %d bytes; at most %d are allowed", name, len(value), maxOutput)
	}
	if err := regularFile(variable, e.Getenv(variable)); err != nil {
		return fmt.Errorf("set output %s: %w", name, err)
	}
	return try("set output "+name, func() { e.action().SetOutput(name, value) })
}

// regularFile refuses a command file that is a link or a device: what stands at
// its end may belong to someone else. A missing file is made by the writer.
func regularFile(variable, path string) error {
	if path == "" {
		return fmt.Errorf("%s is not set; a runner sets it", variable)
	}
	info, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeType != 0:
		return fmt.Errorf("%s names %s, which is not a regular file", variable, path)
	}
	return nil
}
