package steps

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProposeIsAPatchThatGitTakes(t *testing.T) {
	tests := map[string]struct {
		src, want string
		skipped   []string
	}{
		"egressMode of the step is replaced": {
			"steps:\n  - id: a\n    egressMode: audit\n    run: x\n",
			"steps:\n  - id: a\n    egressAllow:\n      - example.org\n      - example.net:8443\n    run: x\n", nil},
		"an old list is replaced, wherever it stands": {
			"steps:\n  - id: a\n    egressAllow:\n      - old.example.org\n      - older.example.org\n    run: |\n      one\n\n      two\n    egressMode: audit\n",
			"steps:\n  - id: a\n    egressAllow:\n      - example.org\n      - example.net:8443\n    run: |\n      one\n\n      two\n", nil},
		"a list in its key's column is taken whole": {
			"steps:\n- id: a\n  egressAllow:\n  - old.example.org\n  run: x\n  egressMode: audit\n",
			"steps:\n- id: a\n  egressAllow:\n    - example.org\n    - example.net:8443\n  run: x\n", nil},
		"with egressMode in defaults the list is put behind the first key": {
			"defaults: {egressMode: audit}\nsteps:\n  - run: |\n      one\n      two\n    id: a\n",
			"defaults: {egressMode: audit}\nsteps:\n  - run: |\n      one\n      two\n    egressAllow:\n      - example.org\n      - example.net:8443\n    id: a\n", nil},
		"the only key of a step, without a newline at the end": {
			"defaults: {egressMode: audit}\nsteps:\n  - id: b\n    command: [x]\n  - run: x",
			"", []string{"step-2"}},
		"a step on one line is left alone and named": {
			"steps: [{id: a, run: x, egressMode: audit}]\n", "", []string{"a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := mustLoad(t, tt.src, testOptions(t))
			s := &p.Steps[len(p.Steps)-1]
			patch, skipped := Propose("ci/steps.yml", []byte(tt.src), []Proposal{{s, []string{"example.org", "example.net:8443"}}})
			if diff := cmp.Diff(tt.skipped, skipped); diff != "" {
				t.Errorf("skipped (-want +got)\n%s", diff)
			}
			if tt.want == "" {
				if patch != "" {
					t.Errorf("a patch for a step that cannot have one:\n%s", patch)
				}
				return
			}
			if got := gitApply(t, tt.src, patch); got != tt.want {
				t.Errorf("after the patch\n%s\nthe file is (-want +got)\n%s", patch, cmp.Diff(tt.want, got))
			}
			mustLoad(t, tt.want, testOptions(t))
		})
	}
}

func gitApply(t *testing.T, src, patch string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "ci", "steps.yml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{file: src, filepath.Join(dir, "p"): patch} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", "apply", "p")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, patch)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}
