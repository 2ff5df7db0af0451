/* SPDX-License-Identifier: Apache-2.0
 *
 * Loader and registry, against real files: good ones, and one for each thing that can be wrong.
 */
#define _GNU_SOURCE /* unshare() */
#include "host/plugin/answer.h"
#include "host/plugin/loader.h"
#include "host/plugin/registry.h"

#include "host/base/error.h"
#include "tests/fixtures/fixture.h"
#include "tests/tools/test_main.h"

#include <nettle/sha2.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char fixtures[4096];
static char folder[64]; /* a new one for each test */
static host_error error;
static struct registry registry;

static const char *join(const char *directory, const char *name)
{
    static char paths[4][4400];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static const char *fixture(const char *name)
{
    char file[128];
    snprintf(file, sizeof file, "%s.so", name);
    return join(fixtures, file);
}

static void setup(void)
{
    const char *built = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    ck_assert_msg(built && realpath(built, fixtures), "ATTNHOST_TEST_FIXTURE_DIR is not set");
    strcpy(folder, "/tmp/check_loader.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    host_error_init(&error);
    registry_init(&registry);
}

static void teardown(void)
{
    char command[128];
    registry_finish(&registry);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static void write_file(const char *path, const void *content, size_t length)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(content, 1, length, file), length);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0644), 0);
}

static uint8_t content[1 << 20];

static size_t read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(content, 1, sizeof content, file);
    fclose(file);
    ck_assert_uint_gt(length, 0);
    return length;
}

/* A copy of a fixture in the test's folder. */
static const char *copy_fixture(const char *name, const char *as)
{
    size_t length = read_file(fixture(name));
    const char *path = join(folder, as);
    write_file(path, content, length);
    return path;
}

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(host_error_text(&error), part) != NULL, "'%s' is not in '%s'", part,
                  host_error_text(&error));
}

/* Load a file that must be refused and stay on record with the same words. */
static void assert_refused(const char *file, attn_status status, const char *part)
{
    uint32_t before = registry.num_plugins, types = registry.num_types;
    host_error_init(&error);
    ck_assert_int_eq(registry_load_file(&registry, file, &error.base), status);
    ck_assert_int_eq(error.base.code, status);
    assert_says(part);
    assert_says(strrchr(file, '/') + 1);
    ck_assert_uint_eq(registry.num_plugins, before + 1);
    ck_assert_uint_eq(registry.num_types, types);
    ck_assert_int_eq(registry.plugins[before]->status, status);
    ck_assert_str_eq(registry.plugins[before]->reason, host_error_text(&error));
    ck_assert_uint_eq(registry.plugins[before]->num_types, 0);
}

TEST_OF(loader, good)
{
    ck_assert_int_eq(registry_load_file(&registry, fixture("fixture_good"), &error.base), ATTN_OK);
    ck_assert_uint_eq(registry.num_plugins, 1);
    ck_assert_uint_eq(registry.num_types, 2);
    const struct loader_plugin *plugin = registry.plugins[0];
    ck_assert_int_eq(plugin->status, ATTN_OK);
    ck_assert_str_eq(plugin->reason, "");
    ck_assert_str_eq(plugin->file, fixture("fixture_good"));
    ck_assert_str_eq(plugin->table.name, "fixture_good");
    ck_assert_str_eq(plugin->table.version, "1.2.3");
    ck_assert_uint_eq(plugin->table.abi_major, ATTN_ABI_MAJOR);
    ck_assert_str_eq(registry_find(&registry, "fixture_two")->type->name, "fixture_two");
    ck_assert_ptr_eq(registry_find(&registry, "fixture_two")->plugin, plugin);
    ck_assert_ptr_null(registry_find(&registry, "fixture_tw"));
    ck_assert_ptr_eq(registry_find_plugin(&registry, "fixture_good"), plugin);
    ck_assert_ptr_eq(registry_find_plugin(&registry, "fixture_good.so"), plugin);
    ck_assert_ptr_eq(registry_find_plugin(&registry, fixture("fixture_good")), plugin);
    ck_assert_ptr_null(registry_find_plugin(&registry, "fixture_goo"));
}

