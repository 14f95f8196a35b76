/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads the current OpenTelemetry span of one Python thread, table-driven by struct span_layout: CPython 3.8 to 3.15,
 * free-threaded too, without a change of the program.
 *
 * The way: thread state → contextvars.Context → its tree of variables (a hash array mapped trie, Python/hamt.c) → the
 * API's Context, a dictionary → the span → its attribute `_context` → a tuple → two ints.
 * Pure, like the other walkers: no maps, no globals, one step a call from the state in struct span_walk. Everything in
 * the target is hostile: whatever a pointer leads to, a walk ends after SPAN_STEPS steps of a few reads each. */
#ifndef OTELPROF_OTEL_SPAN_H
#define OTELPROF_OTEL_SPAN_H

#include "bpf.h"

enum {
    SPAN_STEPS = 96,      /* all steps of a walk */
    TREE_BITS = 5,        /* of the hash at each level of the tree */
    TREE_DEPTH = 8,       /* 7 levels use up 32 bits, below them collisions; Include/internal/pycore_hamt.h */
    COLLISION_LIMIT = 64, /* words in a collision node: variables with the same 32 bits, and their values */
    PERTURB_SHIFT = 5,    /* Objects/dictobject.c */
    DIGIT_BITS = 30,      /* PyLong_SHIFT */
    DIGIT_LIMIT = 5,      /* digits of 128 bits */
    SPAN_DIGITS = 3,      /* of 64 bits */
    NOT_HASHED = -1,
};

enum span_phase {
    SPAN_IN_TREE = 0,
    SPAN_IN_COLLISION,
    SPAN_IN_DICTIONARY, /* probing a hash table; what is looked for says enum span_wanted */
    SPAN_AT_OBJECT,
    SPAN_AT_CONTEXT,
};

enum span_wanted {
    WANTED_SPAN = 0,  /* in the API's Context */
    WANTED_ATTRIBUTE, /* in the dictionary of a span */
    WANTED_PLACE,     /* among the keys that all spans of a class share */
};

/* How the walk went. */
enum span_state {
    SPAN_NONE = 0,       /* no span is current */
    SPAN_FOUND = 1,      /* its ids are in trace_id and span_id */
    SPAN_UNREADABLE = 2, /* memory couldn't be read, or has another form than is known */
    SPAN_UNKNOWN = 3,    /* of a class that isn't in the layout: unknown_type has it now */
};

/* A hash table that is being probed (PyDictKeysObject). */
struct key_table {
    u64 indices;
    u64 entries;
    u64 values; /* a split dictionary has its values here; 0: they stand in the entries */
    u64 key;
    u64 slot;
    u64 perturb;
    u64 mask;
    u32 index_width;
    u32 entry_size;
    u32 entry_key; /* where the key stands in an entry, the value behind it */
    u32 count;
    u32 found; /* number of the entry */
    u32 pad;
};

struct span_walk {
    struct span_layout layout;
    u64 trace_id[2]; /* big-endian */
    u64 span_id;
    u64 at; /* the node, span or SpanContext that the next step reads */
    struct key_table table;
    u32 phase;  /* enum span_phase */
    u32 wanted; /* enum span_wanted */
    u32 state;  /* enum span_state */
    u32 depth;
    u32 pair;   /* of a collision node */
    u32 type;   /* number of the span's class in the layout */
    u32 learnt; /* the layout has been added to */
    u32 pad;
};

static __always_inline int end_walk(struct span_walk *walk, enum span_state state) {
    walk->state = state;
    return 1;
}

static __always_inline int go_to(struct span_walk *walk, enum span_phase phase, u64 at) {
    walk->phase = phase;
    walk->at = at;
    return 0;
}

/* Sets the walk to the current context of a thread; 0 when there is one. `layout` must have been set. */
static __always_inline int span_walk_start(struct span_walk *walk, u64 thread_state) {
    const struct span_layout *layout = &walk->layout;
    u64 context = 0, tree = 0, root = 0;
    walk->trace_id[0] = walk->trace_id[1] = walk->span_id = 0;
    walk->depth = walk->learnt = 0;
    walk->state = SPAN_UNREADABLE;
    if (read_user(&context, sizeof(context), thread_state + layout->thread_context))
        return 1;
    if (!context)
        return end_walk(walk, SPAN_NONE);
    if (read_user(&tree, sizeof(tree), context + layout->header + 8)) /* PyContext.ctx_vars */
        return 1;
    if (read_user(&root, sizeof(root), tree + layout->header)) /* PyHamtObject.h_root */
        return 1;
    return go_to(walk, SPAN_IN_TREE, root);
}

