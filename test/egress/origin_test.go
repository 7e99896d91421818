package egress_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// origin is an HTTP and HTTPS server of the lab that writes down what reaches
// it, in bytes as well.
type origin struct {
	mu    sync.Mutex
	seen  []string // host and path of each request
	bytes int64    // that clients sent
}

// internet is what the lab has for HTTP clients: the origin they may reach, and
// places that they must not.
type internet struct {
	*lab
	good, evil, metadata, lan *origin
	cert                      tls.Certificate
	ca                        []byte // PEM; who trusts it trusts every server here
}

func newInternet(t *testing.T) *internet {
	t.Helper()
	n := &internet{lab: newLab(t)}
	cert, ca := certificate(t, "origin.test", "www.origin.test", "a.origin.test", "evil.test")
	n.cert, n.ca = cert, ca
	n.good = n.origin(t, "192.0.2.10", cert)
	n.evil = n.origin(t, "198.51.100.66", cert)
	n.metadata = n.origin(t, "169.254.169.254", cert)
	n.lan = n.origin(t, "10.77.0.5", cert)
	return n
}

func (n *internet) origin(t *testing.T, addr string, cert tls.Certificate) *origin {
	t.Helper()
	o := &origin{}
	for _, secure := range []bool{false, true} {
		port := "80"
		if secure {
			port = "443"
		}
		ln := net.Listener(counting{n.listen(t, net.JoinHostPort(addr, port)), o})
		if secure {
			ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}})
		}
		s := &http.Server{Handler: o, ErrorLog: log.New(io.Discard, "", 0)} // handshakes that were cut are expected
		go s.Serve(ln)
		t.Cleanup(func() { s.Close() })
	}
	return o
}

// ServeHTTP answers with as many bytes as the query's n says.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.seen = append(o.seen, r.Host+r.URL.Path)
	o.mu.Unlock()
	if n, err := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		io.CopyN(w, zeros{}, n)
		return
	}
	io.WriteString(w, "hello from "+r.Host+"\n")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// requests gives what has come since it was last asked.
func (o *origin) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.seen
	o.seen = nil
	slices.Sort(out)
	return out
}

// untouched fails unless not one byte has come.
func (o *origin) untouched(t *testing.T, name string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) > 0 || o.bytes > 0 {
		t.Errorf("%s was reached: %v, %d bytes", name, o.seen, o.bytes)
	}
}

type counting struct {
	net.Listener
	o *origin
}

func (l counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{c, l.o}, nil
}

type countedConn struct {
	net.Conn
	o *origin
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.o.mu.Lock()
	c.o.bytes += int64(n)
	c.o.mu.Unlock()
	return n, err
}

func certificate(t *testing.T, names ...string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// serveFiles serves a folder over HTTPS at origin.test:8443 while f runs.
func (n *internet) serveFiles(t *testing.T, dir string, f func()) {
	t.Helper()
	s := &http.Server{Handler: http.FileServer(http.Dir(dir))}
	ln := tls.NewListener(n.listen(t, "192.0.2.10:8443"), &tls.Config{Certificates: []tls.Certificate{n.cert}})
	go s.Serve(ln)
	defer s.Close()
	f()
}

// gitRepository makes repo.git, as a plain web server can serve it.
func gitRepository(t *testing.T, parent string) string {
	t.Helper()
	dir := filepath.Join(parent, "web")
	script := `set -e
git init -q --initial-branch=main work
echo a file that came by https > work/hello.txt
git -C work add hello.txt
git -C work -c user.name=a -c user.email=a@example.com commit -q -m one
git clone -q --bare work repo.git
git -C repo.git update-server-info`
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return dir
}
