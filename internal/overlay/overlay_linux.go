// Package overlay mounts a workspace that can be written without being changed:
// layers of the host below, one folder on top that takes what is written.
//
// It is called in a mount namespace of a box or of its launcher, by a process
// that is root of its user namespace and of nothing else. It resolves no path of
// the host: every layer comes as a mount that somebody has opened, judged and, for
// root's boxes, mapped to the box's ids.
//
// What it leaves is one mount. The layers themselves are nowhere to be found
// afterwards, so that nothing in a box can write to one directly.
//
//	err := overlay.Mount(at, []int{mask, workspace, base})
package overlay

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in the folder that takes what is written.
const (
	upper = "upper"
	work  = "work"
)

// MaxLayers is how many layers may lie below: what the kernel takes is 500.
const MaxLayers = 400

// Mount mounts an overlay on the folder that at is open at (O_PATH). Trees are
// detached mounts: the layers below, the top one first, and last the folder that
// holds the folders upper and work. They are used up, and still the caller's to
// close. The current folder is the same afterwards.
func Mount(at int, trees []int) error {
	if len(trees) < 2 || len(trees)-1 > MaxLayers {
		return fmt.Errorf("an overlay of %d layers: it takes 1 to %d", len(trees)-1, MaxLayers)
	}
	back, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("hold the current folder: %w", err)
	}
	defer unix.Close(back)
	whole, err := assemble(at, trees)
	if err := unix.Fchdir(back); err != nil {
		return fmt.Errorf("come back to the current folder: %w", err)
	}
	if err != nil {
		return err
	}
	defer unix.Close(whole)
	if err := unix.MoveMount(whole, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("put the overlay in its place: %w", err)
	}
	return nil
}

// assemble builds the overlay on a stage in memory that is gone when it returns,
// and gives it as a detached mount.
func assemble(at int, trees []int) (whole int, err error) {
	stage, err := memory()
	if err != nil {
		return -1, fmt.Errorf("make a stage for the overlay: %w", err)
	}
	defer unix.Close(stage)
	if err := unix.MoveMount(stage, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return -1, fmt.Errorf("make a stage for the overlay: %w", err)
	}
	if err := unix.Fchdir(stage); err != nil {
		return -1, fmt.Errorf("enter the overlay's stage: %w", err)
	}
	defer func() {
		if uerr := unix.Unmount(".", unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("take the overlay's stage away: %w", uerr))
		}
	}()
	for i, tree := range trees {
		name := strconv.Itoa(i)
		if err := unix.Mkdir(name, 0o700); err != nil {
			return -1, fmt.Errorf("make a layer's place: %w", err)
		}
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return -1, fmt.Errorf("put layer %d on the stage: %w", i, err)
		}
	}
	const here = "m"
	if err := unix.Mkdir(here, 0o700); err != nil {
		return -1, fmt.Errorf("make the overlay's place: %w", err)
	}
	// volatile: without it the end of the box would wait for the whole disk to
	// be written. Kernels before 5.10 do not know it.
	opts := options(len(trees) - 1)
	err = unix.Mount("workspace", here, "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts+",volatile")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("workspace", here, "overlay", unix.MS_NOSUID|unix.MS_NODEV, opts)
	}
	if err != nil {
		return -1, fmt.Errorf("mount the overlay: %w", err)
	}
	whole, err = unix.OpenTree(unix.AT_FDCWD, here, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("take the overlay off its stage: %w", err)
	}
	return whole, nil
}

// options are those of an overlay whose layers are the folders 0, 1, 2 and so on
// of the current folder, the last one being written.
//
// userxattr: a mount in a user namespace can write no other marks. The kernel
// then follows neither redirects nor metacopies, which an attacker could have
// put into a layer.
func options(lower int) string {
	var names []string
	for i := range lower {
		names = append(names, strconv.Itoa(i))
	}
	base := strconv.Itoa(lower) + "/"
	return "lowerdir=" + strings.Join(names, ":") + ",upperdir=" + base + upper + ",workdir=" + base + work + ",userxattr"
}

// memory is a small file system in memory that is mounted nowhere.
func memory() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, kv := range [][2]string{{"mode", "0700"}, {"size", "1m"}, {"nr_inodes", "1024"}} {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}
