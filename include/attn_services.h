/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_services.h: functions that the host offers to a plugin, and the options it parses for it.
 */
#ifndef ATTN_SERVICES_H
#define ATTN_SERVICES_H

#include "attn_types.h"
#include "attn_problem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_instance attn_instance;         /* defined by the plugin, opaque to the host */
typedef struct attn_backend_type attn_backend_type; /* attn_backend.h */

/* ---- Options --------------------------------------------------------------------------------- */

/* Types of options: how the host parses the ini's text, and which member holds the value. */
enum attn_option_type {
    ATTN_OPTION_BOOL = 0,        /* yes/no, true/false, on/off, 1/0 -> integer 1 or 0 */
    ATTN_OPTION_INT = 1,         /* decimal -> integer */
    ATTN_OPTION_FLOAT = 2,       /* finite decimal -> real */
    ATTN_OPTION_STRING = 3,      /* as it stands -> text */
    ATTN_OPTION_ENUM = 4,        /* one of `choices` -> text, and its index in integer */
    ATTN_OPTION_SIZE = 5,        /* bytes, suffixes K M G (1024) -> integer */
    ATTN_OPTION_PATH = 6,        /* relative to the ini's folder -> absolute text */
    ATTN_OPTION_BACKEND_REF = 7, /* name of a backend or of a [backend.NAME] section -> text */
    ATTN_OPTION_COUNT = 8
};

/* attn_option.flags */
enum attn_option_flag {
    ATTN_OPTION_REQUIRED = 1 << 0, /* no default: a value must be given */
    ATTN_OPTION_REPEATED = 1 << 1  /* may be given several times; order is kept */
};

/* The declaration of an option. Static storage of the plugin. The host parses and checks the ini
 * against it, prints it in `inspect`, and suggests the nearest key for an unknown one. */
typedef struct attn_option {
    uint32_t struct_size;
    uint32_t type;                /* ATTN_OPTION_* */
    uint32_t flags;               /* ATTN_OPTION_REQUIRED ... */
    uint32_t num_choices;         /* ENUM: elements of `choices`; else 0 */
    const char *key;              /* [a-z][a-z0-9_]*, unique in the type */
    const char *default_text;     /* as written in an ini; NULL iff REQUIRED, or REPEATED and */
                                  /* empty by default */
    double min, max;              /* INT, FLOAT, SIZE: inclusive range; min > max = no range */
    const char *const *choices;   /* ENUM; else NULL */
    const char *unit;             /* "tokens", "bytes" ...; NULL = none */
    const char *doc;              /* one line, never NULL */
    const char *deprecated_alias; /* an older key, still accepted with a warning; NULL = none */
} attn_option;

/* One value, parsed and checked. Valid during the call it is passed to. */
typedef struct attn_option_value {
    uint32_t struct_size;
    uint32_t type;     /* ATTN_OPTION_* */
    const char *key;   /* the declaration's key, never the alias */
    int64_t integer;   /* BOOL, INT, SIZE, ENUM (index) */
    double real;       /* FLOAT */
    const char *text;  /* as given; absolute for PATH; never NULL */
    const char *place; /* "file:line", or "default": for messages; never NULL */
} attn_option_value;

/* All values of a backend: each declared option, as given or its default; a REPEATED option has one
 * value for each time it was given, in order. NULL where options are expected means all defaults.
 */
typedef struct attn_options {
    uint32_t struct_size;
    uint32_t num_values;
    const attn_option_value *values; /* array; walk with attn_at() */
} attn_options;

/* ---- Services -------------------------------------------------------------------------------- */

/* attn_services.log levels */
enum attn_log_level {
    ATTN_LOG_ERROR = 0,
    ATTN_LOG_WARNING = 1,
    ATTN_LOG_INFO = 2,
    ATTN_LOG_DEBUG = 3
};

/* Memory spaces. */
enum attn_memory_space {
    ATTN_SPACE_DEVICE = 0, /* the instance's device; host memory on the CPU */
    ATTN_SPACE_PINNED = 1, /* host memory the device can copy from without staging */
    ATTN_SPACE_HOST = 2,
    ATTN_SPACE_COUNT = 3
};

/* One task of a parallel_for. `worker` is in [0, num_workers); no two tasks with the same worker
 * run at once. A status other than ATTN_OK stops tasks that have not begun. */
typedef attn_status (*attn_task)(void *arg, int64_t task, uint32_t worker);

/* A child made by child_create. Call it through `type`, which is the child's own table or that of a
 * wrapper which the host put around it. */
typedef struct attn_child {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const attn_backend_type *type;
    attn_instance *instance; /* the caller's to destroy, through type->ops->destroy */
} attn_child;

/* Functions of the host. Services live as long as the instance they were passed to; those passed to
 * init live until fini. Each function takes `ctx` first. A slot may be NULL only where its comment
 * says so. */
typedef struct attn_services {
    uint32_t struct_size;
    uint32_t num_workers; /* most threads that parallel_for uses, >= 1; constant */
    void *ctx;

    /* Print a message to the user. `message` is UTF-8 without a newline, copied. Never NULL.
     * [any-thread] */
    void (*log)(void *ctx, uint32_t level, const char *message);

    /* Open and close a span in the host's trace. `name` is static. (optional) [any-thread] */
    uint64_t (*trace_begin)(void *ctx, const char *name);
    void (*trace_end)(void *ctx, uint64_t span);

    /* Memory of an instance; never called in forward. Returns NULL when exhausted; `release`
     * accepts NULL. `alignment` is a power of two. Never NULL. [instance-thread & !capturing] */
    void *(*allocate)(void *ctx, uint32_t space, uint64_t size, uint64_t alignment);
    void (*release)(void *ctx, uint32_t space, void *memory);

    /* Run task(arg, 0 .. num_tasks - 1, worker) on the host's pool and wait. All CPU plugins share
     * the pool. Not nestable: BAD_STATE from within a task. Returns the first error. May be called
     * in forward. Never NULL. [instance-thread] */
    attn_status (*parallel_for)(void *ctx, int64_t num_tasks, attn_task task, void *arg);

    /* Query the child that the BACKEND_REF value `name` refers to. Error messages of this function
     * and of child_create begin with the child's name. NULL unless the type declares a BACKEND_REF
     * option. [any-thread] */
    attn_status (*child_query)(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error);

    /* Make that child for `num_problems` layer groups (array; walk with attn_at()). On success the
     * caller owns *child and must destroy it before its own instance is destroyed. NULL unless the
     * type declares a BACKEND_REF option. [instance-thread & !capturing] */
    attn_status (*child_create)(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error);

    /* Has the device reported an error that no call has returned yet? (optional; NULL on the CPU)
     * [any-thread] */
    attn_status (*poll_error)(void *ctx, attn_error *error);

    /* An extension of the host by id "attn.<name>/<rev>"; NULL = absent. (optional) [any-thread] */
    const void *(*get_extension)(void *ctx, const char *id);
} attn_services;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_SERVICES_H */
