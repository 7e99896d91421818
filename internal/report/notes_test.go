package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

func TestWhyItIsThatEngineIsToldApartFromOtherNotes(t *testing.T) {
	const plain, some = "engine: native 1.2.3; not kern, because there is none", "shards 1, 3: engine: native 1.2.3"
	others := []string{"shard 2: the policy lies in the workspace", "no engine: of that name", "the engine: here"}
	notes, engines := notesOf(&steps.Result{Notes: append([]string{plain, some}, others...)})
	if diff := cmp.Diff([][]string{others, {plain, some}}, [][]string{notes, engines}); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
