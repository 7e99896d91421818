package main

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// TestLive: what a step prints is in the log while it runs, not when it ends.
func TestLive(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		r := prepare(t, engine, "steps: [{id: one, timeoutS: 20, mounts: {TELL: [/tell, ro]}, run: 'echo early; until [ -e /tell/go ]; do sleep 0.05; done; echo late'}]")
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		r.cmd.Stdout = write
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		write.Close()
		var seen []string
		for lines := bufio.NewScanner(read); lines.Scan(); {
			if line := lines.Text(); strings.HasPrefix(line, "one | ") {
				seen = append(seen, line)
				// The step waits for this: it has not ended.
				r.tell("go")
			}
		}
		if code := r.end(); code != exitPass {
			t.Errorf("exit status %d: the step has waited in vain for its own output to be read\n%s", code, &r.log)
		}
		if got := strings.Join(seen, ", "); got != "one | early, one | late" {
			t.Errorf("the log has %q", got)
		}
	})
}
