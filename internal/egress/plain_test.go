package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestResponsesArriveWhole(t *testing.T) {
	big := strings.Repeat("0123456789", 100_000)
	w, _, _ := plainWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/length":
			rw.Header().Set("Content-Length", fmt.Sprint(len(big)))
			io.WriteString(rw, big)
		case "/chunked":
			io.WriteString(rw, big[:10])
			rw.(http.Flusher).Flush()
			io.WriteString(rw, big[10:])
		case "/none":
			rw.WriteHeader(204)
		case "/unchanged":
			rw.WriteHeader(304)
		case "/hints":
			rw.Header().Set("Link", "x")
			rw.WriteHeader(103)
			io.WriteString(rw, "after")
		case "/early":
			rw.WriteHeader(413)
			io.WriteString(rw, "too much")
		case "/echo":
			io.Copy(rw, r.Body)
		}
	}, "good.test")
	c := w.conn()
	br := bufio.NewReader(c)
	do := func(method, path, fields, body string) (*http.Response, string) {
		t.Helper()
		fmt.Fprintf(c, "%s http://good.test%s HTTP/1.1\r\nHost: good.test\r\n%s\r\n%s", method, path, fields, body)
		resp, err := http.ReadResponse(br, &http.Request{Method: method})
		for err == nil && resp.StatusCode < 200 {
			resp, err = http.ReadResponse(br, &http.Request{Method: method})
		}
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s %s: body: %v", method, path, err)
		}
		return resp, string(b)
	}
	// All on one connection: each response ends exactly where the next begins.
	if _, b := do("GET", "/length", "", ""); b != big {
		t.Errorf("length: %d bytes", len(b))
	}
	if _, b := do("GET", "/chunked", "", ""); b != big {
		t.Errorf("chunked: %d bytes", len(b))
	}
	if r, b := do("HEAD", "/length", "", ""); b != "" || r.ContentLength != int64(len(big)) {
		t.Errorf("HEAD: length %d, body %q", r.ContentLength, b)
	}
	if r, b := do("GET", "/none", "", ""); r.StatusCode != 204 || b != "" {
		t.Errorf("204: %d %q", r.StatusCode, b)
	}
	if r, b := do("GET", "/unchanged", "", ""); r.StatusCode != 304 || b != "" {
		t.Errorf("304: %d %q", r.StatusCode, b)
	}
	if _, b := do("GET", "/hints", "", ""); b != "after" {
		t.Errorf("after 103: %q", b)
	}
	if _, b := do("POST", "/echo", "Content-Length: 5\r\n", "hello"); b != "hello" {
		t.Errorf("POST with a length: %q", b)
	}
	if _, b := do("POST", "/echo", "Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"); b != "hello!" {
		t.Errorf("POST in chunks: %q", b)
	}
	fmt.Fprintf(c, "POST http://good.test/echo HTTP/1.1\r\nHost: good.test\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("a client that waits for 100: %q, %v", line, err)
	}
	br.ReadString('\n')
	io.WriteString(c, "ok")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "ok" {
		t.Errorf("after 100: %q", b)
	}
	// A server that answers before it has the whole body.
	if r, b := do("POST", "/early", "Content-Length: 100000000\r\n", "some"); r.StatusCode != 413 || b != "too much" {
		t.Errorf("early answer: %d %q", r.StatusCode, b)
	}
	wantOnly(t, w.end(), "good.test", map[string]uint64{"allowed": 10})
}

func TestACutResponseIsSeenToBeCut(t *testing.T) {
	w := newWorld(t, "good.test")
	w.serveRaw(goodAddr+":80", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	})
	w.start()
	c := w.conn()
	io.WriteString(c, "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("half a response was taken for a whole one: %q", b)
	}
}

func TestAClientThatGoesAwayMidBodyIsNoDenial(t *testing.T) {
	w, _, _ := plainWorld(t, func(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, "good.test")
	for _, raw := range []string{
		"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 100\r\n\r\nhalf",
		"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
	} {
		w.ask(raw)
	}
	for _, r := range w.end() {
		if r.Verdict == Denied {
			t.Errorf("%+v", r)
		}
	}
}
