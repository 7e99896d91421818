package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// becameWords are what became of a step's writes, and what that means.
var becameWords = map[string]string{
	"committed": "they are in the workspace",
	"kept":      "they are in the workspace, although the step failed",
	"discarded": "none of them is in the workspace",
	"unchanged": "the workspace is as it was",
}

// became says what became of a step's writes.
func became(workspace string) string {
	if means, ok := becameWords[workspace]; ok {
		return workspace + ": " + means
	}
	return "what became of them is not known"
}

// wrote says whether a step is known to have changed something, or to have had
// its writes kept or dropped.
func wrote(s *steps.StepResult) bool {
	return len(s.Files)+s.FilesTotal > 0 || s.Workspace == "committed" || s.Workspace == "kept" || s.Workspace == "discarded"
}

// heldBy are the words of what holds diskMb.
var heldBy = map[string]string{
	"loop":    "held by a file system of its own (loop)",
	"tmpfs":   "held by a file system in the step's memory (tmpfs)",
	"sampler": "watched from outside (sampler)",
}

// disk is what a step had written against what it might, where it wrote.
func disk(s *steps.StepResult) string {
	if !onDisk(s) {
		return "-"
	}
	// A file of a few bytes can lie in its inode.
	return fmt.Sprintf("%d of %d MiB", (max(s.Usage.DiskBytes, 1)+(1<<20)-1)>>20, s.Limits.DiskMb)
}

// onDisk says whether something that a step wrote was there at its end.
func onDisk(s *steps.StepResult) bool { return s.Usage.DiskBytes > 0 || s.Usage.DiskInodes > 0 }

// anyDisk says whether some step wrote.
func anyDisk(r *steps.Result) bool {
	return slices.ContainsFunc(r.Steps, func(s steps.StepResult) bool { return onDisk(&s) })
}

// writes says how a step was kept from the workspace, and how much it wrote.
func writes(s *steps.StepResult) string {
	var out []string
	if onDisk(s) {
		text := "Written: " + disk(s)
		if n := s.Usage.DiskInodes; n > 0 {
			text += fmt.Sprintf(" (diskMb) in %d files and folders", n)
		}
		if by, ok := heldBy[s.Limits.DiskBy]; ok {
			text += ", " + by
		} else {
			text += ", and what held it is not known"
		}
		out = append(out, text+".")
	}
	if s.WorkspaceBy == "copy" {
		out = append(out, "The step worked on a copy of the workspace, since no overlay could be mounted over it.")
	}
	if p := s.Patch; p != nil {
		text := fmt.Sprintf("As a patch: %s, with %s.", inline(p.Path), count(p.Files, "file", "files"))
		if p.Left > 0 {
			text += fmt.Sprintf(" It leaves out %s, named at its top.", count(p.Left, "thing", "things"))
		}
		if p.Masked > 0 {
			text += fmt.Sprintf(" Secrets are masked in %s of it, which may not apply%s.", count(p.Masked, "file", "files"), maskedFiles(s))
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return ""
	}
	return strings.Join(out, "\n") + "\n\n"
}

// maskedFiles names the files whose lines hold a secret that only the patch hides.
// Where they are in the workspace, whoever gets that gets the secret.
func maskedFiles(s *steps.StepResult) string {
	var names []string
	for _, f := range s.Patch.MaskedFiles[:min(len(s.Patch.MaskedFiles), maxNamed)] {
		names = append(names, inline(f))
	}
	out := ""
	if len(names) > 0 {
		out = ": " + strings.Join(names, ", ")
		if n := s.Patch.Masked - len(names); n > 0 {
			out += fmt.Sprintf(" and %d more", n)
		}
	}
	if s.Workspace == "committed" || s.Workspace == "kept" {
		out += "; in the workspace nothing is masked"
	}
	return out
}
