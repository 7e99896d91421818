package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// Store keeps images in a folder of the caller's own:
//
//	blobs/HEX    layers as they came, by digest, shared by all images that have them
//	roots/HEX/   one image, by the digest of its configuration:
//	    rootfs/      its root
//	    image.json   what it is; an image without it is none
//	refs/HEX     which image a reference stood for, by the sum of the reference
//	locks/NN     held by who makes an image
//	tmp/         what is being made
//
// What is in roots, blobs and refs got there by a rename, whole. Whoever can write to
// the folder can replace this program as well; nobody else is believed.
type Store struct {
	Dir    string
	Limits Limits
}

// Image is an image in the store, kept from Prune until Close.
type Image struct {
	Digest string // what it can be asked for by
	ID     string // of its configuration
	Root   string // its root file system; not to be written to
	Config Config
	hold   *os.File
}

// Close lets go of the image.
func (i *Image) Close() error {
	if i == nil || i.hold == nil {
		return nil
	}
	return i.hold.Close()
}

const (
	blobsDir, rootsDir, refsDir, locksDir, tmpDir = "blobs", "roots", "refs", "locks", "tmp"
	rootName, recordName                          = "rootfs", "image.json"
	// recordVersion is that of the way roots are made; another one is made anew.
	recordVersion = 1
)

// record is what the store knows of an image.
type record struct {
	Version int      `json:"version"`
	ID      string   `json:"id"`
	Config  Config   `json:"config"`
	Blobs   []string `json:"blobs,omitempty"`
}

// named is what a reference stood for.
type named struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	ID     string `json:"id"`
}

func (s *Store) at(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// hexOf is a digest as the name of a file.
func hexOf(digest string) (string, error) {
	if !digestShape().MatchString(digest) {
		return "", fmt.Errorf("image: bug: %q is no digest", digest)
	}
	return strings.TrimPrefix(digest, "sha256:"), nil
}

// open makes the store's folders, and makes sure that they are ours alone.
func (s *Store) open() error {
	if !filepath.IsAbs(s.Dir) {
		return errors.New("there is no place to keep images in")
	}
	root, err := scratch.OpenOwn(s.Dir, true)
	if err != nil {
		return fmt.Errorf("make the folder for images: %w", err)
	}
	defer root.Close()
	for _, d := range []string{blobsDir, rootsDir, refsDir, locksDir, tmpDir} {
		if err := root.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the folder for images: %w", err)
		}
		if err := ours(s.at(d)); err != nil {
			return err
		}
	}
	return nil
}

// ours says why a folder is none of ours.
func ours(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the folder for images: %w", &fs.PathError{Op: "open", Path: dir, Err: err})
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	return scratch.OursAlone(f, unix.S_IFDIR)
}

// Lookup gives an image that is here. It asks nobody and makes nothing.
func (s *Store) Lookup(ref Ref) (*Image, error) { return s.lookup(ref.String()) }

// LookupArchive is Lookup for an archive that was loaded and is as it was then.
func (s *Store) LookupArchive(file string) (*Image, error) {
	key, err := archiveKey(file)
	if err != nil {
		return nil, ErrMissing
	}
	return s.lookup(key)
}

func (s *Store) lookup(name string) (*Image, error) {
	if !filepath.IsAbs(s.Dir) {
		return nil, ErrMissing
	}
	if _, err := os.Lstat(s.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	// Nor may anybody put another folder in the place of one above it.
	root, err := scratch.OpenOwn(s.Dir, false)
	if err != nil {
		return nil, fmt.Errorf("open the folder for images: %w", err)
	}
	defer root.Close()
	for _, d := range []string{refsDir, rootsDir} {
		if err := ours(s.at(d)); errors.Is(err, fs.ErrNotExist) {
			return nil, ErrMissing
		} else if err != nil {
			return nil, err
		}
	}
	var n named
	if f, err := s.readJSON(s.at(refsDir, refName(name)), &n); err != nil {
		return nil, ErrMissing
	} else {
		f.Close()
	}
	if n.Name != name || !digestShape().MatchString(n.Digest) || !digestShape().MatchString(n.ID) {
		return nil, ErrMissing
	}
	return s.image(n.ID, n.Digest)
}

func refName(name string) string {
	s := sha256.Sum256([]byte(name + "\x00" + platform()))
	return hex.EncodeToString(s[:])
}

// readJSON reads a file of ours. It stays open.
func (s *Store) readJSON(at string, into any) (*os.File, error) {
	fd, err := unix.Open(at, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: at, Err: err}
	}
	f := os.NewFile(uintptr(fd), at)
	err = scratch.OursAlone(f, unix.S_IFREG)
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(f, 2*maxJSON))
	}
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// image gives an image that is whole, and holds it.
func (s *Store) image(id, digest string) (*Image, error) {
	h, err := hexOf(id)
	if err != nil {
		return nil, err
	}
	dir := s.at(rootsDir, h)
	var rec record
	f, err := s.readJSON(filepath.Join(dir, recordName), &rec)
	if err != nil {
		return nil, ErrMissing
	}
	i := &Image{Digest: digest, ID: id, Root: filepath.Join(dir, rootName), Config: rec.Config, hold: f}
	ok := rec.Version == recordVersion && rec.ID == id && ours(dir) == nil && ours(i.Root) == nil && unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
	// Prune may have taken it away before it was held.
	if ok {
		var now, held unix.Stat_t
		ok = unix.Lstat(filepath.Join(dir, recordName), &now) == nil && unix.Fstat(int(f.Fd()), &held) == nil && now.Ino == held.Ino && now.Dev == held.Dev
	}
	if !ok {
		f.Close()
		return nil, ErrMissing
	}
	t := time.Now()
	_ = os.Chtimes(filepath.Join(dir, recordName), t, t) // when it was last of use
	return i, nil
}