/* --- the tree of context variables ------------------------------------------------------------------------- */

enum node_kind { NODE_BITMAP = 0, NODE_ARRAY = 1, NODE_COLLISION = 2, NODE_UNKNOWN = 3 };

/* Kind of a node by its type: a known one, or by the first bytes of its name, `hamt_bitmap_node` and so on. */
static __always_inline u32 node_kind(struct span_walk *walk, u64 type) {
    u64 name = 0, letters = 0;
    u32 kind = NODE_UNKNOWN;
    for (u32 known = 0; known < LIMIT_NODE_TYPES; known++)
        if (type && walk->layout.node_types[known] == type)
            return known;
    if (read_user(&name, sizeof(name), type + walk->layout.header + 8)) /* tp_name */
        return kind;
    if (read_user(&letters, sizeof(letters), name))
        return kind;
    if (letters == 0x7469625f746d6168ull) /* "hamt_bit" */
        kind = NODE_BITMAP;
    else if (letters == 0x7272615f746d6168ull) /* "hamt_arr" */
        kind = NODE_ARRAY;
    else if (letters == 0x6c6f635f746d6168ull) /* "hamt_col" */
        kind = NODE_COLLISION;
    if (kind < LIMIT_NODE_TYPES) {
        walk->layout.node_types[kind] = type;
        walk->learnt = 1;
    }
    return kind;
}

static __always_inline int begin_table(struct span_walk *walk, u64 keys, u64 values, enum span_wanted wanted);

/* The variable has this value: a dictionary, or so it should be. */
static __always_inline int open_context(struct span_walk *walk, u64 context) {
    u64 place[2]; /* ma_keys, ma_values */
    if (read_user(place, sizeof(place), context + walk->layout.header + 16))
        return end_walk(walk, SPAN_UNREADABLE);
    return begin_table(walk, place[0], place[1], WANTED_SPAN);
}

static __always_inline u32 bits_in(u32 word) {
    word -= word >> 1 & 0x55555555;
    word = (word & 0x33333333) + (word >> 2 & 0x33333333);
    return ((word + (word >> 4)) & 0x0f0f0f0f) * 0x01010101u >> 24;
}

static __always_inline int step_tree(struct span_walk *walk) {
    u64 head[3], pair[2]; /* head: ob_type, then ob_size and bitmap, or the first two children */
    u32 header = walk->layout.header, position = walk->layout.variable_hash >> (walk->depth * TREE_BITS & 31) & 31;
    if (walk->depth >= TREE_DEPTH || read_user(head, sizeof(head), walk->at + header - 8))
        return end_walk(walk, SPAN_UNREADABLE);
    u32 kind = node_kind(walk, head[0]);
    if (kind == NODE_COLLISION) {
        walk->pair = 0;
        return go_to(walk, SPAN_IN_COLLISION, walk->at);
    }
    walk->depth++;
    if (kind == NODE_ARRAY) {
        u64 child = 0;
        if (read_user(&child, sizeof(child), walk->at + header + 8 * position))
            return end_walk(walk, SPAN_UNREADABLE);
        return child ? go_to(walk, SPAN_IN_TREE, child) : end_walk(walk, SPAN_NONE);
    }
    if (kind != NODE_BITMAP)
        return end_walk(walk, SPAN_UNREADABLE);
    u32 bitmap = head[2], bit = 1u << position;
    if (!(bitmap & bit))
        return end_walk(walk, SPAN_NONE);
    if (read_user(pair, sizeof(pair), walk->at + header + 16 + 16 * (u64)bits_in(bitmap & (bit - 1))))
        return end_walk(walk, SPAN_UNREADABLE);
    if (!pair[0])
        return go_to(walk, SPAN_IN_TREE, pair[1]);
    return pair[0] == walk->layout.variable ? open_context(walk, pair[1]) : end_walk(walk, SPAN_NONE);
}

