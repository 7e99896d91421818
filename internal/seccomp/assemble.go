package seccomp

import (
	"fmt"
	"sort"

	"golang.org/x/net/bpf"
)

// Where struct seccomp_data has its fields.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// segment is a run of system call numbers with one rule. It ends where the
// next one starts.
type segment struct {
	start uint32
	rule  rule
}

// assemble writes the filter: the architecture, then a search tree over the
// numbers, so that every call takes about seven comparisons. Tree and leaves
// use only what the kernel can evaluate ahead of time, so that a call which is
// always allowed costs next to nothing (the action cache of Linux 5.11).
func assemble(a architecture, calls map[string]uint32, rules map[string]rule) ([]bpf.Instruction, error) {
	tree, err := search(segments(a, calls, rules))
	if err != nil {
		return nil, err
	}
	head := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1},
		bpf.RetConstant{Val: uint32(notify)},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}
	return append(head, tree...), nil
}

func segments(a architecture, calls map[string]uint32, rules map[string]rule) []segment {
	byNumber := map[uint32]rule{}
	for name, n := range calls {
		byNumber[n] = rules[name]
	}
	used := make([]uint32, 0, len(byNumber))
	for n := range byNumber {
		used = append(used, n)
	}
	sort.Slice(used, func(i, j int) bool { return used[i] < used[j] })

	list := []segment{{0, always(noSuchCall)}}
	add := func(start uint32, r rule) {
		if last := &list[len(list)-1]; last.start == start {
			last.rule = r
		} else if !last.rule.equal(r) {
			list = append(list, segment{start, r})
		}
	}
	for i, n := range used {
		add(n, byNumber[n])
		if i+1 == len(used) || used[i+1] != n+1 {
			add(n+1, always(noSuchCall))
		}
	}
	if a.x32 {
		add(x32Bit, always(notify))
		add(negatives, always(noSuchCall))
	}
	return list
}

// search writes a balanced tree. Each node jumps over its left half.
func search(list []segment) ([]bpf.Instruction, error) {
	if len(list) == 1 {
		return leaf(list[0].rule)
	}
	middle := len(list) / 2
	left, err := search(list[:middle])
	if err != nil {
		return nil, err
	}
	right, err := search(list[middle:])
	if err != nil {
		return nil, err
	}
	node := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: list[middle].start, SkipTrue: uint8(len(left))},
	}
	if len(left) > 255 { // more than a conditional jump can hold
		node = []bpf.Instruction{
			bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: list[middle].start, SkipFalse: 1},
			bpf.Jump{Skip: uint32(len(left))},
		}
	}
	return append(append(node, left...), right...), nil
}

func leaf(r rule) ([]bpf.Instruction, error) {
	var out []bpf.Instruction
	loaded := -1
	for _, c := range r.when {
		if c.word != loaded {
			out = append(out, bpf.LoadAbsolute{Off: offsetArgs + 4*uint32(c.word), Size: 4})
			loaded = c.word
		}
		cond, ok := map[test]bpf.JumpTest{
			equals: bpf.JumpEqual, differs: bpf.JumpNotEqual, below: bpf.JumpLessThan,
			anyBit: bpf.JumpBitsSet, noBit: bpf.JumpBitsNotSet,
		}[c.test]
		if !ok {
			return nil, fmt.Errorf("seccomp: bug: a condition without a test")
		}
		out = append(out,
			bpf.JumpIf{Cond: cond, Val: c.value, SkipFalse: 1},
			bpf.RetConstant{Val: uint32(c.then)})
	}
	return append(out, bpf.RetConstant{Val: uint32(r.otherwise)}), nil
}
