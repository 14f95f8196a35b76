/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every record, map value and enum that crosses between the kernel and Python. Nothing else lives here.
 *
 * Python takes each layout from the BTF of the compiled object (otelprof/ebpf/layout.py), so nothing is written twice:
 * constants are enumerators (a #define leaves no BTF), integers have fixed widths, padding is explicit, no bit-fields.
 * A new record needs an EXPORT() in the program that submits it, a decoder and a golden record in the tests. */
#ifndef OTELPROF_WIRE_H
#define OTELPROF_WIRE_H

#ifndef OTELPROF_TYPES
#define OTELPROF_TYPES
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short s16;
typedef int s32;
typedef long long s64;
#endif

enum limit {
    LIMIT_PYTHON_FRAMES = 512,   /* deeper Python stacks lose their root end, marked */
    LIMIT_NATIVE_FRAMES = 256,   /* the same for native stacks */
    LIMIT_CHUNK_FRAMES = 32,     /* frames in one stack_chunk */
    LIMIT_COMM = 16,             /* thread name, TASK_COMM_LEN */
    LIMIT_KERNEL_NAME = 1024,    /* bytes of a CUDA kernel's name, the final NUL included */
    LIMIT_POINTER_STEPS = 3,     /* dereferences in a pointer_path */
    LIMIT_MAPPINGS = 1024,       /* mappings of a process that have unwind tables */
    LIMIT_PAGE_ROWS = 65536,     /* rows in a page of `unwind_rows` */
    LIMIT_SPAN_TYPES = 4,        /* classes of spans in a span_layout */
    LIMIT_NODE_TYPES = 3,        /* kinds of nodes in a context */
    LIMIT_CODE_NAME = 128,       /* bytes of a name in a python_code */
    LIMIT_CODE_FILE = 192,       /* the same of a file */
    LIMIT_CODE_LINES = 512,      /* the same of a line table */
    LIMIT_TEXT_LENGTH = 1 << 24, /* characters of a name that can be */
};

/* --- what Python tells the kernel -------------------------------------------------------------------------- */

enum scope {
    SCOPE_NODE = 0,    /* every process */
    SCOPE_TARGETS = 1, /* only processes that have an entry in the map `targets` */
};

/* Whose native stacks are walked. */
enum native_scope {
    NATIVE_OFF = 0,
    NATIVE_WITHOUT_PYTHON = 1, /* of processes without an interpreter */
    NATIVE_ALL = 2,
};

/* The one value of the array map `settings`. */
struct settings {
    u32 scope;  /* enum scope */
    u32 epoch;  /* the agent's number in dispatch ids, 16 bits, another one at each start */
    u32 native; /* enum native_scope */
    u32 pad;
};

/* Where a pointer is found: start + offset[0], read, + offset[1], read, … `steps` times.
 * steps 0: there is none. One form covers a static TLS slot (1 step), a pthread key of musl or a late one of glibc
 * (2 steps) and the DTV of a library that was opened late (3 steps). */
struct pointer_path {
    u32 steps;
    u32 pad;
    s64 offset[LIMIT_POINTER_STEPS];
};

enum python_flag {
    PYTHON_CODE_TAGGED = 1,   /* the frame's code reference carries tag bits: mask the low three (3.14 and newer) */
    PYTHON_SHIM_FRAMES = 2,   /* frames with owner >= shim_owner are C boundaries, no Python frames (3.12 and newer) */
    PYTHON_ENTRY_FRAMES = 4,  /* owner_offset holds is_entry: 1 on the first Python frame of a C entry (3.11) */
    PYTHON_LASTI_INDEX = 8,   /* instruction_offset holds f_lasti, an int, not a pointer (3.10 and older) */
    PYTHON_FREE_THREADED = 16 /* bytecode may be a thread-local copy: tlbc_index and co_tlbc are valid (3.14t …) */
};

/* A range of code in a process; empty: there is none. */
struct code_range {
    u64 start;
    u64 end;
};

/* How to walk the Python stack of one process; offsets in bytes from the start of the structure they belong to. */
struct python_layout {
    struct pointer_path thread_state; /* from the thread pointer (fs base) to PyThreadState * */
    struct pointer_path frame;        /* from PyThreadState to the innermost frame */
    u32 flags;                        /* enum python_flag */
    u16 frame_size;                   /* bytes to read at each frame, at most 128 */
    u16 frame_code;                   /* f_code or f_executable */
    u16 frame_previous;               /* f_back or previous */
    u16 frame_instruction;            /* f_lasti, prev_instr or instr_ptr */
    u16 frame_owner;                  /* owner, or is_entry (PYTHON_ENTRY_FRAMES) */
    u16 frame_tlbc_index;             /* int32, PYTHON_FREE_THREADED only */
    u16 code_first_line;              /* co_firstlineno */
    u16 code_tlbc;                    /* co_tlbc, PYTHON_FREE_THREADED only */
    u8 shim_owner;                    /* least owner of a shim, PYTHON_SHIM_FRAMES */
    u8 version_minor;                 /* 8 for 3.8 … */
    u16 thread_c_frame;               /* PyThreadState.cframe, which each evaluation call puts on the C stack; or 0 */
    u16 c_frame_previous;
    u8 code_name;       /* co_qualname or co_name */
    u8 code_file;       /* co_filename */
    u8 code_lines;      /* co_linetable or co_lnotab */
    u8 object_size;     /* sizeof(PyObject): then comes the length of strings and bytes */
    u8 text_kind_shift; /* of the kind in a string's state */
    u8 text_ascii;      /* where the characters of an ASCII string begin */
    u8 text_compact;    /* the same of another string */
    u8 pad[7];
    struct code_range
        evaluation[2]; /* _PyEval_EvalFrameDefault and its cold part, where nothing else tells (3.8, 3.9) */
};

/* --- unwind tables ----------------------------------------------------------------------------------------- */

/* How the canonical frame address (CFA) of a frame is found: what rsp is in the caller once the call has returned. */
enum unwind_cfa {
    UNWIND_NONE = 0,           /* no rule: the walk stops */
    UNWIND_END = 1,            /* the outermost frame */
    UNWIND_RSP = 2,            /* rsp + offset */
    UNWIND_RBP = 3,            /* rbp + offset */
    UNWIND_DEREF_RSP = 4,      /* what stands at rsp + offset */
    UNWIND_DEREF_RBP = 5,      /* what stands at rbp + offset */
    UNWIND_PLT = 6,            /* rsp + 8, or + 16 from byte `offset` of each 16 on */
    UNWIND_SIGNAL = 7,         /* the interrupted registers are in the context at rsp */
    UNWIND_LEAF_REGISTER = 16, /* + n: register n in DWARF's order, + offset; known at the leaf only */
};

/* Where the caller's rbp is. */
enum unwind_fp {
    UNWIND_FP_SAME = 0,
    UNWIND_FP_AT_CFA = 1, /* at CFA + offset */
    UNWIND_FP_AT_RBP = 2, /* at rbp + offset */
    UNWIND_FP_LOST = 3,
};

/* How a frame is left; the return address stands at CFA - 8. Value of the array map `unwind_rules`; rule 0 is none. */
struct unwind_rule {
    u8 cfa; /* enum unwind_cfa */
    u8 fp;  /* enum unwind_fp */
    s16 fp_offset;
    s32 cfa_offset;
};

/* From this address on (bytes from the mapping's `base`) this rule holds. Value of the pages of `unwind_rows`. */
struct unwind_row {
    u32 address;
    u32 rule;
};

/* Code of a process that has an unwind table: rows [rows, rows + count) of `unwind_rows`, by rising address. Value of
 * the array map `unwind_mappings`, in which the mappings of one process stand side by side, by rising address. */
struct unwind_mapping {
    u64 start;
    u64 end;
    u64 base; /* run-time address that the rows count from */
    u32 rows;
    u32 count;
};

enum target_flag {
    TARGET_PYTHON = 1,  /* `python` is valid */
    TARGET_IGNORED = 2, /* known and not wanted: no records at all */
    TARGET_FOLLOW = 4,  /* with SCOPE_TARGETS: a forked child becomes a target too (with SCOPE_NODE it always does) */
    TARGET_SPANS = 8,   /* `spans_of` has the process */
    TARGET_YOUNG = 16,  /* may be gone in a moment: Python is woken for its stacks; it takes the flag away */
};

/* Value of the hash map `targets`, key: tgid in the host's PID namespace (u32). */
struct target {
    u32 process;        /* incarnation number, see below; never 0 */
    u32 flags;          /* enum target_flag */
    u32 mappings;       /* its first in `unwind_mappings` */
    u32 mappings_count; /* at most LIMIT_MAPPINGS */
    struct python_layout python;
};

/* How instances of a class keep their attributes (Objects/dictobject.c of each version). */
enum span_attributes {
    ATTRIBUTES_DICT = 1,   /* in a dictionary (3.10 and older) */
    ATTRIBUTES_VALUES = 2, /* behind a pointer to values, or in a dictionary (3.11) */
    ATTRIBUTES_TAGGED = 3, /* a word with the lowest bit set leads to values, without it is a dictionary (3.12) */
    ATTRIBUTES_INLINE = 4, /* in the instance itself, or in a dictionary (3.13 and newer) */
};

/* A class of spans: where an instance has the pointer to its dictionary and the one to its values or these themselves,
 * in bytes from its start (values 0: it has none). `place` is learnt in the kernel: 1 + the number of `_context` among
 * the values; 0: not known yet. */
struct span_type {
    u64 type;
    s32 dictionary;
    s32 values;
    u32 place;
    u32 pad;
};

/* How the current span of the OpenTelemetry API for Python is read in one interpreter. Addresses of the interpreter's
 * objects; offsets in bytes. Value of the hash map `spans_of`. */
struct span_layout {
    u64 interpreter;       /* PyInterpreterState */
    u64 variable;          /* the ContextVar that holds the current Context, a dictionary */
    u64 span_key;          /* the str under which it has the span */
    u64 span_key_hash;     /* ~0: not hashed yet, it stands in the str from the first use on */
    u64 attribute;         /* the str `_context`, under which a span has its SpanContext */
    u64 attribute_hash;    /* as span_key_hash */
    u64 span_context_type; /* SpanContext, a tuple of trace id, span id, … */
    u64 int_type;
    u64 node_types[LIMIT_NODE_TYPES]; /* bitmap, array and collision nodes of contexts: learnt in the kernel */
    u64 unknown_type;                 /* the last class of a span that isn't among `types`: learnt in the kernel */
    struct span_type types[LIMIT_SPAN_TYPES];
    u32 variable_hash;      /* 32 bits by which contexts find `variable` */
    u16 header;             /* sizeof(PyObject) */
    u16 thread_interpreter; /* in PyThreadState */
    u16 thread_context;
    u16 tuple_items;
    u16 type_cached_keys; /* ht_cached_keys in PyHeapTypeObject */
    u8 attributes;        /* enum span_attributes */
    u8 version_minor;
};

/* Key of `spans_of`. Interpreter 0 stands for the main one, whose address is in the value: a forked child has no other.
 */
struct span_owner {
    u64 interpreter;
    u32 pid; /* tgid in the host's PID namespace */
    u32 pad;
};

/* Incarnation numbers name one life of one process image: PID and start time and exec. Python gives 1 … 2^31-1; the
 * fork program gives numbers with the top bit set, so that a forked child is a target before Python has seen it. */
enum incarnation { INCARNATION_FORKED = 0x80000000u };

/* --- stacks ------------------------------------------------------------------------------------------------ */

enum stack_kind {
    STACK_PYTHON = 1,
    STACK_NATIVE = 2,
    STACK_KERNEL = 3,
};

/* How the walk of the Python stack went. */
enum python_state {
    PYTHON_NOT_TARGET = 0,      /* no layout known for the process (yet) */
    PYTHON_COMPLETE = 1,        /* to the root */
    PYTHON_NO_THREAD_STATE = 2, /* this thread has none: a native thread */
    PYTHON_NO_FRAMES = 3,       /* a thread state without frames: nothing runs in Python */
    PYTHON_TRUNCATED = 4,       /* deeper than LIMIT_PYTHON_FRAMES, the root end is missing */
    PYTHON_UNREADABLE = 5,      /* memory of a frame could not be read, the root end is missing */
};

/* How the walk of the native stack went. Where it isn't complete, its last frame is the one that couldn't be left. */
enum native_state {
    NATIVE_NOT_WALKED = 0,
    NATIVE_COMPLETE = 1,   /* to the entry of the program or thread */
    NATIVE_TRUNCATED = 2,  /* deeper than LIMIT_NATIVE_FRAMES */
    NATIVE_NO_TABLE = 3,   /* code without an unwind table (yet) */
    NATIVE_NO_RULE = 4,    /* the table has no rule for the address, or one that needs what isn't known */
    NATIVE_UNREADABLE = 5, /* the stack could not be read, or leads nowhere */
};

/* One frame. Python: the code object, its instruction (bytes from the code object, also when the thread runs a copy of
 * the bytecode; f_lasti as it is with PYTHON_LASTI_INDEX) and co_firstlineno, by which a reused code object is told
 * (0xffffffff: it wasn't in memory).
 * Native, kernel: the address, 1 when it is a return address (its call is the instruction before), and the number of
 * Python frames that the frame stands for (a merge position; 0 outside the interpreter's evaluation function). */
struct frame {
    u64 address;
    u32 offset;
    u32 check;
};

/* Up to 32 frames of a stack, leaf first. `id` is a hash over all frames from the root to the leaf end of this chunk,
 * so that the id of the leaf's chunk names the whole stack; `parent` is the id of the next chunk towards the root (0:
 * none). Chunks are cut from the root end: stacks that share their root share its chunks. Sent once for each id. */
struct stack_chunk {
    u64 id;
    u64 parent;
    u32 process; /* 0: kernel stacks */
    u8 kind;     /* enum stack_kind */
    u8 count;    /* frames that are valid */
    u16 pad;
    struct frame frames[LIMIT_CHUNK_FRAMES];
};

/* A text of the target: `length` characters of `kind` bytes each, of which as many are there as found room; kind 0: it
 * could not be read. */
struct python_text {
    u32 length;
    u8 kind;
    u8 pad[3];
};

/* What a code object says of itself, read when the thread that ran it was interrupted: its process may be gone a moment
 * later. Sent once for each code object of a process with TARGET_YOUNG, before the chunk that names it. */
struct python_code {
    u64 address;
    u32 process;
    u32 check; /* as in struct frame */
    struct python_text name;
    struct python_text file;
    u32 lines_size; /* bytes of the whole line table; ~0: it could not be read */
    u32 pad;
    u8 name_data[LIMIT_CODE_NAME];
    u8 file_data[LIMIT_CODE_FILE];
    u8 lines[LIMIT_CODE_LINES];
};

/* --- events ------------------------------------------------------------------------------------------------ */

/* Where an event happened. */
struct origin {
    u64 time;    /* CLOCK_MONOTONIC, nanoseconds */
    u32 process; /* incarnation, 0: not known yet */
    u32 pid;     /* tgid in the host's namespace */
    u32 tid;
    u32 cpu;
    u64 trace_id[2]; /* of the current span: bytes in the order of the wire, big-endian; 0: none */
    u64 span_id;     /* the same */
    u64 python;      /* id of the Python stack, 0: none */
    u64 native;      /* id of the native stack, 0: none */
    char comm[LIMIT_COMM];
    u8 python_state; /* enum python_state */
    u8 native_state; /* enum native_state */
    u8 pad[6];
};

/* One tick of the CPU sampler. */
struct sample {
    struct origin origin;
    u64 kernel;      /* id of the kernel stack, 0: none */
    u64 instruction; /* the user's instruction pointer, also when the tick fell into the kernel; 0: kernel thread */
};

/* Driver entry points; the number is the attach cookie of the probe. `_ptsz` and `_ptds` forms have the same number. */
enum cuda_entry {
    CUDA_NONE = 0,
    CUDA_LAUNCH_KERNEL = 1,
    CUDA_LAUNCH_KERNEL_EX = 2,
    CUDA_LAUNCH_COOPERATIVE = 3,
    CUDA_GRAPH_LAUNCH = 4,
    CUDA_MEMCPY_ASYNC = 5,
    CUDA_MEMCPY_HTOD_ASYNC = 6,
    CUDA_MEMCPY_DTOH_ASYNC = 7,
    CUDA_MEMCPY_DTOD_ASYNC = 8,
    CUDA_STREAM_SYNCHRONIZE = 9,
    CUDA_CONTEXT_SYNCHRONIZE = 10,
    CUDA_MODULE_GET_FUNCTION = 11,
    CUDA_LIBRARY_GET_KERNEL = 12,
    CUDA_KERNEL_GET_FUNCTION = 13,
    CUDA_BEGIN_CAPTURE = 14,
    CUDA_BEGIN_CAPTURE_TO_GRAPH = 15,
    CUDA_END_CAPTURE = 16,
    CUDA_GRAPH_INSTANTIATE = 17,
    CUDA_GRAPH_EXEC_UPDATE = 18,
    CUDA_GRAPH_EXEC_DESTROY = 19,
    CUDA_GRAPH_DESTROY = 20,
    CUDA_GRAPH_CLONE = 21,
    CUDA_GRAPH_ADD_KERNEL = 22,
    CUDA_GRAPH_ADD_CHILD = 23,
    CUDA_EVENT_RECORD = 24, /* this and the next are reported while the process captures a stream, and only then */
    CUDA_STREAM_WAIT_EVENT = 25,
    CUDA_EVENT_SYNCHRONIZE = 26,
    CUDA_MEMCPY = 27,
    CUDA_MEMCPY_HTOD = 28,
    CUDA_MEMCPY_DTOH = 29,
    CUDA_MEMCPY_DTOD = 30,
    CUDA_MEMSET_D8 = 31,
    CUDA_MEMSET_D16 = 32,
    CUDA_MEMSET_D32 = 33,
    CUDA_MEMSET_D8_ASYNC = 34,
    CUDA_MEMSET_D16_ASYNC = 35,
    CUDA_MEMSET_D32_ASYNC = 36,
    CUDA_MEM_ALLOC = 37,
    CUDA_MEM_ALLOC_ASYNC = 38,
    CUDA_MEM_CREATE = 39,
    CUDA_MEM_FREE = 40,
    CUDA_MEM_FREE_ASYNC = 41,
    CUDA_MEM_RELEASE = 42,
    CUDA_GRAPH_CREATE = 43,
    CUDA_RUNTIME_LAUNCH = 44, /* of libcudart, makes no record by itself: see cuda_call.host */
    CUDA_RUNTIME_LAUNCH_EX = 45,
};

/* One call into the driver. Dispatch ids: epoch (16 bits) | CPU (12) | sequence on that CPU (36). */
struct cuda_call {
    struct origin origin;
    u64 dispatch;
    u64 function; /* CUfunction, CUkernel or CUgraphExec; the stream of a wait; the library of a look-up; what is freed
                   */
    u64 object;   /* the CUgraph or CUevent that the call is about besides */
    u64 stream;
    u64 bytes;  /* of a copy, a set or an allocation */
    u64 caller; /* return address at entry */
    u64 host;   /* host function of the kernel, of a launch through a CUDA runtime that is probed; 0: not known */
    u32 grid[3];
    u32 block[3];
    u32 shared_bytes;
    u16 entry; /* enum cuda_entry */
    u16 pad;
};

/* The end of a call whose end matters: how long a wait took, what a capture, an instantiation or an allocation gave. It
 * has the dispatch id of the call. */
struct cuda_return {
    u64 time;
    u64 begin; /* time of the call */
    u64 dispatch;
    u64 value; /* the handle or address that the call gave; 0: none, or it failed */
    u32 process;
    u32 pid;
    u32 tid;
    s32 result; /* CUresult */
    u16 entry;
    u16 source; /* enum name_source: `time` is the call's end, or only that of the thread's next call */
    u32 pad;
};

/* When the result of a call was read. The second may be something else that came to stand in the same place (the
 * stack of a function that has ended): take it only for a handle without a certain name that no call used before the
 * look-up. */
enum name_source {
    NAME_AT_RETURN = 1,    /* at the call's return site, where it had succeeded: certain */
    NAME_AT_NEXT_CALL = 2, /* at the thread's next driver call, where it had changed meanwhile */
};

/* A handle got its name: by a look-up whose result was read, at its return site or at the thread's next driver call. */
struct cuda_name {
    u64 time;
    u64 handle; /* CUfunction or CUkernel that the look-up gave */
    u64 object; /* cuKernelGetFunction: the CUkernel whose name it shares, `name` is empty then; else 0 */
    u32 process;
    u32 pid;
    u16 entry;
    u16 length; /* bytes of `name` without the NUL; LIMIT_KERNEL_NAME - 1 and longer names are cut */
    u32 source; /* enum name_source */
    char name[LIMIT_KERNEL_NAME];
};

enum process_event_kind {
    PROCESS_FORK = 1, /* `process` is the child's new incarnation, 0 when the parent is no target */
    PROCESS_EXEC = 2, /* the entry in `targets` is gone, `process` is the one that it had; `next` the one it has now */
    PROCESS_EXIT = 3, /* the same; the last thread has left */
};

/* An executable file as the kernel names it. Key of the hash map `programs`, whose value is the python_layout of its
 * processes. */
struct program {
    u64 inode;
    u32 device;
    u32 pad;
};

/* A change in the life of a process; ordinary threads make none. */
struct process_event {
    u64 time;
    u32 pid;
    u32 parent; /* FORK only */
    u32 process;
    u32 kind; /* enum process_event_kind */
    u32 next; /* EXEC only: the new incarnation where the program is in `programs`, else 0 */
    u32 pad;
    struct program program; /* EXEC only */
    char comm[LIMIT_COMM];
};

/* --- counting ---------------------------------------------------------------------------------------------- */

/* Index of the per-CPU array map `counts` (u64). */
enum count {
    COUNT_SAMPLES_SEEN,     /* ticks that fell on a target */
    COUNT_LAUNCHES_SEEN,    /* kernel and graph launches */
    COUNT_CALLS_SEEN,       /* other driver calls */
    COUNT_CHUNKS_SENT,      /* stack chunks */
    COUNT_CHUNKS_LOST,      /* stack chunks for which the ring had no room: the stack is sent again next time */
    COUNT_PYTHON_TRUNCATED, /* stacks by enum python_state */
    COUNT_PYTHON_UNREADABLE,
    COUNT_PYTHON_NO_THREAD_STATE,
    COUNT_NATIVE_TRUNCATED, /* native stacks by enum native_state */
    COUNT_NATIVE_NO_TABLE,
    COUNT_NATIVE_NO_RULE,
    COUNT_NATIVE_UNREADABLE,
    COUNT_SCRATCH_BUSY, /* walks not done since every scratch slot of the CPU was taken */
    COUNT_SPANS_LOST,   /* current spans that couldn't be read: the event has no link */
    COUNT_NAMES_LOST,   /* cuda_name records for which the ring had no room */
    COUNT_CODES_LOST,   /* python_code records for which the ring had no room */
    COUNT_EVENTS_LOST,  /* process_event records for which the ring had no room */
    COUNT_LOST,         /* events without a record: `losses` has them by process, and has changed when this has */
    COUNT_KINDS,
};

enum lost_kind {
    LOST_SAMPLE = 1,
    LOST_CALL = 2, /* a driver call; `entry` says which */
};

enum lost_reason {
    LOST_RING_FULL = 1,
};

/* Key of the hash map `losses` (value: u64, only ever grows): events that have no record, by process. */
struct loss {
    u32 process;
    u32 pid;
    u16 kind;   /* enum lost_kind */
    u16 reason; /* enum lost_reason */
    u32 entry;  /* enum cuda_entry, LOST_CALL only */
};

#endif
