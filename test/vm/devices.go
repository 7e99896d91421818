package main

import "path/filepath"

const (
	emulator = "qemu-system-x86_64"
	memoryMb = "2560"
)

// How a machine's memory and disk are used.
type use int

const (
	saving   use = iota // kept in the image, to be gone on from
	resuming            // read from there, changes go with the machine
	booting             // memory of its own
)

// args are the devices of a machine. A saved state fits only the very same, so
// this file is a part of what an image is known by.
func (m *machine) args(i image, share string, u use) []string {
	disk := "if=virtio,format=raw,file=" + i.file("disk")
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", "2", "-m", memoryMb,
		"-kernel", i.file("kernel"), "-initrd", i.file("initrd"),
		// No defences against other machines: they cost time, and there are none.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off nopti audit=0",
		"-serial", "file:" + m.console(),
		"-chardev", "socket,id=word,server=on,wait=off,path=" + m.word(), "-serial", "chardev:word",
		"-qmp", "unix:" + m.monitor() + ",server=on,wait=off",
		"-device", "virtio-rng-pci",
		"-fsdev", "local,id=share,security_model=none,multidevs=remap,path=" + share,
		"-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
	}
	if u != saving {
		disk += ",snapshot=on,cache=unsafe"
	}
	if u != booting {
		// Memory is the file itself: a machine that goes on reads what it touches only.
		shared := map[bool]string{true: "on", false: "off"}[u == saving]
		args = append(args, "-machine", "memory-backend=ram",
			"-object", "memory-backend-file,id=ram,size="+memoryMb+"M,share="+shared+",mem-path="+i.file("memory"))
	}
	if u == resuming {
		args = append(args, "-incoming", "defer")
	}
	return append(args, "-drive", disk)
}

func (m *machine) console() string { return filepath.Join(m.dir, "console") }
func (m *machine) word() string    { return filepath.Join(m.dir, "word") }
func (m *machine) monitor() string { return filepath.Join(m.dir, "monitor") }
