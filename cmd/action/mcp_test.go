package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

// An agent starts the program, talks to it over its standard streams, and ends it
// by closing them. With each engine.
func TestAnAgentsTools(t *testing.T) {
	boxtest.Boxes(t)
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			if engine == "kern" {
				boxtest.Need(t, "kern")
			}
			dir := boxtest.OpenDir(t)
			work := filepath.Join(dir, "work")
			defaults := filepath.Join(dir, "agent.yml")
			if err := os.Mkdir(work, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(defaults, []byte("defaults:\n  env: {GREETING: hello}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(toolName, "mcp", "--engine", engine, "--workspace", work, "--defaults", defaults)
			var said bytes.Buffer
			cmd.Stderr = &said
			cs, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			for _, call := range []struct {
				tool string
				args map[string]any
				want string
			}{
				{"bash", map[string]any{"command": "echo $GREETING | tee out.txt"}, "hello\n"},
				{"read", map[string]any{"path": "out.txt"}, "hello\n"},
			} {
				r, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: call.tool, Arguments: call.args})
				if err != nil {
					t.Fatalf("%s: %v\n%s", call.tool, err, said.String())
				}
				if text := r.Content[0].(*mcp.TextContent).Text; r.IsError || !strings.HasPrefix(text, call.want) {
					t.Errorf("%s: %q", call.tool, text)
				}
			}
			if err := cs.Close(); err != nil {
				t.Errorf("it ended with %v\n%s", err, said.String())
			}
			if b, err := os.ReadFile(filepath.Join(work, "out.txt")); err != nil || string(b) != "hello\n" {
				t.Errorf("%q %v", b, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
				t.Errorf("left beside the workspace: %v %v", left, err)
			}
		})
	}
	t.Run("files that a tool could write say nothing about tools", func(t *testing.T) {
		work := boxtest.OpenDir(t)
		if err := os.WriteFile(filepath.Join(work, "d.yml"), []byte("defaults: {}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"--defaults", "--policy"} {
			out, err := exec.Command(toolName, "mcp", "--workspace", work, flag, filepath.Join(work, "d.yml")).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "lies in the workspace") {
				t.Errorf("%v %s", err, out)
			}
		}
	})
}

// A client that reads no word of standard error holds no call up, and one that closes it
// ends nothing before boxes are gone.
func TestAnAgentThatReadsNoErrors(t *testing.T) {
	boxtest.Boxes(t)
	cmd := exec.Command(toolName, "mcp", "--engine", "native", "--workspace", boxtest.OpenDir(t))
	said, err := cmd.StderrPipe() // which is not read
	if err != nil {
		t.Fatal(err)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if i == 2 {
			if err := said.Close(); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		r, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "seq 100000"}})
		cancel()
		if err != nil || r.IsError {
			t.Fatalf("call %d: %+v %v", i, r, err)
		}
	}
	if err := cs.Close(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
