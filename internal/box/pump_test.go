package box

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"
)

// A process may close its output and live on. Whoever then asks for what comes from
// now on, however often, is not held up.
func TestTurnsOfAStreamThatEnded(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	p := &pump{read: read, into: func() *Stream { return new(Stream) }, done: make(chan struct{}), turns: make(chan turn, 1), to: sink{w: &first, through: 100}}
	p.max.Store(100)
	go p.copy()
	if _, err := write.WriteString("before"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	write.Close()
	for i := range 4 {
		was, ok := p.turn(ctx, sink{w: &second, max: 100, through: 100})
		if want := int64(len("before")); !ok || i == 0 && was.Bytes != want || i > 0 && was.Bytes != 0 {
			t.Errorf("turn %d: %+v, %v", i, was, ok)
		}
	}
	if first.String() != "before" || second.Len() > 0 {
		t.Errorf("%q, %q", first.String(), second.String())
	}
	if !p.finish(ctx) {
		t.Error("the stream is not whole")
	}
}

// Nor is one who asks while nobody takes turns, past the end of the patience.
func TestATurnThatNobodyTakesEnds(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	defer read.Close()
	p := &pump{read: read, done: make(chan struct{}), turns: make(chan turn, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	for range 3 {
		if _, ok := p.turn(ctx, sink{}); ok {
			t.Error("a turn that nobody took")
		}
	}
}
