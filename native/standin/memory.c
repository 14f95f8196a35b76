/* Device memory: a part of the process's own address space, so that copies and sets really happen.
 * The bytes move when the call is made; the time they take passes on the stream's clock. */
#include "standin.h"

#include <string.h>
#include <sys/mman.h>

#define ARENA_BYTES         (16ull << 30)
#define GRANULE             512u
#define MAX_BLOCKS          65536
#define COPY_START_NS       2000u
#define HOST_BYTES_PER_NS   25u
#define DEVICE_BYTES_PER_NS 1500u

struct traffic standin_traffic;

static char *arena;
static uint64_t arena_used;
static struct block {
    uint64_t begin, bytes;
    bool live;
} blocks[MAX_BLOCKS]; /* by address */
static size_t block_count;

static bool in_arena(uint64_t address) {
    return arena && address - (uint64_t)(uintptr_t)arena < ARENA_BYTES;
}

static struct block *block_at(uint64_t address) {
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low && blocks[low - 1].live ? &blocks[low - 1] : NULL;
}

/* Whether [address, address + bytes) lies in one live allocation. */
static bool is_device(uint64_t address, size_t bytes) {
    const struct block *block = block_at(address);
    return block && bytes <= block->bytes && address - block->begin <= block->bytes - bytes;
}

static struct block *take_block(uint64_t bytes) {
    for (size_t i = 0; i < block_count; i++)
        if (!blocks[i].live && blocks[i].bytes == bytes)
            return &blocks[i];
    if (block_count == MAX_BLOCKS || bytes > ARENA_BYTES - arena_used)
        return NULL;
    blocks[block_count].begin = (uint64_t)(uintptr_t)arena + arena_used;
    blocks[block_count].bytes = bytes;
    arena_used += bytes;
    return &blocks[block_count++];
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes) {
    LOCKED();
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > ARENA_BYTES)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!arena) {
        void *memory =
            mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        arena = memory;
    }
    struct block *block = take_block((bytes + GRANULE - 1) / GRANULE * GRANULE);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->live = true;
    *pointer = block->begin;
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr pointer) {
    LOCKED();
    struct block *block = block_at(pointer);
    if (!pointer)
        return CUDA_SUCCESS;
    if (!block || block->begin != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    block->live = false;
    return CUDA_SUCCESS;
}

CUresult impl_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    ENTER(cuMemAlloc_v2);
    return allocate(pointer, bytes);
}

CUresult impl_cuMemFree_v2(CUdeviceptr pointer) {
    ENTER(cuMemFree_v2);
    return release(pointer);
}

static CUresult check_stream(enum entry entry, CUstream handle) {
    struct stream *stream;
    LOCKED();
    return standin_stream(entry, handle, &stream);
}

static CUresult allocate_on(enum entry entry, CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    CUresult result = check_stream(entry, stream);
    return result != CUDA_SUCCESS ? result : allocate(pointer, bytes);
}

static CUresult release_on(enum entry entry, CUdeviceptr pointer, CUstream stream) {
    CUresult result = check_stream(entry, stream);
    return result != CUDA_SUCCESS ? result : release(pointer);
}

/* ---- copies and sets ---- */

void standin_perform(const struct work *work) {
    if (work->kind == WORK_COPY) {
        bool from_device = in_arena((uintptr_t)work->from), to_device = in_arena((uintptr_t)work->to);
        uint64_t *total = from_device ? to_device ? &standin_traffic.device_to_device : &standin_traffic.device_to_host
                          : to_device ? &standin_traffic.host_to_device
                                      : &standin_traffic.host_to_host;
        memmove(work->to, work->from, work->bytes);
        *total += work->bytes;
    } else if (work->kind == WORK_SET) {
        standin_traffic.set += work->bytes;
        for (size_t done = 0; done < work->bytes; done += work->width)
            memcpy((char *)work->to + done, &work->value, work->width);
    }
}

enum side { ANY_SIDE, HOST, DEVICE };

static bool is_valid(uint64_t address, size_t bytes, enum side side) {
    if (in_arena(address))
        return side != HOST && is_device(address, bytes);
    return side != DEVICE && (address || !bytes);
}

