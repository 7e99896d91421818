package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
	"github.com/untrusted-steps/untrusted-steps/internal/seccomp"
)

// TestContainerWords: docs/container.md and the example for a job container have
// the very words that a refused run has.
func TestContainerWords(t *testing.T) {
	// A command in the docs goes over several lines.
	doc := strings.Join(strings.Fields(strings.ReplaceAll(document(t, "docs/container.md"), "\\\n", " ")), " ")
	for _, words := range []string{
		container.Options(container.Who{}, container.Profile), container.Options(container.Who{Root: true}, container.Profile),
		strings.Replace(container.Least(container.Profile), "UID:GID", `"$(id -u):$(id -g)"`, 1),
		strings.Replace(container.Least(container.Profile), "UID:GID", "1001:1001", 1),
	} {
		if !strings.Contains(doc, words) {
			t.Errorf("docs/container.md does not have %s", words)
		}
	}
	// And each word has a row.
	same(t, "words of docs/container.md", []string{
		"seccomp=seccomp.json", "apparmor=unconfined", "systempaths=unconfined", "writable-cgroups=true", "--cgroupns=private",
		"--cap-drop ALL", "no-new-privileges", "--user UID:GID",
	}, column(t, document(t, "docs/container.md"), "word"))

	var w struct {
		Jobs map[string]struct {
			Container struct{ Image, Options string }
		}
	}
	if err := yaml.Unmarshal([]byte(document(t, "examples/workflows/job-container.yml")), &w); err != nil {
		t.Fatal(err)
	}
	if got := w.Jobs["gate"].Container; got.Image == "" || got.Options != container.Options(container.Who{Root: true}, "unconfined") {
		t.Errorf("the job container is given %q", got)
	}

	_, list, ok := strings.Cut(doc, "and on top of it ")
	if !ok {
		t.Fatal("docs/container.md has no list of calls")
	}
	list, _, _ = strings.Cut(list, ". ")
	var calls []string
	for _, m := range codeWord.FindAllStringSubmatch(list, -1) {
		calls = append(calls, m[1])
	}
	same(t, "calls of the filter and of docs/container.md", seccomp.BoxCalls(), calls)
}

// TestSeccompIsPrinted: the verb prints what the example's file is.
func TestSeccompIsPrinted(t *testing.T) {
	var out, errs strings.Builder
	a := &app{stdout: &out, stderr: &errs, getenv: func(string) string { return "" }}
	if code := a.main([]string{"seccomp"}); code != exitPass || out.String() != document(t, "examples/container/seccomp.json") {
		t.Errorf("exit status %d, %s, %d bytes", code, errs.String(), out.Len())
	}
	if code := a.main([]string{"seccomp", "x"}); code != exitUsage {
		t.Errorf("with an argument: exit status %d", code)
	}
}

// chartValues are the values that the chart gha-runner-scale-set has, and podSpec
// and podContainer the fields of a pod that are of use here: a misspelt one is
// dropped by the chart, or refused by the cluster, and not found here otherwise.
var (
	chartValues = strings.Fields("githubConfigUrl githubConfigSecret scaleSetLabels proxy maxRunners minRunners runnerGroup runnerScaleSetName fullnameOverride " +
		"githubServerTLS keyVault containerMode listenerTemplate listenerMetrics template controllerServiceAccount namespaceOverride annotations labels resourceMeta")
	podSpec = strings.Fields("containers initContainers volumes hostUsers runtimeClassName automountServiceAccountToken securityContext serviceAccountName " +
		"nodeSelector tolerations affinity restartPolicy priorityClassName terminationGracePeriodSeconds imagePullSecrets")
	podContainer = strings.Fields("name image command args env envFrom securityContext resources volumeMounts imagePullPolicy workingDir")
	security     = strings.Fields("allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile")
)

// known holds the keys of a map to a list.
func known(t *testing.T, what string, m map[string]any, list []string) {
	t.Helper()
	for k := range m {
		if !slices.Contains(list, k) {
			t.Errorf("%s has no field %q", what, k)
		}
	}
}

