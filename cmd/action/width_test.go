package main

import (
	"os"
	"testing"
)

// TestWidth: only a terminal has a width. The log of a job is a pipe, and names
// in it are not cut to fit a screen that nobody has.
func TestWidth(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	if got := widthOf(write); got != 0 {
		t.Errorf("a pipe is %d wide, want 0 for any", got)
	}
}
