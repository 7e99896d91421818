package host

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/host/inside"
	"github.com/untrusted-steps/untrusted-steps/internal/idmap"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

// Proof is one control that was, or was not, seen to work on this host.
type Proof struct {
	Control string  `json:"control"`
	OK      bool    `json:"ok"`
	How     string  `json:"how"` // what was tried, and what came of it
	Ms      float64 `json:"ms"`  // what trying it took
}

// Controls, in the order in which they are told.
const (
	MemoryCap       = "memory_cap"
	PidsCap         = "pids_cap"
	AllowedName     = "allowed_name" // the positive control of those that follow
	DeniedName      = "denied_name"
	RawAddress      = "raw_address"
	MetadataAddress = "metadata_address"
	HostLoopback    = "host_loopback"
	Capabilities    = "capabilities"
	Seccomp         = "seccomp"
	HostProcesses   = "host_processes"
	HostFiles       = "host_files"
	ReadOnlyRoot    = "read_only_root"
	TLSName         = "tls_name"
	OwnKernel       = "own_kernel" // of engines whose boxes have one
)

// controls are all of them, in that order.
var controls = []string{
	MemoryCap, PidsCap, AllowedName, DeniedName, RawAddress, MetadataAddress, HostLoopback, Capabilities, Seccomp, HostProcesses, HostFiles,
	ReadOnlyRoot, TLSName,
}

// controlsOf are those of an engine: one whose boxes have a kernel of their own shows
// that too.
func controlsOf(own bool) []string {
	if own {
		return append(slices.Clone(controls), OwnKernel)
	}
	return controls
}

// ProofOptions are what Prove builds boxes with.
type ProofOptions struct {
	Engine box.Engine
	// Limits makes control groups; nil where no step requires caps and this host
	// has none to give. That there are none is then told, and is no reason to stop.
	Limits *limits.Manager
	// Program is this program as a static file, which is shown to the boxes.
	Program string
	// TempDir takes what the boxes must not see; os.TempDir() if empty.
	TempDir string
	// Places are other folders that may hold a probe box's workspace, the best
	// first: root of a container cannot show a box what lies in the container's own
	// layers, where its folder for temporary files is.
	Places []string
	// alter changes a box before it is built; for tests, which take a control away.
	alter func(*box.Spec)
	// widen changes the way out of the box that looks; for tests too.
	widen func(*egress.Proxy)
}

// What the probe boxes may use. The first one looks around, the other one runs
// into its cap of memory: the kernel may end all of a box for that.
const (
	lookMemory = 128 << 20
	lookPids   = 32
	growMemory = 24 << 20
	// ownKernel is how much more a box may have whose kernel is its own: that counts.
	ownKernel = 160 << 20
	growPids  = 32
	probeTime = 20 // seconds; more where a kernel is to start first
	ownTime   = 90
)

