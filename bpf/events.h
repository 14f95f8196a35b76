/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What all programs that report events share: who is wanted, working memory, stacks, the head of a record, losses. */
#ifndef OTELPROF_EVENTS_H
#define OTELPROF_EVENTS_H

#include "maps.h"

static __always_inline void count_one(enum count kind) {
    u32 key = kind;
    u64 *total = bpf_map_lookup_elem(&counts, &key);
    if (total)
        __sync_fetch_and_add(total, 1);
}

/* Counts one event that has no record. */
static __always_inline void count_loss(struct loss *key) {
    const u64 none = 0;
    u64 *total = bpf_map_lookup_elem(&losses, key);
    if (!total) {
        bpf_map_update_elem(&losses, key, &none, BPF_NOEXIST);
        total = bpf_map_lookup_elem(&losses, key);
    }
    if (!total) {
        key->process = 0;
        key->pid = 0;
        total = bpf_map_lookup_elem(&losses, key);
    }
    if (total)
        __sync_fetch_and_add(total, 1);
    count_one(COUNT_LOST); /* the last, so that who sees it change finds the rest changed */
}

/* Whether events of this process are wanted; `*found` is its entry, or 0 when it isn't known yet. */
static __always_inline int is_wanted(u32 pid, struct target **found) {
    const u32 only = ONLY;
    struct target *target = bpf_map_lookup_elem(&targets, &pid);
    struct settings *set = bpf_map_lookup_elem(&settings, &only);
    *found = target;
    if (target)
        return !(target->flags & TARGET_IGNORED);
    return set && set->scope == SCOPE_NODE;
}

/* Takes a slot of this CPU's working memory; 0 when none is free. Programs stay on their CPU while they run. */
static __always_inline struct scratch *take_scratch(u32 *slot) {
    const u32 only = ONLY;
    u64 *busy = bpf_map_lookup_elem(&scratch_busy, &only);
    if (!busy)
        return 0;
    for (u32 i = 0; i < SCRATCH_SLOTS; i++) {
        u64 bit = 1ull << i;
        if (__sync_fetch_and_or(busy, bit) & bit)
            continue;
        *slot = i;
        return bpf_map_lookup_elem(&scratch, slot);
    }
    count_one(COUNT_SCRATCH_BUSY);
    return 0;
}

static __always_inline void free_scratch(u32 slot) {
    const u32 only = ONLY;
    u64 *busy = bpf_map_lookup_elem(&scratch_busy, &only);
    if (busy)
        __sync_fetch_and_and(busy, ~(1ull << (slot & (SCRATCH_SLOTS - 1))));
}

/* One frame of the walk in `work`; 1: the walk is over. */
VERIFIED_ONCE int step_python(struct scratch *work) {
    return work ? python_walk_step(&work->walk) : 1;
}

/* The same of the native stack. */
VERIFIED_ONCE int step_native(struct scratch *work) {
    return work ? native_walk_step(&work->native, &work->walk) : 1;
}

/* Frames of the walked stack of a kind, and how many. */
static __always_inline const struct frame *frames_of(const struct scratch *work, u8 kind, u32 *count) {
    *count = kind == STACK_PYTHON ? work->walk.count : work->native.count;
    return kind == STACK_PYTHON ? work->walk.frames : work->native.frames;
}

/* Id of chunk `number` of the walked stack; 0: there is none. */
VERIFIED_ONCE int name_chunk_of(struct scratch *work, u8 kind, u32 number) {
    u32 count;
    if (!work)
        return 0;
    const struct frame *frames = frames_of(work, kind, &count);
    return name_chunk(&work->chunks, frames, count, hash_seed(work->process, kind), number);
}

/* Puts what a frame's code object says of itself into its ring, unless it has been there; 1: no room. */
VERIFIED_ONCE int send_code(struct scratch *work, u32 at) {
    const u8 here = 1;
    if (!work || at >= LIMIT_PYTHON_FRAMES)
        return 0;
    struct code_key key = {
        .address = work->walk.frames[at].address,
        .process = work->process,
        .check = work->walk.frames[at].check,
    };
    if (bpf_map_lookup_elem(&codes_seen, &key))
        return 0;
    struct python_code *code = bpf_ringbuf_reserve(&codes, sizeof(*code), 0);
    if (!code) {
        count_one(COUNT_CODES_LOST);
        return 1;
    }
    code->address = key.address;
    code->process = key.process;
    code->check = key.check;
    read_code(code, &work->walk.layout);
    bpf_ringbuf_submit(code, BPF_RB_NO_WAKEUP);
    bpf_map_update_elem(&codes_seen, &key, &here, BPF_ANY);
    return 0;
}

