/* SPDX-License-Identifier: Apache-2.0
 *
 * sources.c: the text of a kernel and of all that it includes.
 *
 * Headers are found by the #include lines themselves, so that a new one needs no list anywhere, and
 * all of them are handed to NVRTC as text: so the compiled text is the hashed text, even if a file
 * is saved in between. */
#include "triton_like.h"

#include "attn_plugin_util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of `folder`/`name`; NULL if it cannot be read. */
static char *read_beside(const char *folder, const char *between, const char *name)
{
    char path[3 * MAX_PATH];
    size_t size;
    int length = snprintf(path, sizeof path, "%s%s%s", folder, between, name);
    return length < (int)sizeof path ? read_file(path, &size) : NULL;
}

/* A header by the name in its #include: as it stands, or by its last part in the kernels' folder,
 * where installing puts all of them, or with the kernels that plugins share in the source tree. */
static char *read_header(const char *folder, const char *name)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    char *text = *name == '/' ? read_beside("", "", name) : read_beside(folder, "/", name);
    if (!text && slash)
        text = read_beside(folder, "/", last);
    if (!text && slash)
        text = read_beside(folder, "/../../common/cuda/", last);
    return text;
}

static int is_known(const kernel_sources *sources, const char *name)
{
    for (int i = 0; i < sources->num_headers; i++)
        if (strcmp(sources->names[i], name) == 0)
            return 1;
    return 0;
}

/* The name in `#include "name"`; 0 = the line is none. */
static int read_include(const char *line, char name[HEADER_NAME_SIZE])
{
    static const char *const words[] = {"#", "include", "\""};
    for (int i = 0; i < 3; i++) {
        line += strspn(line, " \t");
        if (strncmp(line, words[i], strlen(words[i])) != 0)
            return 0;
        line += strlen(words[i]);
    }
    size_t length = strcspn(line, "\"\n");
    if (line[length] != '"' || length == 0 || length >= HEADER_NAME_SIZE)
        return 0;
    memcpy(name, line, length);
    name[length] = '\0';
    return 1;
}

/* Read what a text includes. A header that is not there is left to the compiler, which reports in
 * which line it is missing, if it is needed at all. */
static attn_status read_headers_of(kernel_sources *sources, const char *folder, const char *text,
                                   attn_error *error)
{
    char name[HEADER_NAME_SIZE];
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!read_include(line, name) || is_known(sources, name))
            continue;
        char *header = read_header(folder, name);
        if (!header)
            continue;
        if (sources->num_headers == MAX_HEADERS) {
            free(header);
            return attn_util_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_OPTION,
                                        "kernel source %s includes more than %d headers",
                                        sources->path, MAX_HEADERS);
        }
        memcpy(sources->name_texts[sources->num_headers], name, sizeof name);
        sources->names[sources->num_headers] = sources->name_texts[sources->num_headers];
        sources->headers[sources->num_headers++] = header;
    }
    return ATTN_OK;
}

attn_status sources_init(kernel_sources *sources, const char *folder, const char *name,
                         attn_error *error)
{
    size_t size;
    memset(sources, 0, sizeof *sources);
    snprintf(sources->path, sizeof sources->path, "%s/%s", folder, name);
    sources->source = read_file(sources->path, &size);
    if (!sources->source)
        return attn_util_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_OPTION,
                                    "kernel source %s: %s; see option kernel_dir", sources->path,
                                    strerror(errno));
    attn_status status = read_headers_of(sources, folder, sources->source, error);
    for (int i = 0; i < sources->num_headers && status == ATTN_OK; i++)
        status = read_headers_of(sources, folder, sources->headers[i], error);
    if (status != ATTN_OK)
        sources_finish(sources);
    return status;
}

void sources_finish(kernel_sources *sources)
{
    free(sources->source);
    for (int i = 0; i < sources->num_headers; i++)
        free(sources->headers[i]);
    memset(sources, 0, sizeof *sources);
}
