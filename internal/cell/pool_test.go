package cell

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// things are what a pool in a test keeps.
type things struct {
	made, ended atomic.Int64
}

func (t *things) make(context.Context) (int, error) { return int(t.made.Add(1)), nil }
func (t *things) end(int)                           { t.ended.Add(1) }

// eventually waits for what goes on behind.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so after 10 s: %s", what)
		}
	}
}

func TestPool(t *testing.T) {
	var made things
	p := NewPool(2, time.Minute, made.end)
	if _, ok := p.Take("a", made.make); ok {
		t.Error("there was one before anybody asked")
	}
	eventually(t, "two are ready", func() bool { return p.Ready() == 2 })
	first, ok := p.Take("a", made.make)
	second, ok2 := p.Take("a", made.make)
	if !ok || !ok2 || first == second {
		t.Errorf("%d %v, %d %v: each serves once", first, ok, second, ok2)
	}
	eventually(t, "two are ready again", func() bool { return p.Ready() == 2 })
	if _, ok := p.Take("b", made.make); ok {
		t.Error("one for another key was given")
	}
	eventually(t, "those of the old key are ended", func() bool { return made.ended.Load() == 2 })
	eventually(t, "there are two of the new key", func() bool { return p.Ready() == 2 })
	p.Drop()
	if p.Ready() != 0 || made.ended.Load() < 4 {
		t.Errorf("%d ready, %d ended after Drop", p.Ready(), made.ended.Load())
	}
	time.Sleep(20 * time.Millisecond)
	if p.Ready() != 0 {
		t.Error("others are made when nobody has asked")
	}
	if _, ok := p.Take("b", made.make); ok {
		t.Error("one is there after Drop")
	}
	eventually(t, "two are ready", func() bool { return p.Ready() == 2 })
	p.Close()
	if _, ok := p.Take("b", made.make); ok || p.Ready() != 0 {
		t.Error("one is there after Close")
	}
	if n := made.made.Load() - made.ended.Load(); n != 2 { // those that were taken
		t.Errorf("%d are left", n)
	}
}

func TestPoolForgetsTheOld(t *testing.T) {
	var made things
	p := NewPool(1, time.Minute, made.end)
	now := time.Now()
	p.now = func() time.Time { return now }
	p.Take("a", made.make)
	eventually(t, "one is ready", func() bool { return p.Ready() == 1 })
	now = now.Add(2 * time.Minute)
	if _, ok := p.Take("a", made.make); ok {
		t.Error("an old one was given")
	}
	p.Close()
	if made.made.Load() != made.ended.Load() {
		t.Errorf("%d made, %d ended", made.made.Load(), made.ended.Load())
	}
}

// One that cannot be made is not tried again until somebody asks, and what is being
// made when it is no longer wanted is ended.
func TestPoolThatCannotMake(t *testing.T) {
	var tries atomic.Int64
	var made things
	p := NewPool(3, time.Minute, made.end)
	fails := func(context.Context) (int, error) { tries.Add(1); return 0, errors.New("no") }
	p.Take("a", fails)
	eventually(t, "it was tried", func() bool { return tries.Load() == 1 })
	time.Sleep(20 * time.Millisecond)
	if n := tries.Load(); n != 1 {
		t.Errorf("tried %d times", n)
	}
	begun := make(chan struct{})
	p.Take("b", func(ctx context.Context) (int, error) {
		close(begun)
		<-ctx.Done()
		return made.make(ctx)
	})
	<-begun
	p.Close()
	if made.made.Load() != 1 || made.ended.Load() != 1 {
		t.Errorf("%d made, %d ended", made.made.Load(), made.ended.Load())
	}
}

func TestPoolOfMany(t *testing.T) {
	var made things
	p := NewPool(4, time.Minute, made.end)
	var wg sync.WaitGroup
	var taken atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for k := range 200 {
				if _, ok := p.Take("ab"[k/100:k/100+1], made.make); ok {
					taken.Add(1)
				}
				if i == 0 && k%50 == 0 {
					p.Drop()
				}
			}
		})
	}
	wg.Wait()
	p.Close()
	if n := made.made.Load() - made.ended.Load(); n != taken.Load() {
		t.Errorf("%d were made and not ended, %d taken", n, taken.Load())
	}
}
