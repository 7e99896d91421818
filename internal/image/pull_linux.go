package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"
)

// Puller brings images from registries into a store.
type Puller struct {
	Store    *Store
	Network  Network
	Keychain authn.Keychain // nil is nobody
	// Progress is told how far a pull is. It may be called by several at once, and
	// has to be quick; nil is nobody.
	Progress func(Progress)
}

// Progress is how far a pull is.
type Progress struct {
	Stage       string // Fetching or Unpacking
	Done, Total int64  // bytes
	Layer       int    // that is unpacked, from 1
	Layers      int
}

// The stages of a pull.
const (
	Fetching  = "fetching"
	Unpacking = "unpacking"
)

const (
	pullsAtOnce = 4 // layers
	userAgent   = "untrusted-steps"
	// pullTimeout bounds a pull that comes a byte at a time.
	pullTimeout = 2 * time.Hour
)

// Resolve asks the registry for the digest that a reference has now.
func (p *Puller) Resolve(ctx context.Context, ref Ref) (string, error) {
	_, _, digest, err := p.manifest(ctx, ref)
	return digest, err
}

// manifest asks for what stands under a reference, and sums it up.
func (p *Puller) manifest(ctx context.Context, ref Ref) (*remote.Descriptor, name.Repository, string, error) {
	repo, err := repository(ref)
	if err != nil {
		return nil, repo, "", err
	}
	var of name.Reference = repo.Tag(ref.Tag)
	if ref.Digest != "" {
		of = repo.Digest(ref.Digest)
	}
	d, err := remote.Get(of, p.options(ctx, repo)...)
	if err != nil {
		return nil, repo, "", asked(ctx, err)
	}
	digest := sum(d.Manifest)
	if ref.Digest != "" && digest != ref.Digest {
		return nil, repo, "", refused("what %s gave has the digest %s", ref, digest)
	}
	return d, repo, digest, nil
}

// repository is a reference as the library has it. Its own reading of names is not
// used: Parse has read them.
func repository(ref Ref) (name.Repository, error) {
	reg, err := name.NewRegistry(ref.Registry)
	if err != nil {
		return name.Repository{}, refused("the registry %q: %w", ref.Registry, err)
	}
	return reg.Repo(ref.Repository), nil
}

func (p *Puller) options(ctx context.Context, repo name.Repository) []remote.Option {
	keys := p.Keychain
	if keys == nil {
		keys = authn.NewMultiKeychain() // anonymous
	}
	// Whether to try again is the caller's to say.
	once := remote.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 1}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(newGuarded(p.Network, repo.RegistryStr())), remote.WithAuthFromKeychain(keys),
		remote.WithUserAgent(userAgent), remote.WithRetryBackoff(once), remote.WithRetryStatusCodes(),
		remote.WithRetryPredicate(func(error) bool { return false }),
	}
}

// asked says what a registry's answer means.
func asked(ctx context.Context, err error) error {
	var answer *transport.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrRefused):
		return err
	case errors.Is(err, errUnsafe):
		return refused("%w", err)
	case errors.As(err, &answer):
		switch code := answer.StatusCode; {
		case code == http.StatusNotFound || code == http.StatusUnauthorized || code == http.StatusForbidden:
			return fmt.Errorf("%w: %w", ErrNotFound, err)
		case code == http.StatusTooManyRequests || code >= 500:
			return fmt.Errorf("%w: %w", ErrNetwork, err)
		}
		return refused("%w", err)
	}
	return fmt.Errorf("%w: %w", ErrNetwork, err)
}

// Pull gives the image of a reference: from the store if that has it, else from the
// registry. A tag that the store has is not asked about again.
func (p *Puller) Pull(ctx context.Context, ref Ref) (*Image, error) {
	img, err := p.Store.Lookup(ref)
	if err == nil || !errors.Is(err, ErrMissing) {
		return img, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, fmt.Errorf("%w: the pull took longer than %s", ErrNetwork, pullTimeout))
	defer cancel()
	img, err = p.pull(ctx, ref)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return img, err
}