struct copy {
    uint64_t to, from;
    size_t bytes;
    enum side to_side, from_side;
};

static CUresult copy(enum entry entry, CUstream handle, struct copy what, uint64_t *done_at) {
    struct stream *stream;
    LOCKED();
    CUresult result = standin_stream(entry, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_valid(what.to, what.bytes, what.to_side) || !is_valid(what.from, what.bytes, what.from_side))
        return CUDA_ERROR_INVALID_VALUE;
    bool on_device = in_arena(what.to) && in_arena(what.from);
    struct work work = {
        .kind = WORK_COPY,
        .ns = COPY_START_NS + what.bytes / (on_device ? DEVICE_BYTES_PER_NS : HOST_BYTES_PER_NS),
        .to = (void *)(uintptr_t)what.to,
        .from = (const void *)(uintptr_t)what.from,
        .bytes = what.bytes,
    };
    result = standin_submit(stream, &work);
    *done_at = standin_capture(stream) ? 0 : stream->busy_until;
    return result;
}

static CUresult copy_async(enum entry entry, CUstream stream, struct copy what) {
    uint64_t unused;
    return copy(entry, stream, what, &unused);
}

static CUresult copy_now(enum entry entry, struct copy what) {
    uint64_t done_at = 0;
    CUresult result = copy(entry, NULL, what, &done_at);
    if (result == CUDA_SUCCESS)
        standin_wait(done_at, standin_current()->flags);
    return result;
}

static CUresult set(enum entry entry, CUdeviceptr to, unsigned value, size_t count, unsigned width, CUstream handle) {
    struct stream *stream;
    LOCKED();
    CUresult result = standin_stream(entry, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (count > ARENA_BYTES / width || !is_valid(to, count * width, DEVICE) || to % width)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {
        .kind = WORK_SET,
        .ns = COPY_START_NS + count * width / DEVICE_BYTES_PER_NS,
        .to = (void *)(uintptr_t)to,
        .bytes = count * width,
        .value = value,
        .width = width,
    };
    return standin_submit(stream, &work);
}

#define BOTH(name, suffix, does, parameters, ...)                                                                      \
    CUresult impl_##name parameters {                                                                                  \
        ENTER(name);                                                                                                   \
        return does(ENTRY_##name, __VA_ARGS__);                                                                        \
    }                                                                                                                  \
    CUresult impl_##name##suffix parameters {                                                                          \
        ENTER(name##suffix);                                                                                           \
        return does(ENTRY_##name##suffix, __VA_ARGS__);                                                                \
    }
#define COPY(to_side, from_side) ((struct copy){(uintptr_t)to, (uintptr_t)from, bytes, to_side, from_side})

BOTH(cuMemAllocAsync, _ptsz, allocate_on, (CUdeviceptr * pointer, size_t bytes, CUstream stream), pointer, bytes,
     stream)
BOTH(cuMemFreeAsync, _ptsz, release_on, (CUdeviceptr pointer, CUstream stream), pointer, stream)
BOTH(cuMemcpy, _ptds, copy_now, (CUdeviceptr to, CUdeviceptr from, size_t bytes), COPY(ANY_SIDE, ANY_SIDE))
BOTH(cuMemcpyHtoD_v2, _ptds, copy_now, (CUdeviceptr to, const void *from, size_t bytes), COPY(DEVICE, HOST))
BOTH(cuMemcpyDtoH_v2, _ptds, copy_now, (void *to, CUdeviceptr from, size_t bytes), COPY(HOST, DEVICE))
BOTH(cuMemcpyAsync, _ptsz, copy_async, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), stream,
     COPY(ANY_SIDE, ANY_SIDE))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, copy_async, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), stream,
     COPY(DEVICE, HOST))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, copy_async, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), stream,
     COPY(HOST, DEVICE))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, copy_async, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), stream,
     COPY(DEVICE, DEVICE))
BOTH(cuMemsetD8Async, _ptsz, set, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream), to, value,
     count, 1, stream)
BOTH(cuMemsetD32Async, _ptsz, set, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream), to, value,
     count, 4, stream)
