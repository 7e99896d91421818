package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// Config is all that a proof depends on. Another boot, program, engine, user or
// place for control groups is another configuration, and proves itself.
type Config struct {
	BootID  string   `json:"bootId"` // of the kernel, new at every boot
	Kernel  string   `json:"kernel"`
	Program Identity `json:"program"`
	Engine  string   `json:"engine"`
	Version string   `json:"version"`
	Digest  string   `json:"digest"`
	UID     int      `json:"uid"`
	GID     int      `json:"gid"`
	Groups  []string `json:"groups"` // where control groups are made; none for no caps
	Spaces  []string `json:"spaces"` // the namespaces we are in: a container's, or the host's
	// Knobs are settings that can be changed while the machine runs and that decide
	// what a namespace may do.
	Knobs []string `json:"knobs"`
}

// Identity is a file as it is now: written again, it is another one.
type Identity struct {
	Dev, Ino uint64
	Size     int64
	Changed  string
}

// IdentityOf looks at a file.
func IdentityOf(path string) (Identity, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Identity{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return Identity{Dev: st.Dev, Ino: st.Ino, Size: st.Size, Changed: fmt.Sprintf("%d.%09d", st.Ctim.Sec, st.Ctim.Nsec)}, nil
}

// knobs are files of the kernel; one that is not there is a value too.
var knobs = []string{
	"/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
	"/proc/sys/kernel/unprivileged_userns_clone",
	"/proc/sys/user/max_user_namespaces",
	"/proc/self/attr/current",
}

// Here fills in what this process and machine are.
func (c Config) Here(program string) (Config, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return c, fmt.Errorf("read which boot this is: %w", err)
	}
	c.BootID = strings.TrimSpace(string(id))
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return c, fmt.Errorf("read which kernel this is: %w", err)
	}
	c.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
	if c.Program, err = IdentityOf(program); err != nil {
		return c, err
	}
	c.UID, c.GID = os.Geteuid(), os.Getegid()
	c.Spaces = nil
	for _, kind := range []string{"user", "mnt", "pid", "net", "cgroup"} {
		at, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return c, fmt.Errorf("read which namespaces these are: %w", err)
		}
		c.Spaces = append(c.Spaces, at)
	}
	c.Knobs = nil
	for _, k := range knobs {
		v, err := os.ReadFile(k)
		if err != nil {
			v = []byte("-")
		}
		c.Knobs = append(c.Knobs, strings.TrimSpace(string(v)))
	}
	return c, nil
}

func (c Config) key() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("host: bug: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// Cache remembers proofs in a folder of the caller's own. Whoever can write there
// can replace this program as well; nobody else is believed. Only a proof in
// which nothing was missed is remembered.
type Cache struct {
	Dir string // made if it is not there; "" remembers nothing
}

const (
	maxProofBytes = 64 << 10
	maxRemembered = 32
)

// remembered is a proof on disk, with what it is of, so that it can be read.
type remembered struct {
	Config Config  `json:"config"`
	Proof  []Proof `json:"proof"`
}

// Load gives the proof of a configuration, nil if there is none to be believed.
func (c Cache) Load(cfg Config) []Proof {
	key, err := cfg.key()
	if err != nil || c.Dir == "" {
		return nil
	}
	dir, err := ownFolder(c.Dir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	f, err := root.Open(key + ".json")
	if err != nil {
		return nil
	}
	defer f.Close()
	if scratch.OursAlone(f, unix.S_IFREG) != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxProofBytes))
	if err != nil {
		return nil
	}
	var r remembered
	if err := json.Unmarshal(text, &r); err != nil {
		return nil
	}
	if again, err := r.Config.key(); err != nil || again != key || !complete(r.Proof) {
		return nil
	}
	return r.Proof
}

// complete says whether a proof is of all controls, each seen to work.
func complete(list []Proof) bool {
	if len(list) != len(controls) {
		return false
	}
	for i, p := range list {
		if !p.OK || p.Control != controls[i] {
			return false
		}
	}
	return true
}

// Save remembers a proof, if it is one. That it cannot is no reason to stop.
func (c Cache) Save(cfg Config, list []Proof) error {
	if c.Dir == "" || !complete(list) {
		return nil
	}
	key, err := cfg.key()
	if err != nil {
		return err
	}
	text, err := json.Marshal(remembered{cfg, list})
	if err != nil {
		return fmt.Errorf("host: bug: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("make a folder for proofs: %w", err)
	}
	dir, err := ownFolder(c.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	c.forget(cfg.BootID)
	f, err := os.CreateTemp(c.Dir, ".proof-")
	if err != nil {
		return fmt.Errorf("remember the proof: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.Dir, key+".json"))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("remember the proof: %w", err)
	}
	return nil
}

// forget removes proofs of other boots, and all of them when they are many: a
// place for control groups can be another one at every run.
func (c Cache) forget(boot string) {
	names, err := filepath.Glob(filepath.Join(c.Dir, "*.json"))
	if err != nil {
		return
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		var r remembered
		if len(names) >= maxRemembered || err != nil || json.Unmarshal(text, &r) != nil || r.Config.BootID != boot {
			_ = os.Remove(name)
		}
	}
}

// ownFolder opens a folder that only we can write to.
func ownFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the folder for proofs: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := scratch.OursAlone(f, unix.S_IFDIR); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
