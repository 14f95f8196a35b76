/* Modules and libraries.
 *
 * An image is PTX-shaped text, of which only `.entry NAME` counts (with `time_ns=N` anywhere on the same line the
 * kernel's time is set), or a binary (ELF, fatbin), which is not opened: every name is found in it. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#define MAX_IMAGE            (4u << 20)
#define FATBIN_MAGIC         0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u

static bool is_binary(const void *image) {
    uint32_t magic;
    if (strncmp(image, "\177ELF", 4) == 0)
        return true;
    /* A text of fewer than four bytes ends inside the magic, which has no zero byte. */
    if (strnlen(image, 4) < 4)
        return false;
    memcpy(&magic, image, 4);
    return magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC;
}

static void note_time(const char *name, const char *rest) {
    const char *line_end = rest + strcspn(rest, "\n"), *time = strstr(rest, "time_ns=");
    struct kernel *kernel = standin_kernel(name);
    if (kernel && time && time < line_end)
        standin_set_time(kernel, strtoull(time + 8, NULL, 10), TIME_IMAGE);
}

/* Copies the names of all entries to `names`, each with its NUL; returns how many there are. */
static size_t read_entries(const char *text, char *names) {
    size_t found = 0;
    for (const char *entry = strstr(text, ".entry"); entry; entry = strstr(entry, ".entry")) {
        entry += 6;
        entry += strspn(entry, " \t");
        size_t length = strcspn(entry, " \t\r\n({;");
        if (!length)
            continue;
        memcpy(names, entry, length);
        names[length] = 0;
        note_time(names, entry + length);
        names += length + 1;
        found++;
    }
    *names = 0;
    return found;
}

static CUresult load(struct module **out, const void *image) {
    LOCKED();
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    bool any_name = is_binary(image);
    size_t length = any_name ? 0 : strnlen(image, MAX_IMAGE);
    char *names = length < MAX_IMAGE ? malloc(length + 2) : NULL;
    if (!any_name && (!names || !read_entries(image, names))) {
        free(names);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    struct module *module = standin_new(OBJECT_MODULE);
    if (!module) {
        free(names);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->any_name = any_name;
    module->names = names;
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult unload(const void *handle) {
    LOCKED();
    struct module *module = standin_find(OBJECT_MODULE, handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct function *function = module->functions; function; function = function->next)
        standin_delete(OBJECT_FUNCTION, function);
    free(module->names);
    standin_delete(OBJECT_MODULE, module);
    return CUDA_SUCCESS;
}

static bool has_name(const struct module *module, const char *name) {
    if (module->any_name)
        return true;
    for (const char *candidate = module->names; *candidate; candidate += strlen(candidate) + 1)
        if (strcmp(candidate, name) == 0)
            return true;
    return false;
}

static struct function *new_function(struct module *module, struct kernel *kernel) {
    struct function *function = kernel ? standin_new(OBJECT_FUNCTION) : NULL;
    if (function) {
        function->module = module;
        function->kernel = kernel;
        function->next = module->functions;
        module->functions = function;
    }
    return function;
}

/* The same handle each time that the same name is asked for, as the real driver gives. */
static CUresult get_function(struct function **out, const void *handle, const char *name) {
    LOCKED();
    struct module *module = standin_find(OBJECT_MODULE, handle);
    if (!out || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!*name || !has_name(module, name))
        return CUDA_ERROR_NOT_FOUND;
    struct function *function = module->functions;
    while (function && strcmp(function->kernel->name, name) != 0)
        function = function->next;
    if (!function)
        function = new_function(module, standin_kernel(name));
    if (!function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = function;
    return CUDA_SUCCESS;
}

static CUresult get_name(const char **name, const void *handle) {
    LOCKED();
    const struct function *function = standin_find(OBJECT_FUNCTION, handle);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->kernel->name;
    return CUDA_SUCCESS;
}

CUresult impl_cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(cuModuleLoadData);
    return load((struct module **)module, image);
}

CUresult impl_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                 void **values) {
    ENTER(cuModuleLoadDataEx);
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    return load((struct module **)module, image);
}

CUresult impl_cuModuleUnload(CUmodule module) {
    ENTER(cuModuleUnload);
    return unload(module);
}

CUresult impl_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER(cuModuleGetFunction);
    return get_function((struct function **)function, module, name);
}

CUresult impl_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                                unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    ENTER(cuLibraryLoadData);
    if ((jit_count && (!jit_options || !jit_values)) || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    return load((struct module **)library, code);
}

CUresult impl_cuLibraryUnload(CUlibrary library) {
    ENTER(cuLibraryUnload);
    return unload(library);
}

CUresult impl_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    ENTER(cuLibraryGetKernel);
    return get_function((struct function **)kernel, library, name);
}

/* A kernel of a library and its function for the current context are different handles. */
CUresult impl_cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    ENTER(cuKernelGetFunction);
    LOCKED();
    const struct function *asked = standin_find(OBJECT_FUNCTION, kernel);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!asked)
        return CUDA_ERROR_INVALID_HANDLE;
    struct function *function = asked->module->functions;
    while (function && (function == asked || function->kernel != asked->kernel))
        function = function->next;
    if (!function)
        function = new_function(asked->module, asked->kernel);
    if (!function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUfunction)function;
    return CUDA_SUCCESS;
}

CUresult impl_cuKernelGetName(const char **name, CUkernel kernel) {
    ENTER(cuKernelGetName);
    return get_name(name, kernel);
}

CUresult impl_cuFuncGetName(const char **name, CUfunction function) {
    ENTER(cuFuncGetName);
    return get_name(name, function);
}
