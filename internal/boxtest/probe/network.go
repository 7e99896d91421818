package probe

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience bounds every wait of a network op.
const patience = 3 * time.Second

var network = []action{
	// connect opens a stream. N is how many milliseconds it took.
	{"connect", 2, func(a []string) Answer {
		begun := time.Now()
		c, err := net.DialTimeout(a[0], a[1], patience)
		if err == nil {
			c.Close()
		}
		ans := failed(err)
		ans.N = time.Since(begun).Milliseconds()
		return ans
	}},
	{"udp", 2, func(a []string) Answer {
		c, err := net.DialTimeout("udp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		defer c.Close()
		_, err = c.Write([]byte(a[1]))
		return failed(err)
	}},
	// socket only makes one: domain, type, protocol.
	{"socket", 3, func(a []string) Answer {
		fd, err := unix.Socket(number(a[0]), number(a[1]), number(a[2]))
		if err == nil {
			unix.Close(fd)
		}
		return failed(err)
	}},
	// reach makes a socket and connects it to an IPv4 or IPv6 address and port.
	{"reach", 4, func(a []string) Answer {
		at, err := netip.ParseAddrPort(a[3])
		if err != nil {
			return failed(err)
		}
		fd, err := unix.Socket(number(a[0]), number(a[1]), number(a[2]))
		if err != nil {
			return failed(err)
		}
		defer unix.Close(fd)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2})
		var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		if number(a[0]) == unix.AF_INET {
			to = &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
		}
		return failed(unix.Connect(fd, to))
	}},
	// own loopback: listen and connect to oneself.
	{"own loopback", 1, func(a []string) Answer {
		l, err := net.Listen("tcp", net.JoinHostPort(a[0], "0"))
		if err != nil {
			return failed(err)
		}
		defer l.Close()
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err == nil {
			c.Close()
		}
		return failed(err)
	}},
	// send writes to a TCP address and tells what comes back.
	{"send", 2, func(a []string) Answer {
		c, err := net.DialTimeout("tcp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, a[1]); err != nil {
			return failed(err)
		}
		buf := make([]byte, 8<<10)
		got := 0
		for got < len(buf) {
			n, err := c.Read(buf[got:])
			got += n
			if err != nil {
				break
			}
		}
		return Answer{Text: string(buf[:got]), N: int64(got)}
	}},
	// end of says how a connection ends.
	{"end of", 2, func(a []string) Answer {
		c, err := net.DialTimeout("tcp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, a[1]); err != nil {
			return failed(err)
		}
		got, err := io.ReadAll(c)
		ans := failed(err)
		ans.Text = string(got)
		return ans
	}},
	// send and leave does not wait for an answer.
	{"send and leave", 2, func(a []string) Answer {
		c, err := net.DialTimeout("tcp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		if _, err := io.WriteString(c, a[1]); err != nil {
			return failed(err)
		}
		if len(a) > 2 { // and hold the connection, to end with us
			time.Sleep(time.Duration(number(a[2])) * time.Millisecond)
		}
		return Answer{}
	}},
	// flood and leave writes so many requests, each on a connection of its own,
	// and ends without an answer, at once.
	{"flood and leave", 3, func(a []string) Answer {
		conns := make([]net.Conn, number(a[2]))
		for i := range conns {
			c, err := net.DialTimeout("tcp", a[0], patience)
			if err != nil {
				return failed(err)
			}
			conns[i] = c
		}
		for _, c := range conns {
			if _, err := io.WriteString(c, a[1]); err != nil {
				return failed(err)
			}
		}
		os.Exit(0)
		return Answer{}
	}},
	// drip and ask sends the first text byte by byte, so many milliseconds apart, until it
	// is cut off, and the second one meanwhile, again and again on connections of
	// its own. N is how long it took, Text what came back on the slow one, and
	// List what came back otherwise.
	{"drip and ask", 4, func(a []string) Answer {
		slow, err := net.DialTimeout("tcp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		defer slow.Close()
		begun := time.Now()
		_ = slow.SetDeadline(begun.Add(10 * patience))
		cut := make(chan string)
		go func() {
			text, _ := io.ReadAll(io.LimitReader(slow, 4<<10))
			cut <- string(text)
		}()
		next := time.NewTicker(time.Duration(number(a[2])) * time.Millisecond)
		defer next.Stop()
		ans := Answer{}
		for i := 0; ; i++ {
			select {
			case ans.Text = <-cut:
				ans.N = time.Since(begun).Milliseconds()
				return ans
			case <-next.C:
				if i < len(a[1]) {
					_, _ = slow.Write([]byte{a[1][i]})
				}
				ans.List = append(ans.List, exchange(a[0], a[3]))
			}
		}
	}},
	// hold many opens so many connections, says nothing on them, and keeps as many
	// as it may until a file is there. N is how many it opened; List has how many
	// it held at the end, and how many were turned away.
	{"hold many", 3, func(a []string) Answer {
		var most unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
			return failed(err)
		}
		most.Cur = most.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &most)
		room := int(min(most.Max, 1<<20)) - 64
		ans, away := Answer{}, 0
		var held []net.Conn
		for range number(a[1]) {
			c, err := net.DialTimeout("tcp", a[0], patience)
			if err != nil {
				return failed(err)
			}
			ans.N++
			if held = append(held, c); len(held) > room {
				held[len(held)-2].Close() // not the first ones, which are served
				held = append(held[:len(held)-2], c)
			}
		}
		for end := time.Now().Add(10 * patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(a[2]); err == nil {
				break
			}
			if time.Now().After(end) {
				return Answer{Err: "nobody made " + a[2]}
			}
		}
		// An answer that is there can be missed in a moment in which nobody ran, so
		// those without one are looked at again.
		buf := make([]byte, 12)
		silent := held
		for range 3 {
			var still []net.Conn
			for _, c := range silent {
				_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
				if n, _ := io.ReadFull(c, buf); string(buf[:n]) == "HTTP/1.1 503" {
					away++
				} else {
					still = append(still, c)
				}
			}
			silent = still
			time.Sleep(200 * time.Millisecond)
		}
		ans.List = []string{fmt.Sprint(len(held)), fmt.Sprint(away)}
		return ans
	}},
	// drain reads all there is to an answer, and keeps none of it. N is how much.
	{"drain", 2, func(a []string) Answer {
		c, err := net.DialTimeout("tcp", a[0], patience)
		if err != nil {
			return failed(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * patience))
		if _, err := io.WriteString(c, a[1]); err != nil {
			return failed(err)
		}
		n, err := io.Copy(io.Discard, c)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			return Answer{Err: "it did not end", N: n}
		}
		return Answer{N: n}
	}},
	// ask many sends one plain request for each of so many names.
	{"ask many", 2, func(a []string) Answer {
		ans := Answer{}
		for i := range number(a[1]) {
			c, err := net.DialTimeout("tcp", a[0], patience)
			if err != nil {
				return failed(err)
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(c, "GET http://n%d.evil.test/ HTTP/1.1\r\nHost: n%d.evil.test\r\n\r\n", i, i)
			if n, _ := c.Read(make([]byte, 16)); n > 0 {
				ans.N++
			}
			c.Close()
		}
		return ans
	}},
	// hold makes a shared memory segment, an abstract socket and a listener, says
	// so with a file, and keeps them for so many milliseconds.
	{"hold", 5, func(a []string) Answer {
		if _, err := unix.SysvShmGet(number(a[0]), 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666); err != nil {
			return failed(err)
		}
		for _, at := range [][2]string{{"unix", a[1]}, {"tcp", a[2]}} {
			l, err := net.Listen(at[0], at[1])
			if err != nil {
				return failed(err)
			}
			defer l.Close()
		}
		if err := os.WriteFile(a[3], nil, 0o600); err != nil {
			return failed(err)
		}
		time.Sleep(time.Duration(number(a[4])) * time.Millisecond)
		return Answer{}
	}},
	{"add address", 0, func([]string) Answer { return failed(addAddress()) }},
	{"add route", 0, func([]string) Answer { return failed(netlink(unix.NETLINK_ROUTE, routeMessage())) }},
	{"add link", 0, func([]string) Answer { return failed(netlink(unix.NETLINK_ROUTE, linkMessage())) }},
	{"ask netfilter", 0, func([]string) Answer { return failed(netlink(unix.NETLINK_NETFILTER, netfilterMessage())) }},
	{"shmget", 2, func(a []string) Answer {
		id, err := unix.SysvShmGet(number(a[0]), number(a[1]), 0)
		a1 := failed(err)
		a1.N = int64(id)
		return a1
	}},
}