TEST_OF(loader, loading_twice_is_loading_once)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    ck_assert_int_eq(registry_load_file(&registry, copy, NULL), ATTN_OK);
    ck_assert_int_eq(symlink(copy, join(folder, "link.so")), 0);
    ck_assert_int_eq(registry_load_file(&registry, join(folder, "link.so"), NULL), ATTN_OK);
    ck_assert_int_eq(registry_load_file(&registry, join(folder, "./good.so"), NULL), ATTN_OK);
    ck_assert_uint_eq(registry.num_plugins, 1);
    ck_assert_str_eq(registry.plugins[0]->file, copy);
}

TEST_OF(loader, not_a_plugin)
{
    write_file(join(folder, "text.so"), "hello, world\n", 13);
    assert_refused(join(folder, "text.so"), ATTN_INVALID_ARGUMENT, "not an ELF file");
    assert_says("68 65 6c 6c"); /* hell */
    write_file(join(folder, "empty.so"), "", 0);
    assert_refused(join(folder, "empty.so"), ATTN_INVALID_ARGUMENT, "not an ELF file");
    size_t length = read_file(fixture("fixture_good"));
    ck_assert_uint_gt(length, 8192);
    write_file(join(folder, "half.so"), content, 5000); /* within the second segment */
    assert_refused(join(folder, "half.so"), ATTN_INVALID_ARGUMENT, "is cut off");
    write_file(join(folder, "head.so"), content, 32);
    assert_refused(join(folder, "head.so"), ATTN_INVALID_ARGUMENT, "is cut off");
    content[4] = content[4] == 1 ? 2 : 1; /* the other word size */
    write_file(join(folder, "class.so"), content, length);
    assert_refused(join(folder, "class.so"), ATTN_INVALID_ARGUMENT, "for another machine");
    read_file(fixture("fixture_good"));
    content[18] ^= 0x55; /* e_machine */
    write_file(join(folder, "machine.so"), content, length);
    assert_refused(join(folder, "machine.so"), ATTN_INVALID_ARGUMENT, "for another machine");
    read_file(fixture("fixture_good"));
    content[16] = 1; /* e_type: relocatable */
    write_file(join(folder, "object.so"), content, length);
    assert_refused(join(folder, "object.so"), ATTN_INVALID_ARGUMENT, "accepted: a shared object");
    assert_refused(fixture("fixture_no_entry"), ATTN_INVALID_ARGUMENT,
                   "no symbol attn_plugin_entry");
}

TEST_OF(loader, not_a_regular_file)
{
    assert_refused(join(folder, "missing.so"), ATTN_INVALID_ARGUMENT, "No such file");
    ck_assert_int_eq(mkdir(join(folder, "folder.so"), 0755), 0);
    assert_refused(join(folder, "folder.so"), ATTN_INVALID_ARGUMENT, "not a regular file");
    ck_assert_int_eq(mkfifo(join(folder, "pipe.so"), 0644), 0);
    assert_refused(join(folder, "pipe.so"), ATTN_INVALID_ARGUMENT, "not a regular file");
    ck_assert_int_eq(symlink(join(folder, "nowhere"), join(folder, "dangling.so")), 0);
    assert_refused(join(folder, "dangling.so"), ATTN_INVALID_ARGUMENT, "No such file");
}

/* Run the compiler: an object that exports nothing, but needs fixture_good. */
static void link_borrowed(const char *path)
{
    char command[16384];
    const char *compiler = getenv("CC");
    snprintf(command, sizeof command,
             "printf 'extern int nothing;\n' | %s -x c -shared -fPIC -o '%s' - -x none "
             "-Wl,--no-as-needed -Wl,-rpath,'%s' '%s'",
             compiler ? compiler : "cc", path, fixtures, fixture("fixture_good"));
    ck_assert_int_eq(system(command), 0);
}

TEST_OF(loader, entry_of_another_object)
{
    const char *path = join(folder, "borrowed.so");
    link_borrowed(path);
    ck_assert_int_eq(chmod(path, 0755), 0);
    assert_refused(path, ATTN_INVALID_ARGUMENT, "no symbol attn_plugin_entry of its own");
}

