package html

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// data is what app.js shows. Every text in it is inert already; the rest are
// numbers and words of ours.
type data struct {
	Steps    []string          `json:"steps"` // ids, by which the others name a step
	Requests []json.RawMessage `json:"requests"`
	Files    []json.RawMessage `json:"files"`
	// Streams are the logs and diffs of a step, by its number.
	Streams map[int][]json.RawMessage `json:"streams"`
}

// left are sentences about what had no room, or nothing.
type left struct{ requests, files, streams string }

type request struct {
	Step     int    `json:"step"`
	Verdict  string `json:"verdict"`
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
	Why      string `json:"why"`
	Count    uint64 `json:"count"`
	In       uint64 `json:"in"`
	Out      uint64 `json:"out"`
}

type file struct {
	Step   int    `json:"step"`
	Change string `json:"change"`
	Type   string `json:"type"`
	Path   string `json:"path"`
	More   string `json:"more,omitempty"` // where a link leads, where it came from
	Size   int64  `json:"size"`
	Mode   string `json:"mode"`
	// Became is what came of the change: committed, discarded, kept.
	Became string `json:"became"`
	// Mark is why a reader should look at it before others.
	Mark string `json:"mark,omitempty"`
}

// data is the whole of it as JSON.
func (p *page) data() ([]byte, error) {
	d := data{Steps: []string{}, Requests: []json.RawMessage{}, Files: []json.RawMessage{}, Streams: map[int][]json.RawMessage{}}
	ids, requests, files := room(idsRoom), room(requestsRoom), room(filesRoom)
	for i := range p.r.Steps {
		id := show(p.r.Steps[i].ID, maxName)
		if !ids.take(encoded(id) + len(`"",`)) {
			break // app.js shows the number of a step that has no name
		}
		d.Steps = append(d.Steps, id)
	}
	if err := p.allRequests(&d, &requests); err != nil {
		return nil, err
	}
	if err := p.allFiles(&d, &files); err != nil {
		return nil, err
	}
	if err := p.allStreams(&d); err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

// verdicts of requests, in the order in which they are shown.
var verdicts = []string{"denied", "failed", "allowed"}

// allRequests has what was refused first, of all steps.
func (p *page) allRequests(d *data, have *room) error {
	missing := map[string]int{}
	full := false // the rest is only counted: there may be a million
	for _, verdict := range verdicts {
		for i := range p.r.Steps {
			for k := range p.r.Steps[i].Egress {
				e := &p.r.Steps[i].Egress[k]
				if known(e.Verdict, verdicts, "failed") != verdict {
					continue
				}
				if full {
					missing[verdict]++
					continue
				}
				one := request{Step: i, Verdict: verdict, Host: show(e.Host, maxPath), Port: e.Port,
					Protocol: show(e.Protocol, maxName), Why: show(p.why(e), maxText), Count: e.Count, In: e.BytesIn, Out: e.BytesOut}
				text, err := json.Marshal(one)
				if err != nil {
					return err
				}
				if full = !have.take(len(text) + 1); full {
					missing[verdict]++
					continue
				}
				d.Requests, p.requests = append(d.Requests, text), append(p.requests, one)
			}
		}
	}
	if n := missing["denied"] + missing["failed"] + missing["allowed"]; n > 0 {
		p.left.requests = fmt.Sprintf("%d more had no room on this page (%d denied, %d failed, %d allowed); report.json has them.",
			n, missing["denied"], missing["failed"], missing["allowed"])
	}
	return nil
}

// why is the rule or the reason behind an outcome.
func (p *page) why(e *steps.EgressRecord) string {
	if e.Verdict == "allowed" {
		return e.Rule
	}
	out := clip(e.Reason, maxName)
	if text := p.o.Meaning(e.Reason); text != "" {
		out += ": " + text
	}
	if e.Expected {
		out += " (expected)"
	}
	return out
}

// allFiles has what a reader should see first before the rest, of all steps, in the
// order in which the steps' own lists and the top of the page have it.
func (p *page) allFiles(d *data, have *room) error {
	var all []place
	missing := 0
	for i := range p.r.Steps {
		s := &p.r.Steps[i]
		first := make(map[string]int, len(s.First))
		for n, path := range s.First {
			first[path] = n
		}
		for k := range s.Files {
			all = append(all, p.ranked(i, k, first))
		}
		missing += max(0, s.FilesTotal-len(s.Files)) // what the result itself only counts
	}
	slices.SortStableFunc(all, place.compare)
	for n, at := range all {
		s := &p.r.Steps[at.step]
		f := &s.Files[at.file]
		one := file{Step: at.step, Change: show(f.Change, maxName), Type: show(f.Type, maxName), Path: show(f.Path, maxPath),
			More: more(f), Size: f.Size, Mode: show(f.Mode, maxName), Became: known(s.Workspace, became, ""), Mark: at.mark}
		text, err := json.Marshal(one)
		if err != nil {
			return err
		}
		if !have.take(len(text) + 1) {
			missing += len(all) - n
			break
		}
		d.Files, p.files = append(d.Files, text), append(p.files, one)
	}
	if missing > 0 {
		p.left.files = count(missing, "more is", "more are") + " not on this page; report.json and changes.patch have what was recorded of them."
	}
	return nil
}

// became are the words for what came of a step's changes.
var became = []string{"committed", "discarded", "kept"}

// place is where a changed file stands in the result, and on the page.
type place struct {
	step, file int
	mark       string
	rank       rank
	first      int // place in the step's list of what to look at first
}

// rank is how early files are told, worst first.
type rank int

const (
	firstKept    rank = iota // in a step's list, and in the workspace
	firstDropped             // in a step's list
	named                    // protected or armed, and in no list
	gone
	plain
)

func (a place) compare(b place) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.step, b.step), cmp.Compare(a.first, b.first))
}

// ranked says where a file stands, and why it comes before others, or nothing.
func (p *page) ranked(step, file int, first map[string]int) place {
	s := &p.r.Steps[step]
	f := &s.Files[file]
	out := place{step: step, file: file, mark: p.o.Look(f), rank: plain}
	n, listed := first[exact(f)]
	switch {
	case listed && (s.Workspace == "committed" || s.Workspace == "kept"):
		out.rank, out.first = firstKept, n
	case listed:
		out.rank, out.first = firstDropped, n
	case out.mark != "":
		out.rank = named
	case f.Change == "deleted" || f.Change == "retyped":
		out.rank = gone
	}
	if listed && out.mark == "" {
		out.mark = "look first"
	}
	return out
}

// exact is the path as a step wrote it, which is how First has it.
func exact(f *steps.FileChange) string {
	if b, err := base64.StdEncoding.DecodeString(f.PathBytes); err == nil && len(b) > 0 {
		return string(b)
	}
	return f.Path
}

func more(f *steps.FileChange) string {
	out := ""
	if f.Target != "" {
		out = " -> " + show(f.Target, maxPath)
	}
	if f.From != "" {
		out += " has the content of " + show(f.From, maxPath)
	}
	if f.PathBytes != "" {
		out += " (the name is not UTF-8; its bytes are in report.json)"
	}
	if f.Unreadable {
		out += " (could not be read)"
	}
	return out
}

// known is a word if it is one of ours.
func known(word string, words []string, otherwise string) string {
	if slices.Contains(words, word) {
		return word
	}
	return otherwise
}

// encoded is how many bytes a text has in the data, without its quotes.
func encoded(text string) int {
	b, err := json.Marshal(text)
	if err != nil { // a string always has a form
		return MaxBytes
	}
	return len(b) - len(`""`)
}
