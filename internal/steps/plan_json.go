package steps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// WriteJSON prints the plan for programs. In a job it goes to the log, so what a
// runner or an eye would take for something else is written as \u escapes, which
// change no value.
func (p *Plan) WriteJSON(w io.Writer) error {
	b, err := encode(p)
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	if _, err := w.Write(gha.InertJSON(nil, out.Bytes())); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// encode leaves <, > and & as they are: scripts are full of them, and nobody
// puts a plan into a page.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// MarshalJSON writes the parts that belong to package box with names that look
// like the rest.
func (p PlanStep) MarshalJSON() ([]byte, error) {
	type plain PlanStep
	type tmpfs struct {
		Target string `json:"target"`
		Bytes  int64  `json:"bytes"`
	}
	type mount struct {
		Source   string `json:"source"`
		Target   string `json:"target"`
		ReadOnly bool   `json:"readOnly"`
	}
	out := struct {
		plain
		RootDir string  `json:"rootDir,omitempty"`
		Tmpfs   []tmpfs `json:"tmpfs"`
		Mounts  []mount `json:"mounts"`
	}{plain: plain(p), RootDir: p.Root.Dir, Tmpfs: []tmpfs{}, Mounts: []mount{}}
	for _, t := range p.Tmpfs {
		out.Tmpfs = append(out.Tmpfs, tmpfs(t))
	}
	for _, m := range p.Mounts {
		out.Mounts = append(out.Mounts, mount(m))
	}
	return encode(out)
}
