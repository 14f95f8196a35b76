/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads what a code object says of itself: name, file and line table, as they stand in the target.
 *
 * Pure like the walkers: memory is read through read_user(), and whatever it holds, no more than the record's room is
 * written. */
#ifndef OTELPROF_PYTHON_CODE_H
#define OTELPROF_PYTHON_CODE_H

#include "bpf.h"

enum {
    TEXT_COMPACT = 1, /* bits behind the kind in a string's state: its characters follow the header */
    TEXT_ASCII = 2,
    LINES_UNREADABLE = 0xffffffffu,
};

/* The least of the two, which the compiler must not find out by itself: the verifier loses a limit that it moves. */
static __always_inline u32 at_most(u64 size, u32 limit) {
    u32 least = size < limit ? (u32)size : limit;
#ifndef OTELPROF_HOST
    asm volatile("" : "+r"(least));
#endif
    return least > limit ? limit : least;
}

/* Reads a string object into `data`. */
static __always_inline void read_text(struct python_text *text, u8 *data, u32 limit, u64 object,
                                      const struct python_layout *layout) {
    u64 length = 0;
    u32 state = 0;
    text->kind = 0;
    text->length = 0;
    if (!object || read_user(&length, sizeof(length), object + layout->object_size) ||
        read_user(&state, sizeof(state), object + layout->object_size + 16))
        return;
    state >>= layout->text_kind_shift & 31;
    u32 kind = state & 7, form = state >> 3;
    if (!(form & TEXT_COMPACT) || length > LIMIT_TEXT_LENGTH || (kind != 1 && kind != 2 && kind != 4))
        return;
    u64 start = object + (form & TEXT_ASCII ? layout->text_ascii : layout->text_compact);
    if (read_user(data, at_most(length * kind, limit), start))
        return;
    text->length = length;
    text->kind = kind;
}

static __always_inline void read_lines(struct python_code *code, u64 object, const struct python_layout *layout) {
    u64 size = 0;
    code->lines_size = LINES_UNREADABLE;
    if (!object || read_user(&size, sizeof(size), object + layout->object_size) || size > LIMIT_TEXT_LENGTH)
        return;
    if (!read_user(code->lines, at_most(size, LIMIT_CODE_LINES), object + layout->object_size + 16))
        code->lines_size = size;
}

/* Fills a record whose address and process are set; what can't be read says so. */
static __always_inline void read_code(struct python_code *code, const struct python_layout *layout) {
    u64 name = 0, file = 0, lines = 0, at = code->address;
    read_user(&name, sizeof(name), at + layout->code_name);
    read_user(&file, sizeof(file), at + layout->code_file);
    read_user(&lines, sizeof(lines), at + layout->code_lines);
    read_text(&code->name, code->name_data, LIMIT_CODE_NAME, name, layout);
    read_text(&code->file, code->file_data, LIMIT_CODE_FILE, file, layout);
    read_lines(code, lines, layout);
}

#endif
