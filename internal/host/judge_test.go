package host

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/host/inside"
)

// good is what a host that holds everything shows.
func good() (facts, result, result) {
	f := facts{token: "word", port: "4444", files: []string{"/tmp/x"}, kept: true, calls: [2]int64{ownCalls, ownCalls}, spaces: map[string]string{}}
	s := &inside.Seen{
		Get:        inside.Tried{What: canaryName, Text: "word"},
		Names:      []inside.Tried{{What: deniedName, Err: "ENOENT"}},
		Abstract:   inside.Tried{What: "@x", Err: "ECONNREFUSED"},
		Interfaces: []string{"lo"},
		Status:     map[string]string{"NoNewPrivs": "1", "Seccomp": "2"},
		Powers:     []inside.Tried{{What: "chroot", Err: "EPERM"}},
		Calls:      []inside.Tried{{What: "add_key", Err: "ENOSYS"}, {What: "perf_event_open", Err: "ENOSYS"}},
		Spaces:     map[string]string{},
		Processes:  []inside.Process{{PID: 1, Program: "init"}, {PID: 2, Program: "probe"}},
		Files:      []inside.Tried{{What: "/tmp/x", Err: "ENOENT"}},
		Written:    []inside.Tried{{What: "/", Err: "EROFS"}, {What: "/usr", Err: "EROFS"}},
		Tunnel:     inside.Tried{What: canaryName + ":443", Text: "HTTP/1.1 200 Connection established", Err: "remote error: tls: unrecognized name"},
		Forked:     20, ForkErr: "EAGAIN", Took: map[string]float64{"forks": 3},
	}
	for _, set := range sets {
		s.Status[set] = "0000000000000000"
	}
	for _, kind := range inside.SpaceKinds {
		f.spaces[kind], s.Spaces[kind] = kind+":[1]", kind+":[2]"
	}
	for _, to := range []string{rawIPv4 + ":443", "[" + rawIPv6 + "]:443", metadata4 + ":80", "[" + metadata6 + "]:80"} {
		s.Dials = append(s.Dials, inside.Tried{What: to, Err: "ENETUNREACH"})
	}
	for _, to := range []string{"127.0.0.1:4444", "[::1]:4444"} {
		s.Dials = append(s.Dials, inside.Tried{What: to, Err: "ECONNREFUSED"})
	}
	for _, to := range []string{rawIPv4 + ":53", "[" + rawIPv6 + "]:53", metadata4 + ":53", "[" + metadata6 + "]:53"} {
		s.Packets = append(s.Packets, inside.Tried{What: to, Err: "ENETUNREACH"})
	}
	var ledger []egress.Record
	for _, x := range []struct {
		to, host, reason string
	}{
		{deniedName + ":443", deniedName, egress.ReasonNoRule},
		{rawIPv4 + ":443", rawIPv4, egress.ReasonIPLiteral},
		{"[" + rawIPv6 + "]:443", "[" + rawIPv6 + "]", egress.ReasonIPLiteral},
		{metadata4 + ":80", metadata4, egress.ReasonMetadata},
		{"[" + metadata6 + "]:80", "[" + metadata6 + "]", egress.ReasonMetadata},
		{"127.0.0.1:4444", "127.0.0.1", egress.ReasonIPLiteral},
		{"localhost:4444", "localhost", egress.ReasonNoRule},
		{metadataName + ":80", metadataName, egress.ReasonMetadata},
		{loopbackName + ":80", loopbackName, egress.ReasonNonPublic},
	} {
		s.Refused = append(s.Refused, inside.Tried{What: x.to, Text: "HTTP/1.1 403 Forbidden"})
		ledger = append(ledger, egress.Record{Host: x.host, Verdict: egress.Denied, Reason: x.reason})
	}
	ledger = append(ledger, egress.Record{Host: canaryName, Verdict: egress.Denied, Reason: egress.ReasonSNIMismatch})
	killed := syscall.WaitStatus(9)
	both := []string{"memory", "pids"}
	looked := result{
		seen: s, ledger: ledger, enforced: both, by: "cgroup2",
		evidence: box.Evidence{PidsRefused: 1, Escapes: []box.Escape{{Syscall: "unshare", Program: "untrusted-steps"}}},
	}
	grown := result{enforced: both, by: "cgroup2", took: 20 * time.Millisecond, most: growMemory, evidence: box.Evidence{OOMKills: 1, PeakMemory: growMemory, Status: &killed}}
	return f, looked, grown
}

