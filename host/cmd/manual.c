/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost manual: man pages, and completion for shells, from the tables that help is made from.
 * `make` runs it; help does not list it.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn_types.h"
#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/cmd/exit_codes.h"
#include "host/base/configured.h"

const char commands_about[] = "attnhost loads attention backends from shared objects and composes "
                              "them as an ini file says.\n";

const char commands_exit_codes[] =
    "exit codes: 0 success; 1 a check or verification failed; 2 usage or configuration; "
    "3 a plugin file is refused; 4 no backend can serve; 5 the run failed, or a plugin ended the "
    "process; 77 nothing could be checked here; 128 + N ended by signal N (130 SIGINT, 143 "
    "SIGTERM, 139 a crash).\n";

#define COMMANDS_ADDRESS(name) &command_##name,
static const struct command *const commands[] = {COMMANDS(COMMANDS_ADDRESS)};
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

struct values {
    const char *man, *completion;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("man", "attnhost|COMMAND", AT(man), "a man page"),
    OPTION_ROW_TEXT("completion", "bash|zsh|fish", AT(completion), "completion of command lines"),
    OPTION_END,
};

/* ---- Man pages ------------------------------------------------------------------------------- */

/* Escape characters that roff would interpret. */
static void put_roff(const char *text, size_t length)
{
    if (length > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", stdout);
    for (size_t i = 0; i < length; i++)
        switch (text[i]) {
        case '\\':
            fputs("\\e", stdout);
            break;
        case '-':
            fputs("\\-", stdout);
            break;
        default:
            putchar(text[i]);
        }
}

static void put_all(const char *text)
{
    put_roff(text, strlen(text));
}

/* Text of a help, as arguments_print_text() has it: lines that begin with a space stay as they are;
 * "examples:" begins a section. */
static void put_text(const char *text)
{
    bool verbatim = false;
    while (*text) {
        size_t length = strcspn(text, "\n");
        bool stays = *text == ' ';
        if (stays != verbatim && length > 0) {
            puts(stays ? ".nf" : ".fi");
            verbatim = stays;
        }
        if (length == 0)
            puts(verbatim ? "" : ".PP");
        else if (length == strlen("examples:") && strncmp(text, "examples:", length) == 0)
            puts(".SH EXAMPLES");
        else
            put_roff(text, length), putchar('\n');
        text += length + (text[length] == '\n');
    }
    if (verbatim)
        puts(".fi");
}

static void put_title(const char *name, const char *summary)
{
    printf(".\\\" Made from the tables of the program.\n.TH ATTNHOST%s", *name ? "\\-" : "");
    for (const char *c = name; *c; c++)
        putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"attnhost " ATTNHOST_VERSION
           "\" \"User Commands\"\n.SH NAME\nattnhost%s%s \\- ",
           *name ? "\\-" : "", name);
    put_all(summary);
    putchar('\n');
}

