/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map. Each program object declares those that it uses, and the loader makes them one and the same
 * (otelprof/ebpf/loader.py); sizes are defaults that the loader may change before loading. */
#ifndef OTELPROF_MAPS_H
#define OTELPROF_MAPS_H

#include "bpf.h"
#include "otel_span.h"
#include "python_code.h"
#include "python_frames.h"
#include "stacks.h"
#include "unwind_tables.h"

#define RING(name, bytes)                                                                                              \
    struct {                                                                                                           \
        __uint(type, BPF_MAP_TYPE_RINGBUF);                                                                            \
        __uint(max_entries, bytes);                                                                                    \
    } name SEC(".maps")

#define TABLE(map_type, name, key_type, value_type, entries)                                                           \
    struct {                                                                                                           \
        __uint(type, map_type);                                                                                        \
        __uint(max_entries, entries);                                                                                  \
        __type(key, key_type);                                                                                         \
        __type(value, value_type);                                                                                     \
    } name SEC(".maps")

enum { SCRATCH_SLOTS = 4 };

/* The name that a look-up asked for; `length` without the final NUL. */
struct kernel_name {
    u32 length;
    char text[LIMIT_KERNEL_NAME];
};

/* Working memory of one program run; too big for the 512 bytes of a program's stack. */
struct scratch {
    struct python_walk walk;
    struct native_walk native;
    struct chunk_ids chunks;
    struct span_walk span;
    u32 process;
    u32 flags; /* enum target_flag */
    struct kernel_name name;
};

/* Key of `scratch_busy` and `settings`, and of the one value of every array with one value. */
enum { ONLY = 0 };

/* Processes that are known, by tgid. Written by Python and by the programs of processes.bpf.c; read at every event.
 * Full: new processes aren't targets (a forked child then waits for Python). */
TABLE(BPF_MAP_TYPE_HASH, targets, u32, struct target, 16384);

/* How the current span is read, for targets with TARGET_SPANS. Written by Python, by the fork program for children, and
 * by sampler and cuda with what they learn; read at every event of such a process. Full: no spans of new processes. */
TABLE(BPF_MAP_TYPE_HASH, spans_of, struct span_owner, struct span_layout, 4096);

/* What the agent wants; one value. Written by Python before anything is attached, read at every event. */
TABLE(BPF_MAP_TYPE_ARRAY, settings, u32, struct settings, 1);

/* One record a tick. Written by sampler.bpf.c, read by Python. Full: the tick counts in `losses`. */
RING(samples, 1 << 19);

/* Stacks at first sight. Written by sampler and cuda, read by Python after the records that name them. Full:
 * COUNT_CHUNKS_LOST, and the stack is sent at its next sight. */
RING(chunks, 1 << 20);

/* Code objects of young processes at first sight. Written by sampler and cuda, read by Python after the chunks that
 * name them. Full: COUNT_CODES_LOST, and the names are those that Python still finds. */
RING(codes, 1 << 20);

/* Code objects that are in `codes` or were. Written and read by the programs only. Full: the least recently used go and
 * are sent once more. */
struct code_key {
    u64 address;
    u32 process;
    u32 check;
};
TABLE(BPF_MAP_TYPE_LRU_HASH, codes_seen, struct code_key, u8, 16384);

/* Programs that run Python, and how: their next processes are targets from their first instruction on. Written by
 * Python, read at each exec. Full: Python's first look makes them targets, as it does all others. */
TABLE(BPF_MAP_TYPE_HASH, programs, struct program, struct python_layout, 1024);

/* Births and deaths. Written by processes.bpf.c, read by Python. Full: COUNT_EVENTS_LOST. */
RING(events, 1 << 17);

/* Ids of chunks that are in `chunks` or were. Written and read by the programs only. Full: the least recently used go
 * and their chunks are sent once more. */
TABLE(BPF_MAP_TYPE_LRU_HASH, chunks_seen, u64, u8, 65536);

