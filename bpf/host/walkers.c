/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The walkers as an ordinary shared library, for tests: cc -DOTELPROF_HOST -shared. Memory is what `host_read` gives.
 */
#include "../python_frames.h"
#include "../stacks.h"

int (*host_read)(void *to, u32 size, u64 from);

u32 size_of_python_walk(void) {
    return sizeof(struct python_walk);
}

/* Walks a stack to its end, as the programs do: `walk` holds the layout; what it has found stays in it. */
u32 walk_python_stack(struct python_walk *walk, u64 thread_pointer) {
    u32 steps = 0;
    if (!python_walk_start(walk, thread_pointer))
        while (steps < WALK_STEPS && !python_walk_step(walk))
            steps++;
    return steps;
}

/* The same in portions of `steps` from where the last one stopped; 1: the walk is over. */
int walk_python_on(struct python_walk *walk, u32 steps) {
    while (steps--)
        if (python_walk_step(walk))
            return 1;
    return 0;
}

int walk_python_begin(struct python_walk *walk, u64 thread_pointer) {
    return python_walk_start(walk, thread_pointer);
}

u32 frames_of(const struct python_walk *walk, struct frame *frames) {
    __builtin_memcpy(frames, walk->frames, walk->count * sizeof(*frames));
    return walk->count;
}

u32 state_of(const struct python_walk *walk) {
    return walk->state;
}

/* Ids of the chunks of a stack, the root's first; how many. `frames` has room for LIMIT_PYTHON_FRAMES. */
u32 chunk_ids_of(const struct frame *frames, u32 count, u32 process, u64 *ids) {
    struct chunk_ids found = {0};
    for (u32 number = 0; number < STACK_CHUNKS; number++)
        if (!name_chunk(&found, frames, count, hash_seed(process, STACK_PYTHON), number))
            break;
    __builtin_memcpy(ids, found.id, sizeof(found.id));
    return found.count;
}

/* Where chunk `number` lies: its first frame and how many. */
u32 chunk_place(u32 count, u32 number, u32 *start) {
    *start = chunk_start(count, number);
    return chunk_length(count, number);
}
