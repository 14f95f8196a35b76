/* The exported entry points, shaped like those of NVIDIA's libcuda (reference: 589 of 600 exports of libcuda
 * 535.261.03 are this one trampoline): compare a global with a mark that says "driver is shut down", leave early when
 * it is there, else jump through a table.  Registers and stack reach the implementation as the caller left them. */

        .text

.macro TRAMPOLINE name
        .p2align 5
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        cmpl    $0x321cba00, standin_deinitialized(%rip)        /* 81 3d rel32 00 ba 1c 32 */
        .byte   0x74, 0x0c                                      /* je to +24 */
        jmp     *.Ltarget_\name(%rip)                           /* ff 25 rel32 */
        .size   \name, . - \name
        .byte   0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00
        movl    $4, %eax                                        /* CUDA_ERROR_DEINITIALIZED */
        ret
        .cfi_endproc

        .pushsection .data.rel.ro, "aw", @progbits
        .p2align 3
        .hidden impl_\name
.Ltarget_\name:
        .quad   impl_\name
        .popsection
.endm

#define ENTRY(exported, base, since, flags) TRAMPOLINE exported ;
#include "entry_points.inc"

        .section .note.GNU-stack, "", @progbits