TEST_OF(loader, missing_library)
{
    char command[16384];
    const char *copy = copy_fixture("fixture_good", "libneeded.so"), *path;
    path = join(folder, "orphan.so");
    snprintf(command, sizeof command,
             "printf 'extern int nothing;\n' | %s -x c -shared -fPIC -o '%s' - -x none "
             "-Wl,--no-as-needed '%s'",
             getenv("CC") ? getenv("CC") : "cc", path, copy);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ck_assert_int_eq(unlink(copy), 0);
    assert_refused(path, ATTN_DEPENDENCY_MISSING, "cannot be loaded: ");
    assert_says("cannot open shared object file");
    ck_assert_ptr_null(strchr(host_error_text(&error), '\n'));
}

static bool map_user(unsigned user)
{
    char text[64];
    FILE *map = fopen("/proc/self/uid_map", "w");
    snprintf(text, sizeof text, "%u %u 1", user, user);
    bool written = map && fputs(text, map) >= 0;
    return map && fclose(map) == 0 && written;
}

/* A file system without programs over `folder`, for this process alone. */
static bool mount_noexec(void)
{
    unsigned user = geteuid();
    bool apart =
        unshare(CLONE_NEWNS) == 0 || (unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && map_user(user));
    return apart && mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", folder, "tmpfs", MS_NOEXEC, "mode=0755") == 0;
}

enum { SAYS_NOEXEC = 0, SAYS_ANOTHER = 1, NOT_PERMITTED = 77 };

static int load_from_noexec(void)
{
    char command[9000];
    const char *path = join(folder, "good.so");
    if (!mount_noexec())
        return NOT_PERMITTED;
    snprintf(command, sizeof command, "cp '%s' '%s' && chmod 0755 '%s'", fixture("fixture_good"),
             path, path);
    if (system(command) != 0)
        return SAYS_ANOTHER;
    attn_status status = registry_load_file(&registry, path, &error.base);
    if (status == ATTN_DEPENDENCY_MISSING && strstr(host_error_text(&error), "mounted noexec"))
        return SAYS_NOEXEC;
    fprintf(stderr, "# %d: %s\n", status, host_error_text(&error));
    return SAYS_ANOTHER;
}

TEST_OF(loader, on_a_file_system_without_programs)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(load_from_noexec());
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_PERMITTED)
        puts("# a file system without programs: skipped, no process may mount one here");
    else
        ck_assert_int_eq(WEXITSTATUS(status), SAYS_NOEXEC);
}

TEST_OF(loader, versions)
{
    assert_refused(fixture("fixture_other_major"), ATTN_INCOMPATIBLE_VERSION,
                   "ABI major 4242 is needed");
    assert_says("accepted: 0..0");
    assert_refused(fixture("fixture_forced_major"), ATTN_INCOMPATIBLE_VERSION,
                   "chose ABI major 4242; accepted: 0..0");
    assert_refused(fixture("bad_entry_older"), ATTN_INCOMPATIBLE_VERSION,
                   "bad_entry_older.so: it is built for ABI 0.1; accepted: 0.2");
}

TEST_OF(loader, bad_tables)
{
    assert_refused(fixture("fixture_null_string"), ATTN_INTERNAL, "attn_plugin.vendor is NULL");
    assert_refused(fixture("fixture_describe_fails"), ATTN_INTERNAL,
                   "backend 1 of 2: describe failed: the table is torn");
    assert_refused(fixture("fixture_bad_option"), ATTN_INTERNAL,
                   "backend type fixture_option_bad: option block has a default that is not");
}

