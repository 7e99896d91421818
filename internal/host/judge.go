package host

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/host/inside"
)

// facts are what is known from outside of the boxes.
type facts struct {
	token   string // of the server that may be reached
	port    string // of the host's loopback
	spaces  map[string]string
	files   []string
	kept    bool     // they were there from before the boxes until after
	calls   [2]int64 // of the listeners on loopback and in the abstract name space
	greeted int64    // how often the server that may be reached was spoken to in TLS
	reached [2]error // what came of calling the listeners ourselves
	own     bool     // the engine's boxes are to have a kernel of their own
	kernel  inside.Kernel
}

// judge says which controls were seen to work. It believes no absence: what was
// not tried, or was tried without its counterpart, was not seen.
func judge(f facts, looked, grown result) []Proof {
	list := []Proof{memory(grown), pids(looked)}
	if looked.seen == nil {
		for _, c := range controlsOf(f.own)[len(list):] {
			list = append(list, Proof{Control: c, How: looked.unread + looked.ended()})
		}
		return list
	}
	s := looked.seen
	took := func(p Proof, groups ...string) Proof {
		for _, g := range groups {
			p.Ms += s.Took[g]
		}
		for _, t := range slices.Concat(s.Refused, s.Dials, s.Packets, s.Names) {
			if about[hostOf(t.What)] == p.Control {
				p.Ms += t.Took
			}
		}
		return p
	}
	spent := func(p Proof, list []inside.Tried) Proof {
		for _, t := range list {
			p.Ms += t.Took
		}
		return p
	}
	list = append(list,
		took(allowedName(f, looked), "get"),
		took(denial(looked)),
		took(rawAddress(looked)),
		took(metadataAddress(looked)),
		took(hostLoopback(f, looked), "abstract"),
		took(capabilities(s), "capabilities"),
		took(callFilter(looked), "seccomp"),
		took(hostProcesses(f, s), "host"),
		spent(hostFiles(f, s), s.Files),
		spent(readOnlyRoot(looked), s.Written),
		took(tlsName(f, looked), "tunnel"),
	)
	if f.own {
		list = append(list, took(ownKernelOf(f, s), "kernel"))
	}
	for i := range list { // of sums of fractions
		list[i].Ms = math.Round(list[i].Ms*1000) / 1000
	}
	return list
}

// ownKernelOf compares what a kernel says of itself: the name of its build, and what
// it drew when it started.
func ownKernelOf(f facts, s *inside.Seen) Proof {
	p := Proof{Control: OwnKernel}
	in, out := s.Kernel, f.kernel
	switch {
	case in.Release == "" || in.Build == "" || out.Release == "" || out.Build == "":
		p.How = fmt.Sprintf("a kernel did not say what it is: %q %q in the box, %q %q outside", in.Release, in.Build, out.Release, out.Build)
	case in.Boot != "" && in.Boot == out.Boot:
		p.How = "the box's kernel was started when the host's was: boot " + in.Boot
	case in.Release == out.Release || in.Build == out.Build:
		p.How = fmt.Sprintf("the box's kernel is %s (%s), and the host's is %s (%s)", in.Release, in.Build, out.Release, out.Build)
	default:
		p.OK, p.How = true, fmt.Sprintf("the box's kernel is %s (%s), and the host's is %s", in.Release, in.Build, out.Release)
	}
	return p
}

// about says which control an attempt to get somewhere is for, by the host.
var about = map[string]string{
	deniedName: DeniedName, rawIPv4: RawAddress, rawIPv6: RawAddress,
	metadata4: MetadataAddress, metadata6: MetadataAddress, metadataName: MetadataAddress,
	"127.0.0.1": HostLoopback, "::1": HostLoopback, "localhost": HostLoopback, loopbackName: HostLoopback,
}

// hostOf is the host of host:port, or what is no such thing as it stands.
func hostOf(what string) string {
	if host, _, err := net.SplitHostPort(what); err == nil {
		return host
	}
	return what
}

// capped says how far a cap was in force.
func (r result) capped(what string) bool { return slices.Contains(r.enforced, what) }

