// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The setting of Ubuntu's kernel that Debian's lacks, and what it does there:
 * kernel.apparmor_restrict_unprivileged_userns. While it is 1, a program of a normal
 * user that AppArmor confines by no profile has no capability in a user namespace.
 * One with a profile, also one of mode unconfined, is left alone.
 */
#include <linux/cred.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/security.h>
#include <linux/string.h>
#include <linux/sysctl.h>
#include <linux/user_namespace.h>

static int restricted = 1;

static struct ctl_table settings[] = {
	{
		.procname = "apparmor_restrict_unprivileged_userns",
		.data = &restricted,
		.maxlen = sizeof(restricted),
		.mode = 0644,
		.proc_handler = proc_dointvec_minmax,
		.extra1 = SYSCTL_ZERO,
		.extra2 = SYSCTL_ONE,
	},
	{}
};

/* Whether the one who asks is in no profile. */
static bool in_none(void)
{
	static const char none[] = "unconfined";
	char *label;
	u32 id, length;
	bool is;

	security_current_getsecid_subj(&id);
	if (security_secid_to_secctx(id, &label, &length))
		return false;
	is = length >= sizeof(none) - 1 && length <= sizeof(none) + 1 && strnstr(label, none, length);
	security_release_secctx(label, length);
	return is;
}

struct asked {
	bool deny;
};

/* int security_capable(const struct cred *, struct user_namespace *, int cap, unsigned int) */
static int asks(struct kretprobe_instance *at, struct pt_regs *regs)
{
	struct asked *a = (struct asked *)at->data;
	struct user_namespace *of = (struct user_namespace *)regs->si;

	a->deny = READ_ONCE(restricted) && of != &init_user_ns && !uid_eq(current_uid(), GLOBAL_ROOT_UID) && in_none();
	return 0;
}

static int answers(struct kretprobe_instance *at, struct pt_regs *regs)
{
	if (((struct asked *)at->data)->deny)
		regs_set_return_value(regs, -EPERM);
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "security_capable",
	.entry_handler = asks,
	.handler = answers,
	.data_size = sizeof(struct asked),
	.maxactive = 1024,
};

static struct ctl_table_header *header;

static int __init begin(void)
{
	int err = register_kretprobe(&probe);

	if (err)
		return err;
	header = register_sysctl("kernel", settings);
	if (!header) {
		unregister_kretprobe(&probe);
		return -ENOMEM;
	}
	return 0;
}

module_init(begin);
MODULE_LICENSE("GPL v2");
