package steps

import (
	"strings"
	"testing"
)

// No box is shown a device of the host, whatever is in kern's configuration: a file
// that asks for one is wrong, with its place, also where nothing is run.
func TestNoProfileOfADevice(t *testing.T) {
	load := func(name, text string) error {
		_, err := Load(name, []byte(text), testOptions(t))
		return err
	}
	policy := func(name, text string) error {
		_, err := LoadPolicy(name, []byte(text), testOptions(t))
		return err
	}
	for name, c := range map[string]struct {
		read       func(name, text string) error
		text, want string
	}{
		"a step":    {load, "steps:\n  - run: x\n    profiles: ['vcpu:a', 'vgpio:leds']\n", "f.yml:3:26: "},
		"defaults":  {load, "defaults:\n  profiles: ['vgpio:leds']\nsteps:\n  - run: x\n", "f.yml:2:14: "},
		"no name":   {load, "steps:\n  - {run: x, profiles: ['vgpio:']}\n", "f.yml:2:25: "},
		"by policy": {policy, "profiles: ['vgpio:leds']\n", "f.yml:1:12: "},
	} {
		err := c.read("f.yml", c.text)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || !strings.Contains(err.Error(), "no box is shown a device of the host") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
