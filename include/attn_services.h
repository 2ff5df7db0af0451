/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_services.h: what the host does for a plugin, and the options it parses for it.
 */
#ifndef ATTN_SERVICES_H
#define ATTN_SERVICES_H

#include "attn_types.h"
#include "attn_problem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_instance attn_instance;         /* a plugin's own, opaque to the host */
typedef struct attn_backend_type attn_backend_type; /* attn_backend.h */

/* ---- Options --------------------------------------------------------------------------------- */

/* Types of options; how the host parses the ini's text. */
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
    const char *default_text;     /* as it would stand in the ini; NULL iff REQUIRED, or REPEATED */
                                  /* with nothing by default */
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
    const char *text;  /* as given; made absolute for PATH; never NULL */
    const char *place; /* "file:line", or "default": for messages; never NULL */
} attn_option_value;

/* All values of a backend: each declared option, by default or as given; a REPEATED one as often as
 * it was given, in order. NULL where options are expected means all defaults. */
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

/* Where memory lies. */
enum attn_memory_space {
    ATTN_SPACE_DEVICE = 0, /* the instance's device; host memory on the CPU */
    ATTN_SPACE_PINNED = 1, /* host memory the device can copy from without staging */
    ATTN_SPACE_HOST = 2,
    ATTN_SPACE_COUNT = 3
};

/* One task of a parallel_for. `worker` is in [0, num_workers); no two tasks with the same worker
 * run at once. A status other than ATTN_OK stops tasks that have not begun. */
typedef attn_status (*attn_task)(void *arg, int64_t task, uint32_t worker);

/* A child made by child_create. `type` is the table to call it through: the child's own, or that of
 * a wrapper which the host put in front of it. */
typedef struct attn_child {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const attn_backend_type *type;
    attn_instance *instance; /* the caller's to destroy, through type->ops->destroy */
} attn_child;

/* What a plugin may ask of the host. Services live as long as the instance they were given to;
 * those given to init, until fini. Each call takes `ctx` first. A slot may be NULL where its
 * comment says so. */
typedef struct attn_services {
    uint32_t struct_size;
    uint32_t num_workers; /* threads that parallel_for uses at most, >= 1; constant */
    void *ctx;

    /* Say something to the user. `message` is UTF-8 without a newline, copied. Never NULL.
     * [any-thread] */
    void (*log)(void *ctx, uint32_t level, const char *message);

    /* Open and close a span in the host's trace. `name` is static. (optional) [any-thread] */
    uint64_t (*trace_begin)(void *ctx, const char *name);
    void (*trace_end)(void *ctx, uint64_t span);

    /* Memory for what create sets up; never called in forward. NULL when exhausted; `release`
     * accepts NULL. Alignment is a power of two. Never NULL. [instance-thread & !capturing] */
    void *(*allocate)(void *ctx, uint32_t space, uint64_t size, uint64_t alignment);
    void (*release)(void *ctx, uint32_t space, void *memory);

    /* Run task(arg, 0 .. num_tasks - 1, worker) on the host's pool and wait. The pool is shared by
     * all CPU plugins. Not nestable: BAD_STATE from within a task. The first error wins and is
     * returned. May be called in forward. Never NULL. [instance-thread] */
    attn_status (*parallel_for)(void *ctx, int64_t num_tasks, attn_task task, void *arg);

    /* What query would answer for the child that the backend-ref value `name` stands for. The
     * message of an error begins with the child's name, here and in child_create.
     * NULL unless the type declares a BACKEND_REF option. [any-thread] */
    attn_status (*child_query)(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error);

    /* Make that child for `num_problems` layer groups (array; walk with attn_at()). On success the
     * caller owns *child and must destroy it before it is destroyed itself. NULL unless the type
     * declares a BACKEND_REF option. [instance-thread & !capturing] */
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
