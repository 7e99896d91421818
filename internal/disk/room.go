package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Bounds on what can be asked for. Below, a file system has no room for its own
// tables; above, numbers of blocks would not fit.
const (
	MinBytes  = 1 << 20
	MaxBytes  = 1 << 44
	MinInodes = 16
	MaxInodes = 1 << 30
)

// firstLook is the time between two looks at a room, unless a look takes long.
const firstLook = 100 * time.Millisecond

// Kinds of rooms, as By names them.
const (
	Loop    = "loop"
	Tmpfs   = "tmpfs"
	Sampler = "sampler"
)

// Options say what room is wanted.
type Options struct {
	// Dir is a folder of ours, mode 0700, on the workspace's file system. The
	// image or the plain folders are made in it; a room of its own for each.
	Dir string
	// At is that folder as this process names it; empty for Dir. A path may lead
	// through a descriptor of ours.
	At            string
	Bytes, Inodes int64
	// MemoryBytes is the step's memory cap; 0: none.
	MemoryBytes int64
	// Root: we are root, who may mount.
	Root bool
	// Folders: plain folders are wanted, since what is made must have a path that
	// leads through nobody's descriptors.
	Folders bool
	// UID, GID and Mode are those of the upper folder, which the box sees as the
	// workspace's own. A Mode of 0 is 0700.
	UID, GID int
	Mode     os.FileMode
	// Images keeps empty file systems between steps. nil: each is made anew.
	Images *Images

	// Control is the device that hands out loop devices; "": /dev/loop-control.
	Control string
	// Programs are the folders where mkfs.ext4 is looked for, never the caller's
	// PATH; nil: /usr/sbin and /sbin.
	Programs []string
}

// place is one kind of room.
type place interface {
	// root is the folder that has upper and work in it, as this program names it.
	root() string
	tree() (int, error)
	// used measures. quick allows to stop as soon as it is known to be too much.
	used(ctx context.Context, quick bool) (Usage, error)
	settle() error
	close() error
}

// Room is room for what one step writes. It is made by Open.
type Room struct {
	by, why       string
	bytes, inodes int64
	fileSize      int64
	opt           Options
	place         place
	closing       sync.Once
	closed        error

	mu       sync.Mutex
	stop     []context.CancelFunc // of watching
	watching sync.WaitGroup
}

// Open makes the best room this host has. An error means that there is none at
// all, or that Options ask for something absurd.
func Open(o Options) (*Room, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var why []string
	for _, kind := range []struct {
		by   string
		make func(Options) (place, error)
	}{{Loop, newLoop}, {Tmpfs, newTmpfs}} {
		if o.Folders {
			break
		}
		p, err := kind.make(o)
		if err == nil {
			return &Room{by: kind.by, why: words(why), bytes: o.Bytes, inodes: o.Inodes, opt: o, place: p}, nil
		}
		why = append(why, fmt.Sprintf("no %s: %v", kind.by, err))
	}
	p, err := newPlain(o)
	if err != nil {
		return nil, fmt.Errorf("make room for what the step writes: %w", err)
	}
	return &Room{by: Sampler, why: words(why), bytes: o.Bytes, inodes: o.Inodes, fileSize: o.Bytes, place: p}, nil
}

func (o *Options) check() error {
	if o.Mode == 0 {
		o.Mode = 0o700
	}
	if o.Control == "" {
		o.Control = "/dev/loop-control"
	}
	if o.Programs == nil {
		o.Programs = []string{"/usr/sbin", "/sbin"}
	}
	switch {
	case !filepath.IsAbs(o.Dir):
		return fmt.Errorf("disk: bug: %q is not an absolute path", o.Dir)
	case o.Bytes < MinBytes || o.Bytes > MaxBytes:
		return fmt.Errorf("room of %d bytes: from %d to %d can be had", o.Bytes, int64(MinBytes), int64(MaxBytes))
	case o.Inodes < MinInodes || o.Inodes > MaxInodes:
		return fmt.Errorf("room for %d files: from %d to %d can be had", o.Inodes, MinInodes, MaxInodes)
	}
	look := os.Stat
	if o.At == "" { // and a link is none of ours
		o.At, look = o.Dir, os.Lstat
	}
	st, err := look(o.At)
	if err != nil {
		return err
	}
	if !st.IsDir() || st.Mode().Perm()&0o077 != 0 {
		// Others could put a link where our folders are to be, or reach what a
		// step wrote with a set-id bit.
		return fmt.Errorf("%s is %v: it must be a folder that only its owner can enter", o.Dir, st.Mode())
	}
	return nil
}

