#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# embed.sh NAME FATBIN CODES: C that embeds what nvcc has compiled, for image.h:
#
#   NAME_fatbin[]         the file, 64-byte aligned
#   NAME_fatbin_size      bytes, 64 bits
#   NAME_fatbin_codes[]   CODES, as "sm_80 sm_90a"
#
# FATBIN is read when the C is compiled. For ELF; the symbols are hidden.
cat <<END
__asm__(".section .rodata\n.balign 64\n"
        ".globl $1_fatbin\n.hidden $1_fatbin\n.type $1_fatbin STT_OBJECT\n"
        "$1_fatbin:\n.incbin \"$2\"\n"
        ".L$1_end:\n.balign 8\n"
        ".globl $1_fatbin_size\n.hidden $1_fatbin_size\n.type $1_fatbin_size STT_OBJECT\n"
        "$1_fatbin_size:\n.quad .L$1_end - $1_fatbin\n"
        ".globl $1_fatbin_codes\n.hidden $1_fatbin_codes\n.type $1_fatbin_codes STT_OBJECT\n"
        "$1_fatbin_codes:\n.asciz \"$3\"\n.text\n");
END
