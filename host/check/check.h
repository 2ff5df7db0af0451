/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h: `attnhost check`, the conformance suite: checks, their input and their reports.
 *
 *   parent (sandbox.c)  never opens a plugin, never touches a driver; starts children, watches
 *                       their limits, collects results, writes the report
 *   child (child.c)     opens the plugin, makes a subject for each backend, runs the cases that the
 *                       parent names
 *   groups              one table of checks for each group of rules (suite/groups.c), in numerics/,
 *                       relations/, contract/ and composites/
 *   row                 a check. Rows of numeric cases have kinds of layers, axes, a relation (alone,
 *                       permuted, split, cut, padded, replayed, with a fault, ...) and an
 *                       expectation (the oracle, the same bits, a status); one runner runs them
 *                       (cases/kind.h). A check that shares nothing with others is a function.
 *
 * A check belongs to one rule of docs/ABI.md and may have many cases. A case's id is
 * BACKEND/RULE.name or, if there are several, BACKEND/RULE.name/INDEX, as in
 * "cpu_native/KV-06.pages/17". Equal seeds give equal cases on any machine. */
#ifndef HOST_CHECK_CHECK_H
#define HOST_CHECK_CHECK_H

#include <stdbool.h>

#include "host/base/error.h"
#include "host/plugin/compose.h"
#include "host/device/device.h"
#include "host/embed/embed.h"

/* The outcome of a case. */
enum check_code {
    CHECK_PASS,
    CHECK_FAIL,
    CHECK_CRASH, /* a signal, or an exit */
    CHECK_TIMEOUT,
    CHECK_SKIP, /* with a reason: declared unsupported, or impossible on this machine */
    CHECK_WARN, /* a SHOULD that is not kept, or a time */
    CHECK_WAIVED,
    CHECK_DEVICE_LOST,
    CHECK_CODES
};

struct kind_cases;
struct relation;
struct rig_check;
struct process_resources;
struct layout_converter;
struct check_trail;

/* A backend of the plugin under test, ready to be called, in the child. Its plugin is initialised,
 * and on CUDA the primary context is current while a case runs. A check that is CHECK_ONCE has of
 * it host, file, plugin, seed, exhaustive and repeat alone; all else is zero there. */
struct check_subject {
    attnhost *host;                /* the plugin is loaded in it, and those of --with */
    const char *file;              /* of the plugin, absolute */
    const char *object;            /* the shared object that was opened: the same, or what runs */
    const char *source;            /* this source; NULL = the plugin is its own object */
    uint32_t plugin;               /* its index in the host; attnhost_plugin() */
    const attn_backend_type *type; /* the plugin's own table, or: */
    const struct layout_converter
        *converter;                /* its KV layouts are a vendor's own, and this wrapper's type */
                                   /* stands before it; NULL */
    const char *backend;           /* the name under which the host knows it, options included */
    struct compose_node *node;     /* resolved: its options, services and children, for raw calls */
    const attn_options *options;   /* of the node, parsed */
    const attn_services *services; /* of the node */
    /* What instances are made on; never NULL: the CPU if the backend serves no device that is here,
     * and then it refuses everything. */
    struct device *device;
    struct device *cpu; /* the oracle's side; may be the same */
    bool fake_device;   /* the driver is the tests' fake: kernels of a real plugin do nothing */
    uint64_t seed;
    bool exhaustive;
    int32_t repeat; /* how often a numeric case is run; 0 = once */
    /* What the process held before the plugin was loaded, and after. */
    const struct process_resources *unloaded, *loaded;
    /* Holds the grid of its cases once it is made (grid.h); the owner initialises it with NULL and
     * ends with grid_destroy(). */
    struct grid **grid;
    /* Holds the answer of linear_families(); the owner initialises it with LINEAR_UNASKED. NULL =
     * none. */
    uint32_t *linear_families;
    /* Receives each answer of query as a sign of life, since some questions take thousands of them;
     * NULL = none. */
    struct check_trail *trail;
};

/* Input and report of a running case. */
struct check_run {
    const struct check_subject *subject;
    const struct check *check;
    int32_t index;        /* of the case in its check */
    uint64_t seed;        /* of this case: a function of --seed, the check and the index alone */
    enum check_code code; /* PASS until the first report, which stays */
    char text[1024];      /* why; "" for PASS */
    uint32_t without;     /* CHECK_FUZZABLE: complications to leave out, one a bit; 0 = none */
    struct check_trail *trail; /* where notes go; NULL = nowhere */
    host_error error;          /* of the call that was made last: check_error() */
};

