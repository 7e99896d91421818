package steps

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
	"github.com/untrusted-steps/untrusted-steps/internal/workspace/policy"
)

// policyKey is all there is to say about one key of a policy.
type policyKey struct {
	name string
	doc  string
	// like is the key of a step whose form it has; empty is a form of its own.
	like string
	// want is what may stand there, for keys with a form of their own.
	want string
	// says puts what a policy has there into words.
	says func(*Policy) string
	read func(*checker, policyKey, value, *Policy)
	// exceeds says how a step goes beyond it.
	exceeds func(*excess)
}

func (k policyKey) allowed() string {
	if k.like != "" {
		return k.stepKey().allowed()
	}
	return k.want
}

// stepKey is the key of a step that has the same form; null is a step's way to
// ask for no bound, which a policy does by leaving the key out.
func (k policyKey) stepKey() key {
	s, _ := stepKey(k.like)
	s.null = false
	return s
}

// alike reads a key as the key of a step is read.
func alike(c *checker, k policyKey, v value, p *Policy) {
	k.stepKey().read(c, k.stepKey(), v, p.limit)
}

const (
	sha256Pattern = `^[0-9a-f]{64}$`
	// relativePattern is what rootfs: and archive: may not be followed by.
	relativePattern = `^(rootfs|archive):[^/]`
	imagePattern    = `^(host|(rootfs|archive):/.*|[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*(/\*\*)?)$`
)

var sha256Shape = lazy.Regexp(sha256Pattern)

