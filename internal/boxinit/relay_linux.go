package boxinit

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The relay is for a box whose sockets are not the host's: a listening socket of
// its loopback cannot be handed out, so each connection is carried to us over a
// UNIX socket of its own. Those come from outside, one for each that is asked for
// on the way socket; a box can make none by itself, and finds no name to connect
// to.
//
// What an attacker could do to it: it is the first process, which the step can
// neither signal nor look into, and it only copies bytes, of which it understands
// none. Code in the box can open connections, let them fill and stop reading,
// which costs the step's own memory and stalls that connection; past maxPairs
// connections, new ones wait in the kernel's queue. It can forge nothing: what is
// asked for is judged outside, by the proxy, from the bytes alone.
const (
	// maxPairs bounds the connections carried at a time. The proxy serves half as
	// many and turns the others away.
	maxPairs = 2048
	// pieceBytes is what is kept of one direction of a connection.
	pieceBytes = 32 << 10
	// maxAsked bounds the connections that are asked for and not yet there: a socket
	// holds a few hundred messages, and whoever waits to put another one in takes
	// none out.
	maxAsked = 64
	// turns bounds what one connection gets before the next one's turn.
	turns = 8
	// lookEvery is how often, in milliseconds, the counters are looked at.
	lookEvery = 100
	// lookRounds is how many rounds of events may pass without.
	lookRounds = 256
)

// What an event is about: a listener, the way socket, one side of a pair, or that
// the step has ended.
const (
	ofListener = 1 << 24
	ofWay      = 2 << 24
	ofPair     = 3 << 24
	ofEnd      = 4 << 24
	kindMask   = 0xff << 24
)

// What the step asked for in its last moment is carried out before its end is
// told, since the end of the box follows that: rounds of events until there is
// none for lastQuiet ms, which what was sent may take to arrive, but no more than
// lastRounds and for no longer than lastTime: a process in the background that is
// always busy does not hold the end back. For connections that were asked for and
// are not there yet it takes lastWait ms, lastWaits times.
const (
	lastTime   = 3 * time.Second
	lastRounds = 4096
	lastQuiet  = 5
	lastWait   = 200
	lastWaits  = 10
)

// side is one end of a connection and what is to be written to it.
type side struct {
	fd     int
	wanted uint32 // what epoll is told to look for; 0: not registered
	buf    []byte
	from   int
	to     int
	ours   bool // it leads out
	reset  bool // and was broken off
	ended  bool // nothing more will be read from it
	shut   bool // and it was told that nothing more will be written
}

// incoming is what a message is read by.
type incoming struct {
	head unix.Msghdr
	part unix.Iovec
}

type carried struct {
	used  bool
	sides [2]side // in the box, and ours
}

// relay is the state of the one thread that carries connections and looks at the
// counters. Nothing in it is made anew for a connection: there is no garbage
// collection in this process.
type relay struct {
	control   int
	way       int
	epoll     int
	listeners []int
	deaf      bool // listeners are not looked at
	apart     *apart
	told      uint64
	last      *Message      // the step's end, once it is there
	bell      int           // written to when it is
	patience  time.Duration // with what is still to be carried then

	pairs   []carried
	idle    []int
	waiting []int // connections of the box that have been asked for, in order
	spare   [][]byte
	rights  []byte
	in      incoming
	ask     []byte // what is written for each listener
	events  [64]unix.EpollEvent
}

func newRelay(control, way int, listeners []int, a *apart) (*relay, error) {
	r := &relay{control: control, way: way, listeners: listeners, apart: a, patience: lastTime}
	var err error
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make the relay: %w", err)
	}
	if r.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make the relay: %w", err)
	}
	if err := r.watch(r.bell, unix.EPOLL_CTL_ADD, unix.EPOLLIN, ofEnd); err != nil {
		return nil, fmt.Errorf("make the relay: %w", err)
	}
	if len(listeners) == 0 {
		return r, nil
	}
	r.pairs = make([]carried, maxPairs)
	r.idle = make([]int, 0, maxPairs)
	r.waiting = make([]int, 0, maxPairs)
	r.spare = make([][]byte, 0, 2*maxPairs)
	r.rights = make([]byte, unix.CmsgSpace(4))
	for i := maxPairs - 1; i >= 0; i-- {
		r.idle = append(r.idle, i)
	}
	for i, fd := range listeners {
		r.ask = append(r.ask, byte(i))
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("make the relay: %w", err)
		}
		if err := r.watch(fd, unix.EPOLL_CTL_ADD, unix.EPOLLIN, ofListener|i); err != nil {
			return nil, fmt.Errorf("make the relay: %w", err)
		}
	}
	if err := r.watch(way, unix.EPOLL_CTL_ADD, unix.EPOLLIN, ofWay); err != nil {
		return nil, fmt.Errorf("make the relay: %w", err)
	}
	return r, nil
}

func (r *relay) watch(fd, op int, events uint32, about int) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(about)}
	return unix.EpollCtl(r.epoll, op, fd, &ev)
}

