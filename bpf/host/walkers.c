/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The walkers as an ordinary shared library, for tests: cc -DOTELPROF_HOST -shared. Memory is what `host_read` gives.
 */
#include "../native_frames.h"
#include "../python_code.h"
#include "../stacks.h"

int (*host_read)(void *to, u32 size, u64 from);

/* The unwind tables, set by the test. */
struct host_tables {
    const struct unwind_mapping *mappings;
    const struct unwind_row *rows;
    const struct unwind_rule *rules;
    u32 mappings_count;
    u32 rows_count;
    u32 rules_count;
} host_tables;

static __always_inline const struct unwind_mapping *mapping_at(u32 index) {
    return index < host_tables.mappings_count ? &host_tables.mappings[index] : 0;
}

static __always_inline const struct unwind_row *row_at(u32 index) {
    return index < host_tables.rows_count ? &host_tables.rows[index] : 0;
}

static __always_inline const struct unwind_rule *rule_at(u32 index) {
    return index < host_tables.rules_count ? &host_tables.rules[index] : 0;
}

u32 size_of_python_walk(void) {
    return sizeof(struct python_walk);
}

/* Fills the record of the code object at `address`. */
void read_python_code(struct python_code *code, const struct python_layout *layout, u64 address) {
    code->address = address;
    read_code(code, layout);
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

u32 size_of_native_walk(void) {
    return sizeof(struct native_walk);
}

/* Walks a native stack to its end from registers in DWARF's order (rsp 7, rbp 6) and `ip`; Python frames as found by
 * `python`. How many frames; they stay in `frames`. */
u32 walk_native_stack(struct native_walk *walk, const struct python_walk *python, const u64 *registers, u64 ip,
                      struct frame *frames) {
    __builtin_memcpy(walk->registers, registers, sizeof(walk->registers));
    native_walk_start(walk, ip, 0, host_tables.mappings_count);
    while (!native_walk_step(walk, python))
        ;
    __builtin_memcpy(frames, walk->frames, walk->count * sizeof(*frames));
    return walk->count;
}

u32 native_state_of(const struct native_walk *walk) {
    return walk->state;
}

/* Segments of the Python walk: (entry, frames) pairs; how many. */
u32 segments_of(const struct python_walk *walk, u64 *pairs) {
    for (u32 i = 0; i < walk->segments; i++) {
        pairs[2 * i] = walk->segment[i].entry;
        pairs[2 * i + 1] = walk->segment[i].frames;
    }
    return walk->segments;
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
