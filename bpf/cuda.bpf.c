/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Uprobes on the CUDA driver. */
#define OTELPROF_CUDA
#include "events.h"

EXPORT(struct, cuda_call);
EXPORT(struct, cuda_return);
EXPORT(struct, cuda_name);
EXPORT(enum, cuda_entry);

LICENSE_OF_OBJECT;
