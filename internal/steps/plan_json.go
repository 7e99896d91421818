package steps

import "encoding/json"

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
	return json.Marshal(out)
}