/* The same of `count` frames. */
static __always_inline void send_codes(struct scratch *work, u32 start, u32 count) {
    for (u32 number = 0; number < LIMIT_CHUNK_FRAMES; number++) {
        if (number >= count || send_code(work, start + number))
            break;
    }
}

/* Puts chunk `number` into the ring, unless it has been there; 1: no room. */
VERIFIED_ONCE int send_chunk(struct scratch *work, u8 kind, u32 number) {
    const u8 here = 1;
    u32 count;
    if (!work || number >= STACK_CHUNKS)
        return 1;
    u64 id = work->chunks.id[number];
    if (bpf_map_lookup_elem(&chunks_seen, &id))
        return 0;
    const struct frame *frames = frames_of(work, kind, &count);
    u32 start = chunk_start(count, number) & (LIMIT_PYTHON_FRAMES - 1);
    if (kind == STACK_PYTHON && (work->flags & TARGET_YOUNG))
        send_codes(work, start, chunk_length(count, number));
    struct stack_chunk *chunk = bpf_ringbuf_reserve(&chunks, sizeof(*chunk), 0);
    if (!chunk) {
        count_one(COUNT_CHUNKS_LOST);
        return 1;
    }
    chunk->id = id;
    chunk->parent = number ? work->chunks.id[(number - 1) & (STACK_CHUNKS - 1)] : 0;
    chunk->process = work->process;
    chunk->kind = kind;
    chunk->count = chunk_length(count, number);
    chunk->pad = 0;
    bpf_probe_read_kernel(chunk->frames, sizeof(chunk->frames), &frames[start]);
    bpf_ringbuf_submit(chunk, work->flags & TARGET_YOUNG ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
    bpf_map_update_elem(&chunks_seen, &id, &here, BPF_ANY);
    count_one(COUNT_CHUNKS_SENT);
    return 0;
}

/* Sends what of the walked stack hasn't been sent, from the root on, and gives its id. What finds no room stops it: a
 * chunk is never there without those towards the root. */
static __always_inline u64 send_stack(struct scratch *work, u8 kind) {
    work->chunks.count = 0;
    for (u32 number = 0; number < STACK_CHUNKS; number++) {
        if (!name_chunk_of(work, kind, number))
            break;
    }
    u32 total = work->chunks.count;
    if (!total || total > STACK_CHUNKS)
        return 0;
    for (u32 number = 0; number < STACK_CHUNKS; number++) {
        if (number >= total || send_chunk(work, kind, number))
            break;
    }
    return work->chunks.id[(total - 1) & (STACK_CHUNKS - 1)];
}

static __always_inline void count_state(u32 state) {
    if (state == PYTHON_TRUNCATED)
        count_one(COUNT_PYTHON_TRUNCATED);
    else if (state == PYTHON_UNREADABLE)
        count_one(COUNT_PYTHON_UNREADABLE);
    else if (state == PYTHON_NO_THREAD_STATE)
        count_one(COUNT_PYTHON_NO_THREAD_STATE);
}

static __always_inline void count_native_state(u32 state) {
    if (state == NATIVE_TRUNCATED)
        count_one(COUNT_NATIVE_TRUNCATED);
    else if (state == NATIVE_NO_TABLE)
        count_one(COUNT_NATIVE_NO_TABLE);
    else if (state == NATIVE_NO_RULE)
        count_one(COUNT_NATIVE_NO_RULE);
    else if (state == NATIVE_UNREADABLE)
        count_one(COUNT_NATIVE_UNREADABLE);
}

/* What the walks found, for the head of a record. */
struct stacks {
    u64 python;
    u64 native;
    u32 python_state; /* enum python_state */
    u32 native_state; /* enum native_state */
    u64 trace_id[2];  /* of the current span, as in struct origin */
    u64 span_id;
};

VERIFIED_ONCE int step_span(struct scratch *work) {
    return work ? span_walk_step(&work->span) : 1;
}

/* The layout for the interpreter that the thread is in; 0: there is none. */
static __always_inline struct span_layout *find_span_layout(u32 pid, u64 thread_state) {
    struct span_owner owner = {.pid = pid};
    struct span_layout *layout = bpf_map_lookup_elem(&spans_of, &owner);
    u64 interpreter = 0;
    if (!layout || read_user(&interpreter, sizeof(interpreter), thread_state + layout->thread_interpreter))
        return 0;
    if (layout->interpreter == interpreter)
        return layout;
    owner.interpreter = interpreter;
    return bpf_map_lookup_elem(&spans_of, &owner);
}

/* Keeps what the walk has found out about the process, for the next ones. Others may write the same words meanwhile. */
static __always_inline void keep_learnt(struct span_layout *layout, const struct span_walk *walk) {
    for (u32 i = 0; i < LIMIT_NODE_TYPES; i++)
        layout->node_types[i] = walk->layout.node_types[i];
    for (u32 i = 0; i < LIMIT_SPAN_TYPES; i++)
        layout->types[i].place = walk->layout.types[i].place;
    layout->span_key_hash = walk->layout.span_key_hash;
    layout->attribute_hash = walk->layout.attribute_hash;
    layout->unknown_type = walk->layout.unknown_type;
}

/* The current span of a thread whose Python stack was walked. */
static __always_inline void take_span(struct scratch *work, struct stacks *found) {
    struct span_walk *walk = &work->span;
    struct span_layout *layout = find_span_layout(bpf_get_current_pid_tgid() >> 32, work->walk.thread_state);
    if (!layout)
        return;
    walk->layout = *layout;
    if (!span_walk_start(walk, work->walk.thread_state)) {
        for (u32 i = 0; i < SPAN_STEPS; i++) {
            if (step_span(work))
                break;
        }
    }
    if (walk->learnt)
        keep_learnt(layout, walk);
    if (walk->state == SPAN_UNREADABLE || walk->state == SPAN_UNKNOWN)
        count_one(COUNT_SPANS_LOST);
    if (walk->state != SPAN_FOUND)
        return;
    found->trace_id[0] = walk->trace_id[0];
    found->trace_id[1] = walk->trace_id[1];
    found->span_id = walk->span_id;
}

static __always_inline void walk_python(struct scratch *work, struct stacks *found) {
    if (!python_walk_start(&work->walk, THREAD_POINTER(current_task()))) {
        for (u32 i = 0; i < WALK_STEPS; i++) {
            if (step_python(work))
                break;
        }
    }
    found->python = send_stack(work, STACK_PYTHON);
    found->python_state = work->walk.state;
    count_state(found->python_state);
}

static __always_inline void walk_native(struct scratch *work, u64 ip, const struct target *target,
                                        struct stacks *found) {
    native_walk_start(&work->native, ip, target->mappings, target->mappings_count);
    for (u32 i = 0; i <= LIMIT_NATIVE_FRAMES; i++) {
        if (step_native(work))
            break;
    }
    found->native = send_stack(work, STACK_NATIVE);
    found->native_state = work->native.state;
    count_native_state(found->native_state);
}

static __always_inline int native_is_wanted(u32 is_python) {
    const u32 only = ONLY;
    struct settings *set = bpf_map_lookup_elem(&settings, &only);
    return set && (set->native == NATIVE_ALL || (set->native == NATIVE_WITHOUT_PYTHON && !is_python));
}

/* The Python and native stacks of the current thread, sent if they are new. `regs` are those of its user code. */
static __always_inline void take_stacks(const struct target *target, const struct pt_regs *regs, struct stacks *found) {
    u32 slot = 0;
    __builtin_memset(found, 0, sizeof(*found));
    if (!target)
        return;
    u32 is_python = target->flags & TARGET_PYTHON, native = native_is_wanted(is_python);
    if (!is_python && !native)
        return;
    struct scratch *work = take_scratch(&slot);
    if (!work)
        return;
    work->process = target->process;
    work->flags = target->flags;
    work->walk.layout = target->python;
    work->walk.segments = 0;
    if (is_python)
        walk_python(work, found);
    if (is_python && (target->flags & TARGET_SPANS))
        take_span(work, found);
    if (native) {
        COPY_REGISTERS(work->native.registers, regs);
        walk_native(work, regs->ip, target, found);
    }
    free_scratch(slot);
}

static __always_inline void fill_origin(struct origin *origin, u32 process, const struct stacks *found) {
    u64 id = bpf_get_current_pid_tgid();
    __builtin_memset(origin, 0, sizeof(*origin));
    origin->time = bpf_ktime_get_ns();
    origin->process = process;
    origin->pid = id >> 32;
    origin->tid = (u32)id;
    origin->cpu = bpf_get_smp_processor_id();
    origin->trace_id[0] = found->trace_id[0];
    origin->trace_id[1] = found->trace_id[1];
    origin->span_id = found->span_id;
    origin->python = found->python;
    origin->native = found->native;
    origin->python_state = found->python_state;
    origin->native_state = found->native_state;
    bpf_get_current_comm(origin->comm, sizeof(origin->comm));
}

#endif
