/* SPDX-License-Identifier: Apache-2.0
 *
 * check_composites: what no composite may forget. For each one that the plugin has, a row for every
 * member of attn_backend_type and attn_backend_ops; the members come from the header
 * (abi/backend_members.awk), so that a new one without a row fails.
 *
 *   calls     how often a life that uses everything calls the slot of each child
 *   hidden    what becomes of it where a child does not have the slot
 */
#include "plugins/hybrid/tests/hybrid_fixture.h"

#include <string.h>

/* ---- The header's members -------------------------------------------------------------------- */

enum { DATA, NEEDED, OPTIONAL };

struct member {
    const char *name;
    size_t offset;
    int what;
};

static const struct member ops_members[] = {
#define OPS_MEMBER(name, what) {#name, offsetof(attn_backend_ops, name), what},
#define TYPE_MEMBER(name, what)
#include "tests/backend_members.inc"
#undef OPS_MEMBER
#undef TYPE_MEMBER
};

static const struct member type_members[] = {
#define OPS_MEMBER(name, what)
#define TYPE_MEMBER(name, what) {#name, offsetof(struct attn_backend_type, name), what},
#include "tests/backend_members.inc"
#undef OPS_MEMBER
#undef TYPE_MEMBER
};

/* ---- Rows ------------------------------------------------------------------------------------ */

enum { SOME = -1 }; /* at least one call */

struct slot_row {
    const char *name;
    int calls[MOCK_CHILDREN];
    uint32_t modes[MOCK_CHILDREN]; /* forward_*: those that a child without it refuses */
};

struct composite_row {
    const char *name;
    void (*start)(void);
    struct slot_row slots[16];
};

#define OWN(modes)                                                                                 \
    {                                                                                              \
        modes, modes                                                                               \
    }
#define EXTEND_MODES (BIT(EXTEND) | BIT(MIXED) | BIT(TARGET_VERIFY) | BIT(DRAFT_EXTEND))

/* Of two batches, EXTEND and DECODE, all three layers are called. */
static const struct composite_row composites[] = {
    {"hybrid_phase",
     start,
     {{"destroy", {1, 1}, {0}},
      {"prepare", {1, 1}, {0}},
      {"index_forms", {1, 1}, {0}},
      {"metadata_size", {SOME, SOME}, {0}},
      {"metadata_create", {1, 1}, {0}},
      {"init_forward_metadata", {1, 1}, {0}},
      {"metadata_destroy", {1, 1}, {0}},
      {"forward_extend", {3, 0}, {EXTEND_MODES, 0}},
      {"forward_decode", {0, 3}, {0, BIT(DECODE)}},
      {"get_extension", {1, 1}, {0}}}},
    {"hybrid_linear",
     start_linear,
     {{"destroy", {1, 1}, {0}},
      {"prepare", {1, 1}, {0}},
      {"index_forms", {1, 1}, {0}},
      {"metadata_size", {SOME, SOME}, {0}},
      {"metadata_create", {1, 1}, {0}},
      {"init_forward_metadata", {2, 2}, {0}},
      {"metadata_destroy", {1, 1}, {0}},
      {"forward_extend", {2, 1}, OWN(EXTEND_MODES)},
      {"forward_decode", {2, 1}, OWN(BIT(DECODE))},
      {"get_extension", {1, 1}, {0}}}},
    {"route", /* rows of MIXED have metadata of their own */
     start_route,
     {{"destroy", {1, 1}, {0}},
      {"prepare", {1, 1}, {0}},
      {"index_forms", {1, 1}, {0}},
      {"metadata_size", {SOME, SOME}, {0}},
      {"metadata_create", {1, 2}, {0}},
      {"init_forward_metadata", {1, 1}, {0}},
      {"metadata_destroy", {1, 2}, {0}},
      {"forward_extend", {3, 0}, {EXTEND_MODES, 0}},
      {"forward_decode", {0, 3}, {0, BIT(DECODE)}},
      {"get_extension", {1, 1}, {0}}}},
    {"autotune", /* the first one serves, and both must be able to */
     start_autotune,
     {{"destroy", {1, 1}, {0}},
      {"prepare", {1, 1}, {0}},
      {"index_forms", {1, 1}, {0}},
      {"metadata_size", {SOME, SOME}, {0}},
      {"metadata_create", {2, 0}, {0}},
      {"init_forward_metadata", {2, 0}, {0}},
      {"metadata_destroy", {2, 0}, {0}},
      {"forward_extend", {3, 0}, OWN(EXTEND_MODES)},
      {"forward_decode", {3, 0}, OWN(BIT(DECODE))},
      {"get_extension", {1, 1}, {0}}}},
};