TEST_OF(loader, names_that_are_taken)
{
    assert_refused(fixture("fixture_same_name"), ATTN_CONFIG_ERROR,
                   "backend types 0 and 1 are both named fixture_same");
    ck_assert_int_eq(registry_load_file(&registry, fixture("fixture_good"), NULL), ATTN_OK);
    assert_refused(fixture("fixture_taken_name"), ATTN_CONFIG_ERROR,
                   "backend type fixture_two is already provided by");
    assert_says("/fixture_good.so; accepted");
    ck_assert_str_eq(registry_find(&registry, "fixture_two")->plugin->table.name, "fixture_good");
    /* Asking again gives the same answer, and no second record. */
    uint32_t count = registry.num_plugins;
    ck_assert_int_eq(registry_load_file(&registry, fixture("fixture_taken_name"), NULL),
                     ATTN_CONFIG_ERROR);
    ck_assert_uint_eq(registry.num_plugins, count);
}

/* ---- Trust ----------------------------------------------------------------------------------- */

/* A folder above may be sticky, which its own may not. */
TEST_OF(loader, folders_above)
{
    char below[96], copy[128];
    snprintf(below, sizeof below, "%s/below", folder);
    snprintf(copy, sizeof copy, "%s/good.so", below);
    ck_assert_int_eq(mkdir(below, 0755), 0);
    ck_assert_int_eq(rename(copy_fixture("fixture_good", "good.so"), copy), 0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    assert_refused(copy, ATTN_INVALID_ARGUMENT,
                   "this folder above the plugin is writable by others (mode 0777)");
    ck_assert_int_eq(chmod(folder, 01777), 0);
    struct loader_plugin *plugin;
    ck_assert_int_eq(loader_open(copy, NULL, &plugin, NULL), ATTN_OK);
    ck_assert_msg(plugin->status == ATTN_OK, "%s", plugin->reason);
    loader_close(plugin);
}

TEST_OF(loader, a_backend_called_auto)
{
    assert_refused(fixture("fixture_auto"), ATTN_INTERNAL, "its name is 'auto', which in a");
}

static void assert_reason(const char *file, const char *part)
{
    struct loader_plugin *plugin;
    ck_assert_int_eq(loader_open(file, NULL, &plugin, NULL), ATTN_OK);
    ck_assert_int_eq(plugin->status, ATTN_INVALID_ARGUMENT);
    ck_assert_msg(strstr(plugin->reason, part) != NULL, "%s", plugin->reason);
    loader_close(plugin);
}

/* bad_borrowed links bad_nothing from $ORIGIN/deps, too. */
TEST_OF(loader, libraries_of_others)
{
    char deps[96], library[128];
    snprintf(deps, sizeof deps, "%s/deps", folder);
    snprintf(library, sizeof library, "%s/bad_nothing.so", deps);
    const char *copy = copy_fixture("bad_borrowed", "linked.so");
    ck_assert_int_eq(mkdir(deps, 0755), 0);
    ck_assert_int_eq(rename(copy_fixture("bad_nothing", "bad_nothing.so"), library), 0);
    ck_assert_int_eq(chmod(library, 0666), 0);
    assert_reason(copy, "deps/bad_nothing.so: the file is writable by others (mode 0666)");
    ck_assert_int_eq(chmod(library, 0644), 0);
    ck_assert_int_eq(chmod(deps, 0777), 0);
    assert_reason(copy, "deps: the folder is writable by others (mode 0777)");
    ck_assert_int_eq(chmod(deps, 01777), 0);
    assert_reason(copy, "deps: the folder is writable by others (mode 1777)");
    ck_assert_int_eq(chmod(deps, 0755), 0);
    assert_reason(copy, "no symbol attn_plugin_entry of its own");
    if (geteuid() != 0)
        return; /* only root can give a folder away */
    ck_assert_int_eq(chown(deps, 12345, 12345), 0);
    assert_reason(copy, "deps: the folder belongs to user 12345");
}

/* A copy of bad_borrowed with another DT_RUNPATH, which is no longer than its own. */
static const char *copy_with_runpath(const char *runpath, const char *as)
{
    static const char own[] = "$ORIGIN:$ORIGIN/deps";
    size_t length = read_file(fixture("bad_borrowed"));
    uint8_t *at = memmem(content, length, own, sizeof own);
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_le(strlen(runpath), strlen(own));
    memcpy(at, runpath, strlen(runpath) + 1);
    write_file(join(folder, as), content, length);
    return join(folder, as);
}

/* The dynamic linker takes an empty part of a DT_RUNPATH for the working directory. */
TEST_OF(loader, other_runpaths)
{
    assert_reason(copy_with_runpath("$ORIGIN/$LIB", "lib.so"), "'$ORIGIN/$LIB' in its DT_RUNPATH");
    assert_reason(copy_with_runpath("${PLATFORM}", "platform.so"), "accepted: a folder, which may");
    copy_fixture("bad_nothing", "bad_nothing.so");
    assert_reason(copy_with_runpath("${ORIGIN}/.", "braces.so"), "no symbol attn_plugin_entry");
    ck_assert_int_eq(mkdir(join(folder, "open"), 0755), 0);
    ck_assert_int_eq(chmod(join(folder, "open"), 0777), 0);
    ck_assert_int_eq(chdir(join(folder, "open")), 0);
    assert_reason(copy_with_runpath("$ORIGIN:", "empty.so"),
                  ".: the folder is writable by others (mode 0777)");
    ck_assert_int_eq(chdir("/"), 0);
    assert_reason(join(folder, "empty.so"), "no symbol attn_plugin_entry of its own");
}

/* linked.so links bad_nothing.so, and that links linked.so. */
TEST_OF(loader, libraries_in_a_circle)
{
    static const char needed[] = "bad_nothing.so", other[] = "linked.so";
    const char *first = copy_with_runpath("$ORIGIN", other);
    size_t length = read_file(first);
    uint8_t *at = memmem(content, length, needed, sizeof needed);
    ck_assert_ptr_nonnull(at);
    memcpy(at, other, sizeof other);
    write_file(join(folder, needed), content, length);
    ck_assert_int_eq(loader_check_needed(first, &error.base), ATTN_OK);
    ck_assert_int_eq(chmod(first, 0666), 0);
    ck_assert_int_eq(loader_check_needed(first, &error.base), ATTN_INVALID_ARGUMENT);
    assert_says("linked.so: the file is writable by others (mode 0666)");
}

TEST_OF(loader, writable_by_others)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    static const mode_t modes[] = {0646, 0666, 0777};
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        struct loader_plugin *plugin;
        char mode[16];
        ck_assert_int_eq(chmod(copy, modes[m]), 0);
        ck_assert_int_eq(loader_open(copy, NULL, &plugin, NULL), ATTN_OK);
        ck_assert_int_eq(plugin->status, ATTN_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(plugin->reason, "the file is writable by others"));
        snprintf(mode, sizeof mode, "mode %04o", (unsigned)modes[m]);
        ck_assert_ptr_nonnull(strstr(plugin->reason, mode));
        ck_assert_ptr_null(plugin->handle); /* it was not even opened */
        loader_close(plugin);
    }
    ck_assert_int_eq(chmod(copy, 0755), 0);
    ck_assert_int_eq(registry_load_file(&registry, copy, NULL), ATTN_OK);
}

