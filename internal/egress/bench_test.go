package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			var list []string
			for i := range n - 1 {
				list = append(list, fmt.Sprintf("h%d.example.test", i))
			}
			p := Policy{Allow: rules(b, append(list, "*.good.test")...)}
			b.ReportAllocs()
			for b.Loop() {
				if !p.Decide(Request{"sub.good.test", 443}).Allow {
					b.Fatal("refused")
				}
			}
		})
	}
}

// echoWorld has good.test:443 send back what it gets.
func echoWorld(b *testing.B) *world {
	w := newWorld(b, "good.test")
	w.serveRaw(goodAddr+":443", func(c net.Conn) { io.Copy(c, c) })
	w.proxy.HostAddrs = SystemHostAddrs // its cost belongs to a decision
	return w.start()
}

// BenchmarkConnect is a connection, a hello and its first byte back; direct is
// the same without a proxy, so the difference is what the proxy adds.
func BenchmarkConnect(b *testing.B) {
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	first := make([]byte, 1)
	b.Run("via=direct", func(b *testing.B) {
		w := echoWorld(b)
		addr := w.hosts[goodAddr+":443"].ln.Addr().String()
		for b.Loop() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			c.Write(hello)
			if _, err := io.ReadFull(c, first); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	b.Run("via=proxy", func(b *testing.B) {
		w := echoWorld(b)
		for b.Loop() {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				b.Fatal(err)
			}
			io.WriteString(c, "CONNECT good.test:443 HTTP/1.1\r\n\r\n")
			if _, err := io.ReadFull(c, make([]byte, len(established))); err != nil {
				b.Fatal(err)
			}
			c.Write(hello)
			if _, err := io.ReadFull(c, first); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	b.Run("via=proxy-denied", func(b *testing.B) {
		w := echoWorld(b)
		for b.Loop() {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				b.Fatal(err)
			}
			io.WriteString(c, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}

// BenchmarkThroughput is one stream from a server, beside a proxy that does
// nothing but io.Copy.
func BenchmarkThroughput(b *testing.B) {
	const block = 1 << 20
	hello := records(makeHello(sniExt("good.test")), 1<<14)
	pump := func(c net.Conn) { // after the hello: blocks, for as long as anyone reads
		io.ReadFull(c, make([]byte, len(hello)))
		buf := make([]byte, block)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}
	read := func(b *testing.B, c net.Conn) {
		buf := make([]byte, block)
		b.SetBytes(block)
		for b.Loop() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
	}
	world := func(b *testing.B) *world {
		w := newWorld(b, "good.test")
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() { pump(c); c.Close() }()
			}
		}()
		w.hosts[goodAddr+":443"] = &origin{ln: ln}
		return w.start()
	}
	b.Run("via=direct", func(b *testing.B) {
		w := world(b)
		c, err := w.dial(context.Background(), "tcp", goodAddr+":443")
		if err != nil {
			b.Fatal(err)
		}
		c.Write(hello)
		read(b, c)
	})
	b.Run("via=iocopy", func(b *testing.B) {
		w := world(b)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer ln.Close()
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := w.dial(context.Background(), "tcp", goodAddr+":443")
			if err != nil {
				return
			}
			go io.Copy(up, c)
			io.Copy(c, up)
			up.Close()
		}()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		c.Write(hello)
		read(b, c)
	})
	b.Run("via=proxy", func(b *testing.B) {
		w := world(b)
		c, code := w.connect("good.test:443")
		if code != 200 {
			b.Fatal(code)
		}
		c.Write(hello)
		read(b, c)
	})
}
