/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The unwind tables of all files and processes, as maps: Python writes them through mapped memory, programs search. */
#ifndef OTELPROF_UNWIND_TABLES_H
#define OTELPROF_UNWIND_TABLES_H

#include "native_frames.h"

enum { UNWIND_PAGES = 256, UNWIND_MAPPINGS = 32768, UNWIND_RULES = 16384 };

#define MAPPED_ARRAY(name, value_type, entries)                                                                        \
    struct {                                                                                                           \
        __uint(type, BPF_MAP_TYPE_ARRAY);                                                                              \
        __uint(max_entries, entries);                                                                                  \
        __uint(map_flags, BPF_F_MMAPABLE);                                                                             \
        __type(key, u32);                                                                                              \
        __type(value, value_type);                                                                                     \
    } name SEC(".maps")

/* Mappings of processes, a run of entries for each: `struct target` says which. Written by Python, read at every frame.
 * Full: further processes have no native frames. */
MAPPED_ARRAY(unwind_mappings, struct unwind_mapping, UNWIND_MAPPINGS);

/* All rules there are, shared by all files; 0 is none. The same. Full: further tables are refused. */
MAPPED_ARRAY(unwind_rules, struct unwind_rule, UNWIND_RULES);

struct unwind_page {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, LIMIT_PAGE_ROWS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(key_size, sizeof(u32)); /* clang leaves types out of an inner map's */
    __uint(value_size, sizeof(struct unwind_row));
};

/* Rows of all tables, in pages that Python makes when it needs them and takes away. The same. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
    __uint(max_entries, UNWIND_PAGES);
    __type(key, u32);
    __array(values, struct unwind_page);
} unwind_rows SEC(".maps");

static __always_inline const struct unwind_mapping *mapping_at(u32 index) {
    return bpf_map_lookup_elem(&unwind_mappings, &index);
}

static __always_inline const struct unwind_row *row_at(u32 index) {
    u32 number = index / LIMIT_PAGE_ROWS, place = index % LIMIT_PAGE_ROWS;
    void *page = bpf_map_lookup_elem(&unwind_rows, &number);
    return page ? bpf_map_lookup_elem(page, &place) : 0;
}

static __always_inline const struct unwind_rule *rule_at(u32 index) {
    return bpf_map_lookup_elem(&unwind_rules, &index);
}

#endif
