package boxinit

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The end of each piece of work asks for a count. No garbage is collected in a first
// process, so an answer may leave none.
func TestWhoeverAsksIsToldTheCounts(t *testing.T) {
	file := func(text string) int {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	ours, theirs := pair(t)
	if err := Ask(ours); err != nil {
		t.Fatal(err)
	}
	var b [2]byte
	if n, err := unix.Read(theirs, b[:]); n != 1 || err != nil {
		t.Fatalf("an ask is %d bytes (%v)", n, err)
	}
	a := &apart{events: file("max 184467440737\n"), current: file("7\n"), peak: file("64\n"), threads: 9, born: 10}
	for range 2 {
		a.answer(theirs)
		m, fds, err := Receive(ours)
		if err != nil || len(fds) != 0 || m.Counted == nil || *m.Counted != (Counted{Refused: 184467440737, Peak: 64, Asked: true}) {
			t.Fatalf("%+v %v", m.Counted, err)
		}
	}
	if n := testing.AllocsPerRun(10, func() { a.answer(theirs) }); n != 0 {
		t.Errorf("an answer takes memory %v times", n)
	}
	// Of a box with no bound there is nothing to tell, nor of one that is not apart.
	(*apart)(nil).answer(-1)
	(&apart{own: -1}).answer(-1)
}