TEST_OF(loader, writable_by_the_group)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    if (geteuid() != 0)
        return; /* the user's own group may be private, which is fine */
    ck_assert_int_eq(chmod(copy, 0664), 0);
    assert_refused(copy, ATTN_INVALID_ARGUMENT, "the file is writable by others (mode 0664)");
}

TEST_OF(loader, folder_writable_by_others)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    ck_assert_int_eq(chmod(folder, 01777), 0);
    assert_refused(copy, ATTN_INVALID_ARGUMENT, "the folder is writable by others (mode 1777)");
    ck_assert_int_eq(registry_load_directory(&registry, folder, &error.base), ATTN_CONFIG_ERROR);
    assert_says("the folder is writable by others");
    /* A link to it from a good folder does not help. */
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(mkdir(join(folder, "open"), 0755), 0);
    ck_assert_int_eq(rename(copy, join(folder, "open/good.so")), 0);
    ck_assert_int_eq(chmod(join(folder, "open"), 0777), 0);
    ck_assert_int_eq(symlink("open/good.so", join(folder, "link.so")), 0);
    struct loader_plugin *plugin;
    ck_assert_int_eq(loader_open(join(folder, "link.so"), NULL, &plugin, NULL), ATTN_OK);
    ck_assert_int_eq(plugin->status, ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(plugin->reason, "open: the folder is writable"));
    loader_close(plugin);
}

