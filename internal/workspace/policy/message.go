package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

const (
	// maxEach is how many violations of a type are told one by one. A step that
	// deletes .git would else fill the report with one sentence.
	maxEach = 20
	// maxLine is how long a line to write may be, with the globs that are there.
	maxLine = 300
	// maxNamed is how many paths a note names.
	maxNamed = 5
)

// tally collects violations.
type tally struct {
	found []Violation
	count map[string]int
}

// add notes one; message is only asked for if it will be told.
func (t *tally) add(kind string, message func() string) {
	if t.count == nil {
		t.count = map[string]int{}
	}
	if t.count[kind]++; t.count[kind] <= maxEach {
		t.found = append(t.found, Violation{kind, message()})
	}
}

func (t *tally) list() []Violation {
	for _, kind := range []string{ProtectedPath, ChangeNotAllowed, LinkEscape, SetID} {
		if n := t.count[kind] - maxEach; n > 0 {
			t.found = append(t.found, Violation{kind, "and " + some(n, "more path") + " for the same reason"})
		}
	}
	return t.found
}

// did is the path and what happened to it. Quoted, no name can pass for words
// of ours.
func did(it item) string {
	verb := "was " + it.Change.Change
	switch it.Change.Change {
	case workspace.Mode:
		verb = "had its mode changed"
	case workspace.Retyped:
		verb = "was replaced by a " + it.Type
	}
	return strconv.Quote(shortened(it.raw)) + " " + verb
}

func refusedMessage(it item, o *proposal) string {
	return did(it) + ", and no glob of allowChanges permits that" + o.advice()
}

func guardedMessage(it item, o *proposal) string {
	what := "git obeys it"
	switch name := it.names[it.pinned]; {
	case looksLike(name, ".github"):
		what = "CI obeys it"
	case looksLike(name, "CODEOWNERS"):
		what = "it says who has to review"
	}
	if name := it.names[it.pinned]; !slices.Contains(protectedNames, name) {
		what += " on a machine that takes " + strconv.Quote(shortened(name)) + " for the same name"
	}
	return did(it) + "; " + what + ", so a glob permits it only if it names it" + o.advice()
}

func unknownMessage(it item) string {
	return fmt.Sprintf("%s is listed as %s and %s, which is no change we know how to judge",
		strconv.Quote(shortened(it.raw)), strconv.Quote(shortened(it.Change.Change)), strconv.Quote(shortened(it.Type)))
}

func linkMessage(it item, target, why string) string {
	return fmt.Sprintf("%s is a link to %s: %s", strconv.Quote(shortened(it.raw)), strconv.Quote(shortened(target)), why)
}

func setIDMessage(it item, why string) string {
	return fmt.Sprintf("%s has mode %s: %s; take it away before the step ends: chmod ug-s", strconv.Quote(shortened(it.raw)), it.Mode, why)
}

// notes are what is no violation and has to be known all the same.
func notes(items []item) []string {
	var list []string
	say := func(what string, which func(item) bool, after string) {
		n := 0
		var named []string
		for _, it := range items {
			if which(it) {
				if n++; n <= maxNamed {
					named = append(named, strconv.Quote(shortened(it.raw)))
				}
			}
		}
		if n == 0 {
			return
		}
		more := ""
		if n > maxNamed {
			more = fmt.Sprintf(" and %d more", n-maxNamed)
		}
		list = append(list, fmt.Sprintf("%s: %s%s%s", what, strings.Join(named, ", "), more, after))
	}
	say("what git refreshes by itself is not committed", func(it item) bool { return it.fate == dropped }, "")
	if slices.ContainsFunc(items, func(it item) bool { return it.fate == dropped && slices.Contains(it.names, "objects") }) {
		say("refs of the repository are committed, and objects they may need are not", func(it item) bool {
			return it.fate == permitted && len(it.names) > 1 && it.names[0] == ".git" && slices.Contains(it.names, "refs")
		}, `; name ".git/objects/**" in allowChanges too`)
	}
	for _, it := range items {
		if it.fate == closing {
			list = append(list, fmt.Sprintf("the workspace keeps the mode it had: %s would keep its owner, and with that every later step, from reading, writing or entering it", it.Mode))
		}
	}
	say("FIFOs, sockets and devices are not committed", func(it item) bool { return it.fate == special }, "")
	say("a repository inside the workspace is new", func(it item) bool {
		return it.fate == permitted && it.made >= 0 && it.made == len(it.names)-1
	}, "; programs run in its folder obey it")
	say("not readable, so not all that happened there is known", func(it item) bool { return it.Unreadable }, "")
	return list
}

func some(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
