package host

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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
	// OwnKernel: boxes of the engine have one.
	OwnKernel bool     `json:"ownKernel"`
	UID       int      `json:"uid"`
	GID       int      `json:"gid"`
	Groups    []string `json:"groups"` // where control groups are made; none for no caps
	Spaces    []string `json:"spaces"` // the namespaces we are in: a container's, or the host's
	// Ways are settings of ours that decide how an engine builds a box.
	Ways []string `json:"ways"`
	// Temp is the folder for temporary files, which no box may see, and View what of
	// the host boxes are shown.
	Temp string   `json:"temp"`
	View []string `json:"view"`
	// Limits are this process's own: filter, no-new-privileges, resource limits.
	Limits []string `json:"limits"`
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
	c.Limits = nil
	for _, name := range []string{"/proc/self/status", "/proc/self/limits"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return c, fmt.Errorf("read what this process may do: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			field, _, _ := strings.Cut(line, ":")
			if name == "/proc/self/limits" || slices.Contains([]string{"CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Groups"}, field) {
				c.Limits = append(c.Limits, strings.Join(strings.Fields(line), " "))
			}
		}
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
	root, err := scratch.OpenOwn(c.Dir, false)
	if err != nil {
		return nil
	}
	defer root.Close()
	r, err := readOwn(root, key+".json")
	if err != nil {
		return nil
	}
	if again, err := r.Config.key(); err != nil || again != key || !complete(r.Proof, cfg.OwnKernel) {
		return nil
	}
	return r.Proof
}

// readOwn reads what is remembered in a file that is ours alone.
func readOwn(root *os.Root, name string) (r remembered, err error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return r, err
	}
	defer f.Close()
	if err := scratch.OursAlone(f, unix.S_IFREG); err != nil {
		return r, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxProofBytes))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// complete says whether a proof is of all controls, each seen to work.
func complete(list []Proof, own bool) bool {
	want := controlsOf(own)
	if len(list) != len(want) {
		return false
	}
	for i, p := range list {
		if !p.OK || p.Control != want[i] {
			return false
		}
	}
	return true
}

// Save remembers a proof, if it is one. That it cannot is no reason to stop.
func (c Cache) Save(cfg Config, list []Proof) error {
	if c.Dir == "" || !complete(list, cfg.OwnKernel) {
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
	root, err := scratch.OpenOwn(c.Dir, true)
	if err != nil {
		return fmt.Errorf("remember the proof: %w", err)
	}
	defer root.Close()
	forget(root, cfg.BootID)
	temp := tempPrefix + rand.Text()
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("remember the proof: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = root.Rename(temp, key+".json")
	}
	if err != nil {
		_ = root.Remove(temp)
		return fmt.Errorf("remember the proof: %w", err)
	}
	return nil
}

// Forget takes away the proof of a configuration, so that nobody believes it any
// more, whatever comes of proving it again.
func (c Cache) Forget(cfg Config) error {
	key, err := cfg.key()
	if err != nil || c.Dir == "" {
		return err
	}
	root, err := scratch.OpenOwn(c.Dir, false)
	if err != nil { // nothing in it is believed
		return nil
	}
	defer root.Close()
	if err := root.Remove(key + ".json"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget what was proved: %w", err)
	}
	return nil
}

// tempPrefix begins the name of a proof that is being written.
const tempPrefix = ".proof-"

// forget removes proofs of other boots, and all of them when they are many: a
// place for control groups can be another one at every run. What has no name of
// ours is nothing of ours.
func forget(root *os.Root, boot string) {
	dir, err := root.Open(".")
	if err != nil {
		return
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		key, proof := strings.CutSuffix(name, ".json")
		switch {
		case proof && len(key) == hex.EncodedLen(sha256.Size) && strings.Trim(key, "0123456789abcdef") == "":
			if r, err := readOwn(root, name); len(names) < maxRemembered && err == nil && r.Config.BootID == boot {
				continue
			}
		case strings.HasPrefix(name, tempPrefix):
			// A run that was killed has left it, unless it is being written just now.
			if st, err := root.Lstat(name); err != nil || time.Since(st.ModTime()) < time.Minute {
				continue
			}
		default:
			continue
		}
		_ = root.Remove(name)
	}
}
