package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Options shape every box of a Sandbox. The zero value is the closed one: the
// host's tools read-only, no network, caps that are enforced, an empty environment.
type Options struct {
	// Image is where a box's root comes from: host, rootfs:DIR, archive:FILE or an
	// image of a registry. Empty is host.
	Image string
	// Setup is a script for sh that runs once before the first call, in a box of its
	// own with network: "pip install X" puts packages where Python code finds them.
	// What it writes is there for every call and is never kept. For a call with an Env of
	// its own it runs once more, in a box that has that. SetupEgress are the
	// rules for whom it may talk to; nil is every public host.
	Setup       string
	SetupEgress []string
	// Workspace is the folder that calls share, seen by them as /workspace. Empty is a
	// new temporary one, which Close removes.
	Workspace string

	// MemoryMb, Pids and DiskMb are caps: MiB, processes and threads, MiB written to
	// the workspace by one call. 0 is 512, 256, 1024.
	MemoryMb, Pids, DiskMb int64
	// CPUs is how many processors' worth of time a call may use. 0 is no cap.
	CPUs float64
	// Timeout is the deadline of each call, by a clock outside the box. 0 is 30 s.
	Timeout time.Duration
	// AllowUncapped lets calls run where this host cannot enforce the caps on memory
	// and processes. Without it New refuses there.
	AllowUncapped bool

	// Network gives calls the host's own network, its loopback included.
	Network bool
	// EgressAllow and EgressDeny are rules for the proxy, the only way out: name,
	// name:port, *.name, **.name, tcp://name:port, preset:NAME.
	EgressAllow, EgressDeny []string

	// Env are variables of the code's. Nothing of the caller's environment is there.
	Env map[string]string
	// PassEnv names variables of the caller's to hand in, with the values that they
	// have when New is called. These are masked in every Result.
	PassEnv []string
	// Mounts are host paths to show. Those that hold credentials or the system are
	// refused.
	Mounts []Mount
	// Tmpfs are file systems in memory, path to size such as "256m". Nil is /tmp of
	// 64 MiB; an empty map is none.
	Tmpfs map[string]string
	// CapDrop are capabilities to take away. Nil is all of them.
	CapDrop []string
	// SecurityProfile is "untrusted" or empty.
	SecurityProfile string
	// AppArmor is a profile that the host has loaded, for the code to run in.
	AppArmor string
	// Profiles are those of kern's own configuration that engine kern is to use:
	// vcpu:NAME, vdisk:NAME. Other engines have none, and New refuses there.
	Profiles []string

	// MaxOutputBytes of each of stdout and stderr are kept. 0 is 64 MiB.
	MaxOutputBytes int64
	// NoTrackFiles leaves Result.Files empty.
	NoTrackFiles bool
	// AllowChanges are globs of what calls may change in the workspace. Nil is all but
	// .git, .github and the like.
	AllowChanges []string
	// KeepOnFailure keeps what a call wrote that failed.
	KeepOnFailure bool

	// DefaultsFile is a steps file with defaults and no steps: any key of a step, for
	// every call. The fields above win over it.
	DefaultsFile string
	// PolicyFile is a ceiling over all of this, from somebody who is trusted more.
	PolicyFile string

	// Prewarm keeps so many boxes ready, 64 at most, each with a booted Python that has
	// run nothing and serves one call of Python code. They are made behind, the first of
	// them by New, or with Setup after the first call, which runs that; a call that
	// changes the workspace ends those that are ready. Why none can be made is in Log.
	Prewarm int

	// Engine is auto, kern, native or another that the command knows. Empty is auto,
	// which leaves it to the key engine of DefaultsFile if there is one; that may not
	// name another than one that is named here.
	Engine string
	// KernSHA256 admits a kern binary of another build, by its sum.
	KernSHA256 string
	// RunscSHA256 admits a runsc binary of another build, by its sum.
	RunscSHA256 string
	// FreshProof proves every control anew, whatever is remembered of this boot.
	FreshProof bool
	// Log takes lines about what is done, and what calls print, each of them inert. One
	// that does not keep up loses lines, and no call waits for it. Nil is nobody.
	Log io.Writer
}

// Mount is a path of the host shown in a box.
type Mount struct {
	Source, Target string // absolute
	ReadOnly       bool
}

// BadOptions says what is wrong with options or a call; nothing ran.
type BadOptions struct {
	Problems []string // sentences that begin with the key, as the steps file has it
}

func (e *BadOptions) Error() string { return "sandbox: " + strings.Join(e.Problems, "; ") }

// Refusal says why this host cannot do what was asked for; nothing ran.
type Refusal struct {
	Cause string
	Fix   []string // what to type, each a line of a shell
}

func (e *Refusal) Error() string {
	if len(e.Fix) == 0 {
		return "sandbox: refused: " + e.Cause
	}
	return "sandbox: refused: " + e.Cause + " (try: " + strings.Join(e.Fix, "; ") + ")"
}

