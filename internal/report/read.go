package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/untrusted-steps/untrusted-steps/internal/gha"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

const (
	// MaxFile bounds a report that is read: one of a million changed files is
	// smaller.
	MaxFile = 256 << 20
	// maxObjects and maxResultSteps bound what a small file can make us hold: an
	// empty object is two bytes there and hundreds here.
	maxObjects     = 2_000_000
	maxResultSteps = 100_000
	// schemaRead is the schema of report.json that is read.
	schemaRead = 1
)

// Read reads a report.json that may come from anywhere. It refuses what is
// larger than MaxFile, is no JSON, is of another schema or says one thing twice;
// fields it does not know it leaves out, because fields are only ever added.
//
// What the report says is not believed to be a word of ours, and need not be:
// every writer makes every text inert.
func Read(in io.Reader) (*steps.Result, error) {
	b, err := io.ReadAll(io.LimitReader(in, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	if len(b) > MaxFile {
		return nil, fmt.Errorf("it is larger than %d MiB, which no report.json is", MaxFile>>20)
	}
	var head struct {
		Schema *json.Number `json:"schema"`
	}
	// This holds for all of it, depth included, that it is JSON.
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, notReport(err)
	}
	switch {
	case head.Schema == nil:
		return nil, errors.New(`it has no "schema", so it is no report.json of untrusted-steps`)
	case head.Schema.String() != fmt.Sprint(schemaRead):
		return nil, fmt.Errorf("its schema is %.20s, and this version reads schema %d", gha.Inert(head.Schema.String()), schemaRead)
	}
	if err := once(b); err != nil {
		return nil, err
	}
	var r steps.Result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, notReport(err)
	}
	return &r, nil
}

func notReport(err error) error {
	return fmt.Errorf("it is no report.json of untrusted-steps: %s", gha.Inert(err.Error()))
}

// once refuses an object with a key twice, in whatever spelling encoding/json
// takes for the same: readers do not agree on which one counts, so a report could
// say pass to one program and fail to another. On the way it counts what the
// report would take.
func once(b []byte) error {
	type object struct {
		keys  map[string]bool // nil: an array
		value bool            // a key was read, and its value was not
		key   string
	}
	var open []object
	objects, list := 0, 0
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return notReport(err)
		}
		delim, _ := t.(json.Delim)
		if delim == '}' || delim == ']' {
			open = open[:len(open)-1]
			continue
		}
		if n := len(open) - 1; n >= 0 && open[n].keys != nil {
			if at := &open[n]; at.value {
				at.value = false
			} else {
				key, _ := t.(string)
				name := folded(key)
				if at.keys[name] {
					return fmt.Errorf("it says %.60q twice in one place, so what it says is not clear", gha.Inert(key))
				}
				at.keys[name], at.value, at.key = true, true, key
				continue
			}
		}
		switch delim {
		case '{':
			if len(open) == 2 && open[0].keys != nil && strings.EqualFold(open[0].key, "steps") {
				list++
			}
			if objects++; objects > maxObjects || list > maxResultSteps {
				return fmt.Errorf("it has more than %d steps or %d records, which is more than is read", maxResultSteps, maxObjects)
			}
			open = append(open, object{keys: map[string]bool{}})
		case '[':
			open = append(open, object{})
		}
	}
}

// folded is the same for all keys that encoding/json takes for one. It goes by
// more than case: to it, a long s is an s and the Kelvin sign a k.
func folded(key string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, key)
}
