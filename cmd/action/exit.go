package main

import (
	"runtime/debug"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// The exit statuses. They are chosen here and nowhere else.
const (
	exitPass      = 0
	exitFail      = 1
	exitUsage     = 2
	exitRefused   = 3
	exitNoVerdict = 4
	exitCancelled = 130
)

// exitOf is the exit status of a verdict. A word that is none of ours is no
// verdict, never a pass.
func exitOf(verdict string) int {
	switch verdict {
	case steps.VerdictPass:
		return exitPass
	case steps.VerdictFail:
		return exitFail
	case steps.VerdictRefused:
		return exitRefused
	case steps.VerdictCancelled:
		return exitCancelled
	}
	return exitNoVerdict
}

const toolName = "untrusted-steps"

// buildVersion is set by release builds (-ldflags -X main.buildVersion=v1.2.3).
var buildVersion string

// toolVersion is the release, else the commit that was built, else "dev".
func toolVersion() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			rev = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "" {
		return "dev"
	}
	return "dev-" + rev + dirty
}
