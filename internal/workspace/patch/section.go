package patch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
)

// Types of a path, as workspace.Change has them.
const (
	typeFile = "file"
	typeLink = "symlink"
	typeDir  = "dir"
)

// maxMaskedPaths is how many files with masked lines are named in the result.
const maxMaskedPaths = 20

// lost is why a change is not carried. It ends one file, not the patch.
type lost string

func (l lost) Error() string { return string(l) }

// change writes what happened to one path, or notes why it cannot.
func (p *writer) change(ctx context.Context, c workspace.Change) error {
	path := c.RawPath()
	if path == "." {
		p.lose(path, "the mode of the workspace itself")
		return nil
	}
	// Nothing is asked about a path that leads elsewhere.
	if why := refusal(path, c.Type == typeLink); why != "" {
		p.sum.Refused = append(p.sum.Refused, Note{p.hide(path), why})
		return nil
	}
	before, err := p.src.Before(path)
	if err != nil {
		return p.lostOr(path, err)
	}
	after, err := p.src.After(path)
	if err != nil {
		return p.lostOr(path, err)
	}
	if why := refusal(path, before.Type == typeLink || after.Type == typeLink); why != "" {
		p.sum.Refused = append(p.sum.Refused, Note{p.hide(path), why})
		return nil
	}
	if c.Unreadable && c.Type == typeDir {
		p.lose(path, "a folder that cannot be read")
		return nil
	}
	p.notCarried(path, before, after)
	if !carried(before) && !carried(after) {
		return nil
	}
	if c.Unreadable {
		p.lose(path, "cannot be read")
		return nil
	}
	if p.hide(path) != path {
		p.lose(path, "its name holds the value of a secret")
		return nil
	}
	var section bytes.Buffer
	masked, err := p.section(ctx, &section, path, before, after)
	if err != nil {
		return p.lostOr(path, err)
	}
	if section.Len() == 0 {
		return nil
	}
	if p.body.size+int64(section.Len()) > p.o.MaxTotal {
		// What else is small enough is not looked for: it would cost the
		// reading of everything.
		p.full = true
		p.lose(path, "the patch would be longer than %d bytes", p.o.MaxTotal)
		return nil
	}
	if err := p.body.write(section.Bytes()); err != nil {
		return err
	}
	p.sum.Files++
	if masked {
		p.sum.Masked++
		if len(p.sum.MaskedPaths) < maxMaskedPaths {
			p.sum.MaskedPaths = append(p.sum.MaskedPaths, path)
		}
		p.masked = append(p.masked, Note{Path: path})
	}
	p.modes(path, before, after)
	if carried(after) {
		mark(p.made, path)
	} else {
		mark(p.gone, path)
	}
	return nil
}

// lostOr notes what is no reason to give up the patch, and returns the rest.
func (p *writer) lostOr(path string, err error) error {
	var l lost
	switch {
	case errors.As(err, &l):
		p.lose(path, "%s", string(l))
	case errors.Is(err, fs.ErrPermission):
		p.lose(path, "cannot be read")
	default:
		return err
	}
	return nil
}

// carried says whether git knows the type.
func carried(f Found) bool { return f.Type == typeFile || f.Type == typeLink }

// notCarried notes what a change does to types that git does not know.
func (p *writer) notCarried(path string, before, after Found) {
	switch before.Type {
	case "", typeFile, typeLink:
	case typeDir:
		if after.Type != typeDir {
			p.folders = append(p.folders, folder{path, false})
		}
	default:
		if before.Type != after.Type {
			p.lose(path, "the removal of a %s", before.Type)
		}
	}
	switch after.Type {
	case "", typeFile, typeLink:
	case typeDir:
		if before.Type != typeDir {
			p.folders = append(p.folders, folder{path, true})
			if after.Mode != 0o755 {
				p.lose(path, "mode %04o of a folder", after.Mode)
			}
		} else if before.Mode != after.Mode {
			p.lose(path, "mode %04o of a folder", after.Mode)
		}
	default:
		p.lose(path, "a %s", after.Type)
	}
	if before.Type == typeFile && after.Type == typeFile && gitMode(before) == gitMode(after) && before.Mode != after.Mode {
		p.lose(path, "mode %04o, which git takes for %04o", after.Mode, before.Mode)
	}
}

// modes notes the permission bits of a file that was written, where git has
// other ones. Those that were there before are not the step's.
func (p *writer) modes(path string, before, after Found) {
	if after.Type != typeFile || before.Type == typeFile && (before.Mode == after.Mode || gitMode(before) == gitMode(after)) {
		return
	}
	git := uint32(0o644)
	if gitMode(after) == "100755" {
		git = 0o755
	}
	if after.Mode != git {
		p.lose(path, "mode %04o becomes %04o", after.Mode, git)
	}
}

