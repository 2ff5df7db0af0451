/* SPDX-License-Identifier: Apache-2.0
 *
 * check_arguments: a command line through the parser that all commands share, as a command with one
 * option of each kind sees it; help; and what ends with which exit code.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/select/open_host.h"
#include "tests/tools/test_main.h"

struct values {
    bool quick;
    const char *text, *device;
    struct text_list names;
    uint64_t number;
    double seconds;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_SWITCH(
        "quick", AT(quick),
        "a switch whose help is so long that it does not fit on one line of a terminal, and so "
        "goes on below where it began"),
    OPTION_ROW_TEXT("text", "TEXT", AT(text), "a text"),
    OPTION_ROW_LIST("name", "NAME", AT(names), "one of many"),
    OPTION_ROW_VALUE("number", "N", AT(number), "a number", OPTION_UINT64),
    OPTION_ROW_VALUE("seconds", "S", AT(seconds), "a time", OPTION_SECONDS),
    OPTION_ROW_VALUE("device", "DEVICE", AT(device), "a device", OPTION_DEVICE),
    {.name = "seed", .value = "N", .kind = OPTION_KEY, .key = "workload.seed"},
    OPTION_ROW_SET,
    OPTION_END,
};

/* What run() was given, as text. */
static char seen[1024];
enum { ENDED = 42 };

static int run(struct arguments *arguments)
{
    const struct values *v = arguments->values;
    int length = snprintf(seen, sizeof seen, "%s|%d|%s|%s|%llu|%g|", arguments->target, v->quick,
                          v->text ? v->text : "-", v->device ? v->device : "-",
                          (unsigned long long)v->number, v->seconds);
    for (size_t n = 0; n < v->names.count; n++)
        length += snprintf(seen + length, sizeof seen - (size_t)length, "%s,", v->names.items[n]);
    for (size_t s = 0; s < arguments->num_sets; s++)
        length += snprintf(seen + length, sizeof seen - (size_t)length, "%s;", arguments->sets[s]);
    return ENDED;
}

static const struct command command = {
    .name = "try",
    .usage = "FILE [OPTION]...\n--quick",
    .names = "file",
    .about = "Tries.\n",
    .options = options,
    .ending = "The end.\n",
    .size = sizeof(struct values),
    .defaults = &(const struct values){.number = 7, .seconds = 1.5},
    .run = run,
};

/* The exit code; what was printed is in `printed`, what was complained about in `complained`. */
static char printed[8192], complained[2048];

