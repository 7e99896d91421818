package workspace_test

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// The secrets of a runner as these tests plant them, each with its own word, so
// that what a step says tells which of them it has seen.
const (
	gitToken     = "tokenOfTheExtraHeader0"
	includeToken = "tokenOfTheIncludedFile1"
	helperToken  = "tokenOfTheCredentialHelper2"
	runtimeToken = "tokenOfTheActionsRuntime3"
	plainToken   = "tokenOfTheCallersEnvironment4"
	homeToken    = "tokenOfTheHome5"
)

// homeFiles are where the tools of a runner keep what they sign in with.
var homeFiles = strings.Fields(".ssh/id_ed25519 .aws/credentials .azure/accessTokens.json .docker/config.json .kube/config .gnupg/secring.gpg .netrc .npmrc .pypirc " +
	".config/gh/hosts.yml .config/gcloud/credentials.db .cargo/credentials.toml .git-credentials .bash_history")

// plantHome makes a home with credentials. Those of .npmrc are a line of it.
func plantHome(t testing.TB, home string) {
	t.Helper()
	for _, f := range homeFiles {
		text := homeToken + "\n"
		switch f {
		case ".npmrc":
			text = "color=false\n//registry.example/:_authToken=" + homeToken + "\n"
		case ".netrc":
			text = "machine example.com login me password " + homeToken + "\n"
		case ".docker/config.json":
			text = `{"auths": {"example.com": {"auth": "` + homeToken + `"}}}`
		}
		file(t, filepath.Join(home, f), text)
	}
}

// tells says which secrets a text has, as they are or encoded.
func tells(text string) (found []string) {
	for _, s := range []string{gitToken, includeToken, helperToken, runtimeToken, plainToken, homeToken} {
		plain := strings.Contains(text, s)
		// What lies before it moves the groups of three by up to two bytes.
		for shift := range 3 {
			e := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + s))
			plain = plain || strings.Contains(strings.ReplaceAll(text, "\n", ""), e[4:len(e)-4])
		}
		if plain {
			found = append(found, s)
		}
	}
	return found
}