// serve does not return. The thread it is on is its own.
func (r *relay) serve() {
	for round := 0; ; {
		n := r.turn(lookEvery)
		if n == 0 {
			r.listen(true) // if it was the machine that had no descriptor left
		}
		if round++; n == 0 || round%lookRounds == 0 { // a box that keeps us busy is counted too
			r.count()
		}
	}
}

// turn sees to what there is to do, and says how much it was.
func (r *relay) turn(wait int) int {
	events := &r.events
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(r.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(wait), 0, 0)
	if e != 0 {
		return 0
	}
	ended := false
	for _, ev := range events[:n] {
		switch about := int(ev.Fd); about & kindMask {
		case ofListener:
			r.accept(about &^ kindMask)
		case ofWay:
			r.answer()
		case ofPair:
			r.carry((about &^ kindMask) >> 1)
		case ofEnd:
			ended = true
		}
	}
	if ended {
		r.finish()
	}
	return int(n)
}

// finish carries what is on its way and tells of the step's end.
func (r *relay) finish() {
	_ = r.watch(r.bell, unix.EPOLL_CTL_DEL, 0, 0)
	waits, began := 0, time.Now()
	for range lastRounds {
		if len(r.listeners) == 0 || time.Since(began) > r.patience {
			break
		}
		wait := lastQuiet
		if len(r.waiting) > 0 {
			wait = lastWait
		}
		if r.turn(wait) > 0 {
			continue
		}
		if waits++; len(r.waiting) == 0 || waits > lastWaits {
			break
		}
	}
	_ = tell(r.control, *r.last)
}

// ended has the relay tell of the step's end, in its turn.
func (r *relay) ended(m Message) {
	r.last = &m
	one := [8]byte{7: 1}
	unix.RawSyscall(unix.SYS_WRITE, uintptr(r.bell), uintptr(unsafe.Pointer(&one[0])), 8)
}

// count tells of a refused fork while the step runs: it may never end by itself.
func (r *relay) count() {
	if c := r.apart.counted(); c != nil && c.Refused > r.told {
		r.told = c.Refused
		_ = tell(r.control, Message{Counted: c})
	}
}

// listen turns to the listeners, or away from them while there is no room.
func (r *relay) listen(on bool) {
	if on = on && r.room(); on != r.deaf {
		return
	}
	r.deaf = !on
	for i, fd := range r.listeners {
		if on {
			_ = r.watch(fd, unix.EPOLL_CTL_ADD, unix.EPOLLIN, ofListener|i)
		} else {
			_ = r.watch(fd, unix.EPOLL_CTL_DEL, 0, 0)
		}
	}
}

func (r *relay) room() bool { return len(r.idle) > 0 && len(r.waiting) < maxAsked }

// accept takes a connection of the box and asks for one that leads out.
func (r *relay) accept(listener int) {
	for range turns {
		if listener >= len(r.listeners) {
			return
		}
		if !r.room() {
			r.listen(false)
			return
		}
		fd, _, err := unix.Accept4(r.listeners[listener], unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
		case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED:
			return
		default:
			r.listen(false)
			return
		}
		if n, err := unix.SendmsgN(r.way, r.ask[listener:listener+1], nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); n != 1 || err != nil {
			unix.Close(fd) // nobody is outside any more
			return
		}
		i := r.idle[len(r.idle)-1]
		r.idle = r.idle[:len(r.idle)-1]
		r.pairs[i] = carried{used: true, sides: [2]side{{fd: fd}, {fd: -1}}}
		r.waiting = append(r.waiting, i)
	}
}

