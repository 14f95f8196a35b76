/* Calls the driver as its standard input says, one command a line, and answers each with a line of JSON. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void *hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
int cuLaunchKernelEx(const CUlaunchConfig *, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                              void **);
int cuGraphLaunch(void *, void *);
int cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuStreamSynchronize(void *);
int cuCtxSynchronize(void);
int cuModuleGetFunction(void **, void *, const char *);
int cuLibraryGetKernel(void **, void *, const char *);
int cuKernelGetFunction(void **, void *);

static void *handle;

static void launch(void *function) {
    cuLaunchKernel(function, 1, 2, 3, 4, 5, 6, 7, (void *)8, 0, 0);
}

static void *launches(void *count) {
    for (long i = 0; i < (long)count; i++)
        launch((void *)0x1234);
    return 0;
}

static void in_threads(int threads, long count) {
    pthread_t all[64];
    for (int i = 0; i < threads; i++)
        pthread_create(&all[i], 0, launches, (void *)count);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], 0);
}

static void in_children(int children, long count) {
    for (int i = 0; i < children; i++)
        if (!fork()) {
            launches((void *)count);
            _exit(0);
        }
    while (wait(0) > 0)
        ;
}

/* The handle's place is gone, and others', when this has returned. */
static __attribute__((noinline)) int look_up_locally(const char *name) {
    void *local = 0;
    int result = cuModuleGetFunction(&local, (void *)0x55, name);
    __asm__ volatile("" ::"r"(&local) : "memory");
    return result;
}

/* The same, far down the stack. */
static __attribute__((noinline)) int look_up_deep_down(const char *name) {
    volatile char room[65536];
    room[0] = 1;
    return look_up_locally(name) + room[0] - 1;
}

static void each_entry(void) {
    CUlaunchConfig config = {11, 12, 13, 14, 15, 16, 17, (void *)18, 0, 0};
    launch((void *)0x10);
    cuLaunchKernelEx(&config, (void *)0x20, 0, 0);
    cuLaunchCooperativeKernel((void *)0x30, 21, 22, 23, 24, 25, 26, 27, (void *)28, 0);
    cuGraphLaunch((void *)0x40, (void *)41);
    cuMemcpyAsync(1, 2, 51, (void *)52);
    cuMemcpyHtoDAsync_v2(1, (void *)2, 61, (void *)62);
    cuCtxSynchronize();
}

int main(void) {
    static char line[8192];
    char word[32], text[4096];
    long a, b;
    printf("{}\n");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        int result = 0;
        if (sscanf(line, "threads %ld %ld", &a, &b) == 2)
            in_threads((int)a, b);
        else if (sscanf(line, "children %ld %ld", &a, &b) == 2)
            in_children((int)a, b);
        else if (sscanf(line, "copies %ld", &a) == 1)
            while (a--)
                cuMemcpyAsync(1, 2, 3, 0);
        else if (sscanf(line, "lookup %4000s", text) == 1)
            result = cuModuleGetFunction(&handle, (void *)0x55, text);
        else if (sscanf(line, "kernel %4000s", text) == 1)
            result = cuLibraryGetKernel(&handle, (void *)0x66, text);
        else if (sscanf(line, "function %ld", &a) == 1)
            result = cuKernelGetFunction(&handle, (void *)a);
        else if (sscanf(line, "local %4000s", text) == 1)
            result = look_up_locally(text);
        else if (sscanf(line, "deep %4000s", text) == 1)
            result = look_up_deep_down(text);
        else if (sscanf(line, "wait %ld", &a) == 1)
            result = cuStreamSynchronize((void *)a);
        else if (sscanf(line, "%31s", word) == 1 && !strcmp(word, "each"))
            each_entry();
        else
            launch(handle);
        printf("{\"result\": %d, \"handle\": %ld}\n", result, (long)handle);
        fflush(stdout);
    }
    return 0;
}
