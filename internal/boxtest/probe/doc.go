// Package probe is the program that the conformance suite runs inside a box,
// and for a control outside of one. It tries things and prints what came of
// each: what it could see, reach, write and call.
//
// It judges nothing and knows nothing of engines. What it prints is text from
// inside a box: the suite reads it for what the box could do, and never for
// what happened to the box.
//
//	probe boxtest-probe '[{"do":"connect","args":["tcp","192.0.2.1:80"]}]'
//	{"err":"ENETUNREACH"}
package probe
