// Package boxtest is the conformance suite: one list of facts that every
// engine's boxes must have, each measured from inside by a probe program, and
// probes for the needs that tests state instead of skipping in silence.
//
// A fact is a subtest named as a sentence, with the number of the attack it
// stands for where there is one. Each has a positive control beside it: the
// same action outside the box, or an allowed one inside, that does work. A
// fact never asserts on what a box was asked to be, only on what code in it
// could see, reach, write and call, and on what the kernel told us.
//
// What an engine cannot show is in one table, Differences. A fact that differs
// in any other way is a bug in an engine.
//
//	func TestMain(m *testing.M) {
//		boxtest.Become(os.Args)
//		...
//	}
//	func TestConformance(t *testing.T) { boxtest.Run(t, engine, boxtest.Options{}) }
package boxtest
