package box

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCarriedConnectionIsReset(t *testing.T) {
	for sentence, reset := range map[string]bool{"broken off": true, "over": false} {
		ours, theirs, err := connection()
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		if reset {
			if err := ours.SetLinger(0); err != nil {
				t.Error(err)
			}
		}
		if err := ours.Close(); err != nil {
			t.Error(err)
		}
		_ = ours.Close() // says nothing more
		b, oob := make([]byte, 8), make([]byte, 256)
		n, oobn, _, _, err := unix.Recvmsg(int(theirs.Fd()), b, oob, unix.MSG_CMSG_CLOEXEC)
		if err != nil || (n == 1 && oobn > 0) != reset || (n == 0) == reset {
			t.Errorf("%s: %d bytes and %d beside (%v)", sentence, n, oobn, err)
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil || len(fds) != 1 {
				t.Fatalf("%s: %v (%v)", sentence, fds, err)
			}
			// It leads nowhere.
			if n, err := unix.Read(fds[0], b); n != 0 || err != nil {
				t.Errorf("%s: read %d (%v)", sentence, n, err)
			}
			unix.Close(fds[0])
		}
		if n, err := theirs.Read(b); n != 0 || err != io.EOF {
			t.Errorf("%s: then %d bytes (%v)", sentence, n, err)
		}
	}
}

// A box that reads nothing does not hold the proxy up.
func TestResetOfAFullConnectionDoesNotWait(t *testing.T) {
	ours, theirs, err := connection()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		for block := make([]byte, 4<<10); err == nil; {
			_, err = unix.SendmsgN(int(fd), block, nil, nil, unix.MSG_DONTWAIT)
		}
	})
	_ = ours.SetLinger(0)
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
}
