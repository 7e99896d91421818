package gha

import (
	"fmt"
	"time"
)

const (
	// eraseLine returns to the first column and clears the line.
	eraseLine = "\r\x1b[K"
	// progressEvery is how often the time shown moves on.
	progressEvery = time.Second
	defaultWidth  = 80
)

// progress is the line at the bottom of a terminal that says how far a run is.
type progress struct {
	began       time.Time
	done, total int
	running     string
	hidden      bool
	drawn       bool // it is on the screen
	quit, gone  chan struct{}
}

// Progress says that done of total steps have ended and which run now. On
// anything but a terminal it says nothing.
func (l *Log) Progress(done, total int, running string) {
	if !l.opts.Terminal || l.opts.Actions {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.progress
	if p.hidden {
		return
	}
	p.done, p.total, p.running = done, total, InertASCII(l.opts.Masker.Mask(running))
	l.redraw()
	if p.quit == nil {
		p.quit, p.gone = make(chan struct{}), make(chan struct{})
		go l.tick(p.quit, p.gone)
	}
}

func (l *Log) tick(quit, gone chan struct{}) {
	defer close(gone)
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-quit:
			return
		case <-t.C:
			l.mu.Lock()
			l.redraw()
			l.mu.Unlock()
		}
	}
}

// redraw puts the line on the screen anew. mu is held.
func (l *Log) redraw() {
	var b []byte
	if l.progress.drawn {
		b, l.progress.drawn = append(b, eraseLine...), false
	}
	if b = append(b, l.status()...); len(b) > 0 {
		l.write(b)
	}
}

// status is the line to draw, or nothing. mu is held.
func (l *Log) status() string {
	p := &l.progress
	if p.total == 0 || p.hidden {
		return ""
	}
	s := Line{{Text: fmt.Sprintf("[%d of %d]", p.done, p.total)}}
	if l.opts.Now != nil {
		s = append(s, Span{" " + l.opts.Now().Sub(p.began).Truncate(time.Second).String(), Faint})
	}
	if p.running != "" {
		s = append(s, Span{Text: " " + p.running})
	}
	width := defaultWidth
	if l.opts.Width != nil {
		width = l.opts.Width()
	}
	// A line as wide as the terminal may wrap, and could not be erased then.
	p.drawn = true
	return s.cut(max(width-1, 1)).Shown(l.opts.Colour)
}

// stop ends the clock; the function it returns waits for it, without mu.
func (p *progress) stop() func() {
	quit, gone := p.quit, p.gone
	p.quit = nil
	if quit == nil {
		return func() {}
	}
	close(quit)
	return func() { <-gone }
}
