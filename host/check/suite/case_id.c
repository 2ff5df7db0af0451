/* SPDX-License-Identifier: Apache-2.0
 *
 * case_id.c: parsing and matching of case ids; seeds from ids.
 */
#include "host/check/suite/case_id.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "host/check/suite/groups.h"
#include "host/base/mix.h"
#include "host/base/text.h"

/* ---- Ids ------------------------------------------------------------------------------------- */

void case_id_write(char id[CASE_ID_SIZE], const char *backend, const struct check *check,
                   int32_t index)
{
    if (index < 0)
        snprintf(id, CASE_ID_SIZE, "%s/%s.%s", backend, check->rule, check->name);
    else
        snprintf(id, CASE_ID_SIZE, "%s/%s.%s/%d", backend, check->rule, check->name, index);
}

/* The check that is called RULE.name, of this length. */
static const struct check *find_check(const char *name, size_t length)
{
    for (const struct check *const *group = check_groups(); *group; group++)
        for (const struct check *check = *group; check->rule; check++) {
            size_t rule = strlen(check->rule);
            if (length == rule + 1 + strlen(check->name) && strncmp(name, check->rule, rule) == 0 &&
                name[rule] == '.' && strncmp(name + rule + 1, check->name, length - rule - 1) == 0)
                return check;
        }
    return NULL;
}

bool case_id_parse(const char *id, char backend[CASE_ID_SIZE], const struct check **check,
                   int32_t *index)
{
    const char *slash = strchr(id, '/');
    if (!slash || (size_t)(slash - id) >= CASE_ID_SIZE)
        return false;
    memcpy(backend, id, (size_t)(slash - id));
    backend[slash - id] = '\0';
    const char *name = slash + 1, *second = strchr(name, '/');
    uint64_t number = 0;
    if (second && (!text_parse_uint64(second + 1, &number) || number > INT32_MAX))
        return false;
    *index = second ? (int32_t)number : -1;
    *check = find_check(name, second ? (size_t)(second - name) : strlen(name));
    return *check != NULL;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

/* The id without its backend. */
static const char *after_backend(const char *id)
{
    const char *slash = strchr(id, '/');
    return slash ? slash + 1 : id;
}

bool case_id_matches(const char *pattern, const char *id)
{
    char whole[CASE_ID_SIZE];
    snprintf(whole, sizeof whole, "%s", id);
    if (fnmatch(pattern, whole, 0) == 0 || fnmatch(pattern, after_backend(whole), 0) == 0)
        return true;
    char *last = strrchr(whole, '/');
    if (!last || last < after_backend(whole))
        return false; /* no index */
    *last = '\0';
    return fnmatch(pattern, whole, 0) == 0 || fnmatch(pattern, after_backend(whole), 0) == 0;
}

static bool begins_alike(const char *pattern, size_t literal, const char *text)
{
    size_t length = strlen(text);
    return strncmp(pattern, text, literal < length ? literal : length) == 0;
}

bool case_id_may_match(const char *pattern, const char *check_id)
{
    size_t literal = strcspn(pattern, "*?[\\");
    return begins_alike(pattern, literal, check_id) ||
           begins_alike(pattern, literal, after_backend(check_id));
}

/* ---- Seeds ----------------------------------------------------------------------------------- */

static uint64_t absorb_text(uint64_t state, const char *text)
{
    for (; *text; text++)
        state = mix_absorb(state, (unsigned char)*text);
    return mix_absorb(state, 0);
}

uint64_t case_seed(uint64_t seed, const struct check *check, int32_t index)
{
    uint64_t state = absorb_text(absorb_text(mix_word(seed), check->rule), check->name);
    return mix_absorb(state, (uint64_t)(index < 0 ? 0 : index));
}

/* ---- Codes ----------------------------------------------------------------------------------- */

static const char *const code_names[CHECK_CODES] = {
    [CHECK_PASS] = "PASS",     [CHECK_FAIL] = "FAIL",
    [CHECK_CRASH] = "CRASH",   [CHECK_TIMEOUT] = "TIMEOUT",
    [CHECK_SKIP] = "SKIP",     [CHECK_WARN] = "WARN",
    [CHECK_WAIVED] = "WAIVED", [CHECK_DEVICE_LOST] = "DEVICE_LOST",
};

const char *check_code_name(enum check_code code)
{
    return code_names[code];
}

enum check_code check_code_of(const char *name)
{
    int code = 0;
    while (code < CHECK_CODES && strcmp(code_names[code], name) != 0)
        code++;
    return (enum check_code)code;
}

bool check_code_fails(enum check_code code)
{
    return code == CHECK_FAIL || code == CHECK_CRASH || code == CHECK_TIMEOUT ||
           code == CHECK_DEVICE_LOST;
}
