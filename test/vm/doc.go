// The command vm runs the product in machines like those it is made for: cgroup2
// only, systemd, users with and without a user manager, capabilities denied in
// user namespaces. The machines are emulated, so a host of any kind can run them,
// without /dev/kvm; each row of the matrix gets a fresh one, which goes on from a
// saved state.
//
// matrix.go has the rows and what each is to end with, judge.go decides what it
// did end with, known.go lists what an emulated processor is too slow to show.
// image.go, devices.go and machine.go make and run the machines; image/ is what a
// machine is made of, guest/ what it does.
package main