/* One of the variables whose hashes are the same. */
static __always_inline int step_collision(struct span_walk *walk) {
    u64 size = 0, pair[2];
    u32 header = walk->layout.header, number = walk->pair++;
    if (read_user(&size, sizeof(size), walk->at + header))
        return end_walk(walk, SPAN_UNREADABLE);
    if (2 * number >= size)
        return end_walk(walk, SPAN_NONE);
    if (2 * number >= COLLISION_LIMIT || read_user(pair, sizeof(pair), walk->at + header + 16 + 16 * (u64)number))
        return end_walk(walk, SPAN_UNREADABLE);
    return pair[0] == walk->layout.variable ? open_context(walk, pair[1]) : 0;
}

/* --- dictionaries ------------------------------------------------------------------------------------------ */

/* The table of 3.10 and older: refcount, slots, lookup function, usable, entries in use, indices. */
static __always_inline int open_old_table(struct key_table *table, u64 keys) {
    u64 head[4]; /* from dk_size on */
    if (read_user(head, sizeof(head), keys + 8) || !head[0] || head[0] > 1ull << 32)
        return 1;
    table->mask = head[0] - 1;
    table->index_width = head[0] <= 0xff ? 1 : head[0] <= 0xffff ? 2 : 4;
    table->count = head[3];
    table->indices = keys + 40;
    table->entries = table->indices + head[0] * table->index_width;
    table->entry_size = 24;
    table->entry_key = 8;
    return 0;
}

/* The table of 3.11 and newer: refcount, log2 of slots, log2 of the indices' bytes, kind, usable, entries in use,
 * indices. */
static __always_inline int open_new_table(struct key_table *table, u64 keys) {
    u64 head[3]; /* from dk_log2_size on */
    if (read_user(head, sizeof(head), keys + 8))
        return 1;
    u32 slots = head[0] & 0xff, bytes = head[0] >> 8 & 0xff, is_general = !(head[0] >> 16 & 0xff);
    if (slots >= 32 || bytes > 34)
        return 1;
    table->mask = (1ull << slots) - 1;
    table->index_width = slots < 8 ? 1 : slots < 16 ? 2 : 4;
    table->count = head[2];
    table->indices = keys + 32;
    table->entries = table->indices + (1ull << bytes);
    table->entry_size = is_general ? 24 : 16;
    table->entry_key = is_general ? 8 : 0;
    return 0;
}

/* Hash of a key; a str that nobody has hashed when the layout was made has its own by now. */
static __always_inline u64 hash_of(struct span_walk *walk, u64 key, u64 *known) {
    if (*known == (u64)NOT_HASHED && !read_user(known, sizeof(*known), key + walk->layout.header + 8))
        walk->learnt = 1;
    return *known;
}

static __always_inline int begin_table(struct span_walk *walk, u64 keys, u64 values, enum span_wanted wanted) {
    struct key_table *table = &walk->table;
    struct span_layout *layout = &walk->layout;
    int is_span = wanted == WANTED_SPAN;
    if (layout->version_minor >= 11 ? open_new_table(table, keys) : open_old_table(table, keys))
        return end_walk(walk, SPAN_UNREADABLE);
    table->key = is_span ? layout->span_key : layout->attribute;
    u64 hash = is_span ? hash_of(walk, table->key, &layout->span_key_hash)
                       : hash_of(walk, table->key, &layout->attribute_hash);
    table->values = values && layout->version_minor >= 13 ? values + 8 : values; /* PyDictValues has a head since */
    table->slot = hash & table->mask;
    table->perturb = hash;
    walk->wanted = wanted;
    return go_to(walk, SPAN_IN_DICTIONARY, keys);
}

static __always_inline int found_in_table(struct span_walk *walk, u64 value) {
    if (walk->wanted == WANTED_SPAN)
        return value ? go_to(walk, SPAN_AT_OBJECT, value) : end_walk(walk, SPAN_NONE);
    if (walk->wanted == WANTED_ATTRIBUTE)
        return go_to(walk, SPAN_AT_CONTEXT, value);
    walk->layout.types[walk->type & (LIMIT_SPAN_TYPES - 1)].place = walk->table.found + 1;
    walk->learnt = 1;
    return go_to(walk, SPAN_AT_OBJECT, walk->at);
}