TEST_OF(loader, owned_by_somebody_else)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    if (geteuid() != 0)
        return; /* only root can give a file away */
    ck_assert_int_eq(chown(copy, 12345, 12345), 0);
    assert_refused(copy, ATTN_INVALID_ARGUMENT, "the file belongs to user 12345");
}

TEST_OF(loader, pins)
{
    const char *copy = copy_fixture("fixture_good", "good.so");
    uint8_t digest[32];
    struct sha256_ctx context;
    struct loader_plugin *plugin;
    sha256_init(&context);
    sha256_update(&context, read_file(copy), content);
    sha256_digest(&context, sizeof digest, digest);
    ck_assert_int_eq(loader_open(copy, digest, &plugin, NULL), ATTN_OK);
    ck_assert_int_eq(plugin->status, ATTN_OK);
    loader_close(plugin);

    digest[31] ^= 1;
    ck_assert_int_eq(registry_pin(&registry, copy, digest, NULL), ATTN_OK);
    assert_refused(copy, ATTN_CONFIG_ERROR, "its pin accepts ");
    char last[3];
    snprintf(last, sizeof last, "%02x", digest[31]);
    ck_assert_str_eq(strrchr(host_error_text(&error), '\0') - 2, last);
    ck_assert_ptr_null(registry.plugins[0]->handle);
    ck_assert_int_eq(registry_pin(&registry, copy, digest, NULL), ATTN_BAD_STATE);
    ck_assert_int_eq(registry_pin(&registry, join(folder, "none"), digest, NULL),
                     ATTN_INVALID_ARGUMENT);
}

/* ---- Folders --------------------------------------------------------------------------------- */

