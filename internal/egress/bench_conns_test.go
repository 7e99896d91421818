package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// peer is a CONNECT proxy that decides nothing: it reads a head, dials one
// address and copies. What ours takes beyond it is the price of a decision.
func peer(b *testing.B, w *world) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	to := w.hosts[goodAddr+":443"].ln.Addr().String()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					line, err := br.ReadString('\n')
					if err != nil {
						return
					}
					if line == "\r\n" {
						break
					}
				}
				up, err := SystemDial(context.Background(), "tcp", to)
				if err != nil {
					return
				}
				defer up.Close()
				io.WriteString(c, established)
				go func() {
					io.Copy(up, c)
					closeWrite(up)
				}()
				io.Copy(c, up)
			}()
		}
	}()
	return ln.Addr().String()
}

// open asks for a tunnel and says how long the answer took.
func open(addr string) (net.Conn, time.Duration, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	io.WriteString(c, "CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n")
	if _, err := io.ReadFull(c, make([]byte, len(established))); err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, time.Since(began), nil
}

// BenchmarkConnectLatency is the time from CONNECT to its answer, beside a proxy
// that decides nothing. One iteration asks both, so that a machine's bad moment
// hits both alike.
func BenchmarkConnectLatency(b *testing.B) {
	w := echoWorld(b)
	other := peer(b, w)
	var ours, theirs []time.Duration
	for b.Loop() {
		for _, p := range []struct {
			addr string
			took *[]time.Duration
		}{{w.addr, &ours}, {other, &theirs}} {
			c, d, err := open(p.addr)
			if err != nil {
				b.Fatal(err)
			}
			*p.took = append(*p.took, d)
			c.Close()
		}
	}
	at := func(list []time.Duration, q float64) float64 {
		slices.Sort(list)
		return float64(list[int(float64(len(list)-1)*q)].Microseconds())
	}
	for _, q := range []float64{0.5, 0.99} {
		b.ReportMetric(at(ours, q), fmt.Sprintf("p%.0f-µs", q*100))
		b.ReportMetric(at(theirs, q), fmt.Sprintf("peer-p%.0f-µs", q*100))
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkNewConnections opens tunnels as fast as a few clients can, each with
// a hello and its first byte back.
func BenchmarkNewConnections(b *testing.B) {
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	run := func(b *testing.B, addr string) {
		b.SetParallelism(4)
		before := cpuTime(b)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c, _, err := open(addr)
				if err != nil {
					b.Error(err)
					return
				}
				c.Write(hello)
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					b.Error(err)
				}
				c.(*net.TCPConn).SetLinger(0) // no port may wait out its minute here
				c.Close()
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "conns/s")
		// Of client, server and proxy together, which a busy machine changes less.
		b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/conn")
	}
	b.Run("via=peer", func(b *testing.B) { run(b, peer(b, echoWorld(b))) })
	b.Run("via=proxy", func(b *testing.B) { run(b, echoWorld(b).addr) })
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDenials counts and logs denials as fast as they can be made.
func BenchmarkDenials(b *testing.B) {
	var l Ledger
	var lines atomic.Int64
	l.Log = writerFunc(func(p []byte) (int, error) {
		for _, c := range p {
			if c == '\n' {
				lines.Add(1)
			}
		}
		return len(p), nil
	})
	p := Policy{Allow: rules(b, "good.test")}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		d := p.Decide(Request{"evil.test", 443})
		l.add(outcome{Denied, d.Reason, d.Rule}.attempt("evil.test", 443, ProtocolConnect)).ended(trace{began: now}, 0, 0, now)
	}
	if err := l.Flush(); err != nil {
		b.Fatal(err)
	}
	if n := uint64(lines.Load()); n != l.Records()[0].Count && l.sink.omitted == 0 && n < l.Records()[0].Count-l.sink.lost {
		b.Fatalf("%d lines for %d denials", n, l.Records()[0].Count)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "denials/s")
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// BenchmarkIdleTunnels says what an open, silent tunnel holds: the heap and the
// stacks, ours and those of the test's own two ends.
func BenchmarkIdleTunnels(b *testing.B) {
	const n = 1000
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	w := newWorld(b, "good.test")
	o := w.listen(goodAddr + ":443")
	var mu sync.Mutex
	var held []net.Conn
	go func() {
		for {
			c, err := o.ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "x")
			mu.Lock()
			held = append(held, c)
			mu.Unlock()
		}
	}()
	b.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range held {
			c.Close()
		}
	})
	w.start()
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	var each float64
	for b.Loop() {
		before := inUse()
		var conns []net.Conn
		for range n {
			c, _, err := open(w.addr)
			if err != nil {
				b.Fatal(err)
			}
			c.Write(hello)
			io.ReadFull(c, make([]byte, 1))
			conns = append(conns, c)
		}
		each = float64(inUse()-before) / n
		for _, c := range conns {
			c.Close()
		}
		w.waitActive(0)
	}
	b.ReportMetric(each, "B/tunnel")
	b.ReportMetric(0, "ns/op")
}
