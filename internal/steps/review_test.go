package steps

import (
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

func TestFate(t *testing.T) {
	all := wrote{known: true, changes: 1, commit: []workspace.Change{{Path: "a"}}}
	dropped := wrote{known: true, changes: 1}
	fault := &box.Fault{Type: box.OOM}
	broke := []Violation{{Type: "set_id"}}
	for _, tc := range []struct {
		sentence  string
		status    string
		fault     *box.Fault
		onFailure string
		broke     []Violation
		w         wrote
		want      string
	}{
		{"no change leaves the workspace unchanged", StatusPassed, nil, "discard", nil, wrote{known: true}, "unchanged"},
		{"what a step that passed changed is committed", StatusPassed, nil, "discard", nil, all, "committed"},
		{"what is all dropped or special changes nothing", StatusPassed, nil, "discard", nil, dropped, "unchanged"},
		{"the writes of an expected fault are dropped, although the step passed", StatusPassed, fault, "discard", nil, all, "discarded"},
		{"and kept by no onFailure, because it did not fail", StatusPassed, fault, "keep", nil, all, "discarded"},
		{"what a failed step changed is dropped", StatusFailed, nil, "discard", nil, all, "discarded"},
		{"unless onFailure keeps it", StatusFailed, nil, "keep", nil, all, "kept"},
		{"after a fault too", StatusFailed, fault, "keep", nil, all, "kept"},
		{"with a violation nothing is committed", StatusFailed, nil, "keep", broke, all, "discarded"},
		{"a step without a verdict leaves nothing", StatusError, nil, "keep", nil, all, "discarded"},
		{"nor does a cancelled one", StatusCancelled, nil, "keep", nil, all, "discarded"},
		{"what is not known is not committed", StatusPassed, nil, "keep", nil, wrote{}, "discarded"},
		{"an onFailure that nobody set keeps nothing", StatusFailed, nil, "", nil, all, "discarded"},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got := fate(PlanStep{OnFailure: tc.onFailure}, &StepResult{Status: tc.status, Fault: tc.fault, Violations: tc.broke}, tc.w)
			if got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestCollide(t *testing.T) {
	file := func(path, sum string) workspace.Change {
		return workspace.Change{Path: path, Change: workspace.Modified, Type: "file", Mode: "0644", SHA256: sum}
	}
	dir := func(path string) workspace.Change {
		return workspace.Change{Path: path, Change: workspace.Created, Type: "dir", Mode: "0755"}
	}
	link := func(path, to string) workspace.Change {
		return workspace.Change{Path: path, Change: workspace.Created, Type: "symlink", Mode: "0777", Target: to}
	}
	gone := func(path, what string) workspace.Change {
		return workspace.Change{Path: path, Change: workspace.Deleted, Type: what}
	}
	type list = []workspace.Change
	for _, tc := range []struct {
		sentence string
		a, b     list
		want     string
	}{
		{"different paths", list{file("a", "1")}, list{file("b", "1")}, ""},
		{"one file with two contents", list{file("a", "1")}, list{file("a", "2")}, "a"},
		{"one file with one content", list{file("a", "1")}, list{file("a", "1")}, ""},
		{"one content that is not known", list{file("a", "")}, list{file("a", "")}, "a"},
		{"one folder that both made", list{dir("d"), file("d/a", "1")}, list{dir("d"), file("d/b", "1")}, ""},
		{"two links to different places", list{link("l", "x")}, list{link("l", "y")}, "l"},
		{"both removed it", list{gone("a", "file")}, list{gone("a", "file")}, ""},
		{"one removed what the other changed", list{gone("a", "file")}, list{file("a", "1")}, "a"},
		{"one removed the folder that the other wrote to", list{gone("d", "dir")}, list{file("d/a", "1")}, "d/a"},
		{"and the other way round", list{file("d/a", "1")}, list{gone("d", "dir")}, "d/a"},
		{"one made a file where the other has a folder", list{file("d", "1")}, list{file("d/x/a", "1")}, "d/x/a"},
		{"one made a link where the other writes below", list{link("d", "/etc")}, list{file("d/passwd", "1")}, "d/passwd"},
		{"a name that another one begins with is another name", list{gone("d", "dir")}, list{file("dd/a", "1")}, ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := collide(tc.a, tc.b); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
