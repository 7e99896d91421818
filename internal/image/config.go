package image

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Config is what an image says of how it wants to be run. A box takes its variables
// and nothing else.
type Config struct {
	Env          []string          `json:"env,omitempty"` // NAME=value
	WorkingDir   string            `json:"workingDir,omitempty"`
	User         string            `json:"user,omitempty"`
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Volumes      []string          `json:"volumes,omitempty"`
	ExposedPorts []string          `json:"exposedPorts,omitempty"`
	Healthcheck  []string          `json:"healthcheck,omitempty"`
	StopSignal   string            `json:"stopSignal,omitempty"`
	OnBuild      []string          `json:"onBuild,omitempty"`
}

const (
	maxEnv      = 1000
	maxVariable = 128<<10 - 1 // what execve takes as one
)

// parseConfig reads a configuration: what is for a box, and the sums of the layers.
func parseConfig(raw []byte) (Config, []v1.Hash, *v1.ConfigFile, error) {
	f, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return Config{}, nil, nil, refused("its configuration cannot be read: %v", err)
	}
	c := Config{
		Env: f.Config.Env, WorkingDir: f.Config.WorkingDir, User: f.Config.User, Entrypoint: f.Config.Entrypoint, Cmd: f.Config.Cmd,
		Labels: f.Config.Labels, Volumes: keys(f.Config.Volumes), ExposedPorts: keys(f.Config.ExposedPorts), StopSignal: f.Config.StopSignal, OnBuild: f.Config.OnBuild,
	}
	if h := f.Config.Healthcheck; h != nil {
		c.Healthcheck = h.Test
	}
	if len(c.Env) > maxEnv {
		return Config{}, nil, nil, refused("it sets %d variables, more than %d", len(c.Env), maxEnv)
	}
	for _, kv := range c.Env {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" || strings.ContainsRune(kv, 0) || len(kv) > maxVariable {
			return Config{}, nil, nil, refused("a variable that it sets is no NAME=value that a program can be given")
		}
	}
	if f.RootFS.Type != "" && f.RootFS.Type != "layers" {
		return Config{}, nil, nil, refused("its root is not made of layers")
	}
	for _, h := range f.RootFS.DiffIDs {
		if !digestShape().MatchString(h.String()) {
			return Config{}, nil, nil, refused("the sum of a layer is no SHA-256")
		}
	}
	return c, f.RootFS.DiffIDs, f, nil
}

func keys(m map[string]struct{}) []string {
	return slices.Sorted(maps.Keys(m))
}

// NotUsed says what of an image's configuration has no effect in a box, in the words
// of a Dockerfile. The texts are the image's.
func (c Config) NotUsed() []string {
	var out []string
	add := func(word, text string) {
		if text != "" {
			out = append(out, word+" "+text)
		}
	}
	list := func(l []string) string {
		if len(l) == 0 {
			return ""
		}
		b, err := json.Marshal(l)
		if err != nil {
			return ""
		}
		return string(b)
	}
	add("USER", c.User)
	add("WORKDIR", c.WorkingDir)
	add("ENTRYPOINT", list(c.Entrypoint))
	add("CMD", list(c.Cmd))
	add("VOLUME", list(c.Volumes))
	add("EXPOSE", strings.Join(c.ExposedPorts, " "))
	add("HEALTHCHECK", list(c.Healthcheck))
	add("STOPSIGNAL", c.StopSignal)
	add("ONBUILD", list(c.OnBuild))
	if n := len(c.Labels); n > 0 {
		names := slices.Collect(maps.Keys(c.Labels))
		sort.Strings(names)
		add("LABEL", list(names[:min(n, 8)])+more(n-8))
	}
	return out
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return " and " + strconv.Itoa(n) + " more"
}