static void read_back(int file, int saved, int number, char *text, size_t size)
{
    dup2(saved, number);
    close(saved);
    ssize_t length = pread(file, text, size - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    close(file);
}

static int call(const char *line)
{
    char copy[512], *argv[32], *rest = copy;
    int argc = 0;
    FILE *out = tmpfile(), *err = tmpfile();
    snprintf(copy, sizeof copy, "try%s%s", *line ? " " : "", line);
    while ((argv[argc] = strsep(&rest, " ")))
        argc++;
    seen[0] = '\0';
    fflush(NULL);
    int saved[] = {dup(1), dup(2)};
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    int code = arguments_run(&command, argc, argv);
    fflush(NULL);
    read_back(dup(fileno(out)), saved[0], 1, printed, sizeof printed);
    read_back(dup(fileno(err)), saved[1], 2, complained, sizeof complained);
    fclose(out);
    fclose(err);
    return code;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static const struct {
    const char *line, *seen;
} good[] = {
    {"f", "f|0|-|-|7|1.5|"},
    {"--quick f --text t --number 18446744073709551615", "f|1|t|-|18446744073709551615|1.5|"},
    {"--name a f --name b --name=c", "f|0|-|-|7|1.5|a,b,c,"},
    {"f --seconds 0.25 --device cuda:3", "f|0|-|cuda:3|7|0.25|"},
    {"f --device cpu --device cuda", "f|0|-|cuda|7|1.5|"},
    {"f --seed 5 --set a.b=c --seed=6", "f|0|-|-|7|1.5|workload.seed=5;a.b=c;workload.seed=6;"},
    {"--qu -- --text", "--text|1|-|-|7|1.5|"},
};

LOOP_OF(arguments, what_is_given, 0, COUNT(good))
{
    ck_assert_int_eq(call(good[_i].line), ENDED);
    ck_assert_str_eq(seen, good[_i].seen);
    ck_assert_str_eq(complained, "");
}

static const struct {
    const char *line, *says;
} bad[] = {
    {"", "attnhost try: 0 names given: accepted one file\n`attnhost try --help`"},
    {"a b", "attnhost try: 2 names given: accepted one file\n`attnhost try --help`"},
    {"f --frob", "--frob"},
    {"f --text", "--text"},
    {"f --number -1", "attnhost try: --number '-1': accepted 0..2^64-1"},
    {"f --number 18446744073709551616", "--number '18446744073709551616': accepted"},
    {"f --seconds 0", "--seconds '0': accepted seconds, more than 0, at most 1000000"},
    {"f --seconds nan", "--seconds 'nan': accepted"},
    {"f --device cuda:1024", "--device 'cuda:1024': accepted cpu, cuda, cuda:N"},
    {"f --device cuda:", "--device 'cuda:': accepted"},
    {"f --quick=yes", "--quick"},
};

LOOP_OF(arguments, what_is_refused, 0, COUNT(bad))
{
    ck_assert_int_eq(call(bad[_i].line), EXIT_USAGE);
    ck_assert_msg(strstr(complained, bad[_i].says) != NULL, "%s: %s", bad[_i].line, complained);
    ck_assert_str_eq(seen, "");
    ck_assert_str_eq(printed, "");
}

/* ---- Help ------------------------------------------------------------------------------------ */

LOOP_OF(arguments, help_is_made_from_the_rows, 0, 2)
{
    ck_assert_int_eq(call(_i ? "f --help" : "-h"), EXIT_GOOD);
    ck_assert_str_eq(seen, "");
    ck_assert_str_eq(
        printed, "usage: attnhost try FILE [OPTION]...\n"
                 "       attnhost try --quick\n"
                 "\n"
                 "Tries.\n"
                 "\n"
                 "  --quick                   a switch whose help is so long that it does not fit\n"
                 "                            on one line of a terminal, and so goes on below\n"
                 "                            where it began\n"
                 "  --text TEXT               a text\n"
                 "  --name NAME               one of many\n"
                 "  --number N                a number\n"
                 "  --seconds S               a time\n"
                 "  --device DEVICE           a device\n"
                 "  --seed N                  workload.seed\n"
                 "  --set section.key=value   override any key of the ini; may be repeated\n"
                 "  --help\n"
                 "\n"
                 "The end.\n");
}

/* Names that help lists are those that people type; each row has what help needs. */
TEST_OF(arguments, rows_of_all_commands)
{
#define ADDRESS(name) &command_##name,
    static const struct command *const commands[] = {COMMANDS(ADDRESS)};
    for (size_t c = 0; c < sizeof commands / sizeof *commands; c++) {
        const struct command *own = commands[c];
        ck_assert_msg(own->usage && own->names && own->about && own->ending && own->run, "%s",
                      own->name);
        for (const struct option_row *row = own->options; row->name; row++) {
            const char *name = row->name;
            bool placed = row->kind != OPTION_SET && row->kind != OPTION_KEY;
            ck_assert_msg(row->help || row->key, "%s --%s", own->name, name);
            ck_assert_msg((row->kind == OPTION_SWITCH) == !row->value, "%s --%s", own->name, name);
            ck_assert_msg((row->kind == OPTION_VALUE) == (row->read && row->accepted), "%s --%s",
                          own->name, name);
            ck_assert_msg((row->kind == OPTION_KEY) == (row->key != NULL), "%s --%s", own->name,
                          name);
            ck_assert_msg(!placed || row->place < own->size, "%s --%s", own->name, name);
            for (const struct option_row *other = own->options; other != row; other++)
                ck_assert_msg(strcmp(other->name, name) != 0 &&
                                  (!placed || other->kind == OPTION_SET ||
                                   other->kind == OPTION_KEY || other->place != row->place),
                              "%s --%s", own->name, name);
        }
    }
}

/* ---- Exit codes ------------------------------------------------------------------------------ */

TEST_OF(arguments, exit_codes)
{
    struct session_result before = {.began = false}, after = {.began = true};
    struct session_result passed = {.began = true, .passed = true};
    ck_assert_int_eq(exit_code_of(ATTN_OK), 0);
    ck_assert_int_eq(exit_code_of(ATTN_CONFIG_ERROR), 2);
    ck_assert_int_eq(exit_code_of(OPEN_HOST_REFUSED), 3);
    ck_assert_int_eq(exit_code_of(ATTN_UNSUPPORTED), 4);
    ck_assert_int_eq(exit_code_of(ATTN_DEPENDENCY_MISSING), 4);
    ck_assert_int_eq(exit_code_of(ATTN_OUT_OF_HOST_MEMORY), 5);
    ck_assert_int_eq(exit_code_of_run(ATTN_OK, &passed, 0), 0);
    ck_assert_int_eq(exit_code_of_run(ATTN_OK, &passed, 15), 143);
    ck_assert_int_eq(exit_code_of_run(ATTN_OK, &after, 0), 1);
    ck_assert_int_eq(exit_code_of_run(ATTN_UNSUPPORTED, &before, 0), 4);
    ck_assert_int_eq(exit_code_of_run(ATTN_UNSUPPORTED, &after, 0), 5);
    ck_assert_int_eq(exit_code_of_check(CHECK_GOOD, 0), 0);
    ck_assert_int_eq(exit_code_of_check(CHECK_FAILURES, 0), 1);
    ck_assert_int_eq(exit_code_of_check(CHECK_USAGE, 0), 2);
    ck_assert_int_eq(exit_code_of_check(CHECK_REFUSED, 0), 3);
    ck_assert_int_eq(exit_code_of_check(CHECK_NO_BACKEND, 0), 4);
    ck_assert_int_eq(exit_code_of_check(CHECK_BROKEN, 0), 5);
    ck_assert_int_eq(exit_code_of_check(CHECK_NOTHING, 0), 77);
    ck_assert_int_eq(exit_code_of_check(CHECK_GOOD, 15), 143);
}

TESTS("arguments");
