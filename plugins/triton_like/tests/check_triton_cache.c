/* SPDX-License-Identifier: Apache-2.0
 *
 * check_triton_cache.c: the folder of compiled kernels: what is read is what was written under that
 * key, whatever happened to the files, however many write, whenever one is killed.
 */
#include "tests/tools/test_main.h"
#include "plugins/triton_like/tests/triton_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SMALL = 200, SEAL = 80, LARGE = 100000, KEYS = 3 };

static char folder[MAX_PATH];

static void set_up(void)
{
    make_folder(folder);
}

static void tear_down(void)
{
    remove_folder(folder);
}

static void find(const char *piece, cache_entry *entry)
{
    cache_find(folder, &piece, 1, entry);
    ck_assert_msg(*entry->path, "%s", entry->trouble);
}

/* A binary that follows from its size and a number. */
static void fill(unsigned char *binary, size_t size, unsigned number)
{
    for (size_t i = 0; i < size; i++) {
        number = number * 1664525u + 1013904223u;
        binary[i] = (unsigned char)(number >> 24);
    }
}

static int holds(cache_entry *entry, const unsigned char *binary, size_t size)
{
    size_t got = 0;
    void *data = cache_read(entry, &got);
    int same = data && got == size && memcmp(data, binary, size) == 0;
    free(data);
    return same;
}

/* Nothing, not something else. */
static int is_empty(cache_entry *entry)
{
    size_t size;
    void *data = cache_read(entry, &size);
    free(data);
    return data == NULL;
}

static int count_files(const char *ending)
{
    char names[64][256];
    return list_folder(folder, ending, names, 64);
}

TEST_OF(files, what_is_written_is_read)
{
    unsigned char binary[SMALL], other[SMALL + 1];
    cache_entry entry, another;
    fill(binary, SMALL, 1);
    fill(other, SMALL + 1, 2);
    find("a", &entry);
    find("b", &another);
    ck_assert(is_empty(&entry));
    cache_write(&entry, binary, SMALL);
    ck_assert(holds(&entry, binary, SMALL));
    ck_assert(is_empty(&another));
    ck_assert_str_eq(entry.trouble, "");
    cache_write(&entry, other, SMALL + 1);
    ck_assert(holds(&entry, other, SMALL + 1));
    ck_assert_int_eq(count_files(""), 1);
    /* Tools that read the binary find it at the beginning of the file. */
    size_t size;
    char *file = read_file(entry.path, &size);
    ck_assert_uint_eq(size, SMALL + 1 + SEAL);
    ck_assert_int_eq(memcmp(file, other, SMALL + 1), 0);
    free(file);
}

TEST_OF(files, pieces_are_told_apart)
{
    static const char *const lists[][4] = {{"ab", "c", "", ""}, {"a", "bc", "", ""},
                                           {"abc", "", "", ""}, {"", "abc", "", ""},
                                           {"c", "ab", "", ""}, {"ab", "c", "c", ""}};
    cache_entry entries[12];
    for (int i = 0; i < 12; i++) /* the same with three and with four pieces */
        cache_find(folder, lists[i / 2], 3 + i % 2, &entries[i]);
    for (int i = 0; i < 12; i++)
        for (int other = 0; other < i; other++)
            ck_assert_str_ne(entries[i].path, entries[other].path);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static void put(const char *path, const void *data, size_t size)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, data, size), (ssize_t)size);
    close(file);
}

/* A file with these bytes is not taken. */
static void check_refused(cache_entry *entry, const void *data, size_t size)
{
    put(entry->path, data, size);
    *entry->trouble = '\0';
    if (!is_empty(entry))
        ck_abort_msg("a damaged file of %zu bytes was taken", size);
    if (!strstr(entry->trouble, "was damaged"))
        ck_abort_msg("trouble: '%s'", entry->trouble);
}

/* And the next write puts it right. */
static void check_replaced(cache_entry *entry, const void *data, size_t size)
{
    unsigned char binary[SMALL];
    fill(binary, SMALL, 1);
    check_refused(entry, data, size);
    cache_write(entry, binary, SMALL);
    ck_assert(holds(entry, binary, SMALL));
}