TEST_OF(loader, folders)
{
    copy_fixture("fixture_taken_name", "b.so");
    copy_fixture("fixture_good", "a.so");
    copy_fixture("fixture_pair", "c.so");
    copy_fixture("fixture_pair", ".hidden.so");
    copy_fixture("fixture_pair", "c.so.1");
    write_file(join(folder, "d.so"), "no", 2);
    write_file(join(folder, "readme.txt"), "no", 2);
    ck_assert_int_eq(registry_load_directory(&registry, folder, &error.base), ATTN_OK);
    static const char *const names[] = {"/a.so", "/b.so", "/c.so", "/d.so"};
    static const attn_status statuses[] = {ATTN_OK, ATTN_CONFIG_ERROR, ATTN_OK,
                                           ATTN_INVALID_ARGUMENT};
    ck_assert_uint_eq(registry.num_plugins, 4);
    for (uint32_t p = 0; p < 4; p++) {
        ck_assert_str_eq(strrchr(registry.plugins[p]->file, '/'), names[p]);
        ck_assert_int_eq(registry.plugins[p]->status, statuses[p]);
    }
    ck_assert_uint_eq(registry.num_types, 3);
    ck_assert_uint_eq(registry_find(&registry, "fixture_pair")->plugin_index, 2);
    ck_assert_int_eq(registry_load_directory(&registry, join(folder, "none"), &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("No such file");
    ck_assert_int_eq(registry_load_directory(&registry, join(folder, "a.so"), &error.base),
                     ATTN_CONFIG_ERROR);
    assert_says("not a folder");
}

/* A search path's later folder brings no complaint if earlier ones have all its backends. */
TEST_OF(loader, shadows)
{
    copy_fixture("fixture_taken_name", "a.so"); /* fixture_two */
    copy_fixture("fixture_pair", "b.so");
    ck_assert_int_eq(registry_load_file(&registry, fixture("fixture_good"), NULL), ATTN_OK);
    registry.num_shadowing = registry.num_plugins;
    ck_assert_int_eq(registry_load_directory(&registry, folder, &error.base), ATTN_OK);
    ck_assert_uint_eq(registry.num_plugins, 3);
    const struct loader_plugin *shadowed = registry.plugins[1];
    ck_assert_int_eq(shadowed->status, ATTN_CONFIG_ERROR);
    ck_assert_str_eq(shadowed->shadowed_by, registry.plugins[0]->file);
    ck_assert_ptr_nonnull(strstr(shadowed->reason, "/a.so: shadowed by "));
    ck_assert_ptr_null(registry.plugins[0]->shadowed_by);
    ck_assert_ptr_null(registry.plugins[2]->shadowed_by);
    ck_assert_int_eq(registry.plugins[2]->status, ATTN_OK);
    ck_assert_str_eq(registry_find(&registry, "fixture_two")->plugin->table.name, "fixture_good");
}

/* Two files of one folder, or one that has more than what is there, are in conflict. */
TEST_OF(loader, conflicts_are_no_shadows)
{
    copy_fixture("fixture_pair", "a.so");
    copy_fixture("fixture_good", "b.so"); /* fixture_one, too */
    copy_fixture("fixture_pair", "c.so");
    ck_assert_int_eq(registry_load_file(&registry, fixture("fixture_taken_name"), NULL), ATTN_OK);
    registry.num_shadowing = registry.num_plugins;
    ck_assert_int_eq(registry_load_directory(&registry, folder, &error.base), ATTN_OK);
    ck_assert_uint_eq(registry.num_plugins, 4);
    for (uint32_t p = 2; p < 4; p++) {
        ck_assert_int_eq(registry.plugins[p]->status, ATTN_CONFIG_ERROR);
        ck_assert_ptr_null(registry.plugins[p]->shadowed_by);
        ck_assert_ptr_nonnull(strstr(registry.plugins[p]->reason, "is already provided by"));
    }
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

TEST_OF(loader, verdicts_do_not_contradict_themselves)
{
    attn_reason reason;
    memset(&reason, 'x', sizeof reason);
    reason.struct_size = sizeof reason;
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .num_reasons = 1, .reasons_capacity = 1, .reasons = &reason};
    ck_assert_int_eq(answer_check_verdict("any", &verdict, NULL), ATTN_OK);
    ck_assert_uint_eq(strlen(reason.child), sizeof reason.child - 1);
    ck_assert_uint_eq(strlen(reason.got), sizeof reason.got - 1);
    ck_assert_uint_eq(strlen(reason.accepted), sizeof reason.accepted - 1);
    verdict.supported = 1;
    ck_assert_int_eq(answer_check_verdict("any", &verdict, NULL), ATTN_INTERNAL);
    verdict.num_reasons = 0;
    ck_assert_int_eq(answer_check_verdict("any", &verdict, NULL), ATTN_OK);
}

/* ---- Life ------------------------------------------------------------------------------------ */

TEST_OF(loader, init_and_fini_are_paired)
{
    struct loader_plugin *one, *two;
    ck_assert_int_eq(loader_open(fixture("fixture_good"), NULL, &one, NULL), ATTN_OK);
    ck_assert_int_eq(loader_open(fixture("fixture_good"), NULL, &two, NULL), ATTN_OK);
    const struct fixture_counters *counters = one->table.get_extension(FIXTURE_COUNTERS);
    ck_assert_int_eq(counters->inits, 0);
    ck_assert_int_eq(loader_acquire(one, NULL), ATTN_OK);
    ck_assert_int_eq(loader_acquire(one, NULL), ATTN_OK);
    ck_assert_int_eq(loader_acquire(two, NULL), ATTN_OK); /* one file, one init */
    ck_assert_int_eq(counters->inits, 1);
    loader_release(one);
    loader_release(two);
    ck_assert_int_eq(counters->finis, 0);
    loader_release(one);
    ck_assert_int_eq(counters->finis, 1);
    ck_assert_int_eq(loader_acquire(two, NULL), ATTN_OK);
    ck_assert_int_eq(counters->inits, 2);
    loader_release(two);
    ck_assert_int_eq(counters->finis, 2);
    loader_close(one);
    loader_close(two);
    ck_assert_int_eq(counters->finis, 2); /* still mapped */
}

GROUP(loader, .set_up = setup, .tear_down = teardown);
TESTS("loader");
