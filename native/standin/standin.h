/* Inside of the stand-in driver: what its files share.
 *
 * Nothing runs in the background.  Every stream has a clock, `busy_until`: work put on a stream moves it forward by the
 * work's set time, and whoever waits for the stream waits until the real clock has passed it. */
#ifndef STANDIN_H
#define STANDIN_H

#include "cuda_api.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PUBLIC __attribute__((visibility("default")))

/* Entries: each exported name has an implementation impl_NAME of the same type, reached through its trampoline. */
#define ENTRY(exported, base, since, flags) extern __typeof__(exported) impl_##exported;
#include "entry_points.inc"
#undef ENTRY

enum entry {
#define ENTRY(exported, base, since, flags) ENTRY_##exported,
#include "entry_points.inc"
#undef ENTRY
    ENTRY_COUNT
};

enum entry_flags { ANY = 1, CTX = 2, PTDS = 4 };

struct entry_point {
    const char *exported, *base;
    void *address; /* of the trampoline */
    int since;
    unsigned flags;
};

extern const struct entry_point standin_entry_points[ENTRY_COUNT];

/* Counts a call; says what it is refused with: injected failure, no cuInit, no context, or CUDA_SUCCESS. */
CUresult standin_enter(enum entry entry);
void standin_read_failures(void);
unsigned long standin_calls(enum entry entry), standin_refused(enum entry entry);

#define ENTER(name)                                                                                                    \
    do {                                                                                                               \
        CUresult refused = standin_enter(ENTRY_##name);                                                                \
        if (refused != CUDA_SUCCESS)                                                                                   \
            return refused;                                                                                            \
    } while (0)

/* One lock guards all state but the counters of calls.  LOCKED() holds it to the end of the scope. */
extern pthread_mutex_t standin_lock;
void standin_unlock(const int *);
#define LOCKED()                                                                                                       \
    __attribute__((cleanup(standin_unlock))) const int locked = pthread_mutex_lock(&standin_lock);                     \
    (void)locked

/* Objects: handles are addresses in bounded pools, so that any number given as a handle can be judged unread. */
enum object_kind {
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_GRAPH,
    OBJECT_EXEC,
    OBJECT_KINDS
};

struct object {
    struct object *next_free;
    bool live;
};

void *standin_new(enum object_kind kind); /* zeroed; NULL when the pool is full */
void *standin_find(enum object_kind kind, const void *handle);
void standin_delete(enum object_kind kind, void *object);
void *standin_next(enum object_kind kind, void *after); /* walks the live ones */

/* Kernels by name: set times and counts outlive modules. */
struct kernel {
    char *name;
    uint64_t time_ns;
    int time_from; /* the source with the highest rank wins: enum time_source */
    unsigned long launches, failed, captured, replayed;
    uint64_t busy_ns;
};

enum time_source { TIME_DEFAULT, TIME_IMAGE, TIME_ENVIRONMENT, TIME_CALL };

struct kernel *standin_kernel(const char *name); /* found or made; NULL when the table is full */
void standin_set_time(struct kernel *kernel, uint64_t ns, enum time_source source);
size_t standin_kernel_count(void);
struct kernel *standin_kernel_at(size_t index);

struct module {
    struct object head;
    bool any_name; /* a binary image: every name is there */
    char *names;   /* NUL between names, two at the end */
    struct function *functions;
};

/* Both CUfunction and CUkernel. */
struct function {
    struct object head;
    struct module *module;
    struct function *next;
    struct kernel *kernel;
};

/* Work for a stream. */
enum work_kind { WORK_KERNEL, WORK_COPY, WORK_SET };

struct work {
    enum work_kind kind;
    struct kernel *kernel;
    uint64_t ns;
    void *to;
    const void *from;
    size_t bytes;
    unsigned value, width;
};

#define MAX_DEVICES 8

struct graph {
    struct object head;
    struct work *nodes;
    size_t count, capacity;
    uint64_t capture_id; /* not 0 while streams are captured into it */
    bool invalid;
};

struct stream {
    struct object head;
    struct context *context;
    unsigned flags;
    uint64_t busy_until;
    struct graph *graph; /* of the last capture; still on if its capture_id is ours */
    uint64_t capture_id;
    bool origin;
};

struct event {
    struct object head;
    unsigned flags;
    bool recorded;
    uint64_t time;
    struct graph *graph;
    uint64_t capture_id;
};

struct context {
    int device;
    unsigned flags, retained;
    struct stream legacy;
    uint64_t blocking_until, all_until;
};

/* driver.c */
extern atomic_bool standin_initialized;
extern char standin_injection[256];
long standin_setting(const char *name, long otherwise);
int standin_version(void); /* 1000 * major + 10 * minor */
struct context *standin_current(void);

/* streams.c.  All but standin_wait are called with the lock held. */
uint64_t standin_now(void);
CUresult standin_stream(enum entry entry, CUstream handle, struct stream **stream);
struct graph *standin_capture(struct stream *stream);
uint64_t standin_enqueue(struct stream *stream, uint64_t ns);
uint64_t standin_idle_at(const struct stream *stream);
void standin_wait(uint64_t until, unsigned context_flags); /* called without the lock */
extern atomic_ulong standin_waited_ns;

/* graphs.c, memory.c: do the work now, or note it in the graph that the stream is captured into. */
CUresult standin_submit(struct stream *stream, const struct work *work);
void standin_perform(const struct work *work);
struct traffic {
    uint64_t host_to_device, device_to_host, device_to_device, host_to_host, set;
};
extern struct traffic standin_traffic;

/* What tests and the demo may call besides the driver's own API. */
PUBLIC void standin_set_kernel_time(const char *name, uint64_t ns);
PUBLIC uint64_t standin_clock_ns(void);
PUBLIC uint64_t standin_stream_busy_until(CUstream stream);
PUBLIC size_t standin_ledger(char *text, size_t size);

#endif