func (p *Puller) pull(ctx context.Context, ref Ref) (*Image, error) {
	d, repo, digest, err := p.manifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	opts := p.options(ctx, repo)
	puller, err := remote.NewPuller(opts...)
	if err != nil {
		return nil, fmt.Errorf("image: bug: %w", err)
	}
	get := func(d v1.Descriptor) ([]byte, error) {
		if err := small(d); err != nil {
			return nil, err
		}
		var raw []byte
		var err error
		if isManifest(d.MediaType) || isIndex(d.MediaType) {
			var m *remote.Descriptor
			if m, err = puller.Get(ctx, repo.Digest(d.Digest.String())); err == nil {
				raw = m.Manifest
			}
		} else {
			raw, err = p.readBlob(ctx, puller, repo, d)
		}
		if err != nil {
			return nil, asked(ctx, err)
		}
		if sum(raw) != d.Digest.String() {
			return nil, refused("its part %s has the digest %s", d.Digest, sum(raw))
		}
		return raw, nil
	}
	limits := p.Store.Limits.orDefault()
	found, err := pick(d.Manifest, digest, d.MediaType, get, limits, false, func(d v1.Descriptor) layer {
		return layer{open: p.Store.blob(d.Digest.String())}
	})
	if err != nil {
		return nil, err
	}
	b, err := p.Store.begin(ctx, found)
	if err != nil {
		return nil, err
	}
	defer b.end()
	if !b.complete() {
		if err := p.fetch(ctx, b, puller, repo, found); err != nil {
			return nil, err
		}
		if err := b.unpack(ctx, p.Progress); err != nil {
			return nil, err
		}
	}
	return b.keep(ref.String())
}

func (p *Puller) readBlob(ctx context.Context, puller *remote.Puller, repo name.Repository, d v1.Descriptor) ([]byte, error) {
	r, err := blobReader(ctx, puller, repo, d.Digest.String())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, d.Size+1))
}

func blobReader(ctx context.Context, puller *remote.Puller, repo name.Repository, digest string) (io.ReadCloser, error) {
	l, err := puller.Layer(ctx, repo.Digest(digest))
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}

// fetch gets the layers that the store does not have.
func (p *Puller) fetch(ctx context.Context, b *building, puller *remote.Puller, repo name.Repository, found picked) error {
	var todo []layer
	seen := map[string]bool{}
	state := Progress{Stage: Fetching, Layers: len(found.layers)}
	for _, l := range found.layers {
		if !seen[l.digest] && !p.Store.hasBlob(l.digest, l.size) {
			todo = append(todo, l)
			state.Total += l.size
		}
		seen[l.digest] = true
	}
	var mu sync.Mutex
	tell := func(n int) {
		mu.Lock()
		state.Done += int64(n)
		now := state
		mu.Unlock()
		if p.Progress != nil {
			p.Progress(now)
		}
	}
	tell(0)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(pullsAtOnce)
	for _, l := range todo {
		g.Go(func() error {
			r, err := blobReader(ctx, puller, repo, l.digest)
			if err != nil {
				return asked(ctx, err)
			}
			defer r.Close()
			from := source{r: &told{withContext(ctx, r), tell}}
			err = b.putBlob(l, &from)
			if from.err != nil {
				return asked(ctx, from.err)
			}
			return err
		})
	}
	return g.Wait()
}

// told says how much was read.
type told struct {
	r    io.Reader
	tell func(int)
}

func (t *told) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if n > 0 {
		t.tell(n)
	}
	return n, err
}

// Load gives the image of an archive, whose path has no link in it.
func (s *Store) Load(ctx context.Context, file string, progress func(Progress)) (*Image, error) {
	key, err := archiveKey(file)
	if err == nil {
		if img, err := s.lookup(key); err == nil {
			return img, nil
		}
	}
	tmp, err := s.temp()
	if err != nil {
		return nil, err
	}
	defer func() { _ = tmp.Remove() }()
	limits := s.Limits.orDefault()
	a, err := openArchive(ctx, file, tmp.Path, limits)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	found, err := pickFrom(a, limits)
	if err != nil {
		return nil, err
	}
	b, err := s.begin(ctx, found)
	if err != nil {
		return nil, err
	}
	defer b.end()
	if !b.complete() {
		if err := b.unpack(ctx, progress); err != nil {
			return nil, err
		}
	}
	return b.keep(key)
}

// archiveKey names a file as it is now: written again, it is another one. A folder is
// looked at every time, since nothing says that a part of it was changed.
func archiveKey(file string) (string, error) {
	st, err := os.Lstat(file)
	if err != nil || !st.Mode().IsRegular() {
		return "", fmt.Errorf("image: %s has no identity", file)
	}
	return identity(file, st)
}
