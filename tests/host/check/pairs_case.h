/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_case.h: prefill by one backend, decode by another, over one KV cache, in whole runs.
 */
#ifndef TESTS_PAIRS_CASE_H
#define TESTS_PAIRS_CASE_H

#include "attnhost.h"

enum { PAIRS_VARIANTS = 4, PAIRS_MAX_FILES = 16, PAIRS_MAX_SETS = 4, PAIRS_TEXT = 1024 };

/* On what, and with which plugin files and folders. */
struct pairs_place {
    const char *device; /* "cpu", "cuda:0" */
    const char *files[PAIRS_MAX_FILES];
    int num_files;
    const char *sets[PAIRS_MAX_SETS]; /* more of the configuration: "section.key=value" */
    int num_sets;
};

/* "FOLDER/FILE" of the environment's folder, or of `otherwise`; the caller frees it. */
char *pairs_file(const char *variable, const char *otherwise, const char *file);

/* A host that knows the plugins, to ask which layouts their backends read. NULL and the reason. */
attnhost *pairs_host(const struct pairs_place *place, char text[PAIRS_TEXT]);

/* Do both read some layout, as they declare? -1 = there is no such backend. */
int pairs_share_a_layout(attnhost *host, const char *first, const char *second);

/* Does the backend serve the model of a variant there? If not, `text` says why. */
int pairs_serves(const struct pairs_place *place, const char *backend, int variant,
                 char text[PAIRS_TEXT]);

/* Run `prefill` alone, and `prefill`, then `decode`; NULL, or what is wrong, in `text`. Of backends
 * that share a layout every row of both runs has to be within the pass rule, of the same number of
 * rows, and both have to have computed some; others have to be refused for their layout. */
const char *pairs_judge(const struct pairs_place *place, attnhost *host, const char *prefill,
                        const char *decode, int variant, char text[PAIRS_TEXT]);

/* Is the pair refused for the layout of the KV cache, with this setting (NULL = none) as well?
 * NULL, or what it says instead. */
const char *pairs_refused(const struct pairs_place *place, const char *prefill, const char *decode,
                          const char *setting, char text[PAIRS_TEXT]);

#endif /* TESTS_PAIRS_CASE_H */
