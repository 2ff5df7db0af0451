/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: the corpus of one parser, input by input, without libFuzzer, for `make check`.
 *
 *   replay_NAME            all of tests/fuzz/corpus/NAME and the files that are shipped, as TAP
 *   replay_NAME FILE...    these files
 *
 * Inputs are read in a child; where it dies or hangs, the input's name is known, and another child
 * goes on behind it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { MAX_BYTES = 1 << 20, MAX_PATH = 4096, SECONDS_EACH = 20, GIVE_UP = 10 };

struct inputs {
    char **paths;
    int count;
};

static void add_path(struct inputs *inputs, const char *folder, const char *name)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
    char **paths = realloc(inputs->paths, ((size_t)inputs->count + 1) * sizeof *paths);
    if (!paths || !(paths[inputs->count] = strdup(path))) {
        perror(path);
        exit(2);
    }
    inputs->paths = paths;
    inputs->count++;
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int is_shipped(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot &&
           (strcmp(dot, ".ini") == 0 || strcmp(dot, ".json") == 0 || strcmp(dot, ".jsonl") == 0);
}

static void list_folder(struct inputs *inputs, const char *name,
                        int (*select)(const struct dirent *entry))
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    struct dirent **entries = NULL;
    char folder[MAX_PATH];
    snprintf(folder, sizeof folder, "%s/%s", top ? top : ".", name);
    int count = scandir(folder, &entries, select, alphasort);
    for (int i = 0; i < count; i++) {
        add_path(inputs, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (count <= 0) {
        printf("Bail out! %s: %s\n", folder, count ? strerror(errno) : "no input");
        exit(2);
    }
}

/* Every parser gets every file that is shipped: those of other kinds must be refused, no more. */
static void list_all(struct inputs *inputs)
{
    char corpus[MAX_PATH];
    snprintf(corpus, sizeof corpus, "tests/fuzz/corpus/%s", fuzz_name);
    list_folder(inputs, corpus, is_input);
    list_folder(inputs, "examples", is_shipped);
    list_folder(inputs, "examples/models", is_shipped);
    list_folder(inputs, "examples/traces", is_shipped);
    list_folder(inputs, "tests/models", is_shipped);
}

static void read_input(const char *path)
{
    /* Exactly as large as the input, so that a read behind its end is seen. */
    static uint8_t buffer[MAX_BYTES];
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(buffer, 1, sizeof buffer, file) : 0;
    uint8_t *data = malloc(size ? size : 1);
    if (!file || ferror(file) || !data)
        fuzz_fail("%s: %s", path, strerror(errno));
    fclose(file);
    memcpy(data, buffer, size);
    alarm(SECONDS_EACH);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
}

/* Inputs from *done on in a child, which counts in *done what it has read. Its wait status. */
static int read_in_child(const struct inputs *inputs, volatile int *done)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        for (; *done < inputs->count; ++*done)
            read_input(inputs->paths[*done]);
        exit(0); /* not _exit(): leaks are reported at the end */
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

int main(int argc, char **argv)
{
    struct inputs inputs = {0};
    for (int i = 1; i < argc; i++)
        add_path(&inputs, "", argv[i]);
    if (inputs.count == 0)
        list_all(&inputs);
    int *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (done == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    int failed = 0;
    for (*done = 0; *done <= inputs.count && failed < GIVE_UP; ++*done) {
        int status = read_in_child(&inputs, done);
        if (status == 0)
            break;
        const char *path = *done < inputs.count ? inputs.paths[*done] : "the end (leaks)";
        printf("not ok %d - %s: %s: %s %d\n", ++failed, fuzz_name, path,
               WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    if (failed == 0)
        printf("ok 1 - %s: %d inputs\n", fuzz_name, inputs.count);
    printf("1..%d\n", failed ? failed : 1);
    for (int i = 0; i < inputs.count; i++)
        free(inputs.paths[i]);
    free(inputs.paths);
    return failed != 0;
}
