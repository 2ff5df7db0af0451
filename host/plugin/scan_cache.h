/* SPDX-License-Identifier: Apache-2.0
 *
 * scan_cache.h: verdicts of scans, in the file attnhost/scanned of the user's cache folder
 * (XDG_CACHE_HOME, else ~/.cache), by what the file is: device, inode, size, times; or else by its
 * SHA-256, so that a copy need not be scanned. Verdicts of other programs, or of other builds, do
 * not count: the file keeps those of several programs side by side. */
#ifndef HOST_PLUGIN_SCAN_CACHE_H
#define HOST_PLUGIN_SCAN_CACHE_H

#include <stdbool.h>
#include <stdint.h>

struct scan_key {
    char identity[192];
    uint64_t company;   /* and the program */
    uint8_t sha256[32]; /* of the content, once it was needed, and of the company */
    bool hashed;
};

struct scan_verdict {
    bool survived;
    char reason[600]; /* "" if it did; one line */
};

/* What the file is, and a hash, `company`, of the files that are opened with it, to which the program
 * is added; false if it cannot be looked at. */
bool scan_key_make(const char *file, uint64_t company, struct scan_key *key);

/* The hash of a company and one file more. */
uint64_t scan_company_add(uint64_t company, const char *file);

/* The kept verdict; false if there is none. */
bool scan_cache_find(const char *file, struct scan_key *key, struct scan_verdict *verdict);

/* Keep it. If that fails, the file is scanned again. */
void scan_cache_keep(const char *file, struct scan_key *key, const struct scan_verdict *verdict);

/* The cache's file, or NULL if there is none. */
const char *scan_cache_path(char path[4096]);

#endif /* HOST_PLUGIN_SCAN_CACHE_H */
