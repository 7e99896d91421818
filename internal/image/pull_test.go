package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
)

// aRegistry is a registry in this process. Between it and whoever asks stands a
// function that may do something else, and a count of what was asked.
type aRegistry struct {
	*httptest.Server
	asked  atomic.Int64
	blobs  atomic.Int64
	before func(http.ResponseWriter, *http.Request) bool // true: it has answered
}

func newRegistry(t testing.TB) *aRegistry {
	t.Helper()
	r := &aRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodGet {
			r.asked.Add(1)
			if strings.Contains(q.URL.Path, "/blobs/") {
				r.blobs.Add(1)
			}
			if r.before != nil && r.before(w, q) {
				return
			}
		}
		inner.ServeHTTP(w, q)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *aRegistry) host() string { return strings.TrimPrefix(r.URL, "http://") }

// put uploads as bytes, so that what is wrong stays wrong.
func (r *aRegistry) put(t testing.TB, repo string, p parts, tags ...string) {
	t.Helper()
	for d, b := range p.blobs {
		if d != sum(p.manifest) {
			r.send(t, http.MethodPost, "/v2/"+repo+"/blobs/uploads/?digest="+d, "application/octet-stream", b)
		}
	}
	for _, tag := range append(tags, sum(p.manifest)) {
		r.send(t, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, "application/vnd.oci.image.manifest.v1+json", p.manifest)
	}
}

func (r *aRegistry) send(t testing.TB, method, path, kind string, body []byte) {
	t.Helper()
	q, err := http.NewRequest(method, r.URL+path, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", kind)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s: %s %s", method, path, resp.Status, b)
	}
}