// uncounted says whether this kernel keeps no count of a fault.
func (r result) uncounted(fault box.FaultType) bool {
	return slices.ContainsFunc(r.unseen, func(u string) bool { return strings.HasPrefix(u, string(fault)+":") })
}

// killed says whether somebody else than the box ended it.
func (r result) killed() bool {
	e := r.evidence
	return !e.DeadlinePassed && (e.InitKilled || e.Status != nil && e.Status.Signaled() && e.Status.Signal() == unix.SIGKILL)
}

// ran says whether the box's program was started.
func (r result) ran() bool {
	e := r.evidence
	return e.Status != nil || e.OOMKills > 0 || e.InitKilled || e.DeadlinePassed
}

// ended is how the box came to its end, for whoever wonders about the rest.
func (r result) ended() string {
	e := r.evidence
	switch {
	case e.Lost != "":
		return ": " + e.Lost
	case e.StartupFailure != "":
		return ": " + e.StartupFailure
	case e.ExecFailure != "":
		return ": " + e.ExecFailure
	case e.DeadlinePassed:
		return ": it did not end in the time it had"
	case e.Status != nil && e.Status.Exited():
		return fmt.Sprintf(": it ended with exit code %d", e.Status.ExitStatus())
	case e.Status != nil && e.Status.Signaled():
		return fmt.Sprintf(": it ended by signal %d", e.Status.Signal())
	}
	return ""
}

func ms(r result) float64 { return float64(r.took.Microseconds()) / 1000 }

func memory(r result) Proof {
	p := Proof{Control: MemoryCap, Ms: ms(r)}
	switch {
	case r.by == "":
		p.How = "no cap is in force here, and no step requires one"
	case !r.capped("memory"):
		p.How = fmt.Sprintf("%s caps no memory here", r.by)
	case !r.ran():
		p.How = "the box that was to take memory did not run" + r.ended()
	case r.evidence.OOMKills == 0 && !(r.uncounted(box.OOM) && r.killed()):
		p.How = fmt.Sprintf("a box that was to take %d MiB with a cap of %d was not stopped for it%s", 3*r.most>>20, r.most>>20, r.ended())
	case r.evidence.PeakMemory > r.most+r.most/8: // the kernel's own pages may go past it
		p.How = fmt.Sprintf("a box with a cap of %d MiB had %d", r.most>>20, r.evidence.PeakMemory>>20)
	default:
		p.OK = true
		p.How = fmt.Sprintf("%s: %d MiB, read back; a box that took more was killed by the kernel", r.by, r.most>>20)
	}
	return p
}

func pids(r result) Proof {
	p := Proof{Control: PidsCap}
	if r.seen != nil {
		p.Ms = r.seen.Took["forks"]
	}
	switch {
	case r.by == "":
		p.How = "no cap is in force here, and no step requires one"
	case !r.capped("pids"):
		p.How = fmt.Sprintf("%s caps no processes here", r.by)
	case r.seen == nil:
		p.How = r.unread + r.ended()
	case r.seen.ForkErr != "EAGAIN" || r.seen.Forked >= lookPids:
		p.How = fmt.Sprintf("a box with a cap of %d started %d processes %s", lookPids, r.seen.Forked, r.seen.ForkErr)
	case r.own && r.evidence.PidsRefused > 0:
		p.OK = true
		p.How = fmt.Sprintf("the box's own kernel: %d; after %d more processes the next one was refused; %s bounds that kernel", lookPids, r.seen.Forked, r.by)
	case r.evidence.PidsRefused == 0 && !r.uncounted(box.PidsLimit):
		p.How = "a box was refused a process, and the kernel counted no refusal"
	default:
		p.OK = true
		p.How = fmt.Sprintf("%s: %d, read back; after %d more processes the next one was refused", r.by, lookPids, r.seen.Forked)
	}
	return p
}

func allowedName(f facts, r result) Proof {
	p := Proof{Control: AllowedName, How: "through the proxy: " + answer(r.seen.Get)}
	if r.seen.Get.Text == f.token && f.token != "" {
		p.OK, p.How = true, "a server behind an allowed name answered through the proxy"
	}
	return p
}