func words(why []string) string {
	s := ""
	for i, w := range why {
		if i > 0 {
			s += "; "
		}
		s += w
	}
	return s
}

// By is what holds the bound: Loop, Tmpfs or Sampler.
func (r *Room) By() string { return r.by }

// Why says what stood against a better kind; empty for the best.
func (r *Room) Why() string { return r.why }

// FileSize is the RLIMIT_FSIZE that the step must get; 0: none.
func (r *Room) FileSize() int64 { return r.fileSize }

// Upper and Work are the overlay's folders, as this program can name them. A
// path may lead through our own descriptors: it means nothing to another
// process, and nothing after Close.
func (r *Room) Upper() string { return r.place.root() + "/" + upperName }

// Work is the folder beside it that overlayfs needs.
func (r *Room) Work() string { return r.place.root() + "/" + workName }

// Base is the folder with upper and work in it, where it is a plain one that an
// engine clones by its path; "" where Tree is the way.
func (r *Room) Base() string {
	if p, ok := r.place.(*plain); ok {
		return p.path
	}
	return ""
}

// Named is Upper as other processes can name it, where they can. Whoever may change
// a folder above it can put another in its place: it is for engines, which show it to
// a box that has no rights to anything else, and for nothing that root does itself.
func (r *Room) Named() string {
	if base := r.Base(); base != "" {
		return base + "/" + upperName
	}
	return r.Upper()
}

// Tree gives a fresh detached mount whose root has upper and work in it, for an
// engine to map the ids of and to move into a box. The caller closes it. For a
// plain folder there is none: -1, and Base says where it is.
func (r *Room) Tree() (int, error) { return r.place.tree() }

// Used measures what the step has written.
func (r *Room) Used() (Usage, error) { return r.place.used(context.Background(), false) }

// Bound is what was asked for.
func (r *Room) Bound() (bytes, inodes int64) { return r.bytes, r.inodes }

// Settle makes sure that what the step was told is written can be read back. A
// loop file system promises its blocks; the host's may have none left for them.
// An error means that the upper folder is not what the step wrote. It is asked
// when nobody writes any more, before anybody reads.
func (r *Room) Settle() error {
	r.rest()
	return r.place.settle()
}

// rest ends all watching. A look that is not over yet could open a folder that
// is being read by then, and show a mode that is not the step's.
func (r *Room) rest() {
	r.mu.Lock()
	for _, stop := range r.stop {
		stop()
	}
	r.stop = nil
	r.mu.Unlock()
	r.watching.Wait()
}

// Watch looks at the room until the context ends, or the room is settled or
// closed. The channel is closed when
// the step is over its bound or the room is full. A look that fails says
// nothing; the last one, Used, then fails too.
func (r *Room) Watch(ctx context.Context) <-chan struct{} {
	over := make(chan struct{})
	ctx, stop := context.WithCancel(ctx)
	r.mu.Lock()
	r.stop = append(r.stop, stop)
	r.mu.Unlock()
	r.watching.Go(func() {
		wait := firstLook
		for {
			t := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
			}
			begun := time.Now()
			u, err := r.place.used(ctx, true)
			if err == nil && (u.Full || u.Over(r.bytes, r.inodes)) {
				close(over)
				return
			}
			wait = nextLook(time.Since(begun))
		}
	})
	return over
}

// nextLook keeps the watching below a tenth of one processor.
func nextLook(took time.Duration) time.Duration { return max(firstLook, 9*took) }

// Close takes the room away, with all that is in it. It returns when nothing is
// left on the host.
func (r *Room) Close() error {
	r.closing.Do(func() {
		r.rest()
		r.closed = r.place.close()
	})
	return r.closed
}

const (
	upperName = "upper"
	workName  = "work"
)

// errNotRoot is why a normal user has neither of the better kinds.
var errNotRoot = errors.New("only root can mount a file system of its own for a step")
