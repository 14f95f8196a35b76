/* Pools of driver objects.  A handle is an address in its pool: a wrong one is told apart without touching it. */
#include "standin.h"

#include <string.h>
#include <sys/mman.h>

static struct pool {
    size_t size, capacity, used;
    char *items;
    struct object *free;
} pools[OBJECT_KINDS] = {
    [OBJECT_MODULE] = {.size = sizeof(struct module), .capacity = 4096},
    [OBJECT_FUNCTION] = {.size = sizeof(struct function), .capacity = 65536},
    [OBJECT_STREAM] = {.size = sizeof(struct stream), .capacity = 4096},
    [OBJECT_EVENT] = {.size = sizeof(struct event), .capacity = 65536},
    [OBJECT_GRAPH] = {.size = sizeof(struct graph), .capacity = 4096},
    [OBJECT_EXEC] = {.size = sizeof(struct graph), .capacity = 4096},
};

static struct object *take(struct pool *pool) {
    struct object *object = pool->free;
    if (object) {
        pool->free = object->next_free;
        return object;
    }
    if (!pool->items) {
        void *items = mmap(NULL, pool->size * pool->capacity, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (items == MAP_FAILED)
            return NULL;
        pool->items = items;
    }
    return pool->used < pool->capacity ? (struct object *)(pool->items + pool->size * pool->used++) : NULL;
}

void *standin_new(enum object_kind kind) {
    struct object *object = take(&pools[kind]);
    if (object) {
        memset(object, 0, pools[kind].size);
        object->live = true;
    }
    return object;
}

void *standin_find(enum object_kind kind, const void *handle) {
    const struct pool *pool = &pools[kind];
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)pool->items;
    if (!pool->items || offset >= pool->size * pool->used || offset % pool->size)
        return NULL;
    struct object *object = (struct object *)(pool->items + offset);
    return object->live ? object : NULL;
}

void standin_delete(enum object_kind kind, void *deleted) {
    struct object *object = deleted;
    object->live = false;
    object->next_free = pools[kind].free;
    pools[kind].free = object;
}

void *standin_next(enum object_kind kind, void *after) {
    struct pool *pool = &pools[kind];
    size_t index = after ? (size_t)((char *)after - pool->items) / pool->size + 1 : 0;
    for (; index < pool->used; index++) {
        struct object *object = (struct object *)(pool->items + pool->size * index);
        if (object->live)
            return object;
    }
    return NULL;
}
