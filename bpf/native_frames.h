/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Walks the native stack of one thread by the unwind tables of the code that it runs, x86-64, and says at which frames
 * the Python frames stand.
 *
 * Pure like the Python walker: no maps, no globals; memory is read through read_user(), tables through the three
 * functions below. One frame a call, from wherever the state stands. Everything in the target is hostile: each frame
 * must lie above the last one, and frames are counted. Registers and their DWARF numbers: System V ABI for x86-64. */
#ifndef OTELPROF_NATIVE_FRAMES_H
#define OTELPROF_NATIVE_FRAMES_H

#include "python_frames.h"

/* Entries of the unwind tables, 0 where there is none: maps in the kernel, arrays in tests. */
static __always_inline const struct unwind_mapping *mapping_at(u32 index);
static __always_inline const struct unwind_row *row_at(u32 index);
static __always_inline const struct unwind_rule *rule_at(u32 index);

enum {
    MAPPING_STEPS = 11,   /* halvings until LIMIT_MAPPINGS are one */
    ROW_STEPS = 24,       /* the same for 2^23 rows, twice what the largest known library has */
    SEGMENTS_A_FRAME = 4, /* C entries that may stand in one native frame */
    REGISTERS = 16,
    REGISTER_BP = 6,
    REGISTER_SP = 7,
    CALLER_BELOW_CFA = 8, /* bytes from the CFA down to the return address */
    /* Of the interrupted registers in the context on the stack (struct ucontext, asm/sigcontext.h), from rsp. */
    CONTEXT_BP = 120,
    CONTEXT_SP = 160,
    CONTEXT_IP = 168,
};

struct native_walk {
    u64 ip;
    u64 sp;
    u64 bp;
    u64 registers[REGISTERS]; /* at the leaf, in DWARF's order */
    u32 mappings;             /* first of the process's in the table, and how many */
    u32 mappings_count;
    u32 count;   /* frames found so far, leaf first */
    u32 state;   /* enum native_state */
    u32 segment; /* the next of the Python walk's that has no native frame yet */
    u32 waiting; /* Python frames of segments that lie below the frame: they stand at the next that has any */
    u8 returned; /* ip is a return address: the call is the instruction before */
    u8 leaf;     /* `registers` are those of this frame */
    u8 pad[6];
    struct frame frames[LIMIT_PYTHON_FRAMES + FRAME_SLACK]; /* LIMIT_NATIVE_FRAMES are used: as many as chunks index */
};

