/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Walks the Python stack of one thread, table-driven by struct python_layout: CPython 3.8 to 3.15, free-threaded too.
 *
 * Pure: no maps, no globals, no state but in struct python_walk; memory is read through read_user(). The walk goes on
 * from wherever the state stands, one frame a call, so any kind of loop may drive it. Everything in the target is
 * hostile: a chain may be torn, cyclic or lead anywhere, so reads are counted and offsets masked to the buffer. */
#ifndef OTELPROF_PYTHON_FRAMES_H
#define OTELPROF_PYTHON_FRAMES_H

#include "bpf.h"

enum {
    FRAME_BUFFER = 128,                   /* bytes read at a frame at most: every known one has its fields within 80 */
    WALK_STEPS = 2 * LIMIT_PYTHON_FRAMES, /* frames and shims: each Python frame may have a C boundary below it */
    CHECK_UNREADABLE = 0xffffffffu,       /* frame.check when the code object's page wasn't there */
    FRAME_SLACK = LIMIT_CHUNK_FRAMES,     /* so that a whole chunk may be copied from any frame */
};

/* Python frames that one evaluation call runs, the innermost call first. A call that C code made has an entry: a shim
 * frame, a C frame; it lies in the native frame of that call. */
struct python_segment {
    u64 entry; /* its address; 0: this version has none, see python_layout.evaluation */
    u32 frames;
    u32 pad;
};

struct python_walk {
    struct python_layout layout;
    u64 thread_state; /* PyThreadState of the thread, 0: it has none */
    u64 next;         /* address of the frame to read, 0: the chain has ended */
    u32 count;        /* frames found so far, leaf first */
    u32 state;        /* enum python_state */
    u64 c_frame;      /* the innermost C frame that isn't in a segment yet, where there are any */
    u32 running;      /* frames found since the last segment was closed */
    u32 segments;     /* closed so far */
    struct python_segment segment[LIMIT_NATIVE_FRAMES];
    u8 buffer[FRAME_BUFFER + 8];
    struct frame frames[LIMIT_PYTHON_FRAMES + FRAME_SLACK];
};

/* Follows `path` from `start`; 0 when there is nothing at its end, ~0 when memory couldn't be read. */
static __always_inline u64 follow(const struct pointer_path *path, u64 start) {
    u64 at = start;
    if (!path->steps || path->steps > LIMIT_POINTER_STEPS)
        return 0;
    for (u32 step = 0; step < LIMIT_POINTER_STEPS; step++) {
        if (step >= path->steps)
            break;
        if (read_user(&at, sizeof(at), at + path->offset[step]))
            return ~0ull;
        if (!at)
            return 0;
    }
    return at;
}

/* Field of the frame in the buffer; the masks keep any layout within it. */
static __always_inline u64 word_at(const struct python_walk *walk, u16 offset) {
    return *(const u64 *)(walk->buffer + (offset & (FRAME_BUFFER - 8)));
}

static __always_inline s32 int_at(const struct python_walk *walk, u16 offset) {
    return *(const s32 *)(walk->buffer + (offset & (FRAME_BUFFER - 4)));
}

static __always_inline u8 byte_at(const struct python_walk *walk, u16 offset) {
    return walk->buffer[offset & (FRAME_BUFFER - 1)];
}

/* An instruction in a thread's own copy of the bytecode, as if it were in the code object's: co_tlbc is a count and
 * that many pointers, the first one the code object's own (Include/internal/pycore_code.h, 3.14). */
static __always_inline u64 in_shared_bytecode(const struct python_walk *walk, u64 code, u64 instruction) {
    s32 index = int_at(walk, walk->layout.frame_tlbc_index);
    u64 table = 0, head[2] = {}, own = 0;
    if (index <= 0 || read_user(&table, sizeof(table), code + walk->layout.code_tlbc))
        return instruction;
    if (read_user(head, sizeof(head), table) || (u64)index >= head[0])
        return instruction;
    if (read_user(&own, sizeof(own), table + 8 + 8 * (u64)index))
        return instruction;
    return instruction - own + head[1];
}

static __always_inline u32 instruction_offset(const struct python_walk *walk, u64 code) {
    const struct python_layout *layout = &walk->layout;
    if (layout->flags & PYTHON_LASTI_INDEX)
        return (u32)int_at(walk, layout->frame_instruction);
    u64 instruction = word_at(walk, layout->frame_instruction);
    if (layout->flags & PYTHON_FREE_THREADED)
        instruction = in_shared_bytecode(walk, code, instruction);
    return (u32)(instruction - code);
}

