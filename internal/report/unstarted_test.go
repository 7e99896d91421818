package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

func TestWhatWasNotBegunFitsAndIsInert(t *testing.T) {
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("f.yml:%d:1: %s\n  hint: %s", i, attacks[i%len(attacks)], strings.Repeat(attacks[(i+7)%len(attacks)]+" ", 20)))
	}
	for _, n := range []int{0, 1, 50, 200} {
		for _, budget := range []int{1 << 10, 4 << 10, 64 << 10, SummaryBudget} {
			var b bytes.Buffer
			if err := WriteUnstarted(&b, "error", many[:n], budget); err != nil {
				t.Fatal(err)
			}
			if b.Len() > budget {
				t.Errorf("%d problems: %d bytes of %d", n, b.Len(), budget)
			}
			text := outside(t, b.String())
			if strings.Contains(text, "PWN") || len(ghatest.Commands(b.Bytes())) > 0 {
				t.Errorf("%d problems: what they quote acts:\n%s", n, text)
			}
			shown := strings.Count(b.String(), "| f.yml:")
			want := ""
			if shown < n {
				want = fmt.Sprintf("\nand %d more, which the log has\n", n-shown)
			}
			if got := strings.HasSuffix(b.String(), want); !got || want == "" && strings.Contains(b.String(), "which the log has") {
				t.Errorf("%d of %d problems are shown, and it ends %q", shown, n, b.String()[max(0, b.Len()-60):])
			}
			if budget == SummaryBudget && shown != min(n, maxUnstarted) {
				t.Errorf("with room for all, %d of %d problems are shown", shown, n)
			}
		}
	}
}

func TestUnstartedHeadline(t *testing.T) {
	for want, c := range map[string]struct {
		verdict  string
		problems []string
	}{
		"error: nothing ran":                                                       {"error", nil},
		"error: nothing ran: f.yml:1:2: x":                                         {"error", []string{"f.yml:1:2: x\n  hint: y"}},
		"error: nothing ran, for 3 problems: a":                                    {"error", []string{"a", "b", "c"}},
		"refused: nothing ran: no folder for the report":                           {"refused", []string{"no folder for the report"}},
		`no verdict: nothing ran: ## [error]x\x1b[2J`:                              {"::error::", []string{"##[error]x\x1b[2J"}},
		"error: nothing ran: " + strings.Repeat("x", 980) + " ... (20 bytes more)": {"error", []string{strings.Repeat("x", 1000)}},
	} {
		if got := UnstartedHeadline(c.verdict, c.problems); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
