/* The table of entry points, what happens on the way into each (counts, injected failures, state checks), and
 * cuGetProcAddress, which hands out the exported trampolines. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#ifdef STANDIN_NVIDIA_HEADER
#undef cuGetProcAddress_v2
#endif

const struct entry_point standin_entry_points[ENTRY_COUNT] = {
#define ENTRY(exported, base, since, flags) {#exported, #base, (void *)exported, since, flags},
#include "entry_points.inc"
#undef ENTRY
};

static atomic_ulong calls[ENTRY_COUNT], refusals[ENTRY_COUNT];
static struct {
    unsigned long every;
    CUresult error;
} failures[ENTRY_COUNT];

unsigned long standin_calls(enum entry entry) {
    return atomic_load(&calls[entry]);
}

unsigned long standin_refused(enum entry entry) {
    return atomic_load(&refusals[entry]);
}

static void read_failure(const char *item) {
    char name[64];
    unsigned long every;
    int error;
    if (sscanf(item, "%63[^:]:%lu:%d", name, &every, &error) != 3)
        return;
    for (int i = 0; i < ENTRY_COUNT; i++)
        if (strcmp(name, standin_entry_points[i].exported) == 0) {
            failures[i].every = every;
            failures[i].error = (CUresult)error;
        }
}

/* STANDIN_FAIL=NAME:EVERY:ERROR[,...]: each EVERY-th call of NAME returns ERROR and does nothing. */
void standin_read_failures(void) {
    char *rest, *copy = strdup(getenv("STANDIN_FAIL") ? getenv("STANDIN_FAIL") : "");
    if (!copy)
        return;
    for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
        read_failure(item);
    free(copy);
}

CUresult standin_enter(enum entry entry) {
    unsigned long call = atomic_fetch_add(&calls[entry], 1) + 1;
    unsigned flags = standin_entry_points[entry].flags;
    CUresult result = CUDA_SUCCESS;
    if (failures[entry].every && call % failures[entry].every == 0)
        result = failures[entry].error;
    else if (!(flags & ANY) && !atomic_load(&standin_initialized))
        result = CUDA_ERROR_NOT_INITIALIZED;
    else if ((flags & CTX) && !standin_current())
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        atomic_fetch_add(&refusals[entry], 1);
    return result;
}

/* The newest variant of `symbol` that `version` knows; with `per_thread`, that variant where there is one. */
static const struct entry_point *look_up(const char *symbol, int version, bool per_thread, bool *known) {
    const struct entry_point *best = NULL;
    for (int i = 0; i < ENTRY_COUNT; i++) {
        const struct entry_point *entry = &standin_entry_points[i];
        bool own_stream = entry->flags & PTDS;
        if (strcmp(symbol, entry->base) != 0)
            continue;
        *known = true;
        if (entry->since > version || (own_stream && !per_thread))
            continue;
        if (!best || own_stream > (bool)(best->flags & PTDS) || entry->since > best->since)
            best = entry;
    }
    return best;
}

static CUresult find_address(const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    bool known = false;
    if (!symbol || !pfn || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    if (version < 0 || version > standin_version())
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry_point *entry =
        look_up(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    *pfn = entry ? entry->address : NULL;
    *status = entry   ? CU_GET_PROC_ADDRESS_SUCCESS
              : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult impl_cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    ENTER(cuGetProcAddress);
    CUresult result = find_address(symbol, pfn, version, flags, &status);
    return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult impl_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult unasked;
    ENTER(cuGetProcAddress_v2);
    return find_address(symbol, pfn, version, flags, status ? status : &unasked);
}
