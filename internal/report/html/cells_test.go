package html

import (
	"bytes"
	"encoding/base64"
	"hash/crc32"
	"image"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func picture(t *testing.T, w, h int, as func(*bytes.Buffer, image.Image) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := as(&b, image.NewGray(image.Rect(0, 0, w, h))); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func asPNG(b *bytes.Buffer, i image.Image) error  { return png.Encode(b, i) }
func asJPEG(b *bytes.Buffer, i image.Image) error { return jpeg.Encode(b, i, nil) }

func TestFiguresAreDrawnFromBytesOnThePage(t *testing.T) {
	good := picture(t, 2, 3, asPNG)
	raw, _ := base64.StdEncoding.DecodeString(good)
	bomb := append([]byte(nil), raw...)
	copy(bomb[16:], "\x00\x01\x00\x00\x00\x01\x00\x00") // 65536 by 65536
	fix := crcOf(bomb[12:29])
	copy(bomb[29:], fix)
	drawing := `<svg xmlns="http://www.w3.org/2000/svg"><script>window.pwned=1</script></svg>`
	s := steps.StepResult{ID: "a", Status: "failed", Results: []steps.CellResult{
		{"image/png": good, "text/plain": "Figure"},
		{"image/jpeg": picture(t, 2, 2, asJPEG)},
		{"image/svg+xml": drawing},
		{"image/png": "steps/a/results/3.png"},
		{"image/png": base64.StdEncoding.EncodeToString(bomb)},
		{"image/png": good + `" onerror="window.pwned=1`},
		{"image/png": base64.StdEncoding.EncodeToString([]byte("<script>"))},
		{"image/jpeg": good},
		{"image/png": "steps/a/results/8.png"},
		{"image/png": "steps/a/results/9.png"},
		{"image/png": "../secret.png"},
	}, ResultFiles: []steps.ResultFile{
		{Result: 3, MIME: "image/png", Path: "steps/a/results/3.png", Bytes: int64(len(raw))},
		{Result: 8, MIME: "image/png", Path: "steps/a/results/8.png", Bytes: maxImage + 1},
		{Result: 9, MIME: "image/png", Path: "steps/a/results/9.png", Bytes: 5}, // says the report
		{Result: 10, MIME: "image/png", Path: "../secret.png", Bytes: 5},
	}}
	r := &steps.Result{Verdict: "fail", Steps: []steps.StepResult{s}}
	o := options(r)
	o.Verdict, o.Warnings, o.Top = "fail", nil, nil
	o.Files = fstest.MapFS{"steps/a/results/3.png": {Data: raw}, "steps/a/results/9.png": {Data: make([]byte, maxImage+1)}, "secret.png": {Data: raw}}
	page := render(t, r, o)
	for _, want := range []string{
		`src="data:image/png;base64,` + good + `"`,
		`src="data:image/svg+xml;base64,` + base64.StdEncoding.EncodeToString([]byte(drawing)) + `"`,
		`src="data:image/jpeg;base64,`,
		"it is 65536 by 65536 pixels large", "it is not base64", "it cannot be read as image/png", "it cannot be read as image/jpeg", "it is too large for this page",
		"a log or diff is a file under steps/",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %.200s", want)
		}
	}
	if n := strings.Count(page, "<img "); n != 4 {
		t.Errorf("%d images, want 4", n)
	}
	if strings.Contains(page, "onerror") || strings.Contains(page, "window.pwned") {
		t.Error("markup of the step's is on the page")
	}
}

func TestResultsHaveTheirRoom(t *testing.T) {
	big := picture(t, 1500, 1500, func(b *bytes.Buffer, i image.Image) error {
		g := i.(*image.Gray)
		x := uint32(1)
		for k := range g.Pix {
			x = x*1664525 + 1013904223
			g.Pix[k] = byte(x >> 24)
		}
		return png.Encode(b, g)
	})
	r := &steps.Result{Verdict: "fail"}
	for range 4 {
		s := steps.StepResult{ID: "a", Status: "failed"}
		for range maxResults + 1 {
			s.Results = append(s.Results, steps.CellResult{"text/plain": strings.Repeat("x\n", 40_000)})
		}
		s.Results[0] = steps.CellResult{"image/png": big}
		r.Steps = append(r.Steps, s)
	}
	page := render(t, r, options(r))
	if len(page) > MaxBytes || !strings.Contains(page, "no room on this page; report.json and the files under steps/ have all") {
		t.Errorf("%d bytes", len(page))
	}
	if n := strings.Count(page, "<img "); n != 1 {
		t.Errorf("%d images of %d bytes fit", n, len(big))
	}
}

func crcOf(b []byte) string {
	n := crc32.ChecksumIEEE(b)
	return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
