package workspace_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// own makes the workspace belong to who runs the program.
func (p *place) own(t testing.TB) {
	t.Helper()
	uid := p.uid
	if uid == 0 {
		uid = os.Geteuid()
	}
	do(t, filepath.WalkDir(p.workspace, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	}))
}

// clean fails if a run left anything but the workspace: beside it, in mounts,
// in loop devices, or alive.
func (p *place) clean(t testing.TB) {
	t.Helper()
	var left []string
	for range 100 { // the kernel takes its time with the dead
		if left = p.left(t); left == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("left behind: %s", strings.Join(left, ", "))
}

func (p *place) left(t testing.TB) (list []string) {
	t.Helper()
	beside, err := os.ReadDir(p.dir)
	do(t, err)
	for _, b := range beside {
		if n := b.Name(); n != "workspace" && n != "steps.yml" && !strings.HasPrefix(n, "out") {
			list = append(list, "beside the workspace "+n)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	do(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, p.dir) {
			list = append(list, "the mount "+strings.TrimSpace(line))
		}
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	do(t, err)
	for _, l := range loops {
		if b, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(b), p.dir) {
			list = append(list, l+" of "+strings.TrimSpace(string(b)))
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	do(t, err)
	for _, c := range procs {
		if b, err := os.ReadFile(c); err == nil && strings.Contains(string(b), p.dir) {
			list = append(list, c+" "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return list
}
