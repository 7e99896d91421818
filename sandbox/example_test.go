package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/untrusted-steps/untrusted-steps/sandbox"
)

func Example() {
	ctx := context.Background()
	box, err := sandbox.New(ctx, sandbox.Options{Engine: "native", MemoryMb: 128})
	var refusal *sandbox.Refusal
	if errors.As(err, &refusal) {
		log.Fatal(refusal.Cause, refusal.Fix) // this host cannot enforce it
	}
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	r, err := box.RunCode(ctx, sandbox.Python, "print(sum(range(100)))")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Success, r.Stdout)
	// Output: true 4950
}

func ExampleSandbox_Do() {
	ctx := context.Background()
	box, err := sandbox.New(ctx, sandbox.Options{Engine: "native"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	r, err := box.Do(ctx, sandbox.Call{Command: []string{"sleep", "60"}, Timeout: time.Second / 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Success, r.Fault.Type)
	// Output: false timeout
}

func ExampleSandbox_WriteFile() {
	ctx := context.Background()
	box, err := sandbox.New(ctx, sandbox.Options{Engine: "native"})
	if err != nil {
		log.Fatal(err)
	}
	defer box.Close()
	if err := box.WriteFile("in.txt", []byte("b\na\n")); err != nil {
		log.Fatal(err)
	}
	r, err := box.Run(ctx, "sort", "-o", "out.txt", "in.txt")
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range r.Files {
		fmt.Println(f.Change, f.Path, f.Size)
	}
	text, err := box.ReadFile("out.txt")
	fmt.Printf("%q %v\n", text, err)
	// Output:
	// created out.txt 4
	// "a\nb\n" <nil>
}
