package policy

import (
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
