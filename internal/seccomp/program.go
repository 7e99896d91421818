package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
)

// maxInstructions is the kernel's BPF_MAXINSNS.
const maxInstructions = 4096

// sizeofInstruction is that of struct sock_filter.
const sizeofInstruction = 8

// Program is a compiled filter. The zero value is none and cannot be
// installed.
type Program struct{ raw []bpf.RawInstruction }

func programOf(ins []bpf.Instruction) (Program, error) {
	raw, err := bpf.Assemble(ins)
	if err != nil {
		return Program{}, err
	}
	p := Program{raw}
	return p, p.check()
}

// ParseProgram reads what Raw wrote.
func ParseProgram(raw []byte) (Program, error) {
	if len(raw)%sizeofInstruction != 0 || len(raw) > maxInstructions*sizeofInstruction {
		return Program{}, fmt.Errorf("%d bytes are no system call filter", len(raw))
	}
	var p Program
	for ; len(raw) > 0; raw = raw[sizeofInstruction:] {
		p.raw = append(p.raw, bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(raw),
			Jt: raw[2],
			Jf: raw[3],
			K:  binary.NativeEndian.Uint32(raw[4:]),
		})
	}
	return p, p.check()
}

// check refuses what cannot be a filter; the kernel checks the rest.
func (p Program) check() error {
	if len(p.raw) == 0 {
		return fmt.Errorf("a system call filter of no instructions")
	}
	if len(p.raw) > maxInstructions {
		return fmt.Errorf("a system call filter of %d instructions: the kernel takes %d", len(p.raw), maxInstructions)
	}
	ins, all := bpf.Disassemble(p.raw)
	if !all {
		return fmt.Errorf("a system call filter with an unknown instruction")
	}
	if _, err := bpf.NewVM(ins); err != nil {
		return fmt.Errorf("check a system call filter: %w", err)
	}
	return nil
}

// Len is the number of instructions.
func (p Program) Len() int { return len(p.raw) }

// Raw is the program as an array of struct sock_filter of this machine.
func (p Program) Raw() []byte {
	raw := make([]byte, 0, len(p.raw)*sizeofInstruction)
	for _, i := range p.raw {
		raw = binary.NativeEndian.AppendUint16(raw, i.Op)
		raw = append(raw, i.Jt, i.Jf)
		raw = binary.NativeEndian.AppendUint32(raw, i.K)
	}
	return raw
}
