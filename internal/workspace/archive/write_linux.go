package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Write packs the workspace. Files and folders keep their mode and the second
// they were changed in; they have no owner. Links and whatever is no file are
// left out and named. A tree that Restore would refuse is refused here.
func Write(ctx context.Context, workspace string, w io.Writer, o Options) (Summary, error) {
	root, err := openAt(unix.AT_FDCWD, workspace, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Summary{}, fmt.Errorf("pack the workspace: open %s: %w", workspace, err)
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		unix.Close(root)
		return Summary{}, fmt.Errorf("pack the workspace: %w", err)
	}
	p := &packer{ctx: ctx, o: o.withDefaults(), tar: tar.NewWriter(z)}
	if err := p.folder(root, "", 0); err != nil {
		return Summary{}, fmt.Errorf("pack the workspace: %w", err)
	}
	if err := errors.Join(p.tar.Close(), z.Close()); err != nil {
		return Summary{}, fmt.Errorf("pack the workspace: %w", err)
	}
	return p.sum, nil
}

type packer struct {
	ctx context.Context
	o   Options
	tar *tar.Writer
	sum Summary
}

// folder packs what is in an open folder, and closes it. Names are in the order
// of their bytes, so that the order in which files were made shows nowhere.
func (p *packer) folder(fd int, path string, depth int) error {
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var names []string
	for {
		more, err := dir.Readdirnames(4096)
		names = append(names, more...)
		if len(names) > p.o.MaxEntries {
			return refuse(path, "more than %d entries", p.o.MaxEntries)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		full := name
		if path != "" {
			full = path + "/" + name
		}
		if err := p.entry(fd, full, name, depth); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(fd int, path, name string, depth int) error {
	if depth == 0 && strings.HasPrefix(name, stagePrefix) {
		// A restore that was killed left it behind.
		p.sum.leave(path)
		return nil
	}
	var text []byte
	replaced := false
	if p.o.Look != nil {
		var hidden bool
		if text, replaced, hidden = p.o.Look(path); hidden {
			return nil
		}
	}
	st, err := lstatAt(fd, name)
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	if p.o.Ignore != nil && p.o.Ignore(st.Dev, st.Ino) {
		return nil
	}
	if p.sum.Files+p.sum.Folders >= p.o.MaxEntries {
		return refuse("", "the workspace has more than %d entries", p.o.MaxEntries)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if len(path) > MaxPath || depth+1 >= MaxDepth {
			return refuse(path[:min(len(path), 64)]+"...", "a path of more than %d bytes or %d folders", MaxPath, MaxDepth)
		}
		if err := p.tar.WriteHeader(header(path+"/", tar.TypeDir, 0, st)); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		p.sum.Folders++
		sub, err := openAt(fd, name, openDir, 0)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		return p.folder(sub, path, depth+1)
	case unix.S_IFREG:
		if len(path) > MaxPath {
			return refuse(path[:64]+"...", "a path of more than %d bytes", MaxPath)
		}
		if err := p.file(fd, path, name, st, text, replaced); err != nil {
			return err
		}
		p.sum.Files++
		return nil
	}
	p.sum.leave(path)
	return nil
}

func (p *packer) file(dir int, path, name string, st unix.Stat_t, text []byte, replaced bool) error {
	size := st.Size
	var from io.Reader = bytes.NewReader(text)
	if replaced {
		size = int64(len(text))
	}
	if p.sum.Bytes += size; p.sum.Bytes > p.o.MaxBytes {
		return refuse("", "the workspace has more than %d bytes", p.o.MaxBytes)
	}
	if !replaced {
		fd, err := openAt(dir, name, openFile, 0)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		now, err := fstat(fd)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		if now.Ino != st.Ino || now.Mode != st.Mode || now.Size != st.Size {
			return fmt.Errorf("%q: changed while it was read; end what still writes there", path)
		}
		from = f
	}
	if err := p.tar.WriteHeader(header(path, tar.TypeReg, size, st)); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	if _, err := io.CopyN(p.tar, from, size); err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	return nil
}

// header says nothing of who made a file: the same tree gives the same bytes.
func header(name string, kind byte, size int64, st unix.Stat_t) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Size: size, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(max(st.Mtim.Sec, 0), 0)}
}
