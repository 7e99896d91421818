package steps

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustPolicy(t testing.TB, src string) *Policy {
	t.Helper()
	p, err := LoadPolicy("policy.yml", []byte(src), testOptions(t))
	if err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	return p
}

// TestAStepsFileWithinThePolicyLoads and the test below share the form: what a
// step says on line 2, and what the policy says.
func TestAStepsFileWithinThePolicyLoads(t *testing.T) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("make lint")))
	for sentence, tc := range map[string]struct{ policy, step string }{
		"a policy with no key bounds nothing":                {"version: 1", "network: true, memoryMb: null, requireLimits: false, capDrop: []"},
		"as much as allowed is not more":                     {"memoryMb: 1024\npids: 99", "memoryMb: 1024, pids: 99"},
		"less is not more":                                   {"timeoutS: 60.5", "timeoutS: 60"},
		"a default that is low enough needs no writing":      {"memoryMb: 512\npids: 256\ndiskMb: 1024\ntimeoutS: 30\nretries: 0", ""},
		"a rule that the ceiling's wildcard permits":         {"egressAllow: ['*.example.com']", "egressAllow: [a.example.com]"},
		"no egress under no egress":                          {"egressAllow: []", ""},
		"a rule that is private under one that is":           {"egressAllow: [{to: a.example.com, private: true}]", "egressAllow: [{to: a.example.com, private: true}]"},
		"the host's network where the policy has it":         {"egressAllow: [a.example.com]\nnetwork: true", "network: true"},
		"audit where the policy has it":                      {"egressAllow: [a.example.com]\negressMode: audit", "egressMode: audit"},
		"a step without a way out needs no bound of bytes":   {"egressMaxBytes: 10", ""},
		"a mount below one that is allowed":                  {"mounts: [/data]", "mounts: {/data/corpus: [/corpus, ro]}"},
		"the image that is allowed":                          {"images: [host]", ""},
		"a root folder that is allowed, however it is named": {"images: ['rootfs:/srv/root']", "image: 'rootfs:/srv/./root'"},
		"dropping ALL drops each":                            {"capDrop: [NET_RAW, CHOWN]", ""},
		"dropping more than asked":                           {"capDrop: [NET_RAW]", "capDrop: [NET_RAW, CHOWN]"},
		"the profile that is asked for":                      {"securityProfile: untrusted", "securityProfile: untrusted"},
		"variables that are allowed":                         {"env: [A]\npassEnv: [TOKEN]", "env: {A: b}, passEnv: [TOKEN]"},
		"globs within those allowed":                         {"allowChanges: ['out/**', '.github/**']", "allowChanges: ['out/a/*', '.github/dependabot.yml']"},
		"keep where it is allowed":                           {"onFailure: keep", "onFailure: keep"},
		"faults that may be tolerated":                       {"tolerate: [oom]", "tolerate: [oom]"},
		"all faults may be tolerated":                        {"tolerate: true", "tolerate: [oom, timeout]"},
		"an expectation where it is allowed":                 {"expect: true", "expect: {exitCode: 3}"},
		"exit code 0 is what is expected anyway":             {"expect: false", "expect: {exitCode: 0}"},
		"a refusal that is expected, where it is allowed":    {"expectDenied: true", "egressAllow: [a.example.com], expectDenied: [b.example.com]"},
		"limits that the policy does not require":            {"requireLimits: false", "requireLimits: false"},
		"a required step by its text":                        {"required: [{id: one, run: make lint}]", ""},
		"a required step by its sum":                         {"required: [{id: one, sha256: " + sum + "}]", ""},
		"a step that names no engine":                        {"engine: native", ""},
		"an engine that is allowed":                          {"engine: [native, gvisor]", "engine: gvisor"},
		"a setup where the policy allows one":                {"setup: true", "setup: make tools"},
		"no setup where the policy allows none":              {"setup: false", ""},
		"a setup that reaches what the policy allows":        {"egressAllow: ['*.example.com']\negressMode: enforce", "setup: x, setupEgress: [a.example.com]"},
		"a setup that reaches all, where audit is allowed":   {"egressAllow: [a.example.com]\negressMode: audit", "setup: x"},
		"a setup that is done in time":                       {"timeoutS: 60", "setup: x, setupTimeoutS: 60"},
		"profiles that are allowed":                          {"profiles: ['vcpu:a']", "profiles: ['vcpu:a']"},
	} {
		t.Run(sentence, func(t *testing.T) {
			opt := testOptions(t)
			opt.Policy = mustPolicy(t, tc.policy)
			plan := mustLoad(t, "steps:\n- {id: one, run: make lint, "+tc.step+"}\n", opt)
			want := &PolicyRef{Path: "policy.yml", SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(tc.policy)))}
			if diff := cmp.Diff(want, plan.Policy); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAStepsFileBeyondThePolicyIsRefusedWithTheLineInBoth(t *testing.T) {
	for sentence, tc := range map[string]struct {
		policy, step string
		column       int    // in line 2 of the steps file; the step itself is at 3
		line         string // of the policy
		what         string
	}{
		"more memory":                  {"memoryMb: 1024", "memoryMb: 2048", 39, "1:11", "memoryMb is more than the policy allows (\"2048\"; allowed: at most 1024)"},
		"a default that is more":       {"pids: 100", "", 3, "1:7", "pids is more than the policy allows (\"256\""},
		"no cap at all":                {"memoryMb: 1024\nrequireLimits: false", "requireLimits: false, memoryMb: null", 61, "1:11", "memoryMb is no bound"},
		"no cap on cpus by default":    {"cpus: 2", "", 3, "1:7", "cpus is no bound"},
		"a longer deadline":            {"timeoutS: 60", "timeoutS: 60.5", 39, "1:11", "timeoutS is more"},
		"more disk":                    {"diskMb: 10", "", 3, "1:9", "diskMb is more"},
		"more output":                  {"maxOutputBytes: 10", "maxOutputBytes: 11", 45, "1:17", "maxOutputBytes is more"},
		"a retry where there are none": {"retries: 0", "retries: 1", 38, "1:10", "retries is more than the policy allows (\"1\"; allowed: at most 0)"},
		"requireLimits turned off":     {"requireLimits: true", "requireLimits: false", 44, "1:16", "requireLimits: false"},
		"a host that no rule names":    {"egressAllow: [a.example.com]", "egressAllow: [a.example.com, b.example.com]", 58, "1:14", "this rule permits more than the policy (\"b.example.com\""},
		"a wildcard over a name":       {"egressAllow: [a.example.com]", "egressAllow: ['*.example.com']", 43, "1:14", "this rule permits more"},
		"a rule that is private under one that is not": {
			"egressAllow: [a.example.com]", "egressAllow: [{to: a.example.com, private: true}]", 43, "1:14", "this rule permits more"},
		"any host where none is allowed":            {"egressAllow: []", "egressAllow: [a.example.com]", 43, "1:14", "allowed: none"},
		"the host's network past the list":          {"egressAllow: [a.example.com]", "network: true", 38, "1:14", "network: true reaches more than the policy's egressAllow"},
		"audit past the list":                       {"egressAllow: [a.example.com]", "egressMode: audit", 41, "1:14", "egressMode: audit lets through more"},
		"audit":                                     {"egressMode: enforce", "egressMode: audit", 41, "1:13", "egressMode: audit"},
		"bytes without a bound":                     {"egressMaxBytes: 10", "egressAllow: [a.example.com]", 3, "1:17", "egressMaxBytes is no bound"},
		"the host's network":                        {"network: false", "network: true", 38, "1:10", "network: true"},
		"another mount":                             {"mounts: [/data]", "mounts: {/database: [/d, ro]}", 38, "1:9", "this mount source is none that the policy allows"},
		"any mount where none is allowed":           {"mounts: []", "mounts: {/data: [/d, ro]}", 38, "1:9", "allowed: none"},
		"a mount that can be written":               {"mounts: [/data]", "mounts: {/data: /d}", 38, "1:9", "a writable mount"},
		"another image":                             {"images: ['rootfs:/srv/root']", "", 3, "1:9", "this image is none that the policy allows (\"host\""},
		"a root folder below one that is allowed":   {"images: ['rootfs:/srv']", "image: 'rootfs:/srv/root'", 36, "1:9", "this image is none"},
		"a capability that is not dropped":          {"capDrop: [NET_RAW]", "capDrop: [CHOWN]", 38, "1:10", "capDrop lacks"},
		"some capabilities where ALL are dropped":   {"capDrop: [ALL]", "capDrop: [NET_RAW]", 38, "1:10", "capDrop lacks"},
		"no profile":                                {"securityProfile: untrusted", "", 3, "1:18", "securityProfile is not the one"},
		"a variable that is set":                    {"env: [A]", "env: {A: b, PATH: /x}", 41, "1:6", "env sets a variable that the policy does not allow (\"PATH\""},
		"a variable that is handed in":              {"passEnv: []", "passEnv: [TOKEN]", 39, "1:10", "passEnv hands in"},
		"changes elsewhere":                         {"allowChanges: ['out/**']", "allowChanges: ['out/**', 'src/**']", 54, "1:15", "this glob permits more"},
		"changes anywhere, which is the default":    {"allowChanges: ['out/**']", "", 3, "1:15", "without allowChanges the step may change everything"},
		"a protected path under everything":         {"allowChanges: ['**']", "allowChanges: ['.github/**']", 44, "1:15", "this glob permits more"},
		"writes of a failed step that stay":         {"onFailure: discard", "onFailure: keep", 40, "1:12", "onFailure: keep"},
		"a step that is excused":                    {"continueOnError: false", "continueOnError: true", 46, "1:18", "continueOnError: true"},
		"a fault that may not be tolerated":         {"tolerate: [oom]", "tolerate: [oom, timeout]", 45, "1:11", "tolerate has a fault"},
		"any fault where none may be tolerated":     {"tolerate: false", "tolerate: [oom]", 40, "1:11", "tolerate has a fault"},
		"another exit code":                         {"expect: false", "expect: {exitCode: 3}", 37, "1:9", "expect is other than"},
		"a fault that is expected":                  {"expect: false", "expect: {fault: oom}", 37, "1:9", "expect is other than"},
		"a refusal that is expected":                {"expectDenied: false", "egressAllow: [a.example.com], expectDenied: [b.example.com]", 73, "1:15", "expectDenied makes a refusal no fault"},
		"an engine that is not allowed":             {"engine: gvisor", "engine: native", 37, "1:9", "engine is not one that the policy allows (\"native\"; allowed: gvisor)"},
		"a setup":                                   {"setup: false", "setup: make tools", 36, "1:8", "the step has a setup, and the policy allows none"},
		"a setup that reaches all":                  {"egressAllow: [a.example.com]", "setup: x", 36, "1:14", "a setup without setupEgress reaches more"},
		"a setup that reaches all, as audit does":   {"egressMode: enforce", "setup: x", 36, "1:13", "a setup without setupEgress reaches what egressMode: audit does"},
		"a setup that reaches more":                 {"egressAllow: [a.example.com]", "setup: x, setupEgress: [b.example.com]", 53, "1:14", "this rule permits more than the policy (\"b.example.com\""},
		"a setup that takes longer":                 {"timeoutS: 60", "setup: x", 36, "1:11", "the deadline of setup is more than the policy's timeoutS allows (\"120\""},
		"bytes of a setup without a bound":          {"egressMaxBytes: 10", "setup: x", 3, "1:17", "egressMaxBytes is no bound"},
		"a profile of kern":                         {"profiles: ['vcpu:a']", "profiles: ['vdisk:b']", 40, "1:11", "profiles names one that the policy does not allow (\"vdisk:b\""},
		"a required step that is not there":         {"required:\n- {id: two, run: x}", "", 0, "2:3", `the step "two" is not there`},
		"a required step that runs something else":  {"required: [{id: one, run: make test}]", "", 18, "1:12", "runs something else (\"sha256 "},
		"a required step in another language":       {"required: [{id: one, run: make lint}]", "language: python", 39, "1:12", "is in another language (\"python\"; allowed: sh)"},
		"a required script that became a command":   {"required: [{id: one, command: [make, lint]}]", "", 18, "1:12", "runs something else"},
		"a required step that is excused":           {"required: [{id: one, run: make lint}]", "continueOnError: true", 46, "1:12", "may not be excused"},
		"a required step that tolerates":            {"required: [{id: one, run: make lint}]", "tolerate: [oom]", 39, "1:12", "may tolerate no fault"},
		"a required step that is expected to fail":  {"required: [{id: one, run: make lint}]", "expect: {exitCode: 1}", 37, "1:12", "has to pass with exit code 0"},
		"a required step that is expected to fault": {"required: [{id: one, run: make lint}]", "expect: {fault: oom}", 37, "1:12", "has to pass with exit code 0"},
	} {
		t.Run(sentence, func(t *testing.T) {
			opt := testOptions(t)
			src := "steps:\n- {id: one, run: make lint, " + tc.step + "}\n"
			mustLoad(t, src, opt) // without the policy nothing is wrong with it
			opt.Policy = mustPolicy(t, tc.policy)
			_, err := Load("steps.yml", []byte(src), opt)
			errs := asErrors(err)
			if len(errs) != 1 {
				t.Fatalf("%d problems: %v", len(errs), err)
			}
			at := fmt.Sprintf("steps.yml:2:%d: ", tc.column)
			if tc.column == 0 {
				at = "steps.yml:1:1: "
			}
			lines := strings.Split(errs[0].Error(), "\n")
			if !strings.HasPrefix(lines[0], at) || !strings.Contains(lines[0], tc.what) {
				t.Errorf("%s\nwant %s...%s", lines[0], at, tc.what)
			}
			if len(lines) < 2 || !strings.HasPrefix(lines[1], "  policy.yml:"+tc.line+": the policy") {
				t.Errorf("%q, want the policy's line %s", lines[1:], tc.line)
			}
		})
	}
}

func TestWhatStandsInDefaultsIsRefusedOnceAndThere(t *testing.T) {
	opt := testOptions(t)
	opt.Policy = mustPolicy(t, "memoryMb: 1024\nallowChanges: [out]\negressAllow: []")
	_, err := Load("steps.yml", []byte("defaults: {memoryMb: 2048, allowChanges: ['**'], egressAllow: [a.example.com]}\nsteps: [{run: a}, {run: b}, {run: c, memoryMb: 16}]\n"), opt)
	if errs := asErrors(err); len(errs) != 3 || errs[0].Line != 1 || errs[2].Line != 1 {
		t.Errorf("%v", err)
	}
}

func TestAPolicyIsReadAsStrictlyAsAStepsFile(t *testing.T) {
	for sentence, tc := range map[string]struct{ src, want string }{
		"nothing":               {"", "policy.yml:1:1: the file holds nothing"},
		"only a comment":        {"# memoryMb: 1\n", "policy.yml:1:1: the file holds nothing"},
		"a key twice":           {"pids: 5\npids: 6", `policy.yml:2:1: key "pids" is there twice`},
		"an anchor":             {"pids: &a 5", "anchors are not part of a policy"},
		"a merge key":           {"<<: {pids: 5}", "merge keys are not part of a policy"},
		"a second document":     {"pids: 5\n---\npids: 6", "policy.yml:2:1: a second document"},
		"a tab":                 {"\tpids: 5", "a tab in the indentation"},
		"a number in hex":       {"pids: 0x10", "pids is not a whole number"},
		"a word that was meant": {"memory: 512", "did you mean memoryMb?"},
		"setup":                 {"setup: no", "policy.yml:1:8: setup is a text"},
		"a required step that is only named": {
			"required:\n- lint", "policy.yml:2:3: an item of required is a text"},
		"the same step required twice": {"required: [{id: a, run: x}, {id: a, run: y}]", "twice"},
		"a rule that is too broad":     {"egressAllow: ['*']", "not an egress rule"},
	} {
		t.Run(sentence, func(t *testing.T) {
			_, err := LoadPolicy("policy.yml", []byte(tc.src), testOptions(t))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
}

func TestThousandsOfStepsAreHeldToAPolicyInTime(t *testing.T) {
	opt := testOptions(t)
	opt.Policy = mustPolicy(t, "egressAllow: ['**.example.com']\nallowChanges: ['out/**']")
	var src strings.Builder
	src.WriteString("defaults:\n  egressAllow: [a.example.com, b.example.com]\n  allowChanges: [")
	for i := range 500 {
		fmt.Fprintf(&src, "'out/%d/**', ", i)
	}
	src.WriteString("]\nsteps:\n")
	for range maxSteps {
		src.WriteString("- {run: x}\n")
	}
	mustLoad(t, src.String(), opt)
}
