package egress

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers for good.test and for nothing else, and remembers what it
// was asked.
type nameServer struct {
	pc    net.PacketConn
	mu    sync.Mutex
	asked []string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	s := &nameServer{pc: pc}
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			s.mu.Lock()
			s.asked = append(s.asked, q.Name.String())
			s.mu.Unlock()
			m.Response, m.Additionals = true, nil
			h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
			switch {
			case q.Name.String() != "good.test.":
				m.RCode = dnsmessage.RCodeNameError
			case q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 10}}})
			case q.Type == dnsmessage.TypeAAAA: // an IPv4 address in disguise
				a := dnsmessage.AAAAResource{}
				copy(a.AAAA[:], net.ParseIP("10.0.0.1").To16())
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &a})
			}
			if out, err := m.Pack(); err == nil {
				pc.WriteTo(out, from)
			}
		}
	}()
	return s
}

// Attack 27, and the disguises of attack 61.
func TestTheSystemResolverTakesNamesAsTheyStand(t *testing.T) {
	s := newNameServer(t)
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return net.Dial("udp", s.pc.LocalAddr().String())
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	got, err := resolveWith(ctx, r, "good.test")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, a := range got {
		list = append(list, a.String())
	}
	slices.Sort(list)
	if want := []string{"10.0.0.1", "192.0.2.10"}; !slices.Equal(list, want) {
		t.Errorf("good.test: got %v, want %v", list, want)
	}
	for _, host := range []string{"gone.test", "dotless"} {
		if got, err := resolveWith(ctx, r, host); err == nil {
			t.Errorf("%s: %v", host, got)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.asked {
		if !slices.Contains([]string{"good.test.", "gone.test.", "dotless."}, name) {
			t.Errorf("the name server was asked for %s", fmt.Sprintf("%q", name))
		}
	}
	if len(s.asked) == 0 {
		t.Error("the name server was never asked")
	}
}

func TestLocalhostIsItsOwnWithoutAQuestion(t *testing.T) {
	got, err := SystemResolve(t.Context(), "localhost")
	if want := addrs("127.0.0.1", "::1"); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
