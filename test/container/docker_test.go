package container_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
	"github.com/untrusted-steps/untrusted-steps/internal/container"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// dockerd is a daemon of this test's own, with nothing of the machine's.
type dockerd struct {
	dir, socket string
	writable    bool // it knows writable-cgroups: Docker 28
}

// startDocker starts one, and ends it with the test.
func startDocker(t *testing.T) dockerd {
	t.Helper()
	boxtest.Need(t, "root", "userns", "overlay", "seccomp", "idmap")
	daemon, err := exec.LookPath("dockerd")
	need.Met(t, "docker", err)
	_, err = exec.LookPath("docker")
	need.Met(t, "docker", err)
	d := dockerd{dir: boxtest.OpenDir(t)}
	at := func(name string) string { return filepath.Join(d.dir, name) }
	d.socket = at("d.sock")
	const parent = "untrusted-steps-test-docker"
	if err := os.WriteFile(at("daemon.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	var words bytes.Buffer
	cmd := exec.Command(daemon, "--config-file", at("daemon.json"), "--data-root", at("data"), "--exec-root", at("exec"), "--pidfile", at("pid"), "-H", "unix://"+d.socket,
		"--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", "/"+parent)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &words, &words, 10*time.Second
	if err := cmd.Start(); err != nil {
		need.Met(t, "docker", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		mounts, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); strings.HasPrefix(f[2], "cgroup") {
				_ = os.Remove(filepath.Join(f[1], parent))
			} else if strings.HasPrefix(f[1], d.dir+"/") {
				_ = unix.Unmount(f[1], unix.MNT_DETACH)
			}
		}
	})
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		version, err := d.command("version", "--format", "{{.Server.APIVersion}}").Output()
		if err == nil {
			_, minor, _ := strings.Cut(strings.TrimSpace(string(version)), ".")
			n, err := strconv.Atoi(minor)
			if err != nil {
				t.Fatalf("API version %q", version)
			}
			d.writable = n >= 48
			return d
		}
		if time.Since(began) > time.Minute {
			need.Met(t, "docker", errors.New("it did not start: "+words.String()))
		}
	}
}

func (d dockerd) command(args ...string) *exec.Cmd {
	return exec.Command("docker", append([]string{"-H", "unix://" + d.socket}, args...)...)
}

// importImage makes an image of a few folders: tools are this machine's.
func (d dockerd) importImage(t *testing.T) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]int64{"usr/": 0o755, "etc/": 0o755, "tmp/": 0o1777, "work/": 0o755, "opt/": 0o755} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode})
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + name); err == nil {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := d.command("import", "-", "steps-test")
	cmd.Stdin = &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v: %s", err, out)
	}
}

// run runs the steps in a container, with the words as people type them.
func (d dockerd) run(t *testing.T, uid int, uncapped bool, words ...string) ended {
	t.Helper()
	dir := boxtest.OpenDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	steps := stepsFile
	if uncapped {
		steps = "defaults: {requireLimits: false}\n" + steps
	}
	if err := errors.Join(os.MkdirAll(at("volume/tree"), 0o755), os.Chown(at("volume"), uid, uid), os.Chown(at("volume/tree"), uid, uid),
		os.WriteFile(at("steps.yml"), []byte(steps), 0o644)); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"run", "--rm", "--network=none", "-v", "/usr:/usr:ro", "-v", at("volume") + ":/work", "-v", at("steps.yml") + ":/steps.yml:ro",
		"-v", program + ":/opt/untrusted-steps:ro"}, words...)
	args = append(args, "steps-test", "/opt/untrusted-steps", "run", "/steps.yml", "--engine", "native", "--workspace", "/work/tree", "--out", "/work/report")
	out, _ := d.command(args...).CombinedOutput()
	return d.ended(t, at, out, uid)
}

func (d dockerd) ended(t *testing.T, at func(string) string, out []byte, uid int) ended {
	t.Helper()
	e := ended{out: string(out), code: -1}
	b, err := os.ReadFile(at("volume/report/report.json"))
	if err != nil {
		t.Fatalf("there is no report: %v\n%s", err, out)
	}
	if err := json.Unmarshal(b, &e.report); err != nil {
		t.Fatal(err)
	}
	e.code = map[string]int{"pass": 0, "fail": 1, "refused": 3, "error": 4}[e.report.Verdict]
	e.files = owners(t, at("volume/tree"), uid)
	return e
}

// TestDocker: the words are words of Docker's, and do what runc was told to do.
func TestDocker(t *testing.T) {
	d := startDocker(t)
	d.importImage(t)
	filter := filepath.Join(d.dir, container.Profile)
	text, err := seccomp.Container()
	if err == nil {
		err = os.WriteFile(filter, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	words := func(line string) (list []string) {
		for w := range strings.FieldsSeq(line) {
			if !d.writable && w == "writable-cgroups=true" {
				list = list[:len(list)-1] // --security-opt
				continue
			}
			list = append(list, w)
		}
		return list
	}
	t.Run("a plain container", func(t *testing.T) {
		d.run(t, 0, false).refused(t, "read-only", commands(container.Fix(container.Who{Root: true}, "untrusted-steps run ")))
	})
	t.Run("root", func(t *testing.T) {
		e := d.run(t, 0, !d.writable, words(container.Options(container.Who{Root: true}, filter))...)
		if d.writable {
			e.passed(t)
		} else if e.report.Verdict != "pass" {
			t.Error(e.out)
		}
	})
	t.Run("a normal user", func(t *testing.T) {
		// The control group is root's with this driver: steps run without caps.
		line := strings.Replace(container.Least(filter), "UID:GID", strconv.Itoa(user)+":"+strconv.Itoa(user), 1)
		if e := d.run(t, user, true, words(line)...); e.report.Verdict != "pass" || len(e.files) != 1 || strings.Contains(e.out, "gets a copy") {
			t.Errorf("files %q\n%s", e.files, e.out)
		}
	})
	t.Run("without systempaths", func(t *testing.T) {
		line := strings.Replace(container.Options(container.Who{Root: true}, filter), "--security-opt systempaths=unconfined", "", 1)
		d.run(t, 0, true, words(line)...).refused(t, "mount /proc", nil)
	})
}
