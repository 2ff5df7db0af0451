/* SPDX-License-Identifier: Apache-2.0
 *
 * check_limits.c: the processors and the memory that cgroups and the machine grant, from folders and files like theirs.
 */
#include "host/base/limits.h"

#include "tests/tools/test_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILES = 6 };

struct named_text {
    const char *name, *text;
};

static char tree[64], membership[128];

static void write_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", tree, name);
    for (char *slash = path + strlen(tree) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void make_tree(const char *groups, const struct named_text *files)
{
    strcpy(tree, "/tmp/check_limits_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(tree));
    snprintf(membership, sizeof membership, "%s/membership", tree);
    write_file("membership", groups);
    for (int i = 0; i < MAX_FILES && files[i].name; i++)
        write_file(files[i].name, files[i].text);
}

static void remove_tree(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", tree);
    ck_assert_int_eq(system(command), 0);
}

static const struct {
    const char *groups;
    struct named_text files[MAX_FILES];
    uint32_t cpus;
} quotas[] = {
    {"0::/a/b\n", {{"a/b/cpu.max", "50000 100000\n"}}, 1},
    {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}}, 0},
    {"0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}, {"a/cpu.max", "250000 100000\n"}}, 2},
    {"0::/a/b\n", {{"a/b/cpu.max", "900000 100000\n"}, {"a/cpu.max", "400000 100000\n"}}, 4},
    {"0::/not/mounted\n", {{"cpu.max", "300000 100000\n"}}, 3},
    {"0::/ab\n", {{"a/cpu.max", "300000 100000\n"}}, 0},
    {"5:cpu,cpuacct:/d\n4:memory:/d\n",
     {{"cpu/d/cpu.cfs_quota_us", "400000\n"}, {"cpu/d/cpu.cfs_period_us", "100000\n"}},
     4},
    {"5:cpuset:/d\n",
     {{"cpu/d/cpu.cfs_quota_us", "400000\n"}, {"cpu/d/cpu.cfs_period_us", "1\n"}},
     0},
    {"5:cpu:/d\n", {{"cpu/d/cpu.cfs_quota_us", "-1\n"}, {"cpu/d/cpu.cfs_period_us", "1\n"}}, 0},
    {"broken\n", {{"cpu.max", "100000 100000\n"}}, 0},
};

LOOP_OF(limits, quotas_are_read, 0, COUNT(quotas))
{
    make_tree(quotas[_i].groups, quotas[_i].files);
    uint32_t cpus = limits_cpus(membership, tree);
    remove_tree();
    ck_assert_uint_eq(cpus, quotas[_i].cpus);
    ck_assert_uint_eq(limits_cpus(membership, tree), 0); /* no such file */
}

/* What is used and cached counts as free; a limit that is exceeded, as while it is lowered, leaves nothing. */
static const struct {
    const char *groups;
    struct named_text files[MAX_FILES];
    uint64_t bytes;
} memories[] = {
    {"0::/a\n", {{"a/memory.max", "5000\n"}, {"a/memory.current", "1000\n"}}, 4000},
    {"0::/a\n", {{"a/memory.max", "max\n"}, {"a/memory.current", "1000\n"}}, UINT64_MAX},
    {"0::/a\n", {{"a/memory.max", "1000\n"}, {"a/memory.current", "1001\n"}}, 0},
    {"0::/a\n", {{"a/memory.max", "5000\n"}}, UINT64_MAX},
    {"0::/a\n",
     {{"a/memory.max", "5000\n"},
      {"a/memory.current", "3000\n"},
      {"a/memory.stat",
       "anon 700\nfile 2000\ninactive_anon 9\ninactive_file 300\nactive_file 40\n"}},
     2340},
    {"0::/a/b\n",
     {{"a/b/memory.max", "9000\n"},
      {"a/b/memory.current", "1000\n"},
      {"a/memory.max", "6000\n"},
      {"a/memory.current", "4000\n"}},
     2000},
    {"0::/not/mounted\n", {{"memory.max", "700\n"}, {"memory.current", "500\n"}}, 200},
    {"5:cpu:/c\n4:memory:/d\n",
     {{"memory/d/memory.limit_in_bytes", "5000\n"},
      {"memory/d/memory.usage_in_bytes", "3000\n"},
      {"memory/d/memory.stat",
       "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 40\n"}},
     2340},
    {"4:memory:/d\n",
     {{"memory/d/memory.limit_in_bytes", "9223372036854771712\n"},
      {"memory/d/memory.usage_in_bytes", "3000\n"}},
     9223372036854768712u},
    {"5:cpu:/d\n",
     {{"memory/d/memory.limit_in_bytes", "5000\n"}, {"memory/d/memory.usage_in_bytes", "3000\n"}},
     UINT64_MAX},
};

LOOP_OF(limits, memory_is_read, 0, COUNT(memories))
{
    make_tree(memories[_i].groups, memories[_i].files);
    uint64_t bytes = limits_memory(membership, tree);
    remove_tree();
    ck_assert_uint_eq(bytes, memories[_i].bytes);
    ck_assert_uint_eq(limits_memory(membership, tree), UINT64_MAX); /* no such file */
}

/* What files occupy in the cache of pages is available, though it is not free. */
TEST_OF(limits, memory_of_the_machine)
{
    static const struct named_text files[MAX_FILES] = {
        {"meminfo",
         "MemTotal: 24000 kB\nMemFree:  100 kB\nMemAvailable:  20000 kB\nBuffers: 1 kB\n"},
        {"old", "MemTotal: 24000 kB\nMemFree:  100 kB\n"}};
    char path[128];
    make_tree("", files);
    snprintf(path, sizeof path, "%s/meminfo", tree);
    ck_assert_uint_eq(limits_machine_memory(path), 20000 << 10);
    snprintf(path, sizeof path, "%s/old", tree);
    ck_assert_uint_eq(limits_machine_memory(path), UINT64_MAX);
    remove_tree();
    ck_assert_uint_eq(limits_machine_memory(path), UINT64_MAX);
}

TESTS("limits");
