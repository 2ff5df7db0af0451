/* SPDX-License-Identifier: Apache-2.0
 *
 * keys.h: the table of all keys of the ini, and the types of their values.
 *
 * Private to config/, rules_read.c, which has its own table, and platform.c. A row says where a
 * value goes (offset in struct config) and which kind of value it is; the kind knows how to parse,
 * free and describe it. */
#ifndef HOST_CONFIG_KEYS_H
#define HOST_CONFIG_KEYS_H

#include "host/config/config.h"
#include "host/base/text.h"

/* A word and what it stands for; lists of choices end with a NULL name. */
struct config_choice {
    const char *name;
    int64_t value;
};

/* What a parser knows of a value besides its text. */
struct config_value {
    const char *text;
    const char *base;  /* directory of relative paths */
    const char *place; /* outlives what is parsed */
    int64_t number;    /* <n> of a numbered key, CONFIG_LAYER_* of one by layer type */
};

struct config_key;

/* A type of values. */
struct config_kind {
    /* Parse into *member, which is zero, or holds earlier values of a repeatable or numbered key.
     * Returns NULL, text_out_of_memory, or a static predicate such as "is not an integer". On
     * failure *member is as before, or can still be finished. */
    const char *(*parse)(const struct config_key *key, const struct config_value *value,
                         void *member);
    /* Free what *member owns and zero it. NULL = the type owns nothing. */
    void (*finish)(void *member);
    /* Append what is accepted: "an integer from 1 to 8". */
    void (*accepted)(const struct config_key *key, strbuf *text);
    bool is_path; /* the text starts with a path, which config_path() makes absolute */
};

enum {
    CONFIG_REPEATABLE = 1 << 0,
    CONFIG_NUMBERED = 1 << 1,
    CONFIG_ABOVE_MIN = 1 << 2,
    CONFIG_BY_LAYER_TYPE = 1 << 3, /* the member is an array with an element for each type */
    CONFIG_OR_ZERO = 1 << 4        /* 0 is accepted, too */
};

struct config_key {
    const char *section;
    const char *name; /* numbered: "route.<n>"; by layer type: "<layer_type>.head_dim" */
    const struct config_kind *kind;
    size_t offset;            /* in struct config */
    const char *default_text; /* as it would stand in the ini; "" = not given, the member is 0 */
    double min, max;          /* numbers: inclusive, unless CONFIG_ABOVE_MIN */
    const struct config_choice *choices; /* words */
    unsigned flags;                      /* CONFIG_REPEATABLE ... */
    const char *help;
};

/* A value that was given. Overridden ones are not kept. */
struct config_entry {
    const struct config_key *key;
    int64_t number;   /* <n> of a numbered key, CONFIG_LAYER_* of one by layer type, else 0 */
    char *name;       /* "section.key" */
    char *value;      /* as it was written */
    char *place;      /* "file:line" or "--set" */
    const char *base; /* directory of a relative path */
    bool from_set;
};

/* Where the value that is being taken stands. */
struct config_source {
    struct config *config;
    const char *base; /* directory of relative paths */
    char *place;      /* "file:line" or "--set" */
    int line;         /* 0 for --set */
};

extern const struct config_key config_keys[];
extern const size_t config_num_keys;

/* One more zeroed element of `size` bytes at the end of the array that *items_pointer, a pointer to
 * the elements, points to. NULL when memory ran out. */
void *config_add_item(void *items_pointer, size_t *count, size_t size);

/* config/value_types.c, config/numbered.c */
extern const struct config_kind config_kind_int, config_kind_uint64, config_kind_double,
    config_kind_bool, config_kind_choice, config_kind_dtype, config_kind_word, config_kind_path,
    config_kind_words, config_kind_paths, config_kind_ranges, config_kind_doubles,
    config_kind_pattern, config_kind_set, config_kind_device, config_kind_pin, config_kind_route,
    config_kind_text, config_kind_names, config_kind_ints_by_type, config_kind_doubles_by_type,
    config_kind_bools_by_type, config_kind_dtypes_by_type;

enum {
    CONFIG_MAX_KEYS = 128,
    CONFIG_MEMBER_SIZE = 64,      /* no member of the table is larger */
    CONFIG_MAX_NUMBER = 9999,     /* of <n> */
    CONFIG_MAX_LINE = 64 << 10,   /* bytes of a line, its end not counted */
    CONFIG_MAX_SECTION = 49,      /* bytes of a section's name that inih keeps */
    CONFIG_MAX_BACKEND_NAME = 41, /* so that [backend.NAME] fits a section */
    /* Both are searched from the start; the bounds keep a mistaken file from taking minutes. */
    CONFIG_MAX_BACKENDS = 256, /* sections */
    CONFIG_MAX_VALUES = 16384  /* outside of them */
};

/* The row of [section] name, with its <n> or layer type in *number; NULL if there is none. */
const struct config_key *config_key_find(const char *section, const char *name, int64_t *number);

/* The names of all sections, or of the keys of `section`, in the table's order, into
 * names[0..CONFIG_MAX_KEYS). Returns their number. */
size_t config_key_names(const char *section, const char *names[CONFIG_MAX_KEYS]);

/* A word of letters, digits, '_', '-' and '.', at least one byte. */
bool config_is_word(const char *text);

/* OUT_OF_HOST_MEMORY with its message. */
attn_status config_no_memory(attn_error *error);

/* "PLACE: SECTION.KEY = 'VALUE' PROBLEM; accepted: ...": CONFIG_ERROR. */
attn_status config_bad_value(const char *section, const struct config_key *key,
                             const struct config_value *value, const char *problem,
                             attn_error *error);

/* Append ", did you mean 'x'? accepted: x, y, z"; `quotes` stand around x. */
void config_append_accepted(strbuf *text, const char *word, const char *const *names, size_t count,
                            const char *quotes);

/* ---- config/backends.c ----------------------------------------------------------------------- */

/* NAME of the section "backend.NAME"; NULL when it is no such section or NAME is not allowed. */
const char *config_backend_section(const char *section);

/* The backend of that name, added if it is new: CONFIG_ERROR when there are too many. */
attn_status config_backend_require(const struct config_source *source, const char *name,
                                   struct config_backend **backend, attn_error *error);

/* Keep `key = text` of [backend.name]. */
attn_status config_backend_take(const struct config_source *source, const char *name,
                                const char *key, const char *text, attn_error *error);

/* Where "backend.NAME.key" was given first, or NULL. */
const char *config_backends_place(const struct config_backends *list, const char *key);

void config_backends_finish(struct config_backends *list);

#endif /* HOST_CONFIG_KEYS_H */
