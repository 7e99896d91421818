package gha

import (
	"fmt"
	"os"
	"syscall"
)

// maxSummary is where GitHub throws a step's whole summary away.
const maxSummary = 1 << 20

// WriteSummary appends Markdown to the summary of the job. The text must be
// inert already. It refuses to make the file so large that nothing of it would
// be shown.
func (e Env) WriteSummary(markdown string) error {
	const variable = "GITHUB_STEP_SUMMARY"
	path := e.Getenv(variable)
	if err := regularFile(variable, path); err != nil {
		return fmt.Errorf("write the job summary: %w", err)
	}
	// The check above gives the better words; these flags are the ones that hold.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return fmt.Errorf("write the job summary: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("write the job summary: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("write the job summary: %s is not a regular file", path)
	}
	if total := info.Size() + int64(len(markdown)) + 1; total > maxSummary {
		return fmt.Errorf("write the job summary: it would be %d bytes long, and GitHub shows none of a summary over %d", total, maxSummary)
	}
	if _, err := f.WriteString(markdown + "\n"); err != nil {
		return fmt.Errorf("write the job summary: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write the job summary: %w", err)
	}
	return nil
}
