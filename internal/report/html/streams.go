package html

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// maxTail is how much of the end of one log is on the page, and maxLines how
	// many lines of it: each becomes a node in a browser.
	maxTail  = 256 << 10
	maxLines = 5000
	// maxHead is how much of the start of one patch is.
	maxHead = 256 << 10
	// frame is what a stream usually needs beside its text.
	frame = 400
)

// stream is one log or diff of a step.
type stream struct {
	Name string `json:"name"`
	Note string `json:"note"` // what of it is not here
	Text string `json:"text"`
}

// source is a file a stream is made of.
type source struct {
	step  int
	name  string
	path  string
	size  int64 // as the report has it: a guess
	patch *steps.Patch
	cut   bool // the file itself is not all that the step wrote
}

// allStreams shares the room: among the steps that did not pass first, and what
// they leave among the others.
func (p *page) allStreams(d *data) error {
	if p.o.Files == nil {
		p.left.streams = "This page was written from report.json alone: logs and diffs are in the report folder, under steps/."
		return nil
	}
	bad, good := p.failing()
	logs, diffs := room(logsRoom), room(diffsRoom)
	missing := 0
	for _, list := range [][]int{bad, good} {
		l, c := p.sources(list)
		n, err := p.share(d, l, &logs)
		if err != nil {
			return err
		}
		k, err := p.share(d, c, &diffs)
		if err != nil {
			return err
		}
		missing += n + k
	}
	// Last tries are what a step is judged by, so earlier ones have what is left.
	n, err := p.share(d, p.earlier(slices.Concat(bad, good)), &logs)
	if err != nil {
		return err
	}
	missing += n
	if missing > 0 {
		p.left.streams = count(missing, "log or diff", "logs and diffs") + " had no room on this page; they are in the report folder, under steps/."
	}
	return nil
}

// sources lists the logs and the patches of some steps.
func (p *page) sources(list []int) (logs, patches []source) {
	for _, i := range list {
		s := &p.r.Steps[i]
		logs = append(logs, logsOf(i, "", s.Stdout, s.Stderr)...)
		if s.Patch != nil {
			patches = append(patches, source{step: i, name: "diff", path: s.Patch.Path, size: s.Patch.Bytes, patch: s.Patch})
		}
	}
	return logs, patches
}

// earlier lists the logs of earlier tries. Their patches are files in the folder.
func (p *page) earlier(list []int) (logs []source) {
	for _, i := range list {
		for n, t := range p.r.Steps[i].Tries {
			logs = append(logs, logsOf(i, fmt.Sprintf("try %d ", n+1), t.Stdout, t.Stderr)...)
		}
	}
	return logs
}

// logsOf are the logs that have something in them.
func logsOf(step int, of string, stdout, stderr steps.Output) (logs []source) {
	for k, out := range []steps.Output{stdout, stderr} {
		if out.Path != "" && out.Bytes > 0 {
			logs = append(logs, source{step: step, name: of + []string{"stdout", "stderr"}[k], path: out.Path, size: out.Bytes, cut: out.Truncated})
		}
	}
	return logs
}

// share gives each source the same, but none more than it needs: what short ones
// leave is for the long ones. It counts those that got nothing.
func (p *page) share(d *data, list []source, have *room) (missing int, err error) {
	part := level(list, int(*have))
	for k, x := range list {
		mine := min(max(part, int(*have)/(len(list)-k)), maxTail+frame, int(*have)) - frame
		if mine <= 0 {
			missing++
			continue
		}
		s := p.log
		if x.patch != nil {
			s = p.diff
		}
		text, err := json.Marshal(s(x, mine))
		if err != nil {
			return 0, err
		}
		// A name that is all signs may need more than its frame.
		if !have.take(len(text) + len(`"999999":[],`)) {
			missing++
			continue
		}
		d.Streams[x.step] = append(d.Streams[x.step], text)
	}
	return missing, nil
}

// level is the most that each source may have so that all of them fit.
func level(list []source, have int) int {
	var wants []int
	for _, x := range list {
		size := int(min(max(x.size, 0), maxTail))
		wants = append(wants, size+size/4+frame) // a guess at what escaping adds
	}
	slices.Sort(wants)
	for i, w := range wants {
		if part := have / (len(wants) - i); w > part {
			return part
		}
		have -= w
	}
	return have
}

