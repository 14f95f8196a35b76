/* Launches of kernels and of graphs: work that runs now or is noted in the graph under capture. */
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NODES   (1u << 20)
#define MAX_THREADS 1024u

static long launch_cost_ns;

__attribute__((constructor)) static void read_settings(void) {
    launch_cost_ns = standin_setting("STANDIN_LAUNCH_COST_NS", 0);
}

static CUresult append(struct graph *graph, const struct work *work) {
    if (graph->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (graph->count == graph->capacity) {
        size_t capacity = graph->capacity ? 2 * graph->capacity : 16;
        struct work *nodes = capacity <= MAX_NODES ? realloc(graph->nodes, capacity * sizeof *nodes) : NULL;
        if (!nodes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = nodes;
        graph->capacity = capacity;
    }
    graph->nodes[graph->count++] = *work;
    return CUDA_SUCCESS;
}

CUresult standin_submit(struct stream *stream, const struct work *work) {
    struct graph *graph = standin_capture(stream);
    if (graph)
        return append(graph, work);
    standin_enqueue(stream, work->ns);
    standin_perform(work);
    if (work->kernel)
        work->kernel->busy_ns += work->ns;
    return CUDA_SUCCESS;
}

/* ---- kernels ---- */

static bool is_launchable(const CUlaunchConfig *config) {
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY;
    return config->gridDimX && config->gridDimY && config->gridDimZ && threads && config->blockDimZ &&
           threads <= MAX_THREADS && threads * config->blockDimZ <= MAX_THREADS;
}

static CUresult launch_locked(enum entry entry, CUresult refused, const CUlaunchConfig *config, CUfunction handle) {
    struct stream *stream;
    const struct function *function = standin_find(OBJECT_FUNCTION, handle);
    if (function)
        function->kernel->launches++;
    CUresult result = refused != CUDA_SUCCESS  ? refused
                      : !config                ? CUDA_ERROR_INVALID_VALUE
                      : !function              ? CUDA_ERROR_INVALID_HANDLE
                      : !is_launchable(config) ? CUDA_ERROR_INVALID_VALUE
                                               : standin_stream(entry, config->hStream, &stream);
    if (result == CUDA_SUCCESS) {
        struct work work = {.kind = WORK_KERNEL, .kernel = function->kernel, .ns = function->kernel->time_ns};
        result = standin_submit(stream, &work);
        if (result == CUDA_SUCCESS && standin_capture(stream))
            function->kernel->captured++;
    }
    if (function && result != CUDA_SUCCESS)
        function->kernel->failed++;
    return result;
}

/* A launch counts for its kernel even when it fails; STANDIN_LAUNCH_COST_NS of CPU go into each. */
static CUresult launch(enum entry entry, const CUlaunchConfig *config, CUfunction function) {
    CUresult refused = standin_enter(entry);
    if (launch_cost_ns > 0)
        for (uint64_t until = standin_now() + (uint64_t)launch_cost_ns; standin_now() < until;)
            __builtin_ia32_pause();
    LOCKED();
    return launch_locked(entry, refused, config, function);
}

#define GRID                                                                                                           \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,         \
        unsigned int block_z, unsigned int shared_bytes, CUstream stream
#define CONFIG                                                                                                         \
    (&(CUlaunchConfig){.gridDimX = grid_x,                                                                             \
                       .gridDimY = grid_y,                                                                             \
                       .gridDimZ = grid_z,                                                                             \
                       .blockDimX = block_x,                                                                           \
                       .blockDimY = block_y,                                                                           \
                       .blockDimZ = block_z,                                                                           \
                       .sharedMemBytes = shared_bytes,                                                                 \
                       .hStream = stream})

CUresult impl_cuLaunchKernel(CUfunction function, GRID, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch(ENTRY_cuLaunchKernel, CONFIG, function);
}

CUresult impl_cuLaunchKernel_ptsz(CUfunction function, GRID, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch(ENTRY_cuLaunchKernel_ptsz, CONFIG, function);
}

CUresult impl_cuLaunchCooperativeKernel(CUfunction function, GRID, void **parameters) {
    (void)parameters;
    return launch(ENTRY_cuLaunchCooperativeKernel, CONFIG, function);
}

CUresult impl_cuLaunchCooperativeKernel_ptsz(CUfunction function, GRID, void **parameters) {
    (void)parameters;
    return launch(ENTRY_cuLaunchCooperativeKernel_ptsz, CONFIG, function);
}

CUresult impl_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch(ENTRY_cuLaunchKernelEx, config, function);
}

CUresult impl_cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                    void **extra) {
    (void)parameters, (void)extra;
    return launch(ENTRY_cuLaunchKernelEx_ptsz, config, function);
}