// TestScaleSet: the values are some, the pod is made as docs/kubernetes.md and a
// refused run say, and nothing in it gives more.
func TestScaleSet(t *testing.T) {
	var values map[string]any
	d := yaml.NewDecoder(strings.NewReader(document(t, "examples/kubernetes/values.yaml")))
	if err := d.Decode(&values); err != nil {
		t.Fatal(err)
	}
	known(t, "the chart", values, chartValues)
	template := values["template"].(map[string]any)
	known(t, "template", template, []string{"metadata", "spec"})
	spec := template["spec"].(map[string]any)
	known(t, "the pod", spec, podSpec)
	containers := spec["containers"].([]any)
	if len(containers) != 1 {
		t.Fatalf("the pod has %d containers", len(containers))
	}
	runner := containers[0].(map[string]any)
	known(t, "the container", runner, podContainer)
	context := runner["securityContext"].(map[string]any)
	known(t, "the security context", context, security)

	if runner["name"] != "runner" {
		t.Errorf("the chart takes no other container than runner for the runner's, and this is %v", runner["name"])
	}
	want := map[string]any{
		"runAsNonRoot": true, "runAsUser": 1001, "runAsGroup": 1001, "allowPrivilegeEscalation": false, "procMount": "Unmasked",
		"capabilities":    map[string]any{"drop": []any{"ALL"}},
		"seccompProfile":  map[string]any{"type": "Localhost", "localhostProfile": "untrusted-steps.json"},
		"appArmorProfile": map[string]any{"type": "Unconfined"},
	}
	if diff := cmp.Diff(want, context); diff != "" {
		t.Errorf("the security context (-want +file)\n%s", diff)
	}
	if spec["hostUsers"] != false || spec["automountServiceAccountToken"] != false || values["containerMode"] != nil {
		t.Errorf("hostUsers %v, automountServiceAccountToken %v, containerMode %v", spec["hostUsers"], spec["automountServiceAccountToken"], values["containerMode"])
	}
	// The work folder is on a volume, or steps would get copies.
	mount := runner["volumeMounts"].([]any)[0].(map[string]any)
	volume := spec["volumes"].([]any)[0].(map[string]any)
	if mount["name"] != volume["name"] || mount["mountPath"] != "/home/runner/_work" || volume["emptyDir"] == nil {
		t.Errorf("the work folder is %v on %v", mount, volume)
	}

	// What a refused run tells to write is in the file.
	said := map[string]any{}
	for _, line := range append(container.PodFix("# where"), container.PodGroups()...) {
		if !strings.HasPrefix(line, "#") {
			if err := yaml.Unmarshal([]byte(line), &said); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	for _, k := range []string{"hostUsers", "runtimeClassName"} {
		if said[k] == nil || said[k] != spec[k] {
			t.Errorf("a refused run says %s: %v, and the file has %v", k, said[k], spec[k])
		}
	}
	for k, v := range said["securityContext"].(map[string]any) {
		if diff := cmp.Diff(context[k], v); diff != "" {
			t.Errorf("a refused run says of %s (-file +run)\n%s", k, diff)
		}
	}

	var class struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Handler    string
	}
	if err := yaml.Unmarshal([]byte(document(t, "examples/kubernetes/runtime-class.yaml")), &class); err != nil {
		t.Fatal(err)
	}
	if class.Kind != "RuntimeClass" || class.APIVersion != "node.k8s.io/v1" || class.Metadata.Name != spec["runtimeClassName"] || class.Handler == "" {
		t.Errorf("the runtime class is %+v", class)
	}

	// Each field of the file has a row in the docs, with its value.
	doc := document(t, "docs/kubernetes.md")
	rows := regexp.MustCompile("(?m)^\\| `([^|]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(doc, -1)
	for name, value := range map[string]any{
		"hostUsers": spec["hostUsers"], "runtimeClassName": spec["runtimeClassName"], "automountServiceAccountToken": false,
		"procMount": "Unmasked", "seccompProfile": "Localhost", "appArmorProfile": "Unconfined", "runAsUser": 1001, "allowPrivilegeEscalation": false,
		"capabilities": "drop: [ALL]",
	} {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		word := "`" + strings.Trim(string(text), `"`) + "`"
		if !slices.ContainsFunc(rows, func(m []string) bool {
			return strings.Contains("`"+m[1]+"`", "`"+name+"`") && strings.Contains(m[2], word)
		}) {
			t.Errorf("docs/kubernetes.md has no row for %s with %s", name, word)
		}
	}
	for name := range context {
		if name != "runAsGroup" && !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("docs/kubernetes.md does not say why %s", name)
		}
	}
}
