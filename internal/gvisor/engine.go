package gvisor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxinit"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// Options say where to look and what to accept.
type Options struct {
	// Getenv reads the caller's environment: RUNSC_BIN, RUNSC_PLATFORM, PATH,
	// XDG_CACHE_HOME and HOME. Nothing of it reaches runsc.
	Getenv func(string) string
	// SHA256 admits a build that is not pinned; empty admits none.
	SHA256 string
	// View reads the host for image host; network says whether names resolve.
	View func(hostname string, network bool) rootfs.View
	// Program becomes the box's first process; empty is this very program. It must
	// be static.
	Program string
}

// Engine builds boxes with a verified runsc.
type Engine struct {
	opts     Options
	platform string
	mapper   idmap.Mapper
	filter   []byte

	mu  sync.Mutex
	bin *pinned.Binary
}

// leastMemory is what a box needs to start, with some to spare: with less it is by chance
// whether it does.
const leastMemory = 32 << 20

// Platforms of runsc: how it comes between a program and the host's kernel.
const (
	systrap = "systrap" // by the host's own system call filter; works everywhere
	kvm     = "kvm"     // by the processor's virtualisation
)

// PlatformError is why the platform of RUNSC_PLATFORM is not to be had.
type PlatformError struct{ err error }

func (e *PlatformError) Error() string { return e.err.Error() }
func (e *PlatformError) Unwrap() error { return e.err }

// Fix is what to type: another runsc would change nothing.
func (e *PlatformError) Fix() []string {
	return []string{"unset RUNSC_PLATFORM   # for systrap, which needs no device"}
}

// platformOf reads RUNSC_PLATFORM. kvm is never taken without being asked for.
func platformOf(asked string) (string, error) {
	p, err := platform(asked)
	if err != nil {
		return "", &PlatformError{err}
	}
	return p, nil
}

func platform(asked string) (string, error) {
	switch asked {
	case "", systrap:
		return systrap, nil
	case kvm:
		f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return "", fmt.Errorf("RUNSC_PLATFORM=kvm: %w; leave it unset for systrap, which needs no device", err)
		}
		st, err := f.Stat()
		if err = errors.Join(err, f.Close()); err != nil {
			return "", fmt.Errorf("RUNSC_PLATFORM=kvm: %w", err)
		}
		// The sandbox that root starts is no root, and opens the device itself.
		if os.Geteuid() == 0 && st.Mode().Perm()&0o006 != 0o006 {
			return "", fmt.Errorf("RUNSC_PLATFORM=kvm: /dev/kvm has mode %04o, and the id that root's boxes run as is in no group of it: chmod o+rw /dev/kvm, which opens it to everybody on the host, or leave RUNSC_PLATFORM unset", st.Mode().Perm())
		}
		return kvm, nil
	}
	return "", fmt.Errorf("RUNSC_PLATFORM=%s: there are systrap and kvm", asked)
}

// Open finds and verifies runsc. It starts nothing but `runsc --version`.
func Open(ctx context.Context, o Options) (*Engine, error) {
	platform, err := platformOf(o.Getenv("RUNSC_PLATFORM"))
	if err != nil {
		return nil, err
	}
	filter, err := seccomp.CompileRefusing(runtime.GOARCH, seccomp.Options{})
	if err != nil {
		return nil, err
	}
	b, err := find(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Engine{opts: o, platform: platform, filter: filter.Raw(), bin: b}, nil
}

// Find gives the path of the runsc that Open would use.
func Find(ctx context.Context, o Options) (string, error) {
	b, err := find(ctx, o)
	if err != nil {
		return "", err
	}
	defer b.Close()
	return b.Path, nil
}

func find(ctx context.Context, o Options) (*pinned.Binary, error) {
	k := kind(runtime.GOARCH)
	return pinned.Find(ctx, k, o.Getenv, cachePath(o.Getenv), o.SHA256)
}

// cachePath is where Build puts runsc.
func cachePath(getenv func(string) string) string {
	sum := sums[runtime.GOARCH]
	if sum == "" {
		return ""
	}
	return pinned.CachePath(getenv, "runsc", sum)
}

// verified gives the program to start. A file that changed since it was verified
// is verified anew, under the same rules, before another box.
func (e *Engine) verified(ctx context.Context) (*pinned.Binary, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bin.Current() {
		return e.bin, nil
	}
	b, err := pinned.Verify(ctx, kind(runtime.GOARCH), e.bin.Path, e.opts.SHA256)
	if err != nil {
		return nil, fmt.Errorf("runsc changed since it was verified: %s: %w", e.bin.Path, err)
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
	i := box.Info{Name: "gvisor", Kernel: box.OwnKernel, Version: b.Version, Digest: b.Sum, Unobserved: slices.Clone(Unobserved)}
	if !b.Pinned {
		i.Note = fmt.Sprintf("runsc %s at %s is not the pinned build: its SHA-256, %s, was accepted by --runsc-sha256", b.Version, b.Path, b.Sum)
	} else if a := e.opts.SHA256; a != "" && !strings.EqualFold(a, b.Sum) {
		i.Note = fmt.Sprintf("runsc %s at %s is the pinned build, and not the one that --runsc-sha256 accepts: it was found first", b.Version, b.Path)
	}
	return i
}

// Unobserved is what gVisor gives nobody a way to see. Its kernel has no listener
// for a filter, and one that killed would end a thread and leave its process
// hanging: so a forbidden call is answered with an error, in every process.
var Unobserved = []string{
	"escape_blocked: a forbidden system call is refused with an error, by a kernel that is not the host's, and tells nobody",
}

// Check says whether this engine can build the box. Nothing is started.
func (e *Engine) Check(s box.Spec) error {
	if err := expressible(s); err != nil {
		return err
	}
	if s.MemoryBytes > 0 && s.MemoryBytes < leastMemory {
		return fmt.Errorf("memoryMb: %d is less than a box of gvisor takes: its kernel and file server count, and take about 22 MiB before the step begins; give it %d or more",
			s.MemoryBytes>>20, leastMemory>>20)
	}
	// A first process that is built with cgo can change no id of all its threads,
	// and no image need hold the loader it asks for.
	loader, err := e.loader()
	if err != nil {
		return err
	}
	if loader != "" {
		return fmt.Errorf("engine gvisor starts this program in the box, and it is not static (it asks for %q); build it with CGO_ENABLED=0", loader)
	}
	_, err = boxinit.Kept(s.CapDrop)
	return err
}

// program is the path of what becomes the box's first process.
func (e *Engine) program() string {
	if e.opts.Program != "" {
		return e.opts.Program
	}
	return "/proc/self/exe"
}

// loader is what the first process's program asks the kernel to be loaded by; a
// static program asks for nothing.
func (e *Engine) loader() (string, error) {
	f, err := elf.Open(e.program())
	if err != nil {
		return "", fmt.Errorf("look at this program's own file: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, min(p.Filesz, 256))
		if _, err := p.ReadAt(b, 0); err != nil {
			return "", fmt.Errorf("look at this program's own file: %w", err)
		}
		return strings.TrimRight(string(b), "\x00"), nil
	}
	return "", nil
}

var errGone = errors.New("runsc ended before the box's first process was there")