func ref(t testing.TB, text string) Ref {
	t.Helper()
	r, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pulled(t testing.TB, p *Puller, r Ref) *Image {
	t.Helper()
	img, err := p.Pull(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func TestPull(t *testing.T) {
	reg := newRegistry(t)
	below, above := aTar(t, file("a", "1"), file("gone", "x")), aTar(t, file("a", "2"), file(".wh.gone", ""))
	p := imageOf(t, map[string]any{"config": map[string]any{
		"Env": []string{"A=b"}, "User": "app", "WorkingDir": "/srv", "Entrypoint": []string{"/run"}, "Cmd": []string{"it"}, "Labels": map[string]string{"l": "v"},
		"Volumes": map[string]any{"/data": map[string]any{}}, "ExposedPorts": map[string]any{"80/tcp": map[string]any{}}, "Healthcheck": map[string]any{"Test": []string{"CMD", "x"}},
	}}, below, above)
	other := imageOf(t, map[string]any{"architecture": "m68k"}, below)
	reg.put(t, "owner/app", p, "v1")
	reg.put(t, "owner/app", other)
	index := anIndex(other.descriptor(map[string]any{"platform": map[string]any{"os": "linux", "architecture": "m68k"}}), p.descriptor(map[string]any{"platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}}))
	reg.send(t, http.MethodPut, "/v2/owner/app/manifests/multi", "application/vnd.oci.image.index.v1+json", index)

	s, _ := aStore(t)
	var said []Progress
	var mu sync.Mutex
	puller := &Puller{Store: s, Progress: func(p Progress) { mu.Lock(); said = append(said, p); mu.Unlock() }}
	img := pulled(t, puller, ref(t, reg.host()+"/owner/app:v1"))
	if img.Digest != sum(p.manifest) || img.ID != sum(p.config) {
		t.Errorf("it is %s with the id %s, want %s and %s", img.Digest, img.ID, sum(p.manifest), sum(p.config))
	}
	if d := cmp.Diff(map[string]string{"a": "2"}, tree(t, img.Root)); d != "" {
		t.Error(d)
	}
	want := Config{Env: []string{"A=b"}, User: "app", WorkingDir: "/srv", Entrypoint: []string{"/run"}, Cmd: []string{"it"}, Labels: map[string]string{"l": "v"}, Volumes: []string{"/data"}, ExposedPorts: []string{"80/tcp"}, Healthcheck: []string{"CMD", "x"}}
	if d := cmp.Diff(want, img.Config); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"USER app", "WORKDIR /srv", `ENTRYPOINT ["/run"]`, `CMD ["it"]`, `VOLUME ["/data"]`, "EXPOSE 80/tcp", `HEALTHCHECK ["CMD","x"]`, `LABEL ["l"]`}, img.Config.NotUsed()); d != "" {
		t.Error(d)
	}
	last := Progress{}
	for _, p := range said {
		if p.Stage == Fetching {
			last = p
		}
	}
	if last.Done != last.Total || last.Total != int64(len(p.layers[0])+len(p.layers[1])) {
		t.Errorf("it ended with %+v", last)
	}

	t.Run("an index leads to the image for this machine, and its own digest is the one", func(t *testing.T) {
		again := pulled(t, puller, ref(t, reg.host()+"/owner/app:multi"))
		if again.Digest != sum(index) || again.ID != img.ID || again.Root != img.Root {
			t.Errorf("%+v", again)
		}
		if d, err := puller.Resolve(t.Context(), ref(t, reg.host()+"/owner/app:multi")); err != nil || d != sum(index) {
			t.Errorf("resolved: %s (%v)", d, err)
		}
		pinned := pulled(t, puller, ref(t, reg.host()+"/owner/app:multi@"+sum(index)))
		if pinned.ID != img.ID {
			t.Errorf("by its digest: %+v", pinned)
		}
	})
	t.Run("a layer that another image has is not fetched again", func(t *testing.T) {
		third := imageOf(t, nil, below, aTar(t, file("c", "3")))
		reg.put(t, "owner/other", third, "latest")
		was := reg.blobs.Load()
		pulled(t, puller, ref(t, reg.host()+"/owner/other"))
		if n := reg.blobs.Load() - was; n != 2 { // its configuration, and its own layer
			t.Errorf("%d parts were fetched, want 2", n)
		}
	})
	t.Run("what is in the store asks nobody", func(t *testing.T) {
		was := reg.asked.Load()
		pulled(t, puller, ref(t, reg.host()+"/owner/app:v1"))
		found, err := s.Lookup(ref(t, reg.host()+"/owner/app:v1"))
		if err != nil {
			t.Fatal(err)
		}
		found.Close()
		if n := reg.asked.Load() - was; n != 0 {
			t.Errorf("the registry was asked %d times", n)
		}
	})
}

func TestN153ADigestIsHeld(t *testing.T) {
	p, q := imageOf(t, nil, aTar(t, file("a", "good"))), imageOf(t, nil, aTar(t, file("a", "evil")))
	index := anIndex(p.descriptor(map[string]any{"platform": map[string]any{"os": "linux", "architecture": runtime.GOARCH}}))
	instead := func(of string, b []byte) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, of) {
				return false
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", of)
			_, _ = w.Write(b)
			return true
		}
	}
	for _, tc := range []struct {
		sentence string
		before   func(http.ResponseWriter, *http.Request) bool
		of       string
	}{
		{"a registry that gives another manifest", instead(sum(p.manifest), q.manifest), "@" + sum(p.manifest)},
		{"a registry that gives another manifest from its index", instead(sum(p.manifest), q.manifest), ":multi"},
		{"a registry that gives another configuration", instead(sum(p.config), q.config), "@" + sum(p.manifest)},
		{"a registry that gives another layer", instead(sum(p.layers[0]), q.layers[0]), "@" + sum(p.manifest)},
		{"a registry that gives more of a layer", instead(sum(p.layers[0]), append(append([]byte{}, p.layers[0]...), 0)), "@" + sum(p.manifest)},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			reg := newRegistry(t)
			reg.put(t, "app", p, "v1")
			reg.send(t, http.MethodPut, "/v2/app/manifests/multi", "application/vnd.oci.image.index.v1+json", index)
			s, around := aStore(t)
			puller := &Puller{Store: s}
			reg.before = tc.before
			img, err := puller.Pull(t.Context(), ref(t, reg.host()+"/app"+tc.of))
			if err == nil {
				t.Fatalf("it is taken: %+v", img)
			}
			untouched(t, s, around)
			reg.before = nil
			if img := pulled(t, puller, ref(t, reg.host()+"/app"+tc.of)); tree(t, img.Root)["a"] != "good" {
				t.Error("control: the right one is not taken")
			}
		})
	}
	t.Run("a tag that was moved changes nothing for who has its digest", func(t *testing.T) {
		reg := newRegistry(t)
		reg.put(t, "app", p, "v1")
		s, _ := aStore(t)
		puller := &Puller{Store: s}
		digest, err := puller.Resolve(t.Context(), ref(t, reg.host()+"/app:v1"))
		if err != nil {
			t.Fatal(err)
		}
		reg.put(t, "app", q, "v1")
		if img := pulled(t, puller, ref(t, Pin(reg.host()+"/app:v1", digest))); tree(t, img.Root)["a"] != "good" {
			t.Error("the pinned image is the moved one")
		}
		if img := pulled(t, puller, ref(t, reg.host()+"/app:v1")); tree(t, img.Root)["a"] != "evil" {
			t.Error("control: the tag was not moved")
		}
	})
}

