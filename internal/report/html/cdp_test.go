package html

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// patience is how long a browser gets for anything: the machine may be busy.
const patience = 60 * time.Second

// browser is a headless Chromium with one tab, driven through two pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	session string

	mu      sync.Mutex
	last    int
	answers map[int]chan message
	events  []message
	gone    chan struct{}
}

type message struct {
	ID        int             `json:"id,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// chromium is the browser's program.
func chromium() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no chromium on PATH")
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := chromium()
	need.Met(t, "chromium", err)
	home := t.TempDir()
	theirIn, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Its own sandbox needs what a container may not have. The pages are ours.
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir="+home, "--remote-debugging-pipe", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+home)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4, where it looks
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said strings.Builder
	cmd.Stderr = &said
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, to: to, answers: map[int]chan message{}, gone: make(chan struct{})}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the browser said: %.2000s", said.String())
		}
	})
	t.Cleanup(func() {
		// All of its processes, so that the folder can be removed.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		to.Close()
		<-b.gone
		from.Close()
	})
	go b.read(bufio.NewReader(from))

	var tab struct{ TargetID, SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &tab)
	b.call("Target.attachToTarget", map[string]any{"targetId": tab.TargetID, "flatten": true}, &tab)
	b.session = tab.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network", "Audits", "Accessibility"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	return b
}

// read hands on what the browser says, until it ends.
func (b *browser) read(from *bufio.Reader) {
	defer close(b.gone)
	for {
		text, err := from.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			return
		}
		b.mu.Lock()
		if m.ID == 0 {
			b.events = append(b.events, m)
		} else if c := b.answers[m.ID]; c != nil {
			c <- m
		}
		b.mu.Unlock()
	}
}

// call asks the browser for something and waits for the answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	m := message{Method: method, SessionID: b.session}
	if params != nil {
		text, err := json.Marshal(params)
		if err != nil {
			b.t.Fatal(err)
		}
		m.Params = text
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	m.ID = b.last
	b.answers[m.ID] = answer
	b.mu.Unlock()
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case m = <-answer:
	case <-b.gone:
		b.t.Fatalf("%s: the browser is gone", method)
	case <-time.After(patience):
		b.t.Fatalf("%s: no answer", method)
	}
	if m.Error != nil {
		b.t.Fatalf("%s: %s", method, m.Error.Message)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
	}
}

// seen are the events of some kinds since the last open, as the browser told.
func (b *browser) seen(methods ...string) (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.events {
		for _, want := range methods {
			if m.Method == want {
				out = append(out, m.Method+" "+string(m.Params))
			}
		}
	}
	return out
}

// open goes to a page and waits until it is loaded.
func (b *browser) open(url string) {
	b.t.Helper()
	// Another page first: an address that differs in its last part only loads nothing.
	for _, to := range []string{"about:blank", url} {
		b.mu.Lock()
		b.events = nil
		b.mu.Unlock()
		b.call("Page.navigate", map[string]any{"url": to}, nil)
		b.until("the page is loaded", func() bool { return len(b.seen("Page.loadEventFired")) > 0 })
	}
}

func (b *browser) until(what string, done func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// eval is the value of an expression in the page, as JSON has it.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return string(r.Result.Value)
}

// key presses a key, as a keyboard does.
func (b *browser) key(name string) {
	b.t.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "/": 191}
	press := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": codes[name]}
	if codes[name] == 0 {
		b.t.Fatalf("no key %s", name)
	}
	switch name {
	case "/":
		press["text"] = "/"
	case "Enter":
		press["text"] = "\r"
	}
	b.call("Input.dispatchKeyEvent", press, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": codes[name]}, nil)
}

// write types a text where the focus is.
func (b *browser) write(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text}, nil)
}

// want holds an expression to its value.
func (b *browser) want(expression string, value any) {
	b.t.Helper()
	if got := b.eval(expression); got != fmt.Sprint(value) {
		b.t.Errorf("%s is %s, want %v", expression, got, value)
	}
}

// trouble are the things a quiet page has none of: what it says on its console,
// errors, violations of its policy, and requests beyond that for itself.
func (b *browser) trouble(url string) []string {
	out := b.seen("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded", "Page.javascriptDialogOpening", "Page.windowOpen")
	own := 0
	for _, r := range b.seen("Network.requestWillBeSent") {
		if file, _, _ := strings.Cut(url, "#"); own == 0 && strings.Contains(r, file) {
			own++
			continue
		}
		out = append(out, r)
	}
	if own != 1 {
		out = append(out, "the browser did not ask for the page itself: it does not tell of requests")
	}
	return out
}