// policyKeys is every key of a policy, in the order in which they are
// documented. One without read is part of the format and refused by name.
func policyKeys() []policyKey {
	return []policyKey{
		{name: "egressAllow", like: "egressAllow", read: readCeilingRules, exceeds: overRules,
			says: func(p *Policy) string { return "egressAllow is " + orNone(entries(p.limit.EgressAllow)) },
			doc:  "Rules as in a step. Whatever a step's egressAllow permits has to be permitted by one of these; private: true only by a rule that has it too. With this key, network: true and egressMode: audit are refused unless network or egressMode below allow them."},
		{name: "egressMode", like: "egressMode", read: alike, exceeds: overMode,
			says: func(p *Policy) string { return "egressMode is " + p.limit.EgressMode },
			doc:  "enforce forbids audit; audit allows both."},
		atMost("egressMaxBytes", func(s *step) float64 { return float64(s.EgressMaxBytes) }, "A step with a way out has to have a bound, of at most this."),
		atMost("memoryMb", func(s *step) float64 { return float64(s.MemoryMb) }, "At most this; no cap is more."),
		atMost("pids", func(s *step) float64 { return float64(s.Pids) }, "At most this; no cap is more."),
		atMost("cpus", func(s *step) float64 { return s.CPUs }, "At most this; no cap, which is a step's default, is more."),
		atMost("timeoutS", func(s *step) float64 { return s.TimeoutS }, "At most this, for each try; for a setup too."),
		atMost("diskMb", func(s *step) float64 { return float64(s.DiskMb) }, "At most this."),
		atMost("maxOutputBytes", func(s *step) float64 { return float64(s.MaxOutputBytes) }, "At most this."),
		atMost("retries", func(s *step) float64 { return float64(s.Retries) }, "At most this; 0 forbids them."),
		{name: "requireLimits", like: "requireLimits", read: alike,
			exceeds: func(x *excess) {
				x.flag(x.p.limit.RequireLimits && !x.s.RequireLimits, "requireLimits: false is more than the policy allows", "true")
			},
			says: func(p *Policy) string { return "requireLimits is " + strconv.FormatBool(p.limit.RequireLimits) },
			doc:  "true forbids a step to run without its caps in force; false allows it."},
		{name: "network", like: "network", read: alike, exceeds: overNetwork,
			says: func(p *Policy) string { return "network is " + strconv.FormatBool(p.limit.Network) },
			doc:  "false forbids the host's network; true allows it."},
		{name: "mounts", want: "a list of absolute host paths", read: readCeilingMounts, exceeds: overMounts,
			says: func(p *Policy) string { return "mounts, read-only, are " + orNone(inertAll(p.mounts, ", ")) },
			doc:  "Absolute host paths. A step may mount these and what lies below them, read-only; a writable mount is never allowed."},
		{name: "images", want: "a list of " + allowedImageRule, read: readCeilingImages, exceeds: overImage,
			says: func(p *Policy) string { return "images are " + imageTexts(p.images) },
			doc:  "Where a step's root may come from: host, rootfs:/DIR and archive:/FILE (absolute paths), and of registries REPOSITORY (any tag and digest of it), REPOSITORY:TAG (that tag, without a digest), REPOSITORY@sha256:... (that digest), or ghcr.io/owner/** (all repositories below)."},
		{name: "imageDigests", want: "true or false", read: func(c *checker, k policyKey, v value, p *Policy) { p.pinned = c.allowedOrNot(k, v) }, exceeds: overPinned,
			says: func(p *Policy) string { return "imageDigests is " + strconv.FormatBool(p.pinned) },
			doc:  "true asks for a digest wherever a step names an image of a registry; false does not."},
		{name: "capDrop", like: "capDrop", read: alike, exceeds: overCaps,
			says: func(p *Policy) string { return "capDrop has " + orNone(strings.Join(p.limit.CapDrop, ", ")) },
			doc:  "Capabilities that every step has to drop. Dropping ALL drops each."},
		{name: "securityProfile", like: "securityProfile", read: alike,
			exceeds: func(x *excess) {
				x.flag(x.s.SecurityProfile != x.p.limit.SecurityProfile, "securityProfile is not the one that the policy asks for", x.p.limit.SecurityProfile)
			},
			says: func(p *Policy) string { return "securityProfile is " + p.limit.SecurityProfile },
			doc:  "The profile every step has to have."},
		{name: "setup", want: "true or false", read: func(c *checker, k policyKey, v value, p *Policy) { p.setup = c.allowedOrNot(k, v) },
			exceeds: func(x *excess) {
				x.flag(!x.p.setup && x.s.Setup != "", "the step has a setup, and the policy allows none", "no setup")
			},
			says: func(p *Policy) string { return "setup is " + strconv.FormatBool(p.setup) },
			doc:  "false forbids a step to have a setup; true allows it. What a setup may reach is bounded by egressAllow, egressMode and network as well, and its deadline by timeoutS."},
		{name: "profiles", like: "profiles", read: alike,
			exceeds: func(x *excess) {
				for i, n := range x.s.Profiles {
					if !slices.Contains(x.p.limit.Profiles, n) {
						x.over(x.item(i), "profiles names one that the policy does not allow", n, orNone(strings.Join(x.p.limit.Profiles, ", ")))
					}
				}
			},
			says: func(p *Policy) string { return "profiles has " + orNone(strings.Join(p.limit.Profiles, ", ")) },
			doc:  "Profiles of kern that a step may name. Those that would hand out devices or folders of the host are refused in any case."},
		{name: "engine", want: "kern, native or gvisor, or a list of them", read: readCeilingEngine, exceeds: overEngine,
			says: func(p *Policy) string { return "engine is " + strings.Join(p.engines, ", ") },
			doc:  "The engine, or list of engines, that may build the boxes. Another one that a step names, or that was asked for by name, is refused; auto takes no other, and gvisor where it is the only one."},
		{name: "env", want: "a list of variable names", read: readCeilingEnv,
			exceeds: func(x *excess) {
				for i, e := range x.s.Env {
					if !slices.Contains(x.p.env, e.Name) {
						x.over(x.pair(i), "env sets a variable that the policy does not allow", e.Name, orNone(strings.Join(x.p.env, ", ")))
					}
				}
			},
			says: func(p *Policy) string { return "env has " + orNone(strings.Join(p.env, ", ")) },
			doc:  "Names of the variables that a step may set. PATH, LD_PRELOAD and their like decide what a script runs."},
		{name: "passEnv", like: "passEnv", read: alike,
			exceeds: func(x *excess) {
				for i, n := range x.s.PassEnv {
					if !slices.Contains(x.p.limit.PassEnv, n) {
						x.over(x.item(i), "passEnv hands in a variable that the policy does not allow", n, orNone(strings.Join(x.p.limit.PassEnv, ", ")))
					}
				}
			},
			says: func(p *Policy) string { return "passEnv has " + orNone(strings.Join(p.limit.PassEnv, ", ")) },
			doc:  "Names of the variables that may be handed in from the caller's environment."},
		{name: "allowChanges", like: "allowChanges", read: readCeilingChanges, exceeds: overChanges,
			says: func(p *Policy) string { return "allowChanges is " + orNone(inertAll(p.limit.AllowChanges, ", ")) },
			doc:  "Globs. What a step's allowChanges permits has to lie within these; a step that writes none may change everything, so it has to write it. A protected path (.git, .github, CODEOWNERS, ...) has to be named here too."},
		{name: "onFailure", like: "onFailure", read: alike,
			exceeds: func(x *excess) {
				x.flag(x.p.limit.OnFailure != OnFailureKeep && x.s.OnFailure == OnFailureKeep, "onFailure: keep is more than the policy allows", OnFailureDiscard)
			},
			says: func(p *Policy) string { return "onFailure is " + p.limit.OnFailure },
			doc:  "discard forbids keep; keep allows both."},
		{name: "continueOnError", like: "continueOnError", read: alike,
			exceeds: func(x *excess) {
				x.flag(!x.p.limit.ContinueOnError && x.s.ContinueOnError, "continueOnError: true is more than the policy allows", "false")
			},
			says: func(p *Policy) string { return "continueOnError is " + strconv.FormatBool(p.limit.ContinueOnError) },
			doc:  "false forbids a step to be excused; true allows it."},
		{name: "tolerate", want: "true or false, or a list of fault types", read: readCeilingTolerate,
			exceeds: func(x *excess) {
				for i, f := range x.s.Tolerate {
					if !x.p.tolerate && !slices.Contains(x.p.limit.Tolerate, f) {
						x.over(x.item(i), "tolerate has a fault that the policy does not allow to be tolerated", string(f), orNone(faultList(x.p.limit.Tolerate)))
					}
				}
			},
			says: func(p *Policy) string {
				if p.tolerate {
					return "tolerate is true"
				}
				return "tolerate has " + orNone(faultList(p.limit.Tolerate))
			},
			doc: "Fault types that may be tolerated, or true for all, or false for none."},
		{name: "expect", want: "true or false", read: func(c *checker, k policyKey, v value, p *Policy) { p.expect = c.allowedOrNot(k, v) },
			exceeds: func(x *excess) {
				x.flag(!x.p.expect && !x.s.expectsZero(), "expect is other than {exitCode: 0}, and the policy allows no other", "{exitCode: 0}")
			},
			says: func(p *Policy) string { return "expect is " + strconv.FormatBool(p.expect) },
			doc:  "false forbids a step to expect anything but exit code 0; true allows it."},
		{name: "expectDenied", want: "true or false", read: func(c *checker, k policyKey, v value, p *Policy) { p.denied = c.allowedOrNot(k, v) },
			exceeds: func(x *excess) {
				x.flag(!x.p.denied && len(x.s.ExpectDenied) > 0, "expectDenied makes a refusal no fault, which the policy does not allow", "none")
			},
			says: func(p *Policy) string { return "expectDenied is " + strconv.FormatBool(p.denied) },
			doc:  "false forbids expectDenied; true allows it."},
		{name: "required", want: allowedRequired, read: readRequired,
			says: func(*Policy) string { return "the step is required" },
			doc:  "Steps that have to be in the file and run what is said here: {id: ID, sha256: HEX}, the sum that plan shows, or {id: ID, run: SCRIPT} or {id: ID, command: [...]}; with language where that is not sh. A required step may not be excused by continueOnError, tolerate or expect."},
	}
}

