package boxinit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// pair is a conversation. Both ends are closed with the test.
func pair(t *testing.T) (a, b int) {
	t.Helper()
	x, y, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close(); y.Close() })
	// A frame that is never finished must fail the test, not hold it up.
	limit := unix.NsecToTimeval(int64(10 * time.Second))
	for _, f := range []*os.File{x, y} {
		if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			t.Fatal(err)
		}
	}
	return int(x.Fd()), int(y.Fd())
}

// openFiles counts our descriptors, the counting one included each time.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func frame(size uint32, body string) string {
	head := make([]byte, 4)
	binary.BigEndian.PutUint32(head, size)
	return string(head) + body
}

// asJSON compares what an engine's own message says: the encoder may spell a
// character in another way.
var asJSON = cmp.Transformer("JSON", func(raw json.RawMessage) (v any) {
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	return v
})

func TestEveryMessageComesThroughAsItWas(t *testing.T) {
	for _, m := range []Message{
		{Setup: json.RawMessage(`{"a":[1,"<&>"]}`)},
		{Prepare: &Prepare{}},
		{Prepare: &Prepare{
			ProxyPort: 3128, Listen: []Addr{addr("127.0.0.1:5432"), addr("[::1]:53")},
			Addrs: []Addr{addr("127.0.0.2:0")}, Keep: []int{0, 7, 40}, CgroupNS: true,
		}},
		{Ready: &Ready{}},
		{Start: &Start{Argv: []string{"sh", "-c", "echo \"$X\"\n\x01"}, Env: []string{"X=<>&\u2028"}, Workdir: "/w", Filter: []byte{0, 255}, Guard: []byte{1}, SetID: []byte{2}, FileBytes: 1 << 40}},
		{Start: &Start{Argv: []string{strings.Repeat("a", 3<<20)}, Env: []string{}, Workdir: "/"}}, // over a socket's buffer
		{Filtered: &Filtered{}},
		{Started: &Started{Pid: 2}},
		{Failed: &Failed{Op: "exec", Name: "x", Errno: 2, Why: "no such file or directory"}},
		{Exited: &Exited{Status: 0xff7f}},
		{Exited: &Exited{Status: 9, Full: []Full{{Target: "/tmp"}}, Counted: &Counted{Refused: 1, Peak: 2}}},
		{Counted: &Counted{Refused: 1 << 40, Peak: 7, Asked: true}},
	} {
		a, b := pair(t)
		sent := make(chan error, 1)
		go func() { sent <- Send(a, m) }()
		got, fds, err := Receive(b)
		if err != nil || len(fds) != 0 {
			t.Fatalf("%v, descriptors %v", err, fds)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, got, asJSON); d != "" {
			t.Error(d)
		}
	}
}

func TestDescriptors(t *testing.T) {
	t.Run("they come with their message, in order, close-on-exec, and stay the sender's", func(t *testing.T) {
		a, b := pair(t)
		r1, w1 := pipe(t)
		r2, w2 := pipe(t)
		if err := Send(a, Message{Ready: &Ready{}}, w1, w2); err != nil {
			t.Fatal(err)
		}
		if err := Send(a, Message{Started: &Started{Pid: 9}}); err != nil {
			t.Fatal(err)
		}
		m, fds, err := Receive(b)
		if err != nil || m.Ready == nil || len(fds) != 2 {
			t.Fatalf("%+v %v %v", m, fds, err)
		}
		defer closeAll(fds)
		for i, read := range []int{r1, r2} {
			if flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d: flags %x, %v", i, flags, err)
			}
			word := []byte{byte('a' + i)}
			if _, err := unix.Write(fds[i], word); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1)
			if _, err := unix.Read(read, got); err != nil || got[0] != word[0] {
				t.Errorf("descriptor %d is another: %q %v", i, got, err)
			}
		}
		if _, err := unix.Write(w1, []byte("x")); err != nil {
			t.Errorf("the sender's own was closed: %v", err)
		}
		m, fds2, err := Receive(b)
		if err != nil || m.Started == nil || m.Started.Pid != 9 || len(fds2) != 0 {
			t.Errorf("the next message: %+v %v %v", m, fds2, err)
		}
	})

	t.Run("as many as a frame may have come through", func(t *testing.T) {
		a, b := pair(t)
		_, w := pipe(t)
		many := make([]int, maxFDs)
		for i := range many {
			many[i] = w
		}
		if err := Send(a, Message{Ready: &Ready{}}, many...); err != nil {
			t.Fatal(err)
		}
		_, fds, err := Receive(b)
		defer closeAll(fds)
		if err != nil || len(fds) != maxFDs {
			t.Errorf("%d descriptors, %v", len(fds), err)
		}
	})

	t.Run("one more is refused, and none of them stays open", func(t *testing.T) {
		a, b := pair(t)
		_, w := pipe(t)
		many := make([]int, maxFDs+1)
		for i := range many {
			many[i] = w
		}
		before := openFiles(t)
		if err := Send(a, Message{Ready: &Ready{}}, many...); err != nil {
			t.Fatal(err)
		}
		_, fds, err := Receive(b)
		if err == nil || !strings.Contains(err.Error(), "too many descriptors") || fds != nil {
			t.Errorf("%v, %d descriptors", err, len(fds))
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d files are open, were %d", now, before)
		}
	})
}

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

