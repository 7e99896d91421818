// Package report writes one finished run in the forms people and programs read:
// report.json, the Markdown of the job summary, the table on a terminal, and
// the report folder that holds the first two.
//
// Every writer takes the same steps.Result and adds nothing to it: no writer
// judges, runs or looks anything up, so a report can be written again later
// from its JSON. What a step chose (names, paths, hosts, output) is untrusted
// and comes out inert in every form; what did not fit is counted.
//
// It refuses to write a report folder that the steps themselves could write to.
//
//	folder, err := report.Prepare(out, workspace) // before the run
//	...
//	err = folder.Write(result)
//	err = report.WriteTable(os.Stdout, result)
package report
