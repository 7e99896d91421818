package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/image"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// imagesKept is how long an image that nothing uses stays in the store.
	imagesKept = 30 * 24 * time.Hour
	// sayEvery keeps the log from filling up with how far a pull is.
	sayEvery = 5 * time.Second
)

// setupStore is where what setups made is kept from run to run, beside the images;
// empty where there is no such place.
func setupStore(getenv func(string) string, workspace string) string {
	images := ImageStore(getenv, workspace).Dir
	if images == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(images), "setups")
}

// ImageStore is where images are kept; one without a folder has none and takes none.
// There is no such place in the workspace: a step would write into the root of the
// next job's boxes.
func ImageStore(getenv func(string) string, workspace string) *image.Store {
	base := getenv("XDG_CACHE_HOME")
	// A home that is not there is not made: it is no place of anybody's.
	if home := getenv("HOME"); !filepath.IsAbs(base) && filepath.IsAbs(home) && home != "/" && Real(home) != "" {
		base = filepath.Join(home, ".cache")
	}
	if !filepath.IsAbs(base) {
		return &image.Store{}
	}
	dir := filepath.Join(base, toolName, "images")
	if !outside(dir, workspace) {
		return &image.Store{}
	}
	return &image.Store{Dir: dir}
}

// Puller asks registries as the caller would.
func Puller(getenv func(string) string, environ func() []string, workspace string, store *image.Store) *image.Puller {
	var env []string
	if environ != nil {
		env = environ()
	}
	return &image.Puller{
		Store: store,
		Network: image.Network{
			Proxy:  image.SystemProxy,
			Public: func(at netip.Addr) bool { ok, _ := egress.AddrVerdict(at); return ok },
		},
		Keychain: &image.Keychain{Files: image.KeychainFiles(getenv), Path: getenv("PATH"), Env: env, Workspace: workspace},
	}
}

// images are those of one run.
type images struct {
	store *image.Store
	pull  *image.Puller
	say   func(string)
	mu    sync.Mutex
	held  []*image.Image
}

// images gets what the steps run in, before the first of them begins.
func (s *Session) images(ctx context.Context, runner *steps.Runner) (*images, *steps.Refusal) {
	i := &images{say: s.Log.Say}
	wanted := false
	for _, step := range s.Plan.Steps {
		wanted = wanted || !step.Origin.None()
	}
	if !wanted {
		return i, nil
	}
	i.store = ImageStore(s.Getenv, s.Workspace)
	if i.store.Dir == "" {
		return nil, &steps.Refusal{Cause: "there is no place outside the workspace to keep images in", Fix: []string{
			"# name a folder that only you can write to and that lies outside the workspace, such as", "export XDG_CACHE_HOME=~/.cache"}}
	}
	i.pull = Puller(s.Getenv, s.Environ, s.Workspace, i.store)
	runner.Images = i
	if err := runner.Fetch(ctx, s.Plan); err != nil {
		i.close()
		return nil, &steps.Refusal{Cause: gha.Inert(err.Error()), Fix: []string{
			"# images are kept in " + i.store.Dir + ", which needs room and has to be yours alone; another place is named by", "export XDG_CACHE_HOME=DIR"}}
	}
	return i, nil
}

// Looker finds images that a store has, and asks nobody else.
func Looker(store *image.Store) func(steps.Origin) (*image.Image, error) {
	return (&images{store: store}).look
}

// look asks the store only.
func (i *images) look(o steps.Origin) (*image.Image, error) {
	if o.Archive != "" {
		return i.store.LookupArchive(o.Archive)
	}
	return i.store.Lookup(o.Ref)
}

// Get gives an image, and says in the log how it came.
func (i *images) Get(ctx context.Context, o steps.Origin) (*image.Image, error) {
	began := time.Now()
	img, err := i.look(o)
	how := "from the store"
	if errors.Is(err, image.ErrMissing) {
		i.say(fmt.Sprintf("image: getting %s", o))
		tell := i.progress(o)
		if o.Archive != "" {
			img, err = i.store.Load(ctx, o.Archive, tell)
		} else {
			pull := *i.pull
			pull.Progress = tell
			img, err = pull.Pull(ctx, o.Ref)
		}
		how = fmt.Sprintf("in %.1f s", time.Since(began).Seconds())
	}
	if err != nil {
		i.say(fmt.Sprintf("image: %s cannot be had: %v", o, err))
		return nil, err
	}
	i.say(fmt.Sprintf("image: %s is %s, %s", o, img.Digest, how))
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held = append(i.held, img)
	return img, nil
}

// progress says every few seconds how far an image is.
func (i *images) progress(o steps.Origin) func(image.Progress) {
	var mu sync.Mutex
	last := time.Now()
	return func(p image.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < sayEvery {
			return
		}
		last = time.Now()
		line := fmt.Sprintf("image: %s: %s, %d of %d MiB", o, p.Stage, p.Done>>20, p.Total>>20)
		if p.Stage == image.Unpacking {
			line = fmt.Sprintf("image: %s: %s, layer %d of %d", o, p.Stage, p.Layer, p.Layers)
		}
		i.say(line)
	}
}

// close lets go of the images, and removes from the store what was of no use for long.
func (i *images) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, img := range i.held {
		img.Close()
	}
	i.held = nil
	if i.store == nil {
		return
	}
	switch removed, err := i.store.Prune(time.Now().Add(-imagesKept)); {
	case err != nil:
		i.say(fmt.Sprintf("image: what is old in the store could not be removed: %v", err))
	case len(removed) > 0:
		i.say(fmt.Sprintf("image: removed %d that nothing had used for %d days", len(removed), int(imagesKept.Hours()/24)))
	}
}