/* ---- graphs ---- */

static CUresult append_all(struct graph *graph, const struct graph *from) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0, count = from->count; i < count && result == CUDA_SUCCESS; i++)
        result = append(graph, &from->nodes[i]);
    return result;
}

static const struct graph *find_graph(const void *handle) {
    const struct graph *graph = standin_find(OBJECT_GRAPH, handle);
    return graph && !graph->capture_id ? graph : NULL;
}

/* A new object of `kind` with the same nodes. */
static CUresult duplicate(struct graph **out, enum object_kind kind, const void *handle) {
    LOCKED();
    const struct graph *graph = find_graph(handle);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!graph)
        return CUDA_ERROR_INVALID_HANDLE;
    struct graph *made = standin_new(kind);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (append_all(made, graph) != CUDA_SUCCESS) {
        free(made->nodes);
        standin_delete(kind, made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = made;
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    return duplicate((struct graph **)out, OBJECT_EXEC, handle);
}

CUresult impl_cuGraphClone(CUgraph *out, CUgraph handle) {
    ENTER(cuGraphClone);
    return duplicate((struct graph **)out, OBJECT_GRAPH, handle);
}

CUresult impl_cuGraphCreate(CUgraph *out, unsigned int flags) {
    ENTER(cuGraphCreate);
    LOCKED();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *out = standin_new(OBJECT_GRAPH);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The child's nodes are copied, as the real driver clones the child; nodes have no handles of their own here. */
CUresult impl_cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                       CUgraph child_handle) {
    ENTER(cuGraphAddChildGraphNode);
    LOCKED();
    struct graph *graph = (struct graph *)find_graph(handle);
    const struct graph *child = find_graph(child_handle);
    if (!node || (count && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    if (!graph || !child || graph == child)
        return CUDA_ERROR_INVALID_HANDLE;
    *node = (CUgraphNode)graph;
    return append_all(graph, child);
}

/* As many nodes of the same kinds as before, or it is refused: the real driver compares the whole topology. */
CUresult impl_cuGraphExecUpdate_v2(CUgraphExec exec_handle, CUgraph handle, CUgraphExecUpdateResultInfo *info) {
    ENTER(cuGraphExecUpdate_v2);
    LOCKED();
    struct graph *exec = standin_find(OBJECT_EXEC, exec_handle);
    const struct graph *graph = find_graph(handle);
    if (!info)
        return CUDA_ERROR_INVALID_VALUE;
    if (!exec || !graph)
        return CUDA_ERROR_INVALID_HANDLE;
    bool same = exec->count == graph->count;
    for (size_t i = 0; same && i < graph->count; i++)
        same = exec->nodes[i].kind == graph->nodes[i].kind;
    *info = (CUgraphExecUpdateResultInfo){.result = same ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                         : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED};
    if (same && graph->count)
        memcpy(exec->nodes, graph->nodes, graph->count * sizeof *graph->nodes);
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static CUresult replay(enum entry entry, CUgraphExec handle, CUstream stream_handle) {
    struct stream *stream;
    LOCKED();
    const struct graph *exec = standin_find(OBJECT_EXEC, handle);
    if (!exec)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = standin_stream(entry, stream_handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        if (exec->nodes[i].kernel && !standin_capture(stream))
            exec->nodes[i].kernel->replayed++;
        result = standin_submit(stream, &exec->nodes[i]);
    }
    return result;
}

CUresult impl_cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphLaunch);
    return replay(ENTRY_cuGraphLaunch, exec, stream);
}

CUresult impl_cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphLaunch_ptsz);
    return replay(ENTRY_cuGraphLaunch_ptsz, exec, stream);
}

static CUresult destroy(enum object_kind kind, const void *handle) {
    LOCKED();
    struct graph *graph = standin_find(kind, handle);
    if (!graph || graph->capture_id)
        return CUDA_ERROR_INVALID_HANDLE;
    free(graph->nodes);
    standin_delete(kind, graph);
    return CUDA_SUCCESS;
}

CUresult impl_cuGraphExecDestroy(CUgraphExec exec) {
    ENTER(cuGraphExecDestroy);
    return destroy(OBJECT_EXEC, exec);
}

CUresult impl_cuGraphDestroy(CUgraph graph) {
    ENTER(cuGraphDestroy);
    return destroy(OBJECT_GRAPH, graph);
}
