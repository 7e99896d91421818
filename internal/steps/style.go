package steps

import "github.com/untrusted-steps/untrusted-steps/internal/gha"

// Style is how the status of a step looks. A word that is none of ours, which a
// report from elsewhere may have, is no verdict.
func (s *StepResult) Style() gha.Style {
	switch s.Status {
	case StatusPassed:
		if s.Flaky {
			return gha.Doubt
		}
		return gha.Good
	case StatusFailed:
		if s.Excused {
			return gha.Doubt
		}
		return gha.Bad
	case StatusSkipped, StatusCancelled:
		return gha.Doubt
	}
	return gha.Alarm
}

// VerdictStyle is how the verdict of a run looks.
func VerdictStyle(verdict string) gha.Style {
	switch verdict {
	case VerdictPass:
		return gha.Good
	case VerdictFail:
		return gha.Bad
	case VerdictCancelled:
		return gha.Doubt
	}
	return gha.Alarm
}
