package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

const (
	// maxSetting is more than any file that is read for its words.
	maxSetting  = 1 << 20
	dialTimeout = 2 * time.Second
	// startPatience bounds a program that does nothing.
	startPatience = 20 * time.Second
)

// Here is this machine.
func Here(getenv func(string) string) Machine {
	return Machine{
		UID: os.Geteuid(), Root: idmap.Needed(), Getenv: getenv,
		Read: readSmall, Exists: exists, Dial: dial, Try: try, Folder: tryFolder,
		Limits: func(context.Context) (string, []string, error) { return openLimits() },
		Manager: func() (string, bool) {
			return limits.UserManager(limits.Config{XDGRuntimeDir: getenv("XDG_RUNTIME_DIR")})
		},
		Account: accountName,
		Adds: func(ctx context.Context) bool {
			p := &Preparer{Setup: SetupAuto, Getenv: getenv, Args: []string{}}
			return p.Helps(ctx)
		},
		Sudo: func(ctx context.Context) error { return trySudo(ctx) },
	}
}

func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSetting))
	return string(b), err
}

func accountName() string {
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return ""
	}
	return u.Username
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func dial(socket string) error {
	c, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return err
	}
	return c.Close()
}

// openLimits caps a control group, and says where that can be done.
func openLimits() (kind string, where []string, err error) {
	id, err := runID()
	if err != nil {
		return "", nil, err
	}
	m, err := limits.Open(limits.Config{RunID: id, XDGRuntimeDir: os.Getenv("XDG_RUNTIME_DIR")})
	if err != nil {
		return "", nil, err
	}
	return m.Kind(), m.Where(), m.Close()
}

// runID sets one run apart from all others.
func runID() (string, error) {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("no random bytes: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// tryFolder does in a new folder what is done in those of steps.
func tryFolder(ctx context.Context, in string) (f Folder) {
	f.Type, f.Way = fileSystem(in), scratch.RootsWay(in)
	var st unix.Statfs_t
	if err := unix.Statfs(in, &st); err == nil {
		f.NoExec = st.Flags&unix.ST_NOEXEC != 0
		f.FreeBytes, f.FreeFiles = st.Bavail*uint64(st.Bsize), st.Ffree
		if st.Files == 0 {
			f.FreeFiles = ^uint64(0)
		}
	}
	// Whose that folder is may be somebody else than us, who could put a program of
	// their own in the place of ours: nothing below goes by a name in it.
	own, err := scratch.Make(in, scratch.Doctor)
	if err != nil {
		f.Write = err
		return f
	}
	defer own.Remove()
	a, b := filepath.Join(own.At(), "a"), filepath.Join(own.At(), "b")
	if f.Write = errors.Join(os.WriteFile(a, []byte(script), 0o700), os.WriteFile(b, nil, 0o600)); f.Write != nil {
		return f
	}
	f.Rename = os.Rename(a, b)
	f.Attribute = unix.Setxattr(b, "user.untrusted-steps", []byte("x"), 0)
	f.Exec = start(ctx, own.File(), "b")
	return f
}

// script is a program for any machine: every box needs the shell too.
const script = "#!/bin/sh\nexit 0\n"

// start runs a program that was just written in a folder. Another thread of ours may have
// started a program meanwhile, which then holds the file open for writing until
// its exec.
func start(ctx context.Context, dir *os.File, name string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		cmd := exec.CommandContext(ctx, filepath.Join("/proc/self/fd/3", name))
		cmd.Env, cmd.ExtraFiles, cmd.WaitDelay = []string{}, []*os.File{dir}, time.Second
		err := cmd.Run()
		if !errors.Is(err, syscall.ETXTBSY) || wait > time.Second {
			return err
		}
		time.Sleep(wait)
	}
}

// fileSystems are the types that people meet, by the numbers of statfs(2).
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "NFS",
	unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "FUSE", unix.SMB_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "SMB",
	0x2fc12fc1: "ZFS", 0xca451a4e: "bcachefs",
}

func fileSystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "unknown"
	}
	// The numbers are of 32 bits, and the field is signed and longer.
	magic := int64(uint32(st.Type))
	if name, ok := fileSystems[magic]; ok {
		return name
	}
	return fmt.Sprintf("type 0x%x", magic)
}
