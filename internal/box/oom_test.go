package box

import (
	"strings"
	"testing"
)

// TestOOMAdvice: more memoryMb is the advice where the step's own cap was
// reached, and nowhere else.
func TestOOMAdvice(t *testing.T) {
	const raise, outside = "write memoryMb: 1024 to allow more", "outside the step's own cap"
	for _, c := range []struct {
		name      string
		e         Evidence
		has, lack string
	}{
		{"the peak is the cap", Evidence{MemoryMb: 512, PeakMemory: 512 << 20}, raise, outside},
		{"the last piece did not fit", Evidence{MemoryMb: 512, PeakMemory: 461 << 20}, raise, outside},
		{"the host ran out while the step was small", Evidence{MemoryMb: 512, PeakMemory: 40 << 20}, outside, "memoryMb: "},
		{"just below what a full cap looks like", Evidence{MemoryMb: 512, PeakMemory: 460 << 20}, outside, "memoryMb: "},
		{"a peak that was only sampled proves nothing", Evidence{MemoryMb: 512, PeakMemory: 40 << 20, PeakSampled: true}, raise, outside},
		{"no peak is known", Evidence{MemoryMb: 512}, raise, outside},
		{"no cap was asked for", Evidence{PeakMemory: 1 << 40}, "killed a process for memory", "memoryMb"},
	} {
		c.e.OOMKills = 1
		got := Classify(c.e, nil).Fault.Message
		if !strings.Contains(got, c.has) || strings.Contains(got, c.lack) {
			t.Errorf("%s: %q, want %q and no %q", c.name, got, c.has, c.lack)
		}
	}
}