func (s *Store) temp() (*scratch.Folder, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	f, err := scratch.Make(s.at(tmpDir), scratch.Image)
	if err != nil {
		return nil, fmt.Errorf("make a folder for an image: %w", err)
	}
	return f, nil
}

// hasBlob says whether a layer is here. Its sum is compared when it is unpacked.
func (s *Store) hasBlob(digest string, size int64) bool {
	h, err := hexOf(digest)
	if err != nil {
		return false
	}
	st, err := os.Lstat(s.at(blobsDir, h))
	return err == nil && st.Mode().IsRegular() && st.Size() == size
}

// blob opens a layer that is here.
func (s *Store) blob(digest string) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		h, err := hexOf(digest)
		if err != nil {
			return nil, err
		}
		return os.OpenFile(s.at(blobsDir, h), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
}

// building is an image that one process makes, while others wait for it.
type building struct {
	s     *Store
	found picked
	dir   string // where it goes
	tmp   *scratch.Folder
	lock  *os.File
	share *os.File // keeps Prune away
}

// begin waits until nobody else makes the same image.
func (s *Store) begin(ctx context.Context, found picked) (b *building, err error) {
	b = &building{s: s, found: found}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	if b.tmp, err = s.temp(); err != nil {
		return b, err
	}
	h, err := hexOf(found.id)
	if err != nil {
		return b, err
	}
	b.dir = s.at(rootsDir, h)
	if b.share, err = s.take(ctx, "prune", unix.LOCK_SH); err != nil {
		return b, err
	}
	// One of a few locks: files of locks cannot be removed without a race.
	b.lock, err = s.take(ctx, h[:1], unix.LOCK_EX)
	return b, err
}

// take waits for a lock.
func (s *Store) take(ctx context.Context, name string, how int) (*os.File, error) {
	f, err := os.OpenFile(s.at(locksDir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for images: %w", err)
	}
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the folder for images: %w", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

func (b *building) end() {
	for _, f := range []*os.File{b.lock, b.share} {
		if f != nil {
			f.Close()
		}
	}
	if b.tmp != nil {
		_ = b.tmp.Remove()
	}
}

// complete says whether the image is there by now.
func (b *building) complete() bool {
	i, err := b.s.image(b.found.id, b.found.digest)
	if err != nil {
		return false
	}
	i.Close()
	return true
}

// putBlob writes a layer, compares its sum, and puts it in its place.
func (b *building) putBlob(l layer, r io.Reader) error {
	h, err := hexOf(l.digest)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(b.tmp.Path, "blob-")
	if err != nil {
		return fmt.Errorf("keep a layer: %w", err)
	}
	defer f.Close()
	whole := &hashed{r: r, sum: sha256.New(), want: l.digest, size: l.size}
	if _, err := io.Copy(f, whole); err != nil {
		return fmt.Errorf("keep a layer: %w", err)
	}
	if err := whole.rest(); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), os.Rename(f.Name(), b.s.at(blobsDir, h))); err != nil {
		return fmt.Errorf("keep a layer: %w", err)
	}
	return nil
}

// unpack makes the root. Every layer is read to its end and judged first: of an image
// that is refused nothing was written.
func (b *building) unpack(ctx context.Context, progress func(Progress)) error {
	limits := b.s.Limits.orDefault()
	vetted := &spent{limits: limits}
	for _, l := range b.found.layers {
		if err := l.walk(ctx, vetted, func(entry, io.Reader) error { return nil }); err != nil {
			b.distrust(l, err)
			return err
		}
	}
	whole := filepath.Join(b.tmp.Path, "image")
	dir := filepath.Join(whole, rootName)
	if err := errors.Join(os.Mkdir(whole, 0o700), os.Mkdir(dir, 0o755)); err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	r, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer r.close()
	again := &spent{limits: limits}
	for i, l := range b.found.layers {
		if progress != nil {
			progress(Progress{Stage: Unpacking, Done: again.bytes, Total: vetted.bytes, Layer: i + 1, Layers: len(b.found.layers)})
		}
		r.nextLayer()
		if err := l.walk(ctx, again, r.apply); err != nil {
			return err
		}
	}
	if err := r.finish(); err != nil {
		return err
	}
	return b.place(whole)
}

