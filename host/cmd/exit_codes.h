/* SPDX-License-Identifier: Apache-2.0
 *
 * exit_codes.h: how the attnhost command ends.
 */
#ifndef HOST_CMD_EXIT_CODES_H
#define HOST_CMD_EXIT_CODES_H

enum {
    EXIT_GOOD = 0,
    EXIT_CHECK_FAILED = 1, /* a check or a verification failed */
    EXIT_USAGE = 2,        /* usage or configuration; an unknown backend name too */
    EXIT_PLUGIN = 3,       /* a plugin file that was named, or is critical, is refused */
    EXIT_NO_BACKEND = 4,   /* no backend can serve, or the named one cannot */
    EXIT_RUN_TIME = 5,     /* failed while running */
    EXIT_NOTHING = 77      /* nothing could be checked here */
};

#endif /* HOST_CMD_EXIT_CODES_H */
