package report

import (
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Headline says in one inert sentence what came of a run. It is plain text:
// where Markdown is read, it has to stand as code.
func Headline(r *steps.Result) string { return gha.Inert(clip(verdictLine(r), maxSentence)) }
