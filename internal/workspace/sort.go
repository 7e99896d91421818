package workspace

import "slices"

// sortRun is how much is sorted between two looks at whether to go on: tens of
// milliseconds.
const sortRun = 32 << 10

// sorted sorts a list that may have millions of elements, and gives it up when
// told to. The list it gives may be another than the one it was given.
func sorted[T any](list []T, compare func(a, b T) int, halted func() error) ([]T, error) {
	for run := range slices.Chunk(list, sortRun) {
		slices.SortFunc(run, compare)
		if err := halted(); err != nil {
			return nil, err
		}
	}
	if len(list) <= sortRun {
		return list, nil
	}
	other := make([]T, 0, len(list))
	for width := sortRun; width < len(list); width *= 2 {
		other = other[:0]
		for pair := range slices.Chunk(list, 2*width) {
			a, b := pair[:min(width, len(pair))], pair[min(width, len(pair)):]
			other = merge(other, a, b, compare)
			if err := halted(); err != nil {
				return nil, err
			}
		}
		list, other = other, list
	}
	return list, nil
}

// merge appends two sorted lists to a third.
func merge[T any](to, a, b []T, compare func(a, b T) int) []T {
	for len(a) > 0 && len(b) > 0 {
		if compare(b[0], a[0]) < 0 {
			to, b = append(to, b[0]), b[1:]
		} else {
			to, a = append(to, a[0]), a[1:]
		}
	}
	return append(append(to, a...), b...)
}