// denial is about what the proxy and the box's resolver are asked for.
func denial(r result) Proof {
	p := Proof{Control: DeniedName}
	t, ok := find(r.seen.Refused, deniedName+":443")
	name, asked := find(r.seen.Names, deniedName)
	switch {
	case !ok || !strings.Contains(t.Text, " 403 "):
		p.How = "through the proxy: " + answer(t)
	case !denied(r.ledger, deniedName, egress.ReasonNoRule):
		p.How = "the proxy refused it and wrote down nothing"
	case !asked || name.Err == "":
		p.How = "a name server: " + answer(name)
	case !without(name.Err):
		p.How = fmt.Sprintf("a name server could be asked and did not answer (%s)", name.Err)
	default:
		p.OK = true
		p.How = fmt.Sprintf("the proxy answered 403 and wrote it down; no name server can be asked (%s)", name.Err)
	}
	return p
}

// without says whether an attempt was over at once since there is no way, and not
// for want of an answer.
func without(err string) bool {
	return slices.Contains([]string{"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT", "ECONNREFUSED", "ENOENT", "EPERM", "EACCES", "no name server"}, err)
}

// unreachable says why a place beyond the box's own network was not shown to be
// out of reach; "" if it was. Refused by somebody is no proof: somebody was there.
func unreachable(list []inside.Tried, what string) string {
	t, ok := find(list, what)
	switch {
	case !ok:
		return what + " was not tried"
	case t.Err == "":
		return what + " was reached"
	case t.Err == "ECONNREFUSED" || !without(t.Err):
		return fmt.Sprintf("%s: %s, which does not show that there is no way", what, t.Err)
	}
	return ""
}

// turnedAway says why the proxy was not seen to refuse; "" if it was.
func turnedAway(r result, what, host string, reasons ...string) string {
	t, ok := find(r.seen.Refused, what)
	if !ok || !strings.Contains(t.Text, " 403 ") {
		return "through the proxy: " + answer(t)
	}
	if !denied(r.ledger, host, reasons...) {
		return "the proxy refused " + what + " and wrote down nothing"
	}
	return ""
}

func first(why ...string) string {
	for _, w := range why {
		if w != "" {
			return w
		}
	}
	return ""
}

func rawAddress(r result) Proof {
	s := r.seen
	why := first(
		unreachable(s.Dials, rawIPv4+":443"), unreachable(s.Dials, "["+rawIPv6+"]:443"),
		unreachable(s.Packets, rawIPv4+":53"), unreachable(s.Packets, "["+rawIPv6+"]:53"),
		turnedAway(r, rawIPv4+":443", rawIPv4, egress.ReasonIPLiteral), turnedAway(r, "["+rawIPv6+"]:443", "["+rawIPv6+"]", egress.ReasonIPLiteral),
	)
	if why == "" && !slices.Equal(s.Interfaces, []string{"lo"}) {
		why = fmt.Sprintf("the box has the interfaces %s", strings.Join(s.Interfaces, ", "))
	}
	return Proof{Control: RawAddress, OK: why == "", How: first(why, "there is no way but loopback (IPv4, IPv6, TCP, UDP), and the proxy refuses addresses")}
}

func metadataAddress(r result) Proof {
	why := first(
		unreachable(r.seen.Dials, metadata4+":80"), unreachable(r.seen.Dials, "["+metadata6+"]:80"), unreachable(r.seen.Packets, metadata4+":53"), unreachable(r.seen.Packets, "["+metadata6+"]:53"),
		turnedAway(r, metadata4+":80", metadata4, egress.ReasonMetadata), turnedAway(r, "["+metadata6+"]:80", "["+metadata6+"]", egress.ReasonMetadata),
		turnedAway(r, metadataName+":80", metadataName, egress.ReasonMetadata),
	)
	return Proof{Control: MetadataAddress, OK: why == "", How: first(why, metadata4+" and "+metadata6+": no way, and the proxy refuses them, also for an allowed name that leads there")}
}

