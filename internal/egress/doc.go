// Package egress is a box's only way to the network: it owns the rules of an
// allowlist (Entry, Rule, Preset, Policy), what counts as a public address
// (AddrVerdict), the HTTP proxy that applies both (Proxy), the listeners for
// programs that know no proxy (Forward), the record of every attempt (Ledger)
// and what can be learnt from it about the list (Proposal, Unused, TooWide).
//
// A box has a network namespace with nothing but loopback in it. The proxy runs
// outside the box and serves connections accepted on a listening socket that
// lives inside that namespace and whose descriptor was handed over; no process
// in the box carries traffic, so none can be killed, traced or replaced.
//
// It refuses whatever it is not sure of. A name is judged before it is looked
// up, so that a question for a name cannot carry data out. It is looked up once,
// and the address that was judged is the address that is dialled. A tunnel must
// open with a TLS ClientHello for the very name it was asked for. Every plain
// HTTP request is judged anew, also the second one on a connection. Any doubt
// about where a message ends closes the connection. A tcp:// rule waives TLS and
// HTTP for one host and port, and nothing else; an audit waives the list, but
// neither the deny rules nor what counts as public.
//
//	rules, err := egress.ParseEntry(egress.Entry{To: "tcp://db.example.com:5432"})
//	ledger := &egress.Ledger{Step: "test", Log: file}
//	proxy := egress.NewProxy(egress.Policy{Allow: rules}, ledger)
//	forwards, err := egress.Forwards(rules)
//	hosts := egress.HostsLines(forwards) // for the box's hosts file
//	go func() { lost <- proxy.Serve(ctx, listener) }() // not nil: egress_lost
//	go func() { lost <- proxy.ServeForward(ctx, another, forwards[0]) }()
//	... the box runs, and dies ...
//	err = proxy.Drain(short) // also what was asked for in the last millisecond
//	cancel()
//	<-lost
//	<-lost
//	records, err := ledger.Records(), ledger.Err()
//
// What it cannot see: what is said inside TLS. A step that may talk to one name
// on a shared front can ask that front for another one in there.
package egress
