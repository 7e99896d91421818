package boxtest

import (
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/probe"
)

// unreachable are the errors of a network that is not there.
var unreachable = []string{"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"}

// noSocket are the errors of a socket that cannot be made.
var noSocket = []string{"EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "ENOSYS", "EINVAL", "ENOPROTOOPT"}

// networkFacts are about what can be reached past the proxy, which is nothing:
// with no network and, just so, with an allowlist.
func (s *suite) networkFacts(t *testing.T) {
	for _, kind := range []box.Network{box.NetworkNone, box.NetworkAllowlist} {
		t.Run("network "+kind.String(), func(t *testing.T) { s.routes(t, kind) })
	}
}

// reaching runs the probe in a box with the given network.
func (s *suite) reaching(t testing.TB, kind box.Network, ops ...probe.Op) []probe.Answer {
	t.Helper()
	j := s.probing(t, ops...)
	j.Network = kind
	if kind == box.NetworkAllowlist {
		j.proxy = newWorld(t, "good.test").proxy
	}
	return s.run(t, j).answers(t, len(ops))
}

func (s *suite) routes(t *testing.T, kind box.Network) {
	t.Run("A1 A2 B19 B20 E60 an address literal is unreachable at once, over IPv4 and IPv6", func(t *testing.T) {
		t.Parallel()
		sink := listen(t, "tcp", "127.0.0.1:0")
		works(t, "connect to a sink outside", s.outside(t, probe.Do("connect", "tcp", sink.addr))[0])
		var ops []probe.Op
		for _, to := range []string{"192.0.2.1:80", "1.1.1.1:443", "8.8.8.8:53", "1.1.1.1:853", "8.8.8.8:443", "[2001:db8::1]:443", "[2606:4700:4700::1111]:443", "[2606:4700:4700::1111]:853", "[::ffff:192.0.2.1]:80",
			"169.254.169.254:80", "[fd00:ec2::254]:80", "168.63.129.16:80", "100.100.100.200:80", "10.0.0.1:22", "192.168.0.1:80", "172.17.0.1:2375"} {
			ops = append(ops, probe.Do("connect", "tcp", to))
		}
		for i, a := range s.reaching(t, kind, ops...) {
			wantErr(t, "connect to "+ops[i].Args[1], a, unreachable...)
			if a.N > 1000 {
				t.Errorf("connect to %s took %d ms to fail", ops[i].Args[1], a.N)
			}
		}
	})

	t.Run("what was tried past the proxy is counted, and nothing else is", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			ops  []probe.Op
			want uint64
		}{
			{[]probe.Op{probe.Do("connect", "tcp", "127.0.0.1:1")}, 0}, // refused: loopback is the box's own
			{[]probe.Op{probe.Do("connect", "tcp", "192.0.2.1:80"), probe.Do("udp", "192.0.2.1:53", "ask"), probe.Do("connect", "tcp", "192.0.2.2:80")}, 3},
		} {
			j := s.probing(t, c.ops...)
			j.Network = kind
			if kind == box.NetworkAllowlist {
				j.proxy = newWorld(t, "good.test").proxy
			}
			if s.differ.OwnKernel {
				c.want = 0
			}
			if r := s.run(t, j); r.NoRoute != c.want {
				t.Errorf("%d attempts were counted, want %d: %s", r.NoRoute, c.want, r.stdout)
			}
		}
	})

	t.Run("A3 B18 B21 B27 a datagram to anywhere is lost, whatever it asks for", func(t *testing.T) {
		t.Parallel()
		sink := listen(t, "udp", "127.0.0.1:0")
		works(t, "send outside", s.outside(t, probe.Do("udp", sink.addr, "outside"))[0])
		if !sink.got(1) {
			t.Error("control: a datagram from outside the box did not arrive")
		}
		ops := []probe.Op{probe.Do("udp", sink.addr, "inside")}
		// QUIC, DNS, and what finds names without a server: mDNS and LLMNR.
		for _, to := range []string{"192.0.2.1:443", "[2001:db8::1]:53", "8.8.8.8:53", "224.0.0.251:5353", "224.0.0.252:5355"} {
			ops = append(ops, probe.Do("udp", to, "ask"))
		}
		a := s.reaching(t, kind, ops...)
		for i, op := range ops[1:] {
			wantErr(t, "send a datagram to "+op.Args[0], a[i+1], unreachable...)
		}
		time.Sleep(50 * time.Millisecond)
		if n := sink.count.Load(); n != 1 {
			t.Errorf("the sink has %d datagrams, want only the one from outside", n)
		}
	})

	t.Run("A4 A5 A6 A12 sockets of other kinds are refused or reach nothing", func(t *testing.T) {
		t.Parallel()
		n := strconv.Itoa
		const far, mptcp, vsock = "192.0.2.1:80", 262, unix.AF_VSOCK
		kinds := []struct {
			what string
			op   probe.Op
			want []string
		}{
			{"raw ICMP", probe.Do("socket", n(unix.AF_INET), n(unix.SOCK_RAW), n(unix.IPPROTO_ICMP)), noSocket},
			{"raw ICMPv6", probe.Do("socket", n(unix.AF_INET6), n(unix.SOCK_RAW), n(unix.IPPROTO_ICMPV6)), noSocket},
			{"raw IP", probe.Do("socket", n(unix.AF_INET), n(unix.SOCK_RAW), n(unix.IPPROTO_RAW)), noSocket},
			{"packet", probe.Do("socket", n(unix.AF_PACKET), n(unix.SOCK_RAW), "0x0300"), noSocket},
			{"packet datagram", probe.Do("socket", n(unix.AF_PACKET), n(unix.SOCK_DGRAM), "0x0300"), noSocket},
			{"vsock", probe.Do("socket", n(vsock), n(unix.SOCK_STREAM), "0"), []string{"EAFNOSUPPORT"}},
			{"vsock datagram", probe.Do("socket", n(vsock), n(unix.SOCK_DGRAM), "0"), []string{"EAFNOSUPPORT"}},
			{"ping", probe.Do("reach", n(unix.AF_INET), n(unix.SOCK_DGRAM), n(unix.IPPROTO_ICMP), far), append(noSocket, unreachable...)},
			{"SCTP", probe.Do("reach", n(unix.AF_INET), n(unix.SOCK_STREAM), n(unix.IPPROTO_SCTP), far), append(noSocket, unreachable...)},
			{"DCCP", probe.Do("reach", n(unix.AF_INET), "6", "33", far), append(noSocket, unreachable...)},
			{"MPTCP", probe.Do("reach", n(unix.AF_INET), n(unix.SOCK_STREAM), n(mptcp), far), append(noSocket, unreachable...)},
			{"TCP", probe.Do("reach", n(unix.AF_INET), n(unix.SOCK_STREAM), "0", far), unreachable},
		}
		var ops []probe.Op
		for _, k := range kinds {
			ops = append(ops, k.op)
		}
		ops = append(ops, probe.Do("socket", n(unix.AF_INET), n(unix.SOCK_STREAM), "0"), probe.Do("socket", n(unix.AF_UNIX), n(unix.SOCK_STREAM), "0"))
		a := s.reaching(t, kind, ops...)
		for i, k := range kinds {
			wantErr(t, k.what, a[i], k.want...)
		}
		works(t, "a TCP socket", a[len(kinds)])
		works(t, "a UNIX socket", a[len(kinds)+1])
		for i, x := range s.inOwnNamespaces(t, ops[0], ops[3]) {
			works(t, "raw and packet sockets with all powers over an own network, "+itoa(i), x)
		}
	})

	t.Run("A9 A10 the network cannot be changed, not even asked about its filters", func(t *testing.T) {
		t.Parallel()
		ops := []probe.Op{probe.Do("add address"), probe.Do("add route"), probe.Do("add link"), probe.Do("ask netfilter"), probe.Do("open", "/dev/net/tun", "rw")}
		a := s.reaching(t, kind, append(ops, probe.Do("connect", "tcp", "192.0.2.1:80"), probe.Do("read", "/proc/net/route"), probe.Do("read", "/proc/net/dev"))...)
		for i, op := range ops {
			wantErr(t, op.Do, a[i], "EPERM", "EACCES", "ENOENT", "EPROTONOSUPPORT", "ENOTTY") // the last: there is no such request
		}
		wantErr(t, "connect afterwards", a[5], unreachable...)
		if strings.Count(a[6].Text, "\n") > 1 {
			t.Errorf("the box has routes: %s", clip(a[6].Text))
		}
		for line := range strings.Lines(a[7].Text) {
			if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name != "lo" && !strings.Contains(name, "|") && !strings.Contains(line, " 0 ") {
				t.Errorf("the box has the interface %s, in use", name)
			}
		}
		own := s.inOwnNamespaces(t, probe.Do("add address"), probe.Do("ask netfilter"))
		works(t, "add an address to an own network", own[0])
		if own[1].Err == "EPERM" {
			t.Errorf("control: with all powers over an own network: %s", tell(own[1]))
		}
	})

	t.Run("A13 E62 services of the host are not there, one's own loopback is", func(t *testing.T) {
		t.Parallel()
		sink := listen(t, "tcp", "127.0.0.1:0")
		works(t, "connect outside", s.outside(t, probe.Do("connect", "tcp", sink.addr))[0])
		if !sink.got(1) {
			t.Error("control: the connection from outside did not arrive")
		}
		before := sink.count.Load()
		a := s.reaching(t, kind, probe.Do("connect", "tcp", sink.addr), probe.Do("connect", "tcp", "127.0.0.1:22"), probe.Do("connect", "tcp", "localhost:2375"), probe.Do("own loopback", "127.0.0.1"))
		for i := range 3 {
			wantErr(t, "connect to the host's loopback", a[i], "ECONNREFUSED")
		}
		works(t, "connect to oneself", a[3])
		if n := sink.count.Load(); n != before {
			t.Errorf("the host's service got %d connections from the box", n-before)
		}
	})

	t.Run("E62 the host's own addresses are unreachable", func(t *testing.T) {
		t.Parallel()
		Need(t, "address")
		to := hostAddress()
		sink := listen(t, "tcp", net.JoinHostPort(to, "0"))
		works(t, "connect outside", s.outside(t, probe.Do("connect", "tcp", sink.addr))[0])
		wantErr(t, "connect", s.reaching(t, kind, probe.Do("connect", "tcp", sink.addr))[0], unreachable...)
	})

	t.Run("A2 the host's IPv6 loopback is not the box's", func(t *testing.T) {
		t.Parallel()
		Need(t, "ipv6")
		sink := listen(t, "tcp", "[::1]:0")
		works(t, "connect outside", s.outside(t, probe.Do("connect", "tcp", sink.addr))[0])
		wantErr(t, "connect", s.reaching(t, kind, probe.Do("connect", "tcp", sink.addr))[0], append([]string{"ECONNREFUSED"}, unreachable...)...)
	})

	t.Run("A16 from the first moment the network is what it is to be", func(t *testing.T) {
		t.Parallel()
		// A program that does nothing else first, and tries once.
		for range 5 {
			j := s.probing(t, probe.Do("connect", "tcp", "192.0.2.1:80"), probe.Do("connect", "tcp", "127.0.0.1:"+itoa(box.ProxyPort)))
			want := []string{"ECONNREFUSED"}
			if kind == box.NetworkAllowlist {
				j.Network, j.proxy, want = kind, newWorld(t, "good.test").proxy, []string{""}
			}
			a := s.run(t, j).answers(t, 2)
			wantErr(t, "connect past the proxy", a[0], unreachable...)
			wantErr(t, "connect to the proxy's port", a[1], want...)
		}
	})
}

// sink is a service on the host that counts what reaches it.
type sink struct {
	addr  string
	count atomic.Int64
}

func listen(t testing.TB, network, at string) *sink {
	t.Helper()
	k := &sink{}
	if network == "udp" {
		c, err := net.ListenPacket(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		k.addr = c.LocalAddr().String()
		go func() {
			buf := make([]byte, 1500)
			for {
				if _, _, err := c.ReadFrom(buf); err != nil {
					return
				}
				k.count.Add(1)
			}
		}()
		return k
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	k.addr = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.count.Add(1)
			go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	return k
}

func (k *sink) got(n int64) bool {
	for range 200 {
		if k.count.Load() >= n {
			return true
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false
}

// hostAddress is an IPv4 address of this machine that is not loopback; empty if
// it has none.
func hostAddress() string {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr().String()
		}
	}
	return ""
}
