/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c: group LOAD, the file. Most is read from it; a process that only opens it shows the
 * effects of its constructors (load_watch.c). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "host/check/check.h"

#include <dlfcn.h>
#include <string.h>

#include "host/plugin/elf_file.h"
#include "host/check/contract/load_watch.h"
#include "host/base/error.h"
#include "host/base/text.h"

/* The file of the plugin; false and the run has failed. */
static bool open_file(struct check_run *run, struct elf_file *elf)
{
    if (elf_open(run->subject->object, elf, check_error(run)) == ATTN_OK)
        return true;
    check_fail(run, "%s", check_error_text(run));
    return false;
}

static bool is_defined(const ElfW(Sym) * symbol)
{
    return symbol->st_shndx != SHN_UNDEF && symbol->st_shndx != SHN_ABS;
}

static unsigned binding(const ElfW(Sym) * symbol)
{
    return symbol->st_info >> 4;
}

/* ---- LOAD-01 --------------------------------------------------------------------------------- */

static bool is_exported(const ElfW(Sym) * symbol)
{
    unsigned visibility = symbol->st_other & 3;
    return is_defined(symbol) && binding(symbol) != STB_LOCAL &&
           (visibility == STV_DEFAULT || visibility == STV_PROTECTED);
}

static bool is_allowed(const char *name)
{
    static const char *const names[] = {ATTN_PLUGIN_ENTRY, "_init", "_fini", "_edata", "_end",
                                        "__bss_start",     "end",   "edata"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (strcmp(names[n], name) == 0)
            return true;
    return false;
}

static void run_exports(struct check_run *run)
{
    struct elf_file elf;
    strbuf found;
    size_t count = 0;
    if (!open_file(run, &elf))
        return;
    strbuf_init(&found);
    for (size_t s = 0; s < elf.num_symbols; s++) {
        const char *name = elf_string(&elf, elf.symbols[s].st_name);
        if (is_exported(&elf.symbols[s]) && !is_allowed(name) && count++ < 8)
            strbuf_appendf(&found, "%s%s", count > 1 ? ", " : "", name);
    }
    if (count)
        check_fail(run, "exports %zu other symbols: %s%s; accepted: " ATTN_PLUGIN_ENTRY " alone",
                   count, strbuf_text(&found), count > 8 ? " ..." : "");
    strbuf_finish(&found);
    elf_close(&elf);
}

/* ---- LOAD-02 --------------------------------------------------------------------------------- */

/* A sanitizer's run time is the program's. */
static bool is_of_sanitizer(const char *name)
{
    static const char *const prefixes[] = {"__asan_", "__ubsan_", "__tsan_",
                                           "__lsan_", "__msan_",  "__sanitizer_"};
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++)
        if (strncmp(name, prefixes[p], strlen(prefixes[p])) == 0)
            return true;
    return false;
}

/* This process found the symbol, or the file would not be open; another one without the same
 * libraries would not find it. */
static void run_closure(struct check_run *run)
{
    struct elf_file elf;
    void *handle = dlopen(run->subject->object, RTLD_NOW | RTLD_LOCAL);
    CHECK_THAT(run, handle != NULL, "cannot be opened a second time: %s", dlerror());
    if (!open_file(run, &elf)) {
        dlclose(handle);
        return;
    }
    for (size_t s = 1; s < elf.num_symbols; s++) {
        const ElfW(Sym) *symbol = &elf.symbols[s];
        const char *name = elf_string(&elf, symbol->st_name);
        if (symbol->st_shndx == SHN_UNDEF && binding(symbol) == STB_GLOBAL && *name &&
            !is_of_sanitizer(name) && !dlsym(handle, name))
            check_fail(run,
                       "%s is in none of the libraries that the file lists as needed; accepted: "
                       "every library is listed (link with -Wl,-z,defs)",
                       name);
    }
    elf_close(&elf);
    dlclose(handle);
}

/* ---- LOAD-04 --------------------------------------------------------------------------------- */

static void run_constructors(struct check_run *run)
{
    char seen[512];
    switch (load_watch(run->subject->object, seen, sizeof seen)) {
    case LOAD_WATCH_NOTHING:
        return;
    case LOAD_WATCH_EFFECT:
        check_fail(run, "when opened, it %s; accepted: no effect", seen);
        return;
    default:
        check_fail(run, "a process that only opens it: %s", seen);
    }
}

/* ---- LOAD-05, LOAD-08 ------------------------------------------------------------------------ */

static void run_driver(struct check_run *run)
{
    struct elf_file elf;
    const char *name;
    if (!open_file(run, &elf))
        return;
    for (size_t n = 0; (name = elf_needed(&elf, n)); n++)
        if (strncmp(name, "libcuda.so", 10) == 0)
            check_warn(run,
                       "needs %s; accepted: it is opened at run time, so that the file can be "
                       "loaded where there is no driver",
                       name);
    elf_close(&elf);
}

static void run_text(struct check_run *run)
{
    struct elf_file elf;
    uint64_t flags = 0, ignored;
    if (!open_file(run, &elf))
        return;
    const ElfW(Phdr) *stack = elf_segment(&elf, PT_GNU_STACK);
    if (elf_dynamic(&elf, DT_TEXTREL, &ignored) ||
        (elf_dynamic(&elf, DT_FLAGS, &flags) && flags & DF_TEXTREL))
        check_fail(run, "has text relocations; accepted: none (compile with -fPIC)");
    else if (!stack)
        check_fail(run, "does not say whether its stack is executable, so it is; accepted: "
                        "a GNU_STACK header without the flag E (link with -Wl,-z,noexecstack)");
    else if (stack->p_flags & PF_X)
        check_fail(run, "its stack is executable; accepted: link with -Wl,-z,noexecstack");
    elf_close(&elf);
}

const struct check check_load[] = {
    CHECK_ROW("LOAD-01", exports, NULL, CHECK_ONCE,
              "the file exports " ATTN_PLUGIN_ENTRY " and nothing else"),
    CHECK_ROW("LOAD-02", closure, NULL, CHECK_ONCE,
              "every symbol is defined in the file or in a library that it names as needed"),
    CHECK_ROW(
        "LOAD-04", constructors, NULL, CHECK_ONCE,
        "opening the plugin opens no other file, starts no thread and changes no process state"),
    CHECK_ROW("LOAD-05", driver, NULL, CHECK_ONCE,
              "the file does not list the CUDA driver as a needed library"),
    CHECK_ROW("LOAD-08", text, NULL, CHECK_ONCE,
              "the file has no text relocations and no executable stack"),
    {0},
};