/* A code object that isn't in memory is no reason to drop its frame: Python reads it later and pages it in. */
static __always_inline u32 first_line(const struct python_walk *walk, u64 code) {
    u32 line;
    return read_user(&line, sizeof(line), code + walk->layout.code_first_line) ? CHECK_UNREADABLE : line;
}

/* True when `ip` is in the evaluation function. */
static __always_inline int in_evaluation(const struct python_layout *layout, u64 ip) {
    const struct code_range *hot = &layout->evaluation[0], *cold = &layout->evaluation[1];
    return (ip > hot->start && ip <= hot->end) || (ip > cold->start && ip <= cold->end);
}

/* The frames found since the last segment are one that C code entered at `entry`. */
static __always_inline void close_segment(struct python_walk *walk, u64 entry) {
    u32 at = walk->segments;
    if (!walk->running || at >= LIMIT_NATIVE_FRAMES)
        return;
    walk->segment[at & (LIMIT_NATIVE_FRAMES - 1)].entry = entry;
    walk->segment[at & (LIMIT_NATIVE_FRAMES - 1)].frames = walk->running;
    walk->segments = at + 1;
    walk->running = 0;
}

/* The frame in the buffer is the first that its evaluation call ran, and its segment ends with it. */
static __always_inline void close_entered(struct python_walk *walk) {
    u64 entry = walk->c_frame;
    close_segment(walk, entry);
    if (entry && read_user(&walk->c_frame, sizeof(walk->c_frame), entry + walk->layout.c_frame_previous))
        walk->c_frame = 0;
}

/* True when C code made the call that runs the frame in the buffer: always up to 3.10. */
static __always_inline int is_entered(const struct python_walk *walk) {
    u32 flags = walk->layout.flags;
    if (flags & PYTHON_SHIM_FRAMES)
        return 0;
    return !(flags & PYTHON_ENTRY_FRAMES) || byte_at(walk, walk->layout.frame_owner) == 1;
}

/* Sets the walk to the innermost frame of the thread; 0 when there is one. `layout` must have been set. */
static __always_inline int python_walk_start(struct python_walk *walk, u64 thread_pointer) {
    walk->count = 0;
    walk->next = 0;
    walk->thread_state = 0;
    walk->c_frame = 0;
    walk->running = 0;
    walk->segments = 0;
    walk->state = PYTHON_NO_THREAD_STATE;
    u64 thread_state = follow(&walk->layout.thread_state, thread_pointer);
    if (!thread_state || thread_state == ~0ull)
        return 1;
    walk->thread_state = thread_state;
    u16 c_frame = walk->layout.thread_c_frame;
    if (c_frame && read_user(&walk->c_frame, sizeof(walk->c_frame), thread_state + c_frame))
        walk->c_frame = 0;
    u64 frame = follow(&walk->layout.frame, thread_state);
    walk->state = frame == ~0ull ? PYTHON_UNREADABLE : PYTHON_NO_FRAMES;
    if (!frame || frame == ~0ull)
        return 1;
    walk->next = frame;
    return 0;
}

/* Reads one frame and steps to the one before it; 0: go on. */
static __always_inline int python_walk_step(struct python_walk *walk) {
    const struct python_layout *layout = &walk->layout;
    u32 size = layout->frame_size, count = walk->count;
    u64 place = walk->next;
    if (!walk->next) {
        walk->state = count ? PYTHON_COMPLETE : PYTHON_NO_FRAMES;
        return 1;
    }
    walk->state = PYTHON_UNREADABLE;
    if (size > FRAME_BUFFER || read_user(walk->buffer, size, walk->next))
        return 1;
    walk->next = word_at(walk, layout->frame_previous);
    walk->state = PYTHON_TRUNCATED; /* unless a later step comes to the root */
    if ((layout->flags & PYTHON_SHIM_FRAMES) && byte_at(walk, layout->frame_owner) >= layout->shim_owner) {
        close_segment(walk, place);
        return 0;
    }
    u64 code = word_at(walk, layout->frame_code);
    if (layout->flags & PYTHON_CODE_TAGGED)
        code &= ~7ull;
    if (!code)
        return 0;
    if (count >= LIMIT_PYTHON_FRAMES)
        return 1;
    walk->frames[count].address = code;
    walk->frames[count].offset = instruction_offset(walk, code);
    walk->frames[count].check = first_line(walk, code);
    walk->count = count + 1;
    walk->running++;
    if (is_entered(walk))
        close_entered(walk);
    return 0;
}

#endif
