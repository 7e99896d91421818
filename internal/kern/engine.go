package kern

import (
	"context"
	"debug/elf"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// Options say where to look and what to accept.
type Options struct {
	// Getenv reads the caller's environment: KERN_BIN, PATH, XDG_CACHE_HOME
	// and HOME. Nothing of it reaches kern.
	Getenv func(string) string
	// SHA256 admits a build that is not pinned; empty admits none.
	SHA256 string
	// Arch is GOARCH; empty is this program's own.
	Arch string
	// View reads the host for image host; network says whether names resolve.
	View func(hostname string, network bool) rootfs.View
	// Program becomes the box's first process; empty is this very program. It
	// must be static for images other than host, which need not hold the
	// loader that it asks for.
	Program string
	// Temp is where the folders of boxes are made; empty picks a place.
	Temp string
}

// Engine builds boxes with a verified kern.
type Engine struct {
	opts   Options
	mapper idmap.Mapper
	guard  []byte // keeps a step's hands off the first process

	mu  sync.Mutex
	bin *pinned.Binary
}

// Open finds and verifies kern. It starts nothing but `kern --version`. What a
// run that was killed left of its boxes is removed.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if o.Arch == "" {
		o.Arch = thisArch
	}
	guard, err := seccomp.CompileGuard(thisArch)
	if err != nil {
		return nil, err
	}
	e := &Engine{opts: o, guard: guard.Raw()}
	b, err := e.lookUp(ctx)
	if err != nil {
		return nil, err
	}
	e.bin = b
	scratch.Sweep(tempFolder(o.Temp), time.Now())
	return e, nil
}

// Find gives the path of the kern that Open would use.
func Find(ctx context.Context, o Options) (string, error) {
	e, err := Open(ctx, o)
	if err != nil {
		return "", err
	}
	defer e.Close()
	return e.bin.Path, nil
}

func (e *Engine) lookUp(ctx context.Context) (*pinned.Binary, error) {
	cached := ""
	if p, ok := pinFor(e.opts.Arch); ok {
		cached = cachePath(e.opts.Getenv, p.SHA256)
	}
	return pinned.Find(ctx, kind(e.opts.Arch), e.opts.Getenv, cached, e.opts.SHA256)
}

// verified gives the program to start. A file that changed since it was
// verified is verified anew, under the same rules, before another box.
func (e *Engine) verified(ctx context.Context) (*pinned.Binary, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bin.Current() {
		return e.bin, nil
	}
	path := e.bin.Path
	b, err := pinned.Verify(ctx, kind(e.opts.Arch), path, e.opts.SHA256)
	if err != nil {
		return nil, fmt.Errorf("kern changed since it was verified: %s: %w", path, err)
	}
	// The old copy stays open: a box may be starting from it.
	e.bin = b
	return b, nil
}

// Close lets go of what is kept between boxes.
func (e *Engine) Close() {
	e.mapper.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.bin.Close()
}

// Path is the binary that boxes are started from.
func (e *Engine) Path() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bin.Path
}

// Info describes the engine.
func (e *Engine) Info() box.Info {
	e.mu.Lock()
	b := e.bin
	e.mu.Unlock()
	i := box.Info{Name: "kern", Version: b.Version, Digest: b.Sum, Unobserved: slices.Clone(Unobserved)}
	if !b.Pinned {
		i.Note = fmt.Sprintf("kern %s at %s is not the pinned build: its SHA-256, %s, was accepted by --kern-sha256", b.Version, b.Path, b.Sum)
	} else if a := e.opts.SHA256; a != "" && !strings.EqualFold(a, b.Sum) {
		i.Note = fmt.Sprintf("kern %s at %s is the pinned build, and not the one that --kern-sha256 accepts: it was found first", b.Version, b.Path)
	}
	return i
}

// Unobserved is what kern gives nobody a way to see. Its system call filter
// ends the process that made a forbidden call, and the kernel tells only that
// process's parent, which is code of the step.
var Unobserved = []string{
	"escape_blocked: a forbidden system call in a process that the step's own process started is stopped, but not seen",
}

// Check says whether kern can build the box. Nothing is started.
func (e *Engine) Check(s box.Spec) error {
	if err := expressible(s); err != nil {
		return err
	}
	if s.AppArmor != "" {
		if err := box.AppArmorProfile(s.AppArmor); err != nil {
			return err
		}
	}
	if len(s.KernProfiles) > 0 {
		text, err := e.config()
		if err != nil {
			return err
		}
		for _, p := range s.KernProfiles {
			if err := profileIn(text, p); err != nil {
				return err
			}
		}
	}
	if s.Root.Kind != box.RootHost {
		loader, err := e.loader()
		if err != nil {
			return err
		}
		if loader != "" {
			return fmt.Errorf("image: engine kern starts this program inside the image, and it is not static (it asks for %q); build it with CGO_ENABLED=0", loader)
		}
	}
	_, err := boxinit.Kept(s.CapDrop)
	return err
}

// program is the path of what becomes the box's first process.
func (e *Engine) program() string {
	if e.opts.Program != "" {
		return e.opts.Program
	}
	return "/proc/self/exe"
}

// loader is what the first process's program asks the kernel to be loaded by;
// a static program asks for nothing.
func (e *Engine) loader() (string, error) {
	f, err := elf.Open(e.program())
	if err != nil {
		return "", fmt.Errorf("look at this program's own file: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, min(p.Filesz, 256))
			if _, err := p.ReadAt(b, 0); err != nil {
				return "", fmt.Errorf("look at this program's own file: %w", err)
			}
			return strings.TrimRight(string(b), "\x00"), nil
		}
	}
	return "", nil
}
