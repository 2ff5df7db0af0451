/* SPDX-License-Identifier: Apache-2.0
 *
 * exits.c: exit(), _exit() and _Exit() of the program. They stand before the C library's for every
 * object of the process, and ask the warden first (warden.h). What the C library itself calls does
 * not come here, but to the warden's exit handler.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/cmd/warden.h"

static _Noreturn void end_now(int code)
{
    for (;;)
        syscall(SYS_exit_group, code);
}

_Noreturn void exit(int code)
{
    warden_on_exit("exit()", __builtin_return_address(0));
    void *symbol = dlsym(RTLD_NEXT, "exit");
    void (*next)(int);
    memcpy(&next, &symbol, sizeof next); /* ISO C has no cast from data to function */
    if (symbol)
        next(code);
    end_now(code);
}

_Noreturn void _exit(int code)
{
    warden_on_exit("_exit()", __builtin_return_address(0));
    end_now(code);
}

_Noreturn void _Exit(int code)
{
    warden_on_exit("_Exit()", __builtin_return_address(0));
    end_now(code);
}