// ownCalls is how often we call a listener ourselves: before the boxes, so that it
// is known that it can be reached, and after, so that all others are counted.
const ownCalls = 2

func hostLoopback(f facts, r result) Proof {
	p := Proof{Control: HostLoopback}
	at := "127.0.0.1:" + f.port
	for i, what := range []string{"a listener on the host's loopback", "a socket in the host's abstract name space"} {
		switch {
		case f.reached[i] != nil:
			p.How = fmt.Sprintf("%s could not be reached from the host either: %v", what, f.reached[i])
			return p
		case f.calls[i] != ownCalls:
			p.How = fmt.Sprintf("%s was called from a box", what)
			return p
		}
	}
	for _, to := range []string{at, "[::1]:" + f.port} {
		if t, ok := find(r.seen.Dials, to); !ok || t.Err == "" || !without(t.Err) {
			p.How = to + ": " + answer(t)
			return p
		}
	}
	if t := r.seen.Abstract; t.What == "" || t.Err == "" || !without(t.Err) {
		p.How = "the abstract name space: " + answer(t)
		return p
	}
	p.How = first(
		turnedAway(r, at, "127.0.0.1", egress.ReasonIPLiteral), turnedAway(r, "localhost:"+f.port, "localhost", egress.ReasonNoRule),
		turnedAway(r, loopbackName+":80", loopbackName, egress.ReasonNonPublic, egress.ReasonSelf),
	)
	if p.OK = p.How == ""; p.OK {
		p.How = "a listener on the host's loopback and a socket in its abstract name space were not reached; the proxy refuses them, also for an allowed name that leads there"
	}
	return p
}

// sets are the fields of /proc/self/status with a process's capabilities.
var sets = []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

func capabilities(s *inside.Seen) Proof {
	p := Proof{Control: Capabilities}
	for _, set := range sets {
		if v := s.Status[set]; v == "" || strings.Trim(v, "0") != "" {
			p.How = fmt.Sprintf("%s is %q", set, v)
			return p
		}
	}
	if v := s.Status["NoNewPrivs"]; v != "1" {
		p.How = fmt.Sprintf("NoNewPrivs is %q", v)
		return p
	}
	if len(s.Powers) == 0 {
		p.How = "no call that takes one was tried"
		return p
	}
	var names []string
	for _, t := range s.Powers {
		if t.Err != "EPERM" && t.Err != "EACCES" && t.Err != "ENOSYS" {
			p.How = fmt.Sprintf("%s: %s", t.What, answer(t))
			return p
		}
		names = append(names, t.What)
	}
	p.OK, p.How = true, "all five sets are empty, no-new-privileges is on; refused: "+strings.Join(names, ", ")
	return p
}

func callFilter(r result) Proof {
	p := Proof{Control: Seccomp}
	s := r.seen
	if v := s.Status["Seccomp"]; v != "2" {
		p.How = fmt.Sprintf("the kernel says mode %q", v)
		return p
	}
	for _, name := range []string{"add_key", "perf_event_open"} {
		if t, ok := find(s.Calls, name); !ok || t.Err != "ENOSYS" && t.Err != "EPERM" {
			p.How = name + ": " + answer(t)
			return p
		}
	}
	if st := r.evidence.Status; r.own && st != nil && st.Exited() && st.ExitStatus() == inside.Refused {
		p.OK, p.How = true, "a filter is on; add_key, perf_event_open and unshare are refused, by a kernel that is not the host's"
		return p
	}
	if n := len(r.evidence.Escapes); n == 0 {
		p.How = "unshare was not stopped" + r.ended()
		return p
	}
	by := r.evidence.Escapes[0].Syscall
	if by != "unshare" && by != "a system call" { // kern's filter names none
		p.How = "unshare was called, and " + by + " was stopped"
		return p
	}
	p.OK, p.How = true, "a filter is on; add_key and perf_event_open are refused, unshare was stopped and told of"
	return p
}

// mostProcesses is what a probe box may have in its /proc: the first process, what an
// engine puts before it, and the probe with its own children. A host has far more.
const mostProcesses = 4

