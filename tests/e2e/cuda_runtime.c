/* A CUDA runtime of the test's own, over any driver: what code of nvcc needs to register its kernels and launch them.
 *
 * As NVIDIA's, it keeps host functions by name, looks a kernel up in the driver at its first launch, and gives CUDA
 * 13's call sites a handle, which is the driver's own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned int x, y, z;
} dim3;

enum { KERNELS = 256 };

static struct {
    const void *host;
    const char *name;
    void *handle;
} kernels[KERNELS];
static int count;
static void *library;
static struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

static void *driver(const char *name) {
    static void *loaded;
    if (!loaded)
        loaded = dlopen(getenv("CUDA_DRIVER"), RTLD_NOW);
    return dlsym(loaded, name);
}

void **__cudaRegisterFatBinary(void *binary) {
    static void *module;
    module = binary;
    return &module;
}

void __cudaRegisterFatBinaryEnd(void **module) {
    (void)module;
}

void __cudaUnregisterFatBinary(void **module) {
    (void)module;
}

void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int limit, void *a,
                            void *b, void *c, void *d, int *e) {
    (void)module, (void)device, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)e;
    if (count < KERNELS) {
        kernels[count].host = host;
        kernels[count++].name = name;
    }
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return 0;
}

int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(void **)stream = configuration.stream;
    return 0;
}

/* The driver's handle of a kernel, looked up when it is asked for the first time. */
static void *handle_of(const void *host) {
    int (*load)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned) =
        driver("cuLibraryLoadData");
    int (*get)(void **, void *, const char *) = driver("cuLibraryGetKernel");
    if (!library && load(&library, "\177ELF", 0, 0, 0, 0, 0, 0))
        abort();
    for (int i = 0; i < count; i++) {
        if (kernels[i].host != host)
            continue;
        if (!kernels[i].handle && get(&kernels[i].handle, library, kernels[i].name))
            abort();
        return kernels[i].handle;
    }
    abort();
}

static int launch(void *handle, dim3 grid, dim3 block, size_t shared, void *stream) {
    int (*go)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        driver("cuLaunchKernel");
    return go(handle, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, 0, 0);
}

/* CUDA 13 */
int __cudaGetKernel(void **handle, const void *host) {
    *handle = handle_of(host);
    return 0;
}

int __cudaLaunchKernel(void *handle, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
    (void)arguments;
    return launch(handle, grid, block, shared, stream);
}

/* CUDA 12 */
int cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
    (void)arguments;
    return launch(handle_of(host), grid, block, shared, stream);
}

/* What a program does first. */
void start_runtime(void) {
    int (*initialize)(unsigned) = driver("cuInit");
    int (*retain)(void **, int) = driver("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = driver("cuCtxSetCurrent");
    void *context;
    if (initialize(0) || retain(&context, 0) || set(context))
        abort();
}
