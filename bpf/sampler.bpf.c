/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The CPU sampler: at each tick of a CPU's clock, one record of what the running thread does. */
#include "events.h"

EXPORT(struct, sample);
EXPORT(struct, stack_chunk);
EXPORT(struct, python_code);
EXPORT(enum, limit);
EXPORT(enum, scope);
EXPORT(enum, python_flag);
EXPORT(struct, span_layout);
EXPORT(struct, span_owner);
EXPORT(enum, span_attributes);
EXPORT(enum, target_flag);
EXPORT(enum, incarnation);
EXPORT(enum, stack_kind);
EXPORT(enum, python_state);
EXPORT(enum, count);
EXPORT(enum, lost_kind);
EXPORT(enum, lost_reason);
EXPORT(enum, native_state);
EXPORT(enum, native_scope);
EXPORT(enum, unwind_cfa);
EXPORT(enum, unwind_fp);
EXPORT(struct, unwind_mapping);
EXPORT(struct, unwind_row);
EXPORT(struct, unwind_rule);

/* The registers of user code; when the tick fell into the kernel, those with which it will go on. */
static __always_inline void user_registers(const struct pt_regs *regs, struct pt_regs *user) {
    if (IS_USER_MODE(regs)) {
        __builtin_memcpy(user, regs, sizeof(*user));
        return;
    }
    if (bpf_probe_read_kernel(user, sizeof(*user), (const void *)bpf_task_pt_regs(current_task())))
        __builtin_memset(user, 0, sizeof(*user));
}

static __always_inline void count_lost_sample(u32 process, u32 pid) {
    struct loss key = {.process = process, .pid = pid, .kind = LOST_SAMPLE, .reason = LOST_RING_FULL};
    count_loss(&key);
}

SEC("perf_event")
int sample_cpu(struct bpf_perf_event_data *context) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    struct stacks found;
    struct pt_regs user;
    struct target *target;
    if (!pid || (current_task()->flags & TASK_IS_KERNEL_THREAD) || !is_wanted(pid, &target))
        return 0;
    u32 process = target ? target->process : 0;
    count_one(COUNT_SAMPLES_SEEN);
    user_registers(&context->regs, &user);
    take_stacks(target, &user, &found);
    struct sample *sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
    if (!sample) {
        count_lost_sample(process, pid);
        return 0;
    }
    fill_origin(&sample->origin, process, &found);
    sample->kernel = 0;
    sample->instruction = user.ip;
    bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
    return 0;
}

LICENSE_OF_OBJECT;
