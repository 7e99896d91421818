package steps

import (
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

var (
	profileShape  = lazy.Regexp(profilePattern)
	apparmorShape = lazy.Regexp(apparmorPattern)
)

func readSetup(c *checker, k key, v value, s *step) {
	s.Setup = ""
	if v.kind == nullKind { // a step without the one of defaults
		return
	}
	text, ok := c.text(k.name, k.allowed(), v)
	if ok && strings.TrimSpace(text) == "" {
		c.wrong(v, "setup is empty", k.allowed())
	}
	s.Setup = text
}

func readSetupEgress(c *checker, k key, v value, s *step) {
	s.SetupEgress, s.setupListed = nil, v.kind != nullKind
	if s.setupListed {
		s.SetupEgress = c.allowRules(k, v)
	}
}

func readSetupTimeout(c *checker, k key, v value, s *step) { s.SetupTimeoutS = c.decimal(k, v) }
func readDepsReadonly(c *checker, k key, v value, s *step) { s.DepsReadonly = c.flag(k, v) }

func readProfiles(c *checker, k key, v value, s *step) {
	s.Profiles = c.list(k, v, func(item value) (string, bool) {
		const allowed = "vcpu:NAME or vdisk:NAME"
		name, ok := c.text("an item of profiles", allowed, item)
		switch {
		case !ok:
		case strings.HasPrefix(name, "vgpio:"):
			// Whatever kern.toml says of it: kern has it, and no box here.
			c.wrong(item, "no box is shown a device of the host, which a vgpio is all about", allowed)
			return "", false
		case !profileShape().MatchString(name):
			c.wrong(item, "not a profile of kern", allowed)
			return "", false
		}
		return name, ok
	})
}

func readAppArmor(c *checker, k key, v value, s *step) {
	s.AppArmor = ""
	if v.kind == nullKind {
		return
	}
	name, ok := c.text(k.name, k.allowed(), v)
	switch {
	case ok && !apparmorShape().MatchString(name):
		c.wrong(v, "not a name of an AppArmor profile", k.allowed())
	case name == "unconfined":
		// The kernel's word for no profile: where we are confined, it is a way out.
		c.wrong(v, "unconfined is no AppArmor profile but the lack of one", k.allowed())
	}
	s.AppArmor = name
}

func readEnforceLimits(c *checker, k key, v value, s *step) {
	if s.EnforceLimits = c.flag(k, v); !s.EnforceLimits && v.kind == boolKind {
		c.warn(v, v.text, "enforceLimits: false changes nothing: the caps are in a control group of our own; requireLimits: false is what lets a step run without them")
	}
}
