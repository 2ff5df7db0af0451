/* SPDX-License-Identifier: Apache-2.0
 *
 * golden_file.h: reading the records of tests/golden: `case NAME`, fields `key count value...`,
 * `end`. Every field is a list of doubles.
 */
#ifndef GOLDEN_FILE_H
#define GOLDEN_FILE_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_FIELDS = 48 };

typedef struct golden_case {
    char name[64];
    int num_fields;
    struct {
        char key[32];
        int64_t count;
        double *values;
    } fields[GOLDEN_FIELDS];
} golden_case;

/* Open tests/golden/NAME; fails the test if it is not there. Its first line, a remark, is skipped.
 */
static inline FILE *golden_open(const char *name)
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s", top ? top : ".", name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    int character;
    do
        character = getc(file);
    while (character != '\n' && character != EOF);
    return file;
}

/* The next record, or 0 at the end of the file. */
static inline int golden_next(FILE *file, golden_case *record)
{
    char word[64];
    memset(record, 0, sizeof *record);
    if (fscanf(file, " case %63s", record->name) != 1)
        return 0;
    while (fscanf(file, " %31s", word) == 1 && strcmp(word, "end") != 0) {
        ck_assert_int_lt(record->num_fields, GOLDEN_FIELDS);
        int n = record->num_fields++;
        snprintf(record->fields[n].key, sizeof record->fields[n].key, "%.31s", word);
        long long count;
        ck_assert_int_eq(fscanf(file, " %lld", &count), 1);
        record->fields[n].count = count;
        record->fields[n].values = calloc((size_t)count + 1, sizeof(double));
        for (long long i = 0; i < count; i++) {
            ck_assert_int_eq(fscanf(file, " %63s", word), 1);
            record->fields[n].values[i] = strtod(word, NULL);
        }
    }
    ck_assert_str_eq(word, "end");
    return 1;
}

static inline void golden_finish(golden_case *record)
{
    for (int n = 0; n < record->num_fields; n++)
        free(record->fields[n].values);
}

/* The values of a field, NULL if the record has none; *count may be NULL. */
static inline const double *golden_find(const golden_case *record, const char *key, int64_t *count)
{
    for (int n = 0; n < record->num_fields; n++) {
        if (strcmp(record->fields[n].key, key) == 0) {
            if (count)
                *count = record->fields[n].count;
            return record->fields[n].values;
        }
    }
    if (count)
        *count = 0;
    return NULL;
}

/* A field that must be there. */
static inline const double *golden_get(const golden_case *record, const char *key, int64_t *count)
{
    const double *values = golden_find(record, key, count);
    ck_assert_msg(values != NULL, "case %s has no %s", record->name, key);
    return values;
}

/* A field of one value. */
static inline double golden_number(const golden_case *record, const char *key)
{
    int64_t count;
    const double *values = golden_get(record, key, &count);
    ck_assert_int_eq(count, 1);
    return values[0];
}

#endif /* GOLDEN_FILE_H */
