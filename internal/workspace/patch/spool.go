package patch

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// spoolMemory is how much of a patch is kept in memory.
const spoolMemory = 4 << 20

// spool keeps the diffs until the comments ahead of them are known. Beyond
// spoolMemory it is a file without a name, which goes with the process.
type spool struct {
	dir  string
	size int64
	mem  bytes.Buffer
	file *os.File
}

func (s *spool) write(b []byte) error {
	s.size += int64(len(b))
	if s.file == nil && s.size <= spoolMemory {
		s.mem.Write(b)
		return nil
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "untrusted-steps-patch-")
		if err != nil {
			return fmt.Errorf("keep the patch: %w", err)
		}
		s.file = f
		if err := os.Remove(f.Name()); err != nil {
			return fmt.Errorf("keep the patch: %w", err)
		}
		if _, err := s.mem.WriteTo(f); err != nil {
			return fmt.Errorf("keep the patch: %w", err)
		}
		s.mem = bytes.Buffer{}
	}
	if _, err := s.file.Write(b); err != nil {
		return fmt.Errorf("keep the patch: %w", err)
	}
	return nil
}

func (s *spool) copyTo(w io.Writer) error {
	if s.file == nil {
		_, err := s.mem.WriteTo(w)
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, s.file)
	return err
}

func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
}
