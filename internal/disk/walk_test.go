package disk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/disk"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// nest makes folders in folders, deeper than any path is long, with a file of a
// block in the last. It goes by descriptors, as a step would with chdir.
func nest(t testing.TB, top string, depth int, mode uint32) {
	t.Helper()
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "d", 0o700))
		sub, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Fchmod(fd, mode))
		unix.Close(fd)
		fd = sub
	}
	f, err := unix.Openat(fd, "x", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_, err = unix.Write(f, make([]byte, 8192))
	must(t, err, unix.Fchmod(fd, mode))
	unix.Close(f)
	unix.Close(fd)
}

// hostile are trees that a step can leave, with what is in them.
func hostile() []struct {
	sentence string
	make     func(t testing.TB, upper string)
	inodes   int64
	bytes    int64 // of files, in whole blocks; folders come on top
} {
	write := func(t testing.TB, path string, n int) {
		t.Helper()
		must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), n), 0o600))
	}
	return []struct {
		sentence string
		make     func(t testing.TB, upper string)
		inodes   int64
		bytes    int64
	}{
		{"nothing", func(testing.TB, string) {}, 0, 0},
		{"files and folders count by the blocks they have", func(t testing.TB, u string) {
			must(t, os.MkdirAll(u+"/a/b", 0o755))
			write(t, u+"/a/b/one", 4096)
			write(t, u+"/a/two", 100)
		}, 4, 8192},
		{"a file with many names counts once", func(t testing.TB, u string) {
			write(t, u+"/one", 1<<20)
			must(t, os.Mkdir(u+"/d", 0o755))
			for i := range 20 {
				must(t, os.Link(u+"/one", fmt.Sprintf("%s/d/%d", u, i)))
			}
		}, 2, 1 << 20},
		{"a sparse file of a TiB counts by what was written in it", func(t testing.TB, u string) {
			f, err := os.Create(u + "/sparse")
			must(t, err)
			_, werr := f.WriteAt(make([]byte, 4096), 1<<39)
			must(t, f.Truncate(1<<40), werr, f.Close())
		}, 1, 4096},
		{"links lead nowhere, and FIFOs and sockets are not opened", func(t testing.TB, u string) {
			must(t, os.Symlink("/", u+"/root"), os.Symlink("..", u+"/up"), os.Symlink("self", u+"/self"),
				unix.Mkfifo(u+"/fifo", 0o600), unix.Mknod(u+"/socket", unix.S_IFSOCK|0o600, 0))
		}, 5, 0},
		{"folders without permissions hide nothing, and keep them", func(t testing.TB, u string) {
			for i, mode := range []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o600, 0o311} {
				d := fmt.Sprintf("%s/%d/sub", u, i)
				must(t, os.MkdirAll(d, 0o755))
				write(t, d+"/x", 8192)
				must(t, os.Chmod(d, mode), os.Chmod(filepath.Dir(d), mode))
			}
		}, 3 * 7, 7 * 8192},
		{"a nest deeper than paths are long, and than folders are kept open, is walked", func(t testing.TB, u string) {
			nest(t, u, 2100, 0o700)
		}, 2101, 8192},
		{"such a nest without read bits is walked too", func(t testing.TB, u string) {
			must(t, os.Mkdir(u+"/n", 0o755))
			nest(t, u+"/n", 100, 0o300)
		}, 102, 8192},
		{"such a nest without any permission is walked too", func(t testing.TB, u string) {
			must(t, os.Mkdir(u+"/n", 0o755))
			nest(t, u+"/n", 100, 0)
		}, 102, 8192},
		{"names of any bytes are names", func(t testing.TB, u string) {
			for _, n := range []string{"\xff\xfe", "a\nb", "..x", strings.Repeat("n", 255), "-rf", "*"} {
				write(t, u+"/"+n, 1)
			}
		}, 6, 6 * 4096},
	}
}

// allowance is how much folders may take themselves.
func allowance(inodes int64) int64 { return 8192 * (inodes + 1) }

