package steps

import "fmt"

// IDsOf gives the ids of the steps in a file that may be half written, for whoever
// offers them to choose from. It looks at nothing but the text, and says nothing
// of what is wrong with it. What cannot be an id is left out, so that each is as
// harmless in a shell as it is in the name of a folder.
func IDsOf(src []byte) []string {
	root, _ := parse("", src)
	var ids []string
	seen := map[string]bool{}
	for _, p := range root.pairs {
		if p.key.text != "steps" {
			continue
		}
		for i, step := range p.val.items[:min(len(p.val.items), maxSteps)] {
			id := fmt.Sprintf("step-%d", i+1)
			for _, k := range step.pairs {
				if k.key.text == "id" {
					id = k.val.text
				}
			}
			if idShape().MatchString(id) && !seen[id] {
				ids, seen[id] = append(ids, id), true
			}
		}
	}
	return ids
}
