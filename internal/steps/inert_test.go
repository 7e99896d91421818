package steps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/gha/ghatest"
)

// weightless are all characters that a runner's search may skip.
func weightless(yield func(rune) bool) {
	for _, table := range []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Mn, unicode.Me, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point} {
		for _, r16 := range table.R16 {
			for r := rune(r16.Lo); r <= rune(r16.Hi); r += rune(r16.Stride) {
				if !yield(r) {
					return
				}
			}
		}
		for _, r32 := range table.R32 {
			for r := rune(r32.Lo); r <= rune(r32.Hi); r += rune(r32.Stride) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// TestNothingOfAFileCanSteer: what check and plan print holds no command to a
// runner and no character that cannot be seen, whatever invisible character
// stands inside the opening of one.
func TestNothingOfAFileCanSteer(t *testing.T) {
	named := "\u0301\ufe0f\u034f\u3164\U000e0100\u200b"
	n := 0
	for r := range weightless {
		n++
		texts := []string{fmt.Sprintf("k##%c[error]evil", r), fmt.Sprintf("#%c#[error]e%cvil", r, r), fmt.Sprintf("%c:%c:error::evil", r, r)}
		if strings.ContainsRune(named, r) {
			for _, text := range texts {
				for _, src := range wrongFiles(text) {
					checkInert(t, text, src)
				}
				checkInert(t, text, rightFile(text))
			}
			continue
		}
		// There are thousands: each is tried at one place.
		text := texts[n%len(texts)]
		wrong := wrongFiles(text)
		checkInert(t, text, wrong[n/len(texts)%len(wrong)])
		checkInert(t, text, rightFile(text))
		if t.Failed() {
			t.FailNow()
		}
	}
	if n < 2000 {
		t.Fatalf("only %d characters were tried", n)
	}
}

func wrongFiles(text string) []string {
	q := yamlQuoted(text)
	return []string{
		"steps:\n  - run: x\n    " + q + ": 1\n    image: " + q + "\n    workdir: " + q + "\n    timeoutS: " + q,
		"steps:\n  - {run: x, id: " + q + "}\n  - {run: x, id: " + q + "}\n  - {run: x, needs: " + q + "}",
		"steps:\n  - run: x\n    env: {" + q + ": x}\n    mounts: {" + q + ": " + q + "}\n    egressAllow: [" + q + "]",
		"steps:\n  - run: x\n    tmpfs: {" + yamlQuoted("/a"+text) + ": 9g}",
		text,
		"steps: [" + text,
	}
}

func rightFile(text string) string {
	q := yamlQuoted(text)
	return "steps:\n  - {name: " + q + ", command: [" + q + ", " + q + "]}\n" +
		"  - {run: " + q + ", env: {A: " + q + "}, workdir: " + yamlQuoted("/workspace/"+text) + "}\n"
}

// checkInert holds what is printed of a file, right or wrong, to be inert.
func checkInert(t *testing.T, text, src string) {
	t.Helper()
	if len(ghatest.Commands([]byte(text))) == 0 && !strings.ContainsAny(text, "\t\n\r") {
		t.Fatalf("%q is no command as it is: this test would prove nothing", text)
	}
	plan, err := Load(text, []byte(src), testOptions(t))
	if err != nil {
		holdsInert(t, src, err.Error())
		return
	}
	var as bytes.Buffer
	if err := plan.WriteText(&as); err != nil {
		t.Fatal(err)
	}
	holdsInert(t, src, as.String())
	as.Reset()
	if err := plan.WriteJSON(&as); err != nil {
		t.Fatal(err)
	}
	holdsInert(t, src, as.String())
	var back struct {
		Steps []struct{ Name, Script string }
	}
	if err := json.Unmarshal(as.Bytes(), &back); err != nil || back.Steps[0].Name != plan.Steps[0].Name {
		t.Errorf("%q: the plan as JSON says %+v, %v", src, back, err)
	}
}

func holdsInert(t *testing.T, src, printed string) {
	t.Helper()
	if c := ghatest.Commands([]byte(printed)); len(c) > 0 {
		t.Errorf("of %q a runner would act on %+v in\n%s", src, c, printed)
	}
	for line := range strings.Lines(printed) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), gha.Unseen) {
			t.Errorf("of %q a character cannot be seen in %q", src, line)
		}
	}
}

// yamlQuoted is a text as YAML with every character written as an escape.
func yamlQuoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		fmt.Fprintf(&b, `\U%08x`, r)
	}
	b.WriteByte('"')
	return b.String()
}

func TestPlanAsJSONLeavesPlainSignsAlone(t *testing.T) {
	plan := mustLoad(t, `steps: [{run: "a < b && c > d # ##x"}]`, testOptions(t))
	var b bytes.Buffer
	if err := plan.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if want := `"script": "a < b && c > d # ##x"`; !strings.Contains(b.String(), want) {
		t.Errorf("no %s in\n%s", want, &b)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if plan.WriteJSON(full) == nil || plan.WriteText(full) == nil {
		t.Error("a plan that could not be written is no error")
	}
}

func TestPlanTextShowsColourCodes(t *testing.T) {
	plan := mustLoad(t, `steps: [{run: "a\e[8m; rm -r ."}]`, testOptions(t))
	var b strings.Builder
	if err := plan.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if want := `| a\x1b[8m; rm -r .`; !strings.Contains(b.String(), want) {
		t.Errorf("no %s in\n%s", want, b.String())
	}
}
