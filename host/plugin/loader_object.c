/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_object.c: checks that a file is a complete shared object for this machine. Reads the ELF
 * header and the program headers (System V ABI, chapter 4 and 5).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* ElfW */
#endif
#include "host/plugin/loader.h"

#include "host/base/error.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __SIZEOF_POINTER__ == 8
#define NATIVE_CLASS ELFCLASS64
#else
#define NATIVE_CLASS ELFCLASS32
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NATIVE_DATA ELFDATA2LSB
#else
#define NATIVE_DATA ELFDATA2MSB
#endif

#if defined(__x86_64__)
#define NATIVE_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define NATIVE_MACHINE EM_AARCH64
#elif defined(__powerpc64__)
#define NATIVE_MACHINE EM_PPC64
#elif defined(__riscv)
#define NATIVE_MACHINE EM_RISCV
#endif

static int read_at(int descriptor, uint64_t offset, void *bytes, size_t size)
{
    return pread(descriptor, bytes, size, (off_t)offset) == (ssize_t)size;
}

static attn_status fail_cut_off(const char *file, attn_error *error)
{
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: the file is cut off; accepted: a whole shared object", file);
}

static attn_status check_magic(const char *file, int descriptor, attn_error *error)
{
    unsigned char head[SELFMAG] = {0};
    if (!read_at(descriptor, 0, head, sizeof head))
        return host_fail(
            error, ATTN_INVALID_ARGUMENT,
            "%s: not an ELF file: it has less than %d bytes; accepted: a shared object", file,
            SELFMAG);
    if (memcmp(head, ELFMAG, SELFMAG) == 0)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: not an ELF file (it begins with %02x %02x %02x %02x); accepted: a shared "
                     "object",
                     file, head[0], head[1], head[2], head[3]);
}

static attn_status check_header(const char *file, const ElfW(Ehdr) * header, attn_error *error)
{
    int native =
        header->e_ident[EI_CLASS] == NATIVE_CLASS && header->e_ident[EI_DATA] == NATIVE_DATA;
#ifdef NATIVE_MACHINE
    native = native && header->e_machine == NATIVE_MACHINE;
#endif
    if (!native)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: an ELF file for another machine (class %u, machine %u); accepted: a "
                         "shared object for this one",
                         file, header->e_ident[EI_CLASS], header->e_machine);
    if (header->e_type != ET_DYN || header->e_phentsize != sizeof(ElfW(Phdr)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: an ELF file of type %u; accepted: a shared object (%d)", file,
                         header->e_type, ET_DYN);
    return ATTN_OK;
}

/* Does the file reach to the end of every segment that would be mapped? */
static attn_status check_segments(const char *file, int descriptor, const ElfW(Ehdr) * header,
                                  attn_error *error)
{
    struct stat info;
    if (fstat(descriptor, &info) != 0)
        return fail_cut_off(file, error);
    uint64_t size = (uint64_t)info.st_size;
    for (unsigned s = 0; s < header->e_phnum; s++) {
        ElfW(Phdr) segment;
        uint64_t place = (uint64_t)header->e_phoff + (uint64_t)s * sizeof segment;
        if (place > size || !read_at(descriptor, place, &segment, sizeof segment))
            return fail_cut_off(file, error);
        int mapped = segment.p_type == PT_LOAD;
        if (mapped && (segment.p_offset > size || segment.p_filesz > size - segment.p_offset))
            return fail_cut_off(file, error);
    }
    return ATTN_OK;
}

attn_status loader_check_object(const char *file, int descriptor, attn_error *error)
{
    ElfW(Ehdr) header;
    attn_status status = check_magic(file, descriptor, error);
    if (status != ATTN_OK)
        return status;
    if (!read_at(descriptor, 0, &header, sizeof header))
        return fail_cut_off(file, error);
    status = check_header(file, &header, error);
    return status == ATTN_OK ? check_segments(file, descriptor, &header, error) : status;
}
