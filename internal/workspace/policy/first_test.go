package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFirstShowsWhatAReviewerMustSee(t *testing.T) {
	v := compiled(t, "**", ".github/**").Judge(parse(t, `created file a.txt
created file node_modules/x/package.json
deleted dir old
deleted file old/a
deleted file z.txt
modified file go.sum
created dir sub/.git
created file sub/.git/config
modified file .github/workflows/ci.yml
modified file web/requirements-dev.txt
created file .husky/pre-commit
modified file .git/index
created fifo Makefile`), Env{Before: tree{}.look})
	want := []string{".github/workflows/ci.yml", "sub/.git", ".husky/pre-commit", "go.sum", "web/requirements-dev.txt", "old", "z.txt", "node_modules/x/package.json"}
	if diff := cmp.Diff(want, v.First); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestInstalledPackagesAreOneLine: what an install makes does not push what the step
// changed besides out of sight, and is not said to do what it does not.
func TestInstalledPackagesAreOneLine(t *testing.T) {
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("created file node_modules/p%d/package.json", i), fmt.Sprintf("created file node_modules/p%d/.github/FUNDING.yml", i),
			fmt.Sprintf("modified file web/vendor/v%d/Makefile", i), fmt.Sprintf("deleted file .venv/lib/python3/site-packages/d%d/a.py", i))
	}
	list := parse(t, strings.Join(lines, "\n")+`
created dir node_modules
created file node_modules/p/.github/workflows/ci.yml
created file node_modules/p/.travis.yml
created file .venv/lib/python3/site-packages/evil.pth
deleted file few/node_modules/a/setup.py
created file few/node_modules/b/Makefile
created file few/node_modules/c/x.js
deleted dir old/vendor
deleted file old/vendor/Makefile
deleted dir part/vendor/x
deleted file part/vendor/x/package.json
deleted file part/vendor/x/y.js
created symlink vendor
modified file package.json
created file scripts/Makefile
deleted file package-lock.json
created file sub/.github/workflows/ci.yml
created file sub/.github/FUNDING.yml`)
	want := []string{"package-lock.json", "package.json", "scripts/Makefile", "sub/.github/workflows/ci.yml", "old/vendor",
		".venv/", ".venv/lib/python3/site-packages/evil.pth", "few/node_modules/a/setup.py", "few/node_modules/b/Makefile", "node_modules/", "part/vendor/x", "web/vendor/"}
	if diff := cmp.Diff(want, compiled(t, "**").Judge(list, Env{Before: tree{}.look}).First); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWhyIsTrueOfWhereAPathLies(t *testing.T) {
	for path, want := range map[string]string{
		".github/workflows/ci.yml":                whyCI,
		".github/actions/a/action.yml":            whyCI,
		".GitHub/Workflows/ci.yml":                whyCI,
		".github/FUNDING.yml":                     "git or the forge obeys it",
		".github":                                 "git or the forge obeys it",
		"change/.github/workflows/ci.yml":         whyCI, // the workspace may hold several checkouts
		"change/.github/FUNDING.yml":              "",
		"node_modules/a/.github/FUNDING.yml":      "",
		"node_modules/a/.github/workflows/ci.yml": "",
		"node_modules/a/action.yml":               "",
		"node_modules/a/.vscode/settings.json":    "",
		"node_modules/a/package.json":             whyManifest,
		"node_modules/a/binding.gyp":              whyManifest,
		"node_modules/a/Makefile":                 whyBuild,
		"node_modules/a/.git/config":              whyRepository,
		"venv/lib/python3/site-packages/x.pth":    whyPython,
		"venv/lib/python3/site-packages/x/a.py":   "",
		"node_modules":                            "",
		"node_modules/":                           whyInstalled,
		"vendor.go":                               "",
	} {
		if got := Why(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestProtectedIsWhatAGlobHasToName(t *testing.T) {
	for path, want := range map[string]bool{
		".git": true, ".git/hooks/x": true, ".GIT/x": true, "git~1": true, ".github/FUNDING.yml": true, "CODEOWNERS": true, "docs/CODEOWNERS": true, ".gitattributes": true, ".gitmodules": true,
		"node_modules/a/package.json": false, "package-lock.json": false, "Makefile": false, "sub/.git/config": false, "sub/CODEOWNERS": false, ".gitignore": false, "docs": false, "": false,
	} {
		if got := Protected(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
		if path == "" {
			continue
		}
		// It is what judges, too.
		if v := compiled(t, "**").Judge(parse(t, "created file "+path), Env{Before: tree{}.look}); (len(v.Commit) == 0) != want {
			t.Errorf("%q: committed %v, and protected %v", path, v.Commit, want)
		}
	}
}

func TestEveryRowOfTheTableHasAReason(t *testing.T) {
	for name, why := range firstNames {
		if why == "" || name != strings.ToLower(name) || Why("some/"+name) == "" || Why(strings.ToUpper(name)) == "" {
			t.Errorf("%s", name)
		}
	}
	for name, why := range firstFolders {
		if why == "" || name != strings.ToLower(name) || Why(name+"/x") == "" {
			t.Errorf("%s", name)
		}
	}
	for _, name := range strings.Fields("package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml go.sum go.mod Cargo.lock poetry.lock uv.lock Pipfile.lock requirements.txt requirements-dev.txt Gemfile.lock composer.lock .npmrc .yarnrc .yarnrc.yml pip.conf Makefile action.yml action.yaml Dockerfile Jenkinsfile .gitlab-ci.yml .circleci/config.yml .pre-commit-config.yaml .husky/a .vscode/tasks.json .envrc package.json rules.mk CODEOWNERS .git/config") {
		if Why(name) == "" {
			t.Errorf("%s is not shown first", name)
		}
	}
	for _, name := range []string{"a.txt", "main.go", "src/lock.go", "vscode", "github/x", "", "."} {
		if why := Why(name); why != "" {
			t.Errorf("%q: %s", name, why)
		}
	}
}