// log is the end of a log, in whole lines.
func (p *page) log(x source, part int) stream {
	s := stream{Name: x.name}
	where := show(x.path, maxName)
	text, size, err := p.read(x.path, -int64(part))
	if err != nil {
		s.Note = "It could not be read: " + show(cause(err), maxText)
		return s
	}
	if int64(len(text)) < size { // we may have cut a character
		for i := 0; i < utf8.UTFMax && len(text) > 0 && !utf8.RuneStart(text[0]); i++ {
			text = text[1:]
		}
	}
	lines, kept := lastLines(text, part)
	s.Text = strings.Join(lines, "\n")
	if left := size - int64(kept); left > 0 {
		s.Note = fmt.Sprintf("The first %d of %d bytes are not on this page; %s has them.", left, size, where)
	}
	if x.cut {
		s.Note += " The step wrote more than is kept (maxOutputBytes); the rest is in no file."
	}
	return s
}

// lastLines is as many of the last lines of a text as fit into part bytes of the
// page, and how many bytes of the text they are.
func lastLines(text []byte, part int) (out []string, kept int) {
	end := len(text)
	for end > 0 && len(out) < maxLines {
		stop := end // of the line's own text
		if text[stop-1] == '\n' {
			stop--
		}
		if stop > 0 && text[stop-1] == '\r' {
			stop--
		}
		start := bytes.LastIndexAny(text[:stop], "\r\n") + 1
		line := show(string(text[start:stop]), maxLine)
		if part -= encoded(line) + len(`\n`); part < 0 {
			break
		}
		out = append(out, line)
		kept += end - start
		end = start
	}
	slices.Reverse(out)
	return out, kept
}

// diff is the start of a patch, in whole lines. A line of a patch is cut at "\n"
// and nowhere else: a lone "\r" in one is content.
func (p *page) diff(x source, part int) stream {
	s := stream{Name: x.name}
	text, size, err := p.read(x.path, int64(min(part, maxHead)))
	if err != nil {
		s.Note = "It could not be read: " + show(cause(err), maxText)
		return s
	}
	var out []string
	kept, files := 0, 0
	for kept < len(text) && len(out) < maxLines {
		line, _, whole := bytes.Cut(text[kept:], []byte("\n"))
		n := len(line) + 1
		if !whole {
			if int64(len(text)) < size {
				break // cut by us, not the end
			}
			n--
		}
		shown := show(string(line), maxLine)
		if part -= encoded(shown) + len(`\n`); part < 0 {
			break
		}
		// Lines of content begin with a space, a sign or a backslash.
		if bytes.HasPrefix(line, []byte("diff --git ")) {
			files++
		}
		out = append(out, shown)
		kept += n
	}
	s.Text = strings.Join(out, "\n")
	if left := size - int64(kept); left > 0 {
		s.Note = fmt.Sprintf("The last %d of %d bytes are not on this page, which begins %d of %d files; %s has them.",
			left, size, files, max(files, x.patch.Files), show(x.path, maxName))
	}
	if n := x.patch.Left; n > 0 {
		s.Note += fmt.Sprintf(" %s in a patch; the start of it says what that is.", count(n, "change has no place", "changes have no place"))
	}
	if n := x.patch.Masked; n > 0 {
		s.Note += fmt.Sprintf(" %s masked lines.", count(n, "file has", "files have"))
	}
	return s
}

// read gives the first n bytes of a file, or the last -n, and its size.
//
// The path comes from the report, which may be a file somebody else wrote. So
// only plain files under steps/ are read: the folder may hold other people's
// files, and a pipe would make us wait.
func (p *page) read(path string, n int64) (text []byte, size int64, err error) {
	if !fs.ValidPath(path) || !strings.HasPrefix(path, "steps/") {
		return nil, 0, errors.New("a log or diff is a file under steps/")
	}
	info, err := fs.Lstat(p.o.Files, path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("it is not a plain file")
	}
	f, err := p.o.Files.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	size = info.Size()
	if n < 0 {
		n = min(-n, maxTail, size)
		if s, ok := f.(io.Seeker); ok {
			_, err = s.Seek(size-n, io.SeekStart)
		} else {
			_, err = io.CopyN(io.Discard, f, size-n)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	text, err = io.ReadAll(io.LimitReader(f, n))
	return text, size, err
}

// cause is an error without the path, which a folder may know by another name.
func cause(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return err.Error()
}
