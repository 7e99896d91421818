package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// layer is one layer on its way in.
type layer struct {
	digest string // of the bytes as they come; "" where only diff is known
	size   int64  // of these bytes; -1 where nobody says
	diff   string // of the tar that they are, unpacked
	open   func(context.Context) (io.ReadCloser, error)
}

// kind is what an entry of a layer does to the root.
type kind int

const (
	isFile kind = iota + 1
	isDir
	isSymlink
	isHardlink
	isFIFO
	isWhiteout // takes away what a layer below has at Path
	isOpaque   // takes away all that layers below have in Path
)

// entry is one entry of a layer, judged. Its paths are clean, relative, and lead
// nowhere out of the root by themselves; a link in the root may still be in the way.
type entry struct {
	Kind   kind
	Path   string
	Target string // of a symlink as it is; of a hard link a path like Path
	Header *tar.Header
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	aufs     = ".wh..wh." // what AUFS kept for itself
)

// spent counts what an image's layers amount to.
type spent struct {
	limits                Limits
	bytes, entries, names int64
}

// name counts a path. Packed, four million long ones are small.
func (s *spent) name(path string) error {
	if s.names += int64(len(path)); s.names > s.limits.Names {
		return refused("the paths in it are more than %d bytes together", s.limits.Names)
	}
	return nil
}

// count is a reader that stops at a bound.
type count struct {
	r     io.Reader
	spent *spent
}

func (c *count) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.spent.bytes += int64(n); c.spent.bytes > c.spent.limits.Unpacked {
		return 0, refused("its layers are more than %d bytes unpacked", c.spent.limits.Unpacked)
	}
	return n, err
}

// walk reads a layer to its end and calls each with every entry, once it was judged.
// Only if walk returns nil was the layer what its sums say.
func (l layer) walk(ctx context.Context, s *spent, each func(entry, io.Reader) error) error {
	raw, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer raw.Close()
	packed := &hashed{r: withContext(ctx, raw), sum: sha256.New(), want: l.digest, size: l.size}
	plain, done, err := decompress(packed)
	if err != nil {
		return unreadable(err)
	}
	defer done()
	tarball := &hashed{r: &count{plain, s}, sum: sha256.New(), want: l.diff, size: -1}
	if err := readTar(tarball, s, each); err != nil {
		return unreadable(err)
	}
	// What stands behind the end of the archive counts too.
	if err := errors.Join(tarball.rest(), packed.rest()); err != nil {
		return unreadable(err)
	}
	return nil
}

// unreadable makes what a reader of archives says a refusal. What is the host's or the
// caller's doing stays that.
func unreadable(err error) error {
	var own *applyError
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrNetwork) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &own) {
		return err
	}
	return refused("a layer cannot be read: %v", err)
}

// hashed sums up what is read, and knows what it should come to.
type hashed struct {
	r    io.Reader
	sum  hash.Hash
	n    int64
	want string // "" is not known
	size int64  // -1 is not known
}

func (h *hashed) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.sum.Write(p[:n])
	if h.n += int64(n); h.size >= 0 && h.n > h.size {
		return 0, refused("a part of it has more bytes than the %d it should have", h.size)
	}
	return n, err
}

// rest reads to the end and compares.
func (h *hashed) rest() error {
	if _, err := io.Copy(io.Discard, h); err != nil {
		return err
	}
	if h.size >= 0 && h.n != h.size {
		return refused("a part of it has %d bytes and should have %d", h.n, h.size)
	}
	if got := "sha256:" + hex.EncodeToString(h.sum.Sum(nil)); h.want != "" && got != h.want {
		return refused("a part of it has the digest %s and should have %s", got, h.want)
	}
	return nil
}

// decompress finds out by its first bytes how something is packed.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, err
		}
		return z, func() { _ = z.Close() }, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return b, func() {}, nil
}

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func withContext(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// readTar judges every entry of an archive.
func readTar(r io.Reader, s *spent, each func(entry, io.Reader) error) error {
	links := map[string]bool{} // symlinks of this layer
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if s.entries++; s.entries > s.limits.Entries {
			return refused("its layers have more than %d entries", s.limits.Entries)
		}
		e, ok, err := judge(h)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := s.name(e.Path); err != nil {
			return err
		}
		// A whiteout names what a folder of the layers below holds. One behind a
		// link would take away something else than the eye sees.
		if e.Kind == isWhiteout || e.Kind == isOpaque {
			for dir := e.Path; dir != "."; dir = path.Dir(dir) {
				if links[dir] && (e.Kind == isOpaque || dir != e.Path) {
					return refused("the whiteout %q lies behind the link %q", h.Name, dir)
				}
			}
		}
		if links[e.Path] = e.Kind == isSymlink; !links[e.Path] {
			delete(links, e.Path)
		}
		if err := each(e, t); err != nil {
			return err
		}
	}
}