// Prove tries every control. The error means that it could not be tried; whether
// all were seen to work is Missed's to say.
func Prove(ctx context.Context, o ProofOptions) ([]Proof, error) {
	if o.TempDir == "" {
		o.TempDir = os.TempDir()
	}
	// The box looks for what is in it by its full path.
	temp, err := filepath.Abs(o.TempDir)
	if err != nil {
		return nil, fmt.Errorf("find the folder for temporary files: %w", err)
	}
	o.TempDir = temp
	w, err := newOutside(o.TempDir)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := o.settle(w); err != nil {
		return nil, err
	}

	var looked, grown result
	var wg sync.WaitGroup
	wg.Go(func() { looked = o.look(ctx, w) })
	if o.Limits != nil {
		wg.Go(func() { grown = o.grow(ctx, w) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := errors.Join(looked.err, grown.err); err != nil {
		return nil, err
	}
	w.quiet()
	f := w.facts()
	f.own = o.own()
	if f.own {
		if f.kernel, err = inside.ReadKernel(); err != nil {
			return nil, fmt.Errorf("look at the host's kernel: %w", err)
		}
	}
	return judge(f, looked, grown), nil
}

// result is what came of one probe box.
type result struct {
	err      error
	seen     *inside.Seen // of the one that looks
	unread   string       // why there is none
	evidence box.Evidence
	ledger   []egress.Record
	enforced []string
	by       string
	unseen   []string // what this kernel does not count, by fault type
	own      bool     // the kernel in the box is not the host's
	most     int64    // of memory, in the box that takes more
	took     time.Duration
}

// outside is what there is on the host for boxes not to reach: a listener on its
// loopback, one in its abstract name space, a file; and a server that they may.
type outside struct {
	own      *scratch.Folder
	word     string // what the box says when it calls; nobody else knows it
	mu       sync.Mutex
	callers  map[*caller]struct{} // who has called and is being heard
	dir      string
	kept     *scratch.Folder // has the workspace, and maybe this program, where own will not do
	file     string
	token    string // what the server behind the proxy answers with
	loopback net.Listener
	abstract net.Listener
	name     string // of abstract
	calls    [2]atomic.Int64
	greeted  atomic.Int64 // how often that server was spoken to in TLS
	reached  [2]error     // what we got when we called them ourselves
	spaces   map[string]string
	workers  sync.WaitGroup
}

func newOutside(temp string) (w *outside, err error) {
	w = &outside{token: rand.Text(), word: rand.Text(), name: "untrusted-steps-probe-" + rand.Text(), spaces: inside.Spaces(), callers: map[*caller]struct{}{}}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.own, err = scratch.Make(temp, scratch.Probe); err != nil {
		return w, fmt.Errorf("make a folder for the probe boxes: %w", err)
	}
	w.dir = w.own.Path
	w.file = filepath.Join(w.dir, "not-for-boxes")
	if err = os.WriteFile(w.file, []byte(w.token), 0o644); err != nil {
		return w, err
	}
	if w.loopback, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return w, fmt.Errorf("listen on loopback: %w", err)
	}
	if w.abstract, err = net.Listen("unix", "@"+w.name); err != nil {
		return w, fmt.Errorf("listen in the abstract name space: %w", err)
	}
	for i, l := range []net.Listener{w.loopback, w.abstract} {
		w.workers.Go(func() { w.count(l, &w.calls[i]) })
		// That it can be reached is what makes it mean something that a box cannot.
		w.reached[i] = w.call(l.Addr())
	}
	return w, nil
}

// at is a path of the folder that the probe boxes' workspace is in, for this process
// alone: others may be able to change what that one lies in.
func (w *outside) at() string {
	if w.kept != nil {
		return w.kept.At()
	}
	return w.own.At()
}

func (w *outside) workspace() string {
	if w.kept != nil {
		return filepath.Join(w.kept.Path, "workspace")
	}
	return filepath.Join(w.dir, "workspace")
}

// settle makes the workspace of the probe boxes where it can be shown to them.
func (o *ProofOptions) settle(w *outside) error {
	if idmap.Needed() && !mappable(w.dir) {
		for _, place := range o.Places {
			f, err := scratch.Make(place, scratch.Probe)
			if err != nil {
				continue
			}
			if mappable(f.Path) {
				w.kept = f
				break
			}
			_ = f.Remove()
		}
	}
	if err := os.Mkdir(filepath.Join(w.at(), "workspace"), 0o755); err != nil {
		return fmt.Errorf("make a workspace for the probe boxes: %w", err)
	}
	if !idmap.Needed() || mappable(o.Program) {
		return nil
	}
	// A program in an image lies in those layers too.
	program := filepath.Join(filepath.Dir(w.workspace()), "program")
	if err := copyProgram(o.Program, filepath.Join(w.at(), "program")); err != nil {
		return fmt.Errorf("copy this program for the probe boxes: %w", err)
	}
	o.Program = program
	return nil
}

// mappable says whether what is at path can be shown under another id.
func mappable(path string) bool {
	fd, err := mappedTree(path)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

func copyProgram(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// quiet waits until all who called are counted: connections are accepted in the
// order in which they were made, so a last one of ours comes after every other.
func (w *outside) quiet() {
	for i, l := range []net.Listener{w.loopback, w.abstract} {
		w.reached[i] = errors.Join(w.reached[i], w.call(l.Addr()))
	}
	for _, x := range w.heard() {
		<-x.done
	}
}

func (w *outside) close() {
	for _, l := range []net.Listener{w.loopback, w.abstract} {
		if l != nil {
			l.Close()
		}
	}
	w.workers.Wait()
	for _, x := range w.heard() {
		x.Close()
		<-x.done
	}
	for _, f := range []*scratch.Folder{w.own, w.kept} {
		if f != nil {
			_ = f.Remove()
		}
	}
}

// wordTime is how long a caller has to say the word, which ours do at once.
const wordTime = 500 * time.Millisecond

// caller is somebody who has called, and is listened to for wordTime.
type caller struct {
	net.Conn
	done chan struct{}
}

// heard are those who are being listened to now. Whoever calls later is nobody to
// wait for: somebody may call all the time.
func (w *outside) heard() []*caller {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.callers))
}

// count counts the calls of those who know the word, the box and we. Anybody on
// this machine finds such a listener and can call it; that says nothing about a
// box, and must not be a way to keep others from running.
func (w *outside) count(l net.Listener, n *atomic.Int64) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // there may be too many of them just now
			time.Sleep(time.Millisecond)
			continue
		}
		x := &caller{c, make(chan struct{})}
		w.mu.Lock()
		w.callers[x] = struct{}{}
		w.mu.Unlock()
		go func() {
			w.hear(x, n)
			w.mu.Lock()
			delete(w.callers, x)
			w.mu.Unlock()
			close(x.done)
		}()
	}
}

