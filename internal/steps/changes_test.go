package steps

import (
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

func TestAResultSaysHowMuchTheStepMightWrite(t *testing.T) {
	if got := newStepResult(PlanStep{DiskMb: 7}, box.Info{}).Limits.DiskMb; got != 7 {
		t.Errorf("diskMb is %d", got)
	}
}

// What Load accepts can be compiled when the step is over, and the plan shows it.
func TestGlobsOfAPlanCompile(t *testing.T) {
	plan := mustLoad(t, "defaults: {allowChanges: ['a/**', '{b,c}/*']}\nsteps: [{run: x}, {run: x, allowChanges: []}, {run: x, allowChanges: [\"x\\e31\", '**/*']}]", testOptions(t))
	for _, s := range plan.Steps {
		if _, err := policy.Compile(s.AllowChanges); err != nil {
			t.Error(err)
		}
	}
	var b strings.Builder
	if err := plan.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- a/**\n", "- {b,c}/*\n", "changes    none allowed\n", "- **/* (but in .git, ", `- "x\x1b31"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// The package that judges links has its own word for the workspace in the box.
func TestTheWorkspaceHasOnePlaceInABox(t *testing.T) {
	p, err := policy.Compile([]string{"**"})
	if err != nil {
		t.Fatal(err)
	}
	c := workspace.Change{Path: "x", Change: workspace.Created, Type: "symlink", Mode: "0777", Target: box.WorkspaceTarget + "/y"}
	v := p.Judge([]workspace.Change{c}, policy.Env{})
	if len(v.Violations) != 1 || !strings.Contains(v.Violations[0].Message, "inside the box") {
		t.Errorf("%+v", v.Violations)
	}
}

// A list that comes to too much is refused at once, however it is written.
func TestAbsurdGlobsAreRefusedQuickly(t *testing.T) {
	one := "'" + strings.Repeat("{a,b}", 30) + "',"
	src := "steps:\n- run: x\n  allowChanges: [" + strings.Repeat(one, 2) + strings.Repeat("a,", 2000) + "]\n"
	if _, err := Load("steps.yml", []byte(src), testOptions(t)); err == nil {
		t.Error("accepted")
	}
}