// answer takes the connection that leads out, for whoever has waited longest.
func (r *relay) answer() {
	var b [1]byte
	n, oobn, _, _, err := unix.Recvmsg(r.way, b[:], r.rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == unix.EAGAIN || err == unix.EINTR {
		return
	}
	if err != nil || n == 0 {
		// Nobody is outside any more: then nobody listens here either.
		_ = r.watch(r.way, unix.EPOLL_CTL_DEL, 0, 0)
		closeAll(r.listeners)
		r.listeners = nil
		for _, i := range r.waiting {
			r.reset(i)
		}
		r.waiting = r.waiting[:0]
		return
	}
	fds, _ := rights(r.rights[:oobn])
	if len(r.waiting) == 0 {
		closeAll(fds)
		return
	}
	i := r.waiting[0]
	r.waiting = append(r.waiting[:0], r.waiting[1:]...)
	r.listen(true)
	p := &r.pairs[i]
	if len(fds) != 1 || unix.SetNonblock(fds[0], true) != nil {
		closeAll(fds)
		r.reset(i)
		return
	}
	p.sides[1].fd, p.sides[1].ours = fds[0], true
	r.carry(i)
}

// carry moves what can be moved of one connection, both ways.
func (r *relay) carry(i int) {
	p := &r.pairs[i]
	if !p.used || p.sides[1].fd < 0 {
		return
	}
	if !r.move(&p.sides[0], &p.sides[1]) || !r.move(&p.sides[1], &p.sides[0]) || p.sides[0].shut && p.sides[1].shut || p.left() {
		if p.sides[1].reset {
			r.reset(i)
		} else {
			r.end(i)
		}
		return
	}
	for s := range p.sides {
		this, other := &p.sides[s], &p.sides[1-s]
		var want uint32
		if !this.ended && other.from == other.to {
			want |= unix.EPOLLIN
		}
		if this.from < this.to {
			want |= unix.EPOLLOUT
		}
		if s == 1 && other.shut {
			want |= unix.EPOLLERR // no more than to be told when it is left altogether
		}
		if want == this.wanted {
			continue
		}
		// What is not waited for is not looked at: a side that hung up would be
		// told of again and again while the other one does not read.
		op := unix.EPOLL_CTL_MOD
		switch {
		case this.wanted == 0:
			op = unix.EPOLL_CTL_ADD
		case want == 0:
			op = unix.EPOLL_CTL_DEL
		}
		if r.watch(this.fd, op, want, ofPair|i<<1|s) != nil {
			r.end(i)
			return
		}
		this.wanted = want
	}
}

// left says whether our side of a connection is gone, both ways, and the box's has
// all that came from it: a box that keeps its side open then holds nothing of ours.
func (p *carried) left() bool {
	if !p.sides[0].shut {
		return false
	}
	fds := [1]unix.PollFd{{Fd: int32(p.sides[1].fd)}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// move copies from one side to the other until one of them would wait. It says
// whether the connection is still good.
func (r *relay) move(src, dst *side) bool {
	for range turns {
		if dst.from == dst.to && !src.ended {
			if dst.buf == nil {
				dst.buf = r.piece()
			}
			n, err := r.read(src, dst.buf)
			switch {
			case src.reset:
				return false
			case err == unix.EAGAIN || err == unix.EINTR:
				r.give(dst)
				return true
			case err != nil:
				return false
			case n == 0:
				src.ended = true
			}
			dst.from, dst.to = 0, max(n, 0)
		}
		if dst.from < dst.to {
			n, err := unix.SendmsgN(dst.fd, dst.buf[dst.from:dst.to], nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			switch {
			case err == unix.EAGAIN || err == unix.EINTR:
				return true
			case err == unix.EPIPE:
				// It hears no more. What it said before, such as why it turns the box
				// away, is still on its way.
				r.give(dst)
				src.ended, dst.shut = true, true
				return true
			case err != nil:
				return false
			}
			dst.from += n
		}
		if dst.from == dst.to && src.ended {
			r.give(dst)
			if !dst.shut {
				dst.shut = true
				_ = unix.Shutdown(dst.fd, unix.SHUT_WR)
			}
			return true
		}
	}
	return true
}

// read reads from one side. A descriptor that comes along with a byte says that the
// connection is broken off there: the end of it alone says that it is over.
func (r *relay) read(s *side, b []byte) (int, error) {
	if !s.ours {
		return unix.Read(s.fd, b)
	}
	in := &r.in
	in.part.Base, in.head.Iov, in.head.Iovlen = &b[0], &in.part, 1
	in.part.SetLen(len(b))
	in.head.Control, in.head.Flags = &r.rights[0], 0
	in.head.SetControllen(len(r.rights))
	n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&in.head)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if e != 0 {
		return -1, e
	}
	if in.head.Controllen > 0 {
		fds, _ := rights(r.rights[:in.head.Controllen])
		closeAll(fds)
		s.reset = true
	}
	return int(n), nil
}

// piece is a buffer that another connection is done with, or a new one.
func (r *relay) piece() []byte {
	if n := len(r.spare); n > 0 {
		b := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return b
	}
	return make([]byte, pieceBytes)
}

// give takes a buffer back that holds nothing.
func (r *relay) give(s *side) {
	if s.buf != nil {
		r.spare = append(r.spare, s.buf)
	}
	s.buf, s.from, s.to = nil, 0, 0
}

// reset breaks a connection off, so that the box's program says it was refused, not
// that it came to its end.
func (r *relay) reset(i int) {
	_ = unix.SetsockoptLinger(r.pairs[i].sides[0].fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	r.end(i)
}

// end closes both sides.
func (r *relay) end(i int) {
	p := &r.pairs[i]
	for s := range p.sides {
		r.give(&p.sides[s])
		if p.sides[s].fd >= 0 {
			unix.Close(p.sides[s].fd)
		}
	}
	*p = carried{}
	r.idle = append(r.idle, i)
	r.listen(true)
}

// carryAll starts the relay on a thread of its own, which is then there before
// the step is.
func carryAll(control int, listeners []int, a *apart) (*relay, error) {
	r, err := newRelay(control, wayFD, listeners, a)
	if err != nil {
		return nil, err
	}
	// One more thread that waits in a raw call, and so keeps a processor.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := dropOwn(nil)
		ready <- err
		if err == nil {
			r.serve()
		}
	}()
	return r, <-ready
}