// exchange sends a request on a connection of its own and gives the first line
// of the answer.
func exchange(addr, request string) string {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, request)
	text, _ := io.ReadAll(io.LimitReader(c, 4<<10))
	line, _, _ := strings.Cut(string(text), "\r\n")
	return line
}

// addAddress gives loopback another address, which takes CAP_NET_ADMIN.
func addAddress() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := ifr.SetInet4Addr([]byte{127, 0, 0, 9}); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifr)
}

// message is a netlink message with an acknowledgement asked for.
func message(kind, flags uint16, body []byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	binary.NativeEndian.PutUint32(b[8:], 1)
	return append(b, body...)
}

// routeMessage adds 192.0.2.0/24 on interface 1, loopback.
func routeMessage() []byte {
	body := []byte{unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
	body = append(body, attribute(unix.RTA_DST, []byte{192, 0, 2, 0})...)
	body = append(body, attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, 1))...)
	return message(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, body)
}

// linkMessage takes loopback down.
func linkMessage() []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	info := (*unix.IfInfomsg)(unsafe.Pointer(&body[0]))
	info.Index, info.Change = 1, unix.IFF_UP
	return message(unix.RTM_NEWLINK, 0, body)
}

// netfilterMessage asks nftables for its generation: harmless, and refused
// before it is looked at without CAP_NET_ADMIN.
func netfilterMessage() []byte {
	const nftables, getGeneration = 10, 16
	return message(nftables<<8|getGeneration, 0, []byte{0, 0, 0, 0})
}

func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

// netlink sends one message and gives the error that answers it.
func netlink(protocol int, msg []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2})
	buf := make([]byte, 8<<10)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return os.ErrInvalid
	}
	if binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
