/* SPDX-License-Identifier: Apache-2.0
 *
 * elf_file.c: see elf_file.h. Sources: System V ABI, chapter 5; the GNU hash table as glibc's
 * elf/dl-lookup.c walks it.
 */
#include "host/plugin/elf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/base/error.h"

/* `size` bytes at an offset of the file; NULL if it does not have them, or they are misaligned. */
static const void *at_offset(const struct elf_file *elf, uint64_t offset, uint64_t size,
                             size_t alignment)
{
    bool there = offset <= elf->size && size <= elf->size - offset;
    return there && offset % alignment == 0 ? elf->bytes + offset : NULL;
}

/* The nth program header; NULL beyond the last. */
static const ElfW(Phdr) * segment(const struct elf_file *elf, unsigned n)
{
    const ElfW(Ehdr) *header = elf->header;
    uint64_t offset = header->e_phoff + (uint64_t)n * sizeof(ElfW(Phdr));
    return n < header->e_phnum ? at_offset(elf, offset, sizeof(ElfW(Phdr)), _Alignof(ElfW(Phdr)))
                               : NULL;
}

/* What would be at an address once the file is loaded, and how much of it there is. */
static const void *at_address(const struct elf_file *elf, uint64_t address, size_t alignment,
                              uint64_t *left)
{
    const ElfW(Phdr) * load;
    for (unsigned n = 0; (load = segment(elf, n)); n++)
        if (load->p_type == PT_LOAD && address >= load->p_vaddr &&
            address - load->p_vaddr < load->p_filesz) {
            *left = load->p_filesz - (address - load->p_vaddr);
            return at_offset(elf, load->p_offset + (address - load->p_vaddr), *left, alignment);
        }
    return NULL;
}

const ElfW(Phdr) * elf_segment(const struct elf_file *elf, uint32_t type)
{
    const ElfW(Phdr) * found;
    unsigned n = 0;
    while ((found = segment(elf, n)) && found->p_type != type)
        n++;
    return found;
}

bool elf_dynamic(const struct elf_file *elf, int64_t tag, uint64_t *value)
{
    for (size_t d = 0; d < elf->num_dynamic && elf->dynamic[d].d_tag != DT_NULL; d++)
        if (elf->dynamic[d].d_tag == tag) {
            *value = elf->dynamic[d].d_un.d_val;
            return true;
        }
    return false;
}

/* ---- Symbols --------------------------------------------------------------------------------- */

/* The table of symbols has no length; the hash table, through which every exported one is found,
 * says how far it goes. */
static size_t count_by_sysv_hash(const struct elf_file *elf, uint64_t address)
{
    uint64_t left = 0;
    const uint32_t *table =
        at_address(elf, address, sizeof *table, &left); /* buckets, chains, ... */
    return table && left >= 8 ? table[1] : 0;
}

static size_t count_by_gnu_hash(const struct elf_file *elf, uint64_t address)
{
    uint64_t left = 0;
    const uint32_t *table = at_address(elf, address, sizeof *table, &left);
    if (!table || left < 16)
        return 0;
    uint64_t words = left / 4, num_buckets = table[0], first = table[1];
    uint64_t buckets = 4 + table[2] * (sizeof(ElfW(Addr)) / 4), chains = buckets + num_buckets;
    uint64_t last = 0;
    if (chains > words)
        return 0;
    for (uint64_t b = 0; b < num_buckets; b++)
        last = table[buckets + b] > last ? table[buckets + b] : last;
    if (last < first)
        return first;
    while (chains + (last - first) < words && !(table[chains + (last - first)] & 1))
        last++;
    return last + 1;
}

static bool find_symbols(struct elf_file *elf)
{
    uint64_t address, left = 0, strings_left = 0, strings_size = 0;
    if (elf_dynamic(elf, DT_GNU_HASH, &address))
        elf->num_symbols = count_by_gnu_hash(elf, address);
    else if (elf_dynamic(elf, DT_HASH, &address))
        elf->num_symbols = count_by_sysv_hash(elf, address);
    if (!elf_dynamic(elf, DT_SYMTAB, &address))
        return false;
    elf->symbols = at_address(elf, address, _Alignof(ElfW(Sym)), &left);
    if (!elf_dynamic(elf, DT_STRTAB, &address) || !elf_dynamic(elf, DT_STRSZ, &strings_size))
        return false;
    elf->strings = at_address(elf, address, 1, &strings_left);
    elf->strings_size = strings_size < strings_left ? strings_size : strings_left;
    return elf->symbols && elf->strings && elf->num_symbols <= left / sizeof *elf->symbols;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static bool find_dynamic(struct elf_file *elf)
{
    const ElfW(Phdr) *dynamic = elf_segment(elf, PT_DYNAMIC);
    if (!dynamic)
        return false;
    elf->dynamic = at_offset(elf, dynamic->p_offset, dynamic->p_filesz, _Alignof(ElfW(Dyn)));
    elf->num_dynamic = dynamic->p_filesz / sizeof *elf->dynamic;
    return elf->dynamic != NULL;
}

static bool map(const char *path, struct elf_file *elf)
{
    struct stat info;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool good = fstat(descriptor, &info) == 0 && info.st_size >= (off_t)sizeof *elf->header;
    void *bytes =
        good ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
    close(descriptor);
    if (bytes == MAP_FAILED)
        return false;
    elf->bytes = bytes;
    elf->size = (size_t)info.st_size;
    elf->header = bytes;
    return true;
}

attn_status elf_open(const char *path, struct elf_file *elf, attn_error *error)
{
    memset(elf, 0, sizeof *elf);
    if (!map(path, elf))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    if (find_dynamic(elf) && find_symbols(elf))
        return ATTN_OK;
    elf_close(elf);
    return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: its dynamic section cannot be read", path);
}

void elf_close(struct elf_file *elf)
{
    if (elf->bytes)
        munmap((void *)(uintptr_t)elf->bytes, elf->size);
    memset(elf, 0, sizeof *elf);
}

const char *elf_string(const struct elf_file *elf, uint64_t offset)
{
    if (offset >= elf->strings_size ||
        !memchr(elf->strings + offset, '\0', elf->strings_size - offset))
        return "";
    return elf->strings + offset;
}

const char *elf_needed(const struct elf_file *elf, size_t n)
{
    for (size_t d = 0; d < elf->num_dynamic && elf->dynamic[d].d_tag != DT_NULL; d++) {
        int64_t tag = elf->dynamic[d].d_tag;
        bool loads = tag == DT_NEEDED || tag == DT_AUXILIARY || tag == DT_FILTER;
        if (loads && n-- == 0)
            return elf_string(elf, elf->dynamic[d].d_un.d_val);
    }
    return NULL;
}
