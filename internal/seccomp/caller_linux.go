package seccomp

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	maxStatus  = 16 << 10 // bytes of /proc/PID/status that are read
	maxProgram = 256      // bytes of a program's path that are kept
)

// caller is a thread that made a reported call.
type caller struct {
	process int    // its thread group; 0 if not known
	program string // untrusted text
	// dies says that SIGSYS kills it: not caught, not ignored, not blocked.
	dies bool
}

// look reads what /proc has on a thread. Nothing of it counts unless the thread
// is seen waiting in its call afterwards.
func look(proc string, thread uint32, wantProgram bool) (caller, error) {
	dir := filepath.Join(proc, strconv.FormatUint(uint64(thread), 10))
	f, err := os.Open(filepath.Join(dir, "status"))
	if err != nil {
		return caller{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxStatus))
	if err != nil {
		return caller{}, err
	}
	c, err := parseStatus(text)
	if err != nil {
		return caller{}, err
	}
	if !wantProgram {
		c.program = ""
		return c, nil
	}
	// The path needs a right that the short name does not: a process can make
	// itself undumpable.
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && exe != "" {
		c.program = exe
	}
	c.program = bounded(c.program)
	return c, nil
}

func parseStatus(text []byte) (caller, error) {
	c := caller{dies: true}
	masks := 0
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Name":
			c.program = value
		case "Tgid":
			n, err := strconv.Atoi(value)
			if err != nil || n <= 0 {
				return caller{}, fmt.Errorf("read the thread group %q", value)
			}
			c.process = n
		case "SigBlk", "SigIgn", "SigCgt":
			mask, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return caller{}, fmt.Errorf("read the signals %q: %w", value, err)
			}
			masks++
			if mask&(1<<(uint(unix.SIGSYS)-1)) != 0 {
				c.dies = false
			}
		}
	}
	if c.process == 0 {
		return caller{}, fmt.Errorf("a thread without a thread group")
	}
	c.dies = c.dies && masks == 3 // a mask that was not seen may have it
	return c, nil
}

// bounded cuts a program's name in the middle of no character.
func bounded(s string) string {
	if len(s) <= maxProgram {
		return s
	}
	s = s[:maxProgram]
	for len(s) > maxProgram-utf8.UTFMax && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
