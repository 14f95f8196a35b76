/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Uprobes on the CUDA driver: one record for each launch, copy, wait, look-up, capture, allocation, and what they gave.
 *
 * Which entry point it is stands in the probe's cookie (enum cuda_entry). All programs expect registers and stack as at
 * the first instruction. There are no return probes: results are read at the caller's return site, an ordinary uprobe
 * that Python sets once it has learnt the address from `caller`. Prototypes: cuda.h of CUDA 11 to 13; they have been
 * the same since each function exists. */
#define OTELPROF_CUDA
#include "events.h"

EXPORT(struct, cuda_call);
EXPORT(struct, cuda_return);
EXPORT(struct, cuda_name);
EXPORT(enum, cuda_entry);
EXPORT(enum, name_source);

enum { CUDA_SUCCESS = 0 };

/* CUlaunchConfig up to hStream. */
struct launch_config {
    u32 grid[3];
    u32 block[3];
    u32 shared_bytes;
    u32 pad;
    u64 stream;
};

static __always_inline u64 read_word(u64 address) {
    u64 word = 0;
    read_user(&word, sizeof(word), address);
    return word;
}

static __always_inline u64 next_dispatch(void) {
    const u32 only = ONLY;
    u64 *number = bpf_map_lookup_elem(&sequence, &only);
    struct settings *set = bpf_map_lookup_elem(&settings, &only);
    u64 epoch = set ? set->epoch & 0xffff : 0, cpu = bpf_get_smp_processor_id() & 0xfff;
    u64 count = number ? __sync_fetch_and_add(number, 1) : 0;
    return epoch << 48 | cpu << 36 | (count & 0xfffffffffull);
}

static __always_inline int is_launch(u16 entry) {
    return entry >= CUDA_LAUNCH_KERNEL && entry <= CUDA_GRAPH_LAUNCH;
}

static __always_inline int is_lookup(u16 entry) {
    return entry >= CUDA_MODULE_GET_FUNCTION && entry <= CUDA_KERNEL_GET_FUNCTION;
}

/* Tells Python the name of the handle that a look-up gave. */
static __always_inline void send_name(const struct pending *call, u64 handle, enum name_source source) {
    u64 thread = bpf_get_current_pid_tgid();
    struct kernel_name *wanted = bpf_map_lookup_elem(&pending_names, &thread);
    if (!handle || (!wanted && !call->object))
        return;
    struct cuda_name *name = bpf_ringbuf_reserve(&names, sizeof(*name), 0);
    if (!name) {
        count_one(COUNT_NAMES_LOST);
        return;
    }
    name->time = bpf_ktime_get_ns();
    name->handle = handle;
    name->object = call->object;
    name->process = call->process;
    name->pid = thread >> 32;
    name->entry = call->entry;
    name->length = wanted ? wanted->length : 0;
    name->source = source;
    if (wanted)
        bpf_probe_read_kernel(name->name, sizeof(name->name), wanted->text);
    else
        name->name[0] = 0;
    bpf_ringbuf_submit(name, BPF_RB_NO_WAKEUP);
}

/* Tells Python that a call has ended; `value` is the handle that it gave. */
static __always_inline void send_return(const struct pending *call, s32 result, u64 value, enum name_source source) {
    u64 thread = bpf_get_current_pid_tgid();
    struct cuda_return *end = bpf_ringbuf_reserve(&returns, sizeof(*end), 0);
    if (!end)
        return;
    __builtin_memset(end, 0, sizeof(*end));
    end->time = bpf_ktime_get_ns();
    end->begin = call->begin;
    end->dispatch = call->dispatch;
    end->value = value;
    end->process = call->process;
    end->pid = thread >> 32;
    end->tid = (u32)thread;
    end->result = result;
    end->entry = call->entry;
    end->source = source;
    bpf_ringbuf_submit(end, BPF_RB_NO_WAKEUP);
}

static __always_inline void send_handle(const struct pending *call, u64 handle, enum name_source source) {
    if (is_lookup(call->entry))
        send_name(call, handle, source);
    else
        send_return(call, CUDA_SUCCESS, handle, source);
}

/* At a driver call of a thread whose last call wasn't seen to return (nobody knew its return site yet): reads the
 * handle where that call put it, if it gives one.
 *
 * Why that may be done: a thread makes its next call only after the last one has returned, so the driver has written by
 * now, if it ever did. That it did shows by the change since entry; a call that failed leaves the old value. What
 * can go wrong is that the place lay on the stack of a function that has ended. When the stack has shrunk beyond it,
 * that shows here; when it has grown again, the place may hold anything. So the record says how it came about (enum
 * name_source), and its reader believes it only for a handle that is new. It matters for the first call from each site,
 * before that is probed. */
