package steps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/egress"
	"github.com/untrusted-steps/untrusted-steps/internal/gha"
)

// way is one step's way out: its proxy, and what the box needs to find it.
type way struct {
	proxy    *egress.Proxy
	forwards []egress.Forward
	expected []egress.Rule
}

// wayOf is the way out of a step without its proxy, nil if it has none. Load has
// read every rule before, so an error here is ours.
func wayOf(s PlanStep) (w *way, p egress.Policy, err error) {
	if !s.hasWay() {
		return nil, p, nil
	}
	bug := func(err error) (*way, egress.Policy, error) {
		return nil, p, fmt.Errorf("steps: bug: rules passed the check: %w", err)
	}
	presets := s.presets()
	parseDeny := func(text string) ([]egress.Rule, error) { return egress.ParseDenyIn(presets, text) }
	p.Audit = s.EgressMode == ModeAudit
	if p.Allow, err = expand(s.EgressAllow, func(e egress.Entry) ([]egress.Rule, error) { return egress.ParseEntryIn(presets, e) }); err != nil {
		return bug(err)
	}
	if p.Deny, err = expand(s.EgressDeny, parseDeny); err != nil {
		return bug(err)
	}
	w = &way{}
	if w.expected, err = expand(s.ExpectDenied, parseDeny); err != nil {
		return bug(err)
	}
	if w.forwards, err = egress.Forwards(p.Allow); err != nil {
		return bug(err)
	}
	return w, p, nil
}

// openWay makes the way out of a step, nil if it has none.
func (r *Runner) openWay(s PlanStep) (*way, error) {
	w, policy, err := wayOf(s)
	if w == nil {
		return nil, err
	}
	ledger := &egress.Ledger{Step: s.ID, Setup: s.InSetup}
	if r.EgressLog != nil {
		ledger.Log = &maskedLines{w: r.EgressLog, m: r.Masker}
	}
	w.proxy = r.NewProxy(policy, ledger)
	w.proxy.MaxBytes = s.EgressMaxBytes
	return w, nil
}

// maskedLines takes secrets out of lines of JSON: a step that was given one can
// ask for it as a host name. Only what the step chose is looked at; a secret
// that happens to be one of our words does not change them.
type maskedLines struct {
	w io.Writer
	m *gha.Masker
}

func (l *maskedLines) Write(p []byte) (int, error) {
	if l.m.Longest() == 0 {
		return l.w.Write(p)
	}
	var out []byte
	for line := range bytes.Lines(p) {
		var fields map[string]any
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&fields); err != nil {
			return 0, fmt.Errorf("steps: bug: a line of the request log is no JSON: %w", err)
		}
		for _, k := range []string{"host", "sni", "path", "method"} {
			if s, ok := fields[k].(string); ok {
				fields[k] = l.m.Lasting(s)
			}
		}
		text, err := json.Marshal(fields)
		if err != nil {
			return 0, err
		}
		out = append(append(out, text...), '\n')
	}
	if _, err := l.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// show tells the box's spec where the way out is. A nil way is nowhere.
func (w *way) show(b *box.Spec) {
	if w == nil {
		return
	}
	for _, f := range w.forwards {
		b.Listen = append(b.Listen, f.Listen)
		if f.NeedsAddr && !slices.Contains(b.Addrs, f.Listen.Addr()) {
			b.Addrs = append(b.Addrs, f.Listen.Addr())
		}
	}
	b.Hosts = egress.HostsLines(w.forwards)
}

// report writes down whom the step talked to, and what its list should be.
func (w *way) report(sr *StepResult, s PlanStep) {
	records := w.proxy.Ledger.Records()
	w.told(sr, records)
	w.advise(sr, s, records)
}

// told writes down requests.
func (w *way) told(sr *StepResult, records []egress.Record) {
	for _, rec := range records {
		sr.Egress = append(sr.Egress, EgressRecord{
			Host: rec.Host, Port: rec.Port, Protocol: rec.Protocol, Verdict: rec.Verdict, Reason: rec.Reason, Rule: rec.Rule,
			Count: rec.Count, BytesIn: rec.BytesIn, BytesOut: rec.BytesOut,
			Expected: rec.Verdict == egress.Denied && egress.Expected(w.expected, rec),
		})
	}
}

// advise writes down what the list should be, after all requests.
func (w *way) advise(sr *StepResult, s PlanStep, records []egress.Record) {
	if s.EgressMode == ModeAudit {
		sr.EgressProposal = append(sr.EgressProposal, egress.Proposal(records)...)
		return
	}
	sr.EgressUnused = append(sr.EgressUnused, egress.Unused(s.presets(), s.EgressAllow, records)...)
	sr.EgressTooWide = egress.TooWide(s.presets(), s.EgressAllow, records)
}
