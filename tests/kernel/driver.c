/* A library with the CUDA driver's entry points that does nothing on a device: kernels' names are looked up, waits
 * wait. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void *hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

#define KEEP __asm__ volatile("" ::: "memory")

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
    KEEP;
    return 0;
}

int cuLaunchKernelEx(const CUlaunchConfig *config, void *f, void **params, void **extra) {
    KEEP;
    return 0;
}

int cuLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void *stream, void **params) {
    KEEP;
    return 0;
}

int cuGraphLaunch(void *exec, void *stream) {
    KEEP;
    return 0;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    KEEP;
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    KEEP;
    return 0;
}

/* The stream's handle says how many microseconds its work takes. */
int cuStreamSynchronize(void *stream) {
    usleep((useconds_t)(uintptr_t)stream);
    return 0;
}

int cuCtxSynchronize(void) {
    KEEP;
    return 0;
}

/* Handles are made of the name's length; names that begin with `missing` aren't found. */
static int look_up(void **out, const char *name) {
    if (!strncmp(name, "missing", 7))
        return 500;
    *out = (void *)(0x7000 + 16 * strlen(name));
    return 0;
}

int cuModuleGetFunction(void **out, void *module, const char *name) {
    return look_up(out, name);
}

int cuLibraryGetKernel(void **out, void *library, const char *name) {
    return look_up(out, name);
}

int cuKernelGetFunction(void **out, void *kernel) {
    *out = (char *)kernel + 8;
    return 0;
}
