// Package kernsandbox makes the same calls with the Python package kern-sandbox and
// with the built program, on both engines, and compares what came of them. What
// differs has to stand in the table of docs/kern-sandbox.md, with these values and a
// reason, and what stands there has to differ. The rows of that page's other table
// name tests, which have to be there.
//
// It has no code of its own. The package comes from the registry that pip asks, and
// drives the same kern.
package kernsandbox