func TestAttacksOnSecrets(t *testing.T) {
	boxtest.Need(t, "git", "python3")
	readFiles := func(dir string, files []string) string {
		var paths string
		for _, f := range files {
			paths += " " + dir + "/" + f
		}
		// One file that is not there must not keep a tool from the others.
		return "{ cat" + paths + "; for f in" + paths + "; do base64 $f; dd if=$f; done; " +
			"python3 -c 'import os, sys\nfor f in sys.argv[1:]: os.path.exists(f) and print(open(f, errors=\"replace\").read())'" + paths + "; } 2>/dev/null; "
	}
	readHome := func(home string) string { return readFiles(home, homeFiles) }
	// named are hidden or masked wherever they lie in the workspace.
	named := []string{".netrc", ".npmrc", ".pypirc", ".git-credentials", ".docker/config.json"}
	eachWay(t, func(t *testing.T, w way) {
		p, home := newPlace(t, w), filepath.Join(boxtest.OpenDir(t), "home")
		plantHome(t, home)
		plantHome(t, filepath.Join(p.workspace, "house"))
		file(t, filepath.Join(p.workspace, ".git-included"), "[http \"https://two.example/\"]\n\textraheader = AUTHORIZATION: basic "+includeToken+"\n[user]\n\tname = included\n")
		file(t, filepath.Join(p.workspace, "stored"), "https://me:"+helperToken+"@three.example\n")
		file(t, filepath.Join(p.workspace, ".gitignore"), "house/\n.git-included\nstored\n")
		p.repository(t, map[string]string{"README": "text\n"})
		for _, kv := range [][]string{
			{"http.https://github.com/.extraheader", "AUTHORIZATION: basic " + gitToken}, {"include.path", p.workspace + "/.git-included"},
			{"credential.helper", "store --file=" + p.workspace + "/stored"}, {"remote.origin.url", "https://me:" + gitToken + "@github.com/a/b"}, {"my.own", "kept"},
		} {
			if out, err := exec.Command("git", "-C", p.workspace, "-c", "safe.directory=*", "config", kv[0], kv[1]).CombinedOutput(); err != nil {
				t.Fatalf("git config: %v\n%s", err, out)
			}
		}
		p.give(t)
		ask := "git config --list --show-origin; cat .git/config; base64 .git/config; cat .git-included stored; base64 .git-included stored; git remote -v; " +
			"for h in github.com two.example three.example; do printf 'protocol=https\\nhost='$h'\\n\\n' | GIT_TERMINAL_PROMPT=0 git credential fill; done; "
		tokens := []string{"GITHUB_TOKEN=" + plainToken, "NPM_TOKEN=" + plainToken, "AWS_SECRET_ACCESS_KEY=" + plainToken, "ACTIONS_RUNTIME_TOKEN=" + runtimeToken, "ACTIONS_ID_TOKEN_REQUEST_TOKEN=" + runtimeToken,
			"ACTIONS_ID_TOKEN_REQUEST_URL=https://" + runtimeToken + ".example", "ACTIONS_CACHE_URL=https://" + runtimeToken + ".example", "ACTIONS_RESULTS_URL=https://" + runtimeToken + ".example", "HOME=" + home}
		environment := "env; cat /proc/self/environ; for f in /proc/[0-9]*; do cat $f/environ $f/cmdline || :; done; set; "
		quiet := func(s string) string { return "{ " + s + ":; } 2>/dev/null || :" }
		outside := func(text string) string {
			cmd := exec.Command("sh", "-c", text)
			cmd.Dir = p.workspace
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}, tokens...)
			out, _ := cmd.Output()
			return string(out)
		}
		// A step must not end at the first read that is refused.
		careful := func(text string) string { return "set +e\n" + text + "\ntrue" }
		r := p.run(t, w.file("  env: {DECLARED: declared-value}\n",
			scriptStep{id: "git", text: careful(ask + "git log --oneline; git status --porcelain")},
			scriptStep{id: "env", text: careful(environment)},
			scriptStep{id: "home", text: careful(readHome(home) + readHome("$HOME") + readHome("/root") + "ls -d " + home + "; ls -A $HOME")},
			scriptStep{id: "house", text: careful(readFiles("house", named) + "cat README house/.npmrc")},
		), tokens...)
		r.exits(0)
		within, _ := p.command(t, w.file("", scriptStep{id: "home", text: "true"}), append(tokens, "HOME="+filepath.Join(p.workspace, "house"))...)
		said, err := within.CombinedOutput()
		holds := func(t *testing.T, r *report, id, allowed, control string, planted ...string) {
			t.Helper()
			out, err := os.ReadFile(filepath.Join(r.out, "steps", id, "stderr.log"))
			do(t, err)
			text := r.stdout(id)
			if found := tells(text + string(out)); len(found) > 0 {
				t.Errorf("the step has seen %q", found)
			}
			if !strings.Contains(text, allowed) {
				t.Errorf("control: in the box there is no %q: %q", allowed, text[:min(len(text), 2000)])
			}
			seen := outside(control)
			for _, s := range planted {
				if found := tells(seen); !strings.Contains(strings.Join(found, " "), s) {
					t.Errorf("control: outside, the same tells %q and not %s", found, s)
				}
			}
			r.lawful(id, "unchanged")
		}
		t.Run("M146 git's configuration has no token, nor have the file it includes and its credential helper", func(t *testing.T) {
			holds(t, r, "git", "my.own=kept", ask, gitToken, includeToken, helperToken)
			if !strings.Contains(r.stdout("git"), "first") {
				t.Error("control: git log does not work")
			}
		})
		t.Run("M147 M149 no variable of the caller, the runner's tokens among them, is in the environment or on a command line", func(t *testing.T) {
			holds(t, r, "env", "DECLARED=declared-value", quiet(environment), runtimeToken, plainToken)
			for _, n := range []string{"ACTIONS_", "GITHUB_", "NPM_TOKEN", "AWS_"} {
				if strings.Contains(r.stdout("env"), n) {
					t.Errorf("the environment has a name with %s", n)
				}
			}
		})
		t.Run("M148 the home's folders of credentials are absent", func(t *testing.T) {
			holds(t, r, "home", "", readHome(home), homeToken)
			if strings.Contains(r.stdout("home"), home) {
				t.Error("the home itself is there")
			}
		})
		t.Run("M148 a workspace that holds the home is refused, and one with another's has not what is known by its name", func(t *testing.T) {
			if within.ProcessState.ExitCode() != 2 || !strings.Contains(string(said), "house, which no box may see") {
				t.Errorf("%v: %s", err, said)
			}
			holds(t, r, "house", "text\n", readFiles("house", named), homeToken)
		})
		for _, f := range homeFiles {
			if b, err := os.ReadFile(filepath.Join(p.workspace, "house", f)); err != nil || !strings.Contains(string(b), homeToken) {
				t.Errorf("the real %s is now %q, %v", f, b, err)
			}
		}
		p.clean(t)
	})
}