func TestSamplerCounts(t *testing.T) {
	for _, tc := range hostile() {
		t.Run(tc.sentence, func(t *testing.T) {
			o := of(t, disk.Sampler, 1<<30, 1<<20)
			r, err := disk.Open(o)
			must(t, err)
			tc.make(t, r.Upper())
			before := modes(t, r.Upper())
			u, err := r.Used()
			if err != nil || u.Full || u.AtLeast {
				t.Errorf("%+v %v", u, err)
			}
			if u.Inodes != tc.inodes || u.Bytes < tc.bytes || u.Bytes > tc.bytes+allowance(tc.inodes) {
				t.Errorf("%+v, want %d inodes and %d bytes and the folders", u, tc.inodes, tc.bytes)
			}
			if again, err := r.Used(); again != u || err != nil {
				t.Errorf("measured again: %+v %v", again, err)
			}
			if now := modes(t, r.Upper()); now != before {
				t.Errorf("modes are\n%s\nwere\n%s", now, before)
			}
			if err := r.Close(); err != nil {
				t.Errorf("it cannot be removed: %v", err)
			}
			if list, err := os.ReadDir(o.Dir); err != nil || len(list) > 0 {
				t.Errorf("left: %v %v", list, err)
			}
		})
	}
}

// modes lists the modes of what can be listed.
func modes(t testing.TB, top string) string {
	t.Helper()
	var out strings.Builder
	list, err := os.ReadDir(top)
	must(t, err)
	for _, e := range list {
		st, err := os.Lstat(filepath.Join(top, e.Name()))
		must(t, err)
		fmt.Fprintln(&out, e.Name(), st.Mode())
	}
	return out.String()
}

func TestSamplerStops(t *testing.T) {
	top := t.TempDir()
	for i := range 30 {
		d := fmt.Sprintf("%s/upper/%d", top, i)
		must(t, os.MkdirAll(d, 0o755))
		for k := range 100 {
			must(t, os.WriteFile(fmt.Sprintf("%s/%d", d, k), nil, 0o600))
		}
	}
	at, err := os.Open(top)
	must(t, err)
	defer at.Close()
	t.Run("a look ends when it is known to be too much, and says that there may be more", func(t *testing.T) {
		u, err := disk.Measure(int(at.Fd()), "upper", 500)
		if err != nil || !u.AtLeast || u.Inodes <= 500 || u.Inodes > 1000 {
			t.Errorf("%+v %v", u, err)
		}
	})
	t.Run("one without that goes to the end", func(t *testing.T) {
		u, err := disk.Measure(int(at.Fd()), "upper", 0)
		if err != nil || u.AtLeast || u.Inodes != 3030 {
			t.Errorf("%+v %v", u, err)
		}
	})
	t.Run("a folder that is a link is not followed", func(t *testing.T) {
		must(t, os.Symlink("upper", top+"/link"))
		if u, err := disk.Measure(int(at.Fd()), "link", 0); err == nil {
			t.Errorf("%+v", u)
		}
	})
	t.Run("no descriptor stays open", func(t *testing.T) {
		before := openFiles(t)
		for _, name := range []string{"upper", "link", "none"} {
			_, _ = disk.Measure(int(at.Fd()), name, 100)
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d files are open, were %d", now, before)
		}
	})
}