/* Totals by enum count. Written by all programs, summed over CPUs by Python. */
TABLE(BPF_MAP_TYPE_PERCPU_ARRAY, counts, u32, u64, COUNT_KINDS);

/* Events without a record, by process and reason. Written by sampler and cuda, read by Python, never emptied. Full: the
 * loss counts under process 0 and pid 0, keys that the loader puts in first. */
TABLE(BPF_MAP_TYPE_HASH, losses, struct loss, u64, 8192);

/* Working memory, private to a program run while it holds the slot. Full: see `scratch_busy`. */
TABLE(BPF_MAP_TYPE_PERCPU_ARRAY, scratch, u32, struct scratch, SCRATCH_SLOTS);

/* Bit n: slot n of this CPU is taken. A tick interrupts a CUDA program, and CUDA programs may be preempted by each
 * other, so several slots can be in use on a CPU. All taken: COUNT_SCRATCH_BUSY, and the event has no stack. */
TABLE(BPF_MAP_TYPE_PERCPU_ARRAY, scratch_busy, u32, u64, 1);

#ifdef OTELPROF_CUDA

enum { PENDING_THREADS = 8192, PENDING_LOOKUPS = 512, RETURN_SITES = 4096, CAPTURING_PROCESSES = 1024 };

/* A driver call that this thread is in, or one that it has left without being seen. */
struct pending {
    u64 begin;
    u64 dispatch;
    u64 stack;  /* stack pointer at entry: where the return address is */
    u64 out;    /* where the call puts its handle; 0: it gives none */
    u64 before; /* what stood there at entry */
    u64 object; /* cuKernelGetFunction: the CUkernel */
    u32 process;
    u16 entry;
    u16 pad;
};

/* Driver calls. Written by cuda.bpf.c, read by Python. Full: the call counts in `losses`. */
RING(calls, 1 << 22);

/* Calls that ended. Written by cuda.bpf.c, read by Python. Full: the call's duration or handle stays unknown. */
RING(returns, 1 << 19);

/* Handles and their names. Written by cuda.bpf.c, read by Python. Full: COUNT_NAMES_LOST. */
RING(names, 1 << 19);

/* The last call of a thread whose end matters, by pid_tgid. Written and read by cuda.bpf.c only. Full: the least
 * recently used goes, its duration or name stays unknown. */
TABLE(BPF_MAP_TYPE_LRU_HASH, pending, u64, struct pending, PENDING_THREADS);

/* Names for entries of `pending` that are look-ups, by pid_tgid. The same; smaller since look-ups are rare. */
TABLE(BPF_MAP_TYPE_LRU_HASH, pending_names, u64, struct kernel_name, PENDING_LOOKUPS);

/* Since when a return site is probed, by the cookie of its probe, CLOCK_MONOTONIC nanoseconds. Written by Python once
 * the probe is there, read by cuda.bpf.c. Full: no more sites are probed. */
TABLE(BPF_MAP_TYPE_HASH, return_sites, u32, u64, RETURN_SITES);

/* Captures that a process has begun and not ended, by tgid. Written and read by cuda.bpf.c only. Full: the least
 * recently used goes, and streams that join its capture through events are not noticed. */
TABLE(BPF_MAP_TYPE_LRU_HASH, capturing, u32, u64, CAPTURING_PROCESSES);

/* The call of the CUDA runtime that this thread is in, or was in last. */
struct runtime_call {
    u64 host;   /* the host function that stands for the kernel */
    u64 stack;  /* stack pointer at entry: where the return address is */
    u64 caller; /* the return address */
};

/* Launches through a CUDA runtime, by pid_tgid. Written and read by cuda.bpf.c only. Full: the least recently used
 * goes, its kernel may stay without a name. */
TABLE(BPF_MAP_TYPE_LRU_HASH, runtime_calls, u64, struct runtime_call, PENDING_THREADS);

/* Numbers of driver calls on each CPU, the low part of dispatch ids. Written and read by cuda.bpf.c only. */
TABLE(BPF_MAP_TYPE_PERCPU_ARRAY, sequence, u32, u64, 1);

#endif
#endif
