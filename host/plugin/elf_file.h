/* SPDX-License-Identifier: Apache-2.0
 *
 * elf_file.h: a shared object's dynamic section, read like the dynamic linker by program headers,
 * so that files without section headers work. A file may be truncated or corrupt.
 */
#ifndef HOST_PLUGIN_ELF_FILE_H
#define HOST_PLUGIN_ELF_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* ElfW */
#endif
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn_types.h"

struct elf_file {
    const unsigned char *bytes; /* mapped */
    size_t size;
    const ElfW(Ehdr) * header;
    const ElfW(Dyn) * dynamic;
    size_t num_dynamic;
    const ElfW(Sym) * symbols;
    size_t num_symbols;
    const char *strings;
    size_t strings_size;
};

/* INVALID_ARGUMENT with what is wrong. */
attn_status elf_open(const char *path, struct elf_file *elf, attn_error *error);
void elf_close(struct elf_file *elf);

/* The program header of this type, or NULL. */
const ElfW(Phdr) * elf_segment(const struct elf_file *elf, uint32_t type);

/* The value of a tag of the dynamic section; false if it is not there. */
bool elf_dynamic(const struct elf_file *elf, int64_t tag, uint64_t *value);

/* The name of the nth library that is loaded with it: needed, or a filter; NULL beyond the last. */
const char *elf_needed(const struct elf_file *elf, size_t n);

/* A string of the table that symbols and library names lie in; "" for an offset beyond it. */
const char *elf_string(const struct elf_file *elf, uint64_t offset);

#endif /* HOST_PLUGIN_ELF_FILE_H */
