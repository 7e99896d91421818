package steps

import (
	"fmt"
	"testing"
)

// TestAbsurdLimits is attack J126: a cap that is none, written as a number.
func TestAbsurdLimits(t *testing.T) {
	for _, key := range []string{"memoryMb", "pids", "cpus", "timeoutS", "maxOutputBytes"} {
		for _, n := range []string{"0", "-1", "-0", "1e30", "1e999", "99999999999999999999", "9223372036854775808", "18446744073709551617", ".nan", ".inf", "-.inf", "0x7fffffff", "010", "1_000", "1:30"} {
			t.Run(fmt.Sprintf("J126 %s: %s is refused", key, n), func(t *testing.T) {
				src := fmt.Sprintf("steps:\n  - run: x\n    %s: %s\n", key, n)
				if p, err := Load("f.yml", []byte(src), testOptions(t)); err == nil {
					t.Errorf("it became %+v", p.Steps[0])
				}
			})
		}
	}
}
