package egress

import "strings"

// Within says whether everything these rules let through is let through by the
// ceiling too. It compares what rules permit and not how they are written: a
// name below a wildcard, or one port of the two that a rule without one means.
//
// Each port has to be covered by one rule of the ceiling. That a name could be
// put together from several is not looked for: unknown means no.
func Within(rules, ceiling []Rule) bool {
	for _, r := range rules {
		if !r.within(ceiling) {
			return false
		}
	}
	return true
}

func (r Rule) within(ceiling []Rule) bool {
	ports := []int{r.port}
	if r.port == 0 {
		ports = []int{80, 443}
	}
	for _, port := range ports {
		covered := false
		for _, c := range ceiling {
			covered = covered || c.includes(r) && c.coversPort(port)
		}
		if !covered {
			return false
		}
	}
	return true
}

// includes says whether a rule of a ceiling grants at least what r does, on the
// ports that both have.
func (c Rule) includes(r Rule) bool {
	switch {
	case r.private && !c.private, r.tcp && !c.tcp:
		return false
	case r.addr.IsValid() || c.addr.IsValid():
		return r.addr.IsValid() && r.addr == c.addr
	case r == Rule{} || c == Rule{}:
		return false // the zero rule names nothing
	case c.depth == everyName:
		return true
	case r.depth == everyName:
		return false
	case r.depth == itself:
		return c.coversName(r.name)
	case c.depth == oneLabel:
		return r.depth == oneLabel && r.name == c.name
	case c.depth == anyLabels:
		return r.name == c.name || strings.HasSuffix(r.name, "."+c.name)
	}
	return false
}
