package egress_test

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// planned is what a preset stands for here, as HOST:PORT.
func planned(t *testing.T, name string) []string {
	t.Helper()
	cmd := exec.Command(program, "plan", "--json", "-")
	cmd.Dir = boxtest.OpenDir(t)
	cmd.Stdin = strings.NewReader("steps: [{run: x, egressAllow: ['preset:" + name + "']}]")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("plan with preset:%s: %v", name, err)
	}
	var p struct {
		Steps []struct{ EgressPresets []preset }
	}
	if err := json.Unmarshal(out, &p); err != nil || len(p.Steps) != 1 || len(p.Steps[0].EgressPresets) != 1 {
		t.Fatalf("plan with preset:%s: %v", name, err)
	}
	var hosts []string
	for _, r := range p.Steps[0].EgressPresets[0].Rules {
		hosts = append(hosts, r.Rule)
	}
	return hosts
}

// Cargo says whom it would have asked when it can ask nobody. The names of hosts
// are in no message of these tests.
func TestThePresetOfCargoHasTheIndexThatCargoAsks(t *testing.T) {
	cargo, err := exec.LookPath("cargo")
	need.Met(t, "cargo", err)
	cmd := exec.Command(cargo, "search", "--limit", "1", "a")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "CARGO_HTTP_PROXY=http://127.0.0.1:1", "CARGO_NET_RETRY=0")
	out, _ := cmd.CombinedOutput() // it cannot succeed
	m := regexp.MustCompile("`https://([^/`]+)/[^`]*`").FindSubmatch(out)
	if m == nil {
		need.Met(t, "cargo", errors.New("cargo does not say whom it would ask"))
	}
	if got := planned(t, "cargo"); !slices.Contains(got, string(m[1])+":443") {
		t.Errorf("the host that cargo names is not among the %d of the preset", len(got))
	}
}

func TestThePresetOfMavenHasOnlyWhatItsSettingsAndItselfName(t *testing.T) {
	texts, err := mavenTexts()
	need.Met(t, "mvn", err)
	got := planned(t, "maven")
	for _, rule := range got {
		host, _, _ := strings.Cut(rule, ":")
		if !strings.Contains(texts, "://"+host) {
			t.Error("the preset has a host that no setting of maven names")
		}
	}
	if len(got) == 0 {
		t.Error("the preset is empty")
	}
}

// mavenTexts is all that says where Maven here takes artifacts from.
func mavenTexts() (string, error) {
	mvn, err := exec.LookPath("mvn")
	if err == nil {
		mvn, err = filepath.EvalSymlinks(mvn)
	}
	if err != nil {
		return "", err
	}
	home := filepath.Dir(filepath.Dir(mvn))
	all := ""
	for _, p := range []string{filepath.Join(home, "conf/settings.xml"), filepath.Join(os.Getenv("HOME"), ".m2/settings.xml")} {
		if b, err := os.ReadFile(p); err == nil {
			all += string(b)
		}
	}
	jars, _ := filepath.Glob(home + "/lib/maven-model-builder-*.jar")
	if len(jars) == 0 {
		return "", fmt.Errorf("%s has no maven-model-builder", home)
	}
	z, err := zip.OpenReader(jars[0])
	if err != nil {
		return "", err
	}
	defer z.Close()
	f, err := z.Open("org/apache/maven/model/pom-4.0.0.xml")
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return all + string(b), err
}