static const struct slot_row *find_row(const struct composite_row *row, const char *name)
{
    for (int s = 0; s < COUNT(row->slots) && row->slots[s].name; s++)
        if (strcmp(row->slots[s].name, name) == 0)
            return &row->slots[s];
    return NULL;
}

/* The index of a slot among the mock's counters: its place in the table. */
static int slot_index(const struct member *member)
{
    return (int)((member->offset - offsetof(attn_backend_ops, destroy)) / sizeof(void (*)(void)));
}

static const int num_composites = COUNT(composites), num_ops = COUNT(ops_members);

/* ---- A life ---------------------------------------------------------------------------------- */

static int progressed;

static void count_progress(void *ctx, uint32_t done, uint32_t total, const char *what)
{
    ck_assert_ptr_eq(ctx, &progressed);
    ck_assert_uint_eq(done, 1);
    ck_assert_uint_eq(total, 2);
    ck_assert_str_eq(what, mock_children[progressed].name);
    progressed++;
}

static const char id[] = "attn.test/1";

/* All layers of a batch; the first status that is not ATTN_OK. */
static attn_status run_batch(uint32_t mode)
{
    attn_batch batch = plain_batch(mode);
    make_args();
    attn_status status = plan(&batch);
    for (int l = 0; l < 3 && status == ATTN_OK; l++)
        status = (mode == ATTN_MODE_DECODE ? OPS->forward_decode : OPS->forward_extend)(
            metadata, layers[l].layer_id, &args, NULL, &error);
    return status;
}

/* ---- Every member ---------------------------------------------------------------------------- */

/* The plugin has no other composites than the ones with rows, and its table the header's slots. */
TEST_OF(members, every_composite_has_rows)
{
    attn_host_info host = {sizeof host, 0, ATTN_ABI_MAJOR, 0, "host", "1", NULL};
    attn_plugin plugin = {.struct_size = sizeof plugin};
    ck_assert_int_eq(attn_plugin_entry(&host, &plugin, NULL), ATTN_OK);
    for (uint32_t b = 0; b < plugin.num_backends; b++) {
        const attn_backend_type *type;
        int found = 0;
        ck_assert_int_eq(plugin.describe(b, &type, NULL), ATTN_OK);
        for (int c = 0; c < num_composites; c++)
            found |= strcmp(composites[c].name, type->name) == 0;
        ck_assert_msg(found || !(type->flags & ATTN_BACKEND_COMPOSITE), "%s has no rows",
                      type->name);
    }
}

LOOP_OF(members, every_slot_has_a_row, 0, (num_composites * num_ops))
{
    const struct composite_row *row = &composites[_i / num_ops];
    const struct member *member = &ops_members[_i % num_ops];
    void (*slot)(void);
    if (member->what == DATA)
        return;
    row->start();
    ck_assert_str_eq(composite->name, row->name);
    ck_assert_msg(find_row(row, member->name) != NULL, "%s: no row for the slot %s", row->name,
                  member->name);
    memcpy(&slot, (const char *)composite->ops + member->offset, sizeof slot);
    ck_assert_msg(slot != NULL, "%s hides %s, which a child may have", row->name, member->name);
    ck_assert_int_lt(slot_index(member), MOCK_SLOTS);
}

LOOP_OF(members, every_slot_is_forwarded, 0, num_composites)
{
    const struct composite_row *row = &composites[_i];
    row->start();
    progressed = 0;
    PRE->index_forms = ATTN_INDEX_CSR;
    DEC->index_forms = ATTN_INDEX_BLOCK_TABLE;
    ready();
    ck_assert_int_eq(OPS->prepare(instance, count_progress, &progressed, &error), ATTN_OK);
    ck_assert_uint_eq(OPS->index_forms(instance), ATTN_INDEX_CSR | ATTN_INDEX_BLOCK_TABLE);
    ck_assert_ptr_eq(OPS->get_extension(instance, id), id);
    ck_assert_msg(run_batch(ATTN_MODE_EXTEND) == ATTN_OK, "%s", message);
    ck_assert_msg(run_batch(ATTN_MODE_DECODE) == ATTN_OK, "%s", message);
    finish();
    for (int m = 0; m < num_ops; m++) {
        const struct slot_row *slot = find_row(row, ops_members[m].name);
        for (int c = 0; c < MOCK_CHILDREN && slot; c++) {
            int calls = mock_children[c].calls[slot_index(&ops_members[m])];
            ck_assert_msg(slot->calls[c] == SOME ? calls > 0 : calls == slot->calls[c],
                          "%s: %s of %s was called %d times, not %d", row->name, slot->name,
                          mock_children[c].name, calls, slot->calls[c]);
        }
    }
}