TEST_OF(files, damaged_files_are_not_taken)
{
    unsigned char binary[SMALL], file[SMALL + SEAL + 8] = {0};
    cache_entry entry, another;
    size_t size;
    fill(binary, SMALL, 1);
    find("a", &entry);
    find("b", &another);
    cache_write(&entry, binary, SMALL);
    char *whole = read_file(entry.path, &size);
    ck_assert_uint_eq(size, SMALL + SEAL);
    memcpy(file, whole, size);
    for (size_t length = 0; length < size; length++)
        check_refused(&entry, file, length);
    for (size_t bit = 0; bit < size * 8; bit += 3) {
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
        check_refused(&entry, file, size);
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    check_replaced(&entry, file, size + 8);     /* longer */
    check_replaced(&entry, file + 1, size - 1); /* cut in front */
    check_replaced(&another, file, size);       /* of another key */
    check_replaced(&entry, binary, SMALL);      /* without a seal */
    check_replaced(&entry, binary + SMALL - SEAL, SEAL);
    put(entry.path, file, size);
    ck_assert(holds(&entry, binary, SMALL));
    free(whole);
}

TEST_OF(files, folder_in_the_place_of_a_file)
{
    unsigned char binary[SMALL];
    cache_entry entry;
    fill(binary, SMALL, 1);
    find("a", &entry);
    ck_assert_int_eq(mkdir(entry.path, 0700), 0);
    ck_assert(is_empty(&entry));
    cache_write(&entry, binary, SMALL);
    ck_assert_msg(strstr(entry.trouble, "cannot be written"), "%s", entry.trouble);
    ck_assert(is_empty(&entry));
    ck_assert_int_eq(count_files(""), 1);
}

/* ---- Folders that do not serve --------------------------------------------------------------- */

static void check_unusable(const char *cache_dir, const char *why)
{
    const char *piece = "a";
    cache_entry entry;
    cache_find(cache_dir, &piece, 1, &entry);
    ck_assert_str_eq(entry.path, "");
    ck_assert_msg(strstr(entry.trouble, why), "'%s' has no '%s'", entry.trouble, why);
    cache_write(&entry, "x", 1);
    ck_assert(is_empty(&entry));
}

TEST_OF(files, unusable_folders)
{
    char path[2 * MAX_PATH], deep[2 * MAX_PATH + 8], lengthy[2 * MAX_PATH];
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(deep, sizeof deep, "%s/below", path);
    put(path, "x", 1);
    check_unusable(path, "it is not a folder");
    check_unusable(deep, "Not a directory");
    ck_assert_int_eq(chmod(folder, 0770), 0);
    check_unusable(folder, "others could write to it");
    ck_assert_int_eq(chmod(folder, 0700), 0);
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    check_unusable(lengthy, "too long");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    check_unusable("", "no cache folder");
    setenv("HOME", folder, 1);
    const char *piece = "a";
    cache_entry entry;
    cache_find("", &piece, 1, &entry);
    ck_assert_msg(strstr(entry.path, "/.cache/attnhost/triton_like/"), "%s", entry.trouble);
}

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = {bytes, RLIM_INFINITY}, no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* As a full disk: nothing is left, what was there stays. */
TEST_OF(files, full_disk)
{
    static unsigned char binary[LARGE], before[LARGE];
    cache_entry entry, another;
    fill(binary, LARGE, 1);
    fill(before, LARGE, 2);
    find("a", &entry);
    find("b", &another);
    cache_write(&another, before, LARGE);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < LARGE + SEAL; limit += limit < LARGE ? 20000 : 1) {
        limit_files(limit);
        *entry.trouble = *another.trouble = '\0';
        cache_write(&entry, binary, LARGE);
        cache_write(&another, binary, LARGE);
        limit_files(RLIM_INFINITY);
        ck_assert_msg(strstr(entry.trouble, "File too large"), "%s", entry.trouble);
        ck_assert(is_empty(&entry));
        ck_assert(holds(&another, before, LARGE));
        ck_assert_int_eq(count_files(""), 1);
    }
    limit_files(LARGE + SEAL);
    cache_write(&entry, binary, LARGE);
    ck_assert(holds(&entry, binary, LARGE));
}

/* ---- Killed writers -------------------------------------------------------------------------- */

/* A process that writes and is killed by the system after this many bytes. */
static void write_and_die(cache_entry *entry, const unsigned char *binary, rlim_t bytes)
{
    int status;
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_DFL);
        limit_files(bytes);
        cache_write(entry, binary, LARGE);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ, "status %#x after %llu bytes",
                  (unsigned)status, (unsigned long long)bytes);
}

