package seccomp

import (
	"fmt"
	"slices"
	"strings"
)

// action is a filter's answer in the kernel's encoding. The zero value kills
// the calling thread.
type action uint32

const (
	allow  action = 0x7fff0000 // SECCOMP_RET_ALLOW
	notify action = 0x7fc00000 // SECCOMP_RET_USER_NOTIF
	errno  action = 0x00050000 // SECCOMP_RET_ERRNO, or-ed with the number
)

// Error numbers, equal on both architectures.
const (
	noPermission    = errno | 1  // EPERM
	noSuchCall      = errno | 38 // ENOSYS
	noAddressFamily = errno | 97 // EAFNOSUPPORT
)

func (a action) String() string {
	switch a {
	case allow:
		return "allow"
	case notify:
		return "notify"
	case noPermission:
		return "EPERM"
	case noSuchCall:
		return "ENOSYS"
	case noAddressFamily:
		return "EAFNOSUPPORT"
	}
	return fmt.Sprintf("action 0x%x", uint32(a))
}

// test compares one 32-bit half of an argument with a value. There is no zero
// test, so that a forgotten one is refused when it is compiled.
type test int

const (
	_ test = iota
	equals
	differs
	below
	anyBit // at least one bit of the value is set
	noBit
)

// condition is one comparison and the answer when it holds.
type condition struct {
	word  int // see low and high
	test  test
	value uint32
	then  action
}

// low and high name the halves of argument i. The kernel reads only the low
// half of an int argument, whatever the caller put above it, so a rule on such
// an argument must do the same: one that compares all 64 bits is passed by
// setting bit 32.
func low(i int) int  { return 2 * i }
func high(i int) int { return 2*i + 1 }

func (c condition) holds(args [6]uint64) bool {
	v := uint32(args[c.word/2] >> (32 * (c.word % 2)))
	switch c.test {
	case equals:
		return v == c.value
	case differs:
		return v != c.value
	case below:
		return v < c.value
	case anyBit:
		return v&c.value != 0
	case noBit:
		return v&c.value == 0
	}
	return false
}

func (c condition) String() string {
	half := ""
	if c.word%2 == 1 {
		half = ".high"
	}
	words := map[test]string{
		equals: "== 0x%x", differs: "!= 0x%x", below: "< 0x%x", anyBit: "has any of 0x%x", noBit: "has none of 0x%x",
	}
	return fmt.Sprintf("%s if arg%d%s "+words[c.test], c.then, c.word/2, half, c.value)
}

// rule answers one system call: the first condition that holds decides, else
// otherwise.
type rule struct {
	when      []condition
	otherwise action
}

func always(a action) rule { return rule{otherwise: a} }

func (r rule) answer(args [6]uint64) action {
	for _, c := range r.when {
		if c.holds(args) {
			return c.then
		}
	}
	return r.otherwise
}

func (r rule) equal(o rule) bool {
	return r.otherwise == o.otherwise && slices.Equal(r.when, o.when)
}

func (r rule) String() string {
	var b strings.Builder
	for _, c := range r.when {
		fmt.Fprintf(&b, "%s, ", c)
	}
	if len(r.when) > 0 {
		b.WriteString("else ")
	}
	return b.String() + r.otherwise.String()
}