/* The number of the entry at a slot; below 0: there is none. */
static __always_inline int read_index(const struct key_table *table, s32 *index) {
    u64 at = table->indices + table->slot * table->index_width;
    u8 one = 0;
    u16 two = 0;
    if (table->index_width == 1 && !read_user(&one, 1, at))
        *index = (signed char)one;
    else if (table->index_width == 2 && !read_user(&two, 2, at))
        *index = (short)two;
    else
        return table->index_width != 4 || read_user(index, 4, at);
    return 0;
}

/* One probe, as lookdict does it. */
static __always_inline int step_dictionary(struct span_walk *walk) {
    struct key_table *table = &walk->table;
    u64 entry[2];
    s32 index = 0;
    if (read_index(table, &index))
        return end_walk(walk, SPAN_UNREADABLE);
    if (index == -1) /* DKIX_EMPTY; DKIX_DUMMY is -2 */
        return end_walk(walk, walk->wanted == WANTED_SPAN ? SPAN_NONE : SPAN_UNREADABLE);
    if (index >= 0 && (u32)index < table->count) {
        if (read_user(entry, sizeof(entry), table->entries + (u64)index * table->entry_size + table->entry_key))
            return end_walk(walk, SPAN_UNREADABLE);
        if (entry[0] == table->key) {
            table->found = index;
            if (table->values && read_user(&entry[1], 8, table->values + 8 * (u64)index))
                return end_walk(walk, SPAN_UNREADABLE);
            return found_in_table(walk, entry[1]);
        }
    }
    table->perturb >>= PERTURB_SHIFT;
    table->slot = (table->slot * 5 + table->perturb + 1) & table->mask;
    return 0;
}

/* --- the span ---------------------------------------------------------------------------------------------- */

static __always_inline int find_type(struct span_walk *walk, u64 type) {
    for (u32 number = 0; number < LIMIT_SPAN_TYPES; number++) {
        if (type && walk->layout.types[number].type == type) {
            walk->type = number;
            return 0;
        }
    }
    walk->layout.unknown_type = type;
    walk->learnt = 1;
    return 1;
}

/* Where the values of an instance begin; 0 with its dictionary in `*dictionary`. Below 0, as an error: unreadable. */
static __always_inline int find_values(struct span_walk *walk, u64 span, u64 *values, u64 *dictionary) {
    const struct span_type *type = &walk->layout.types[walk->type & (LIMIT_SPAN_TYPES - 1)];
    u32 attributes = walk->layout.attributes, head = 0;
    *values = *dictionary = 0;
    if (attributes == ATTRIBUTES_VALUES && read_user(values, sizeof(*values), span + type->values))
        return 1;
    if (attributes == ATTRIBUTES_INLINE && type->values) {
        /* PyDictValues: capacity, size, embedded, valid, a byte each; values at 8 */
        if (read_user(&head, sizeof(head), span + type->values))
            return 1;
        *values = head >> 24 ? span + type->values + 8 : 0;
    }
    if (*values)
        return 0;
    if (read_user(dictionary, sizeof(*dictionary), span + type->dictionary))
        return 1;
    if (attributes == ATTRIBUTES_TAGGED && (*dictionary & 1)) {
        *values = *dictionary + 1;
        *dictionary = 0;
    }
    return 0;
}

static __always_inline int step_object(struct span_walk *walk) {
    u64 type = 0, values = 0, dictionary = 0, place[2], context = 0, span = walk->at;
    u32 header = walk->layout.header;
    if (read_user(&type, sizeof(type), span + header - 8))
        return end_walk(walk, SPAN_UNREADABLE);
    if (find_type(walk, type))
        return end_walk(walk, SPAN_UNKNOWN);
    if (find_values(walk, span, &values, &dictionary))
        return end_walk(walk, SPAN_UNREADABLE);
    if (!values) {
        if (read_user(place, sizeof(place), dictionary + header + 16))
            return end_walk(walk, SPAN_UNREADABLE);
        return begin_table(walk, place[0], place[1], WANTED_ATTRIBUTE);
    }
    u32 number = walk->layout.types[walk->type & (LIMIT_SPAN_TYPES - 1)].place;
    if (number) {
        if (read_user(&context, sizeof(context), values + 8 * (u64)(number - 1)))
            return end_walk(walk, SPAN_UNREADABLE);
        return go_to(walk, SPAN_AT_CONTEXT, context);
    }
    if (read_user(&place[0], sizeof(place[0]), type + walk->layout.type_cached_keys))
        return end_walk(walk, SPAN_UNREADABLE);
    int failed = begin_table(walk, place[0], 0, WANTED_PLACE);
    walk->at = span; /* to be looked at once more when the place is known */
    return failed;
}

