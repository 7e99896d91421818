package checks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/report"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Limits of the API.
const (
	// maxSummary is how long a check run's summary may be, in bytes.
	maxSummary = 65535
	// maxComment is how long a comment may be. The API counts characters, of
	// which there are never more than bytes.
	maxComment = 65536
	// maxDescription is how long a commit status may be.
	maxDescription = 140
	maxTitle       = 255
)

// Input is all that a plan is made of.
type Input struct {
	Result *steps.Result
	// Unstarted is there in place of Result where no run was begun.
	Unstarted   *Unstarted
	Annotations []gha.Annotation
	Want        Want
	Place       Place
	// Mask takes secrets out of every text. What goes to the API does not pass
	// the runner, which masks what it knows in the log and the summary.
	Mask func(string) string
}

// Unstarted is what there is to say where nothing was begun: a steps file, a flag
// or an input is wrong, or this host is.
type Unstarted struct {
	Verdict  string
	Problems []string // whose first lines say what
}

func (in *Input) verdict() string {
	if in.Unstarted != nil {
		return in.Unstarted.Verdict
	}
	return in.Result.Verdict
}

func (in *Input) headline() string {
	if u := in.Unstarted; u != nil {
		return report.UnstartedHeadline(u.Verdict, u.Problems)
	}
	return report.Headline(in.Result)
}

func (in *Input) write(w io.Writer, budget int) error {
	if u := in.Unstarted; u != nil {
		return report.WriteUnstarted(w, u.Verdict, u.Problems, budget)
	}
	return report.WriteSummary(w, in.Result, budget)
}

// Plan is what is to be sent. What is nil is not sent.
type Plan struct {
	CheckRun *CheckRun
	Status   *Status
	Comment  *Comment
}

// CheckRun is made with its conclusion and its first batch of annotations, by one
// request; each further batch takes one more.
type CheckRun struct {
	Name, Conclusion, Title, Summary string
	Batches                          [][]Annotation
}

// Status is a commit status.
type Status struct{ State, Description, Context string }

// Comment is the one comment of this gate on a pull request.
type Comment struct {
	// Marker is how the comment begins. No page shows it.
	Marker string
	Body   string // Marker is its first line
	// OnlyUpdate: there is nothing to say unless something was said before.
	OnlyUpdate bool
}

// Make turns a result, or why there is none, into requests.
func Make(in Input) Plan {
	if in.Mask == nil {
		in.Mask = func(s string) string { return s }
	}
	var p Plan
	verdict, headline := in.verdict(), in.Mask(gha.Inert(in.headline()))
	if in.Want.CheckRun {
		p.CheckRun = &CheckRun{
			Name: in.Want.Name, Conclusion: conclusion(verdict), Title: cut(headline, maxTitle),
			Summary: summary(in, headline, maxSummary), Batches: batches(in),
		}
	}
	if in.Want.CommitStatus {
		p.Status = &Status{State: state(verdict), Description: cut(headline, maxDescription), Context: in.Want.Name}
	}
	if in.Want.Comment != Never && in.Place.Pull > 0 {
		marker := marker(in)
		p.Comment = &Comment{
			Marker: marker, Body: marker + "\n" + summary(in, headline, maxComment-len(marker)-1),
			OnlyUpdate: in.Want.Comment == OnFailure && verdict == steps.VerdictPass,
		}
	}
	return p
}

// conclusion is the word of the API for a verdict. A run that was refused or has
// no verdict is a failure and not action_required: GitHub uses that word where a
// maintainer has to press a button, and here there is none; what is to be done
// is in the summary. neutral and skipped would let a required check pass.
func conclusion(verdict string) string {
	switch verdict {
	case steps.VerdictPass:
		return "success"
	case steps.VerdictCancelled:
		return "cancelled"
	}
	return "failure"
}

// state is the same for a commit status, which has a word for no verdict.
func state(verdict string) string {
	switch verdict {
	case steps.VerdictPass:
		return "success"
	case steps.VerdictFail:
		return "failure"
	}
	return "error"
}

// summary is the summary of the job in at most budget bytes, with a link to where
// the whole is.
func summary(in Input, headline string, budget int) string {
	more := ""
	if in.Place.RunURL != "" {
		more = fmt.Sprintf("\n[The run](%s) has the log and the whole summary.\n", in.Place.RunURL)
	}
	var b strings.Builder
	err := in.write(&b, budget-len(more))
	text := in.Mask(b.String()) + more
	if err != nil || len(text) > budget {
		// Cut somewhere it could show half a tag as text, or a row as a sentence.
		return cut("    "+headline, budget-len(more)) + "\n" + more
	}
	return text
}

// marker is a comment of HTML that names this gate: the workflow's file, the job
// and the name. Only a sum of them: a name of a job could end the comment.
func marker(in Input) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{in.Place.Workflow, in.Place.Job, in.Want.Name}, "\x00")))
	return "<!-- untrusted-steps " + hex.EncodeToString(sum[:8]) + " -->"
}