static __always_inline void settle_last_call(struct pt_regs *regs, u32 process) {
    u64 thread = bpf_get_current_pid_tgid();
    struct pending *call = bpf_map_lookup_elem(&pending, &thread);
    if (!call || !call->out)
        return;
    int is_gone = call->out > call->stack && call->out < regs->sp;
    u64 handle = is_gone || call->process != process ? 0 : read_word(call->out);
    if (handle != call->before)
        send_handle(call, handle, NAME_AT_NEXT_CALL);
    bpf_map_delete_elem(&pending, &thread);
    bpf_map_delete_elem(&pending_names, &thread);
}

static __always_inline void count_lost_call(u32 process, u32 pid, u16 entry) {
    struct loss key = {.process = process, .pid = pid, .kind = LOST_CALL, .reason = LOST_RING_FULL, .entry = entry};
    count_loss(&key);
}

/* Begins the record of a driver call; 0 when the process isn't wanted or there is no room. To be submitted. */
static __always_inline struct cuda_call *begin_call(struct pt_regs *regs) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    u16 entry = bpf_get_attach_cookie(regs);
    struct stacks found;
    struct target *target;
    if (!is_wanted(pid, &target))
        return 0;
    u32 process = target ? target->process : 0;
    settle_last_call(regs, process);
    count_one(is_launch(entry) ? COUNT_LAUNCHES_SEEN : COUNT_CALLS_SEEN);
    take_stacks(target, regs, &found);
    struct cuda_call *call = bpf_ringbuf_reserve(&calls, sizeof(*call), 0);
    if (!call) {
        count_lost_call(process, pid, entry);
        return 0;
    }
    __builtin_memset(call, 0, sizeof(*call));
    fill_origin(&call->origin, process, &found);
    call->dispatch = next_dispatch();
    call->entry = entry;
    call->caller = read_word(regs->sp);
    return call;
}

/* The host function of a launch that comes from the CUDA runtime: the runtime's own call must still stand on the stack.
 */
static __always_inline u64 take_host(struct pt_regs *regs) {
    u64 thread = bpf_get_current_pid_tgid(), host = 0;
    struct runtime_call *call = bpf_map_lookup_elem(&runtime_calls, &thread);
    if (!call)
        return 0;
    if (regs->sp < call->stack && read_word(call->stack) == call->caller)
        host = call->host;
    bpf_map_delete_elem(&runtime_calls, &thread);
    return host;
}

/* cudaLaunchKernel(host, …), cudaLaunchKernelExC(config, host, …): probed only while a process has kernels without
 * names */
SEC("uprobe")
int cuda_runtime_launch(struct pt_regs *regs) {
    u64 thread = bpf_get_current_pid_tgid();
    struct runtime_call call = {.host = ARGUMENT_1(regs), .stack = regs->sp, .caller = read_word(regs->sp)};
    if ((u16)bpf_get_attach_cookie(regs) == CUDA_RUNTIME_LAUNCH_EX)
        call.host = ARGUMENT_2(regs);
    bpf_map_update_elem(&runtime_calls, &thread, &call, BPF_ANY);
    return 0;
}

static __always_inline void end_call(struct cuda_call *call) {
    bpf_ringbuf_submit(call, BPF_RB_NO_WAKEUP);
}

/* The arguments in registers. Each is read at a fixed place before it is known which are wanted: the verifier lets
 * nobody choose among places in the context. */
struct arguments {
    u64 first, second, third, fourth, fifth, sixth;
};

#define READ_ARGUMENT(name, number)                                                                                    \
    arguments->name = ARGUMENT_##number(regs);                                                                         \
    asm volatile("" : "+r"(arguments->name))

static __always_inline void read_arguments(struct pt_regs *regs, struct arguments *arguments) {
    READ_ARGUMENT(first, 1);
    READ_ARGUMENT(second, 2);
    READ_ARGUMENT(third, 3);
    READ_ARGUMENT(fourth, 4);
    READ_ARGUMENT(fifth, 5);
    READ_ARGUMENT(sixth, 6);
}

/* What this thread is in now, so that its end is seen; `out` is where the handle will be, `object` whose name it will
 * have. Ends the record. */
static __always_inline void await(struct pt_regs *regs, struct cuda_call *call, u64 out, u64 object) {
    u64 thread = bpf_get_current_pid_tgid();
    struct pending wait = {.stack = regs->sp, .out = out, .before = out ? read_word(out) : 0, .object = object};
    wait.begin = call->origin.time;
    wait.dispatch = call->dispatch;
    wait.process = call->origin.process;
    wait.entry = call->entry;
    end_call(call);
    bpf_map_update_elem(&pending, &thread, &wait, BPF_ANY);
}

