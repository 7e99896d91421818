// Package egress holds the tests of a step's way out as its user meets it: the
// real program, each engine, the clients that people use, and servers from
// Debian's packages.
//
// It has no code of its own. Servers stand in a network and mount namespace
// that the tests make (lab), with a hosts file of its own, so that they can have
// the ports that everybody knows and no test touches the host's network. Only
// the tests of package clients leave it, for the registries that those clients
// are set up with here; their names are read when the tests run and stand in
// no file and no log.
//
//	go test ./test/egress
package egress
