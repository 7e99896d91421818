package policy

import (
	"path"
	"slices"
	"strings"
)

// Why says why a reviewer should look at a path before all others; empty: no
// reason is known. It goes by the name alone.
func Why(rawPath string) string {
	names := strings.Split(rawPath, "/")
	for i, n := range names {
		if looksLike(n, ".git") {
			return "git obeys what lies in it"
		}
		if why := firstFolders[strings.ToLower(n)]; why != "" && i < len(names)-1 {
			return why
		}
	}
	for _, want := range protectedNames {
		if looksLike(names[0], want) {
			return "git or the forge obeys it"
		}
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

// Words that many rows share.
const (
	whyLock     = "says which packages are installed next time"
	whyManifest = "names packages, and commands that run when they are installed"
	whySource   = "says where packages come from"
	whyBuild    = "commands of the next build"
	whyCI       = "commands that run in CI"
	whyHook     = "commands that run on a commit"
	whyEditor   = "commands that an editor runs"
	whyShell    = "commands that a shell runs on entering the folder"
	whyImage    = "commands of the next image"
	whyOwners   = "says who has to review"
	whyGit      = "what git does to files"
)

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
	"sitecustomize.py": "runs whenever python starts", "usercustomize.py": "runs whenever python starts",
	"agents.md": "what an agent is told", "claude.md": "what an agent is told", ".mcp.json": "commands that an agent runs",
}

// firstFolders are folders, in lower case, of which everything below counts.
var firstFolders = map[string]string{
	".github": whyCI, ".gitlab": whyCI, ".circleci": whyCI, ".buildkite": whyCI, ".woodpecker": whyCI, ".forgejo": whyCI, ".gitea": whyCI,
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
	{"jenkinsfile.*", whyCI, true}, {"*.pth", "runs whenever python starts", false},
}

// otherFiles are endings of files that are no Makefile, whatever they begin with.
var otherFiles = []string{".py", ".pyc", ".pyo", ".pyi", ".go", ".rs", ".js", ".ts", ".java", ".rb", ".md", ".rst", ".html"}