/* Counts the captures that a process has open; what the calls give isn't known here, so it may stay too high. */
static __always_inline void note_capture(s64 change) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    const u64 none = 0;
    u64 *open = bpf_map_lookup_elem(&capturing, &pid);
    if (!open) {
        bpf_map_update_elem(&capturing, &pid, &none, BPF_NOEXIST);
        open = bpf_map_lookup_elem(&capturing, &pid);
    }
    if (open && (change > 0 || *open))
        __sync_fetch_and_add(open, change);
}

/* Keeps the name that a look-up asks for until its result is known; the caller may free it after the return. */
static __always_inline void keep_name(u64 text) {
    u64 thread = bpf_get_current_pid_tgid();
    u32 slot = 0;
    struct scratch *work = take_scratch(&slot);
    if (!work)
        return;
    long length = bpf_probe_read_user_str(work->name.text, sizeof(work->name.text), (void *)text);
    if (length > 1) {
        work->name.length = length - 1;
        bpf_map_update_elem(&pending_names, &thread, &work->name, BPF_ANY);
    }
    free_scratch(slot);
}

/* Launches and copies, the calls that are made often.
 *
 * One program for many layouts of arguments: what all have in common, the walks above all, is verified once. */
SEC("uprobe")
int cuda_work(struct pt_regs *regs) {
    struct launch_config config = {};
    struct arguments with;
    read_arguments(regs, &with);
    struct cuda_call *call = begin_call(regs);
    if (!call)
        return 0;
    u16 entry = call->entry;
    if (entry == CUDA_LAUNCH_KERNEL || entry == CUDA_LAUNCH_COOPERATIVE) {
        /* (f, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedMemBytes, stream, …) */
        call->function = with.first;
        call->grid[0] = with.second;
        call->grid[1] = with.third;
        call->grid[2] = with.fourth;
        call->block[0] = with.fifth;
        call->block[1] = with.sixth;
        call->block[2] = read_word(STACK_ARGUMENT(regs, 0));
        call->shared_bytes = read_word(STACK_ARGUMENT(regs, 1));
        call->stream = read_word(STACK_ARGUMENT(regs, 2));
        call->host = take_host(regs);
    } else if (entry == CUDA_LAUNCH_KERNEL_EX) { /* (config, f, kernelParams, extra) */
        read_user(&config, sizeof(config), with.first);
        call->function = with.second;
        __builtin_memcpy(call->grid, config.grid, sizeof(config.grid));
        __builtin_memcpy(call->block, config.block, sizeof(config.block));
        call->shared_bytes = config.shared_bytes;
        call->stream = config.stream;
        call->host = take_host(regs);
    } else if (entry == CUDA_GRAPH_LAUNCH) { /* (graphExec, stream) */
        call->function = with.first;
        call->stream = with.second;
    } else { /* cuMemcpyAsync(dst, src, bytes, stream) and its forms by direction; those that wait have no stream */
        call->bytes = with.third;
        if (entry < CUDA_MEMCPY)
            call->stream = with.fourth;
    }
    end_call(call);
    return 0;
}

/* CUDA_KERNEL_NODE_PARAMS: `function` stands first; the second form may have a CUkernel at the end instead. */
enum { NODE_PARAMETERS_KERNEL = 56 };

/* Where a call puts the handle that it gives; 0: it gives none. */
static __always_inline u64 place_of_handle(u16 entry, const struct arguments *with) {
    if (entry == CUDA_END_CAPTURE)
        return with->second;
    if (is_lookup(entry) || entry == CUDA_GRAPH_INSTANTIATE || entry == CUDA_GRAPH_CLONE ||
        entry == CUDA_GRAPH_CREATE || (entry >= CUDA_MEM_ALLOC && entry <= CUDA_MEM_CREATE))
        return with->first;
    return 0;
}

static __always_inline int is_awaited(u16 entry) {
    return entry == CUDA_STREAM_SYNCHRONIZE || entry == CUDA_CONTEXT_SYNCHRONIZE || entry == CUDA_EVENT_SYNCHRONIZE ||
           entry == CUDA_BEGIN_CAPTURE || entry == CUDA_BEGIN_CAPTURE_TO_GRAPH || entry == CUDA_GRAPH_EXEC_UPDATE;
}

