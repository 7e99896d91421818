package cell

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// drainLimit bounds the wait for what is left in a pipe.
const drainLimit = 5 * time.Second

// Wire is what goes in and out of one interpreter.
type Wire struct {
	in, out  *os.File // ours
	inBox    *os.File
	outBox   *os.File
	sent     <-chan struct{} // the cell before the next one
	received chan struct{}
	hello    chan struct{}
	ends     chan int

	mu  sync.Mutex
	now collection
}

// OpenWire makes the two pipes of an interpreter and begins to listen.
func OpenWire() (*Wire, error) {
	w := &Wire{received: make(chan struct{}), hello: make(chan struct{}), ends: make(chan int, 1)}
	var err error
	if w.inBox, w.in, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("make a pipe for cells: %w", err)
	}
	if w.out, w.outBox, err = os.Pipe(); err != nil {
		w.in.Close()
		w.inBox.Close()
		return nil, fmt.Errorf("make a pipe for results: %w", err)
	}
	go w.listen()
	return w, nil
}

// Files are the ends for the box, for box.Job.Files. They are closed with the wire.
func (w *Wire) Files() []*os.File { return []*os.File{w.inBox, w.outBox} }

// Hello is closed when the interpreter says that it has booted.
func (w *Wire) Hello() <-chan struct{} { return w.hello }

// Ends gives what cells say they ended with, but for one that was the last. One
// that nobody waits for is forgotten with the next Send.
func (w *Wire) Ends() <-chan int { return w.ends }

// Send hands a cell over. It does not wait for the interpreter to take it; after
// the last one there is no other.
func (w *Wire) Send(c Cell) error {
	frame, err := encode(c)
	if err != nil {
		return err
	}
	select {
	case <-w.ends:
	default:
	}
	before, sent := w.sent, make(chan struct{})
	w.sent = sent
	go func() {
		defer close(sent)
		if before != nil {
			<-before
		}
		_, _ = w.in.Write(frame) // its reader may be gone, and then the cell is
		if c.Last {
			w.in.Close()
		}
	}()
	return nil
}

func (w *Wire) listen() {
	defer close(w.received)
	frames := newReader(w.out)
	greeted := false
	for {
		f, err := frames.next()
		if err != nil {
			w.mu.Lock()
			w.now.broken = w.now.broken || errors.Is(err, errBroken)
			w.mu.Unlock()
			// What cannot be read is taken all the same, or its writer would wait.
			_, _ = io.Copy(io.Discard, w.out)
			return
		}
		switch f.kind {
		case kindHello:
			if !greeted {
				greeted = true
				close(w.hello)
			}
		case kindResult:
			w.mu.Lock()
			w.now.add(f)
			w.mu.Unlock()
		case kindEnd:
			select {
			case w.ends <- int(f.body[0]):
			default: // nobody asked
			}
		}
	}
}

// Take gives what was shown since the last time.
func (w *Wire) Take() Results {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.now.results()
	w.now = collection{}
	return out
}

// Close ends the wire once nobody in the box is alive, and gives what was shown
// since the last Take.
// It is safe to call twice.
func (w *Wire) Close() Results {
	w.inBox.Close()
	w.outBox.Close()
	w.in.Close()
	if w.sent != nil {
		<-w.sent
	}
	// Nobody who could write is alive, unless a box could not be ended.
	_ = w.out.SetReadDeadline(time.Now().Add(drainLimit))
	<-w.received
	w.out.Close()
	return w.Take()
}
