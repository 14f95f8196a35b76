/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Births and deaths of processes: keeps `targets` right at once and tells Python, on raw tracepoints (no tracefs).
 * Each tracepoint runs in the thread that it tells of: the parent at fork, the thread itself at exec and exit. */
#include "events.h"

EXPORT(struct, process_event);
EXPORT(enum, process_event_kind);

/* Forks of targets so far, by which their children are numbered. */
u32 forks;

static __always_inline void report(enum process_event_kind kind, u32 process, struct task_struct *task, u32 parent) {
    struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
    if (!event) {
        count_one(COUNT_EVENTS_LOST);
        return;
    }
    event->time = bpf_ktime_get_ns();
    event->pid = BPF_CORE_READ(task, tgid);
    event->parent = parent;
    event->process = process;
    event->kind = kind;
    BPF_CORE_READ_INTO(&event->comm, task, comm);
    bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

static __always_inline int is_followed(const struct target *target) {
    const u32 only = ONLY;
    struct settings *set = bpf_map_lookup_elem(&settings, &only);
    return (set && set->scope == SCOPE_NODE) || (target->flags & TARGET_FOLLOW);
}

/* Gives the child its parent's way to the current span: what is in its memory stands where it stood. */
static __always_inline void inherit_spans(u32 parent, u32 child) {
    struct span_owner owner = {.pid = parent};
    struct span_layout *layout = bpf_map_lookup_elem(&spans_of, &owner);
    owner.pid = child;
    if (layout)
        bpf_map_update_elem(&spans_of, &owner, layout, BPF_ANY);
}

/* Makes the child a target like its parent; its incarnation, 0 when it is none. */
static __always_inline u32 inherit(u32 parent, u32 child) {
    struct target *target = bpf_map_lookup_elem(&targets, &parent);
    struct target copy;
    if (!target || !is_followed(target))
        return 0;
    __builtin_memcpy(&copy, target, sizeof(copy));
    copy.flags |= TARGET_YOUNG;
    copy.process = INCARNATION_FORKED | __sync_fetch_and_add(&forks, 1);
    if (copy.flags & TARGET_SPANS)
        inherit_spans(parent, child);
    return bpf_map_update_elem(&targets, &child, &copy, BPF_ANY) ? 0 : copy.process;
}

/* Takes the process out of the targets; the incarnation that it had. */
static __always_inline u32 forget(u32 pid) {
    struct target *target = bpf_map_lookup_elem(&targets, &pid);
    struct span_owner owner = {.pid = pid};
    u32 process = target ? target->process : 0;
    if (target && (target->flags & TARGET_SPANS))
        bpf_map_delete_elem(&spans_of, &owner);
    if (target)
        bpf_map_delete_elem(&targets, &pid);
    return process;
}

static __always_inline int is_thread(struct task_struct *task) {
    return BPF_CORE_READ(task, pid) != BPF_CORE_READ(task, tgid);
}

/* sched_process_fork(struct task_struct *parent, struct task_struct *child): new threads pass here too. */
SEC("raw_tp/sched_process_fork")
int process_forked(u64 *context) {
    struct task_struct *parent = (struct task_struct *)context[0], *child = (struct task_struct *)context[1];
    if (is_thread(child))
        return 0;
    u32 from = BPF_CORE_READ(parent, tgid);
    report(PROCESS_FORK, inherit(from, BPF_CORE_READ(child, tgid)), child, from);
    return 0;
}

/* sched_process_exec(struct task_struct *task, …): the other threads are gone and the task is the leader. */
SEC("raw_tp/sched_process_exec")
int process_executed(u64 *context) {
    struct task_struct *task = (struct task_struct *)context[0];
    report(PROCESS_EXEC, forget(BPF_CORE_READ(task, tgid)), task, 0);
    return 0;
}

/* sched_process_exit(struct task_struct *task, …), after the thread was taken off the living: the process ends with the
 * last thread, whichever it is. Two that end at the same moment both see none left; the second then tells of process 0.
 */
SEC("raw_tp/sched_process_exit")
int process_exited(u64 *context) {
    struct task_struct *task = (struct task_struct *)context[0];
    if (BPF_CORE_READ(task, signal, live.counter) > 0)
        return 0;
    report(PROCESS_EXIT, forget(BPF_CORE_READ(task, tgid)), task, 0);
    return 0;
}

LICENSE_OF_OBJECT;
