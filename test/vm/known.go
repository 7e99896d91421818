package main

import (
	"regexp"
	"strings"
)

// unmeasured are facts that an emulated processor cannot show, and why. All of
// them are measured on real ones, by `go test ./...`.
var unmeasured = []struct{ group, fact, why string }{
	{"greed", "C45 ten thousand idle connections of a box leave another box its network",
		"the probe looks for each answer for 1 ms, and misses a dozen of nine thousand here"},
}

// skips is the list for the test program.
func skips(as string) string {
	var all []string
	for _, u := range unmeasured {
		fact := regexp.QuoteMeta(strings.ReplaceAll(u.fact, " ", "_"))
		all = append(all, "^TestConformance$/"+as+"/^"+u.group+"$/^"+fact+"$")
	}
	return strings.Join(all, "|")
}
