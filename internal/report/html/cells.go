package html

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/report/rich"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// maxResults is how many results of a step are on the page.
	maxResults = 50
	// maxImage is how large a file an image on the page may be, and maxPixels how
	// much it may be drawn as: a few bytes can say that they are gigabytes.
	maxImage  = 2 << 20
	maxPixels = 50_000_000
	// maxResult is how much of the text of one result is there.
	maxResult = 64 << 10
	// maxResultLines is how many lines of it.
	maxResultLines = 500
)

// results are what a cell showed: texts, tables of texts, and images that are drawn
// from bytes on the page. Nothing of a step's own markup is on it.
func (p *page) results(b *bytes.Buffer, i int, images, texts *room) {
	s := &p.r.Steps[i]
	if len(s.Results) == 0 {
		return
	}
	put(b, m("<h3>Results</h3>\n<ol class=\"results\">\n"))
	left := max(0, len(s.Results)-maxResults)
	for k := range min(len(s.Results), maxResults) {
		text, drawn := p.result(s, k)
		have := texts
		if drawn {
			have = images
		}
		if !have.take(len(text)) {
			left++
			continue
		}
		b.Write(text)
	}
	put(b, m("</ol>\n"))
	if left > 0 {
		put(b, m("<p class=\"left\">"), count(left, "result has", "results have"), m(" no room on this page; report.json and the files under steps/ have all.</p>\n"))
	}
}

// result is one of them, and whether it has an image.
func (p *page) result(s *steps.StepResult, k int) (text done, drawn bool) {
	forms := s.Results[k]
	x := rich.Show(forms, func(mime string) bool { f := s.ResultFile(k, mime); return f != nil && f.Path == forms[mime] })
	var b bytes.Buffer
	put(&b, m("<li>"))
	switch x.Kind {
	case rich.Grid:
		grid(&b, x.Table)
	case rich.Text:
		lines := strings.Split(strings.ReplaceAll(x.Text[:min(len(x.Text), maxResult)], "\r\n", "\n"), "\n")
		if x.MIME != "text/plain" {
			put(&b, m("<p class=\"left\">"), x.MIME, m("</p>\n"))
		}
		put(&b, m("<pre>"))
		for _, line := range lines[:min(len(lines), maxResultLines)] {
			// Behind a tag, or a line of a page that is printed could be a command.
			put(&b, m("<span class=\"line\">"), clip(line, maxLine), m("</span>"))
		}
		put(&b, m("</pre>\n"))
		if len(lines) > maxResultLines || len(x.Text) > maxResult {
			put(&b, m("<p class=\"left\">The rest is in report.json.</p>\n"))
		}
	case rich.Image:
		drawn = true
		coded, err := p.drawing(s, k, x)
		if err != nil {
			put(&b, m("<p class=\"left\">A figure that is not drawn here: "), clip(err.Error(), maxText), m("</p>\n"))
			break
		}
		put(&b, m("<img alt=\"figure\" src=\"data:"), x.MIME, m(";base64,"), coded, m("\">\n"))
	}
	if x.Kind == rich.None {
		put(&b, m("<p class=\"left\">"), clip(x.MIME, maxName), m(" in report.json</p>\n"))
	}
	for f := range s.ResultFiles {
		if f := &s.ResultFiles[f]; f.Result == k {
			put(&b, m("<p class=\"left\">"), clip(f.MIME, maxName), m(", "), count(int(f.Bytes), "byte", "bytes"), m(": <code>"), clip(f.Path, maxPath), m("</code></p>\n"))
		}
	}
	put(&b, m("</li>\n"))
	return b.Bytes(), drawn
}

// drawing is an image in base64. Its type is one of three that rich knows, and the
// bytes are looked at here: the report can be one that somebody else wrote.
func (p *page) drawing(s *steps.StepResult, k int, x rich.Shown) (coded string, err error) {
	var data []byte
	text := x.MIME == "image/svg+xml" // as text; drawn as an image, it runs nothing
	switch f := s.ResultFile(k, x.MIME); {
	case f != nil && f.Path == x.Text:
		if p.o.Files == nil {
			return "", errors.New("this page was written from report.json alone")
		}
		if f.Bytes > maxImage {
			return "", errors.New("it is too large for this page")
		}
		var size int64
		if data, size, err = p.read(f.Path, maxImage); err != nil {
			return "", fmt.Errorf("its file could not be read: %s", cause(err))
		}
		if size > int64(len(data)) {
			return "", errors.New("it is too large for this page")
		}
	case text:
		data = []byte(x.Text)
	default:
		if data, err = base64.StdEncoding.Strict().DecodeString(x.Text); err != nil {
			return "", errors.New("it is not base64")
		}
	}
	if !text {
		read := png.DecodeConfig
		if x.MIME == "image/jpeg" {
			read = jpeg.DecodeConfig
		}
		var c image.Config
		switch c, err = read(bytes.NewReader(data)); {
		case err != nil:
			return "", errors.New("it cannot be read as " + x.MIME)
		case int64(c.Width)*int64(c.Height) > maxPixels:
			return "", fmt.Errorf("it is %d by %d pixels large", c.Width, c.Height)
		}
	}
	return base64.StdEncoding.EncodeToString(data), nil
}

// grid is a table of texts.
func grid(b *bytes.Buffer, t rich.Table) {
	put(b, m("<div class=\"wide\"><table>\n"))
	for i, row := range t.Rows {
		put(b, m("<tr>"))
		for _, c := range row {
			if i < t.Head {
				put(b, m("<th scope=\"col\">"), clip(c, maxText), m("</th>"))
			} else {
				put(b, m("<td>"), clip(c, maxText), m("</td>"))
			}
		}
		put(b, m("</tr>\n"))
	}
	put(b, m("</table></div>\n"))
	if t.MoreRows > 0 || t.MoreColumns > 0 {
		put(b, m("<p class=\"left\">"), count(t.MoreRows, "more row", "more rows"), m(" and "), count(t.MoreColumns, "more column", "more columns"), m(" are in the result itself.</p>\n"))
	}
}
