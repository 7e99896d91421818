package gha

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// DefaultBanner is the first line of a log that was given no banner.
const DefaultBanner = "untrusted-steps"

// LogOptions says where a log is read. The zero value is a plain file.
type LogOptions struct {
	// Banner is the first thing in the log. It must not be untrusted: a runner
	// that finds a byte order mark first reads all the rest in another encoding,
	// where our checks see nothing, so the first bytes are always ours.
	Banner string
	// Actions: a GitHub runner reads this log and acts on commands in it.
	Actions bool
	// Terminal: a person watches, so progress is shown. Not used in Actions.
	Terminal bool
	// Colour: styles are shown as colours. Not used in Actions.
	Colour bool
	// Width is the terminal's width now; nil means 80 columns.
	Width func() int
	// Now is the clock for the time shown in progress; nil shows none.
	Now func() time.Time
	// Masker takes secrets out of every line, ours included.
	Masker *Masker
}

// Log is the one writer of the log. Lines of ours and of all steps go through
// it, whole and in the order they came, each of a step's behind a gutter that
// says whose it is:
//
//	step-1 | a line of standard output
//	step-1 ! a line of standard error
//	step-1 |+ the rest of a line that was too long or too slow
//
// In Actions there is a second layer: commands are switched off, with a random
// word to switch them on again, from the first line of a step to the next
// Commands call.
type Log struct {
	opts LogOptions

	mu       sync.Mutex
	w        io.Writer
	err      error
	out      bytes.Buffer // lines not yet written; empty whenever mu is free
	token    string       // switches commands on again; empty while they are on
	sent     string       // what token was when the last bytes went out
	missing  int          // lines that were left out, since nobody reads
	unread   bool         // some were, at some time
	streams  map[*stream]struct{}
	progress progress
}

// NewLog starts a log with its banner.
func NewLog(w io.Writer, opts LogOptions) *Log {
	if strings.TrimSpace(opts.Banner) == "" {
		opts.Banner = DefaultBanner
	}
	opts.Colour = opts.Colour && !opts.Actions
	l := &Log{w: w, opts: opts, streams: map[*stream]struct{}{}}
	if opts.Now != nil {
		l.progress.began = opts.Now()
	}
	l.Say(InertASCII(opts.Banner))
	return l
}

// Say writes lines of our own. They may quote untrusted text: they are made
// inert and masked too, and none of them can be a command.
func (l *Log) Say(text string) {
	var lines []Line
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		lines = append(lines, Words(line))
	}
	l.Show(lines...)
}

// Show writes lines of our own as Say does, in their styles where colour is
// shown. A line that is not printed as it is, because it quotes a secret or what
// is not inert, has no colour.
func (l *Log) Show(lines ...Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range lines {
		l.line("", line)
	}
	l.flush()
}

// Commands switches commands on, if they were off, and hands fn the writer they
// go to. What fn writes is for the runner, as it is; nothing else is written
// meanwhile.
func (l *Log) Commands(fn func(io.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume()
	err := fn(&l.out)
	l.flush()
	if err == nil {
		err = l.err
	}
	return err
}

// Step gives the streams of one step. The id names the gutter; characters that
// an id cannot have are replaced.
func (l *Log) Step(id string) *StepLog {
	name := gutterName(id)
	s := &StepLog{out: newStream(l, name+" |"), err: newStream(l, name+" !")}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[s.out], l.streams[s.err] = struct{}{}, struct{}{}
	return s
}

// Close ends every stream that is still open and the progress line, and switches
// commands on again. It returns the first error of writing. Say and Commands
// work after it.
func (l *Log) Close() error {
	l.mu.Lock()
	for s := range l.streams {
		s.end()
	}
	l.resume()
	l.progress.hidden = true
	l.flush()
	l.redraw() // or the line of progress would stand before the prompt
	err, wait := l.err, l.progress.stop()
	if err == nil && l.unread {
		err = fmt.Errorf("some of the log is missing: %w", ErrNotRead)
	}
	l.mu.Unlock()
	wait()
	return err
}

// untrusted queues one line of a step. mu is held.
func (l *Log) untrusted(gutter, text string) {
	if l.opts.Actions && l.token == "" {
		// Nothing a step can learn or guess, and new for every stretch.
		l.token = rand.Text()
		l.out.WriteString("::stop-commands::" + l.token + "\n")
	}
	l.line(gutter, Words(text))
}

// resume switches commands on again. mu is held.
func (l *Log) resume() {
	if l.token != "" {
		l.out.WriteString("::" + l.token + "::\n")
		l.token = ""
	}
}

// line queues one line behind a gutter, which is empty for ours. mu is held.
func (l *Log) line(gutter string, line Line) {
	// Masked twice: making a line inert removes colour codes, which could have
	// stood inside a value.
	text := l.opts.Masker.Mask(Inert(l.opts.Masker.Mask(line.String())))
	switch {
	case gutter != "" && text != "":
		gutter += " "
	case gutter == "" && isCommand(text):
		gutter = ownGutter
	}
	if l.opts.Colour {
		gutter = Line{{gutter, Faint}}.paint()
		text = line.styled(text)
	}
	l.out.WriteString(gutter)
	l.out.WriteString(text)
	l.out.WriteByte('\n')
}

// flush writes what is queued, with the progress line taken away before and put
// back after. mu is held.
func (l *Log) flush() {
	if l.out.Len() == 0 {
		return
	}
	var b []byte
	if l.progress.drawn {
		b, l.progress.drawn = append(b, eraseLine...), false
	}
	b = append(b, l.out.Bytes()...)
	l.out.Reset()
	l.write(append(b, l.status()...))
}

func (l *Log) write(b []byte) {
	lines := bytes.Count(b, []byte("\n"))
	if l.missing > 0 {
		b = append(fmt.Appendf(nil, "%d lines are missing here, since nobody read the log\n", l.missing), b...)
	}
	_, err := l.w.Write(b)
	switch {
	case errors.Is(err, ErrNotRead):
		l.missing += lines
		// Commands are as they were: what would have changed that is lost.
		l.token = l.sent
	case err != nil && l.err == nil:
		// A log that cannot be written must not stop a step or change its verdict.
		l.err = err
	}
	if !errors.Is(err, ErrNotRead) {
		l.missing, l.sent = 0, l.token
	}
	l.unread = l.unread || errors.Is(err, ErrNotRead)
}

// gutterName keeps what a step's id may have.
func gutterName(id string) string {
	const longest = 64
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '_'
	}, id)
	if name == "" {
		name = "step"
	}
	return name[:min(len(name), longest)]
}
