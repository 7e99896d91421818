package checks

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// When says when there is a comment.
type When int

// The zero value is no comment.
const (
	Never When = iota
	Always
	// OnFailure makes no comment for a pass. One that is there is still kept up
	// to date: a comment that says fail beside a gate that passes would be wrong.
	OnFailure
)

// Want is what a workflow asks for. The zero value is nothing.
type Want struct {
	CheckRun, CommitStatus bool
	Comment                When
	// Name is what the check run and the commit status are called. It tells
	// several gates of one workflow apart.
	Name string
}

// Anything says whether there is anything to do.
func (w Want) Anything() bool { return w.CheckRun || w.CommitStatus || w.Comment != Never }

// DefaultName is the name where the workflow gives none.
const DefaultName = "untrusted-steps"

// maxName is how long a name may be; the API takes a little more.
const maxName = 100

// ParseWant reads the inputs of the action. Beside an error stands what else is
// asked for: that an input is wrong has to be told where a workflow looks.
func ParseWant(in gha.Inputs) (Want, error) {
	w := Want{Name: cmp.Or(in.CheckName, DefaultName)}
	var wrong [3]error
	w.CheckRun, wrong[0] = yes("check-run", in.CheckRun)
	w.CommitStatus, wrong[1] = yes("commit-status", in.CommitStatus)
	switch in.Comment {
	case "", "false":
	case "true":
		w.Comment = Always
	case "on-failure":
		w.Comment = OnFailure
	default:
		wrong[2] = fmt.Errorf("comment: %q is none of true, false and on-failure", in.Comment)
	}
	// Under another name than the one that was meant nothing is said.
	if len(w.Name) > maxName || gha.Inert(w.Name) != w.Name || strings.Contains(w.Name, "\t") {
		return Want{}, fmt.Errorf("check-name: %q is not one line of at most %d bytes of plain text", w.Name[:min(len(w.Name), maxName)], maxName)
	}
	for _, err := range wrong {
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// yes takes the two words and nothing that merely looks like one of them.
func yes(name, value string) (bool, error) {
	switch value {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, fmt.Errorf("%s: %q is neither true nor false", name, value)
}

// Token is what the API takes for a name and a password. It does not print.
type Token string

func (Token) String() string { return gha.Masked }

// GoString keeps it out of %#v too.
func (Token) GoString() string { return gha.Masked }
