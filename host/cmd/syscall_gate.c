/* SPDX-License-Identifier: Apache-2.0
 *
 * syscall_gate.c: syscall user dispatch, and the handler of its SIGSYS.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dl_iterate_phdr, REG_RIP */
#endif
#include "host/cmd/syscall_gate.h"

#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if defined(__x86_64__) && defined(PR_SET_SYSCALL_USER_DISPATCH)

enum { USER_DISPATCH = 2 }; /* si_code: SYS_USER_DISPATCH, which glibc 2.36 has not */

/* What the kernel looks at, for calls from outside the range. */
static _Thread_local volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;
static _Thread_local bool has_gate, was_tried;

/* ---- The range ------------------------------------------------------------------------------- */

/* From the C library to the loader and the kernel's own page, which lie above it. What a program
 * loads later lies below, as addresses are given out from the top. */
struct range {
    uintptr_t begin, end;
};

static bool is_called(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, name, strlen(name)) == 0;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *found)
{
    struct range *range = found;
    (void)size;
    for (int p = 0; p < info->dlpi_phnum; p++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[p];
        uintptr_t begin = info->dlpi_addr + header->p_vaddr, end = begin + header->p_memsz;
        if (header->p_type != PT_LOAD)
            continue;
        if (is_called(info->dlpi_name, "libc.so") && (!range->begin || begin < range->begin))
            range->begin = begin;
        if (is_called(info->dlpi_name, "ld-linux") && end > range->end)
            range->end = end;
    }
    return 0;
}

static struct range find_range(void)
{
    enum { VDSO_BYTES = 4 * 4096 };
    struct range range = {0, 0};
    uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);
    dl_iterate_phdr(add_object, &range);
    if (vdso + VDSO_BYTES > range.end)
        range.end = vdso + VDSO_BYTES;
    return range;
}

/* Under valgrind, all system calls come from valgrind's code, not from the program's addresses. */
static bool is_emulated(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "vgpreload");
}

/* ---- The gate -------------------------------------------------------------------------------- */

void syscall_gate_close(void)
{
    struct range range = {0, 0};
    if (!was_tried && !is_emulated())
        range = find_range();
    was_tried = true;
    if (range.begin && range.begin < range.end)
        has_gate = prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, range.begin,
                         range.end - range.begin, &selector) == 0;
    if (has_gate)
        selector = SYSCALL_DISPATCH_FILTER_BLOCK;
}

bool syscall_gate_ends(const siginfo_t *info, void *context, bool *handed_over)
{
    enum { INSTRUCTION_BYTES = 2 }; /* syscall */
    ucontext_t *at = context;
    bool is_gate = has_gate && info->si_code == USER_DISPATCH;
    bool ends = info->si_syscall == SYS_exit || info->si_syscall == SYS_exit_group;
    *handed_over = is_gate;
    if (is_gate) {
        selector = SYSCALL_DISPATCH_FILTER_ALLOW;
        at->uc_mcontext.gregs[REG_RIP] -= INSTRUCTION_BYTES;
    }
    return is_gate && ends;
}

#else

void syscall_gate_close(void)
{
}

bool syscall_gate_ends(const siginfo_t *info, void *context, bool *handed_over)
{
    (void)info;
    (void)context;
    *handed_over = false;
    return false;
}

#endif