func TestN156TheStoreIsWholeOrMissing(t *testing.T) {
	reg := newRegistry(t)
	p := imageOf(t, nil, aTar(t, file("a", "A")))
	reg.put(t, "app", p, "v1")
	r := ref(t, reg.host()+"/app:v1")
	id := strings.TrimPrefix(sum(p.config), "sha256:")
	for sentence, harm := range map[string]func(s *Store) error{
		"the record is missing": func(s *Store) error { return os.Remove(s.at(rootsDir, id, recordName)) },
		"the record is cut":     func(s *Store) error { return os.Truncate(s.at(rootsDir, id, recordName), 20) },
		"the record is empty":   func(s *Store) error { return os.Truncate(s.at(rootsDir, id, recordName), 0) },
		"the record is another's": func(s *Store) error {
			return os.WriteFile(s.at(rootsDir, id, recordName), []byte(`{"version":1,"id":"x"}`), 0o600)
		},
		"the record is of a new form": func(s *Store) error {
			return os.WriteFile(s.at(rootsDir, id, recordName), []byte(`{"version":2,"id":"`+sum(p.config)+`"}`), 0o600)
		},
		"the root is missing": func(s *Store) error { return os.RemoveAll(s.at(rootsDir, id, rootName)) },
		"the root is a link": func(s *Store) error {
			return errors.Join(os.RemoveAll(s.at(rootsDir, id, rootName)), os.Symlink("/etc", s.at(rootsDir, id, rootName)))
		},
		"the record is a link": func(s *Store) error {
			return errors.Join(os.Rename(s.at(rootsDir, id, recordName), s.at("elsewhere")), os.Symlink(s.at("elsewhere"), s.at(rootsDir, id, recordName)))
		},
		"the root can be written by all": func(s *Store) error { return os.Chmod(s.at(rootsDir, id, rootName), 0o777) },
		"the reference is cut":           func(s *Store) error { return os.Truncate(s.at(refsDir, refName(r.String())), 5) },
		"the reference is missing":       func(s *Store) error { return os.Remove(s.at(refsDir, refName(r.String()))) },
		"the layer is missing, and the record": func(s *Store) error {
			return errors.Join(os.RemoveAll(s.at(blobsDir)), os.Mkdir(s.at(blobsDir), 0o700), os.Remove(s.at(rootsDir, id, recordName)))
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			s, _ := aStore(t)
			puller := &Puller{Store: s}
			img, err := puller.Pull(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if err := harm(s); err != nil {
				t.Fatal(err)
			}
			was := reg.asked.Load()
			if found, err := s.Lookup(r); !errors.Is(err, ErrMissing) {
				t.Errorf("it is found: %v (%v)", found, err)
			}
			if n := reg.asked.Load() - was; n != 0 {
				t.Errorf("a look asked the registry %d times", n)
			}
			again := pulled(t, puller, r)
			if d := cmp.Diff(map[string]string{"a": "A"}, tree(t, again.Root)); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("a layer that was changed on disk is refused, and fetched anew by the next pull", func(t *testing.T) {
		s, _ := aStore(t)
		puller := &Puller{Store: s}
		img, err := puller.Pull(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		img.Close()
		h, _ := hexOf(sum(p.layers[0]))
		harmed := append([]byte{}, p.layers[0]...)
		harmed[len(harmed)-1] ^= 1
		if err := errors.Join(os.WriteFile(s.at(blobsDir, h), harmed, 0o600), os.RemoveAll(s.at(rootsDir, id))); err != nil {
			t.Fatal(err)
		}
		if _, err := puller.Pull(t.Context(), r); !errors.Is(err, ErrRefused) {
			t.Errorf("got %v", err)
		}
		pulled(t, puller, r)
	})
	t.Run("a look makes nothing", func(t *testing.T) {
		s, around := aStore(t)
		if _, err := s.Lookup(r); !errors.Is(err, ErrMissing) {
			t.Errorf("%v", err)
		}
		if list, err := os.ReadDir(around); err != nil || len(list) != 0 {
			t.Errorf("there is %v (%v)", list, err)
		}
	})
	t.Run("somebody else's folder is not believed", func(t *testing.T) {
		for sentence, harm := range map[string]func(dir string) error{
			"others may write": func(dir string) error { return os.Chmod(dir, 0o777) },
			"a link": func(dir string) error {
				return errors.Join(os.Rename(dir, dir+"-moved"), os.Symlink(dir+"-moved", dir))
			},
		} {
			s, _ := aStore(t)
			puller := &Puller{Store: s}
			img, err := puller.Pull(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if err := harm(s.Dir); err != nil {
				t.Fatal(err)
			}
			if found, err := puller.Pull(t.Context(), r); !OfHost(err) {
				t.Errorf("%s: got %v (%v), want that it is the host's doing", sentence, found, err)
			}
		}
	})
}

func TestN156ManyPullTheSame(t *testing.T) {
	reg := newRegistry(t)
	p := imageOf(t, nil, aTar(t, file("a", "A"), file("big", strings.Repeat("x", 1<<20))))
	reg.put(t, "app", p, "v1")
	s, _ := aStore(t)
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			own := &Store{Dir: s.Dir} // as another process has it
			img, err := (&Puller{Store: own}).Pull(t.Context(), ref(t, reg.host()+"/app:v1"))
			if err != nil {
				t.Error(err)
				return
			}
			defer img.Close()
			if b, err := os.ReadFile(filepath.Join(img.Root, "a")); err != nil || string(b) != "A" {
				t.Errorf("%q (%v)", b, err)
			}
		})
	}
	group.Wait()
	if list, err := os.ReadDir(s.at(tmpDir)); err != nil || len(list) != 0 {
		t.Errorf("left: %v (%v)", list, err)
	}
	if n := reg.blobs.Load(); n > 7 { // each asks for the configuration; the layer came once
		t.Errorf("%d parts were fetched", n)
	}
}

func TestPrune(t *testing.T) {
	reg := newRegistry(t)
	shared := aTar(t, file("shared", "x"))
	p, q := imageOf(t, nil, shared, aTar(t, file("a", "1"))), imageOf(t, nil, shared, aTar(t, file("a", "2")))
	reg.put(t, "app", p, "one")
	reg.put(t, "app", q, "two")
	s, _ := aStore(t)
	puller := &Puller{Store: s}
	one, two := ref(t, reg.host()+"/app:one"), ref(t, reg.host()+"/app:two")
	held := pulled(t, puller, one)
	pulled(t, puller, two).Close()
	later := time.Now().Add(time.Hour)
	if removed, err := s.Prune(time.Now().Add(-time.Hour)); err != nil || len(removed) != 0 {
		t.Errorf("images that were of use just now: %v (%v)", removed, err)
	}
	removed, err := s.Prune(later)
	if err != nil || len(removed) != 1 || removed[0] != strings.TrimPrefix(sum(q.config), "sha256:") {
		t.Errorf("removed %v (%v), want the one that nobody holds", removed, err)
	}
	if tree(t, held.Root)["a"] != "1" {
		t.Error("the image that is held was harmed")
	}
	if _, err := s.Lookup(two); !errors.Is(err, ErrMissing) {
		t.Errorf("the other is there still: %v", err)
	}
	if list, _ := os.ReadDir(s.at(blobsDir)); len(list) != 2 {
		t.Errorf("%d layers are left, want the two of the image that is held", len(list))
	}
	held.Close()
	if removed, err := s.Prune(later); err != nil || len(removed) != 1 {
		t.Errorf("removed %v (%v)", removed, err)
	}
	for _, d := range []string{blobsDir, rootsDir, refsDir, tmpDir} {
		if list, err := os.ReadDir(s.at(d)); err != nil || len(list) != 0 {
			t.Errorf("%s: %v (%v)", d, list, err)
		}
	}
	if _, err := (&Store{Dir: filepath.Join(t.TempDir(), "none")}).Prune(later); err != nil {
		t.Errorf("a store that is not there: %v", err)
	}
}

func TestWhatARegistryAnswers(t *testing.T) {
	p := imageOf(t, nil, aTar(t, file("a", "A")))
	for _, tc := range []struct {
		sentence string
		status   int
		want     error
	}{
		{"it does not have it", 404, ErrNotFound}, {"it shows it to others", 403, ErrNotFound}, {"it has too much to do", 429, ErrNetwork}, {"it is broken", 503, ErrNetwork},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			reg := newRegistry(t)
			reg.put(t, "app", p, "v1")
			var n atomic.Int64
			reg.before = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/manifests/") {
					return false
				}
				n.Add(1)
				w.WriteHeader(tc.status)
				return true
			}
			s, around := aStore(t)
			if _, err := (&Puller{Store: s}).Pull(t.Context(), ref(t, reg.host()+"/app:v1")); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if n.Load() != 1 {
				t.Errorf("it was asked %d times; to try again is the caller's to say", n.Load())
			}
			untouched(t, s, around)
		})
	}
	t.Run("it is not there", func(t *testing.T) {
		reg := newRegistry(t)
		host := reg.host()
		reg.Close()
		s, _ := aStore(t)
		if _, err := (&Puller{Store: s}).Pull(t.Context(), ref(t, host+"/app:v1")); !errors.Is(err, ErrNetwork) {
			t.Errorf("%v", err)
		}
	})
	t.Run("it stops in the middle of a layer", func(t *testing.T) {
		reg := newRegistry(t)
		reg.put(t, "app", p, "v1")
		end := make(chan struct{})
		t.Cleanup(func() { close(end) })
		reg.before = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, sum(p.layers[0])) {
				return false
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(p.layers[0])))
			_, _ = w.Write(p.layers[0][:10])
			w.(http.Flusher).Flush()
			<-end
			return true
		}
		s, around := aStore(t)
		_, err := (&Puller{Store: s, Network: Network{Stall: 100 * time.Millisecond}}).Pull(t.Context(), ref(t, reg.host()+"/app:v1"))
		if !errors.Is(err, ErrNetwork) {
			t.Errorf("got %v, want %v", err, ErrNetwork)
		}
		untouched(t, s, around)
	})
	t.Run("whoever asked does not want it any more", func(t *testing.T) {
		reg := newRegistry(t)
		reg.put(t, "app", p, "v1")
		ctx, cancel := context.WithCancel(t.Context())
		reg.before = func(http.ResponseWriter, *http.Request) bool { cancel(); return false }
		s, _ := aStore(t)
		if _, err := (&Puller{Store: s}).Pull(ctx, ref(t, reg.host()+"/app:v1")); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// A registry does not lead us to places of this machine's network.
func TestWhereARegistrySendsUs(t *testing.T) {
	p := imageOf(t, nil, aTar(t, file("a", "A")))
	secret := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(p.layers[0]) }))
	t.Cleanup(secret.Close)
	reg := newRegistry(t)
	reg.put(t, "app", p, "v1")
	pull := func() error {
		s, _ := aStore(t)
		img, err := (&Puller{Store: s}).Pull(t.Context(), ref(t, reg.host()+"/app:v1"))
		img.Close()
		return err
	}
	for _, to := range []string{secret.URL + "/x", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/x", "https://10.0.0.1/x", "http://metadata.google.internal/", "https://127.0.0.2:1/x", "https://[::1]:1/x", "file:///etc/passwd"} {
		reg.before = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, sum(p.layers[0])) {
				return false
			}
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return true
		}
		if err := pull(); err == nil {
			t.Errorf("it went to %s", to)
		}
	}
	reg.before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, sum(p.layers[0])) && r.URL.RawQuery == "" {
			http.Redirect(w, r, reg.URL+r.URL.Path+"?signed", http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
	if err := pull(); err != nil {
		t.Errorf("control: it does not go to another place of the registry: %v", err)
	}
}

func TestForbidden(t *testing.T) {
	public := func(a netip.Addr) bool { return a == netip.MustParseAddr("203.0.113.7") }
	for _, tc := range []struct {
		sentence, registry, host, addr string
		ok                             bool
	}{
		{"a public address", "r.example", "cdn.example", "203.0.113.7", true},
		{"a private one", "r.example", "cdn.example", "10.0.0.1", false},
		{"a private one of the registry itself", "r.example", "r.example", "10.0.0.1", true},
		{"loopback of the registry itself", "localhost:443", "localhost", "127.0.0.1", true},
		{"loopback", "r.example", "cdn.example", "127.0.0.1", false},
		{"metadata, even as the registry", "r.example", "r.example", "169.254.169.254", false},
		{"metadata by IPv6", "r.example", "r.example", "fe80::1", false},
		{"no address", "r.example", "r.example", "0.0.0.0", false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			g := newGuarded(Network{Public: public}, tc.registry)
			if why := g.forbidden(tc.host, "443", netip.MustParseAddr(tc.addr)); (why == "") != tc.ok {
				t.Errorf("%q", why)
			}
		})
	}
	g := newGuarded(Network{Public: public}, "r.example")
	g.forbidden("r.example", "443", netip.MustParseAddr("10.0.0.1"))
	if why := g.forbidden("minio.example", "443", netip.MustParseAddr("10.0.0.2")); why != "" {
		t.Errorf("a registry of a private network cannot have its layers beside it: %s", why)
	}
	if why := g.forbidden("x.example", "443", netip.MustParseAddr("127.0.0.1")); why == "" {
		t.Error("but this machine is not beside it")
	}
}