/* ---- Slots that a child hides ---------------------------------------------------------------- */

static void hide(mock_child *child, const struct member *member)
{
    memset((char *)&child->ops + member->offset, 0, sizeof(void (*)(void)));
}

/* A forward of a child that has none is refused with both names, and the other child's is not
 * touched by that; asked beforehand, the child says no, and so does the composite. */
static void check_hidden_forward(const struct composite_row *row, const struct slot_row *slot,
                                 int hidden)
{
    uint32_t mode = strcmp(slot->name, "forward_decode") ? ATTN_MODE_EXTEND : ATTN_MODE_DECODE;
    mock_child *child = &mock_children[hidden];
    attn_status expected = slot->calls[hidden] ? ATTN_UNSUPPORTED : ATTN_OK;
    ck_assert_int_eq(run_batch(mode), expected);
    if (expected != ATTN_OK) {
        ck_assert_ptr_nonnull(strstr(message, child->name));
        ck_assert_ptr_nonnull(strstr(message, slot->name));
    }
    attn_verdict verdict = {.struct_size = sizeof verdict};
    child->refused_modes = slot->modes[hidden];
    attn_problem *problem = &problems[strcmp(row->name, "hybrid_linear") == 0 ? hidden : 0];
    ck_assert_int_eq(
        composite->query(composite, &options, &mock_services, problem, &verdict, &error), ATTN_OK);
    ck_assert_uint_eq(verdict.supported, slot->modes[hidden] == 0);
}

/* One child, or both, without an optional slot. */
LOOP_OF(hidden, hidden_slots_are_answered_for, 0, (num_composites * num_ops * 2))
{
    const struct composite_row *row = &composites[_i / (num_ops * 2)];
    const struct member *member = &ops_members[_i / 2 % num_ops];
    int hidden = _i % 2;
    if (member->what != OPTIONAL)
        return;
    const struct slot_row *slot = find_row(row, member->name);
    int index = slot_index(member);
    row->start();
    hide(&mock_children[hidden], member);
    ready();
    if (strcmp(member->name, "prepare") == 0) {
        ck_assert_int_eq(OPS->prepare(instance, NULL, NULL, &error), ATTN_OK);
        ck_assert_int_eq(mock_children[!hidden].calls[index], 1);
        hide(&mock_children[!hidden], member);
        ck_assert_int_eq(OPS->prepare(instance, NULL, NULL, &error), ATTN_OK);
    } else if (strcmp(member->name, "get_extension") == 0) {
        ck_assert_ptr_eq(OPS->get_extension(instance, id), id);
        hide(&mock_children[!hidden], member);
        ck_assert_ptr_null(OPS->get_extension(instance, id));
    } else if (strncmp(member->name, "forward_", 8) == 0) {
        check_hidden_forward(row, slot, hidden);
    } else {
        ck_abort_msg("%s: it is not said what hiding %s means", row->name, member->name);
    }
    ck_assert_int_eq(mock_children[hidden].calls[index], 0);
    finish();
}

/* A child of older headers, whose table ends before the last slot. */
LOOP_OF(hidden, shorter_table_of_a_child, 0, num_composites)
{
    composites[_i].start();
    PRE->ops.struct_size = DEC->ops.struct_size = offsetof(attn_backend_ops, get_extension);
    ready();
    ck_assert_ptr_null(OPS->get_extension(instance, id));
    ck_assert_int_eq(run_batch(ATTN_MODE_EXTEND), ATTN_OK);
    finish();
}

/* Two answers that differ: neither speaks for the composite. */
LOOP_OF(hidden, extensions_that_differ, 0, num_composites)
{
    composites[_i].start();
    ready();
    DEC->extension = "another";
    ck_assert_ptr_null(OPS->get_extension(instance, id));
    PRE->extension = DEC->extension;
    ck_assert_ptr_eq(OPS->get_extension(instance, id), DEC->extension);
    PRE->ops.get_extension = NULL;
    ck_assert_ptr_eq(OPS->get_extension(instance, id), DEC->extension);
    finish();
}

/* The children have the same paths, which take their own metadata: nothing for the
 * composite's. */
LOOP_OF(hidden, paths_are_not_passed_on, 0, num_composites)
{
    composites[_i].start();
    ready();
    ck_assert_ptr_null(OPS->get_extension(instance, ATTN_EXTENSION_CODE_PATHS));
    finish();
}