// What changes while it is measured gives a number, or says that there is more,
// and never an error, a crash, or something that is not the step's.
func TestSamplerOfATreeThatChanges(t *testing.T) {
	r := open(t, disk.Sampler, 1<<30, 1<<20)
	stop := make(chan bool)
	var busy sync.WaitGroup
	defer busy.Wait()
	defer close(stop)
	again := func(do func(i int)) {
		busy.Add(1)
		go func() {
			defer busy.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					do(i)
				}
			}
		}()
	}
	u := r.Upper()
	must(t, os.MkdirAll(u+"/deep", 0o755), os.MkdirAll(u+"/other/place", 0o755))
	nest(t, u+"/deep", 150, 0o700)
	again(func(int) { // entries come and go, folders become links
		_ = os.Mkdir(u+"/x", 0o755)
		_ = os.WriteFile(u+"/x/y", nil, 0o600)
		_ = os.Remove(u + "/x/y")
		_ = os.Remove(u + "/x")
		_ = os.Symlink("/", u+"/x")
		_ = os.Remove(u + "/x")
	})
	again(func(int) { // folders move while somebody is in them
		_ = os.Rename(u+"/deep/d/d/d", u+"/other/place/d")
		_ = os.Rename(u+"/other/place/d", u+"/deep/d/d/d")
	})
	again(func(i int) { // permissions come and go
		_ = os.Chmod(u+"/deep/d", os.FileMode(i%8)<<6)
		_ = os.Chmod(u+"/deep/d", 0o700)
	})
	most := int64(0)
	for until := time.Now().Add(time.Second); time.Now().Before(until); {
		use, err := r.Used()
		if err != nil && !strings.Contains(err.Error(), "not done within") {
			t.Fatal(err)
		}
		most = max(most, use.Inodes)
	}
	if most < 100 || most > 400 {
		t.Errorf("at most %d inodes were counted, and there are about 155", most)
	}
}

// The sampler's room as its user has it: the bound on one file is the kernel's.
func TestSamplerWithFileSize(t *testing.T) {
	r := open(t, disk.Sampler, mib, 256)
	cmd := exec.Command("/bin/sh", "-c", `trap '' XFSZ; ulimit -f "$1"; head -c 4000000 /dev/zero >"$2/x"; wc -c <"$2/x"`,
		"sh", strconv.FormatInt(r.FileSize()/512, 10), r.Named())
	out, err := cmd.Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != strconv.Itoa(mib) {
		t.Errorf("%q %v", got, err)
	}
	u, err := r.Used()
	if err != nil || !u.Full || u.Over(mib, 256) {
		t.Errorf("one file up to the bound is full and not over: %+v %v", u, err)
	}
}

func TestOver(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		u        disk.Usage
		want     bool
	}{
		{"nothing is not over", disk.Usage{}, false},
		{"the bound itself is not over", disk.Usage{Bytes: 100, Inodes: 10}, false},
		{"a byte more is", disk.Usage{Bytes: 101}, true},
		{"a file more is", disk.Usage{Inodes: 11}, true},
		{"full alone is not", disk.Usage{Full: true}, false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := tc.u.Over(100, 10); got != tc.want {
				t.Errorf("%v", got)
			}
		})
	}
}

// A normal user has the sampler, and no power over modes.
func TestAsANormalUser(t *testing.T) {
	if os.Getenv(userVar) != "" {
		boxtest.Need(t, "normal user")
		return
	}
	boxtest.Need(t, "root")
	dir, err := os.MkdirTemp("", "disk-user-")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755), os.Mkdir(dir+"/tmp", 0o700), os.Chown(dir+"/tmp", plainID, plainID))
	must(t, copyFile("/proc/self/exe", dir+"/disk.test"))
	cmd := exec.Command(dir+"/disk.test", "-test.run=^(TestWhichKind|TestOpenRefuses|TestNothingIsLeft|TestInABox.*|TestWatch|TestSampler.*|TestRemoveContents|TestAsANormalUser)$", "-test.v", "-test.timeout=60s")
	cmd.Dir = dir
	cmd.Env = []string{userVar + "=1", "TMPDIR=" + dir + "/tmp", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainID, Gid: plainID}}
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
	for _, name := range []string{"TestSamplerCounts", "TestRemoveContents", "TestWatch", "TestAsANormalUser"} {
		if !strings.Contains(text, "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass:\n%s", name, text)
		}
	}
	if !strings.Contains(text, "--- PASS: TestInABoxOnPlainFolders ") {
		// Only for want of what a box needs, which it says.
		if !strings.Contains(text, "--- SKIP: TestInABoxOnPlainFolders ") {
			t.Errorf("no box on plain folders:\n%s", text)
		}
		t.Log("no box on plain folders was tested")
	}
	t.Logf("%d passed, %d skipped", strings.Count(text, "--- PASS"), strings.Count(text, "--- SKIP"))
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
