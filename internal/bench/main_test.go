package bench

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest"
)

func TestMain(m *testing.M) {
	boxtest.Become(os.Args)
	os.Exit(m.Run())
}

// contender is one way to do the thing.
type contender struct {
	name string
	run  func() (time.Duration, error)
	took []float64 // milliseconds, one for each iteration
}

// timed is a contender that is nothing but the time it takes.
func timed(name string, do func() error) *contender {
	return &contender{name: name, run: func() (time.Duration, error) {
		began := time.Now()
		err := do()
		return time.Since(began), err
	}}
}

// race runs every contender once in each iteration, each time another one
// first, so that a bad moment of the machine and the neighbour's leftovers hit
// all alike. It reports medians, and for each pair "a/b" the median of the
// ratios within an iteration.
func race(b *testing.B, list []*contender, pairs ...[2]string) {
	b.Helper()
	one := func(c *contender, keep bool) {
		d, err := c.run()
		if err != nil {
			b.Fatalf("%s: %v", c.name, err)
		}
		if keep {
			c.took = append(c.took, float64(d.Nanoseconds())/1e6)
		}
	}
	for range 3 { // warm
		for _, c := range list {
			one(c, false)
		}
	}
	n := 0
	for b.Loop() {
		for i := range list {
			one(list[(i+n)%len(list)], true)
		}
		n++
	}
	of := map[string]*contender{}
	for _, c := range list {
		of[c.name] = c
		b.ReportMetric(median(c.took), c.name+"-ms")
		b.ReportMetric(quantile(c.took, 0.9), c.name+"-p90-ms")
	}
	for _, p := range pairs {
		x, y := of[p[0]], of[p[1]]
		if x == nil || y == nil {
			continue
		}
		ratios := make([]float64, n)
		for i := range ratios {
			ratios[i] = x.took[i] / y.took[i]
		}
		b.ReportMetric(median(ratios), fmt.Sprintf("%s/%s", p[0], p[1]))
	}
	b.ReportMetric(0, "ns/op") // the sum of all, which says nothing
}

func median(list []float64) float64 { return quantile(list, 0.5) }

func quantile(list []float64, q float64) float64 {
	s := slices.Clone(list)
	slices.Sort(s)
	at := q * float64(len(s)-1)
	low := int(at)
	if low+1 == len(s) {
		return s[low]
	}
	return s[low] + (at-float64(low))*(s[low+1]-s[low])
}

func TestQuantile(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		list     []float64
		q, want  float64
	}{
		{"the middle of an odd number", []float64{3, 1, 2}, 0.5, 2},
		{"between the two in the middle of an even number", []float64{4, 1, 3, 2}, 0.5, 2.5},
		{"one is its own", []float64{7}, 0.9, 7},
		{"the end is the largest", []float64{1, 9, 5}, 1, 9},
		{"nine tenths of eleven is the tenth", []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := quantile(tc.list, tc.q); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
