/* SPDX-License-Identifier: Apache-2.0
 *
 * child_private.h: shared by the files child*.c.
 */
#ifndef HOST_CHECK_SUITE_CHILD_PRIVATE_H
#define HOST_CHECK_SUITE_CHILD_PRIVATE_H

#include "host/plugin/process_state.h"
#include "host/check/cases/layout_converter.h"
#include "host/check/check.h"
#include "host/check/cases/process_resources.h"
#include "host/check/suite/child.h"
#include "host/base/error.h"

/* A backend of the plugin, made when it is asked for first. */
struct child_subject {
    const attn_backend_type *type;
    size_t num_options; /* that --option gives it */
    struct compose_node *node;
    struct device *device, *cpu; /* `device` may be `cpu` */
    host_error missing;          /* why it is, if it was not wanted; "" */
    bool made;                   /* `outcome` and `error` are the result */
    enum check_outcome outcome;  /* CHECK_GOOD, or why there is no subject */
    host_error error;
    struct grid *grid;                 /* of the numerics, kept between cases */
    uint32_t linear_families;          /* the same of linear layers */
    struct layout_converter converter; /* of a backend without a KV layout of the ABI's */
    struct check_subject view;
};

struct check_child {
    const struct check_params *params;
    struct check_trail *trail;
    attnhost *host;
    struct process_resources unloaded, loaded; /* before the plugin was loaded, and after */
    uint32_t plugin;                           /* its index, once it is open */
    char *file;                                /* absolute */
    struct child_subject *subjects;
    uint32_t num_subjects;
    struct check_subject file_view; /* for checks about the file */
    struct process_state before;    /* the question that is being answered */
};

/* Load the plugin and those of --with, define the backends with their options. */
enum check_outcome child_open(struct check_child *child, host_error *error);

/* Is an option of the command line for a child, `NAME.KEY=VALUE`? (child_named.c) */
bool child_option_is_named(const char *option);

/* Define all such names; `stand_in` is the type of children that the suite makes (NULL = none).
 * CONFIG_ERROR for a name that is no backend, or lacks the option. */
attn_status child_define_named(struct check_child *child, const char *stand_in, attn_error *error);

/* The subject of this backend on this device ("cpu", "cuda:1"; "auto": one that it serves). NULL if
 * the plugin has no such backend; look at its `outcome`. */
struct child_subject *child_subject(struct check_child *child, const char *backend,
                                    const char *device);

/* Close all subjects and the host. */
void child_close(struct check_child *child);

/* "cpu", "cuda:1". */
void child_device_text(const struct device *device, char text[16]);

#endif /* HOST_CHECK_SUITE_CHILD_PRIVATE_H */
