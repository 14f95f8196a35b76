/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The floor for a probe: a uprobe program that does nothing. */
#include "bpf.h"

SEC("kprobe")
int nothing(struct pt_regs *context) {
    (void)context;
    return 0;
}

LICENSE_OF_OBJECT;
