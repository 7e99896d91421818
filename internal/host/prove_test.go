package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/host/inside"
	"github.com/untrusted-steps/untrusted-steps/internal/kern"
	"github.com/untrusted-steps/untrusted-steps/internal/limits"
	"github.com/untrusted-steps/untrusted-steps/internal/native"
	"github.com/untrusted-steps/untrusted-steps/internal/rootfs"
)

// engines opens both engines, each where it can be had.
var engines = map[string]func(testing.TB) box.Engine{
	"native": func(t testing.TB) box.Engine {
		boxtest.Need(t, "userns", "seccomp")
		e := &native.Engine{Version: "test", View: view()}
		t.Cleanup(e.Close)
		return e
	},
	"kern": func(t testing.TB) box.Engine {
		boxtest.Need(t, "kern")
		e, err := kern.Open(context.Background(), kern.Options{Getenv: os.Getenv, View: view()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	},
}

func view() func(string, bool) rootfs.View {
	v := rootfs.HostView(rootfs.Host{Getenv: os.Getenv, Homes: []string{"/root", "/home"}})
	return func(hostname string, _ bool) rootfs.View { return v.For(hostname) }
}

func manager(t testing.TB) *limits.Manager {
	t.Helper()
	boxtest.Need(t, "limits")
	m, err := limits.Open(limits.Config{RunID: "proof" + rand.Text()[:16]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// self is this test program as a file that needs no loader, which a box whose /usr
// is another lacks.
func self(t testing.TB) string {
	t.Helper()
	path, err := boxtest.Static()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func prove(t *testing.T, e box.Engine, m *limits.Manager, alter func(*box.Spec), widen func(*egress.Proxy)) []Proof {
	t.Helper()
	list, err := Prove(context.Background(), ProofOptions{Engine: e, Limits: m, Program: self(t), alter: alter, widen: widen})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != len(controls) {
		t.Fatalf("%d proofs, want %d", len(list), len(controls))
	}
	for i, p := range list {
		if p.Control != controls[i] || p.How == "" {
			t.Errorf("proof %d is %+v, want one of %s", i, p, controls[i])
		}
	}
	return list
}

func TestEveryControlIsProvedWithEachEngine(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			list := prove(t, open(t), manager(t), nil, nil)
			if missed := Missed(list, true); missed != "" {
				t.Error(missed)
			}
			if !complete(list, false) {
				t.Error("all were seen, and it is not called complete")
			}
		})
	}
}

// weaker is an engine whose boxes somebody made weaker than they were asked for.
type weaker struct {
	box.Engine
	built func(*box.Built)
}

func (w weaker) Start(ctx context.Context, b box.Spec, p box.Placement) (*box.Built, error) {
	built, err := w.Engine.Start(ctx, b, p)
	if err == nil && w.built != nil {
		w.built(built)
	}
	return built, err
}

// TestAMissIsSeen is what makes the proof one: each control is really taken away,
// and the proof must say of it, and of nothing that still holds, that it was not
// seen.
func TestAMissIsSeen(t *testing.T) {
	cases := map[string]struct {
		spec   func(*box.Spec)
		built  func(*box.Built)
		way    func(*egress.Proxy)
		missed []string
		still  []string
	}{
		"the host's network": {
			spec:   func(s *box.Spec) { s.Network = box.NetworkHost },
			missed: []string{HostLoopback, HostProcesses, RawAddress},
			still:  []string{Capabilities, Seccomp, HostFiles},
		},
		"a capability": {
			built:  func(b *box.Built) { b.Keep = []int{18} }, // CAP_SYS_CHROOT
			missed: []string{Capabilities},
			still:  []string{RawAddress, DeniedName, HostProcesses, HostFiles},
		},
		"the host's view of control groups": {
			built:  func(b *box.Built) { b.CgroupNS = false },
			missed: []string{HostProcesses},
			still:  []string{Capabilities, RawAddress, DeniedName, HostFiles},
		},
		"the host's folder for temporary files": {
			spec: func(s *box.Spec) {
				s.Tmpfs = slices.DeleteFunc(s.Tmpfs, func(m box.Tmpfs) bool { return m.Target == "/tmp" })
				s.Mounts = append(s.Mounts, box.Mount{Source: os.TempDir(), Target: os.TempDir(), ReadOnly: true})
			},
			missed: []string{HostFiles},
			still:  []string{RawAddress, DeniedName, HostProcesses, Seccomp},
		},
		"a folder of the host that can be written to": {
			spec: func(s *box.Spec) {
				s.Mounts = append(s.Mounts, box.Mount{Source: boxtest.OpenDir(t), Target: "/usr"})
			},
			missed: []string{ReadOnlyRoot},
			still:  []string{RawAddress, DeniedName, HostProcesses, HostFiles, Seccomp, TLSName},
		},
		"a tunnel that may carry anything": {
			way: func(p *egress.Proxy) {
				for i, text := range []string{canaryName + ":80", "tcp://" + canaryName + ":443"} {
					rule, err := egress.ParseRule(text)
					if err != nil {
						t.Error(err)
					}
					if i == 0 {
						p.Policy.Allow = nil
					}
					p.Policy.Allow = append(p.Policy.Allow, rule)
				}
			},
			missed: []string{TLSName},
			still:  []string{AllowedName, DeniedName, RawAddress, ReadOnlyRoot},
		},
		"more processes than the cap": {
			// Nobody may start so many, and the group is not asked.
			spec:   func(s *box.Spec) { alterAsk(t, s, func(a *inside.Ask) { a.Forks = 8 }) },
			missed: []string{PidsCap},
			still:  []string{MemoryCap, RawAddress, Seccomp},
		},
		"less memory than the cap": {
			spec:   func(s *box.Spec) { alterAsk(t, s, func(a *inside.Ask) { a.Grow = min(a.Grow, 1<<20) }) },
			missed: []string{MemoryCap},
			still:  []string{PidsCap, RawAddress, Seccomp},
		},
		"no forbidden call": {
			spec:   func(s *box.Spec) { alterAsk(t, s, func(a *inside.Ask) { a.Escape = false }) },
			missed: []string{Seccomp},
			still:  []string{PidsCap, RawAddress, MemoryCap},
		},
		"nothing asked of the proxy": {
			spec: func(s *box.Spec) {
				alterAsk(t, s, func(a *inside.Ask) { a.Refused, a.Get, a.Tunnel = nil, "", "" })
			},
			missed: []string{AllowedName, DeniedName, RawAddress, MetadataAddress, HostLoopback, TLSName},
			still:  []string{PidsCap, Seccomp, MemoryCap, Capabilities},
		},
		"another program": {
			spec: func(s *box.Spec) {
				s.Argv = []string{"sh", "-c", `echo '{"status":{"Seccomp":"2"}} and more'`}
			},
			missed: controls,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			list := prove(t, weaker{engines["native"](t), c.built}, manager(t), c.spec, c.way)
			for _, p := range list {
				if slices.Contains(c.missed, p.Control) && p.OK {
					t.Errorf("%s is said to hold: %s", p.Control, p.How)
				}
				if slices.Contains(c.still, p.Control) && !p.OK {
					t.Errorf("%s still holds, and is said not to: %s", p.Control, p.How)
				}
			}
			if complete(list, false) {
				t.Error("it is called complete")
			}
			for _, control := range c.missed {
				if !strings.Contains(Missed(list, true), control+" (") {
					t.Errorf("%s is not among what was missed: %s", control, Missed(list, true))
				}
			}
		})
	}
}

// alterAsk changes what a probe box is asked to try.
func alterAsk(t *testing.T, s *box.Spec, change func(*inside.Ask)) {
	a, err := inside.ReadAsk(s.Argv[2])
	if err != nil {
		t.Error(err)
		return
	}
	change(a)
	s.Argv = append([]string{s.Argv[0]}, inside.Args(*a)...)
}

func TestWithoutCapsTheyAreToldAndNotMissed(t *testing.T) {
	list := prove(t, engines["native"](t), nil, nil, nil)
	for _, p := range list[:2] {
		if p.OK || !strings.Contains(p.How, "no cap is in force") {
			t.Errorf("%+v", p)
		}
	}
	if missed := Missed(list, false); missed != "" {
		t.Error(missed)
	}
	if missed := Missed(list, true); !strings.Contains(missed, MemoryCap) || !strings.Contains(missed, PidsCap) {
		t.Errorf("where caps are required, missed are %q", missed)
	}
	if complete(list, false) {
		t.Error("it would be remembered")
	}
}

func TestACancelledProofIsNone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if list, err := Prove(ctx, ProofOptions{Engine: engines["native"](t), Program: self(t)}); err == nil {
		t.Errorf("proved when told to stop: %+v", list)
	}
}

func TestNothingIsLeftOfAProof(t *testing.T) {
	temp := boxtest.OpenDir(t)
	if _, err := Prove(context.Background(), ProofOptions{Engine: engines["native"](t), Program: self(t), TempDir: temp}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
}

func BenchmarkProve(b *testing.B) {
	for name, open := range engines {
		b.Run(name, func(b *testing.B) {
			e, m := open(b), manager(b)
			for b.Loop() {
				list, err := Prove(context.Background(), ProofOptions{Engine: e, Limits: m, Program: self(b)})
				if err != nil || !complete(list, false) {
					b.Fatal(err, Missed(list, true))
				}
			}
		})
	}
}

// TestNobodyElsesCallCounts: whoever is on this machine can find the listeners and
// call them. That is no box's doing, and keeps nobody from running.
func TestNobodyElsesCallCounts(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var calls atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			text, err := os.ReadFile("/proc/net/unix")
			if err != nil {
				t.Error(err)
				return
			}
			for line := range strings.Lines(string(text)) {
				if at := strings.Index(line, "@untrusted-steps-probe-"); at >= 0 {
					if c, err := net.Dial("unix", strings.TrimSpace(line[at:])); err == nil {
						_, _ = io.WriteString(c, strings.Repeat("x", 64))
						_ = c.Close()
						calls.Add(1)
					}
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	list := prove(t, engines["native"](t), manager(t), nil, nil)
	cancel()
	wg.Wait()
	if calls.Load() == 0 {
		t.Error("control: nobody called")
	}
	if missed := Missed(list, true); missed != "" {
		t.Error(missed)
	}
}

// listening are the TCP listeners of this process, which everybody on the machine
// can find and call.
func listening(t *testing.T) (at []string) {
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(to, "socket:[]")] = true
		}
	}
	text, err := os.ReadFile("/proc/net/tcp")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			must(t, err)
			at = append(at, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	return at
}

// Another user of the machine calls whatever listens for the proof, all the time:
// with the first byte of TLS, which only a box's way out may say, or with nothing,
// to be waited for. Neither a control is missed for that, nor is there no end.
func TestStrangersWhoCallKeepNobodyFromRunning(t *testing.T) {
	e, m := engines["native"](t), manager(t)
	stop, called := make(chan struct{}), new(atomic.Int64)
	var strangers sync.WaitGroup
	var once sync.Once
	alter := func(*box.Spec) {
		once.Do(func() {
			for _, at := range listening(t) {
				for _, says := range []string{"\x16\x03\x01", ""} {
					strangers.Go(func() {
						var silent []net.Conn
						for {
							select {
							case <-stop:
								for _, c := range silent {
									c.Close()
								}
								return
							case <-time.After(20 * time.Millisecond):
							}
							c, err := net.DialTimeout("tcp", at, time.Second)
							if err != nil {
								continue
							}
							called.Add(1)
							if _, err := c.Write([]byte(says)); says != "" || err != nil {
								c.Close()
								continue
							}
							silent = append(silent, c)
						}
					})
				}
			}
		})
	}
	done := make(chan []Proof, 1)
	go func() {
		list, err := Prove(context.Background(), ProofOptions{Engine: e, Limits: m, Program: self(t), alter: alter})
		if err != nil {
			t.Error(err)
		}
		done <- list
	}()
	var list []Proof
	select {
	case list = <-done:
		close(stop)
	case <-time.After(10 * time.Second):
		t.Error("the proof does not end as long as somebody calls")
		close(stop)
		list = <-done
	}
	strangers.Wait()
	if missed := Missed(list, true); missed != "" {
		t.Error(missed)
	}
	if called.Load() == 0 {
		t.Error("nobody called")
	}
}