/* ---- The type -------------------------------------------------------------------------------- */

static void type_size(void)
{
    ck_assert_uint_eq(composite->struct_size, sizeof *composite);
}

static void type_flags(void)
{
    ck_assert_uint_eq(composite->flags, ATTN_BACKEND_COMPOSITE);
}

static void type_texts(void)
{
    ck_assert_ptr_nonnull(composite->name);
    ck_assert(*composite->doc);
}

static void type_options(void)
{
    uint32_t refs = 0;
    for (uint32_t o = 0; o < composite->num_options; o++)
        refs +=
            ((const attn_option *)attn_at(composite->options, o))->type == ATTN_OPTION_BACKEND_REF;
    ck_assert_uint_gt(refs, 0);
}

/* Whatever layout a child can read is passed on. */
static void type_layouts(void)
{
    static const char *const all[] = {
        ATTN_LAYOUT_KV_NHD,         ATTN_LAYOUT_KV_HND,       ATTN_LAYOUT_MLA_LATENT,
        ATTN_LAYOUT_MLA_LATENT_FP8, ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
        ATTN_LAYOUT_STATE_CONV,
    };
    for (int a = 0; a < COUNT(all); a++) {
        int found = 0;
        for (uint32_t l = 0; l < composite->num_layouts; l++)
            found |= strcmp(composite->layouts[l], all[a]) == 0;
        ck_assert_msg(found, "%s", all[a]);
    }
}

static void type_ops(void)
{
    ck_assert_uint_eq(composite->ops->struct_size, sizeof *composite->ops);
    ck_assert_uint_eq(composite->ops->reserved, 0);
}

/* Each child is asked about one problem or the other, and a no of it is the composite's. */
static void type_query(void)
{
    int asked[MOCK_CHILDREN] = {0};
    for (int p = 0; p < 2; p++)
        for (int c = 0; c < MOCK_CHILDREN; c++) {
            attn_verdict verdict = {.struct_size = sizeof verdict};
            int before = mock_children[c].queries;
            mock_children[c].verdict.supported = 0;
            mock_children[c].verdict.num_reasons = 1;
            ck_assert_int_eq(composite->query(composite, &options, &mock_services, &problems[p],
                                              &verdict, &error),
                             ATTN_OK);
            asked[c] |= mock_children[c].queries > before;
            ck_assert_uint_eq(verdict.supported, mock_children[c].queries == before);
            mock_children[c].verdict.supported = 1;
            mock_children[c].verdict.num_reasons = 0;
        }
    ck_assert(asked[MOCK_PRE] && asked[MOCK_DEC]);
}

/* Both are made, and a failure of either leaves nothing. */
static void type_create(void)
{
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        mock_children[c].create_status = ATTN_TIMEOUT;
        ck_assert_int_eq(create(), ATTN_TIMEOUT);
        ck_assert_ptr_null(instance);
        check_nothing_left();
        mock_children[c].create_status = ATTN_OK;
    }
    ck_assert_int_eq(create(), ATTN_OK);
    ck_assert_int_eq(PRE->live, 1);
    ck_assert_int_eq(DEC->live, 1);
    OPS->destroy(instance);
    check_nothing_left();
}

/* None: only the vendor knows the rows of a private operand (PRIV-03). */
static void type_operands(void)
{
    ck_assert_uint_eq(composite->num_operands, 0);
    ck_assert_uint_eq(composite->reserved, 0);
    ck_assert_ptr_null(composite->operands);
}

LOOP_OF(members, every_member_of_the_type, 0, (num_composites * COUNT(type_members)))
{
    static const struct {
        const char *name;
        void (*check)(void);
    } table[] = {
        {"struct_size", type_size},
        {"flags", type_flags},
        {"name", type_texts},
        {"doc", type_texts},
        {"num_options", type_options},
        {"options", type_options},
        {"num_layouts", type_layouts},
        {"layouts", type_layouts},
        {"ops", type_ops},
        {"query", type_query},
        {"create", type_create},
        {"num_operands", type_operands},
        {"reserved", type_operands},
        {"operands", type_operands},
    };
    const struct member *member = &type_members[_i % COUNT(type_members)];
    composites[_i / COUNT(type_members)].start();
    int row = 0;
    while (row < COUNT(table) && strcmp(table[row].name, member->name) != 0)
        row++;
    ck_assert_msg(row < COUNT(table), "no row for attn_backend_type.%s", member->name);
    table[row].check();
}

TESTS("composites");
