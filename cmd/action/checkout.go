package main

import (
	"os"
	"path/filepath"

	"github.com/untrusted-steps/untrusted-steps/internal/session"
)

// inCheckout is where a file of the caller's lies as git, the forge and code
// scanning name it: top is the folder that path starts from.
type inCheckout struct{ top, path string }

// checkoutOf finds the checkout that a file lies in, wherever the run was started
// and however the file was named: a workflow has the base branch in one folder and
// the change in another, and in neither of them is a path that begins with that
// folder's name. git is not asked: it obeys what it finds on its way, and the file
// may lie in a change that nobody has read. What can be got from a folder that
// somebody made look like a checkout is a wrong path in a report.
//
// Inside a workflow a folder without .git is taken to start at the workspace of
// the job. ok is false where no checkout is known.
func (a *app) checkoutOf(file string) (c inCheckout, ok bool) {
	if file == "" || file == "-" {
		return c, false
	}
	real, err := filepath.Abs(file)
	if err == nil {
		real, err = filepath.EvalSymlinks(real) // git writes through no link
	}
	if err != nil {
		return c, false
	}
	job := a.getenv("GITHUB_WORKSPACE")
	if job = session.Real(job); !filepath.IsAbs(job) || !session.Within(real, job) {
		job = ""
	}
	for at := filepath.Dir(real); ; at = filepath.Dir(at) {
		top := at == filepath.Dir(at)
		if at == job || isCheckout(at) {
			rel, err := filepath.Rel(at, real)
			return inCheckout{at, rel}, err == nil
		}
		if top {
			return c, false
		}
	}
}

// isCheckout says whether a folder is the top of a work tree: .git is the
// repository, or a file that names it, as in a submodule or a second work tree.
func isCheckout(dir string) bool {
	at := filepath.Join(dir, ".git")
	info, err := os.Stat(at)
	if err != nil || info.Mode().IsRegular() {
		return err == nil
	}
	_, err = os.Lstat(filepath.Join(at, "HEAD"))
	return err == nil
}

// annotatedFile is a file as annotations and findings name it: from the top of its
// checkout, which is where they are looked for. Elsewhere it stays as it was given.
func (a *app) annotatedFile(file string) string {
	if c, ok := a.checkoutOf(file); ok {
		return c.path
	}
	if file == "-" {
		return ""
	}
	return file
}

// patched is where a patch to a file is to be applied, and its name there. In no
// checkout that is the file's own folder.
func (a *app) patched(file string) inCheckout {
	if c, ok := a.checkoutOf(file); ok {
		return c
	}
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real := session.Real(file); real != "" {
		file = real
	}
	return inCheckout{filepath.Dir(file), filepath.Base(file)}
}
