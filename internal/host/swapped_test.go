package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// Whose folder it is that doctor tries things in can put another in the place of
// each that is made there, and did: root started what lay in it.
func TestDoctorStartsNothingOfSomebodyElses(t *testing.T) {
	boxtest.Need(t, "root")
	const rounds, other = 200, 54321
	in, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	must(t, os.Chown(in, other, other))
	for i := range 2 * rounds {
		dir := filepath.Join(in, fmt.Sprintf("theirs-%d", i))
		must(t, os.Mkdir(dir, 0o777))
		must(t, os.WriteFile(filepath.Join(dir, "b"), []byte("#!/bin/sh\necho >>"+ran+"\n"), 0o755))
		must(t, os.Chown(dir, other, other))
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, in, unix.IN_CREATE)
	must(t, err)

	swapped, done := 0, make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		b := make([]byte, 4096)
		for {
			select {
			case <-done:
				return
			default:
			}
			n, err := unix.Read(watch, b)
			for at := 0; err == nil && at+unix.SizeofInotifyEvent <= n; {
				size := int(b[at+12]) | int(b[at+13])<<8
				name := unix.ByteSliceToString(b[at+unix.SizeofInotifyEvent : at+unix.SizeofInotifyEvent+size])
				at += unix.SizeofInotifyEvent + size
				theirs := filepath.Join(in, fmt.Sprintf("theirs-%d", swapped))
				if unix.Renameat2(unix.AT_FDCWD, filepath.Join(in, name), unix.AT_FDCWD, theirs, unix.RENAME_EXCHANGE) == nil {
					swapped++
				}
			}
		}
	})
	for range rounds {
		if f := tryFolder(context.Background(), in); f.Write == nil && f.Exec != nil {
			t.Errorf("what it wrote could not be started: %v", f.Exec)
		}
		time.Sleep(time.Millisecond)
	}
	close(done)
	attacker.Wait()
	if swapped < rounds/10 {
		t.Fatalf("only %d of %d were swapped", swapped, rounds)
	}
	if text, err := os.ReadFile(ran); err == nil {
		t.Errorf("root started %d programs of somebody else's", len(text))
	}
}
