package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// missingFile: it is not there, as where a kernel is too old for it.
func missingFile(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// gone: it is not there, or its group went while it was open. Only for those who
// empty, list or remove groups, to whom both are the same: whoever asks what a kernel
// can do would take a group that vanished for a kernel that can do less.
func gone(err error) bool { return missingFile(err) || errors.Is(err, syscall.ENODEV) }

func exists(err error) bool    { return errors.Is(err, fs.ErrExist) }
func busy(err error) bool      { return errors.Is(err, syscall.EBUSY) }
func denied(err error) bool    { return errors.Is(err, fs.ErrPermission) }
func noProcess(err error) bool { return errors.Is(err, syscall.ESRCH) }

// procs lists the processes in one group, those of its children not included.
// A process of another pid namespace is 0.
func procs(k kernel, dir string) ([]int, error) {
	text, err := k.read(path.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs: %w", dir, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// maxDepth bounds every walk down a hierarchy.
const maxDepth = 32

// walk visits a group and its descendants, children first. One that vanishes
// meanwhile is passed over.
func walk(k kernel, dir string, depth int, visit func(dir string) error) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: more than %d groups deep", dir, maxDepth)
	}
	children, err := k.list(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := walk(k, path.Join(dir, c), depth+1, visit); err != nil {
			return err
		}
	}
	if err := visit(dir); err != nil && !gone(err) {
		return err
	}
	return nil
}

// set writes a number and reads it back: a cap is what the kernel says it is.
func set(k kernel, file string, write, want int64) error {
	if err := k.write(file, strconv.FormatInt(write, 10)); err != nil {
		return err
	}
	return check(k, file, want)
}

func check(k kernel, file string, want int64) error {
	got, err := readNumber(k, file)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s reads back %d, not %d", file, got, want)
	}
	return nil
}

func readNumber(k kernel, file string) (int64, error) {
	text, err := k.read(file)
	if err != nil {
		return 0, err
	}
	n, err := number(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func readField(k kernel, file, name string) (int64, error) {
	text, err := k.read(file)
	if err != nil {
		return 0, err
	}
	n, err := field(text, name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// removePatience is how long a group may stay busy after its last process
// ended. The kernel empties it a moment later.
const removePatience = 2 * time.Second

// remove removes a group and what is below it.
func remove(k kernel, dir string) error {
	var waited time.Duration
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := walk(k, dir, 0, k.rmdir)
		if !busy(err) || waited >= removePatience {
			return err
		}
		k.sleep(pause)
		waited += pause
	}
}
