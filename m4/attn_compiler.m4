# SPDX-License-Identifier: Apache-2.0

# ATTN_TRY_FLAGS(FLAGS, PROLOGUE, BODY, IF-YES, IF-NO)
# Does a program compile (not: run) with these flags added?
AC_DEFUN([ATTN_TRY_FLAGS], [
    attn_saved_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $1 -Werror"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([$2], [$3])], [attn_flags_work=yes], [attn_flags_work=no])
    CFLAGS=$attn_saved_CFLAGS
    AS_IF([test "$attn_flags_work" = yes], [$4], [$5])])

# ATTN_CHECK_ISA(NAME, FLAGS, BODY)
# Instruction sets beyond the build's baseline, for files that are compiled once for each and
# chosen at run time. Substitutes NAME_CFLAGS, sets the conditional HAVE_NAME.
AC_DEFUN([ATTN_CHECK_ISA], [
    AC_CACHE_CHECK([whether $CC can compile for $1], [attn_cv_isa_$1],
        [ATTN_TRY_FLAGS([$2], [[#include <immintrin.h>]], [$3],
                        [attn_cv_isa_$1=yes], [attn_cv_isa_$1=no])])
    AC_SUBST([$1_CFLAGS], ["$2"])
    AM_CONDITIONAL([HAVE_$1], [test "$attn_cv_isa_$1" = yes])])

# ATTN_ADD_FLAG(VARIABLE, FLAG): append the flag where the compiler knows it.
AC_DEFUN([ATTN_ADD_FLAG], [
    AS_VAR_PUSHDEF([attn_var], [attn_cv_flag_$2])
    AC_CACHE_CHECK([whether $CC knows $2], [attn_var],
        [ATTN_TRY_FLAGS([$2], [], [], [AS_VAR_SET([attn_var], [yes])],
                        [AS_VAR_SET([attn_var], [no])])])
    AS_VAR_IF([attn_var], [yes], [$1="$$1 $2"])
    AS_VAR_POPDEF([attn_var])])

# ATTN_SANITIZERS: --enable-sanitizers[=LIST]; substitutes SANITIZER_FLAGS, and SANITIZER_VECTOR_FLAGS
# for files with vectors of 64 bytes on the stack: where use after return is looked for, GCC 12 stores
# them as if what stands for the stack were aligned for them (a vmovdqa64 that faults). Sets
# attn_sanitizers.
AC_DEFUN([ATTN_SANITIZERS], [
    AC_ARG_ENABLE([sanitizers],
        [AS_HELP_STRING([--enable-sanitizers@<:@=LIST@:>@],
            [instrument everything; LIST as of -fsanitize (default: address,undefined)])],
        [attn_sanitizers=$enableval], [attn_sanitizers=no])
    AS_IF([test "$attn_sanitizers" = yes], [attn_sanitizers=address,undefined])
    SANITIZER_FLAGS= SANITIZER_VECTOR_FLAGS=
    AS_IF([test "$attn_sanitizers" != no],
        [SANITIZER_FLAGS="-fsanitize=$attn_sanitizers -fno-sanitize-recover=all"
         SANITIZER_FLAGS="$SANITIZER_FLAGS -fno-omit-frame-pointer"
         attn_saved_LDFLAGS=$LDFLAGS attn_saved_CFLAGS=$CFLAGS
         LDFLAGS="$LDFLAGS $SANITIZER_FLAGS" CFLAGS="$CFLAGS $SANITIZER_FLAGS"
         AC_MSG_CHECKING([whether programs link with -fsanitize=$attn_sanitizers])
         AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
             [AC_MSG_RESULT([no])
              AC_MSG_ERROR([$CC cannot build with -fsanitize=$attn_sanitizers])])
         CFLAGS="$CFLAGS -Werror --param=asan-use-after-return=0"
         AC_MSG_CHECKING([whether $CC takes --param=asan-use-after-return=0])
         AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
             [AC_MSG_RESULT([yes])
              SANITIZER_VECTOR_FLAGS=--param=asan-use-after-return=0],
             [AC_MSG_RESULT([no])])
         LDFLAGS=$attn_saved_LDFLAGS CFLAGS=$attn_saved_CFLAGS])
    AC_SUBST([SANITIZER_FLAGS])
    AC_SUBST([SANITIZER_VECTOR_FLAGS])
    AM_CONDITIONAL([SANITIZERS], [test "$attn_sanitizers" != no])])