/* --- its ids ----------------------------------------------------------------------------------------------- */

/* The head of an int and its digits: ob_type, and ob_size (to 3.11) or lv_tag: digits << 3 | sign, 0 for a positive
 * one.
 */
struct int_head {
    u64 type;
    u64 size;
    u32 digits[8]; /* of which 128 bits use five */
};

/* A positive int of at most `limit` digits, those that it doesn't have 0. 1 when it is none. Small ints are shorter
 * than what is read at once, but what follows them is nearly always there; else they are read as long as they are. */
static __always_inline int read_int(const struct span_walk *walk, u64 number, struct int_head *head, u32 limit) {
    u64 start = number + walk->layout.header - 8, body = start + 2 * sizeof(u64);
    u32 is_tagged = walk->layout.version_minor >= 12;
    int is_cut = read_user(head, 2 * sizeof(u64) + DIGIT_LIMIT * sizeof(u32), start);
    if (is_cut && read_user(head, 2 * sizeof(u64), start))
        return 1;
    u64 count = is_tagged ? head->size >> 3 : head->size;
    if (head->type != walk->layout.int_type || !count || count > limit || (is_tagged && (head->size & 3)))
        return 1;
    if (is_cut && read_user(head->digits, (u32)(count & 7) * sizeof(u32), body))
        return 1;
    for (u32 i = 1; i < DIGIT_LIMIT; i++)
        if (i >= count)
            head->digits[i] = 0;
    return 0;
}

static __always_inline u64 big_endian(u64 word) {
    return __builtin_bswap64(word);
}

/* A SpanContext: (trace_id, span_id, …). Ids that are zero or too large are those of no span. */
static __always_inline int step_context(struct span_walk *walk) {
    const struct span_layout *layout = &walk->layout;
    u64 head[5]; /* ob_type, ob_size, since 3.14 the hash, then the items, of which there are six */
    struct int_head trace = {}, span = {};
    if (read_user(head, sizeof(head), walk->at + layout->header - 8) || head[0] != layout->span_context_type)
        return end_walk(walk, SPAN_UNREADABLE);
    int has_hash = layout->tuple_items > layout->header + 8;
    if (read_int(walk, has_hash ? head[3] : head[2], &trace, DIGIT_LIMIT) ||
        read_int(walk, has_hash ? head[4] : head[3], &span, SPAN_DIGITS))
        return end_walk(walk, SPAN_NONE);
    if (trace.digits[4] >> 8 || span.digits[2] >> 4)
        return end_walk(walk, SPAN_NONE);
    const u32 *digit = trace.digits;
    u64 low = digit[0] | (u64)digit[1] << DIGIT_BITS | (u64)digit[2] << 2 * DIGIT_BITS;
    u64 high = (u64)digit[2] >> 4 | (u64)digit[3] << 26 | (u64)digit[4] << 56;
    walk->trace_id[0] = big_endian(high);
    walk->trace_id[1] = big_endian(low);
    digit = span.digits;
    walk->span_id = big_endian(digit[0] | (u64)digit[1] << DIGIT_BITS | (u64)digit[2] << 2 * DIGIT_BITS);
    return end_walk(walk, SPAN_FOUND);
}

/* One step; 0: go on. */
static __always_inline int span_walk_step(struct span_walk *walk) {
    switch (walk->phase) {
    case SPAN_IN_TREE:
        return step_tree(walk);
    case SPAN_IN_COLLISION:
        return step_collision(walk);
    case SPAN_IN_DICTIONARY:
        return step_dictionary(walk);
    case SPAN_AT_OBJECT:
        return step_object(walk);
    default:
        return step_context(walk);
    }
}

#endif
