/* SPDX-License-Identifier: Apache-2.0
 *
 * device_pairs: prefill by one backend, decode by another, on a GPU, for every ordered pair of
 * backends.
 *
 *   device_pairs [BACKEND...]      default: all of the plugins that serve the model there
 *   ATTNHOST_TEST_PAIRS_PLUGINS    more plugin files or folders, with ':' between them
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/device/device.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "tests/host/check/pairs_case.h"

enum { MAX_BACKENDS = 16 };

static struct pairs_place place = {.device = "cuda:0"};
static const char *backends[MAX_BACKENDS];
static int num_backends;

static int skip(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    return EXIT_SUCCESS;
}

static void name_files(void)
{
    const char *more = getenv("ATTNHOST_TEST_PAIRS_PLUGINS");
    char *copy = more ? strdup(more) : NULL, *state = NULL;
    place.files[place.num_files++] = pairs_file("ATTNHOST_TEST_PLUGIN_DIR", "plugins/.libs", ".");
    for (char *file = copy ? strtok_r(copy, ":", &state) : NULL;
         file && place.num_files < PAIRS_MAX_FILES; file = strtok_r(NULL, ":", &state))
        place.files[place.num_files++] = file;
}

static void find_backends(attnhost *host)
{
    char text[PAIRS_TEXT];
    for (uint32_t t = 0; t < host->registry.num_types && num_backends < MAX_BACKENDS; t++) {
        const attn_backend_type *type = host->registry.types[t].type;
        if (!(type->flags & ATTN_BACKEND_COMPOSITE) && pairs_serves(&place, type->name, 0, text))
            backends[num_backends++] = type->name;
    }
}

/* Where one plugin serves the GPU, it is paired with itself, cutting sequences elsewhere. */
static void add_other(void)
{
    static char type[128];
    snprintf(type, sizeof type, "backend.other.type=%s", backends[0]);
    place.sets[place.num_sets++] = type;
    if (strcmp(backends[0], "triton_like") == 0)
        place.sets[place.num_sets++] = "backend.other.num_kv_splits=3";
    backends[num_backends++] = "other";
}

/* Why a backend does not serve a variant, or "". Asked once: a backend that does serve it runs it.
 */
static const char *refusal(int backend, int variant)
{
    static char refusals[MAX_BACKENDS][PAIRS_VARIANTS][PAIRS_TEXT];
    static int asked[MAX_BACKENDS][PAIRS_VARIANTS];
    char *text = refusals[backend][variant];
    if (!asked[backend][variant]++)
        pairs_serves(&place, backends[backend], variant, text);
    return text;
}

static int check_pair(attnhost *host, int first, int second, int *number)
{
    char text[PAIRS_TEXT];
    int failures = 0;
    for (int v = 0; v < PAIRS_VARIANTS; v++) {
        const char *why = refusal(*refusal(first, v) ? first : second, v);
        if (*why) {
            printf("ok %d - %s, then %s, variant %d # SKIP %s\n", ++*number, backends[first],
                   backends[second], v, why);
            continue;
        }
        const char *wrong = pairs_judge(&place, host, backends[first], backends[second], v, text);
        printf("%sok %d - %s, then %s, variant %d\n", wrong ? "not " : "", ++*number,
               backends[first], backends[second], v);
        if (wrong)
            printf("# %s\n", wrong);
        failures += wrong != NULL;
    }
    return failures;
}

int main(int argc, char **argv)
{
    char text[PAIRS_TEXT];
    HOST_ERROR(error);
    attn_device info;
    int number = 0, failures = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (device_describe(ATTN_DEVICE_CUDA, 0, &info, &error.base) != ATTN_OK)
        return skip(host_error_text(&error));
    name_files();
    attnhost *host = pairs_host(&place, text);
    if (!host) {
        printf("not ok 1 - the plugins are loaded\n# %s\n1..1\n", text);
        return EXIT_FAILURE;
    }
    for (int a = 1; a < argc && num_backends < MAX_BACKENDS; a++)
        backends[num_backends++] = argv[a];
    if (argc == 1)
        find_backends(host);
    if (num_backends == 0)
        return skip("no backend serves this GPU");
    if (num_backends == 1)
        add_other();
    for (int first = 0; first < num_backends; first++)
        for (int second = 0; second < num_backends; second++)
            if (first != second)
                failures += check_pair(host, first, second, &number);
    printf("1..%d\n", number);
    attnhost_destroy(host);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
