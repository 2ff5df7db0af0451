/* SPDX-License-Identifier: Apache-2.0
 *
 * scan_race: scans on one thread while another one sets their limit, for the thread sanitizer
 * (scan_race.sh). What the cache of verdicts and the loader would answer is answered here.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "host/plugin/loader.h"
#include "host/plugin/scan.h"
#include "host/plugin/scan_cache.h"

enum { NUM_SCANS = 20 };

static atomic_bool has_scanned;

bool loader_is_source(const char *file)
{
    return (void)file, false;
}

bool scan_key_make(const char *file, uint64_t company, struct scan_key *key)
{
    return (void)file, (void)company, (void)key, true;
}

uint64_t scan_company_add(uint64_t company, const char *file)
{
    return (void)file, company + 1;
}

bool scan_cache_find(const char *file, struct scan_key *key, struct scan_verdict *verdict)
{
    return (void)file, (void)key, (void)verdict, false;
}

void scan_cache_keep(const char *file, struct scan_key *key, const struct scan_verdict *verdict)
{
    (void)file, (void)key, (void)verdict;
}

const char *scan_cache_path(char path[4096])
{
    return path;
}

static void *set_limits(void *unused)
{
    for (int i = 0; !atomic_load(&has_scanned); i++)
        scan_set_limit(10 + i % 10);
    return unused;
}

/* The scanner says nothing, and so no file survives it. */
int main(void)
{
    pthread_t setter;
    int num_refused = 0;
    scan_configure("/bin/true");
    if (pthread_create(&setter, NULL, set_limits, NULL) != 0)
        return 1;
    for (int i = 0; i < NUM_SCANS; i++) {
        attn_error error = {.struct_size = sizeof error};
        num_refused += scan_file("/bin/true", &error) != ATTN_OK;
    }
    atomic_store(&has_scanned, true);
    pthread_join(setter, NULL);
    printf("%d of %d scans\n", num_refused, NUM_SCANS);
    return num_refused != NUM_SCANS;
}
