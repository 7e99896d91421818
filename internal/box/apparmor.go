package box

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// AppArmor says why no process of this host can enter a profile; nil if one can.
func AppArmor() error {
	text, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	if err != nil || strings.TrimSpace(string(text)) != "Y" {
		return errors.New("apparmor: AppArmor is off on this host, so no profile can be entered; take the key out, or run where it is on")
	}
	return nil
}

// AppArmorProfile says why no process of this host can enter this profile, as far
// as that is seen without entering it: that it may not be entered from where we are
// is said by the kernel, as the step starts, and then nothing of the step runs.
func AppArmorProfile(name string) error {
	if err := AppArmor(); err != nil {
		return err
	}
	return loaded(name, askKernel)
}

// loaded asks whether there is a profile of the name.
func loaded(name string, ask func(string) error) error {
	if errors.Is(ask(name), syscall.ENOENT) {
		return fmt.Errorf("apparmor: no profile %s is loaded on this host; load it (apparmor_parser --replace FILE), or take the key out", name)
	}
	return nil
}

// askKernel asks whether this thread could enter a profile, and changes nothing.
// The list of all profiles is root's to read.
func askKernel(name string) error {
	// The question is of the thread that asks.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	file, err := os.OpenFile("/proc/thread-self/attr/apparmor/current", os.O_WRONLY, 0)
	if err != nil {
		// Not ENOENT, which would be about the profile.
		return errors.New("ask AppArmor: " + err.Error())
	}
	defer file.Close()
	_, err = file.WriteString("permprofile " + name)
	return err
}
