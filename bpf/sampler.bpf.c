/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The CPU sampler: at each tick of a CPU's clock, one record of what the running thread does. */
#include "events.h"

EXPORT(struct, sample);
EXPORT(struct, stack_chunk);
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

/* Where user code is; when the tick fell into the kernel, where it will go on. */
static __always_inline u64 user_instruction(const struct pt_regs *regs) {
    if (IS_USER_MODE(regs))
        return regs->ip;
    const struct pt_regs *user = (const struct pt_regs *)bpf_task_pt_regs(current_task());
    u64 instruction = 0;
    bpf_probe_read_kernel(&instruction, sizeof(instruction), &user->ip);
    return instruction;
}

static __always_inline void count_lost_sample(u32 process, u32 pid) {
    struct loss key = {.process = process, .pid = pid, .kind = LOST_SAMPLE, .reason = LOST_RING_FULL};
    count_loss(&key);
}

SEC("perf_event")
int sample_cpu(struct bpf_perf_event_data *context) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    struct python_stack stack;
    struct target *target;
    if (!pid || (current_task()->flags & TASK_IS_KERNEL_THREAD) || !is_wanted(pid, &target))
        return 0;
    u32 process = target ? target->process : 0;
    count_one(COUNT_SAMPLES_SEEN);
    take_python_stack(target, &stack);
    struct sample *sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
    if (!sample) {
        count_lost_sample(process, pid);
        return 0;
    }
    fill_origin(&sample->origin, process, &stack);
    sample->kernel = 0;
    sample->instruction = user_instruction(&context->regs);
    bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
    return 0;
}

LICENSE_OF_OBJECT;
