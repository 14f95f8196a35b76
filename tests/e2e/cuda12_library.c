/* A library as nvcc of CUDA 12 compiles one: host functions that launch by their own address, registered with the names
 * of their kernels before main, and a section of device code. */
#include <stddef.h>

typedef struct {
    unsigned int x, y, z;
} dim3;

void **__cudaRegisterFatBinary(const void *binary);
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int limit, void *a,
                            void *b, void *c, void *d, int *e);
int cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream);

__attribute__((section(".nv_fatbin"))) static const char device_code[16] = "none";

static const dim3 one = {1, 1, 1};

__attribute__((noinline)) static void scale(float *x) {
    void *arguments[] = {&x};
    cudaLaunchKernel((const void *)scale, one, one, arguments, 0, 0);
}

__attribute__((noinline)) static void reduce(float *x) {
    void *arguments[] = {&x};
    cudaLaunchKernel((const void *)reduce, one, one, arguments, 0, 0);
}

__attribute__((constructor)) static void register_all(void) {
    void **module = __cudaRegisterFatBinary(device_code);
    __cudaRegisterFunction(module, (const char *)scale, (char *)"_Z5scaleIfEvPT_S0_", "_Z5scaleIfEvPT_S0_", -1, 0, 0, 0,
                           0, 0);
    __cudaRegisterFunction(module, (const char *)reduce, (char *)"_Z13reduce_kernelPf", "_Z13reduce_kernelPf", -1, 0, 0,
                           0, 0, 0);
}

void run_all(void) {
    scale(0);
    reduce(0);
}

void run_other(void) {
    reduce(0);
}