func TestBadFrames(t *testing.T) {
	for _, tc := range []struct {
		sentence, bytes string
		is              error
		says            string
	}{
		{"nothing at all is the end", "", io.EOF, ""},
		{"a head that breaks off is the end", "\x00\x00", io.EOF, ""},
		{"a body that never came is cut off", frame(2, ""), io.ErrUnexpectedEOF, ""},
		{"a body that breaks off is cut off", frame(9, "{}"), io.ErrUnexpectedEOF, ""},
		{"a frame over the bound is refused before it is read", frame(maxFrame+1, ""), nil, "is over"},
		{"the largest number there is is refused", frame(1<<32-1, ""), nil, "is over"},
		{"an empty body is no message", frame(0, ""), nil, "JSON"},
		{"text is no message", frame(5, "hello"), nil, "invalid character"},
		{"two values are no message", frame(4, "{}{}"), nil, "invalid character"},
		{"a list is no message", frame(2, "[]"), nil, "cannot unmarshal"},
		{"a status past 32 bits is no message", frame(32, `{"exited":{"status":4294967296}}`), nil, "cannot unmarshal"},
		{"an address that is none is no message", frame(33, `{"prepare":{"listen":["nowhere"]}}`[:33]), nil, "JSON"},
	} {
		t.Run(tc.sentence+", and its descriptor is closed", func(t *testing.T) {
			a, b := pair(t)
			_, w := pipe(t)
			before := openFiles(t)
			if tc.bytes != "" {
				if _, err := unix.SendmsgN(a, []byte(tc.bytes), unix.UnixRights(w), nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Shutdown(a, unix.SHUT_WR); err != nil {
				t.Fatal(err)
			}
			m, fds, err := Receive(b)
			switch {
			case err == nil:
				t.Fatalf("taken as %+v", m)
			case tc.is != nil && !errors.Is(err, tc.is):
				t.Errorf("%v, want %v", err, tc.is)
			case tc.is != io.EOF && errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
				t.Errorf("%v reads as the other side's proper end", err)
			case !strings.Contains(err.Error(), tc.says):
				t.Errorf("%v does not say %q", err, tc.says)
			}
			if fds != nil {
				t.Errorf("descriptors of a bad frame: %v", fds)
			}
			if now := openFiles(t); now != before {
				t.Errorf("%d files are open, were %d", now, before)
			}
		})
	}
}

func TestAFrameMayComeByteByByte(t *testing.T) {
	a, b := pair(t)
	go func() {
		for _, c := range []byte(frame(25, `{"exited":{"status":256}}`)) {
			unix.Write(a, []byte{c})
			time.Sleep(time.Millisecond)
		}
	}()
	m, _, err := Receive(b)
	if err != nil || m.Exited == nil || m.Exited.Status != 256 {
		t.Errorf("%+v %v", m, err)
	}
}

func TestSendRefuses(t *testing.T) {
	t.Run("a message over the bound, before a byte of it is sent", func(t *testing.T) {
		a, b := pair(t)
		err := Send(a, Message{Start: &Start{Argv: []string{strings.Repeat("a", maxFrame)}}})
		if err == nil || !strings.Contains(err.Error(), "is over") {
			t.Errorf("%v", err)
		}
		if n, _, err := unix.Recvfrom(b, make([]byte, 1), unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Errorf("%d bytes were sent (%v)", n, err)
		}
	})
	t.Run("a closed conversation, with an error and no SIGPIPE", func(t *testing.T) {
		a, b := pair(t)
		if err := unix.Shutdown(b, unix.SHUT_RDWR); err != nil {
			t.Fatal(err)
		}
		if err := Send(a, Message{Ready: &Ready{}}); !errors.Is(err, unix.EPIPE) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a descriptor that is none", func(t *testing.T) {
		a, _ := pair(t)
		if err := Send(a, Message{Ready: &Ready{}}, 1<<20); !errors.Is(err, unix.EBADF) {
			t.Errorf("%v", err)
		}
	})
}

func TestFail(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		err      error
		want     Failed
	}{
		{"an errno deep inside is named by number and word", &os.PathError{Op: "stat", Path: "/x", Err: syscall.ENOENT}, Failed{Op: "exec", Name: "x", Errno: 2, Why: "no such file or directory"}},
		{"another error keeps its words and has no number", errors.New("odd"), Failed{Op: "exec", Name: "x", Why: "odd"}},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := Fail("exec", "x", tc.err).Failed; got == nil || *got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
