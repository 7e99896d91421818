package box

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// carried gives n listeners whose connections come from a box that cannot hand
// its own sockets out. Its first process writes one byte for each connection that
// the box makes, the number of the listener, and gets one byte with one end of a
// socket pair back; what it writes into that, the listener's connection reads.
//
// Whoever has taken over the box's kernel can ask for as many connections as a
// box could make anyway, each to a listener that is there; the proxy bounds how
// many it serves. It gets the ends of new pairs and no other descriptor.
//
// A byte with one more descriptor, on the connection itself, says that it is broken
// off: between two ends of a pair there is nothing like a reset.
func carried(way *os.File, n int) ([]net.Listener, error) {
	c, err := net.FileConn(way)
	if err != nil {
		return nil, fmt.Errorf("take the socket of the box's relay: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("box: bug: the socket of the box's relay is not a UNIX socket")
	}
	var list []net.Listener
	var all []*carrier
	open := &sync.WaitGroup{}
	for range n {
		l := &carrier{conns: make(chan net.Conn), shut: make(chan struct{}), late: make(chan struct{}), open: open}
		open.Add(1)
		list, all = append(list, l), append(all, l)
	}
	go func() { // whoever listens ends it
		open.Wait()
		// Not by closing alone: the engine has it open too, and the box is to know
		// that nobody answers any more.
		_ = u.CloseWrite()
		_ = u.CloseRead()
		u.Close()
	}()
	go hand(u, all)
	return list, nil
}

// hand answers the box's first process until one of the two is gone. That the box
// is gone ends no listener: the proxy has not failed, and still judges what it was
// asked.
func hand(u *net.UnixConn, to []*carrier) {
	var b [1]byte
	for {
		if _, err := u.Read(b[:]); err != nil {
			return
		}
		if int(b[0]) >= len(to) {
			return // no first process of ours asks for that
		}
		ours, theirs, err := connection()
		if err != nil {
			// No descriptor is left here: that connection is refused.
			if _, err := u.Write([]byte{0}); err != nil {
				return
			}
			continue
		}
		_, _, err = u.WriteMsgUnix([]byte{1}, unix.UnixRights(int(theirs.Fd())), nil)
		theirs.Close()
		if err != nil {
			ours.Close()
			return
		}
		select {
		case to[b[0]].conns <- ours:
		case <-to[b[0]].shut:
			_ = ours.SetLinger(0)
			ours.Close()
		}
	}
}

func connection() (ours *carriedConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "carried")
	theirs = os.NewFile(uintptr(fds[1]), "carried")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		theirs.Close()
		return nil, nil, errors.New("box: bug: one end of a pair is not a UNIX socket")
	}
	return &carriedConn{UnixConn: u}, theirs, nil
}

// carriedConn is a connection that the box's first process carries on, and that can
// be reset as a TCP connection can.
type carriedConn struct {
	*net.UnixConn
	reset atomic.Bool
}

// SetLinger with 0 makes Close a reset. There is no other way to linger here.
func (c *carriedConn) SetLinger(sec int) error {
	c.reset.Store(sec == 0)
	return nil
}

// Close ends the connection.
func (c *carriedConn) Close() error {
	if c.reset.Swap(false) {
		c.breakOff()
	}
	return c.UnixConn.Close()
}

// breakOff tells the box's first process. It waits for nothing: a box that has not
// read what came before hears of the end alone.
func (c *carriedConn) breakOff() {
	word, other, err := connection()
	if err != nil {
		return
	}
	word.Close()
	defer other.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = unix.SendmsgN(int(fd), []byte{0}, unix.UnixRights(int(other.Fd())), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// carrier is a listener whose connections somebody else makes.
type carrier struct {
	conns chan net.Conn
	shut  chan struct{}
	once  sync.Once
	open  *sync.WaitGroup

	mu    sync.Mutex
	late  chan struct{} // closed when the deadline has passed
	timer *time.Timer
}

// Accept waits for a connection.
func (l *carrier) Accept() (net.Conn, error) {
	l.mu.Lock()
	late := l.late
	l.mu.Unlock()
	select {
	case c := <-l.conns: // one that is there comes first, whatever the time
		return c, nil
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.shut:
		return nil, net.ErrClosed
	case <-late:
		return nil, os.ErrDeadlineExceeded
	}
}

// SetDeadline bounds the wait for connections.
func (l *carrier) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	select {
	case <-l.late:
		l.late = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return nil
	}
	late := l.late
	l.timer = time.AfterFunc(time.Until(t), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		select {
		case <-late:
		default:
			close(late)
		}
	})
	return nil
}

// Close ends the listener.
func (l *carrier) Close() error {
	l.once.Do(func() {
		close(l.shut)
		l.open.Done()
	})
	return nil
}

// Addr is no address that anybody could use.
func (l *carrier) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
