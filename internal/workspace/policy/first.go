package policy

import (
	"path"
	"slices"
	"strings"
)

// Why says why a reviewer should look at a path before all others; empty: no
// reason is known. It goes by the name alone. A path of Verdict.First that ends in
// a slash is a folder of installed packages.
func Why(rawPath string) string {
	if strings.HasSuffix(rawPath, "/") {
		return whyInstalled
	}
	why := whyOf(strings.Split(rawPath, "/"))
	// What a package brings along for its own forge, editor or reviewers is asked by
	// nobody where it is installed.
	if _, installed := Installed(rawPath); installed && !slices.Contains(whyOfPackages, why) {
		return ""
	}
	return why
}

func whyOf(names []string) string {
	for i, n := range names {
		if looksLike(n, ".git") {
			return whyRepository
		}
		if i == len(names)-1 {
			break
		}
		if why := firstFolders[strings.ToLower(n)]; why != "" {
			return why
		}
		if strings.EqualFold(n, ".github") && runs(names[i+1:]) {
			return whyCI
		}
	}
	if Protected(strings.Join(names, "/")) {
		return "git or the forge obeys it"
	}
	last := strings.ToLower(names[len(names)-1])
	if why := firstNames[last]; why != "" {
		return why
	}
	for _, f := range firstForms {
		if f.suffixed && slices.Contains(otherFiles, path.Ext(last)) {
			continue
		}
		if ok, err := path.Match(f.form, last); ok && err == nil {
			return f.why
		}
	}
	return ""
}

// runs says whether GitHub runs what lies in .github under these names, as it does
// not with a template or FUNDING.yml.
func runs(names []string) bool {
	first := strings.ToLower(names[0])
	return first == "workflows" || first == "actions"
}

// Protected says whether a path is one that a glob has to name, as far as its name
// alone says so: for a .git further down it depends on what was there.
func Protected(rawPath string) bool {
	names := strings.Split(rawPath, "/")
	return protectedAt(names) >= 0
}

// Installed is the outermost folder that a package manager filled and that a path
// lies in, with a slash at its end.
func Installed(rawPath string) (folder string, ok bool) {
	names := strings.Split(rawPath, "/")
	at := slices.IndexFunc(names[:len(names)-1], isDependencies)
	if at < 0 {
		return "", false
	}
	return strings.Join(names[:at+1], "/") + "/", true
}

// Words that many rows share.
const (
	whyRepository = "git obeys what lies in it"
	whyInstalled  = "installed packages"
	whyPython     = "runs whenever python starts"
	whyLock       = "says which packages are installed next time"
	whyManifest   = "names packages, and commands that run when they are installed"
	whySource     = "says where packages come from"
	whyBuild      = "commands of the next build"
	whyCI         = "commands that run in CI"
	whyHook       = "commands that run on a commit"
	whyEditor     = "commands that an editor runs"
	whyShell      = "commands that a shell runs on entering the folder"
	whyImage      = "commands of the next image"
	whyOwners     = "says who has to review"
	whyGit        = "what git does to files"
)

// whyOfPackages are the reasons that hold for what is installed too.
var whyOfPackages = []string{whyRepository, whyManifest, whyBuild, whyGit, whyPython}