/* What the arguments are, by entry point. */
static __always_inline void read_other(struct cuda_call *call, u16 entry, const struct arguments *with) {
    if (entry == CUDA_STREAM_SYNCHRONIZE) { /* (stream) */
        call->function = call->stream = with->first;
    } else if (entry == CUDA_EVENT_SYNCHRONIZE) { /* (event) */
        call->object = with->first;
    } else if (is_lookup(entry)) { /* (out, module or library or kernel, name) */
        call->function = with->second;
    } else if (entry >= CUDA_BEGIN_CAPTURE && entry <= CUDA_END_CAPTURE) { /* (stream, …) */
        call->stream = with->first;
        if (entry == CUDA_BEGIN_CAPTURE_TO_GRAPH) /* (stream, graph, …) */
            call->object = with->second;
    } else if (entry == CUDA_GRAPH_INSTANTIATE || entry == CUDA_GRAPH_CLONE) { /* (out, graph, …) */
        call->object = with->second;
    } else if (entry == CUDA_GRAPH_EXEC_UPDATE) { /* (exec, graph, …) */
        call->function = with->first;
        call->object = with->second;
    } else if (entry == CUDA_GRAPH_ADD_CHILD) { /* (out, graph, dependencies, count, child) */
        call->object = with->second;
        call->function = with->fifth;
    } else if (entry == CUDA_GRAPH_ADD_KERNEL) { /* (out, graph, dependencies, count, parameters) */
        u64 function = read_word(with->fifth);
        call->object = with->second;
        call->function = function ? function : read_word(with->fifth + NODE_PARAMETERS_KERNEL);
    } else if (entry == CUDA_EVENT_RECORD) { /* (event, stream) */
        call->object = with->first;
        call->stream = with->second;
    } else if (entry == CUDA_STREAM_WAIT_EVENT) { /* (stream, event, flags) */
        call->stream = with->first;
        call->object = with->second;
    } else if (entry >= CUDA_MEMSET_D8 && entry <= CUDA_MEMSET_D32) { /* (address, value, count) */
        call->bytes = with->third << (entry - CUDA_MEMSET_D8);
    } else if (entry >= CUDA_MEMSET_D8_ASYNC && entry <= CUDA_MEMSET_D32_ASYNC) { /* (address, value, count, stream) */
        call->bytes = with->third << (entry - CUDA_MEMSET_D8_ASYNC);
        call->stream = with->fourth;
    } else if (entry >= CUDA_MEM_ALLOC && entry <= CUDA_MEM_CREATE) { /* (out, bytes, …) */
        call->bytes = with->second;
    } else if (entry != CUDA_CONTEXT_SYNCHRONIZE && entry != CUDA_GRAPH_CREATE) { /* (what ends) */
        call->function = with->first;
    }
}

/* Events are the business of captures alone: by them a capture spreads to other streams. */
static __always_inline int is_needless(u16 entry) {
    u32 pid = bpf_get_current_pid_tgid() >> 32;
    if (entry != CUDA_EVENT_RECORD && entry != CUDA_STREAM_WAIT_EVENT)
        return 0;
    u64 *open = bpf_map_lookup_elem(&capturing, &pid);
    return !open || !*open;
}

/* All other calls. */
SEC("uprobe")
int cuda_other(struct pt_regs *regs) {
    u16 entry = bpf_get_attach_cookie(regs);
    struct arguments with;
    read_arguments(regs, &with);
    if (is_needless(entry))
        return 0;
    struct cuda_call *call = begin_call(regs);
    if (!call)
        return 0;
    u64 out = place_of_handle(entry, &with);
    read_other(call, entry, &with);
    if (entry >= CUDA_BEGIN_CAPTURE && entry <= CUDA_END_CAPTURE)
        note_capture(entry == CUDA_END_CAPTURE ? -1 : 1);
    if (entry == CUDA_MODULE_GET_FUNCTION || entry == CUDA_LIBRARY_GET_KERNEL)
        keep_name(with.third);
    if (out || is_awaited(entry))
        await(regs, call, out, entry == CUDA_KERNEL_GET_FUNCTION ? with.second : 0);
    else
        end_call(call);
    return 0;
}

/* The instruction after a call into the driver. Others pass there too (a call through a pointer may have many targets),
 * so it counts only for the thread that is in a driver call, at the stack depth of that call; and only when the probe
 * was there when the call began, since else the call may have returned long ago. */
SEC("uprobe")
int cuda_return(struct pt_regs *regs) {
    u64 thread = bpf_get_current_pid_tgid();
    u32 site = bpf_get_attach_cookie(regs);
    struct pending *call = bpf_map_lookup_elem(&pending, &thread);
    u64 *since = bpf_map_lookup_elem(&return_sites, &site);
    if (!call || !since || call->begin < *since || regs->sp != call->stack + RETURN_ADDRESS_SIZE)
        return 0;
    s32 result = RESULT(regs);
    if (!call->out || result != CUDA_SUCCESS)
        send_return(call, result, 0, NAME_AT_RETURN);
    else
        send_handle(call, read_word(call->out), NAME_AT_RETURN);
    bpf_map_delete_elem(&pending, &thread);
    bpf_map_delete_elem(&pending_names, &thread);
    return 0;
}

LICENSE_OF_OBJECT;