func gitMode(f Found) string {
	switch {
	case f.Type == typeLink:
		return "120000"
	case f.Mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// section writes the diffs of one path and says whether lines were masked.
func (p *writer) section(ctx context.Context, b *bytes.Buffer, path string, before, after Found) (masked bool, err error) {
	// Both are read first: half a change of type would be a deletion.
	old, err := p.content(ctx, path, before, p.src.OpenBefore)
	if err != nil {
		return false, err
	}
	now, err := p.content(ctx, path, after, p.src.OpenAfter)
	if err != nil {
		return false, err
	}
	s := side{path: path, b: b, mask: p.o.Mask, lines: &p.lines}
	switch {
	case carried(before) && carried(after) && before.Type == after.Type:
		err = s.modify(before, after, old, now)
	case carried(before) && carried(after):
		if err = s.remove(before, old); err == nil {
			err = s.create(after, now)
		}
	case carried(before):
		err = s.remove(before, old)
	default:
		err = s.create(after, now)
	}
	return s.masked, err
}

// readChunk is how much is read between two looks at the context.
const readChunk = 1 << 20

// content reads a file or a link's target.
func (p *writer) content(ctx context.Context, path string, f Found, open func(string) (*os.File, error)) ([]byte, error) {
	switch {
	case f.Type == typeLink:
		return []byte(f.Target), nil
	case f.Type != typeFile:
		return nil, nil
	case f.Size > p.o.MaxFile:
		return nil, lost(fmt.Sprintf("a file of more than %d bytes", p.o.MaxFile))
	case p.full:
		return nil, lost(fmt.Sprintf("the patch would be longer than %d bytes", p.o.MaxTotal))
	case p.read+f.Size > readFactor*p.o.MaxTotal:
		return nil, lost(fmt.Sprintf("more than %d bytes were read for this patch", readFactor*p.o.MaxTotal))
	}
	p.read += f.Size
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b := make([]byte, f.Size+1) // one more, to see a file that grew
	n := 0
	for n < len(b) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		k, err := file.Read(b[n:min(len(b), n+readChunk)])
		n += k
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if int64(n) != f.Size {
		return nil, lost("changed while it was read")
	}
	return b[:n], nil
}

// side writes diffs of one path.
type side struct {
	path   string
	b      *bytes.Buffer
	mask   func([]byte) []byte
	masked bool
	lines  *int // compared so far, of the whole patch
}

func (s *side) header(lines ...string) {
	fmt.Fprintf(s.b, "diff --git %s %s\n", Quoted("a/", s.path), Quoted("b/", s.path))
	for _, l := range lines {
		s.b.WriteString(l + "\n")
	}
}

func (s *side) create(f Found, content []byte) error {
	s.header("new file mode " + gitMode(f))
	return s.content(nil, content, noBlob, blob(content), "/dev/null", Quoted("b/", s.path), "")
}

func (s *side) remove(f Found, content []byte) error {
	s.header("deleted file mode " + gitMode(f))
	return s.content(content, nil, blob(content), noBlob, Quoted("a/", s.path), "/dev/null", "")
}

func (s *side) modify(before, after Found, old, now []byte) error {
	same, mode := bytes.Equal(old, now), gitMode(after)
	if same && gitMode(before) == mode {
		return nil
	}
	if gitMode(before) != mode {
		s.header("old mode "+gitMode(before), "new mode "+mode)
		mode = ""
	} else {
		s.header()
		mode = " " + mode
	}
	if same {
		return nil
	}
	return s.content(old, now, blob(old), blob(now), Quoted("a/", s.path), Quoted("b/", s.path), mode)
}

// content writes what is between two contents. A file in which a secret is has
// no index line: the name of a content tells whoever guesses it.
func (s *side) content(old, now []byte, oldBlob, newBlob, from, to, mode string) error {
	secret := s.finds(old) || s.finds(now)
	if !secret {
		fmt.Fprintf(s.b, "index %s..%s%s\n", oldBlob, newBlob, mode)
	}
	compared := lines(old, now)
	if *s.lines+compared > maxAllLines || !inLines(old) || !inLines(now) {
		if secret {
			return lost("its content holds the value of a secret")
		}
		return literal(s.b, now)
	}
	*s.lines += compared
	text := hunks(old, now)
	if len(text) == 0 {
		return nil // an empty file: its header says all
	}
	if secret {
		var found bool
		if text, found = maskLines(text, s.mask); found {
			s.masked = true
		}
	}
	fmt.Fprintf(s.b, "--- %s\n+++ %s\n", ended(from), ended(to))
	s.b.Write(text)
	return nil
}

func (s *side) finds(content []byte) bool {
	return s.mask != nil && len(content) > 0 && !bytes.Equal(s.mask(bytes.Clone(content)), content)
}

// ended marks where a name with spaces ends, as git does: these lines may have a
// time behind it.
func ended(name string) string {
	if strings.Contains(name, " ") && name[0] != '"' {
		return name + "\t"
	}
	return name
}