// document is the options and one call as a steps file, so that they are judged as
// one is, and the key that stands on each of its lines.
func (o *Options) document(id string, c *Call) (doc []byte, keys []string, err error) {
	step := map[string]any{"id": id}
	set := func(key string, v any, there bool) {
		if there {
			step[key] = v
		}
	}
	set("requireLimits", false, o.AllowUncapped)
	set("image", o.Image, o.Image != "")
	set("setup", o.Setup, o.Setup != "")
	set("setupEgress", o.SetupEgress, o.SetupEgress != nil)
	set("memoryMb", o.MemoryMb, o.MemoryMb != 0)
	set("pids", o.Pids, o.Pids != 0)
	set("diskMb", o.DiskMb, o.DiskMb != 0)
	set("cpus", o.CPUs, o.CPUs != 0)
	timeout := o.Timeout
	if c.Timeout != 0 {
		timeout = c.Timeout
	}
	set("timeoutS", timeout.Seconds(), timeout != 0)
	set("network", true, o.Network)
	set("egressAllow", o.EgressAllow, len(o.EgressAllow) > 0)
	set("egressDeny", o.EgressDeny, len(o.EgressDeny) > 0)
	env := map[string]string{}
	for _, m := range []map[string]string{o.Env, c.Env} {
		for name, value := range m {
			env[name] = value
		}
	}
	set("env", env, len(env) > 0)
	set("passEnv", o.PassEnv, len(o.PassEnv) > 0)
	mounts := map[string]any{}
	for _, m := range o.Mounts {
		if _, twice := mounts[m.Source]; twice {
			return nil, nil, &BadOptions{[]string{fmt.Sprintf("mounts: %s is there twice", m.Source)}}
		}
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		mounts[m.Source] = []string{m.Target, mode}
	}
	set("mounts", mounts, len(mounts) > 0)
	set("tmpfs", o.Tmpfs, o.Tmpfs != nil)
	set("capDrop", o.CapDrop, o.CapDrop != nil)
	set("securityProfile", o.SecurityProfile, o.SecurityProfile != "")
	set("apparmor", o.AppArmor, o.AppArmor != "")
	set("profiles", o.Profiles, len(o.Profiles) > 0)
	set("maxOutputBytes", o.MaxOutputBytes, o.MaxOutputBytes != 0)
	set("trackFiles", false, o.NoTrackFiles)
	set("allowChanges", o.AllowChanges, o.AllowChanges != nil)
	set("onFailure", steps.OnFailureKeep, o.KeepOnFailure)
	set("workdir", c.Workdir, c.Workdir != "")
	switch {
	case c.Code == "" && len(c.Command) == 0:
		return nil, nil, &BadOptions{[]string{"a call needs a command or code"}}
	case c.Code != "" && len(c.Command) > 0:
		return nil, nil, &BadOptions{[]string{"a call has a command or code, not both"}}
	case c.Code == "":
		step["command"] = c.Command
	case c.Language == Python || c.Language == "":
		step["code"] = c.Code
		set("kernel", "kernel", c.kernel)
	default:
		step["language"], step["run"] = string(c.Language), c.Code
	}
	// One key a line: what is wrong is told by its line, after those of the defaults.
	keys = slices.Sorted(maps.Keys(step))
	// JSON would put another character in the place of what is none.
	for _, k := range keys {
		if !isText(step[k]) {
			return nil, nil, &BadOptions{[]string{k + ": what is not UTF-8 cannot be handed in; write it to a file first"}}
		}
	}
	// Code, and what a program is given, may be any text: also what nobody may write
	// into a file that is reviewed.
	var b bytes.Buffer
	b.WriteString(`steps: [{`)
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i, k := range keys {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q: ", k)
		if err := enc.Encode(step[k]); err != nil { // ends the line
			return nil, nil, &BadOptions{[]string{fmt.Sprintf("%s: %v", k, err)}}
		}
	}
	b.WriteString("}]\n")
	return steps.Escaped(b.Bytes()), keys, nil
}

// isText says whether all texts of a value are UTF-8.
func isText(v any) bool {
	switch v := v.(type) {
	case string:
		return utf8.ValidString(v)
	case []string:
		return !slices.ContainsFunc(v, func(s string) bool { return !utf8.ValidString(s) })
	case map[string]string:
		for name, s := range v {
			if !utf8.ValidString(name) || !utf8.ValidString(s) {
				return false
			}
		}
	case map[string]any:
		for name, x := range v {
			if !utf8.ValidString(name) || !isText(x) {
				return false
			}
		}
	}
	return true
}

// plan is the document, judged and filled in.
func (s *Sandbox) plan(id string, c *Call) (*steps.Plan, error) {
	doc, keys, err := s.options.document(id, c)
	if err != nil {
		return nil, err
	}
	name, before := "options", bytes.Count(s.defaults, []byte("\n"))
	if s.defaults != nil {
		name = s.options.DefaultsFile
	}
	p, err := steps.Load(name, append(slices.Clone(s.defaults), doc...), s.load)
	var wrong steps.Errors
	if !errors.As(err, &wrong) {
		// The deadline of one call is none of the setup's, which would be another with it
		// and run once more.
		if err == nil && s.setupS > 0 {
			p.Steps[0].SetupTimeoutS = s.setupS
		}
		return p, err
	}
	bad := &BadOptions{}
	for _, e := range wrong {
		text := e.What
		if e.Line <= before {
			bad.Problems = append(bad.Problems, e.Error())
			continue
		}
		if at := e.Line - 1 - before; e.Policy == nil && at >= 0 && at < len(keys) && !strings.HasPrefix(text, keys[at]) {
			text = keys[at] + ": " + text
		}
		if e.Text != "" {
			text += fmt.Sprintf(" (%q)", e.Text)
		}
		if e.Allowed != "" {
			text += "; allowed: " + e.Allowed
		}
		if p := e.Policy; p != nil {
			text += fmt.Sprintf("; %s:%d:%d: %s", p.File, p.Line, p.Column, p.Says)
		}
		bad.Problems = append(bad.Problems, text)
	}
	return nil, bad
}