/* Report a failure, with the expected and the actual value. The first call counts. */
void check_fail(struct check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void check_warn(struct check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* SKIP if the plugin declares it unsupported, or this machine cannot do it; a reason is never
 * empty. */
void check_skip(struct check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The error argument of a call, emptied first; and its message, "" without one. */
attn_error *check_error(struct check_run *run);
const char *check_error_text(const struct check_run *run);

/* ATTN_OK, or the case fails: "what: STATUS: message". */
bool check_good(struct check_run *run, attn_status status, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* The case fails with this text and the description of the case; SKIP if the machine lacks
 * something. */
void check_report_status(struct check_run *run, attn_status status, const char *text,
                         const char *what);

/* Note the current step of the case, for the report of a crash or a timeout; also a sign of life.
 * Cheap enough for loops. */
void check_note(struct check_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* `condition`, or the case fails and the calling function returns. */
#define CHECK_THAT(run, condition, ...)                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            check_fail(run, __VA_ARGS__);                                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* For a backend that an interpreter runs: allocations are the interpreter's and the libraries'. The
 * reason of skipped cases, and a note at the end of a report. */
#define CHECK_SOURCE_UNJUDGED                                                                      \
    "not checked for a backend written in Python: memory, files, threads and code loading "        \
    "(PURE-01), and threads that packages start on import (LIFE-08); on a GPU, PURE-01 checks "    \
    "only that a forward does not wait"

/* What a check needs of the machine or of the subject, or it is skipped with that as its reason. */
enum {
    /* Results are meaningful: a CPU, a real GPU, or a backend whose kernels the fake driver has. */
    CHECK_NEEDS_COMPUTE = 1 << 0,
    CHECK_NEEDS_CUDA = 1 << 1,  /* a CUDA device, the fake's included */
    CHECK_NEEDS_CHILD = 1 << 2, /* the backend is a composite */
    CHECK_ONCE = 1 << 3,        /* about the file, not one backend: run once per plugin */
    /* Any run->seed makes a good case, whatever the index. `attnhost fuzz` calls it with random
     * ones; to make a failing one smaller it sets bits of run->without, from bit 0 on. */
    CHECK_FUZZABLE = 1 << 4,
    /* It measures time, or the device's free memory: nothing else may run meanwhile. */
    CHECK_ALONE = 1 << 5
};

struct check {
    const char *rule;     /* an id of docs/ABI.md */
    const char *name;     /* [a-z_]+, unique for the rule */
    const char *sentence; /* the property that holds if it passes */
    uint32_t needs;       /* CHECK_NEEDS_* */
    /* How many cases there are for this subject; NULL = 1. Deterministic. */
    int32_t (*count)(const struct check_subject *subject);
    void (*run)(struct check_run *run);
    /* Rows of numeric cases (cases/kind.h): the cases and their kind of layer; the relation between
     * the calls of a case, and the expected result. `count` is NULL then, and `run` is
     * kind_run_row(). */
    const struct kind_cases *cases;
    const struct relation *relation;
    const struct rig_check *rig; /* rows of calls (cases/rig.h): `run` is rig_run_row() */
};

/* A row of a table, whose check `name` is run by run_NAME: `count` is a function or NULL, and that of rows of numeric
 * cases is count_NAME. */
#define CHECK_ROW(rule, name, count, needs, sentence)                                              \
    {                                                                                              \
        rule, #name, sentence, needs, count, run_##name, NULL, NULL, NULL                          \
    }
#define CHECK_CASES(rule, name, sentence)                                                          \
    CHECK_ROW(rule, name, count_##name, CHECK_NEEDS_COMPUTE, sentence)

/* These two functions, if they consist of one expression (mostly of `subject`) or one call with
 * `run`. */
#define CHECK_COUNT(name, number)                                                                  \
    static int32_t count_##name(const struct check_subject *subject)                               \
    {                                                                                              \
        (void)subject;                                                                             \
        return number;                                                                             \
    }
#define CHECK_RUN(name, call)                                                                      \
    static void run_##name(struct check_run *run)                                                  \
    {                                                                                              \
        call;                                                                                      \
    }

/* The tables check_NAME, each ended by a row without a rule, in the order in which they run, and
 * their rank: with --fail-fast those of a lower one come first. Numerics find most faults in their
 * first tenths of a second; tables that take seconds, or find rare faults, come last. To add one: a
 * row here. */
#define CHECK_TABLES(ROW)                                                                          \
    ROW(load, 1)                                                                                   \
    ROW(nego, 1)                                                                                   \
    ROW(structs, 1)                                                                                \
    ROW(life, 1)                                                                                   \
    ROW(leak, 1)                                                                                   \
    ROW(conf, 1)                                                                                   \
    ROW(caps, 3)                                                                                   \
    ROW(work, 1)                                                                                   \
    ROW(pure, 1)                                                                                   \
    ROW(pure_cuda, 1)                                                                              \
    ROW(capt, 1)                                                                                   \
    ROW(num, 0)                                                                                    \
    ROW(invar, 4)                                                                                  \
    ROW(linear, 0)                                                                                 \
    ROW(linear_invar, 0)                                                                           \
    ROW(mla, 0)                                                                                    \
    ROW(sparse, 0)                                                                                 \
    ROW(size, 4)                                                                                   \
    ROW(size_linear, 4)                                                                            \
    ROW(sequel, 4)                                                                                 \
    ROW(linear_sequel, 4)                                                                          \
    ROW(padding, 4)                                                                                \
    ROW(comp, 1)                                                                                   \
    ROW(comp_depth, 1)                                                                             \
    ROW(faults, 0)                                                                                 \
    ROW(strides, 2)                                                                                \
    ROW(codes, 2)                                                                                  \
    ROW(repeats, 2)                                                                                \
    ROW(hints, 2)                                                                                  \
    ROW(borders, 2)                                                                                \
    ROW(corners, 2)                                                                                \
    ROW(private, 2)                                                                                \
    ROW(thrd, 1)                                                                                   \
    ROW(err, 1)                                                                                    \
    ROW(perf, 2)                                                                                   \
    ROW(far_tables, 4)                                                                             \
    ROW(extremes, 4)                                                                               \
    ROW(far_operands, 4)                                                                           \
    ROW(hints_tiles, 4)                                                                            \
    ROW(wide_inputs, 4)                                                                            \
    ROW(dtypes, 4)                                                                                 \
    ROW(caps_kinds, 3)                                                                             \
    ROW(arrays_forgotten, 4)                                                                       \
    ROW(caps_memory, 4)                                                                            \
    ROW(size_work, 4)                                                                              \
    ROW(numbers, 4)                                                                                \
    ROW(number_turns, 4)
#define CHECK_TABLES_DECLARE(name, rank) extern const struct check check_##name[];
CHECK_TABLES(CHECK_TABLES_DECLARE)
#undef CHECK_TABLES_DECLARE

#endif /* HOST_CHECK_CHECK_H */