const allowedRequired = "a list of {id: ID, sha256: HEX}, {id: ID, run: SCRIPT} or {id: ID, command: [...]}"

func policyKeyOf(name string) (policyKey, bool) {
	for _, k := range policyKeys() {
		if k.name == name {
			return k, true
		}
	}
	return policyKey{}, false
}

// atMost is a number that is a bound in a step and a bound of bounds here. In
// both, 0 is no bound, but for what a step can have none of.
func atMost(name string, of func(*step) float64, doc string) policyKey {
	show := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	return policyKey{name: name, like: name, read: alike, doc: doc,
		says: func(p *Policy) string { return name + " is at most " + show(of(p.limit)) },
		exceeds: func(x *excess) {
			have, most := of(x.s), of(x.p.limit)
			if name == "timeoutS" && x.s.Setup != "" && x.s.setupTimeout() > most {
				x.over(x.s.place("setup"), "the deadline of setup is more than the policy's timeoutS allows", show(x.s.setupTimeout()), "at most "+show(most), "write setupTimeoutS")
			}
			switch {
			case name == "egressMaxBytes" && len(x.s.EgressAllow) == 0 && x.s.EgressMode != ModeAudit && x.s.Setup == "":
			case have == 0 && name != "retries":
				x.over(x.place(), name+" is no bound, which is more than the policy allows", "", "at most "+show(most))
			case have > most:
				x.over(x.place(), name+" is more than the policy allows", show(have), "at most "+show(most))
			}
		}}
}

// items is list for a key with a form of its own.
func (c *checker) items(k policyKey, v value, each func(value) (string, bool)) []string {
	if v.kind != listKind {
		c.mistyped(k.name, v, k.want)
		return nil
	}
	return c.list(key{name: k.name}, v, each)
}

func (c *checker) allowedOrNot(k policyKey, v value) bool {
	return c.flag(key{name: k.name, words: []string{"true", "false"}}, v)
}

func readCeilingRules(c *checker, k policyKey, v value, p *Policy) {
	alike(c, k, v, p)
	rules, err := expand(p.limit.EgressAllow, c.parseEntry)
	if err != nil { // each was read before
		c.wrong(v, "these rules cannot be read: "+inertWords(err.Error()), allowedRule)
	}
	p.rules = rules
}