// distrust removes a layer that is not what its name says: the next pull gets it anew.
func (b *building) distrust(l layer, err error) {
	if h, herr := hexOf(l.digest); herr == nil && errors.Is(err, ErrRefused) {
		_ = os.Remove(b.s.at(blobsDir, h))
	}
}

// place puts a finished root where it belongs, for good.
func (b *building) place(whole string) error {
	rec := record{Version: recordVersion, ID: b.found.id, Config: b.found.config}
	for _, l := range b.found.layers {
		if l.digest != "" {
			rec.Blobs = append(rec.Blobs, l.digest)
		}
	}
	if err := writeJSON(filepath.Join(whole, recordName), rec); err != nil {
		return err
	}
	// A machine that loses its power must not find an image with files that are empty.
	f, err := os.Open(whole)
	if err != nil {
		return fmt.Errorf("keep the image: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("keep the image: %w", err)
	}
	// What is in its place is not whole, or of an older form.
	if err := os.Rename(b.dir, filepath.Join(b.tmp.Path, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the image: %w", err)
	}
	if err := errors.Join(os.Rename(whole, b.dir), syncDir(filepath.Dir(b.dir))); err != nil {
		return fmt.Errorf("keep the image: %w", err)
	}
	return nil
}

// keep notes what the reference stands for, and gives the image.
func (b *building) keep(name string) (*Image, error) {
	i, err := b.s.image(b.found.id, b.found.digest)
	if err != nil {
		return nil, fmt.Errorf("the image that was just made is not there: %w", errHost)
	}
	if name == "" {
		return i, nil
	}
	tmp := filepath.Join(b.tmp.Path, "ref")
	at := b.s.at(refsDir, refName(name))
	if err := errors.Join(writeJSON(tmp, named{name, b.found.digest, b.found.id}), os.Rename(tmp, at), syncDir(filepath.Dir(at))); err != nil {
		i.Close()
		return nil, fmt.Errorf("note what %s is: %w", name, err)
	}
	return i, nil
}

var errHost = errors.New("somebody else took it away")

func writeJSON(at string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("image: bug: %w", err)
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Prune removes images that were of no use since before, and what nobody needs any
// more. What is in use stays, and so does everything while an image is made.
func (s *Store) Prune(before time.Time) (removed []string, err error) {
	if _, err := os.Lstat(s.Dir); err != nil {
		return nil, nil // there is nothing
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	scratch.Sweep(s.at(tmpDir), time.Now())
	lock, err := os.OpenFile(s.at(locksDir, "prune"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for images: %w", err)
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil, nil // another time
	}
	tmp, err := s.temp()
	if err != nil {
		return nil, err
	}
	defer func() { _ = tmp.Remove() }()
	list, err := os.ReadDir(s.at(rootsDir))
	if err != nil {
		return nil, fmt.Errorf("look for images: %w", err)
	}
	kept := map[string]bool{} // ids, and digests of blobs
	for _, e := range list {
		rec, gone := s.drop(e.Name(), before, tmp.Path)
		if gone {
			removed = append(removed, e.Name())
			continue
		}
		kept[rec.ID] = true
		for _, d := range rec.Blobs {
			kept[d] = true
		}
	}
	s.each(blobsDir, func(name string) bool { return kept["sha256:"+name] })
	s.each(refsDir, func(name string) bool {
		var n named
		f, err := s.readJSON(s.at(refsDir, name), &n)
		if err == nil {
			f.Close()
		}
		return err == nil && kept[n.ID]
	})
	slices.Sort(removed)
	return removed, nil
}

// drop moves one image away if it is old and nobody holds it.
func (s *Store) drop(name string, before time.Time, to string) (record, bool) {
	var rec record
	at := s.at(rootsDir, name, recordName)
	f, err := s.readJSON(at, &rec)
	if err == nil {
		defer f.Close()
		st, err := f.Stat()
		if err != nil || !st.ModTime().Before(before) || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return rec, false
		}
	}
	return rec, os.Rename(s.at(rootsDir, name), filepath.Join(to, name)) == nil
}

// each removes the files of a folder that are not to stay.
func (s *Store) each(dir string, stays func(string) bool) {
	list, err := os.ReadDir(s.at(dir))
	if err != nil {
		return
	}
	for _, e := range list {
		if !stays(e.Name()) {
			_ = os.Remove(s.at(dir, e.Name()))
		}
	}
}

// identity is a file as it is now.
func identity(file string, st fs.FileInfo) (string, error) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("image: bug: no identity in stat of %s", file)
	}
	return fmt.Sprintf("archive:%s\x00%d.%d.%d.%d.%09d", file, sys.Dev, sys.Ino, sys.Size, sys.Ctim.Sec, sys.Ctim.Nsec), nil
}
