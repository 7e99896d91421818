package box

import (
	"math"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// busyCPUs counts, for each CPU, the steps that were started on it.
var busyCPUs struct {
	sync.Mutex
	on map[int]int
}

// takeCPUs chooses CPUs for a step that may use so many CPUs' time: as many, in
// whole ones, and of those that we may use ourselves the least taken. None are
// chosen where the step may use all of them, or as much as it likes.
func takeCPUs(share float64) (list []int, giveBack func()) {
	var set unix.CPUSet
	if share <= 0 || unix.SchedGetaffinity(0, &set) != nil {
		return nil, func() {}
	}
	var own []int
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			own = append(own, c)
		}
	}
	n := int(math.Ceil(min(share, float64(len(own)))))
	if n >= len(own) {
		return nil, func() {}
	}
	busyCPUs.Lock()
	defer busyCPUs.Unlock()
	if busyCPUs.on == nil {
		busyCPUs.on = map[int]int{}
	}
	slices.SortStableFunc(own, func(a, b int) int { return busyCPUs.on[a] - busyCPUs.on[b] })
	list = own[:n]
	for _, c := range list {
		busyCPUs.on[c]++
	}
	return list, func() {
		busyCPUs.Lock()
		defer busyCPUs.Unlock()
		for _, c := range list {
			busyCPUs.on[c]--
		}
	}
}