// judge says what an entry is. ok is false for what has no effect.
func judge(h *tar.Header) (e entry, ok bool, err error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		// Readers do not agree on what these do to the entries that follow.
		for k := range h.PAXRecords {
			if k != "comment" {
				return e, false, refused("it has a global header that sets %q for all that follows", k)
			}
		}
		return e, false, nil
	}
	if sparse(h) {
		return e, false, refused("%q is a sparse file", h.Name)
	}
	e.Header = h
	if e.Path, err = cleanPath(h.Name); err != nil {
		return e, false, refused("the entry %q %w", h.Name, err)
	}
	if e.Path == "." {
		if h.Typeflag != tar.TypeDir {
			return e, false, refused("the root itself is no folder")
		}
		return e, false, nil // its mode is ours
	}
	dir, name := path.Split(e.Path)
	switch {
	case name == opaque:
		e.Kind, e.Path = isOpaque, path.Clean(dir)
		if dir == "" {
			e.Path = "."
		}
		return e, true, nil
	case strings.HasPrefix(name, aufs):
		return e, false, nil
	case strings.HasPrefix(name, whiteout):
		hidden := strings.TrimPrefix(name, whiteout)
		if hidden == "" || hidden == "." || hidden == ".." {
			return e, false, refused("the whiteout %q names nothing", h.Name)
		}
		e.Kind, e.Path = isWhiteout, dir+hidden
		return e, true, nil
	}
	for _, part := range strings.Split(dir, "/") {
		if strings.HasPrefix(part, aufs) {
			return e, false, nil
		}
		if strings.HasPrefix(part, whiteout) {
			return e, false, refused("the entry %q lies in a whiteout", h.Name)
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Kind = isFile
	case tar.TypeDir:
		e.Kind = isDir
	case tar.TypeFifo:
		e.Kind = isFIFO
	case tar.TypeSymlink:
		e.Kind, e.Target = isSymlink, h.Linkname
		err = symlinkTarget(e.Path, h.Linkname)
	case tar.TypeLink:
		e.Kind = isHardlink
		// The path of a hard link begins at the root; some tools write it so.
		if e.Target, err = cleanPath(strings.TrimPrefix(h.Linkname, "/")); err == nil && (e.Target == "." || e.Target == e.Path) {
			err = errors.New("is a link to no file")
		}
	case tar.TypeChar, tar.TypeBlock:
		err = errors.New("is a device node")
	default:
		err = fmt.Errorf("is of a type (%q) that no layer has", string(h.Typeflag))
	}
	if err != nil {
		return e, false, refused("the entry %q %w", h.Name, err)
	}
	return e, true, nil
}

func sparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// cleanPath gives the shortest form of a path in a layer. One that is absolute or has
// .. in it is refused: what those mean depends on who unpacks.
func cleanPath(name string) (string, error) {
	if name == "/" {
		return ".", nil // the root, as some tools write it
	}
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return "", errors.New("has no name")
	case name[0] == '/':
		return "", errors.New("has an absolute path")
	case len(name) > maxPath:
		return "", fmt.Errorf("has a path of more than %d bytes", maxPath)
	}
	parts := strings.Split(name, "/")
	deep := 0
	for _, p := range parts {
		switch {
		case p == "..":
			return "", errors.New("has .. in its path")
		case len(p) > maxPart:
			return "", fmt.Errorf("has a name of more than %d bytes in its path", maxPart)
		case p != "" && p != ".":
			deep++
		}
	}
	if deep > maxDepth {
		return "", fmt.Errorf("lies more than %d folders deep", maxDepth)
	}
	return path.Clean(name), nil
}

// symlinkTarget refuses a link that climbs out of the root. An absolute one begins at
// the root of the box, where every link of an image is followed.
func symlinkTarget(at, target string) error {
	if target == "" || len(target) > maxPath || strings.ContainsRune(target, 0) {
		return errors.New("is a link to no path")
	}
	level := strings.Count(at, "/")
	if target[0] == '/' {
		level = 0
	}
	for _, p := range strings.Split(target, "/") {
		switch p {
		case "", ".":
		case "..":
			if level--; level < 0 {
				return errors.New("is a link that climbs out of the root")
			}
		default:
			level++
		}
	}
	return nil
}