func (w *outside) hear(x *caller, n *atomic.Int64) {
	defer x.Close()
	said := make([]byte, len(w.word))
	if x.SetDeadline(time.Now().Add(wordTime)) != nil {
		return
	}
	if _, err := io.ReadFull(x, said); err == nil && string(said) == w.word {
		n.Add(1)
		_, _ = x.Write([]byte{1})
	}
}

// call says the word to a listener and waits until it was counted.
func (w *outside) call(a net.Addr) error {
	c, err := net.DialTimeout(a.Network(), a.String(), 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, w.word); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return fmt.Errorf("it did not answer: %w", err)
	}
	return nil
}

// canary answers a request with the token, and counts those that begin as TLS does.
func (w *outside) canary(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 4096)
	if n, err := c.Read(b); err == nil {
		if n > 0 && b[0] == 22 { // a record of a handshake
			w.greeted.Add(1)
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(w.token), w.token)
	}
}

// Names and addresses that probe boxes ask for. The names are of a domain that
// nobody can have (RFC 6761), the address is one for documents (RFC 5737).
const (
	canaryName   = "allowed.untrusted-steps.test"
	deniedName   = "denied.untrusted-steps.test"
	metadataName = "metadata.untrusted-steps.test" // allowed, and leads to a metadata service
	loopbackName = "loopback.untrusted-steps.test" // allowed, and leads to this host
	rawIPv4      = "192.0.2.1"
	rawIPv6      = "2001:db8::1"
	metadata4    = "169.254.169.254"
	metadata6    = "fd00:ec2::254"
)

func (w *outside) ask() inside.Ask {
	_, port, _ := net.SplitHostPort(w.loopback.Addr().String())
	return inside.Ask{
		Proxy: fmt.Sprintf("127.0.0.1:%d", box.ProxyPort), Get: canaryName,
		Refused: []string{
			deniedName + ":443", rawIPv4 + ":443", "[" + rawIPv6 + "]:443", metadata4 + ":80", "[" + metadata6 + "]:80",
			"127.0.0.1:" + port, "localhost:" + port, metadataName + ":80", loopbackName + ":80",
		},
		Dial: []string{
			rawIPv4 + ":443", "[" + rawIPv6 + "]:443", metadata4 + ":80", "[" + metadata6 + "]:80", "127.0.0.1:" + port, "[::1]:" + port,
		},
		Packets:  []string{rawIPv4 + ":53", "[" + rawIPv6 + "]:53", metadata4 + ":53", "[" + metadata6 + "]:53"},
		Names:    []string{deniedName},
		Abstract: w.name, Files: []string{w.file, w.dir},
		Write: readOnly, Tunnel: canaryName + ":443", As: deniedName,
		Forks: lookPids + 8, Escape: true,
	}
}

// readOnly are folders of the box's root, the second of which is the host's own.
var readOnly = []string{"/", "/usr"}

// answers is what the names that probe boxes may ask for lead to.
var answers = map[string]string{canaryName: rawIPv4, metadataName: metadata4, loopbackName: "127.0.0.1"}

// proxy is the way out of the box that looks. A rule for a name lets nobody to
// where no rule may lead, so such names are allowed too.
func (w *outside) proxy() (*egress.Proxy, error) {
	p := egress.NewProxy(egress.Policy{}, &egress.Ledger{Step: "probe"})
	for name := range answers {
		rule, err := egress.ParseRule(name)
		if err != nil {
			return nil, fmt.Errorf("host: bug: %w", err)
		}
		p.Policy.Allow = append(p.Policy.Allow, rule)
	}
	// Nobody can answer for names of this domain, and no probe depends on a network
	// that this host may not have.
	p.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		a, err := netip.ParseAddr(answers[host])
		if err != nil {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{a}, nil
	}
	// Nor does the server listen anywhere: whoever greeted it was let through by the
	// proxy, and is no stranger on this machine.
	p.Dial = func(_ context.Context, _, addr string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(addr); host != rawIPv4 {
			return nil, errors.New("connection refused")
		}
		here, there := net.Pipe()
		w.workers.Go(func() { w.canary(there) })
		return here, nil
	}
	return p, nil
}

