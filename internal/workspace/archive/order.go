package archive

import (
	"slices"
	"strings"
)

// deepestFirst orders folders so that none comes before one that lies in it.
func deepestFirst(folders map[string]uint32) []string {
	out := make([]string, 0, len(folders))
	for p := range folders {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(b, a) })
	return out
}
