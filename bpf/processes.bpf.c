/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Births and deaths of processes: keeps `targets` right at once and tells Python, on raw tracepoints (no tracefs).
 * Each tracepoint runs in the thread that it tells of: the parent at fork, the thread itself at exec and exit. */
#include "events.h"

EXPORT(struct, process_event);
EXPORT(struct, program);
EXPORT(enum, process_event_kind);

/* Processes that were made targets here so far, by which they are numbered. */
u32 born;

/* An event to be filled in and submitted; 0: no room. */
static __always_inline struct process_event *event_of(enum process_event_kind kind, struct task_struct *task) {
    struct process_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
    if (!event) {
        count_one(COUNT_EVENTS_LOST);
        return 0;
    }
    __builtin_memset(event, 0, sizeof(*event));
    event->time = bpf_ktime_get_ns();
    event->pid = BPF_CORE_READ(task, tgid);
    event->kind = kind;
    BPF_CORE_READ_INTO(&event->comm, task, comm);
    return event;
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
    copy.process = INCARNATION_FORKED | __sync_fetch_and_add(&born, 1);
    if (copy.flags & TARGET_SPANS)
        inherit_spans(parent, child);
    return bpf_map_update_elem(&targets, &child, &copy, BPF_ANY) ? 0 : copy.process;
}

static __always_inline struct program program_of(struct linux_binprm *binary) {
    return (struct program){
        .inode = BPF_CORE_READ(binary, file, f_inode, i_ino),
        .device = BPF_CORE_READ(binary, file, f_inode, i_sb, s_dev),
    };
}

/* Whether a process that runs a new program is a target still, if it was one with these flags (0: it wasn't). */
static __always_inline int stays_target(u32 was, u32 flags) {
    const u32 only = ONLY;
    struct settings *set = bpf_map_lookup_elem(&settings, &only);
    return (set && set->scope == SCOPE_NODE) || (was && !(flags & TARGET_IGNORED));
}

/* Makes a process a target whose program is known; its incarnation, 0 when it isn't. */
static __always_inline u32 become(u32 pid, const struct program *program, u32 flags) {
    struct python_layout *layout = bpf_map_lookup_elem(&programs, program);
    struct target target = {};
    if (!layout)
        return 0;
    target.python = *layout;
    target.flags = TARGET_PYTHON | TARGET_YOUNG | (flags & TARGET_FOLLOW);
    target.process = INCARNATION_FORKED | __sync_fetch_and_add(&born, 1);
    return bpf_map_update_elem(&targets, &pid, &target, BPF_ANY) ? 0 : target.process;
}

static __always_inline u32 flags_of(u32 pid) {
    struct target *target = bpf_map_lookup_elem(&targets, &pid);
    return target ? target->flags : 0;
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
    u32 process = inherit(from, BPF_CORE_READ(child, tgid));
    struct process_event *event = event_of(PROCESS_FORK, child);
    if (!event)
        return 0;
    event->parent = from;
    event->process = process;
    bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
    return 0;
}

/* sched_process_exec(struct task_struct *task, pid_t old, struct linux_binprm *binary): the other threads are gone and
 * the task is the leader. */
SEC("raw_tp/sched_process_exec")
int process_executed(u64 *context) {
    struct task_struct *task = (struct task_struct *)context[0];
    struct program program = program_of((struct linux_binprm *)context[2]);
    u32 pid = BPF_CORE_READ(task, tgid), flags = flags_of(pid), was = forget(pid);
    u32 next = stays_target(was, flags) ? become(pid, &program, flags) : 0;
    struct process_event *event = event_of(PROCESS_EXEC, task);
    if (!event)
        return 0;
    event->process = was;
    event->next = next;
    event->program = program;
    bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
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
    u32 process = forget(BPF_CORE_READ(task, tgid));
    struct process_event *event = event_of(PROCESS_EXIT, task);
    if (!event)
        return 0;
    event->process = process;
    bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
    return 0;
}

LICENSE_OF_OBJECT;
