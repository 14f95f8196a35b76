/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The reader of spans as an ordinary shared library, for tests: cc -DOTELPROF_HOST -shared. Memory is what `host_read`
 * gives. */
#include "../otel_span.h"

int (*host_read)(void *to, u32 size, u64 from);

u32 size_of_span_walk(void) {
    return sizeof(struct span_walk);
}

u32 size_of_span_layout(void) {
    return sizeof(struct span_layout);
}

/* Reads the current span of a thread, as the programs do: `walk` begins with the layout, and is added to. Steps taken.
 */
u32 read_span(struct span_walk *walk, u64 thread_state) {
    u32 steps = 0;
    if (!span_walk_start(walk, thread_state))
        while (steps < SPAN_STEPS && !span_walk_step(walk))
            steps++;
    return steps;
}

u32 span_state_of(const struct span_walk *walk) {
    return walk->state;
}

/* Trace id and span id, 24 bytes. */
void ids_of(const struct span_walk *walk, u8 *ids) {
    __builtin_memcpy(ids, walk->trace_id, sizeof(walk->trace_id));
    __builtin_memcpy(ids + sizeof(walk->trace_id), &walk->span_id, sizeof(walk->span_id));
}
