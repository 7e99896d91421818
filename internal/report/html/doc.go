// Package html writes report.html: one finished run as one page for a browser.
//
// It owns the page: its two assets (app.css, app.js), what of a run is on it and
// how much. The words it uses for a step are handed in, so that the page and the
// other forms of a report say the same.
//
// The page asks nobody for anything: its policy forbids every load, every form
// and every script and style but the two it carries, which the policy names by
// their hash. What a step chose is text in it and nothing else: written out
// visibly where it would not be seen (gha.Inert), escaped where the server writes
// it, and carried as inert JSON where app.js shows it, which makes nodes and sets
// their text and knows no other way. The essentials are there without scripts.
//
// It refuses to show a file outside of steps/ in the report folder, whatever a
// report names as a log, and to become larger than MaxBytes: what was left out is
// counted on the page.
//
//	err := html.Write(w, result, html.Options{Verdict: "pass: 3 steps passed", Words: words, Files: os.DirFS(dir)})
package html
