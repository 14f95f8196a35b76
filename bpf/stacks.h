/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Cuts a walked stack into chunks and gives them their ids, as wire.h says of struct stack_chunk. Pure, like the
 * walkers.
 *
 * Frames stand leaf first and chunks are cut from the root end, so all but the leaf's are full, and stacks that share
 * their root share chunks. An id hashes everything from the root to the chunk's leaf end. */
#ifndef OTELPROF_STACKS_H
#define OTELPROF_STACKS_H

#include "bpf.h"

enum { STACK_CHUNKS = LIMIT_PYTHON_FRAMES / LIMIT_CHUNK_FRAMES };

/* Ids of a stack's chunks, the root's first. */
struct chunk_ids {
    u32 count;
    u32 pad;
    u64 id[STACK_CHUNKS];
};

/* Mixing by multiplication with odd constants and shifts to the right: every bit of the input reaches the low half. */
static __always_inline u64 hash_mix(u64 hash, u64 value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 32);
}

static __always_inline u64 hash_seed(u32 process, u8 kind) {
    return hash_mix(0xcbf29ce484222325ull, (u64)kind << 32 | process);
}

static __always_inline u64 hash_frame(u64 hash, const struct frame *frame) {
    hash = hash_mix(hash, frame->address);
    return hash_mix(hash, (u64)frame->check << 32 | frame->offset);
}

/* Position of the leaf end of chunk `number` (0: the root's) in a stack of `count` frames. */
static __always_inline u32 chunk_start(u32 count, u32 number) {
    u32 below = (number + 1) * LIMIT_CHUNK_FRAMES;
    return below < count ? count - below : 0;
}

/* Frames in chunk `number`; 0 past the leaf. */
static __always_inline u32 chunk_length(u32 count, u32 number) {
    u32 above = number * LIMIT_CHUNK_FRAMES;
    u32 left = above < count ? count - above : 0;
    return left < LIMIT_CHUNK_FRAMES ? left : LIMIT_CHUNK_FRAMES;
}

/* Hash of chunk `number` on top of `hash`; never 0, which means no stack. The mask shows the verifier the bound. */
static __always_inline u64 hash_chunk(u64 hash, const struct frame *frames, u32 count, u32 number) {
    u32 start = chunk_start(count, number), length = chunk_length(count, number);
    for (u32 i = 0; i < LIMIT_CHUNK_FRAMES; i++) {
        if (i >= length)
            break;
        hash = hash_frame(hash, &frames[(start + length - 1 - i) & (LIMIT_PYTHON_FRAMES - 1)]);
    }
    return hash ? hash : 1;
}

/* Gives chunk `number` its id, on top of the one towards the root; 0 when the stack ends before it. */
static __always_inline int name_chunk(struct chunk_ids *ids, const struct frame *frames, u32 count, u64 seed,
                                      u32 number) {
    u64 below = number ? ids->id[(number - 1) & (STACK_CHUNKS - 1)] : seed;
    if (number >= STACK_CHUNKS || !chunk_length(count, number))
        return 0;
    ids->id[number & (STACK_CHUNKS - 1)] = hash_chunk(below, frames, count, number);
    ids->count = number + 1;
    return 1;
}

#endif
