package kern

import (
	"fmt"
	"io"
	"sync"
)

// maxPayload bounds what is read from kern's two pipes. The longest known
// payload has four bytes.
const maxPayload = 16

// Answer is something kern said or did not say. The zero value is that it did
// not: an older build that writes fewer bytes leaves it unknown, not "no".
type Answer int

const (
	Unknown Answer = iota
	No
	Yes
)

func (a Answer) String() string {
	switch a {
	case No:
		return "no"
	case Yes:
		return "yes"
	}
	return "unknown"
}

// Payload is what kern writes to KERN_STARTED_FD after a box has ended. It is
// kern's word about kern: kept for the note of a box, never for a verdict.
type Payload struct {
	Len      int
	Ran      Answer // kern reached its normal end with a box
	Capped   Answer // a memory ceiling was in force; Unknown where kern cannot say
	OOM      Answer
	Signal   int // what ended the box's first process, if Signalled is Yes
	Signaled Answer
}

// parsePayload reads the bytes that are there.
func parsePayload(b []byte) Payload {
	p := Payload{Len: len(b)}
	if len(b) > 0 && b[0] == 1 {
		p.Ran = Yes
	}
	if len(b) > 1 {
		switch b[1] {
		case 1:
			p.Capped = Yes
		case 2:
			p.Capped = No
		}
	}
	if len(b) > 2 {
		switch b[2] {
		case 0:
			p.OOM = No
		case 1:
			p.OOM = Yes
		}
	}
	if len(b) > 3 {
		p.Signaled, p.Signal = No, int(b[3])
		if b[3] != 0 {
			p.Signaled = Yes
		}
	}
	return p
}

// readPayload reads until the other side is closed, and no more than it must.
func readPayload(r io.Reader) Payload {
	b, _ := io.ReadAll(io.LimitReader(r, maxPayload))
	return parsePayload(b)
}

// Setup is how far kern is with a box, from KERN_ALIVE_FD.
type Setup int

const (
	// SetupUnknown: nothing was said; an older kern says nothing at all.
	SetupUnknown Setup = iota
	// SetupRunning: kern took the descriptor and builds.
	SetupRunning
	// SetupDone: the first process was started, or starting it failed.
	SetupDone
)

func (s Setup) String() string {
	switch s {
	case SetupRunning:
		return "building the box"
	case SetupDone:
		return "done building the box"
	}
	return "not heard of"
}

// alive follows KERN_ALIVE_FD. Its state must be read before anything is
// killed: the end of kern closes the pipe too.
type alive struct {
	mu    sync.Mutex
	state Setup
}

func (a *alive) Setup() Setup {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// follow reads to the end. The first byte is "A", said before any work; the end
// or any further byte means that the work is over. An end without the first
// byte says nothing: kern never took the descriptor.
func (a *alive) follow(r io.Reader) {
	b := make([]byte, 1)
	for got := 0; got < maxPayload; got++ {
		n, err := r.Read(b)
		a.mu.Lock()
		switch {
		case n == 1 && got == 0 && b[0] == 'A':
			a.state = SetupRunning
		case n == 1 && a.state == SetupRunning, n == 0 && err == io.EOF && a.state == SetupRunning:
			a.state = SetupDone
		}
		over := err != nil || a.state == SetupDone
		a.mu.Unlock()
		if over {
			return
		}
	}
}

// words sums up what kern's pipes said, for the note of a box that went wrong.
func (p Payload) words() string {
	if p.Len == 0 {
		return "no report of its own"
	}
	s := fmt.Sprintf("memory cap in force: %s, memory kill: %s", p.Capped, p.OOM)
	if p.Signaled == Yes {
		s += fmt.Sprintf(", first process ended by signal %d", p.Signal)
	}
	return s
}
