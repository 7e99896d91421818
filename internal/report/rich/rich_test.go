package rich

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestTableOf(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tc := range []struct {
		sentence, source string
		want             Table
	}{
		{"a data frame", `<div><style scoped>.dataframe th { color: red }</style>
<table border="1" class="dataframe"><thead><tr style="text-align: right;"><th></th><th>a</th><th>b &amp; c</th></tr></thead>
<tbody><tr><th>0</th><td>1</td><td>x</td></tr><tr><th>1</th><td>2</td><td>y</td></tr></tbody></table><p>2 rows</p></div>`,
			Table{Rows: [][]string{{"", "a", "b & c"}, {"0", "1", "x"}, {"1", "2", "y"}}, Head: 1}},
		{"no end tags", `<table><tr><td>1<td>2<tr><td>3`, Table{Rows: [][]string{{"1", "2"}, {"3"}}}},
		{"cells that take several places", `<table><tr><th colspan=2>ab<th>c</tr><tr><td rowspan=2>1<td>2<td>3</tr><tr><td>4<td>5</tr></table>`,
			Table{Rows: [][]string{{"ab", "", "c"}, {"1", "2", "3"}, {"", "4", "5"}}, Head: 1}},
		{"markup in a cell is gone", `<table><tr><td><b>bold</b> <a href="javascript:x">link</a><br>two<script>alert(1)</script><img src=x onerror=y></td></tr></table>`,
			Table{Rows: [][]string{{"bold link two"}}}},
		{"a table in a cell", `<table><tr><td>a<table><tr><td>in</td></tr></table>b</td><td>c</td></tr></table>`, Table{Rows: [][]string{{"ainb", "c"}}}},
		{"the first of two", `<table><tr><td>1</table><table><tr><td>2</table>`, Table{Rows: [][]string{{"1"}}}},
		{"so wide that columns are counted", `<table><tr>` + strings.Repeat("<td>1", 25) + `</table>`, Table{Rows: [][]string{strings.Split(strings.Repeat("1 ", 19)+"1", " ")}, MoreColumns: 5}},
		{"spans without end", `<table><tr><td colspan=999999999 rowspan=999999999>1</table>`, Table{Rows: [][]string{append([]string{"1"}, make([]string, 19)...)}}},
		{"a cell without end", `<table><tr><td>` + long, Table{Rows: [][]string{{long[:maxText]}}}},
		{"rows that are counted", `<table>` + strings.Repeat("<tr><td>1", maxRows+3) + `</table>`, func() Table {
			t := Table{MoreRows: 3}
			for range maxRows {
				t.Rows = append(t.Rows, []string{"1"})
			}
			return t
		}()},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			got, ok := TableOf(tc.source)
			if d := cmp.Diff(tc.want, got); d != "" || !ok {
				t.Errorf("%v %s", ok, d)
			}
		})
	}
	for _, source := range []string{"", "<p>no table</p>", "<table>", "<table><tr></tr></table>", "&lt;table&gt;", "<table" + strings.Repeat(" ", maxSource)} {
		if got, ok := TableOf(source); ok {
			t.Errorf("%.40q: %v", source, got)
		}
	}
}

func FuzzTableOf(f *testing.F) {
	f.Add("<table><tr><td rowspan=3 colspan=2>1<th>2</table>")
	f.Add("<table><style><tr><td></style><td></td>")
	f.Fuzz(func(t *testing.T, s string) {
		got, _ := TableOf(s)
		if len(got.Rows) > maxRows || got.Head > 1 || got.MoreRows < 0 || got.MoreColumns < 0 {
			t.Errorf("%+v", got)
		}
		for _, row := range got.Rows {
			if len(row) > maxColumns {
				t.Errorf("%d columns", len(row))
			}
			for _, c := range row {
				if len(c) > 3*maxText || utf8.ValidString(s) && !utf8.ValidString(c) || strings.ContainsAny(c, "\r\n") {
					t.Errorf("%q", c)
				}
			}
		}
	})
}

func TestShow(t *testing.T) {
	inline := func(string) bool { return false }
	for _, tc := range []struct {
		forms map[string]string
		kind  Kind
		mime  string
	}{
		{map[string]string{"text/plain": "1"}, Text, "text/plain"},
		{map[string]string{"text/plain": "1", "text/html": "<table><tr><td>1</table>"}, Grid, "text/html"},
		{map[string]string{"text/plain": "1", "text/html": "<b>1</b>"}, Text, "text/plain"},
		{map[string]string{"text/plain": "1", "image/svg+xml": "<svg/>", "image/png": "aa"}, Image, "image/png"},
		{map[string]string{"text/plain": "1", "text/markdown": "# 1"}, Text, "text/markdown"},
		{map[string]string{"text/html": "<b>1</b>"}, Text, "text/html"},
		{map[string]string{"application/x-b": "1", "application/x-a": "1"}, None, "application/x-a"},
		{nil, None, ""},
	} {
		if got := Show(tc.forms, inline); got.Kind != tc.kind || got.MIME != tc.mime {
			t.Errorf("%v: %v of %s", tc.forms, got.Kind, got.MIME)
		}
	}
	if got := Show(map[string]string{"text/html": "steps/a/results/0.html.txt"}, func(string) bool { return true }); got.Kind != None {
		t.Errorf("a path is shown as a value: %+v", got)
	}
}

func TestReading(t *testing.T) {
	for source, want := range map[string][2]string{
		"plain":                          {"plain", "plain"},
		"a &amp; b &#99;&lt;":            {"a & b c<", "a & b c<"},
		"a<b></b>c<br>d":                 {"acd", "a c d"},
		"a<!-- x > y -->c":               {"ac", "ac"},
		"a<style>td { x: '<' }</style>c": {"ac", "a c"},
		"<td title='>'>a</td>":           {"a", "a"},
		"1 < 2":                          {"1 < 2", "1 < 2"},
		"<table><tr><td> a\n b</td><td>c</td></tr>": {" a\n bc", "a b c"},
		"a<script>": {"a", "a"},
	} {
		if joined, spaced := Reading(source); joined != want[0] || spaced != want[1] {
			t.Errorf("%q: %q, %q", source, joined, spaced)
		}
	}
}
