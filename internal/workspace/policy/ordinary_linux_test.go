package policy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// What people do all day is no violation, with the default allowChanges.
func TestOrdinaryWorkPasses(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		needs    []string
		before   string // what the checkout is made with
		step     string
		commit   []string // some of what is committed
		dropped  []string
		bad      bool
	}{
		{"git status in a checkout", []string{"git"}, "git init -q . && echo a >a && git add a && git -c user.name=n -c user.email=e commit -qm m",
			"touch -d 2001-01-01 a && git status && git log && git diff", nil, []string{".git/index"}, false},
		{"git add drops what it writes", []string{"git"}, "git init -q .",
			"echo b >b && git add b", []string{"b"}, []string{".git/index"}, false},
		{"git commit is a violation", []string{"git"}, "git init -q . && echo a >a && git add a",
			"git -c user.name=n -c user.email=e commit -qm m", nil, nil, true},
		{"git config is a violation", []string{"git"}, "git init -q .", "git config core.fsmonitor /tmp/x", nil, nil, true},
		{"git clone into a sub folder", []string{"git"}, "git init -q up && cd up && echo a >a && git add a && git -c user.name=n -c user.email=e commit -qm m",
			"git clone -q up sub", []string{"sub/a", "sub/.git/config", "sub/.git/HEAD"}, nil, false},
		{"git status in a clone that was there rewrites what is protected", []string{"git"}, "git init -q sub", "cd sub && echo a >a && git add a", nil, nil, true},
		{"go build", nil, `printf 'module m\n\ngo 1.26\n' >go.mod && printf 'package main\n\nfunc main() {}\n' >main.go`,
			"go build -o app .", []string{"app"}, nil, false},
		{"python -m venv", []string{"python3"}, "echo a >a",
			"PATH=/usr/bin:/bin; python3 -m venv --without-pip v && v/bin/python -c 'import sys'", []string{"v/bin/python3", "v/pyvenv.cfg"}, nil, false},
		{"npm install of packages with programs", []string{"npm"}, `mkdir pkg && printf '{"name":"pkg","version":"1.0.0","bin":{"prog":"cli.js"}}' >pkg/package.json && echo '#!/usr/bin/env node' >pkg/cli.js && printf '{"name":"m","version":"1.0.0"}' >package.json`,
			"tar cf pkg.tar --transform 's,^pkg,package,' pkg && gzip pkg.tar && mv pkg.tar.gz pkg.tgz && mkdir home && HOME=$PWD/home npm install --offline --no-audit --no-fund ./pkg && HOME=$PWD/home npm install --offline --no-audit --no-fund tarball@file:pkg.tgz",
			[]string{"node_modules/.bin/prog", "node_modules/pkg", "package-lock.json", "package.json"}, nil, false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			boxtest.Need(t, tc.needs...)
			dir := t.TempDir()
			shell(t, dir, tc.before)
			before := snapshot(t, dir, nil)
			copied := t.TempDir()
			shell(t, dir, "cp -a . '"+copied+"'")
			shell(t, dir, tc.step)
			changes := slices.Collect(workspace.Changes(before, snapshot(t, dir, before)))
			p, err := policy.Compile([]string{"**"})
			if err != nil {
				t.Fatal(err)
			}
			v := p.Judge(changes, policy.Env{
				Before: look(copied), After: look(dir),
				Tools: []string{"/usr", "/bin", "/lib", "/lib64", "/opt"},
				Real:  func(p string) string { real, _ := filepath.EvalSymlinks(p); return real },
			})
			if (len(v.Violations) > 0) != tc.bad {
				t.Errorf("violations: %+v", v.Violations)
			}
			has(t, "committed", v.Commit, tc.commit)
			has(t, "dropped", v.Dropped, tc.dropped)
		})
	}
}

func has(t *testing.T, what string, list []workspace.Change, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(list, func(c workspace.Change) bool { return c.RawPath() == w }) {
			t.Errorf("%s is not %s", w, what)
		}
	}
}

func shell(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func snapshot(t *testing.T, dir string, prev *workspace.Tree) *workspace.Tree {
	t.Helper()
	tree, err := workspace.Snapshot(context.Background(), dir, prev, workspace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// look reads a folder that nobody else writes to.
func look(dir string) policy.Look {
	return func(path string) (policy.Found, error) {
		var st unix.Stat_t
		full := filepath.Join(dir, path)
		if err := unix.Lstat(full, &st); err == unix.ENOENT || err == unix.ENOTDIR {
			return policy.Found{}, nil
		} else if err != nil {
			return policy.Found{}, err
		}
		f := policy.Found{Type: "file", Mode: uint32(st.Mode) & 0o7777, Size: st.Size}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			f.Type = "dir"
		case unix.S_IFLNK:
			f.Type = "symlink"
			target, err := os.Readlink(full)
			if err != nil {
				return f, err
			}
			f.Target = target
		}
		return f, nil
	}
}
