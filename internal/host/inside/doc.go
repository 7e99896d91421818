// Package inside is what runs in a probe box: it tries what no step may do and
// tells what came of it.
//
// It judges nothing. Who started the box knows what must have come of each
// attempt, and has evidence of its own for most of them: the kernel's counters,
// the proxy's ledger, a listener that nobody called. What the program prints is
// believed here as nothing else from a box is, since it is ours; so it is only
// ever run in a box whose every byte is ours too.
package inside
