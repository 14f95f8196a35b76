/* The driver as a whole: start (with the injection library), version, devices, contexts, names of errors. */
#include "standin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_DEPTH 64
#define MEMORY_BYTES  (16ull << 30)

/* The trampolines compare this with 0x321cba00, set when the library goes away. */
extern volatile unsigned standin_deinitialized __attribute__((visibility("hidden")));
volatile unsigned standin_deinitialized;

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
atomic_bool standin_initialized;
char standin_injection[256] = "none";

static struct context contexts[MAX_DEVICES];
static _Thread_local struct context *stack[CONTEXT_DEPTH];
static _Thread_local int depth;

void standin_unlock(const int *unused) {
    (void)unused;
    pthread_mutex_unlock(&standin_lock);
}

long standin_setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? atol(value) : otherwise;
}

static void before_fork(void) {
    pthread_mutex_lock(&standin_lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&standin_lock);
}

__attribute__((constructor)) static void load(void) {
    standin_read_failures();
    pthread_atfork(before_fork, after_fork, after_fork);
}

__attribute__((destructor)) static void unload(void) {
    standin_deinitialized = 0x321cba00;
}

/* As the real driver does (CUDA_INJECTION64_PATH): load the library and call its InitializeInjection once. */
static void inject(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    int (*initialize)(void);
    if (!path || !*path)
        return;
    void *library = dlopen(path, RTLD_NOW);
    *(void **)&initialize = library ? dlsym(library, "InitializeInjection") : NULL;
    snprintf(standin_injection, sizeof standin_injection, "%s",
             !library       ? "not loaded"
             : !initialize  ? "no InitializeInjection"
             : initialize() ? "initialized"
                            : "refused");
}

CUresult impl_cuInit(unsigned int flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ENTER(cuInit);
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (standin_setting("STANDIN_DEVICES", 1) < 1)
        return CUDA_ERROR_NO_DEVICE;
    atomic_store(&standin_initialized, true);
    pthread_once(&once, inject);
    return CUDA_SUCCESS;
}

int standin_version(void) {
    return (int)standin_setting("STANDIN_DRIVER_VERSION", 13000);
}

CUresult impl_cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = standin_version();
    return CUDA_SUCCESS;
}

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error ended capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not begun in this stream"},
    {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult error, bool by_name, const char **text) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error)
            *text = by_name ? errors[i].name : errors[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult impl_cuGetErrorString(CUresult error, const char **text) {
    ENTER(cuGetErrorString);
    return describe(error, false, text);
}

CUresult impl_cuGetErrorName(CUresult error, const char **text) {
    ENTER(cuGetErrorName);
    return describe(error, true, text);
}

/* ---- devices ---- */

static int device_count(void) {
    long count = standin_setting("STANDIN_DEVICES", 1);
    return count > MAX_DEVICES ? MAX_DEVICES : (int)count;
}

static bool is_device(CUdevice device) {
    return device >= 0 && device < device_count();
}

CUresult impl_cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count();
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(cuDeviceGetName);
    if (!name || length < 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "stand-in GPU");
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "stand-in gpu\0\0\0", sizeof uuid->bytes);
    uuid->bytes[15] = (char)(device + 1);
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute);
    if (!value || (int)attribute < 1 || (int)attribute > 256)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK      ? 1024
             : attribute == CU_DEVICE_ATTRIBUTE_WARP_SIZE                ? 32
             : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT     ? 132
             : attribute == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING       ? 1
             : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
                                                                         : 0;
    return CUDA_SUCCESS;
}

CUresult impl_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = MEMORY_BYTES;
    return CUDA_SUCCESS;
}

/* ---- contexts: one, the primary, for each device ---- */

static struct context *find_context(CUcontext handle) {
    for (int i = 0; i < MAX_DEVICES; i++)
        if ((void *)handle == &contexts[i])
            return contexts[i].retained ? &contexts[i] : NULL;
    return NULL;
}

struct context *standin_current(void) {
    return depth ? stack[depth - 1] : NULL;
}

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    contexts[device].device = device;
    contexts[device].legacy.context = &contexts[device];
    contexts[device].retained++;
    *context = (CUcontext)&contexts[device];
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (!contexts[device].retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    contexts[device].retained--;
    return CUDA_SUCCESS;
}

CUresult impl_cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    ENTER(cuDevicePrimaryCtxSetFlags_v2);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    contexts[device].flags = flags;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetCurrent(CUcontext *context) {
    ENTER(cuCtxGetCurrent);
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)standin_current();
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSetCurrent(CUcontext context) {
    ENTER(cuCtxSetCurrent);
    LOCKED();
    if (context && !find_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0 && context)
        depth = 1;
    else if (depth && !context)
        depth--;
    if (context)
        stack[depth - 1] = (struct context *)context;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(cuCtxPushCurrent_v2);
    LOCKED();
    if (!find_context(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == CONTEXT_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = (struct context *)context;
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(cuCtxPopCurrent_v2);
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = (CUcontext)stack[depth];
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = standin_current()->device;
    return CUDA_SUCCESS;
}

static CUresult synchronize(struct context *context) {
    uint64_t until;
    {
        LOCKED();
        if (standin_capture(&context->legacy))
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        until = context->all_until;
    }
    standin_wait(until, context->flags);
    return CUDA_SUCCESS;
}

CUresult impl_cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize);
    return synchronize(standin_current());
}

CUresult impl_cuCtxSynchronize_v2(CUcontext context) {
    ENTER(cuCtxSynchronize_v2);
    struct context *chosen = context ? find_context(context) : standin_current();
    return chosen ? synchronize(chosen) : CUDA_ERROR_INVALID_CONTEXT;
}
