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
typedef int s32;
typedef long long s64;
#endif

enum limit {
    LIMIT_PYTHON_FRAMES = 512, /* deeper Python stacks lose their root end, marked */
    LIMIT_NATIVE_FRAMES = 256, /* the same for native stacks */
    LIMIT_CHUNK_FRAMES = 32,   /* frames in one stack_chunk */
    LIMIT_COMM = 16,           /* thread name, TASK_COMM_LEN */
    LIMIT_KERNEL_NAME = 1024,  /* bytes of a CUDA kernel's name, the final NUL included */
    LIMIT_POINTER_STEPS = 3,   /* dereferences in a pointer_path */
};

/* --- what Python tells the kernel -------------------------------------------------------------------------- */

enum scope {
    SCOPE_NODE = 0,    /* every process */
    SCOPE_TARGETS = 1, /* only processes that have an entry in the map `targets` */
};

/* The one value of the array map `settings`. */
struct settings {
    u32 scope; /* enum scope */
    u32 epoch; /* the agent's number in dispatch ids, 16 bits, another one at each start */
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
    u16 pad;
};

enum target_flag {
    TARGET_PYTHON = 1,  /* `python` is valid */
    TARGET_IGNORED = 2, /* known and not wanted: no records at all */
    TARGET_FOLLOW = 4,  /* with SCOPE_TARGETS: a forked child becomes a target too (with SCOPE_NODE it always does) */
};

/* Value of the hash map `targets`, key: tgid in the host's PID namespace (u32). */
struct target {
    u32 process; /* incarnation number, see below; never 0 */
    u32 flags;   /* enum target_flag */
    struct python_layout python;
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

/* One frame. Python: the code object, its instruction (bytes from the code object, also when the thread runs a copy of the
 * bytecode; f_lasti as it is with PYTHON_LASTI_INDEX) and co_firstlineno, by which a reused code object is told
 * (0xffffffff: it wasn't in memory).
 * Native, kernel: the address (a return address except at the leaf), 0, and the number of Python frames that the frame
 * stands for (a merge position; 0 outside the interpreter's evaluation function). */
struct frame {
    u64 address;
    u32 offset;
    u32 check;
};

/* Up to 32 frames of a stack, leaf first. `id` is a hash over all frames from the root to the leaf end of this chunk, so
 * that the id of the leaf's chunk names the whole stack; `parent` is the id of the next chunk towards the root (0: none).
 * Chunks are cut from the root end: stacks that share their root share its chunks. Sent once for each id. */
struct stack_chunk {
    u64 id;
    u64 parent;
    u32 process; /* 0: kernel stacks */
    u8 kind;     /* enum stack_kind */
    u8 count;    /* frames that are valid */
    u16 pad;
    struct frame frames[LIMIT_CHUNK_FRAMES];
};

/* --- events ------------------------------------------------------------------------------------------------ */

/* Where an event happened. */
struct origin {
    u64 time;    /* CLOCK_MONOTONIC, nanoseconds */
    u32 process; /* incarnation, 0: not known yet */
    u32 pid;     /* tgid in the host's namespace */
    u32 tid;
    u32 cpu;
    u64 trace_id[2]; /* of the current span, as read in memory order; 0: none */
    u64 span_id;
    u64 python; /* id of the Python stack, 0: none */
    u64 native; /* id of the native stack, 0: none */
    char comm[LIMIT_COMM];
    u8 python_state; /* enum python_state */
    u8 pad[7];
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
};

/* One call into the driver. Dispatch ids: epoch (16 bits) | CPU (12) | sequence on that CPU (36). */
struct cuda_call {
    struct origin origin;
    u64 dispatch;
    u64 function; /* CUfunction, CUkernel or CUgraphExec; the stream of a wait; the library of a look-up */
    u64 stream;
    u64 bytes;  /* of a copy */
    u64 caller; /* return address at entry */
    u32 grid[3];
    u32 block[3];
    u32 shared_bytes;
    u16 entry; /* enum cuda_entry */
    u16 pad;
};

/* A wait that ended: seen at the return site of the call with the same dispatch id. */
struct cuda_return {
    u64 time;
    u64 begin; /* time of the call */
    u64 dispatch;
    u32 process;
    u32 pid;
    u32 tid;
    s32 result; /* CUresult */
    u16 entry;
    u16 pad[3];
};

/* When the result of a look-up was read. The second may be something else that came to stand in the same place (the stack of
 * a function that has ended): take it only for a handle without a certain name that no call used before the look-up. */
enum name_source {
    NAME_AT_RETURN = 1,    /* at the look-up's return site, where it had succeeded: certain */
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
    u32 source;  /* enum name_source */
    char name[LIMIT_KERNEL_NAME];
};

enum process_event_kind {
    PROCESS_FORK = 1, /* `process` is the child's new incarnation, 0 when the parent is no target */
    PROCESS_EXEC = 2, /* the entry in `targets` is gone, `process` is the one that it had */
    PROCESS_EXIT = 3, /* the same; the last thread has left */
};

/* A change in the life of a process; ordinary threads make none. */
struct process_event {
    u64 time;
    u32 pid;
    u32 parent; /* FORK only */
    u32 process;
    u32 kind; /* enum process_event_kind */
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
    COUNT_SCRATCH_BUSY, /* walks not done since every scratch slot of the CPU was taken */
    COUNT_NAMES_LOST,   /* cuda_name records for which the ring had no room */
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
