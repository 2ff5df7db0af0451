/* SPDX-License-Identifier: Apache-2.0
 *
 * numbered.c: the values of pin.<n> and route.<n>. The member is an array that is kept in
 * ascending order of n.
 */
#include <stdlib.h>
#include <string.h>

#include "host/config/keys.h"

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

static bool parse_sha256(const char *text, uint8_t digest[32])
{
    for (size_t i = 0; i < 32; i++) {
        int high = hex_digit(text[2 * i]);
        int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        digest[i] = (uint8_t)(high * 16 + low);
    }
    return text[64] == '\0';
}

static const char *parse_pin(const struct config_key *key, const struct config_value *value,
                             void *member)
{
    struct config_pins *list = member;
    uint8_t digest[32];
    /* The file's name may hold spaces; the digest is the last word. */
    size_t length = strlen(value->text), end = length;
    (void)key;
    while (end > 0 && !text_is_space(value->text[end - 1]))
        end--;
    if (end == 0 || !parse_sha256(value->text + end, digest))
        return "is not a file and a digest";
    while (end > 0 && text_is_space(value->text[end - 1]))
        end--;
    if (end == 0)
        return "is not a file and a digest";
    char *name = strndup(value->text, end);
    char *file = name ? config_path(value->base, name) : NULL;
    free(name);
    struct config_pin *pin = file ? config_add_item(&list->items, &list->count, sizeof *pin) : NULL;
    if (!pin) {
        free(file);
        return text_out_of_memory;
    }
    struct config_pin added = {.number = value->number, .place = value->place, .file = file};
    memcpy(added.sha256, digest, sizeof digest);
    for (; pin > list->items && pin[-1].number > added.number; pin--)
        *pin = pin[-1];
    *pin = added;
    return NULL;
}

static void finish_pins(void *member)
{
    struct config_pins *list = member;
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].file);
    free(list->items);
    memset(list, 0, sizeof *list);
}

static void accept_pin(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "FILE SHA256, the digest as 64 hexadecimal digits");
}

static const char *parse_route(const struct config_key *key, const struct config_value *value,
                               void *member)
{
    struct config_routes *list = member;
    (void)key;
    if (!strstr(value->text, "->"))
        return "is not a route";
    char *text = strdup(value->text);
    struct config_route *route =
        text ? config_add_item(&list->items, &list->count, sizeof *route) : NULL;
    if (!route) {
        free(text);
        return text_out_of_memory;
    }
    for (; route > list->items && route[-1].number > value->number; route--)
        *route = route[-1];
    *route = (struct config_route){.number = value->number, .place = value->place, .text = text};
    return NULL;
}

static void finish_routes(void *member)
{
    struct config_routes *list = member;
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i].text);
    free(list->items);
    memset(list, 0, sizeof *list);
}

static void accept_route(const struct config_key *key, strbuf *text)
{
    (void)key;
    strbuf_append(text, "CONDITIONS -> NAME, such as layers=0-3 phase=decode -> cpu_native");
}

const struct config_kind config_kind_pin = {parse_pin, finish_pins, accept_pin, true};
const struct config_kind config_kind_route = {parse_route, finish_routes, accept_route, false};
