/* SPDX-License-Identifier: Apache-2.0
 *
 * triton_fixture.h: what tests of triton_like's inside begin with: a problem that is accepted, a
 * kernel_dir of their own, and a driver and an NVRTC that are functions of the test, so that
 * prepare and forward run on any machine. Nothing is computed.
 */
#ifndef TRITON_FIXTURE_H
#define TRITON_FIXTURE_H

#include "plugins/common/tests/plugin_problem.h"
#include "plugins/triton_like/triton_like.h"

/* Of 32 heads of 128 over 8 KV heads, pages of 16, decode on 132 multiprocessors. */
void make_decode_problem(test_problem *t);

/* ---- Doubles --------------------------------------------------------------------------------- */

enum { TEST_MAX_LOADS = 32, TEST_BINARY = 100000 /* bytes */ };

/* The settings of the doubles, and the calls that they have seen. */
typedef struct test_doubles {
    int nvrtc_major, nvrtc_minor;
    unsigned delay;                  /* of a compilation: up to this many microseconds, random */
    long compiled;                   /* runs of the NVRTC */
    long launches;                   /* of kernels */
    int loads, unloads;              /* of modules */
    uint64_t loaded[TEST_MAX_LOADS]; /* hashes of the first binaries loaded */
    int warnings;
    char warning[1024]; /* the first */
} test_doubles;

extern test_doubles doubles;
extern const attn_services test_services;

/* The driver takes binaries of the double, whole ones, and those of the true NVRTC; kernels are
 * counted and not run. */
extern const cuda_api test_driver;
/* A binary is TEST_BINARY bytes that follow from everything that NVRTC is given. The text "#error"
 * fails as NVRTC does: "file(line): error: ...". */
extern const nvrtc_api test_nvrtc;

/* ---- Instances ------------------------------------------------------------------------------- */

/* An instance for one group of the problem with these doubles, as create makes it. Destroyed by
 * triton_like_type.ops->destroy(). */
attn_instance *make_instance(const test_problem *t, const nvrtc_api *nvrtc, const char *kernel_dir,
                             const char *cache_dir);
attn_status prepare_instance(attn_instance *instance, attn_error *error);

/* ---- Folders --------------------------------------------------------------------------------- */

/* A new folder below /tmp, of this process; `path` has room for MAX_PATH bytes. */
void make_folder(char *path);
void remove_folder(const char *path);
/* The kernels of the source tree, and those that they share with other plugins, in one folder, as
 * they are installed. */
void copy_kernels(const char *to);
void write_text(const char *folder, const char *name, const char *text);
/* The lines of `more` after what the file has. */
void append_text(const char *folder, const char *name, const char *more);
/* Names in a folder that end so, sorted, at most `most`; returns their number. */
int list_folder(const char *folder, const char *ending, char names[][256], int most);

#endif /* TRITON_FIXTURE_H */