static void put_option(const struct option_row *row)
{
    fputs(".TP\n\\fB\\-\\-", stdout);
    put_all(row->name);
    fputs("\\fR", stdout);
    if (row->value) {
        fputs(" \\fI", stdout);
        put_all(row->value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_all(row->help ? row->help : row->key);
    putchar('\n');
}

/* The computed part of help, after the options. */
static void put_more(const struct command *command)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = command->more ? open_memstream(&text, &size) : NULL;
    if (!file)
        return;
    command->more(file);
    fclose(file);
    if (text)
        puts(".SH VALUES"), put_text(text);
    free(text);
}

static void put_command(const struct command *command)
{
    put_title(command->name, command->summary);
    puts(".SH SYNOPSIS\n.nf");
    for (const char *line = command->usage; *line;) {
        size_t length = strcspn(line, "\n");
        printf("\\fBattnhost %s\\fR ", command->name);
        put_roff(line, length);
        putchar('\n');
        line += length + (line[length] == '\n');
    }
    puts(".fi\n.SH DESCRIPTION");
    put_text(command->about);
    puts(".SH OPTIONS");
    for (const struct option_row *row = command->options; row->name; row++)
        put_option(row);
    puts(".TP\n\\fB\\-\\-help\\fR\nthe same in short");
    put_more(command);
    puts(".SH EXIT STATUS");
    put_text(command->ending);
    puts(".SH SEE ALSO\n.BR attnhost (1)");
}

static void put_program(void)
{
    put_title("", "attention backends as plugins, composed by an ini file");
    puts(".SH SYNOPSIS\n\\fBattnhost\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...\n.SH DESCRIPTION");
    put_text(commands_about);
    puts(".SH COMMANDS");
    for (int c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary) {
            printf(".TP\n\\fBattnhost\\-%s\\fR(1)\n", commands[c]->name);
            put_all(commands[c]->summary);
            putchar('\n');
        }
    puts(".SH EXIT STATUS");
    put_text(commands_exit_codes);
}

static int print_man(const struct arguments *arguments, const char *name)
{
    for (int c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary && strcmp(commands[c]->name, name) == 0) {
            put_command(commands[c]);
            return EXIT_GOOD;
        }
    if (strcmp(name, "attnhost") != 0)
        return arguments_refuse(arguments, "--man '%.40s': accepted attnhost or a command", name);
    put_program();
    return EXIT_GOOD;
}

/* ---- What completes a value ------------------------------------------------------------------ */

/* "FILE|-", "CONFIG.ini" */
static bool is_file(const struct option_row *row)
{
    return strstr(row->value, "FILE") || strstr(row->value, ".ini") || strstr(row->value, "DIR");
}

/* The words of "auto|cpu|cuda:N" that stand for themselves, each followed by a space. */
static void put_words(const char *value)
{
    for (; *value; value += *value == '|') {
        size_t length = strcspn(value, "|");
        bool plain = strchr(value, '|') || value[length] == '\0';
        for (size_t i = 0; i < length; i++)
            plain &= islower((unsigned char)value[i]) || value[i] == '_' || value[i] == '-';
        if (plain && length > 1)
            printf("%.*s ", (int)length, value);
        value += length;
    }
}

/* In single quotes; `escaped` characters get a backslash. */
static void put_quoted(const char *text, const char *escaped)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(escaped, *text) ? "\\" : "", *text);
}

