package boxtest

import (
	"testing"
	"time"
)

func TestPatient(t *testing.T) {
	for said, want := range map[string]time.Duration{"": time.Second, "10": 10 * time.Second, "0": time.Second, "-3": time.Second, "many": time.Second} {
		t.Setenv(patienceVar, said)
		if got := patient(time.Second); got != want {
			t.Errorf("%s=%q: a second is %v, want %v", patienceVar, said, got, want)
		}
	}
}
