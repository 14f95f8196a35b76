/* Known native stacks, built with -O2 and without frame pointers; the first argument says which. Each ends in spin().
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <alloca.h>
#include <immintrin.h>
#include <pthread.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile unsigned long turns;

NOINLINE void spin(void) {
    for (;;)
        turns++;
}

NOINLINE int deep(int n) {
    if (!n)
        spin();
    return deep(n - 1) + n;
}

NOINLINE int with_alloca(int n) {
    char *room = alloca(64 + 16 * n);
    memset(room, n, 64 + 16 * n);
    return n ? with_alloca(n - 1) + room[3] : deep(2) + room[1];
}

/* A frame aligned beyond the ABI: its CFA is kept in memory, or in r10 at its start. */
NOINLINE int realigned(int n) {
    volatile __m256i wide __attribute__((aligned(64)));
    memset((void *)&wide, n, sizeof(wide));
    return deep(n) + ((volatile char *)&wide)[5];
}

NOINLINE int compare(const void *left, const void *right) {
    (void)left, (void)right;
    return deep(2);
}

NOINLINE int by_callback(void) {
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof(numbers[0]), compare);
    return numbers[0];
}

static void on_signal(int number) {
    (void)number;
    deep(1);
}

NOINLINE int interrupted(int n) {
    return n ? interrupted(n - 1) + 1 : raise(SIGUSR1);
}

NOINLINE int by_signal(void) {
    signal(SIGUSR1, on_signal);
    return interrupted(3);
}

static void *in_thread(void *nothing) {
    (void)nothing;
    deep(3);
    return 0;
}

NOINLINE int by_thread(void) {
    pthread_t thread;
    pthread_create(&thread, 0, in_thread, 0);
    return pthread_join(thread, 0);
}

NOINLINE int reading(void) {
    char room[4096];
    for (;;)
        if (pread(0, room, sizeof(room), 0) < 0)
            return 1;
}

int main(int count, char **words) {
    const char *shape = count > 1 ? words[1] : "";
    printf("%d\n", getpid());
    fflush(stdout);
    if (!strcmp(shape, "deep"))
        return deep(20);
    if (!strcmp(shape, "alloca"))
        return with_alloca(3);
    if (!strcmp(shape, "realigned"))
        return realigned(2);
    if (!strcmp(shape, "callback"))
        return by_callback();
    if (!strcmp(shape, "signal"))
        return by_signal();
    if (!strcmp(shape, "thread"))
        return by_thread();
    if (!strcmp(shape, "kernel"))
        return reading();
    return 2;
}