func (w *outside) facts() facts {
	_, port, _ := net.SplitHostPort(w.loopback.Addr().String())
	f := facts{token: w.token, port: port, spaces: w.spaces, files: []string{w.file, w.dir}, greeted: w.greeted.Load()}
	// It must be there for as long as the box looks for it.
	text, err := os.ReadFile(w.file)
	f.kept = err == nil && string(text) == w.token
	for i := range w.calls {
		f.calls[i], f.reached[i] = w.calls[i].Load(), w.reached[i]
	}
	return f
}

// look runs the box that looks around.
func (o *ProofOptions) look(ctx context.Context, w *outside) (r result) {
	p, err := w.proxy()
	if err != nil {
		return result{err: err}
	}
	if o.widen != nil {
		o.widen(p)
	}
	var out, words bytes.Buffer
	job := o.job(w, "look", inside.Args(w.ask()), limits.Caps{MemoryBytes: lookMemory + o.more(), Pids: lookPids})
	job.Proxy, job.Stdout, job.Stderr = p, &out, &limited{w: &words, left: maxWords}
	job.Spec.Network = box.NetworkAllowlist
	r = o.run(ctx, job)
	r.ledger = p.Ledger.Records()
	if r.seen, err = inside.Read(out.Bytes()); err != nil {
		r.unread = err.Error()
		if said, _, _ := strings.Cut(strings.TrimSpace(words.String()), "\n"); said != "" {
			r.unread += fmt.Sprintf(" (it said %q)", said)
		}
	}
	return r
}

// grow runs the box that takes more memory than it may.
func (o *ProofOptions) grow(ctx context.Context, w *outside) result {
	most := growMemory + o.more()
	r := o.run(ctx, o.job(w, "grow", inside.Args(inside.Ask{Grow: 3 * most}), limits.Caps{MemoryBytes: most, Pids: growPids}))
	r.most = most
	return r
}

// more is what a box needs beyond what runs in it.
func (o *ProofOptions) more() int64 {
	if o.own() {
		return ownKernel
	}
	return 0
}

func (o *ProofOptions) own() bool { return o.Engine.Info().Kernel == box.OwnKernel }

func (o *ProofOptions) job(w *outside, id string, args []string, caps limits.Caps) box.Job {
	const at = "/probe/untrusted-steps"
	limit := float64(probeTime)
	if o.own() {
		limit = ownTime
	}
	return box.Job{
		Engine: o.Engine, Stdout: io.Discard, Stderr: io.Discard, MaxOutput: 1 << 20,
		Spec: box.Spec{
			ID: "probe-" + id, Argv: append([]string{at}, args...), Workdir: box.WorkspaceTarget, Workspace: w.workspace(),
			// The word is in no argument, which everybody on the host can read.
			Env:      []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=2", "GOGC=off", inside.WordVariable + "=" + w.word},
			Mounts:   []box.Mount{{Source: o.Program, Target: at, ReadOnly: true}},
			Tmpfs:    []box.Tmpfs{{Target: "/tmp", Bytes: 1 << 20}, {Target: box.HomeTarget, Bytes: 1 << 20}},
			ShmBytes: 1 << 20, CapDrop: []string{"ALL"},
			MemoryBytes: caps.MemoryBytes, Pids: caps.Pids, TimeoutS: limit, RequireLimits: o.Limits != nil,
		},
	}
}

func (o *ProofOptions) run(ctx context.Context, j box.Job) (r result) {
	if o.alter != nil {
		o.alter(&j.Spec)
	}
	j.Group = limits.None()
	if o.Limits != nil {
		g, err := o.Limits.New(j.Spec.ID, limits.Caps{MemoryBytes: j.Spec.MemoryBytes, Pids: j.Spec.Pids})
		if err != nil {
			r.err = fmt.Errorf("make a probe box's control group: %w", err)
			return r
		}
		defer func() { r.err = errors.Join(r.err, g.Close()) }()
		j.Group, r.unseen = g, o.Limits.Unseen()
	}
	r.enforced, r.by = j.Group.Enforced(), j.Group.By()
	r.own = o.own()
	out := box.Run(ctx, j)
	r.evidence, r.took = out.Evidence, out.Startup+out.Duration
	if out.Cause != nil {
		r.err = fmt.Errorf("a probe box could not be built: %w", out.Cause)
	}
	return r
}

// Missed are the controls that were not seen to work, each with what came of
// trying it; empty if all were. Where no step requires caps, that there are none
// is told and missed by nobody.
func Missed(list []Proof, caps bool) string {
	var missed []string
	for _, p := range list {
		if !p.OK && (caps || p.Control != MemoryCap && p.Control != PidsCap) {
			missed = append(missed, p.Control+" ("+p.How+")")
		}
	}
	return strings.Join(missed, "; ")
}