// firstNames are file names in lower case, at any depth.
var firstNames = map[string]string{
	"package-lock.json": whyLock, "npm-shrinkwrap.json": whyLock, "yarn.lock": whyLock, "pnpm-lock.yaml": whyLock,
	"bun.lock": whyLock, "bun.lockb": whyLock, "deno.lock": whyLock, "go.sum": whyLock, "go.work.sum": whyLock,
	"cargo.lock": whyLock, "poetry.lock": whyLock, "uv.lock": whyLock, "pdm.lock": whyLock, "pipfile.lock": whyLock,
	"pylock.toml": whyLock, "gemfile.lock": whyLock, "composer.lock": whyLock, "mix.lock": whyLock, "pubspec.lock": whyLock,
	"packages.lock.json": whyLock, "gradle.lockfile": whyLock, "flake.lock": whyLock, "package.resolved": whyLock,
	"podfile.lock": whyLock, ".terraform.lock.hcl": whyLock, "module.bazel.lock": whyLock,

	"package.json": whyManifest, "pnpm-workspace.yaml": whyManifest, ".pnpmfile.cjs": whyManifest, "go.mod": whyManifest,
	"go.work": whyManifest, "cargo.toml": whyManifest, "build.rs": whyManifest, "pyproject.toml": whyManifest,
	"setup.py": whyManifest, "setup.cfg": whyManifest, "pipfile": whyManifest, "gemfile": whyManifest,
	"composer.json": whyManifest, "binding.gyp": whyManifest, "conftest.py": whyBuild, "tox.ini": whyBuild, "noxfile.py": whyBuild,

	".npmrc": whySource, "pip.conf": whySource, ".pypirc": whySource, ".netrc": whySource, "nuget.config": whySource,
	"bunfig.toml": whySource,

	"makefile": whyBuild, "gnumakefile": whyBuild, "justfile": whyBuild, ".justfile": whyBuild, "taskfile.yml": whyBuild,
	"taskfile.yaml": whyBuild, "rakefile": whyBuild, "cmakelists.txt": whyBuild, "meson.build": whyBuild, "build.gradle": whyBuild,
	"build.gradle.kts": whyBuild, "gradlew": whyBuild, "gradle-wrapper.properties": whyBuild, "mvnw": whyBuild, "pom.xml": whyBuild,
	"build.bazel": whyBuild, "module.bazel": whyBuild, ".bazelrc": whyBuild, "flake.nix": whyBuild,

	"action.yml": whyCI, "action.yaml": whyCI, "jenkinsfile": whyCI, ".gitlab-ci.yml": whyCI, ".travis.yml": whyCI,
	"azure-pipelines.yml": whyCI, "bitbucket-pipelines.yml": whyCI, ".drone.yml": whyCI, ".cirrus.yml": whyCI,
	"appveyor.yml": whyCI, "cloudbuild.yaml": whyCI, "renovate.json": whyCI,

	".pre-commit-config.yaml": whyHook, "lefthook.yml": whyHook, ".lintstagedrc": whyHook,
	".envrc": whyShell, ".env": whyShell, ".tool-versions": whyShell, "mise.toml": whyShell, ".bashrc": whyShell, ".profile": whyShell,
	"dockerfile": whyImage, "containerfile": whyImage, "docker-compose.yml": whyImage, "docker-compose.yaml": whyImage,
	"compose.yml": whyImage, "compose.yaml": whyImage,
	"codeowners": whyOwners, ".gitattributes": whyGit, ".gitmodules": whyGit, ".gitignore": whyGit,
	"sitecustomize.py": whyPython, "usercustomize.py": whyPython,
	"agents.md": "what an agent is told", "claude.md": "what an agent is told", ".mcp.json": "commands that an agent runs",
}

// firstFolders are folders, in lower case, of which everything below counts.
var firstFolders = map[string]string{
	".gitlab": whyCI, ".circleci": whyCI, ".buildkite": whyCI, ".woodpecker": whyCI, ".forgejo": whyCI, ".gitea": whyCI,
	".husky": whyHook, ".githooks": whyHook, ".cargo": whyBuild, ".mvn": whyBuild,
	".vscode": whyEditor, ".idea": whyEditor, ".devcontainer": whyEditor, ".zed": whyEditor,
	".claude": "what an agent is told", ".cursor": "what an agent is told",
}

// firstForms are what no single name says. They are read in this order.
var firstForms = []struct {
	form, why string
	suffixed  bool // what follows the name can be that of another kind of file
}{
	{"requirements*.txt", whyLock, false}, {"constraints*.txt", whyLock, false}, {".yarnrc*", whySource, false},
	{"dockerfile.*", whyImage, true}, {"*.dockerfile", whyImage, false}, {"*.mk", whyBuild, false}, {"makefile.*", whyBuild, true},
	{"jenkinsfile.*", whyCI, true}, {"*.pth", whyPython, false},
}

// otherFiles are endings of files that are no Makefile, whatever they begin with.
var otherFiles = []string{".py", ".pyc", ".pyo", ".pyi", ".go", ".rs", ".js", ".ts", ".java", ".rb", ".md", ".rst", ".html"}
