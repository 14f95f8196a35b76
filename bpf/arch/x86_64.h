/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is peculiar to x86-64: registers, arguments, the base of thread-local storage. */
#ifndef OTELPROF_ARCH_X86_64_H
#define OTELPROF_ARCH_X86_64_H

/* User registers as programs of the kinds kprobe and perf_event get them: arch/x86/include/uapi/asm/ptrace.h, fixed
 * ABI. */
struct pt_regs {
    u64 r15, r14, r13, r12, bp, bx;
    u64 r11, r10, r9, r8, ax, cx, dx, si, di;
    u64 orig_ax, ip, cs, flags, sp, ss;
};

/* Context of a perf_event program: include/uapi/linux/bpf_perf_event.h. */
struct bpf_perf_event_data {
    struct pt_regs regs;
    u64 sample_period;
    u64 addr;
};

struct thread_struct {
    unsigned long fsbase;
} __attribute__((preserve_access_index));

/* True when the registers are those of user code: the lowest two bits of cs are the privilege level. */
#define IS_USER_MODE(regs) (((regs)->cs & 3) == 3)

/* Where the thread's static TLS hangs. Kept by the kernel since arch_prctl and clone set it. */
#define THREAD_POINTER(task) ((u64)(task)->thread.fsbase)

/* System V ABI, 3.2.3: integer arguments at the entry of a function, before or after instructions that change no
 * register and no stack. STACK_ARGUMENT(n) counts from 0, the first that has no register. */
#define ARGUMENT_1(regs)        ((regs)->di)
#define ARGUMENT_2(regs)        ((regs)->si)
#define ARGUMENT_3(regs)        ((regs)->dx)
#define ARGUMENT_4(regs)        ((regs)->cx)
#define ARGUMENT_5(regs)        ((regs)->r8)
#define ARGUMENT_6(regs)        ((regs)->r9)
#define STACK_ARGUMENT(regs, n) ((regs)->sp + 8 + 8 * (n))
#define RESULT(regs)            ((regs)->ax)

/* All registers in DWARF's order: System V ABI, figure 3.36. */
#define COPY_REGISTERS(to, regs)                                                                                       \
    do {                                                                                                               \
        (to)[0] = (regs)->ax, (to)[1] = (regs)->dx, (to)[2] = (regs)->cx, (to)[3] = (regs)->bx;                        \
        (to)[4] = (regs)->si, (to)[5] = (regs)->di, (to)[6] = (regs)->bp, (to)[7] = (regs)->sp;                        \
        (to)[8] = (regs)->r8, (to)[9] = (regs)->r9, (to)[10] = (regs)->r10, (to)[11] = (regs)->r11;                    \
        (to)[12] = (regs)->r12, (to)[13] = (regs)->r13, (to)[14] = (regs)->r14, (to)[15] = (regs)->r15;                \
    } while (0)

enum { RETURN_ADDRESS_SIZE = 8 }; /* what `ret` takes off the stack */

#endif