/* Number of the process's mapping that holds `address`, from 0; ~0: none. */
static __always_inline u32 find_mapping(const struct native_walk *walk, u64 address) {
    u32 low = 0, high = walk->mappings_count;
    for (u32 i = 0; i < MAPPING_STEPS; i++) {
        if (low >= high)
            break;
        u32 middle = (low + high) / 2;
        const struct unwind_mapping *mapping = mapping_at(walk->mappings + middle);
        if (!mapping)
            return ~0u;
        if (mapping->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* Number of the rule that holds at `address` of a mapping; 0: none. */
static __always_inline u32 find_rule(const struct unwind_mapping *mapping, u64 address) {
    u32 wanted = address - mapping->base, low = mapping->rows, high = low + mapping->count;
    u32 rule = 0;
    if (address < mapping->base || address - mapping->base > 0xffffffffull)
        return 0;
    for (u32 i = 0; i < ROW_STEPS; i++) {
        if (low >= high)
            break;
        u32 middle = low + (high - low) / 2;
        const struct unwind_row *row = row_at(middle);
        if (!row)
            return 0;
        if (row->address <= wanted) {
            rule = row->rule;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return rule;
}

/* The CFA by a rule; 0 when it can't be told. */
static __always_inline u64 cfa_of(const struct native_walk *walk, const struct unwind_rule *rule) {
    u64 offset = (s64)rule->cfa_offset, at = 0;
    u32 kind = rule->cfa;
    if (kind == UNWIND_RSP)
        return walk->sp + offset;
    if (kind == UNWIND_RBP)
        return walk->bp + offset;
    if (kind == UNWIND_PLT)
        return walk->sp + ((walk->ip & 15) >= offset ? 16 : 8);
    if (kind == UNWIND_DEREF_RSP || kind == UNWIND_DEREF_RBP) {
        u64 base = kind == UNWIND_DEREF_RSP ? walk->sp : walk->bp;
        return read_user(&at, sizeof(at), base + offset) ? 0 : at;
    }
    if (kind >= UNWIND_LEAF_REGISTER && walk->leaf)
        return walk->registers[(kind - UNWIND_LEAF_REGISTER) & (REGISTERS - 1)] + offset;
    return 0;
}

static __always_inline void restore_bp(struct native_walk *walk, const struct unwind_rule *rule, u64 cfa) {
    u64 place = (rule->fp == UNWIND_FP_AT_CFA ? cfa : walk->bp) + (s64)rule->fp_offset, bp = 0;
    if (rule->fp == UNWIND_FP_SAME)
        return;
    if (rule->fp != UNWIND_FP_LOST && read_user(&bp, sizeof(bp), place))
        bp = 0;
    walk->bp = bp;
}

/* Steps out of a signal's frame to the code that it interrupted; 0: done. */
static __always_inline int leave_signal(struct native_walk *walk) {
    u64 sp = walk->sp;
    walk->returned = 0;
    return read_user(&walk->bp, 8, sp + CONTEXT_BP) || read_user(&walk->ip, 8, sp + CONTEXT_IP) ||
           read_user(&walk->sp, 8, sp + CONTEXT_SP);
}

/* How many Python frames the native frame [low, high) at `ip` stands for: it runs the evaluation calls whose entries
 * lie in it. An entry below it was missed, and its frames stand at the next. Without addresses of entries each call of
 * the evaluation function is the next entry. */
static __always_inline u32 python_frames_in(struct native_walk *walk, const struct python_walk *python, u64 high) {
    u32 frames = 0, hit = 0;
    for (u32 i = 0; i < SEGMENTS_A_FRAME; i++) {
        u32 at = walk->segment;
        if (at >= python->segments || at >= LIMIT_NATIVE_FRAMES)
            break;
        const struct python_segment *segment = &python->segment[at & (LIMIT_NATIVE_FRAMES - 1)];
        if (!segment->entry) {
            if (hit || !in_evaluation(&python->layout, walk->ip))
                break;
        } else if (segment->entry >= high) {
            break;
        }
        hit |= !segment->entry || segment->entry >= walk->sp;
        frames += segment->frames;
        walk->segment = at + 1;
    }
    frames += walk->waiting;
    walk->waiting = hit ? 0 : frames;
    return hit ? frames : 0;
}

static __always_inline int stop_native(struct native_walk *walk, enum native_state state) {
    walk->state = state;
    return 1;
}

/* The rule of the frame that the walk stands at; 0 and the state says why there is none. */
static __always_inline const struct unwind_rule *rule_of_frame(struct native_walk *walk) {
    u64 address = walk->ip - walk->returned;
    const struct unwind_mapping *mapping = 0;
    u32 number = find_mapping(walk, address);
    walk->state = NATIVE_NO_TABLE;
    if (number >= LIMIT_MAPPINGS || !(mapping = mapping_at(walk->mappings + number)) || address >= mapping->end)
        return 0;
    walk->state = NATIVE_NO_RULE;
    const struct unwind_rule *rule = rule_at(find_rule(mapping, address));
    return rule && rule->cfa != UNWIND_NONE ? rule : 0;
}

/* Sets the walk to the frame of `ip`, whose registers have been put in; `mappings` is where the process's are. */
static __always_inline void native_walk_start(struct native_walk *walk, u64 ip, u32 mappings, u32 mappings_count) {
    walk->ip = ip;
    walk->sp = walk->registers[REGISTER_SP];
    walk->bp = walk->registers[REGISTER_BP];
    walk->mappings = mappings;
    walk->mappings_count = mappings_count;
    walk->count = 0;
    walk->segment = 0;
    walk->waiting = 0;
    walk->returned = 0;
    walk->leaf = 1;
}

/* Notes the frame that the walk stands at and steps to its caller; 0: go on. */
static __always_inline int native_walk_step(struct native_walk *walk, const struct python_walk *python) {
    u32 count = walk->count;
    if (count >= LIMIT_NATIVE_FRAMES)
        return stop_native(walk, NATIVE_TRUNCATED);
    struct frame *frame = &walk->frames[count & (LIMIT_NATIVE_FRAMES - 1)];
    frame->address = walk->ip;
    frame->offset = walk->returned; /* so that its name is looked up one byte before */
    frame->check = 0;
    walk->count = count + 1;
    const struct unwind_rule *rule = rule_of_frame(walk);
    if (!rule)
        return 1;
    if (rule->cfa == UNWIND_END)
        return stop_native(walk, NATIVE_COMPLETE);
    if (rule->cfa == UNWIND_SIGNAL) {
        walk->leaf = 0;
        return leave_signal(walk) ? stop_native(walk, NATIVE_UNREADABLE) : 0;
    }
    u64 cfa = cfa_of(walk, rule), caller = 0;
    if (!cfa)
        return stop_native(walk, NATIVE_NO_RULE);
    frame->check = python_frames_in(walk, python, cfa);
    restore_bp(walk, rule, cfa);
    if (cfa <= walk->sp || read_user(&caller, sizeof(caller), cfa - CALLER_BELOW_CFA))
        return stop_native(walk, NATIVE_UNREADABLE);
    if (!caller)
        return stop_native(walk, NATIVE_COMPLETE);
    walk->ip = caller;
    walk->sp = cfa;
    walk->returned = 1;
    walk->leaf = 0;
    return 0;
}

#endif
