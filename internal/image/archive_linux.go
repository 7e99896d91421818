package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// archive is an image on this machine: the tar that docker save writes, or the layout
// of the OCI as a folder or a tar. Its own names are the only ones it can name.
type archive interface {
	// open gives a part by its name, and its size.
	open(name string) (io.ReadCloser, int64, error)
	Close() error
}

// openArchive opens FILE of archive:FILE, whose path has no link in it any more. spool
// is a folder for what a packed archive holds.
func openArchive(ctx context.Context, file, spool string, l Limits) (archive, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, file, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%w: there is no %s", ErrNotFound, file)
	case errors.Is(err, unix.ELOOP):
		return nil, refused("there is a link in the path of %s now", file)
	case err != nil:
		return nil, fmt.Errorf("%w: open %s: %w", ErrNotFound, file, err)
	}
	f := os.NewFile(uintptr(fd), file)
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		return folder{f}, nil
	case !st.Mode().IsRegular():
		err = refused("%s is neither a file nor a folder", file)
	default:
		var a archive
		if a, err = openTar(ctx, f, spool, l); err == nil {
			return a, nil
		}
	}
	f.Close()
	return nil, err
}

// folder is a layout on disk. Links in it are not followed.
type folder struct{ f *os.File }

func (d folder) Close() error { return d.f.Close() }

func (d folder) open(name string) (io.ReadCloser, int64, error) {
	fd, err := unix.Openat2(int(d.f.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, 0, errNoPart
	}
	if err != nil {
		return nil, 0, refused("open its part %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, 0, refused("its part %q is no file", name)
	}
	return f, st.Size(), nil
}

var errNoPart = errors.New("there is no such part in the archive")

// tarFile is an archive with a list of where its parts begin.
type tarFile struct {
	f     *os.File
	parts map[string]section
	links map[string]string // as older dockers write layers that several images share
}

type section struct{ at, size int64 }

func (t *tarFile) Close() error { return t.f.Close() }

func openTar(ctx context.Context, f *os.File, spool string, l Limits) (*tarFile, error) {
	plain, done, err := decompress(withContext(ctx, f))
	if err != nil {
		return nil, unreadable(err)
	}
	defer done()
	var magic [4]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil {
		return nil, refused("it is no archive: %v", err)
	}
	if bytes.HasPrefix(magic[:], []byte{0x1f, 0x8b}) || bytes.HasPrefix(magic[:], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		// Its parts are read in any order and twice, so it is unpacked once.
		tmp, err := os.CreateTemp(spool, "archive-")
		if err != nil {
			return nil, fmt.Errorf("unpack the archive: %w", err)
		}
		_ = os.Remove(tmp.Name())
		from := source{r: &count{plain, &spent{limits: l}}}
		if _, err := io.Copy(tmp, &from); err != nil {
			tmp.Close()
			if from.err != nil {
				return nil, unreadable(from.err)
			}
			return nil, fmt.Errorf("unpack the archive: %w", err)
		}
		f.Close()
		f = tmp
	}
	t := &tarFile{f: f, parts: map[string]section{}, links: map[string]string{}}
	if err := t.list(ctx, l); err != nil {
		f.Close()
		return nil, err
	}
	return t, nil
}

// list notes where the parts are. A name that is there twice is two images.
func (t *tarFile) list(ctx context.Context, l Limits) error {
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r := tar.NewReader(t.f)
	s := &spent{limits: l}
	for n := int64(0); ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return unreadable(err)
		}
		if n > l.Entries {
			return refused("the archive has more than %d entries", l.Entries)
		}
		name, err := cleanPath(h.Name)
		if err != nil {
			return refused("the entry %q of the archive %w", h.Name, err)
		}
		if err := s.name(name + h.Linkname); err != nil {
			return err
		}
		if _, twice := t.parts[name]; twice || t.links[name] != "" {
			return refused("the archive has %q twice", h.Name)
		}
		switch {
		case sparse(h):
			return refused("the entry %q of the archive is a sparse file", h.Name)
		case h.Typeflag == tar.TypeReg:
			at, err := t.f.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			t.parts[name] = section{at, h.Size}
		case h.Typeflag == tar.TypeSymlink:
			t.links[name] = path.Join(path.Dir(name), h.Linkname)
		}
	}
}

func (t *tarFile) open(name string) (io.ReadCloser, int64, error) {
	s, ok := t.parts[name]
	if !ok {
		s, ok = t.parts[t.links[name]]
	}
	if !ok {
		return nil, 0, errNoPart
	}
	return io.NopCloser(io.NewSectionReader(t.f, s.at, s.size)), s.size, nil
}

// readPart reads a small part.
func readPart(a archive, name string) ([]byte, error) {
	r, size, err := a.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxJSON {
		return nil, refused("its part %q has %d bytes, more than %d", name, size, maxJSON)
	}
	return io.ReadAll(io.LimitReader(r, maxJSON))
}

func blobName(digest string) string {
	return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:")
}

// sum is the digest of bytes in memory.
func sum(raw []byte) string {
	s := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(s[:])
}

// pickFrom finds the one image of an archive.
func pickFrom(a archive, l Limits) (picked, error) {
	index, err := readPart(a, "index.json")
	if errors.Is(err, errNoPart) {
		return pickSaved(a, l)
	}
	if err != nil {
		return picked{}, err
	}
	get := func(d v1.Descriptor) ([]byte, error) {
		if err := small(d); err != nil {
			return nil, err
		}
		raw, err := readPart(a, blobName(d.Digest.String()))
		if errors.Is(err, errNoPart) {
			return nil, refused("it lacks its part %s", d.Digest)
		}
		if err == nil && sum(raw) != d.Digest.String() {
			return nil, refused("its part %s has the digest %s", d.Digest, sum(raw))
		}
		return raw, err
	}
	return pick(index, "", types.OCIImageIndex, get, l, true, func(d v1.Descriptor) layer {
		return layer{open: opener(a, blobName(d.Digest.String()))}
	})
}

func opener(a archive, name string) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		r, _, err := a.open(name)
		if errors.Is(err, errNoPart) {
			return nil, refused("it lacks its part %q", name)
		}
		return r, err
	}
}

// pickSaved reads what docker save wrote before it wrote layouts.
func pickSaved(a archive, l Limits) (picked, error) {
	raw, err := readPart(a, "manifest.json")
	if errors.Is(err, errNoPart) {
		return picked{}, refused("it has neither an index.json nor a manifest.json, so it is no archive of an image")
	}
	if err != nil {
		return picked{}, err
	}
	var list []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return picked{}, refused("its manifest.json cannot be read: %v", err)
	}
	if len(list) != 1 {
		return picked{}, refused("it holds %s; one is needed", plural(len(list), "image"))
	}
	config, err := readPart(a, path.Clean(list[0].Config))
	if errors.Is(err, errNoPart) {
		return picked{}, refused("it lacks its part %q", list[0].Config)
	}
	if err != nil {
		return picked{}, err
	}
	p := picked{id: sum(config)}
	p.digest = p.id
	diffs, err := p.configure(config)
	if err != nil {
		return p, err
	}
	if len(diffs) != len(list[0].Layers) || len(diffs) > l.Layers {
		return p, refused("it has %d layers, its configuration knows %d, and at most %d may be", len(list[0].Layers), len(diffs), l.Layers)
	}
	for i, name := range list[0].Layers {
		p.layers = append(p.layers, layer{size: -1, diff: diffs[i].String(), open: opener(a, path.Clean(name))})
	}
	return p, nil
}
