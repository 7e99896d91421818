package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// loopTries bounds the race for a free device with others on the host.
	loopTries = 64
	// freeLimit bounds the wait for a device to be free again. The kernel needs
	// a millisecond; somebody who looks at new devices, as udev does, some more.
	freeLimit = 5 * time.Second
	freeLook  = 200 * time.Microsecond
)

// ext4Shutdown ends a file system at once, without writing what is not written
// yet (EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH).
const (
	ext4Shutdown = 0x8004587d
	noFlush      = 2
)

// writeAnyway is how much is written at the end rather than given up.
const writeAnyway = 256 << 10

// loop is an ext4 on a loop device on an image without a name.
type loop struct {
	mounted
	device  string // /dev/loopN
	backing string // what sysfs says is behind it
	sysfs   string
}

func newLoop(o Options) (place, error) {
	if !o.Root {
		return nil, errNotRoot
	}
	control, err := unix.Open(o.Control, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("no loop device: open %s: %w", o.Control, err)
	}
	defer unix.Close(control)
	m, err := o.Images.get(o)
	if err != nil {
		return nil, err
	}
	f, err := m.write(o.Dir)
	if err != nil {
		return nil, err
	}
	// The device holds the image from here on, the mount holds the device.
	defer f.Close()
	l := &loop{mounted: mounted{mount: -1, dir: -1}}
	device, err := l.attach(control, f)
	if err != nil {
		return nil, fmt.Errorf("no loop device: %w", err)
	}
	l.mount, err = l.another()
	if err == nil {
		err = l.enter(o)
	}
	unix.Close(device)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// attach puts the image behind a free device. The device frees itself with its
// last user, whatever becomes of this program: that is set in the same call
// that takes it.
func (l *loop) attach(control int, f *os.File) (int, error) {
	for range loopTries {
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return -1, fmt.Errorf("ask for a free one: %w", err)
		}
		l.device = fmt.Sprintf("/dev/loop%d", n)
		fd, err := unix.Open(l.device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", l.device, err)
		}
		err = unix.IoctlLoopConfigure(fd, &unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			l.sysfs = fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n)
			l.backing = read(l.sysfs)
			return fd, nil
		}
		unix.Close(fd)
		if !errors.Is(err, unix.EBUSY) {
			return -1, fmt.Errorf("put a file behind %s: %w", l.device, err)
		}
	}
	return -1, errors.New("others took every free one")
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// another mounts the device's file system, again if need be: a mount that is in
// nobody's table can be cloned since Linux 6.15 only, a device can be mounted
// as often as one likes. No barriers: the image need not survive the host.
func (l *loop) another() (int, error) {
	return mountDetached("ext4", []option{{"source", l.device}, {"errors", "remount-ro"}, {"noinit_itable", ""}, {"nobarrier", ""}})
}

func (l *loop) tree() (int, error) { return l.another() }

func (l *loop) used(context.Context, bool) (Usage, error) { return l.usage() }

// settle hands everything to the image. Where the host has no block for it, the
// kernel says so here, to whoever had the file system open before.
func (l *loop) settle() error {
	if err := unix.Syncfs(l.dir); err != nil {
		return fmt.Errorf("write what the step wrote to the image of its file system: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(l.dir, &st); err != nil {
		return fmt.Errorf("ask for the state of the step's file system: %w", err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return errors.New("the kernel found an error in the step's file system and stopped writing to it; the host may have no room left for its image")
	}
	return nil
}

func (l *loop) close() error {
	if l.dir >= 0 {
		// What is not written yet belongs to nobody now. Where this is not to be
		// had, it is written first, which takes longer and changes nothing; as it
		// is for so little that writing is quicker.
		if u, err := l.usage(); err != nil || u.Bytes > writeAnyway {
			_ = unix.IoctlSetPointerInt(l.dir, ext4Shutdown, noFlush)
		}
	}
	l.release()
	for until := time.Now().Add(freeLimit); l.backing != "" && read(l.sysfs) == l.backing; time.Sleep(freeLook) {
		if time.Now().After(until) {
			return fmt.Errorf("%s is still in use %v after the step's file system was given up", l.device, freeLimit)
		}
	}
	return nil
}
