// Package egress is a box's only way to the network: it owns the rules of an
// allowlist (Rule, Policy), what counts as a public address (AddrVerdict), the
// HTTP proxy that applies both (Proxy) and the record of every attempt (Ledger).
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
// about where a message ends closes the connection.
//
//	rule, err := egress.ParseRule("*.example.com:8443")
//	ledger := new(egress.Ledger)
//	proxy := egress.NewProxy(egress.Policy{Allow: []egress.Rule{rule}}, ledger)
//	go func() { lost <- proxy.Serve(ctx, listener) }() // not nil: egress_lost
//	... the box runs, and dies ...
//	err = proxy.Drain(short) // also what was asked for in the last millisecond
//	cancel()
//	<-lost
//	records := ledger.Records()
//
// What it cannot see: what is said inside TLS. A step that may talk to one name
// on a shared front can ask that front for another one in there.
package egress
