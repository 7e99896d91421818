package kern

import "runtime"

// Version is the release of kern that this program is built and tested with.
const Version = "0.33.0"

// pin is one released build of kern.
type pin struct {
	Version string
	Arch    string // as Go names it
	SHA256  string // of the program itself, not of what it was packed in
}

// pins are the builds that need no admission. Both come from the Linux wheels
// of the package below.
var pins = []pin{
	{"0.33.0", "amd64", "c16b3b2d4e06e551be5edb9bba8dcfc80001f112177e48ed69d628413a8fe1ff"},
	{"0.33.0", "arm64", "f9fc355d7cc2eace34b5934004b62c5272758f09cc5cb90294daf656bcd9c517"},
}

// The package whose wheel carries the release, and the tags of its Linux wheels.
const (
	wheelPackage = "kern-sandbox"
	wheelVersion = "0.2.49"
	wheelMember  = ".data/scripts/kern"
)

// Wheel is that package as pip takes it, of the release that this program knows. What
// compares with the package, or asks whether it can be had, asks for no other.
const Wheel = wheelPackage + "==" + wheelVersion

var wheelPlatform = map[string]string{
	"amd64": "manylinux2014_x86_64",
	"arm64": "manylinux2014_aarch64",
}

// releaseURL is where kern's own releases are; %s are version and machine.
const releaseURL = "https://github.com/getkern/kern/releases/download/v%s/kern-%s-unknown-linux-musl.tar.gz"

var releaseMachine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// thisArch is the machine we run on, as Go names it.
const thisArch = runtime.GOARCH

// pinFor finds the pinned build for an architecture.
func pinFor(arch string) (pin, bool) { return pinAmong(pins, arch) }

func pinAmong(pins []pin, arch string) (pin, bool) {
	for _, p := range pins {
		if p.Arch == arch && p.Version == Version {
			return p, true
		}
	}
	return pin{}, false
}