func readCeilingChanges(c *checker, k policyKey, v value, p *Policy) {
	before := len(c.errs)
	alike(c, k, v, p)
	if len(c.errs) > before {
		return
	}
	var err error
	if p.changes, err = policy.Compile(p.limit.AllowChanges); err != nil {
		c.wrong(v, "not globs that can be used: "+inertWords(err.Error()), allowedGlob)
	}
}

func readCeilingMounts(c *checker, k policyKey, v value, p *Policy) {
	c.items(k, v, func(item value) (string, bool) {
		path, ok := c.text("an item of mounts", "an absolute host path", item)
		switch {
		case !ok:
		case badPath(path) != "":
			c.wrong(item, "an item of mounts "+badPath(path), "an absolute host path")
		case !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), ".."):
			c.wrong(item, "an item of mounts is not an absolute path without ..", "an absolute host path")
		default:
			p.mounts = append(p.mounts, c.realPath(path))
			return path, true
		}
		return "", false
	})
}

func readCeilingEngine(c *checker, k policyKey, v value, p *Policy) {
	if v.kind != listKind {
		if w, ok := c.word(k.name, engineWords, v); ok {
			p.engines = []string{w}
		}
		return
	}
	p.engines = c.items(k, v, func(item value) (string, bool) { return c.word("an item of engine", engineWords, item) })
	if len(v.items) == 0 {
		c.wrong(v, "engine allows none, so nothing could ever run", k.want)
	}
}

func readCeilingEnv(c *checker, k policyKey, v value, p *Policy) {
	p.env = c.items(k, v, func(item value) (string, bool) {
		name, ok := c.text("an item of env", "a name of a variable", item)
		if ok && !envShape().MatchString(name) {
			c.wrong(item, "not a name of a variable", "letters, digits and _, no digit first")
			return "", false
		}
		return name, ok
	})
}

func readCeilingTolerate(c *checker, k policyKey, v value, p *Policy) {
	if v.kind == boolKind {
		p.tolerate = c.allowedOrNot(k, v)
		return
	}
	tolerate, _ := stepKey("tolerate")
	tolerate.read(c, tolerate, v, p.limit)
}

func readRequired(c *checker, k policyKey, v value, p *Policy) {
	if v.kind != listKind {
		c.mistyped(k.name, v, k.want)
		return
	}
	if len(v.items) > maxSteps {
		c.add(v.pos, "too many required steps", strconv.Itoa(len(v.items)), fmt.Sprintf("at most %d", maxSteps))
		return
	}
	seen := map[string]bool{}
	for _, item := range v.items {
		r, ok := c.requiredStep(item)
		switch {
		case !ok:
		case seen[r.id]:
			c.wrong(item, "required lists the step "+quoted(r.id)+" twice", "each once")
		default:
			seen[r.id] = true
			p.required = append(p.required, r)
		}
	}
}

// requiredStep reads one item of required. That a step of that name is there
// says nothing as long as it may run something else, so what it runs is needed.
func (c *checker) requiredStep(item value) (r required, ok bool) {
	if item.kind != mapKind {
		c.mistyped("an item of required", item, allowedRequired, "untrusted-steps plan FILE shows the sha256 of each step")
		return r, false
	}
	before := len(c.errs)
	var as step
	r = required{at: item.pos, language: "sh"}
	what := 0
	for _, p := range item.pairs {
		name := p.key.text
		k, _ := stepKey(name)
		switch name {
		case "id":
			k.read(c, k, p.val, &as)
			r.id = as.ID
		case "run", "command":
			what++
			k.read(c, k, p.val, &as)
		case "language":
			k.read(c, k, p.val, &as)
			r.language = as.Language
		case "sha256":
			what++
			sum, good := c.text("sha256", "64 hex digits", p.val)
			if good && !sha256Shape().MatchString(sum) {
				c.wrong(p.val, "not a SHA-256", "64 hex digits, small letters")
			}
			r.sum = sum
		default:
			c.unknown(p.key, " in required", []string{"id", "sha256", "run", "command", "language"})
		}
	}
	switch {
	case len(c.errs) > before:
		return r, false
	case r.id == "" || what != 1:
		c.wrong(item, "a required step has an id and exactly one of sha256, run, command", allowedRequired, "untrusted-steps plan FILE shows the sha256 of each step")
		return r, false
	}
	if r.sum == "" {
		r.sum = as.digest()
	}
	return r, true
}

func entries(list rules) string {
	var out []string
	for _, e := range list {
		out = append(out, inert(e.String()))
	}
	return someOf(out)
}

func faultList(list []box.FaultType) string {
	var out []string
	for _, f := range list {
		out = append(out, string(f))
	}
	return strings.Join(out, ", ")
}