func TestJudge(t *testing.T) {
	f, looked, grown := good()
	if missed := Missed(judge(f, looked, grown), true); missed != "" {
		t.Fatalf("control: of a good host was missed: %s", missed)
	}
	type world struct {
		f             *facts
		s             *inside.Seen
		looked, grown *result
	}
	dial := func(to, err string) func(world) {
		return func(w world) {
			for i := range w.s.Dials {
				if w.s.Dials[i].What == to {
					w.s.Dials[i].Err = err
				}
			}
		}
	}
	refused := func(to, text string) func(world) {
		return func(w world) {
			for i := range w.s.Refused {
				if w.s.Refused[i].What == to {
					w.s.Refused[i].Text = text
				}
			}
		}
	}
	unwritten := func(host string) func(world) {
		return func(w world) {
			w.looked.ledger = slices.DeleteFunc(w.looked.ledger, func(r egress.Record) bool { return r.Host == host })
		}
	}
	for name, c := range map[string]struct {
		change func(world)
		missed []string
	}{
		"memory was not stopped":   {func(w world) { w.grown.evidence.OOMKills = 0 }, []string{MemoryCap}},
		"memory is not capped":     {func(w world) { w.grown.enforced = []string{"pids"} }, []string{MemoryCap}},
		"more memory than the cap": {func(w world) { w.grown.evidence.PeakMemory = 2 * growMemory }, []string{MemoryCap}},
		"nothing is capped":        {func(w world) { *w.grown = result{}; w.looked.by, w.looked.enforced = "", nil }, []string{MemoryCap, PidsCap}},
		"uncounted memory, ended by the clock": {func(w world) {
			w.grown.unseen = []string{"oom: not counted"}
			w.grown.evidence.OOMKills = 0
			w.grown.evidence.DeadlinePassed = true
		}, []string{MemoryCap}},
		"uncounted memory, killed":      {func(w world) { w.grown.unseen = []string{"oom: not counted"}; w.grown.evidence.OOMKills = 0 }, nil},
		"every process was started":     {func(w world) { w.s.ForkErr, w.s.Forked = "", lookPids+8 }, []string{PidsCap}},
		"refused for another reason":    {func(w world) { w.s.ForkErr = "ENOMEM" }, []string{PidsCap}},
		"a refusal that nobody counted": {func(w world) { w.looked.evidence.PidsRefused = 0 }, []string{PidsCap}},
		"one that this kernel counts not": {func(w world) {
			w.looked.evidence.PidsRefused = 0
			w.looked.unseen = []string{"pids_limit: not counted"}
		}, nil},
		"processes are not capped":                {func(w world) { w.looked.enforced = []string{"memory"} }, []string{PidsCap}},
		"another answer":                          {func(w world) { w.s.Get.Text = "a portal's page" }, []string{AllowedName}},
		"no token":                                {func(w world) { w.f.token, w.s.Get.Text = "", "" }, []string{AllowedName}},
		"the denied name was let through":         {refused(deniedName+":443", "HTTP/1.1 200 Connection established"), []string{DeniedName}},
		"a 403 in a reason only":                  {refused(deniedName+":443", "HTTP/1.1 502 not 403"), []string{DeniedName}},
		"the denied name is in no ledger":         {unwritten(deniedName), []string{DeniedName}},
		"a name server answered":                  {func(w world) { w.s.Names[0] = inside.Tried{What: deniedName, Text: "answered"} }, []string{DeniedName}},
		"a name server was only slow":             {func(w world) { w.s.Names[0].Err = "timeout" }, []string{DeniedName}},
		"no name server was looked for":           {func(w world) { w.s.Names = nil }, []string{DeniedName}},
		"an address answered":                     {dial(rawIPv4+":443", ""), []string{RawAddress}},
		"an address refused":                      {dial(rawIPv4+":443", "ECONNREFUSED"), []string{RawAddress}},
		"an address was only slow":                {dial("["+rawIPv6+"]:443", "timeout"), []string{RawAddress}},
		"an address was not tried":                {func(w world) { w.s.Dials = w.s.Dials[1:] }, []string{RawAddress}},
		"a datagram left":                         {func(w world) { w.s.Packets[0].Err = "" }, []string{RawAddress}},
		"an IPv6 datagram left":                   {func(w world) { w.s.Packets[1].Err = "" }, []string{RawAddress}},
		"a datagram to the metadata service left": {func(w world) { w.s.Packets[3].Err = "" }, []string{MetadataAddress}},
		"nobody called last":                      {func(w world) { w.f.calls[0]-- }, []string{HostLoopback}},
		"the file may only not be looked at":      {func(w world) { w.s.Files[0].Err = "EACCES" }, []string{HostFiles}},
		"one more interface":                      {func(w world) { w.s.Interfaces = []string{"lo", "eth0"} }, []string{RawAddress}},
		"no interface was listed":                 {func(w world) { w.s.Interfaces = nil }, []string{RawAddress}},
		"the proxy lets addresses through":        {refused(rawIPv4+":443", "HTTP/1.1 200 OK"), []string{RawAddress}},
		"the metadata service answered":           {dial(metadata4+":80", ""), []string{MetadataAddress}},
		"the metadata service refused":            {dial("["+metadata6+"]:80", "ECONNREFUSED"), []string{MetadataAddress}},
		"a name leads to it":                      {refused(metadataName+":80", "HTTP/1.1 200 OK"), []string{MetadataAddress}},
		"the loopback of the host answered":       {dial("127.0.0.1:4444", ""), []string{HostLoopback}},
		"it was called all the same":              {func(w world) { w.f.calls[0]++ }, []string{HostLoopback}},
		"nobody could call it":                    {func(w world) { w.f.reached[0] = errors.New("refused") }, []string{HostLoopback}},
		"the abstract socket was called":          {func(w world) { w.f.calls[1]++ }, []string{HostLoopback}},
		"the abstract socket was not tried":       {func(w world) { w.s.Abstract = inside.Tried{} }, []string{HostLoopback}},
		"a name leads to the host":                {refused(loopbackName+":80", "HTTP/1.1 200 OK"), []string{HostLoopback}},
		"localhost goes through the proxy":        {unwritten("localhost"), []string{HostLoopback}},
		"a capability is left":                    {func(w world) { w.s.Status["CapBnd"] = "0000000000000400" }, []string{Capabilities}},
		"a set was not read":                      {func(w world) { delete(w.s.Status, "CapAmb") }, []string{Capabilities}},
		"new privileges may come":                 {func(w world) { w.s.Status["NoNewPrivs"] = "0" }, []string{Capabilities}},
		"a powerful call worked":                  {func(w world) { w.s.Powers[0].Err = "" }, []string{Capabilities}},
		"it failed for its arguments":             {func(w world) { w.s.Powers[0].Err = "EINVAL" }, []string{Capabilities}},
		"no powerful call was tried":              {func(w world) { w.s.Powers = nil }, []string{Capabilities}},
		"no filter":                               {func(w world) { w.s.Status["Seccomp"] = "0" }, []string{Seccomp}},
		"a filter that lets keys through":         {func(w world) { w.s.Calls[0].Err = "" }, []string{Seccomp}},
		"a forbidden call went through":           {func(w world) { w.looked.evidence.Escapes = nil }, []string{Seccomp}},
		"another call was stopped":                {func(w world) { w.looked.evidence.Escapes[0].Syscall = "ptrace" }, []string{Seccomp}},
		"an engine that names none":               {func(w world) { w.looked.evidence.Escapes[0].Syscall = "a system call" }, nil},
		"the host's namespace":                    {func(w world) { w.s.Spaces["net"] = "net:[1]" }, []string{HostProcesses}},
		"the host's control groups":               {func(w world) { w.s.Spaces["cgroup"] = "cgroup:[1]" }, []string{HostProcesses}},
		"a namespace of ours that was not read":   {func(w world) { delete(w.f.spaces, "cgroup") }, []string{HostProcesses}},
		"a namespace that was not read":           {func(w world) { delete(w.s.Spaces, "user") }, []string{HostProcesses}},
		"no namespace was read":                   {func(w world) { w.f.spaces = nil }, []string{HostProcesses}},
		"many processes":                          {func(w world) { w.s.Processes = make([]inside.Process, 40) }, []string{HostProcesses}},
		"no processes":                            {func(w world) { w.s.Processes = nil }, []string{HostProcesses}},
		"the file is there":                       {func(w world) { w.s.Files[0].Err = "" }, []string{HostFiles}},
		"the file was not looked for":             {func(w world) { w.s.Files = nil }, []string{HostFiles}},
		"the file was taken away":                 {func(w world) { w.f.kept = false }, []string{HostFiles}},
		"no box took memory":                      {func(w world) { w.grown.evidence = box.Evidence{StartupFailure: "no workdir"} }, []string{MemoryCap}},
		"no file to look for":                     {func(w world) { w.f.files = nil }, []string{HostFiles}},
		"the root can be written to":              {func(w world) { w.s.Written[0].Err = "" }, []string{ReadOnlyRoot}},
		"/usr is only not permitted":              {func(w world) { w.s.Written[1].Err = "EACCES" }, []string{ReadOnlyRoot}},
		"/usr was not tried":                      {func(w world) { w.s.Written = w.s.Written[:1] }, []string{ReadOnlyRoot}},
		"another server was greeted":              {func(w world) { w.f.greeted = 1 }, []string{TLSName}},
		"another server answered":                 {func(w world) { w.s.Tunnel.Err = "" }, []string{TLSName}},
		"no tunnel was opened":                    {func(w world) { w.s.Tunnel.Text = "HTTP/1.1 502 Bad Gateway" }, []string{TLSName}},
		"no tunnel was asked for":                 {func(w world) { w.s.Tunnel = inside.Tried{} }, []string{TLSName}},
		"the other name is in no ledger":          {unwritten(canaryName), []string{TLSName}},
		"the box said nothing":                    {func(w world) { w.looked.seen, w.looked.unread = nil, "no answer" }, controls[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			f, looked, grown := good()
			c.change(world{&f, looked.seen, &looked, &grown})
			var missed []string
			for _, p := range judge(f, looked, grown) {
				if !p.OK {
					missed = append(missed, p.Control)
				}
				if p.How == "" {
					t.Errorf("%s: nothing is said of how", p.Control)
				}
			}
			if !slices.Equal(missed, c.missed) {
				t.Errorf("missed %v, want %v", missed, c.missed)
			}
		})
	}
}

