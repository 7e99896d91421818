package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// Attack: the tools that these two start are looked for on PATH, where a job has its
// workspace, or the folder that it stands in.
func TestInstallAndBuildStartNothingOfWhereWeStand(t *testing.T) {
	for _, args := range [][]string{{"kern", "install"}, {"runsc", "build"}} {
		for _, place := range []string{"the workspace", "where we stand"} {
			t.Run(strings.Join(args, " ")+" in "+place, func(t *testing.T) {
				dir := boxtest.OpenDir(t)
				theirs, tools, home := filepath.Join(dir, "theirs"), filepath.Join(dir, "tools"), filepath.Join(dir, "home")
				put := func(at, name, text string) {
					if err := errors.Join(os.MkdirAll(at, 0o755), os.WriteFile(filepath.Join(at, name), []byte("#!/bin/sh\n"+text), 0o755)); err != nil {
						t.Fatal(err)
					}
				}
				for _, name := range []string{"go", "go1.26.8", "git", "python3", "pip3", "lsb_release"} {
					put(filepath.Join(theirs, "bin"), name, "echo \"$0\" >>"+dir+"/ran\n")
				}
				put(tools, "go", "go1.26.8; git; echo ours >>"+dir+"/ran; exit 1\n")
				put(tools, "python3", "lsb_release; echo ours >>"+dir+"/ran; exit 1\n")
				if err := os.Mkdir(home, 0o755); err != nil {
					t.Fatal(err)
				}
				vars := map[string]string{"HOME": home, "PATH": filepath.Join(theirs, "bin") + ":" + tools, "HTTPS_PROXY": "http://127.0.0.1:1"}
				t.Setenv("HTTPS_PROXY", vars["HTTPS_PROXY"])
				t.Setenv("PATH", vars["PATH"])
				if place == "the workspace" {
					vars["GITHUB_WORKSPACE"] = theirs
				} else {
					t.Chdir(theirs)
				}
				var out bytes.Buffer
				a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: func(n string) string { return vars[n] },
					environ: func() []string { return []string{"PATH=" + vars["PATH"]} }}
				if code := a.main(args); code != exitRefused {
					t.Errorf("exit code %d: %s", code, out.String())
				}
				ran, err := os.ReadFile(dir + "/ran")
				if err != nil || strings.ReplaceAll(string(ran), "ours\n", "") != "" {
					t.Errorf("started: %s (%v) %s", ran, err, out.String())
				}
			})
		}
	}
}

// The caller's own home holds the caller's own tools.
func TestWhereWeStandMayBeAboveHome(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for home, want := range map[string]int{dir: 1, dir + "/me": 1, "/elsewhere": 2, "": 2} {
		a := &app{getenv: func(n string) string { return map[string]string{"HOME": home}[n] }}
		if got := a.notOurs(); len(got) != want {
			t.Errorf("with HOME %q: %q", home, got)
		}
	}
}
