/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The one switch between the two builds of the C here: for the kernel (clang -target bpf) and, with OTELPROF_HOST, for
 * an ordinary shared library in which tests run the walkers on recorded memory. */
#ifndef OTELPROF_BPF_H
#define OTELPROF_BPF_H

#include "wire.h"

#ifdef OTELPROF_HOST

/* Set by the host entry: reads target memory like bpf_probe_read_user, 0 when it worked. */
extern int (*host_read)(void *to, u32 size, u64 from);

static inline int read_user(void *to, u32 size, u64 from) {
    return host_read(to, size, from);
}

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

#else

typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;

/* Numbers of the kernel's ABI, from include/uapi/linux/bpf.h; only those in use. */
enum {
    BPF_ANY = 0,
    BPF_NOEXIST = 1,
    BPF_RB_NO_WAKEUP = 1,
    BPF_RB_FORCE_WAKEUP = 2, /* without it a record behind others that nobody was woken for wakes nobody either */
    BPF_F_MMAPABLE = 1024,
};
enum {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_LRU_HASH = 9,
    BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
    BPF_MAP_TYPE_RINGBUF = 27,
};

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch/x86_64.h"

/* The kernel's structures as far as they are used; libbpf puts in the running kernel's offsets (CO-RE). */
struct counter {
    int counter;
} __attribute__((preserve_access_index));

struct signal_struct {
    struct counter live; /* threads that haven't begun to exit */
} __attribute__((preserve_access_index));

struct task_struct {
    struct thread_struct thread;
    struct signal_struct *signal;
    unsigned int flags;
    int pid;
    int tgid;
    char comm[LIMIT_COMM];
} __attribute__((preserve_access_index));

struct super_block {
    u32 s_dev;
} __attribute__((preserve_access_index));

struct inode {
    unsigned long i_ino;
    struct super_block *i_sb;
} __attribute__((preserve_access_index));

struct file {
    struct inode *f_inode;
} __attribute__((preserve_access_index));

struct linux_binprm {
    struct file *file;
} __attribute__((preserve_access_index));

enum { TASK_IS_KERNEL_THREAD = 0x00200000 }; /* PF_KTHREAD, include/linux/sched.h */

static __always_inline int read_user(void *to, u32 size, u64 from) {
    return bpf_probe_read_user(to, size, (void *)from) != 0;
}

static __always_inline struct task_struct *current_task(void) {
    return (struct task_struct *)bpf_get_current_task_btf();
}

/* A function that the verifier checks once by itself and not again at each call, so that a loop over it costs the
 * verifier a few instructions a turn, on every kernel since 5.13 and without bpf_loop. It must be global for that. */
#define VERIFIED_ONCE      __attribute__((noinline))

/* Puts a type into the object's BTF: clang leaves out what only a cast uses. */
#define EXPORT(kind, name) kind name *export_##name __attribute__((unused))

#define LICENSE_OF_OBJECT char LICENSE[] SEC("license") = "Dual BSD/GPL"

#endif
#endif
