/* SPDX-License-Identifier: Apache-2.0
 *
 * spy_cuda.h: records calls of the CUDA driver.
 *
 * The spy is a separate object with the driver's name: once a process has opened it, every later
 * open of "libcuda.so.1" returns it. It has the driver's entry points, passes each call on to the
 * real driver, and records the relevant ones while watching is on. A test can make chosen calls
 * fail. The spy has no entry point that the real driver lacks.
 *
 *   spy.h           puts the spy before the driver, and finds it
 *   spy_cuda.c      the object
 *   spy_cuda_calls.h, spy_cuda_names.h   which calls are noted, which are passed on alone */
#ifndef HOST_CHECK_SPY_SPY_CUDA_H
#define HOST_CHECK_SPY_SPY_CUDA_H

#include <stdint.h>

/* Kind of a call. */
enum spy_kind {
    SPY_ALLOCATE, /* memory of any sort, from a pool too */
    SPY_FREE,
    SPY_SYNCHRONIZE, /* waits for work */
    SPY_ASK,         /* queries whether work is done; repeated queries count once */
    SPY_COPY,        /* a copy or fill that waits for work, and one that may wait */
    SPY_OBJECT,      /* streams, events, graphs: made or destroyed */
    SPY_MODULE,      /* code loaded or unloaded */
    SPY_CONTEXT,     /* the current context, or contexts themselves, are changed */
    SPY_CAPTURE,     /* a capture is begun or ended, or its mode changed */
    SPY_ENQUEUE,     /* work for a stream */
    SPY_RECORD,      /* an event stands for the work of a stream so far */
    SPY_WAIT,        /* later work of a stream waits for an event */
    SPY_KINDS
};

/* Streams without an object of their own. */
#define SPY_LEGACY_STREAM     ((const void *)1)
#define SPY_PER_THREAD_STREAM ((const void *)2)

/* One call. */
struct spy_record {
    uint32_t kind;
    int32_t result;       /* of the driver */
    const char *call;     /* its name */
    const void *stream;   /* ENQUEUE, RECORD, WAIT; NULL was made one of the two above */
    const void *event;    /* RECORD, WAIT */
    const void *function; /* ENQUEUE of a kernel; else NULL */
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    int32_t depth;  /* CONTEXT: +1 pushed, -1 popped */
    uint64_t bytes; /* ENQUEUE of a copy or fill */
};

enum { SPY_MAX_RECORDS = 8192 };

/* X(type, name, parameters): spy_cuda_NAME in the object, .NAME in struct spy_cuda. */
#define SPY_CUDA_CONTROLS(X)                                                                         \
    /* The driver to pass calls on to, an absolute file; once a process, before any call. NULL, or \
     * what is wrong. */ \
    X(const char *, open, (const char *file))                                                        \
    /* Forget all records and note the calls of all threads from now on, until spy_cuda_end(). */    \
    X(void, begin, (void))                                                                           \
    X(void, end, (void))                                                                             \
    /* From now on calls of the kinds in this mask fail with `result` and are not passed on; 0 =   \
     * none. spy_cuda_end() ends it. */ \
    X(void, fail, (uint32_t kinds, int32_t result))                                                  \
    /* The records since begin(), valid until the next one; the value is how many calls there      \
     * were, of which no more than the first SPY_MAX_RECORDS are there. */ \
    X(uint32_t, records, (const struct spy_record **records))

struct spy_cuda {
#define SPY_CUDA_MEMBER(type, name, parameters) type(*name) parameters;
    SPY_CUDA_CONTROLS(SPY_CUDA_MEMBER)
#undef SPY_CUDA_MEMBER
};

#endif /* HOST_CHECK_SPY_SPY_CUDA_H */
