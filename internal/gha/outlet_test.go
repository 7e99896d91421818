package gha

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

// lazyReader takes one write for each value on its channel.
type lazyReader struct {
	take chan struct{}
	got  lockedBuffer
}

func (r *lazyReader) Write(p []byte) (int, error) {
	<-r.take
	return r.got.Write(p)
}

func TestOutletWaitsForItsReaderUntilItIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &lazyReader{take: make(chan struct{})}
		o := NewOutlet(r)
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			fmt.Fprint(o, "one")
		}()
		time.Sleep(time.Hour)
		select {
		case <-wrote:
			t.Fatal("a write did not wait for its reader")
		default:
		}
		told := time.Now()
		o.Abandon()
		if time.Since(told) > 0 {
			t.Error("Abandon waited itself")
		}
		<-wrote
		if took := time.Since(told); took > lastPatience+abandonedWrite {
			t.Errorf("the write was held for %s after that", took)
		}
		told = time.Now()
		if _, err := fmt.Fprint(o, "two"); !errors.Is(err, ErrNotRead) || time.Since(told) > 0 {
			t.Errorf("the next write: %v after %s", err, time.Since(told))
		}
		// The reader comes back: what was on its way comes first.
		close(r.take)
		synctest.Wait()
		if _, err := fmt.Fprint(o, "three"); err != nil {
			t.Errorf("the write after that: %v", err)
		}
		if got := r.got.String(); got != "onethree" {
			t.Errorf("the reader got %q", got)
		}
		o.Abandon()
		time.Sleep(time.Minute)
	})
}

func TestAnAbandonedOutletStillReachesAReaderThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedBuffer
		o := NewOutlet(&out)
		o.Abandon()
		time.Sleep(time.Minute)
		for range 100 {
			if _, err := fmt.Fprint(o, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != strings.Repeat("x", 100) {
			t.Errorf("got %q", out.String())
		}
	})
}

func TestOutletReportsWhatTheWriterBelowSays(t *testing.T) {
	if _, err := NewOutlet(brokenWriter{}).Write([]byte("x")); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error %v", err)
	}
}

// TestALogThatNobodyReadsCountsWhatIsMissing: and commands to the runner are
// neither left on nor left off for good by what was lost.
func TestALogThatNobodyReadsCountsWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &lazyReader{take: make(chan struct{}, 1)}
		o := NewOutlet(r)
		r.take <- struct{}{}
		l := NewLog(o, LogOptions{Banner: "b", Actions: true})
		o.Abandon()
		s := l.Step("s")
		fmt.Fprint(s.Stdout(), "held\n")           // switches commands off; is on its way
		fmt.Fprint(s.Stdout(), "lost 1\nlost 2\n") // left out
		if err := l.Commands(func(w io.Writer) error {
			_, err := io.WriteString(w, "::warning::lost, and with it the word that switches commands on\n")
			return err
		}); err != nil {
			t.Error(err)
		}
		fmt.Fprint(s.Stdout(), "lost 3\n")
		close(r.take)
		synctest.Wait()
		fmt.Fprint(s.Stdout(), "::error::seen\n")
		if err := l.Commands(func(w io.Writer) error {
			_, err := io.WriteString(w, "::warning::ours\n")
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := l.Close(); !errors.Is(err, ErrNotRead) {
			t.Errorf("Close: %v", err)
		}
		got := r.got.String()
		if !strings.Contains(got, "\n5 lines are missing here, since nobody read the log\ns | ::error::seen\n") || strings.Contains(got, "lost") {
			t.Errorf("the log is\n%s", got)
		}
		var names []string
		for _, c := range ghatest.Commands([]byte(got)) {
			names = append(names, c.Name)
		}
		if len(names) != 3 || names[0] != "stop-commands" || names[2] != "warning" {
			t.Errorf("commands %q in\n%s", names, got)
		}
	})
}
