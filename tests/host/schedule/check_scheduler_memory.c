/* SPDX-License-Identifier: Apache-2.0
 *
 * check_scheduler_memory.c: a scheduler whose allocations are refused, one after the other. Without
 * what it needs to begin with it is not made; without what a request needs the request is not
 * queued, and can be queued again; later on a prefix is not kept, and nothing else changes. Nothing
 * is left in any case.
 *
 * The program has an allocator of its own around the C library's. Under a sanitizer, which has one,
 * too, none is refused.
 */
#include <errno.h>
#include <stddef.h>

#include "host/base/sanitizers.h"
#include "tests/host/schedule/scheduler_fixture.h"

/* ---- Allocator ------------------------------------------------------------------------------- */

/* Of the allocations of a scheduler, which one to refuse, from 1 (0 = none); how many there were,
 * and how many of them are left. What Check allocates in between is not looked at. */
static struct {
    bool watches;
    long refused, count, live;
} memory;

#if !HAS_SANITIZER
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void __libc_free(void *old);

static bool is_refused(void)
{
    if (!memory.watches || ++memory.count != memory.refused)
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *made)
{
    memory.live += memory.watches && made;
    return made;
}

void *malloc(size_t size)
{
    return is_refused() ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size)
{
    return is_refused() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *old, size_t size)
{
    if (is_refused())
        return NULL;
    return old ? __libc_realloc(old, size) : counted(__libc_malloc(size));
}

void free(void *old)
{
    memory.live -= memory.watches && old;
    __libc_free(old);
}
#endif

static bool was_refused(void)
{
    return memory.refused > 0 && memory.count >= memory.refused;
}

/* ---- A scheduler's life ---------------------------------------------------------------------- */

static attn_status create_watched(void)
{
    params.share_unit = source.block_size;
    memory.watches = true;
    attn_status status = scheduler_create(&params, &scheduler, &failure.base);
    memory.watches = false;
    return status;
}

static attn_status add_watched(int64_t request)
{
    memory.watches = true;
    attn_status status = add(request);
    memory.watches = false;
    return status;
}

static const struct scheduler_step *next_watched(void)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    memory.watches = true;
    enum scheduler_state state = scheduler_next(scheduler, &step, &wake_us);
    memory.watches = false;
    return state == SCHEDULER_STEP ? step : NULL;
}

static void complete_watched(void)
{
    memory.watches = true;
    scheduler_complete(scheduler);
    memory.watches = false;
}

/* What the counts are taken after: the prefix cache is flushed. */
static void flush_watched(void)
{
    memory.watches = true;
    int64_t leaked = scheduler_leaked(scheduler, SCHEDULER_ALL);
    memory.watches = false;
    ck_assert_int_eq(leaked, 0);
}

static void destroy_watched(void)
{
    memory.watches = true;
    scheduler_destroy(scheduler);
    memory.watches = false;
    scheduler = NULL;
    ck_assert_int_eq(memory.live, 0);
}

/* Queued at the second time, if not at the first. */
static void add_all(void)
{
    for (int64_t i = 0; i < source.num_requests; i++) {
        bool before = was_refused();
        attn_status status = add_watched(i);
        ck_assert_int_eq(status, was_refused() && !before ? ATTN_OUT_OF_HOST_MEMORY : ATTN_OK);
        if (status != ATTN_OK) {
            ck_assert_str_ne(host_error_text(&failure), "");
            ck_assert_int_eq(add_watched(i), ATTN_OK);
        }
    }
}

/* Each allocation has to be there, or a scheduler is not made. */
static bool make_without(long refused)
{
    memory.refused = refused;
    memory.count = memory.live = 0;
    host_error_init(&failure);
    attn_status status = create_watched();
    ck_assert_int_eq(status, was_refused() ? ATTN_OUT_OF_HOST_MEMORY : ATTN_OK);
    if (status == ATTN_OK)
        return true;
    ck_assert_str_ne(host_error_text(&failure), "");
    ck_assert_int_eq(memory.live, 0);
    scheduler = NULL;
    return false;
}

/* Kinds of work, each with prefixes that are shared, where there are any. */
static void set_kind(int kind)
{
    params.page_size = 2;
    params.chunked_prefill_size = 8;
    params.num_pages = 60;
    switch (kind) {
    case 0:
        params.has_state = true;
        params.num_cached_states = 6;
        break;
    case 1:
        params.drafts = (struct drafts){.tokens = 6, .top_k = 2, .rate = 0.6, .seed = 3};
        params.window = (struct scheduler_window){.num_pages = 40, .left = 7};
        params.draft_model = true;
        break;
    case 2:
        params.window = (struct scheduler_window){.num_pages = 30, .left = -1, .chunk = 8};
        params.max_in_flight = 1;
        break;
    default:
        params.cross_len = 5;
        params.num_encoder_pages = 1 + 9;
        params.prefix_cache = false;
        break;
    }
    source.block_size = 4;
    for (int i = 0; i < 20; i++)
        add_to_source(14 + i % 5, 6 + i % 3, i % 4 == 3 ? "abx" : "abc");
}

LOOP_OF(memory, each_allocation_is_refused_once, 0, 4)
{
    bool refused = true;
    int made = 0;
    for (long n = HAS_SANITIZER ? 0 : 1; refused; n++) {
        tear_down();
        set_up();
        set_kind(_i);
        if (!make_without(n))
            continue;
        made++;
        add_all();
        for (const struct scheduler_step *step; (step = next_watched());) {
            passes_late = was_refused();
            run_step(step);
            complete_watched();
        }
        flush_watched();
        struct scheduler_counts counts;
        counts = *expect_counts();
        ck_assert_int_eq(counts.finished, source.num_requests);
        ck_assert(counts.prefix_hit > 0 || !params.prefix_cache);
        destroy_watched();
        refused = was_refused();
    }
    ck_assert_int_gt(made, 0);
}

GROUP(memory, .set_up = set_up, .tear_down = tear_down);
TESTS("scheduler_memory");