// Every control has the time of its own attempts, and no attempt is of two.
func TestWhatEachControlTook(t *testing.T) {
	f, looked, grown := good()
	s := looked.seen
	tries := 0
	for _, list := range [][]inside.Tried{s.Refused, s.Dials, s.Packets, s.Names, s.Files, s.Written} {
		for i := range list {
			list[i].Took = 1
			tries++
		}
	}
	s.Took = map[string]float64{}
	for _, group := range []string{"forks", "get", "abstract", "capabilities", "seccomp", "host", "tunnel"} {
		s.Took[group] = 1
		tries++
	}
	sum := 0.0
	for _, p := range judge(f, looked, grown) {
		if p.Ms == 0 {
			t.Errorf("%s took no time", p.Control)
		}
		if p.Control != MemoryCap { // which is a box of its own
			sum += p.Ms
		}
	}
	if sum != float64(tries) {
		t.Errorf("%d attempts of a ms each are %v ms", tries, sum)
	}
}

// A boundary that an engine is to have is seen, not believed.
func TestOwnKernel(t *testing.T) {
	host := inside.Kernel{Release: "6.18.44", Build: "#1 SMP", Boot: "aaaa"}
	own := inside.Kernel{Release: "4.19.0-gvisor", Build: "#1 SMP 2016"}
	for name, c := range map[string]struct {
		in, out inside.Kernel
		ok      bool
	}{
		"another kernel":                  {own, host, true},
		"another one that tells its boot": {inside.Kernel{Release: "4", Build: "x", Boot: "bbbb"}, host, true},
		"the host's":                      {host, host, false},
		"the host's under another name":   {inside.Kernel{Release: "4", Build: "x", Boot: "aaaa"}, host, false},
		"the host's release":              {inside.Kernel{Release: "6.18.44", Build: "x"}, host, false},
		"the host's build":                {inside.Kernel{Release: "4", Build: "#1 SMP"}, host, false},
		"a box that says nothing":         {inside.Kernel{}, host, false},
		"a host that was not asked":       {own, inside.Kernel{}, false},
		"neither":                         {inside.Kernel{}, inside.Kernel{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, looked, grown := good()
			f.own, f.kernel, looked.seen.Kernel = true, c.out, c.in
			list := judge(f, looked, grown)
			last := list[len(list)-1]
			if len(list) != len(controls)+1 || last.Control != OwnKernel || last.How == "" {
				t.Fatalf("the last of %d is %+v", len(list), last)
			}
			if last.OK != c.ok || complete(list, true) != c.ok || complete(list, false) {
				t.Errorf("%+v", last)
			}
		})
	}
	// An engine that is to have one, and whose box was not seen.
	f, looked, grown := good()
	f.own, looked.seen, looked.unread = true, nil, "no answer"
	list := judge(f, looked, grown)
	if last := list[len(list)-1]; last.Control != OwnKernel || last.OK || last.How != "no answer" {
		t.Errorf("not seen, and it says %+v", last)
	}
}