TEST_OF(files, killed_writers_leave_nothing_that_counts)
{
    static unsigned char binary[LARGE], before[LARGE];
    cache_entry entry, another;
    int killed = 0;
    fill(binary, LARGE, 1);
    fill(before, LARGE, 2);
    find("a", &entry);
    find("b", &another);
    cache_write(&another, before, LARGE);
    for (rlim_t bytes = 0; bytes < LARGE + SEAL; bytes += bytes < LARGE ? 12500 : 7, killed += 2) {
        write_and_die(&entry, binary, bytes);
        write_and_die(&another, binary, bytes);
        ck_assert(is_empty(&entry));
        ck_assert_str_eq(entry.trouble, "");
        ck_assert(holds(&another, before, LARGE));
    }
    ck_assert_int_eq(count_files(".cubin"), 1);
    ck_assert_int_eq(count_files(""), 1 + killed);
}

/* What they leave goes an hour later; what is being written stays, and what is none of ours. */
TEST_OF(files, old_remains_are_removed)
{
    char names[64][256], path[MAX_PATH + 300];
    static unsigned char binary[LARGE];
    cache_entry entry;
    struct timeval old[2];
    fill(binary, LARGE, 1);
    find("a", &entry);
    write_and_die(&entry, binary, 1000);
    write_and_die(&entry, binary, 2000);
    put(strcat(strcpy(path, folder), "/somebody.else"), "x", 1);
    gettimeofday(&old[0], NULL);
    old[0].tv_sec -= 3700;
    old[1] = old[0];
    utimes(path, old);
    ck_assert_int_eq(list_folder(folder, "", names, 64), 3);
    /* "somebody.else" is the last; one of the other two is old. */
    strcat(strcat(strcpy(path, folder), "/"), names[0]);
    utimes(path, old);
    cache_write(&entry, binary, LARGE);
    ck_assert(holds(&entry, binary, LARGE));
    ck_assert_int_eq(count_files(".cubin"), 1);
    ck_assert_int_eq(count_files(".else"), 1);
    ck_assert_int_eq(count_files(""), 3);
}

/* ---- Many processes -------------------------------------------------------------------------- */

/* Read, and write what is missing, until killed; a vandal damages files in their place. 1 = has
 * read what was not written. */
static int work(int number, int rounds)
{
    static unsigned char binary[KEYS][LARGE];
    static const char *const pieces[KEYS] = {"a", "b", "c"};
    unsigned state = (unsigned)number * 7919u + 1;
    for (int key = 0; key < KEYS; key++)
        fill(binary[key], LARGE, (unsigned)key);
    for (int i = 0; i < rounds; i++) {
        cache_entry entry;
        size_t size = 0;
        state = state * 1664525u + 1013904223u;
        int key = (int)(state >> 16) % KEYS;
        cache_find(folder, &pieces[key], 1, &entry);
        void *data = cache_read(&entry, &size);
        if (data && (size != LARGE || memcmp(data, binary[key], LARGE) != 0))
            return 1;
        if (!data || state >> 28 == 0)
            cache_write(&entry, binary[key], LARGE);
        if (number == 0 && state >> 30 == 0) {
            int file = open(entry.path, O_WRONLY);
            if (file >= 0 && pwrite(file, "vandal", 6, (off_t)(state >> 8) % LARGE) != 6)
                return 2;
            if (file >= 0 && state >> 29 == 0 && ftruncate(file, (off_t)(state >> 8) % LARGE) != 0)
                return 3;
            close(file);
        }
        free(data);
    }
    return 0;
}

static pid_t start(int number, int rounds)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(work(number, rounds));
    return child;
}

/* Eight processes on the same three files, one of which breaks them, some of which are killed. */
TEST_OF(files, processes_share_a_folder)
{
    pid_t children[8], victims[8];
    int status;
    for (int i = 0; i < 8; i++)
        children[i] = start(i, 200);
    for (int i = 0; i < 24; i++) {
        victims[i % 8] = start(1000 + i, 1000000);
        usleep(3000 + 997 * (unsigned)i);
        kill(victims[i % 8], SIGKILL);
        ck_assert_int_eq(waitpid(victims[i % 8], &status, 0), victims[i % 8]);
        ck_assert_msg(WIFSIGNALED(status), "a victim ended by itself: %#x", (unsigned)status);
    }
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: %#x", i,
                      (unsigned)status);
    }
    ck_assert_int_eq(work(2000, 200), 0); /* nothing breaks any more */
    ck_assert_int_eq(count_files(".cubin"), KEYS);
    for (int key = 0; key < KEYS; key++) {
        static unsigned char binary[LARGE];
        const char *piece = (const char *[]){"a", "b", "c"}[key];
        cache_entry entry;
        fill(binary, LARGE, (unsigned)key);
        cache_find(folder, &piece, 1, &entry);
        ck_assert(holds(&entry, binary, LARGE));
    }
}

GROUP(files, .set_up = set_up, .tear_down = tear_down);
TESTS("triton_cache");
