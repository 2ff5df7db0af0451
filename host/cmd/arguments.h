/* SPDX-License-Identifier: Apache-2.0
 *
 * arguments.h: the command line of any command: its options, which are rows in the command's file,
 * and its positional argument. `--help` is made from the same rows.
 */
#ifndef HOST_CMD_ARGUMENTS_H
#define HOST_CMD_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>

#include "host/base/text.h"
#include "host/config/config.h"

enum option_kind {
    OPTION_SWITCH, /* takes no value; a bool */
    OPTION_TEXT,   /* const char *: the command line's text */
    OPTION_LIST,   /* struct text_list: may be repeated */
    OPTION_VALUE,  /* a value that `read` parses */
    OPTION_SET,    /* section.key=value for the configuration; may be repeated */
    OPTION_KEY     /* a short way to write --set: the value of the key `key` */
};

/* Parse a text into a value; false = malformed. */
typedef bool (*option_read)(const char *text, void *place);

struct option_row {
    const char *name;  /* "json"; NULL = the end of the rows */
    const char *value; /* what help calls its value, "FILE|-"; NULL = it takes none */
    const char *help;  /* broken into lines where it has to be */
    enum option_kind kind;
    size_t place;         /* in the command's values: SWITCH, TEXT, LIST, VALUE */
    const char *key;      /* KEY: "workload.seed" */
    option_read read;     /* VALUE */
    const char *accepted; /* VALUE: "0..2^64-1" */
};

/* The end of a command's rows. */
#define OPTION_END                                                                                 \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* Rows whose values lie at `at` in the command's struct. A switch has no word for its value. */
#define OPTION_ROW_SWITCH(text, at, about)                                                         \
    {                                                                                              \
        .name = text, .kind = OPTION_SWITCH, .place = at, .help = about                            \
    }
#define OPTION_ROW_TEXT(text, word, at, about)                                                     \
    {                                                                                              \
        .name = text, .value = word, .kind = OPTION_TEXT, .place = at, .help = about               \
    }
#define OPTION_ROW_LIST(text, word, at, about)                                                     \
    {                                                                                              \
        .name = text, .value = word, .kind = OPTION_LIST, .place = at, .help = about               \
    }
/* The last argument is OPTION_UINT64 or another pair of .read and .accepted. */
#define OPTION_ROW_VALUE(text, word, at, about, ...)                                               \
    {                                                                                              \
        .name = text, .value = word, .kind = OPTION_VALUE, .place = at, .help = about, __VA_ARGS__ \
    }

/* The same for every command that reads an ini. */
#define OPTION_ROW_SET                                                                             \
    {                                                                                              \
        .name = "set", .value = "section.key=value", .kind = OPTION_SET,                           \
        .help = "override any key of the ini; may be repeated"                                     \
    }

/* Values that several commands take. */
bool option_read_uint64(const char *text, void *place);  /* uint64_t */
bool option_read_seconds(const char *text, void *place); /* double, more than 0, at most 10^6 */
bool option_read_device(const char *text, void *place);  /* const char *: "cpu", "cuda", "cuda:N" */
#define OPTION_ACCEPTS_UINT64  "0..2^64-1"
#define OPTION_ACCEPTS_SECONDS "seconds, more than 0, at most 1000000"
#define OPTION_ACCEPTS_DEVICE  "cpu, cuda, cuda:N"
#define OPTION_UINT64          .read = option_read_uint64, .accepted = OPTION_ACCEPTS_UINT64
#define OPTION_SECONDS         .read = option_read_seconds, .accepted = OPTION_ACCEPTS_SECONDS
#define OPTION_DEVICE          .read = option_read_device, .accepted = OPTION_ACCEPTS_DEVICE

/* Number of positional arguments. */
enum arguments_target { TARGET_ONE, TARGET_AT_MOST_ONE, TARGET_MANY };

struct arguments;

struct command {
    const char *name;    /* "run" */
    const char *summary; /* one line of `attnhost --help`; NULL = internal, not listed */
    const char *usage;   /* "CONFIG.ini [OPTION]..."; a line for each way to call it */
    const char *names;   /* the positional argument, in messages: "CONFIG.ini" */
    enum arguments_target target;
    bool ends_early;                  /* when it is interrupted, with a report (interrupt.h) */
    bool calls_plugins;               /* in this process, which a warden looks after (warden.h) */
    const char *about;                /* help before the options, each line with its '\n' */
    const struct option_row *options; /* until OPTION_END */
    void (*more)(FILE *file); /* help after the options, if it has to be computed; or NULL */
    const char *ending;       /* help at its end: exit codes, examples */
    size_t size;              /* of its values */
    const void *defaults;     /* [size]; NULL = zeros */
    int (*run)(struct arguments *arguments); /* returns the exit code (exit_codes.h); NULL = this
                                                program lacks the command, and `about` says so */
};

struct arguments {
    const struct command *command;
    const char *target; /* the first positional argument; NULL = none */
    char **targets;     /* all of them, in the caller's argv */
    size_t num_targets;
    void *values; /* the command's own struct */
    char **sets;  /* "section.key=value" */
    size_t num_sets;
    char *line; /* the command line, as a shell takes it */
};

/* Read the command line, run the command, release everything: the exit code. argv[0] is "attnhost
 * NAME", as getopt's messages begin with it. */
int arguments_run(const struct command *command, int argc, char **argv);

/* Text of a help: paragraphs are folded to the width of a terminal; lines that begin with a space
 * stay as they are. Each line of it ends with a '\n'. */
void arguments_print_text(FILE *file, const char *text);

/* Is it the file of a plugin: "x.so", "x.py", "module:Class"? */
bool arguments_is_plugin(const char *target);

/* As --set KEY=VALUE does. false when memory ran out. */
bool arguments_set(struct arguments *arguments, const char *key, const char *value);

/* The ini `path` (NULL = none) with the --set of the command line. EXIT_GOOD and *config, the
 * caller's, or an exit code after a line on stderr. */
int arguments_load_config(const struct arguments *arguments, const char *path,
                          struct config **config);

/* "attnhost COMMAND: message" on stderr. */
void arguments_complain(const struct arguments *arguments, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same about the command line itself, with a pointer to --help. EXIT_USAGE. */
int arguments_refuse(const struct arguments *arguments, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif /* HOST_CMD_ARGUMENTS_H */