static const char *help_of(const struct option_row *row)
{
    return row->help ? row->help : row->key;
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void put_bash_values(const struct command *command)
{
    for (const struct option_row *row = command->options; row->name; row++) {
        if (!row->value)
            continue;
        printf("    '%s --%s') ", command->name, row->name);
        if (is_file(row)) {
            fputs("COMPREPLY=($(compgen -f -- \"$cur\"))", stdout);
        } else {
            fputs("COMPREPLY=($(compgen -W '", stdout);
            put_words(row->value);
            fputs("' -- \"$cur\"))", stdout);
        }
        puts("; return ;;");
    }
}

static void put_bash(void)
{
    puts("# bash completion of attnhost; made from the tables of the program.\n"
         "_attnhost()\n{\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
         "    COMPREPLY=()");
    fputs("    local commands='", stdout);
    for (int c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary)
            printf("%s ", commands[c]->name);
    puts("'\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "        COMPREPLY=($(compgen -W \"$commands help --help --version\" -- \"$cur\"))\n"
         "        return\n    fi\n"
         "    case \"${COMP_WORDS[1]} $prev\" in\n"
         "    'help help') COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\")); return ;;");
    for (int c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary)
            put_bash_values(commands[c]);
    puts("    esac\n    case ${COMP_WORDS[1]} in");
    for (int c = 0; c < NUM_COMMANDS; c++) {
        if (!commands[c]->summary)
            continue;
        printf("    %s) words='", commands[c]->name);
        for (const struct option_row *row = commands[c]->options; row->name; row++)
            printf("--%s ", row->name);
        puts("--help' ;;");
    }
    puts("    esac\n    case $cur in\n"
         "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
         "    *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n    esac\n}\n"
         "complete -o filenames -F _attnhost attnhost");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

static void put_zsh_option(const struct option_row *row)
{
    printf(" \\\n        '*--%s[", row->name);
    put_quoted(help_of(row), "[]:\\");
    putchar(']');
    if (row->value) {
        putchar(':');
        put_quoted(row->value, ":\\");
        putchar(':');
        if (is_file(row)) {
            fputs("_files", stdout);
        } else {
            putchar('(');
            put_words(row->value);
            putchar(')');
        }
    }
    putchar('\'');
}

static void put_zsh(void)
{
    puts("#compdef attnhost\n# Made from the tables of the program.\n"
         "local -a commands\ncommands=(");
    for (int c = 0; c < NUM_COMMANDS; c++)
        if (commands[c]->summary) {
            printf("    '%s:", commands[c]->name);
            put_quoted(commands[c]->summary, ":\\");
            puts("'");
        }
    puts(")\nif (( CURRENT == 2 )); then\n    _describe command commands\n    return\nfi\n"
         "local command=$words[2]\nshift words\n(( CURRENT-- ))\ncase $command in");
    for (int c = 0; c < NUM_COMMANDS; c++) {
        if (!commands[c]->summary)
            continue;
        printf("%s)\n    _arguments", commands[c]->name);
        for (const struct option_row *row = commands[c]->options; row->name; row++)
            put_zsh_option(row);
        puts(" \\\n        '--help[help]' '*:file:_files'\n    ;;");
    }
    puts("help) _describe command commands ;;\nesac");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void put_fish_option(const struct command *command, const struct option_row *row)
{
    printf("complete -c attnhost -n '__fish_seen_subcommand_from %s' -l %s", command->name,
           row->name);
    if (row->value && is_file(row)) {
        fputs(" -rF", stdout);
    } else if (row->value) {
        fputs(" -xa '", stdout);
        put_words(row->value);
        putchar('\'');
    }
    fputs(" -d '", stdout);
    for (const char *text = help_of(row); *text; text++)
        printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
    puts("'");
}

static void put_fish(void)
{
    puts("# fish completion of attnhost; made from the tables of the program.");
    for (int c = 0; c < NUM_COMMANDS; c++) {
        if (!commands[c]->summary)
            continue;
        printf("complete -c attnhost -n __fish_use_subcommand -fa %s -d '", commands[c]->name);
        for (const char *text = commands[c]->summary; *text; text++)
            printf("%s%c", *text == '\'' || *text == '\\' ? "\\" : "", *text);
        puts("'");
        for (const struct option_row *row = commands[c]->options; row->name; row++)
            put_fish_option(commands[c], row);
    }
}

/* ---- The command ----------------------------------------------------------------------------- */

static int print_completion(const struct arguments *arguments, const char *shell)
{
    static const struct {
        const char *name;
        void (*put)(void);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t s = 0; s < sizeof shells / sizeof *shells; s++)
        if (strcmp(shell, shells[s].name) == 0) {
            shells[s].put();
            return EXIT_GOOD;
        }
    return arguments_refuse(arguments, "--completion '%.40s': accepted bash, zsh, fish", shell);
}

static int run(struct arguments *arguments)
{
    const struct values *values = arguments->values;
    if (!values->man == !values->completion)
        return arguments_refuse(arguments, "accepted: either --man or --completion");
    return values->man ? print_man(arguments, values->man)
                       : print_completion(arguments, values->completion);
}

const struct command command_manual = {
    .name = "manual",
    .usage = "--man NAME\n--completion SHELL",
    .names = "nothing",
    .target = TARGET_AT_MOST_ONE,
    .about = "Prints a man page, or completion for a shell, from the same tables as the help.\n",
    .options = options,
    .ending = "",
    .size = sizeof(struct values),
    .run = run,
};
