package html

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

var screenshots = flag.String("screenshots", "", "a folder for pictures of the page, light and dark")

func saved(t *testing.T, page string) (url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

func hostilePage(t *testing.T) string {
	r, files := hostile()
	o := options(r)
	o.Files = files
	return render(t, r, o)
}

const rows = `document.querySelectorAll('#%s .wide tbody tr').length`

// TestInABrowserHostileTextIsText: K, L of the catalogue, in the program that
// reads the page.
func TestInABrowserHostileTextIsText(t *testing.T) {
	b := startBrowser(t)
	url := saved(t, hostilePage(t))
	b.open(url)
	n := len(attacks)
	b.want(`window.pwned === undefined`, true)
	b.want(`document.querySelectorAll('img, iframe, link, base, form, object, embed, [onerror], [onfocus], [onload], [src], [style]').length`, 0)
	b.want(`Array.from(document.querySelectorAll('[href]')).filter((a) => !/^#(steps|requests|files|details|step-\d+(-diff)?)$/.test(a.getAttribute('href'))).length`, 0)
	b.want(`document.querySelectorAll('script').length`, 2)
	b.want(`document.querySelectorAll('details.step').length`, n)
	b.want(fmt.Sprintf(rows, "requests"), 4*n)
	b.want(fmt.Sprintf(rows, "files"), 4*n)
	// All that is folded up, too.
	b.eval(`document.querySelectorAll('details').forEach((d) => { d.open = true })`)
	b.until("every step shows its output", func() bool { return b.eval(`document.querySelectorAll('.streams pre').length`) == fmt.Sprint(n) })
	for i := range 3 {
		b.eval(fmt.Sprintf(`document.querySelectorAll('.streams').forEach((s) => s.querySelectorAll('button')[%d].click())`, i))
	}
	b.want(`document.querySelector('#step-0 pre').textContent.includes('</script><script>window.pwned=1')`, true)
	b.want(`document.querySelectorAll('#step-0 pre .added').length`, 1)
	b.want(`document.querySelectorAll('#step-0 pre .gone').length`, 2) // "--- looks like a head" is content
	b.want(`window.pwned === undefined`, true)
	if bad := b.trouble(url); len(bad) > 0 {
		t.Errorf("the page is not quiet: %.1000s", strings.Join(bad, "\n"))
	}
}

// TestInABrowserTheWallsAreReal is the control for the test above: the same texts
// as markup do act, the browser does tell, and the policy alone stops them.
func TestInABrowserTheWallsAreReal(t *testing.T) {
	b := startBrowser(t)
	hole := `<p>` + attacks[2] + `<script>window.pwned=1</script></p>`
	page := hostilePage(t)
	_, after, _ := strings.Cut(page, `<meta http-equiv="Content-Security-Policy"`)
	_, after, _ = strings.Cut(after, ">")
	before, _, _ := strings.Cut(page, `<meta http-equiv="Content-Security-Policy"`)
	url := saved(t, strings.Replace(before+after, "<main>", hole+"<main>", 1))
	b.open(url)
	b.until("the attack works where there are no walls", func() bool { return b.eval(`window.pwned === 1`) == "true" })
	if bad := b.trouble(url); !slices.ContainsFunc(bad, func(s string) bool { return strings.HasPrefix(s, "Network.requestWillBeSent") }) {
		t.Errorf("a request for an image is not seen: %q", bad)
	}
	url = saved(t, strings.Replace(page, "<main>", hole+"<main>", 1))
	b.open(url)
	b.until("the policy is seen to act", func() bool {
		return slices.ContainsFunc(b.trouble(url), func(s string) bool { return strings.Contains(s, "Content Security Policy") })
	})
	b.want(`window.pwned === undefined`, true)
	// Nor does a script that is allowed make markup of text.
	b.want(`(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return e.name } })()`, `"TypeError"`)
}

func TestInABrowserFiltersAndSearch(t *testing.T) {
	b := startBrowser(t)
	url := saved(t, fair(t))
	b.open(url)
	b.want(fmt.Sprintf(rows, "requests"), 300) // a batch
	b.want(`document.querySelector('#requests [role=status]').textContent`, `"1003 of 1003 requests, first 300 shown"`)
	b.eval(`document.querySelector('#requests .more').click()`)
	b.want(fmt.Sprintf(rows, "requests"), 600)
	b.eval(`document.querySelector('#requests input').focus()`)
	b.write("EVIL")
	b.want(`document.querySelector('#requests [role=status]').textContent`, `"2 of 1003 requests"`)
	b.want(fmt.Sprintf(rows, "requests"), 2)
	choose := `(() => { const s = document.querySelector('#%s select'); s.value = '%s'; s.dispatchEvent(new Event('change')) })()`
	b.eval(fmt.Sprintf(choose, "requests", "denied"))
	b.want(fmt.Sprintf(rows, "requests"), 1)
	b.key("Escape")
	b.want(`document.querySelector('#requests input').value`, `""`)
	b.want(fmt.Sprintf(rows, "requests"), 1) // there is one, with any name
	b.eval(fmt.Sprintf(choose, "requests", "failed"))
	b.want(fmt.Sprintf(rows, "requests"), 1)

	b.want(fmt.Sprintf(rows, "files"), 4)
	for _, c := range []struct {
		kind string
		n    int
	}{{"marked", 2}, {"deleted", 1}, {"created", 1}, {"retyped", 0}, {"all", 4}} {
		b.eval(fmt.Sprintf(choose, "files", c.kind))
		b.want(fmt.Sprintf(rows, "files"), c.n)
	}
	b.want(`Array.from(document.querySelectorAll('#files .wide tbody tr')).map((r) => r.children[1].textContent + ' ' + r.children[2].textContent).join()`,
		`"modified look first,created protected,deleted ,modified "`)

	b.want(`document.querySelector('#step-1').open`, true) // it failed
	// Of a log the end is seen first, of a diff the start.
	b.want(`(() => { const p = document.querySelector('#step-1 pre'); return p.scrollTop > 0 && p.scrollTop + p.clientHeight >= p.scrollHeight - 2 })()`, true)
	b.eval(`document.querySelector('#step-1 input[type=search]').focus()`)
	b.write("Needle")
	b.want(`document.querySelector('#step-1 [role=status]').textContent`, `"2 of 101 lines"`)
	b.want(`document.querySelectorAll('#step-1 mark').length`, 3)
	b.key("Enter")
	b.key("Enter")
	b.want(`document.querySelector('#step-1 [role=status]').textContent`, `"found place 2 of 3"`)
	b.want(`document.querySelectorAll('#step-1 mark.now').length`, 1)
	b.eval(`document.querySelector('#step-1 input[type=checkbox]').click()`)
	b.want(`document.querySelectorAll('#step-1 .line').length`, 2)
	if bad := b.trouble(url); len(bad) > 0 {
		t.Errorf("the page is not quiet: %.1000s", strings.Join(bad, "\n"))
	}
}

func TestInABrowserByKeyboard(t *testing.T) {
	b := startBrowser(t)
	url := saved(t, fair(t))
	b.open(url)
	focus := `(() => { const e = document.activeElement; return e.id || e.className || e.getAttribute('aria-label') || e.tagName })()`
	b.key("Tab")
	b.want(focus, `"skip"`)
	b.key("Enter")
	b.want(focus, `"steps"`)
	// Everything that Tab reaches shows that it has the focus, in the order of the page.
	b.eval(`window.order = []`)
	stops := 0
	for range 60 {
		b.key("Tab")
		if b.eval(`document.activeElement === document.body`) == "true" {
			break
		}
		stops++
		if style := b.eval(`(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle + ' ' + s.outlineWidth })()`); style != `"solid 3px"` {
			t.Errorf("%s has the focus and shows %s", b.eval(focus), style)
		}
		b.eval(`window.order.push(document.activeElement)`)
	}
	if stops < 15 {
		t.Errorf("Tab stops %d times only", stops)
	}
	b.want(`window.order.every((e, i) => i === 0 || (window.order[i - 1].compareDocumentPosition(e) & (Node.DOCUMENT_POSITION_FOLLOWING | Node.DOCUMENT_POSITION_CONTAINED_BY)) !== 0)`, true)

	b.eval(`document.querySelector('.steps a.to').focus()`)
	b.key("ArrowDown")
	b.want(`document.activeElement.textContent`, `"tests"`)
	b.key("ArrowDown")
	b.key("ArrowUp")
	b.key("ArrowUp")
	b.want(`document.activeElement.textContent`, `"build"`)
	b.want(`document.querySelector('#step-0').open`, false)
	b.key("Enter")
	b.until("the step is unfolded and has the focus", func() bool {
		return b.eval(`document.querySelector('#step-0').open && document.activeElement === document.querySelector('#step-0 summary') && document.querySelector('#step-0 pre') !== null`) == "true"
	})
	b.key("/")
	b.want(`document.activeElement.getAttribute('aria-label')`, `"Search the output of build"`)
	b.key("/")
	b.want(`document.activeElement.value`, `"/"`)
	b.eval(`(() => { document.activeElement.blur(); scrollTo(0, 0) })()`)
	b.key("/")
	b.want(`document.activeElement.type`, `"search"`)

	// What can be operated or gone to has a name.
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	named := 0
	for _, n := range tree.Nodes {
		role, _ := n.Role.Value.(string)
		if n.Ignored || !slices.Contains([]string{"button", "searchbox", "link", "combobox", "checkbox", "region", "search", "heading", "group", "DisclosureTriangle"}, role) {
			continue
		}
		name, _ := n.Name.Value.(string)
		if strings.TrimSpace(name) == "" && role != "group" {
			t.Errorf("a %s has no name", role)
		}
		named++
	}
	if named < 30 {
		t.Errorf("%d things with a name only", named)
	}
	// An address with a step goes there at once.
	b.open(url + "#step-2")
	b.want(`document.querySelector('#step-2').open`, true)
	// One with a diff shows it, and a link in the list of steps leads there.
	b.open(url + "#step-1-diff")
	b.want(`document.querySelector('#step-1 button[aria-pressed=true]').textContent`, `"diff"`)
	b.want(`document.querySelectorAll('#step-1 .line.about').length`, 2)
	b.want(`document.querySelector('#step-1 summary').getBoundingClientRect().top >= 0`, true) // whose diff it is
	b.open(url)
	b.want(`document.querySelector('#step-1 button[aria-pressed=true]').textContent`, `"stdout"`)
	b.eval(`document.querySelector('.steps a[href="#step-1-diff"]').click()`)
	b.until("the diff is shown", func() bool {
		return b.eval(`document.querySelector('#step-1 button[aria-pressed=true]').textContent`) == `"diff"`
	})
	b.want(`document.activeElement === document.querySelector('#step-1 summary')`, true)
}

func TestInABrowserLightAndDark(t *testing.T) {
	b := startBrowser(t)
	url := saved(t, fair(t))
	for scheme, want := range map[string]string{"light": `"rgb(255, 255, 255) rgb(27, 31, 36)"`, "dark": `"rgb(13, 17, 23) rgb(230, 237, 243)"`} {
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		b.open(url)
		b.want(`(() => { const s = getComputedStyle(document.body); return s.backgroundColor + ' ' + s.color })()`, want)
		// At any width the page itself never scrolls sideways.
		for _, width := range []int{360, 1280} {
			b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
			b.want(`document.documentElement.scrollWidth <= innerWidth`, true)
		}
		if *screenshots != "" {
			var shot struct{ Data string }
			b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
			png, err := base64.StdEncoding.DecodeString(shot.Data)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(*screenshots, "report-"+scheme+".png"), png, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestInABrowserWithoutScripts(t *testing.T) {
	b := startBrowser(t)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	url := saved(t, hostilePage(t))
	b.open(url)
	var doc struct{ Root struct{ NodeID int } }
	b.call("DOM.getDocument", nil, &doc)
	for selector, want := range map[string]int{
		".steps tbody tr": len(attacks), ".timeline rect": len(attacks), "details.step": len(attacks),
		"#requests noscript tr": 1 + maxStatic, "#files noscript tr": 1 + maxStatic, "details noscript pre": len(attacks),
		"img, iframe, [onerror], [onfocus]": 0, "script": 2,
	} {
		var found struct{ NodeIDs []int }
		b.call("DOM.querySelectorAll", map[string]any{"nodeId": doc.Root.NodeID, "selector": selector}, &found)
		if len(found.NodeIDs) != want {
			t.Errorf("%s: %d, want %d", selector, len(found.NodeIDs), want)
		}
	}
	if bad := b.trouble(url); len(bad) > 0 {
		t.Errorf("the page is not quiet: %.1000s", strings.Join(bad, "\n"))
	}
}

// TestInABrowserAFullPage: the largest page there can be is one that works.
func TestInABrowserAFullPage(t *testing.T) {
	r, files := &steps.Result{Verdict: "fail", DurationMs: 1000}, fstest.MapFS{}
	for i := range 1000 {
		s := steps.StepResult{ID: fmt.Sprintf("s%d", i), Status: "failed", DurationMs: 1000, Reason: "exit 1"}
		s.Stdout = steps.Output{Path: fmt.Sprintf("steps/s%d/stdout.log", i), Bytes: 1 << 20}
		files[s.Stdout.Path] = &fstest.MapFile{Data: []byte(strings.Repeat("0123456789012345678\n", 1<<20/20))}
		for k := range 100 {
			s.Egress = append(s.Egress, steps.EgressRecord{Host: fmt.Sprintf("h%d.example", k), Port: 443, Verdict: "denied", Reason: "no_rule"})
			s.Files = append(s.Files, steps.FileChange{Path: fmt.Sprintf("f/%d", k), Change: "created", Type: "file"})
		}
		r.Steps = append(r.Steps, s)
	}
	o := options(r)
	o.Files = files
	page := render(t, r, o)
	b := startBrowser(t)
	url := saved(t, page)
	began := time.Now()
	b.open(url)
	t.Logf("%d bytes, loaded after %v", len(page), time.Since(began).Round(time.Millisecond))
	b.want(`document.querySelectorAll('.steps tbody tr').length`, 1000)
	b.eval(`document.querySelector('#requests input').focus()`)
	b.write("h77.")
	var shown int
	if _, err := fmt.Sscanf(strings.Trim(b.eval(`document.querySelector('#requests [role=status]').textContent`), `"`), "%d of", &shown); err != nil || shown == 0 {
		t.Errorf("the filter finds %d (%v)", shown, err)
	}
	if bad := b.trouble(url); len(bad) > 0 {
		t.Errorf("the page is not quiet: %.1000s", strings.Join(bad, "\n"))
	}
}

// fair is a page of an ordinary run.
func fair(t *testing.T) string {
	t.Helper()
	var log strings.Builder
	for i := range 100 {
		fmt.Fprintf(&log, "line %d of the tests", i)
		if i == 50 {
			log.WriteString(" needle NEEDLE")
		}
		log.WriteString("\n")
	}
	log.WriteString("the last needle\n")
	build := steps.StepResult{ID: "build", Name: "Build it", Status: "passed", DurationMs: 4000, Stdout: steps.Output{Path: "steps/build/stdout.log", Bytes: 3},
		Files: []steps.FileChange{{Path: "dist/app", Change: "modified", Type: "file", Size: 10, Mode: "0755"}}, First: []string{"dist/app"}}
	tests := steps.StepResult{ID: "tests", Status: "failed", StartedMs: 1000, DurationMs: 5000, Reason: "the step ended with exit code 1",
		Stdout: steps.Output{Path: "steps/tests/stdout.log", Bytes: 3}, Patch: &steps.Patch{Path: "steps/tests/changes.patch", Bytes: 9, Files: 1},
		Files: []steps.FileChange{{Path: "a/old", Change: "deleted", Type: "file"}, {Path: ".git/hooks/x", Change: "created", Type: "file", Mode: "0755"}, {Path: "b", Change: "modified", Type: "file"}},
		Egress: []steps.EgressRecord{{Host: "evil.example", Port: 443, Protocol: "https", Verdict: "denied", Reason: "no_rule", Count: 2},
			{Host: "evil.example", Port: 80, Protocol: "http", Verdict: "failed", Reason: "resolve", Count: 1}, {Host: "good.example", Port: 443, Protocol: "https", Verdict: "allowed", Rule: "good.example", Count: 7}}}
	for i := range 1000 {
		tests.Egress = append(tests.Egress, steps.EgressRecord{Host: fmt.Sprintf("cdn%d.example", i), Port: 443, Protocol: "https", Verdict: "allowed", Rule: "*.example", Count: 1})
	}
	r := &steps.Result{Verdict: "fail", DurationMs: 6000, Steps: []steps.StepResult{build, tests, {ID: "later", Status: "skipped", Reason: "it needs tests, which did not pass"}}}
	r.Tool, r.Host = steps.Tool{Name: "untrusted-steps", Version: "1.2.3"}, steps.Host{OS: "linux", Kernel: "6.18", Arch: "amd64", Proof: []steps.Proof{{Control: "memory_cap", OK: true, How: "a probe was killed at its cap"}}}
	o := options(r)
	o.Verdict, o.Warnings = "fail: 1 of 3 steps failed: tests (exit 1); 1 skipped: later", nil
	o.Files = fstest.MapFS{"steps/build/stdout.log": &fstest.MapFile{Data: []byte("built\n")}, "steps/tests/stdout.log": &fstest.MapFile{Data: []byte(log.String())},
		"steps/tests/changes.patch": &fstest.MapFile{Data: []byte("diff --git a/b b/b\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-old\n+new\n")}}
	o.Words = func(s *steps.StepResult) Words {
		return Words{Outcome: map[string]string{"passed": "exit 0", "failed": "exit 1", "skipped": "-"}[s.Status], Reason: s.Reason, Time: "5.0 s", Memory: "80 of 512 MiB", Requests: "-", Files: fmt.Sprint(len(s.Files))}
	}
	return render(t, r, o)
}

// A message is what the protocol says it is, or nothing of the above proves much.
func TestMessagesAreRead(t *testing.T) {
	var m message
	if err := json.Unmarshal([]byte(`{"method":"Log.entryAdded","params":{"entry":{"text":"x"}},"sessionId":"s"}`), &m); err != nil || m.Method != "Log.entryAdded" || string(m.Params) != `{"entry":{"text":"x"}}` {
		t.Errorf("%+v, %v", m, err)
	}
}
