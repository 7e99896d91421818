package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	block = 4096
	// ownInodes are those of ext4 itself, of upper, of work, and of what an
	// overlay makes in work before the step writes anything.
	ownInodes = 16
	// inodesPerBlock: an inode takes 256 bytes of a table that is there from the
	// beginning.
	inodesPerBlock = block / 256
	// maxEmpty bounds what an empty file system may consist of, in memory.
	maxEmpty = 64 << 20
)

// features of the file systems we make, named one by one, so that the host's
// mke2fs.conf decides nothing. No journal: nothing here outlives a crash.
const features = "none,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_index,dir_nlink,extra_isize,ext_attr,64bit,metadata_csum"

// Images keeps empty file systems, so that mkfs runs once for every size. They
// are some hundred KiB each, whatever their size. The zero value is ready.
type Images struct {
	mu   sync.Mutex
	kept map[size]*image
}

type size struct{ bytes, inodes int64 }

// image is an empty file system: its length, and the pieces that are not zero.
type image struct {
	length int64
	pieces []piece
}

type piece struct {
	at   int64
	data []byte
}

// get gives the empty file system of a size.
func (i *Images) get(o Options) (*image, error) {
	if i == nil {
		return format(o)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	key := size{o.Bytes, o.Inodes}
	if m := i.kept[key]; m != nil {
		return m, nil
	}
	m, err := format(o)
	if err != nil {
		return nil, err
	}
	if i.kept == nil {
		i.kept = map[size]*image{}
	}
	i.kept[key] = m
	return m, nil
}

// format runs mkfs.ext4 on a file without a name.
func format(o Options) (*image, error) {
	mkfs, err := find(o.Programs, "mkfs.ext4")
	if err != nil {
		return nil, err
	}
	blocks := firstGuess(o.Bytes, o.Inodes)
	for range 4 {
		m, free, err := formatOnce(mkfs, o.Dir, blocks, o.Inodes+ownInodes)
		if err != nil {
			return nil, err
		}
		missing := (o.Bytes+block-1)/block + ownBlocks - (free - kernelKeeps(blocks))
		if missing <= 0 {
			return m, nil
		}
		blocks += missing + missing/16 + 1
	}
	return nil, errors.New("disk: bug: no image is large enough for what is asked")
}

// ownBlocks is what upper, work and what an overlay makes there need.
const ownBlocks = 8

// firstGuess is the size of an image with so much free, in blocks.
func firstGuess(bytes, inodes int64) int64 {
	n := (bytes+block-1)/block + (inodes+ownInodes)/inodesPerBlock + ownBlocks + 5 // lost+found and the root
	n += 4 * (n/32768 + 1)                                                         // bitmaps and descriptors of a group
	return n + min(n/49+1, 4096+1)
}

// kernelKeeps is what ext4 sets aside at mount for its own growth: a fiftieth, and no
// more than 4096 blocks. It shows in no table of the image.
func kernelKeeps(blocks int64) int64 { return min(blocks/50, 4096) }

func formatOnce(mkfs, dir string, blocks, inodes int64) (*image, int64, error) {
	f, err := nameless(dir)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if err := f.Truncate(blocks * block); err != nil {
		return nil, 0, fmt.Errorf("make an image file: %w", err)
	}
	// The child has the image as descriptor 3. Nothing of our environment goes
	// to it: MKE2FS_* variables would change what it makes.
	cmd := &exec.Cmd{
		Path: mkfs, Dir: "/", Env: []string{"MKE2FS_CONFIG=/dev/null"}, ExtraFiles: []*os.File{f},
		Args: []string{"mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(block), "-I", strconv.Itoa(block / inodesPerBlock), "-m", "0",
			"-O", features, "-N", strconv.FormatInt(inodes, 10), "-E", "nodiscard,lazy_itable_init=1,root_owner=0:0", "/proc/self/fd/3"},
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %s", mkfs, err, firstLine(said.String()))
	}
	m, err := readImage(f)
	if err != nil {
		return nil, 0, fmt.Errorf("read the empty file system: %w", err)
	}
	free, err := freeBlocks(f)
	return m, free, err
}

// freeBlocks reads how much of an empty file system is free from its superblock.
func freeBlocks(f *os.File) (int64, error) {
	var sb [1024]byte
	if _, err := f.ReadAt(sb[:], 1024); err != nil {
		return 0, fmt.Errorf("read a superblock: %w", err)
	}
	le := binary.LittleEndian
	if le.Uint16(sb[0x38:]) != 0xef53 {
		return 0, errors.New("mkfs.ext4 made no ext4 file system")
	}
	return int64(le.Uint32(sb[0x0c:])) | int64(le.Uint32(sb[0x158:]))<<32, nil
}

// readImage takes the pieces of a sparse file that hold something.
func readImage(f *os.File) (*image, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m := &image{length: st.Size()}
	total := int64(0)
	for at := int64(0); at < m.length; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if total += to - from; total > maxEmpty {
			return nil, fmt.Errorf("it has over %d bytes that are not holes", int64(maxEmpty))
		}
		data := make([]byte, to-from)
		if _, err := f.ReadAt(data, from); err != nil {
			return nil, err
		}
		m.pieces = append(m.pieces, trim(from, data)...)
		at = to
	}
	return m, nil
}

// trim leaves out blocks of zeros: a file system without holes gives whole
// files as data.
func trim(at int64, data []byte) (out []piece) {
	var zero [block]byte
	open := false
	for len(data) > 0 {
		n := min(block, len(data))
		if bytes.Equal(data[:n], zero[:n]) {
			open = false
		} else if open {
			p := &out[len(out)-1]
			p.data = append(p.data, data[:n]...)
		} else {
			out = append(out, piece{at, bytes.Clone(data[:n])})
			open = true
		}
		at, data = at+int64(n), data[n:]
	}
	return out
}

// write makes a file without a name that holds the file system.
func (m *image) write(dir string) (*os.File, error) {
	f, err := nameless(dir)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(m.length)
	for _, p := range m.pieces {
		if err == nil {
			_, err = f.WriteAt(p.data, p.at)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("make an image file: %w", err)
	}
	return f, nil
}

// nameless makes a file that is gone when nobody has it open.
func nameless(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(dir, "image")), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("make an image file in %s: %w", dir, err)
	}
	f, err := os.CreateTemp(dir, "image-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func find(dirs []string, name string) (string, error) {
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s; the package e2fsprogs has it", name, strings.Join(dirs, ", "))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return fmt.Sprintf("%.200q", line)
}
