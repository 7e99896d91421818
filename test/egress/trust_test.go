package egress_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// Where the host trusts more than usual, as on a runner whose firewall opens
// TLS, boxes trust the same, and only then.
func TestABoxTrustsTheCertificatesThatItsHostDoes(t *testing.T) {
	const script = `
- {id: curl, egressAllow: [origin.test], run: 'curl -fsS https://origin.test/a'}
- id: python
  egressAllow: [origin.test]
  language: python
  run: |
    import urllib.request
    print(urllib.request.urlopen("https://origin.test/b", timeout=10).read().decode().strip())
- id: git
  egressAllow: [origin.test]
  run: 'git ls-remote https://origin.test/c.git 2>said || true; cat said'
`
	n := newInternet(t)
	// The bundle of the host with one more, as an administrator would make it.
	var bundle []byte
	for _, p := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"} {
		if b, err := os.ReadFile(p); err == nil {
			bundle = b
			break
		}
	}
	file := filepath.Join(boxtest.OpenDir(t), "bundle.pem")
	if err := os.WriteFile(file, append(bundle, n.ca...), 0o644); err != nil {
		t.Fatal(err)
	}
	eachEngine(t, func(t *testing.T, engine string) {
		r := start(t, job{engine: engine, lab: n.lab, env: []string{"SSL_CERT_FILE=" + file}, steps: "steps:" + script})
		r.exits(0)
		for _, id := range []string{"curl", "python"} {
			if got := r.stdout(id); got != "hello from origin.test" {
				r.errorf("with the host's bundle, %s got %q, %q", id, got, r.stderr(id))
			}
		}
		// git got as far as being told that there is no repository.
		if got := n.good.requests(); len(got) != 3 {
			r.errorf("with the host's bundle, the origin was asked %v, want once by each client", got)
		}

		// The control: without it, nobody gets past the handshake.
		r = start(t, job{engine: engine, lab: n.lab, steps: "defaults: {continueOnError: true}\nsteps:" + script})
		r.exits(0)
		for _, id := range []string{"curl", "python"} {
			if st := r.step(id); st.Status != "failed" || st.ExitCode == nil || *st.ExitCode == 0 || st.Fault != nil {
				r.errorf("without the bundle, %s: %s, %q", id, st.Status, r.stdout(id))
			}
			if e := r.only(id, "origin.test", 443); e.Verdict != "allowed" {
				r.errorf("without the bundle, %s: the ledger has %+v", id, e)
			}
		}
		if got := n.good.requests(); len(got) != 0 {
			r.errorf("without the bundle, the origin was asked %v", got)
		}
	})
}
