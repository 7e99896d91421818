package commit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

const (
	journalVersion = 1
	// maxLine bounds one line of a journal: the longest path a snapshot takes,
	// in base64, is far below it.
	maxLine = 64 << 20
	// maxOps bounds a journal as a whole.
	maxOps = 8_000_000
)

// identity says which folder a journal is for. A path is no identity: the
// folder there may be another one by now, with the same inode number even.
type identity struct {
	Path   []byte `json:"path"`
	Inode  uint64 `json:"inode"`
	Device uint64 `json:"device"`
	// System is the file system's own id. It outlives a restart of the machine,
	// which a device number need not.
	System uint64 `json:"system,omitempty"`
	Born   int64  `json:"born,omitempty"` // nanoseconds; 0 if it is not kept
}

// same says whether two identities are of one folder.
func (a identity) same(b identity) bool {
	return a.Inode == b.Inode && a.Born == b.Born && (a.Device == b.Device || a.System != 0 && a.System == b.System)
}

// header is the first line of a journal.
type header struct {
	Version   int      `json:"version"`
	Step      string   `json:"step"`
	Workspace identity `json:"workspace"`
}

// trailer is the last line; a journal without it is a torn one.
type trailer struct {
	Ops int `json:"ops"`
}

// writeJournal writes one line for the header, each op and the trailer.
func writeJournal(w io.Writer, h header, ops []op) error {
	b := bufio.NewWriterSize(w, 64<<10)
	e := json.NewEncoder(b)
	if err := e.Encode(h); err != nil {
		return err
	}
	for i := range ops {
		if err := e.Encode(&ops[i]); err != nil {
			return err
		}
	}
	if err := e.Encode(trailer{Ops: len(ops)}); err != nil {
		return err
	}
	return b.Flush()
}

// readJournal reads what writeJournal wrote and checks it as plan would: it is
// ours, but what it leads to is done without a second look.
func readJournal(r io.Reader) (h header, ops []op, err error) {
	lines := newLines(r)
	if err := lines.next(&h); err != nil {
		return h, nil, err
	}
	if h.Version != journalVersion {
		return h, nil, fmt.Errorf("%w: it has version %d and this program knows %d", errJournal, h.Version, journalVersion)
	}
	for {
		var line struct {
			op
			Ops *int `json:"ops"`
		}
		if err := lines.next(&line); err != nil {
			return h, nil, err
		}
		if line.Ops != nil {
			if *line.Ops != len(ops) {
				return h, nil, fmt.Errorf("%w: it has %d lines and should have %d", errJournal, len(ops), *line.Ops)
			}
			return h, ops, nil
		}
		if err := line.check(); err != nil {
			return h, nil, err
		}
		if len(ops) == maxOps {
			return h, nil, fmt.Errorf("%w: more than %d lines", errJournal, maxOps)
		}
		ops = append(ops, line.op)
	}
}

func (o op) check() error {
	switch o.Do {
	case doRemove, doFile, doLink, doDir, doChmod:
	default:
		return fmt.Errorf("%w: it says to do %q", errJournal, o.Do)
	}
	if string(o.Path) == "." && !o.folder() {
		return fmt.Errorf("%w: it says to %s the workspace", errJournal, o.Do)
	}
	if err := checkPath(string(o.Path)); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}

// opened is a folder whose mode we widened to get in, and the mode to restore.
type opened struct {
	Path []byte `json:"path"`
	Mode uint32 `json:"mode"`
}

// readOpened reads the log of those folders. A line that is torn was written by
// a process that died before it touched the folder, and means nothing.
func readOpened(r io.Reader) (h header, list []opened, err error) {
	lines := newLines(r)
	if err := lines.next(&h); err != nil {
		return h, nil, err
	}
	for lines.s.Scan() {
		var o opened
		if json.Unmarshal(lines.s.Bytes(), &o) != nil || checkPath(string(o.Path)) != nil {
			continue
		}
		if list = append(list, o); len(list) > maxOps {
			return h, nil, fmt.Errorf("%w: more than %d folders opened", errJournal, maxOps)
		}
	}
	if err := lines.s.Err(); err != nil {
		return h, nil, fmt.Errorf("%w: %w", errJournal, err)
	}
	return h, list, nil
}

// lines reads JSON, one value a line.
type lines struct{ s *bufio.Scanner }

func newLines(r io.Reader) lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return lines{s}
}

func (l lines) next(v any) error {
	if !l.s.Scan() {
		if err := l.s.Err(); err != nil {
			return fmt.Errorf("%w: %w", errJournal, err)
		}
		return fmt.Errorf("%w: it ends too early", errJournal)
	}
	if err := json.Unmarshal(l.s.Bytes(), v); err != nil {
		return fmt.Errorf("%w: %w", errJournal, err)
	}
	return nil
}
