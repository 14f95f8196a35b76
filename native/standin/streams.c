/* Streams and events: the clock of each stream, waiting for it, and capture. */
#include "standin.h"

#include <sched.h>
#include <time.h>

atomic_ulong standin_waited_ns;
static uint64_t last_capture;
static _Thread_local struct stream per_thread[MAX_DEVICES];

uint64_t standin_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t standin_clock_ns(void) {
    return standin_now();
}

static uint64_t latest(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static struct stream *own_stream(struct context *context) {
    struct stream *stream = &per_thread[context->device];
    stream->context = context;
    return stream;
}

/* Turns a handle, the special ones included, into a stream. */
CUresult standin_stream(enum entry entry, CUstream handle, struct stream **stream) {
    struct context *context = standin_current();
    bool own = standin_entry_points[entry].flags & PTDS;
    if (handle == CU_STREAM_LEGACY || (!handle && !own))
        *stream = &context->legacy;
    else if (handle == CU_STREAM_PER_THREAD || !handle)
        *stream = own_stream(context);
    else
        *stream = standin_find(OBJECT_STREAM, handle);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* The graph that the stream is being captured into, or NULL. */
struct graph *standin_capture(struct stream *stream) {
    return stream->graph && stream->graph->capture_id == stream->capture_id ? stream->graph : NULL;
}

static bool is_legacy(const struct stream *stream) {
    return stream == &stream->context->legacy;
}

/* The legacy default stream waits for all blocking streams of its context and they for it. */
uint64_t standin_enqueue(struct stream *stream, uint64_t ns) {
    struct context *context = stream->context;
    bool blocking = !is_legacy(stream) && !(stream->flags & CU_STREAM_NON_BLOCKING);
    uint64_t start = latest(standin_now(), standin_idle_at(stream));
    if (blocking)
        start = latest(start, context->legacy.busy_until);
    stream->busy_until = start + ns;
    if (blocking)
        context->blocking_until = latest(context->blocking_until, stream->busy_until);
    context->all_until = latest(context->all_until, stream->busy_until);
    return stream->busy_until;
}

uint64_t standin_idle_at(const struct stream *stream) {
    return is_legacy(stream) ? latest(stream->busy_until, stream->context->blocking_until) : stream->busy_until;
}

static void wait_once(uint64_t until, unsigned flags) {
    const struct timespec at = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    if (flags & CU_CTX_SCHED_BLOCKING_SYNC)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    else if (flags & CU_CTX_SCHED_YIELD)
        sched_yield();
    else
        __builtin_ia32_pause();
}

/* Waits as the context's scheduling flag says; spinning is the default, as in the real driver. */
void standin_wait(uint64_t until, unsigned context_flags) {
    uint64_t begin = standin_now(), now = begin;
    for (; now < until; now = standin_now())
        wait_once(until, context_flags);
    atomic_fetch_add(&standin_waited_ns, now - begin);
}

uint64_t standin_stream_busy_until(CUstream handle) {
    struct stream *stream;
    LOCKED();
    if (!standin_current() || standin_stream(ENTRY_cuStreamQuery, handle, &stream) != CUDA_SUCCESS)
        return 0;
    return standin_idle_at(stream);
}

/* ---- streams ---- */

static CUresult create_stream(CUstream *out, unsigned flags) {
    LOCKED();
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = standin_new(OBJECT_STREAM);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->context = standin_current();
    stream->flags = flags;
    *out = (CUstream)stream;
    return CUDA_SUCCESS;
}

CUresult impl_cuStreamCreate(CUstream *stream, unsigned int flags) {
    ENTER(cuStreamCreate);
    return create_stream(stream, flags);
}

CUresult impl_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    ENTER(cuStreamCreateWithPriority);
    (void)priority;
    return create_stream(stream, flags);
}

CUresult impl_cuStreamDestroy_v2(CUstream handle) {
    ENTER(cuStreamDestroy_v2);
    LOCKED();
    struct stream *stream = standin_find(OBJECT_STREAM, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (standin_capture(stream))
        standin_capture(stream)->invalid = true;
    standin_delete(OBJECT_STREAM, stream);
    return CUDA_SUCCESS;
}

static CUresult forbid_in_capture(struct stream *stream) {
    struct graph *graph = standin_capture(stream);
    if (!graph)
        return CUDA_SUCCESS;
    graph->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult find_idle(enum entry entry, CUstream handle, uint64_t *idle_at, unsigned *flags) {
    struct stream *stream;
    LOCKED();
    CUresult result = standin_stream(entry, handle, &stream);
    if (result == CUDA_SUCCESS)
        result = forbid_in_capture(stream);
    if (result == CUDA_SUCCESS) {
        *idle_at = standin_idle_at(stream);
        *flags = stream->context->flags;
    }
    return result;
}

static CUresult stream_synchronize(enum entry entry, CUstream handle) {
    uint64_t until = 0;
    unsigned flags = 0;
    CUresult result = find_idle(entry, handle, &until, &flags);
    if (result == CUDA_SUCCESS)
        standin_wait(until, flags);
    return result;
}

static CUresult stream_query(enum entry entry, CUstream handle) {
    uint64_t until = 0;
    unsigned flags = 0;
    CUresult result = find_idle(entry, handle, &until, &flags);
    return result != CUDA_SUCCESS ? result : standin_now() < until ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* Waiting for an event of a captured stream brings this stream into the capture. */
static CUresult stream_wait(enum entry entry, CUstream handle, CUevent event_handle) {
    struct stream *stream;
    LOCKED();
    CUresult result = standin_stream(entry, handle, &stream);
    const struct event *event = standin_find(OBJECT_EVENT, event_handle);
    if (result != CUDA_SUCCESS || !event)
        return CUDA_ERROR_INVALID_HANDLE;
    bool captured = event->graph && event->graph->capture_id == event->capture_id;
    if (captured && standin_capture(stream) != event->graph) {
        stream->graph = event->graph;
        stream->capture_id = event->capture_id;
        stream->origin = false;
    } else if (!standin_capture(stream) && event->recorded) {
        stream->busy_until = latest(stream->busy_until, event->time);
    }
    return CUDA_SUCCESS;
}

/* ---- capture ---- */

static CUresult begin_capture(enum entry entry, CUstream handle, CUstreamCaptureMode mode) {
    struct stream *stream;
    LOCKED();
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = standin_stream(entry, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (is_legacy(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (standin_capture(stream))
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->graph = standin_new(OBJECT_GRAPH);
    if (!stream->graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->graph->capture_id = stream->capture_id = ++last_capture;
    stream->origin = true;
    return CUDA_SUCCESS;
}

static CUresult end_capture(enum entry entry, CUstream handle, CUgraph *out) {
    struct stream *stream;
    LOCKED();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = standin_stream(entry, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    struct graph *graph = standin_capture(stream);
    if (!graph)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!stream->origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    graph->capture_id = 0;
    *out = graph->invalid ? NULL : (CUgraph)graph;
    if (graph->invalid)
        standin_delete(OBJECT_GRAPH, graph);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static CUresult is_capturing(enum entry entry, CUstream handle, CUstreamCaptureStatus *status) {
    struct stream *stream;
    LOCKED();
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = standin_stream(entry, handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    const struct graph *graph = standin_capture(stream);
    *status = !graph           ? CU_STREAM_CAPTURE_STATUS_NONE
              : graph->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

/* ---- events ---- */

CUresult impl_cuEventCreate(CUevent *out, unsigned int flags) {
    ENTER(cuEventCreate);
    LOCKED();
    if (!out || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = standin_new(OBJECT_EVENT);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->flags = flags;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult impl_cuEventDestroy_v2(CUevent handle) {
    ENTER(cuEventDestroy_v2);
    LOCKED();
    struct event *event = standin_find(OBJECT_EVENT, handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    standin_delete(OBJECT_EVENT, event);
    return CUDA_SUCCESS;
}

static CUresult record(enum entry entry, CUevent handle, CUstream stream_handle) {
    struct stream *stream;
    LOCKED();
    struct event *event = standin_find(OBJECT_EVENT, handle);
    if (!event || standin_stream(entry, stream_handle, &stream) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_HANDLE;
    event->graph = standin_capture(stream);
    event->capture_id = stream->capture_id;
    event->recorded = !event->graph;
    event->time = event->graph ? 0 : standin_enqueue(stream, 0);
    return CUDA_SUCCESS;
}

static CUresult find_event(CUevent handle, struct event *copy) {
    LOCKED();
    const struct event *event = standin_find(OBJECT_EVENT, handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    *copy = *event;
    return CUDA_SUCCESS;
}

CUresult impl_cuEventSynchronize(CUevent handle) {
    struct event event;
    ENTER(cuEventSynchronize);
    CUresult result = find_event(handle, &event);
    bool blocking = result == CUDA_SUCCESS && (event.flags & CU_EVENT_BLOCKING_SYNC);
    if (result == CUDA_SUCCESS && event.recorded)
        standin_wait(event.time, blocking ? CU_CTX_SCHED_BLOCKING_SYNC : standin_current()->flags);
    return result;
}

CUresult impl_cuEventQuery(CUevent handle) {
    struct event event;
    ENTER(cuEventQuery);
    CUresult result = find_event(handle, &event);
    return result != CUDA_SUCCESS ? result : standin_now() < event.time ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    struct event start, end;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (find_event(start_handle, &start) != CUDA_SUCCESS || find_event(end_handle, &end) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start.recorded || !end.recorded || ((start.flags | end.flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (standin_now() < latest(start.time, end.time))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end.time - start.time) / 1e6);
    return CUDA_SUCCESS;
}

CUresult impl_cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime);
    return elapsed(milliseconds, start, end);
}

CUresult impl_cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime_v2);
    return elapsed(milliseconds, start, end);
}

/* ---- entries that exist twice, for the legacy and the per-thread default stream ---- */

#define STREAM_ENTRY(name, does, parameters, ...)                                                                      \
    CUresult impl_##name parameters {                                                                                  \
        ENTER(name);                                                                                                   \
        return does(ENTRY_##name, __VA_ARGS__);                                                                        \
    }                                                                                                                  \
    CUresult impl_##name##_ptsz parameters {                                                                           \
        ENTER(name##_ptsz);                                                                                            \
        return does(ENTRY_##name##_ptsz, __VA_ARGS__);                                                                 \
    }

STREAM_ENTRY(cuStreamSynchronize, stream_synchronize, (CUstream stream), stream)
STREAM_ENTRY(cuStreamQuery, stream_query, (CUstream stream), stream)
STREAM_ENTRY(cuStreamBeginCapture_v2, begin_capture, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
STREAM_ENTRY(cuStreamEndCapture, end_capture, (CUstream stream, CUgraph *graph), stream, graph)
STREAM_ENTRY(cuStreamIsCapturing, is_capturing, (CUstream stream, CUstreamCaptureStatus *status), stream, status)
STREAM_ENTRY(cuEventRecord, record, (CUevent event, CUstream stream), event, stream)
STREAM_ENTRY(cuStreamWaitEvent, stream_wait, (CUstream stream, CUevent event, unsigned int flags), stream,
             ((void)flags, event))