// Plain HTTP is for this machine alone, whatever the library thinks of a name.
func TestOnlyLoopbackIsPlain(t *testing.T) {
	for _, registry := range []string{"192.168.7.7", "10.1.2.3:5000", "printer.local", "r.example"} {
		reg, err := repository(Ref{Registry: registry, Repository: "a"})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuarded(Network{}, registry)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, reg.Scheme()+"://"+registry+"/v2/", nil)
		g.inner.RegisterProtocol("http", roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("it was plain") }))
		g.inner.RegisterProtocol("https", roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("it was TLS") }))
		if _, err := g.RoundTrip(r); err == nil || err.Error() != "it was TLS" {
			t.Errorf("%s: %v", registry, err)
		}
		r.URL.Scheme = "http"
		if _, err := g.RoundTrip(r); err == nil || err.Error() != "it was TLS" {
			t.Errorf("%s: %v", registry, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAPasswordIsForItsRegistry(t *testing.T) {
	p := imageOf(t, nil, aTar(t, file("a", "A")))
	reg, other := newRegistry(t), newRegistry(t)
	var seen []string
	var mu sync.Mutex
	guard := func(w http.ResponseWriter, r *http.Request) bool {
		user, pass, _ := r.BasicAuth()
		mu.Lock()
		seen = append(seen, r.Host+" "+user)
		mu.Unlock()
		if user == "me" && pass == "p:w" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	for _, r := range []*aRegistry{reg, other} {
		r.put(t, "app", p, "v1")
		r.before = guard
	}
	config := filepath.Join(t.TempDir(), "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte("me:p:w"))
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, reg.host(), auth), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := &Keychain{Files: []string{filepath.Join(t.TempDir(), "none"), config}}
	s, _ := aStore(t)
	pulled(t, &Puller{Store: s, Keychain: keys}, ref(t, reg.host()+"/app:v1"))
	s, _ = aStore(t)
	if _, err := (&Puller{Store: s, Keychain: keys}).Pull(t.Context(), ref(t, other.host()+"/app:v1")); !errors.Is(err, ErrNotFound) {
		t.Errorf("another registry: %v", err)
	}
	for _, x := range seen {
		if strings.HasPrefix(x, other.host()) && strings.Contains(x, "me") {
			t.Error("another registry was given the password")
		}
	}
}

// Most registries give a token for the password, or for nothing.
func TestATokenIsAskedFor(t *testing.T) {
	p := imageOf(t, nil, aTar(t, file("a", "A")))
	reg := newRegistry(t)
	reg.put(t, "owner/app", p, "v1")
	var scopes []string
	var mu sync.Mutex
	reg.before = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			user, _, _ := r.BasicAuth()
			mu.Lock()
			scopes = append(scopes, user+" "+r.URL.Query().Get("scope"))
			mu.Unlock()
			_, _ = io.WriteString(w, `{"token":"sesame"}`)
		case r.Header.Get("Authorization") == "Bearer sesame":
			return false
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"s\"", reg.URL+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
		}
		return true
	}
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"auths":{%q:{"username":"me","password":"pw"}}}`, reg.host()), 0o600); err != nil {
		t.Fatal(err)
	}
	for user, keys := range map[string]*Keychain{"": {}, "me": {Files: []string{config}}} {
		s, _ := aStore(t)
		scopes = nil
		pulled(t, &Puller{Store: s, Keychain: keys}, ref(t, reg.host()+"/owner/app:v1"))
		for _, got := range scopes {
			if got != user+" repository:owner/app:pull" {
				t.Errorf("asked for %q as %q", got, user)
			}
		}
		if len(scopes) == 0 {
			t.Error("no token was asked for")
		}
	}
}

func TestHelpersAreStartedFromTrustedFoldersOnly(t *testing.T) {
	workspace := real(t, t.TempDir())
	trusted, theirs, open := real(t, t.TempDir()), filepath.Join(workspace, "bin"), real(t, t.TempDir())
	script := "#!/bin/sh\nread server\n[ \"$1\" = get ] || exit 1\nprintf '{\"Username\":\"u-%s\",\"Secret\":\"s\"}' \"$server\"\n"
	below := filepath.Join(open, "below")
	for _, d := range []string{trusted, theirs, open, below} {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, "docker-credential-mine"), []byte(script), 0o755), os.Chmod(d, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.json")
	for _, tc := range []struct {
		sentence, config, path string
		user                   string // "" is refused
	}{
		{"a helper of the registry", `{"credHelpers":{"r.example":"mine"}}`, trusted, "u-r.example"},
		{"a store for all", `{"credsStore":"mine","auths":{"r.example":{}}}`, trusted, "u-r.example"},
		{"the workspace", `{"credHelpers":{"r.example":"mine"}}`, theirs + ":" + trusted, ""},
		{"a folder that all can write", `{"credHelpers":{"r.example":"mine"}}`, open, ""},
		{"a folder below one that all can write", `{"credHelpers":{"r.example":"mine"}}`, below, ""},
		{"the current folder", `{"credHelpers":{"r.example":"mine"}}`, ".", ""},
		{"none", `{"credHelpers":{"r.example":"none"}}`, trusted, ""},
		{"a name that is a path", `{"credHelpers":{"r.example":"/../../mine"}}`, trusted, ""},
		{"a configuration that is none", `{"auths":"secret"}`, trusted, ""},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if err := os.WriteFile(config, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			k := &Keychain{Files: []string{config}, Path: tc.path, Workspace: workspace, Env: []string{"PATH=/usr/bin:/bin"}}
			reg, err := name.NewRegistry("r.example")
			if err != nil {
				t.Fatal(err)
			}
			a, err := k.Resolve(reg)
			if tc.user == "" {
				if err == nil || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v (%v), want that it is refused", a, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := a.Authorization()
			if err != nil || c.Username != tc.user || c.Password != "s" {
				t.Errorf("%+v (%v)", c, err)
			}
		})
	}
}

// Attack: what a helper starts, as that of pass starts pass, is looked up by PATH too.
func TestHelpersLookForOthersInTrustedFoldersOnly(t *testing.T) {
	workspace, open := real(t, t.TempDir()), real(t, t.TempDir())
	trusted := real(t, t.TempDir())
	put := func(dir, name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755), os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(user string) string { return `printf '{"Username":"` + user + `","Secret":"s"}'` + "\n" }
	put(trusted, "docker-credential-mine", "pass\n")
	put(filepath.Join(workspace, "bin"), "pass", answer("the workspace"))
	put(open, "pass", answer("anybody"))
	put(filepath.Join(trusted, "late"), "pass", answer("mine"))
	if err := errors.Join(os.Chmod(open, 0o777), os.Symlink(filepath.Join(workspace, "bin"), filepath.Join(trusted, "way"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(workspace, "bin"))
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"credsStore":"mine"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{filepath.Join(workspace, "pass"), trusted, workspace + "/bin", trusted + "/way", "", ".", open, trusted + "/late"}, ":")
	k := &Keychain{Files: []string{config}, Path: path, Workspace: workspace, Env: []string{"PATH=" + path}}
	reg, err := name.NewRegistry("r.example")
	if err != nil {
		t.Fatal(err)
	}
	a, err := k.Resolve(reg)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.Authorization(); err != nil || c.Username != "mine" {
		t.Errorf("the password is from %+v (%v)", c, err)
	}
}

// TestNobodyElseIsAboveTheStore: in a folder above that others may write they can put
// a store of theirs in the place of ours, with a root that nobody has pulled.
func TestNobodyElseIsAboveTheStore(t *testing.T) {
	reg := newRegistry(t)
	reg.put(t, "app", imageOf(t, nil, aTar(t, file("a", "A"))), "v1")
	r := ref(t, reg.host()+"/app:v1")
	for sentence, harm := range map[string]func(above string) error{
		"others may write above":  func(above string) error { return os.Chmod(above, 0o777) },
		"a group may write above": func(above string) error { return os.Chmod(above, 0o775) },
		"the store itself is a link": func(above string) error {
			return errors.Join(os.Rename(filepath.Join(above, "images"), filepath.Join(above, "other")), os.Symlink("other", filepath.Join(above, "images")))
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			if err := os.Mkdir(above, 0o755); err != nil {
				t.Fatal(err)
			}
			s := &Store{Dir: filepath.Join(above, "images")}
			puller := &Puller{Store: s}
			img, err := puller.Pull(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if err := harm(above); err != nil {
				t.Fatal(err)
			}
			if found, err := s.Lookup(r); err == nil {
				t.Errorf("it is believed: %v", found)
			}
			if found, err := puller.Pull(t.Context(), r); err == nil {
				t.Errorf("it is taken or made there: %v", found)
			}
		})
	}
}
