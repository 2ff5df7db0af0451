/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_check.c: any bytes as each of the files that `attnhost check` reads: waivers, a profile, a
 * replay file.
 */
#include <string.h>

#include "host/check/suite/profile.h"
#include "host/check/suite/replay.h"
#include "host/check/suite/waivers.h"
#include "tests/fuzz/fuzz.h"

const char fuzz_name[] = "check";

static void read_waivers(const char *path)
{
    struct waivers waivers;
    HOST_ERROR(error);
    attn_status status = waivers_load(path, "2026-03-31", &waivers, &error.base);
    if (status != ATTN_OK) {
        fuzz_check_refusal(status, &error, path);
        return;
    }
    for (size_t w = 0; w < waivers.count; w++) {
        const struct waiver *waiver = &waivers.items[w];
        if (!*waiver->pattern || !*waiver->plugin || !*waiver->version || !*waiver->reason ||
            strlen(waiver->expiry) != strlen("2026-03-31"))
            fuzz_fail("a waiver without one of its words, in line %d", waiver->line);
    }
    waivers_find(&waivers, "cpu_native/KV-06.pages/17", "cpu_native", "0.1.0");
    waivers_finish(&waivers);
}

static void read_profile(const char *path)
{
    struct profile profile;
    HOST_ERROR(error);
    attn_status status = profile_load(path, &profile, &error.base);
    if (status != ATTN_OK) {
        fuzz_check_refusal(status, &error, path);
        return;
    }
    if (profile.count == 0)
        fuzz_fail("an empty profile is accepted");
    for (size_t l = 0; l < profile.count; l++) {
        if (!*profile.lines[l].pattern || (profile.lines[l].some && !profile.lines[l].or_skip))
            fuzz_fail("line %d of a profile", profile.lines[l].line);
        case_id_matches(profile.lines[l].pattern, "cpu_native/KV-06.pages/17");
    }
    profile_finish(&profile);
}

static void read_replay(const char *path)
{
    struct check_params params = {.replay = path};
    struct replay replay;
    HOST_ERROR(error);
    attn_status status = replay_load(&params, &replay, &error.base);
    if (status != ATTN_OK) {
        fuzz_check_refusal(status, &error, path);
    } else {
        if (!params.plugin || !replay.check || strlen(replay.backend) >= CASE_ID_SIZE)
            fuzz_fail("a replay file that lacks a line is accepted");
        replay_finish(&replay);
    }
    params_finish(&params);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    read_waivers(path);
    read_profile(path);
    read_replay(path);
    return 0;
}
