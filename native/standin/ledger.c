/* What the driver did, exactly, as one JSON document. */
#include "standin.h"

#include <stdarg.h>
#include <string.h>

struct writer {
    char *text;
    size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *writer, const char *format, ...) {
    va_list arguments;
    size_t left = writer->length < writer->size ? writer->size - writer->length : 0;
    va_start(arguments, format);
    int length = vsnprintf(left ? writer->text + writer->length : NULL, left, format, arguments);
    va_end(arguments);
    writer->length += length > 0 ? (size_t)length : 0;
}

/* Bytes outside printable ASCII are written as the code points of the same number. */
static void put_string(struct writer *writer, const char *text) {
    put(writer, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\')
            put(writer, "\\u%04x", *c);
        else
            put(writer, "%c", *c);
    put(writer, "\"");
}

static void put_counts(struct writer *writer, const char *title, unsigned long (*count)(enum entry)) {
    const char *separator = "";
    put(writer, "\"%s\": {", title);
    for (int i = 0; i < ENTRY_COUNT; i++) {
        unsigned long n = count((enum entry)i);
        if (!n)
            continue;
        put(writer, "%s\"%s\": %lu", separator, standin_entry_points[i].exported, n);
        separator = ", ";
    }
    put(writer, "}, ");
}

static void put_kernels(struct writer *writer) {
    put(writer, "\"kernels\": {");
    for (size_t i = 0; i < standin_kernel_count(); i++) {
        const struct kernel *kernel = standin_kernel_at(i);
        put(writer, i ? ", " : "");
        put_string(writer, kernel->name);
        put(writer, ": {\"launches\": %lu, \"failed\": %lu, \"captured\": %lu, \"replayed\": %lu, ", kernel->launches,
            kernel->failed, kernel->captured, kernel->replayed);
        put(writer, "\"time_ns\": %llu, \"busy_ns\": %llu}", (unsigned long long)kernel->time_ns,
            (unsigned long long)kernel->busy_ns);
    }
    put(writer, "}, ");
}

static void put_traffic(struct writer *writer) {
    const struct traffic *traffic = &standin_traffic;
    put(writer, "\"bytes\": {\"host_to_device\": %llu, \"device_to_host\": %llu, ",
        (unsigned long long)traffic->host_to_device, (unsigned long long)traffic->device_to_host);
    put(writer, "\"device_to_device\": %llu, \"host_to_host\": %llu, \"set\": %llu}, ",
        (unsigned long long)traffic->device_to_device, (unsigned long long)traffic->host_to_host,
        (unsigned long long)traffic->set);
}

/* Writes the ledger with its NUL as far as `size` reaches; returns the length it has without it, as snprintf does. */
size_t standin_ledger(char *text, size_t size) {
    struct writer writer = {.text = text, .size = text ? size : 0};
    LOCKED();
    put(&writer, "{");
    put_counts(&writer, "calls", standin_calls);
    put_counts(&writer, "refused", standin_refused);
    put_kernels(&writer);
    put_traffic(&writer);
    put(&writer, "\"waited_ns\": %lu, \"injection\": \"%s\"}", atomic_load(&standin_waited_ns), standin_injection);
    return writer.length;
}
