/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h: from the texts of a [backend.NAME] section to the attn_options of a backend type.
 *
 * The plugin declares its options (attn_option); the host parses and checks. The composition checks
 * whether a BACKEND_REF names an existing backend (compose.h).
 */
#ifndef HOST_PLUGIN_OPTIONS_H
#define HOST_PLUGIN_OPTIONS_H

#include "attn_backend.h"

#include <stddef.h>

/* One option as it was written. */
struct options_text {
    const char *key;
    const char *value; /* never NULL */
    const char *place; /* "file:line", "--set" ... */
    const char *base;  /* absolute folder that relative paths are relative to */
};

/* Parsed options. All strings are owned. */
struct options {
    attn_options view; /* what a plugin gets: values in the order of the declarations */

    /* Sentences on deprecated keys that were used. */
    char **warnings;
    size_t num_warnings;

    /* Private state */
    attn_option_value *values;
    char **strings; /* what the values point to */
    size_t num_strings;
};

/* Parse `count` texts against the declarations of `type`, which options_check_type() has found
 * good; `name` is the backend's in messages, and `place` where it is defined (NULL = nowhere).
 * Defaults are filled in. CONFIG_ERROR, in the words "PLACE: backend.NAME.KEY = 'VALUE' ...", for
 * an unknown key (with the nearest one), a key given twice, a value of the wrong type or out of
 * range, a missing required option. */
attn_status options_create(const attn_backend_type *type, const char *name, const char *place,
                           const struct options_text *texts, size_t count, struct options **options,
                           attn_error *error);

/* NULL is accepted. */
void options_destroy(struct options *options);

/* Are the declarations of a type well formed: keys and aliases unique and of [a-z][a-z0-9_]*, types
 * known, choices given, ranges ordered, defaults good? INTERNAL with what is wrong. */
attn_status options_check_type(const attn_backend_type *type, attn_error *error);

/* The accepted values of an option, for `inspect` and messages: "1..1024 tokens", "prefill,
 * decode", "yes, no". Cut to `capacity` bytes. */
void options_accepted(const attn_option *option, char *text, size_t capacity);

/* "int", "size", "backend-ref" ...; "?" for an unknown type. */
const char *options_type_name(uint32_t type);

/* [a-z][a-z0-9_]*, at most 63 characters: names of plugins, their types and options. */
int options_is_name(const char *text);

/* Letters, digits, '_' and '-', 1 to 63 of them: names of users' backends. */
int options_is_backend_name(const char *text);

#endif /* HOST_PLUGIN_OPTIONS_H */