func hostProcesses(f facts, s *inside.Seen) Proof {
	p := Proof{Control: HostProcesses}
	for _, kind := range inside.SpaceKinds {
		host, in := f.spaces[kind], s.Spaces[kind]
		if !strings.HasPrefix(in, kind+":[") || !strings.HasPrefix(host, kind+":[") {
			p.How = fmt.Sprintf("the %s namespace could not be read (%q, %q)", kind, in, host)
			return p
		}
		if in == host {
			p.How = fmt.Sprintf("the %s namespace is the host's", kind)
			return p
		}
	}
	if n := len(s.Processes); n == 0 || n > mostProcesses {
		var names []string
		for _, x := range s.Processes[:min(n, 8)] {
			names = append(names, fmt.Sprintf("%d %s", x.PID, x.Program))
		}
		p.How = fmt.Sprintf("the box sees %d processes: %s", n, strings.Join(names, ", "))
		return p
	}
	p.OK, p.How = true, fmt.Sprintf("namespaces of its own (%s); the box sees %d processes, its own", strings.Join(inside.SpaceKinds, ", "), len(s.Processes))
	return p
}

func hostFiles(f facts, s *inside.Seen) Proof {
	p := Proof{Control: HostFiles}
	if len(f.files) == 0 || !f.kept {
		p.How = "what was looked for was not on the host all the time"
		return p
	}
	for _, path := range f.files {
		if t, ok := find(s.Files, path); !ok || t.Err != "ENOENT" {
			p.How = path + ": " + answer(t)
			return p
		}
	}
	p.OK, p.How = true, "a file in the host's folder for temporary files is not there"
	return p
}

func readOnlyRoot(r result) Proof {
	p, s := Proof{Control: ReadOnlyRoot}, r.seen
	for _, dir := range readOnly {
		// Not permitted is another thing: a step's own user may be.
		t, ok := find(s.Written, dir)
		if ok && r.own && dir != "/" && t.Err == "EACCES" {
			continue // gVisor looks at whose folder it is first, and that is the host's root
		}
		if !ok || t.Err != "EROFS" {
			p.How = "a file in " + dir + ": " + answer(t)
			return p
		}
	}
	p.OK, p.How = true, "no file can be made in "+strings.Join(readOnly, " and ")+" (EROFS)"
	if r.own {
		p.How = "no file can be made in " + strings.Join(readOnly, " and ")
	}
	return p
}

// tlsName is about a tunnel to an allowed name in which another server is asked for.
func tlsName(f facts, r result) Proof {
	p := Proof{Control: TLSName}
	t := r.seen.Tunnel
	switch {
	case !strings.Contains(t.Text, " 200 "): // then it was not for the name in TLS
		p.How = "a tunnel to the allowed name: " + answer(t)
	case f.greeted != 0 || t.Err == "":
		p.How = "in a tunnel to the allowed name another server was asked for, and was reached"
	case !denied(r.ledger, canaryName, egress.ReasonSNIMismatch):
		p.How = "the proxy ended a tunnel in which another server was asked for, and wrote down nothing"
	default:
		p.OK, p.How = true, "in a tunnel to the allowed name another server was asked for: the proxy ended it, passed nothing on and wrote it down"
	}
	return p
}

func find(list []inside.Tried, what string) (inside.Tried, bool) {
	for _, t := range list {
		if t.What == what {
			return t, true
		}
	}
	return inside.Tried{What: what}, false
}

func denied(ledger []egress.Record, host string, reasons ...string) bool {
	return slices.ContainsFunc(ledger, func(r egress.Record) bool {
		return r.Host == host && r.Verdict == egress.Denied && slices.Contains(reasons, r.Reason)
	})
}

// answer is what came of an attempt, in words.
func answer(t inside.Tried) string {
	switch {
	case t.Err != "":
		return t.Err
	case t.Text != "":
		return fmt.Sprintf("answered %q", t.Text)
	case t.What == "":
		return "not tried"
	}
	return t.What + ": it worked"
}
