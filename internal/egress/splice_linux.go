package egress

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipe carries bytes from one socket to another without a copy into our memory.
type pipe struct{ r, w int }

// pipes are those of one step. What lies in a pipe is the kernel's memory, and
// no cap of the step counts it: a receiver that stops leaves its pipe full.
type pipes struct {
	mu   sync.Mutex
	free []pipe // empty ones
	used int
}

// pipeSize is also what the kernel lets anyone have.
const pipeSize = 1 << 20

// get gives an empty pipe; not ok means that the step has as many as it may, or
// that there are no descriptors, and the bytes have to go through a buffer.
func (p *pipes) get() (pipe, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used == maxPipes {
		return pipe{}, false
	}
	if n := len(p.free); n > 0 {
		got := p.free[n-1]
		p.free = p.free[:n-1]
		p.used++
		return got, true
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, false
	}
	p.used++
	// Without leave for a large one, a small one works as well, only slower.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	return pipe{fds[0], fds[1]}, true
}

// put takes a pipe back. One that is not empty is closed: what is in it must not
// come out anywhere else.
func (p *pipes) put(q pipe, empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used--
	if empty && len(p.free) < keptPipes {
		p.free = append(p.free, q)
		return
	}
	q.close()
}

func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.free {
		q.close()
	}
	p.free = nil
}

func (p pipe) close() {
	unix.Close(p.r)
	unix.Close(p.w)
}

// splice moves what src has until it has none at the moment. Not done means
// that it cannot be used here and nothing has moved.
func (f *flow) splice() (done bool, err error) {
	src, ok1 := f.src.(*net.TCPConn)
	dst, ok2 := f.dst.(*net.TCPConn)
	if !ok1 || !ok2 {
		return false, nil
	}
	from, err1 := src.SyscallConn()
	to, err2 := dst.SyscallConn()
	if err1 != nil || err2 != nil {
		return false, nil
	}
	pipe, ok := f.p.pipes.get()
	if !ok {
		return false, nil
	}
	left := 0
	defer func() { f.p.pipes.put(pipe, left == 0) }()
	for first := true; ; first = false {
		n, err := spliceIn(from, pipe.w)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return true, nil
		case errors.Is(err, unix.EINVAL) && first:
			return false, nil
		case err != nil:
			return true, err
		case n == 0:
			return true, io.EOF
		}
		left = n
		now := f.p.Now()
		f.last.Store(now.UnixNano())
		dst.SetWriteDeadline(now.Add(f.idle))
		for left > 0 {
			w, err := spliceOut(pipe.r, to, left)
			left -= max(w, 0)
			if e := f.count(max(w, 0)); e != nil {
				return true, e
			}
			if err != nil || w <= 0 {
				return true, errReceiver
			}
			f.last.Store(f.p.Now().UnixNano())
		}
	}
}

// spliceIn takes what is there, and does not wait.
func spliceIn(from syscall.RawConn, w int) (n int, err error) {
	opErr := from.Read(func(fd uintptr) bool {
		n, err = spliceOnce(int(fd), w, pipeSize)
		return true
	})
	if opErr != nil {
		return 0, opErr
	}
	return n, err
}

// spliceOut waits until the receiver takes some.
func spliceOut(r int, to syscall.RawConn, most int) (n int, err error) {
	opErr := to.Write(func(fd uintptr) bool {
		n, err = spliceOnce(r, int(fd), most)
		return !errors.Is(err, unix.EAGAIN)
	})
	if opErr != nil {
		return 0, opErr
	}
	return n, err
}

func spliceOnce(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return int(n), err
		}
	}
}
