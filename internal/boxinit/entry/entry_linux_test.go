package entry

import "testing"

func TestIsChild(t *testing.T) {
	for _, tc := range []struct {
		sentence string
		args     []string
		want     bool
	}{
		{"the marker and a socket make a first process", []string{"x", Marker, "/step/control"}, true},
		{"the marker alone does not", []string{"x", Marker}, false},
		{"the marker elsewhere does not", []string{Marker, "x", "y"}, false},
		{"more arguments do not", []string{"x", Marker, "/step/control", "y"}, false},
		{"a file of that name does not", []string{"x", "run", Marker}, false},
		{"no arguments do not", nil, false},
	} {
		t.Run(tc.sentence, func(t *testing.T) {
			if got := isChild(tc.args); got != tc.want {
				t.Errorf("%v", got)
			}
		})
	}
}
