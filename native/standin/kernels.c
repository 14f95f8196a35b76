/* Kernels by name: how long each takes and how often it ran. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#define MAX_KERNELS 16384
#define MAX_NAME    4096
#define DEFAULT_NS  10000

static struct kernel *kernels[MAX_KERNELS]; /* in order of appearance */
static size_t count;
static uint32_t by_name[2 * MAX_KERNELS]; /* open addressing: index + 1 */

static uint32_t *slot_of(const char *name) {
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    size_t slot = hash % (2 * MAX_KERNELS);
    while (by_name[slot] && strcmp(kernels[by_name[slot] - 1]->name, name) != 0)
        slot = (slot + 1) % (2 * MAX_KERNELS);
    return &by_name[slot];
}

/* STANDIN_KERNEL_TIMES=NAME=NS[,...]; the name * is for all that are not listed. */
static bool time_from_environment(const char *name, uint64_t *ns) {
    const char *item = getenv("STANDIN_KERNEL_TIMES");
    size_t length = strlen(name);
    bool found = false;
    while (item && *item) {
        const char *equals = strchr(item, '='), *comma = strchrnul(item, ',');
        bool exact = equals == item + length && strncmp(item, name, length) == 0;
        if (equals && equals < comma && (exact || strncmp(item, "*=", 2) == 0)) {
            *ns = strtoull(equals + 1, NULL, 10);
            found = true;
        }
        if (exact)
            break;
        item = *comma ? comma + 1 : comma;
    }
    return found;
}

void standin_set_time(struct kernel *kernel, uint64_t ns, enum time_source source) {
    if ((int)source >= kernel->time_from) {
        kernel->time_ns = ns;
        kernel->time_from = (int)source;
    }
}

struct kernel *standin_kernel(const char *name) {
    uint64_t ns;
    uint32_t *slot = slot_of(name);
    if (*slot)
        return kernels[*slot - 1];
    if (count == MAX_KERNELS || strnlen(name, MAX_NAME) == MAX_NAME)
        return NULL;
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel || !(kernel->name = strdup(name))) {
        free(kernel);
        return NULL;
    }
    standin_set_time(kernel, DEFAULT_NS, TIME_DEFAULT);
    if (time_from_environment(name, &ns))
        standin_set_time(kernel, ns, TIME_ENVIRONMENT);
    kernels[count++] = kernel;
    *slot = (uint32_t)count;
    return kernel;
}

size_t standin_kernel_count(void) {
    return count;
}

struct kernel *standin_kernel_at(size_t index) {
    return kernels[index];
}

void standin_set_kernel_time(const char *name, uint64_t ns) {
    LOCKED();
    struct kernel *kernel = name ? standin_kernel(name) : NULL;
    if (kernel)
        standin_set_time(kernel, ns, TIME_CALL);
}
