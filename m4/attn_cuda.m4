# SPDX-License-Identifier: Apache-2.0

# ATTN_CUDA: --with-cuda=auto|yes|no|DIR, --with-cuda-arch=LIST, --with-cuda-part=K and --without-cuda-drafts.
#
# Finds nvcc, which makes the fatbins that the host and CUDA plugins embed. Nothing links a CUDA library: the
# driver is opened at run time, so that a build with kernels runs on a machine without a GPU, too.
# Sets attn_cuda (nvcc's path, or why not), the conditional HAVE_NVCC, and substitutes NVCC,
# NVCCFLAGS, NVCC_CODES (architectures of the folders that name none: plugins/nvcc.mk), NVCC_PART, NVCC_DRAFTS and
# NVCC_RULES.
AC_DEFUN([ATTN_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda=auto|yes|no|DIR],
            [build the kernels of the host and the CUDA plugins with the nvcc found, or the one of DIR (default: auto)])],
        [], [with_cuda=auto])
    AC_ARG_WITH([cuda-arch],
        [AS_HELP_STRING([--with-cuda-arch=LIST],
            [GPU architectures of kernels whose folder names none, as in "80 90a" (default: 90a); of a plugin's: make NAME_GENCODE="sm_80 sm_90a"])],
        [], [with_cuda_arch=90a])
    AC_ARG_WITH([cuda-part],
        [AS_HELP_STRING([--with-cuda-part=K],
            [for tests without a GPU: of the kernels that take longest to compile, optimise part K of 12 alone])],
        [], [with_cuda_part=])
    AC_ARG_WITH([cuda-drafts],
        [AS_HELP_STRING([--without-cuda-drafts],
            [with --with-cuda-part: leave out the kernels that are not of the part])],
        [], [with_cuda_drafts=yes])
    AC_ARG_VAR([NVCC], [the CUDA compiler])
    AC_ARG_VAR([NVCCFLAGS], [flags of the CUDA compiler])
    AS_IF([test -z "$NVCCFLAGS"], [NVCCFLAGS="-O3 -lineinfo" attn_compress=yes], [attn_compress=no])

    AS_CASE([$with_cuda],
        [no], [NVCC= attn_cuda="no (asked for)"],
        [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH$PATH_SEPARATOR/usr/local/cuda/bin])],
        [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
    AS_IF([test "$with_cuda" != no && test -z "$NVCC"],
        [attn_cuda="no (nvcc not found)"
         AS_IF([test "$with_cuda" != auto],
               [AC_MSG_ERROR([--with-cuda=$with_cuda: nvcc not found])])])

    NVCC_CODES=
    for attn_arch in $(AS_ECHO(["$with_cuda_arch"]) | tr ',;' '  '); do
        AS_CASE([$attn_arch], [*[[!0-9af]]*|""],
            [AC_MSG_ERROR([--with-cuda-arch: "$attn_arch" is no architecture; accepted: 80, 90, 90a, 100a ...])])
        NVCC_CODES="$NVCC_CODES sm_$attn_arch"
    done
    AS_CASE([$with_cuda_part], [""|[[1-9]]|1[[0-2]]], [],
        [AC_MSG_ERROR([--with-cuda-part=$with_cuda_part: no part of the kernels; accepted: 1 to 12])])
    AS_IF([test -n "$NVCC"], [_ATTN_CUDA_TRY])
    NVCC_PART=
    AS_IF([test -n "$NVCC" && test -n "$with_cuda_part"], [_ATTN_CUDA_PART])
    AS_IF([test -n "$NVCC" && test $attn_compress = yes], [_ATTN_CUDA_COMPRESS])
    AC_SUBST([NVCC_CODES])
    AC_SUBST([NVCC_PART])
    AC_SUBST([NVCC_DRAFTS], [$with_cuda_drafts])
    AM_CONDITIONAL([HAVE_NVCC], [test -n "$NVCC"])
    NVCC_RULES=$srcdir/plugins/nvcc.mk
    AC_SUBST_FILE([NVCC_RULES])])

# An nvcc without a host compiler, or too old for the architectures, is found here and not at the
# first kernel. compute_80 is PTX, which the driver of every later GPU compiles: the host's kernels.
AC_DEFUN([_ATTN_CUDA_TRY], [
    AC_MSG_CHECKING([whether $NVCC makes fatbins for $with_cuda_arch and PTX for compute_80])
    AS_ECHO(['extern "C" __global__ void conftest() {}']) > conftest.cu
    attn_gencode="-gencode arch=compute_80,code=compute_80"
    for attn_arch in $NVCC_CODES; do
        attn_gencode="$attn_gencode -gencode arch=compute_${attn_arch#sm_},code=$attn_arch"
    done
    AS_IF([$NVCC $attn_gencode -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])
         attn_cuda="$NVCC ($with_cuda_arch)"],
        [AC_MSG_RESULT([no])
         attn_cuda="no ($NVCC fails, see config.log)"
         AS_IF([test "$with_cuda" != auto],
               [AC_MSG_ERROR([$NVCC cannot compile for --with-cuda-arch=$with_cuda_arch and compute_80])])
         NVCC=])
    rm -f conftest.cu conftest.fatbin])

# Compressed fatbins take a sixth of the room in plugins, and a second each; nvcc 12.8 and later can choose how.
AC_DEFUN([_ATTN_CUDA_COMPRESS], [
    AS_IF([test -n "$NVCC_PART"], [attn_mode=--compress-mode=none], [attn_mode=--compress-mode=size])
    AC_MSG_CHECKING([whether $NVCC takes $attn_mode])
    AS_ECHO(['extern "C" __global__ void conftest() {}']) > conftest.cu
    AS_IF([$NVCC $attn_mode -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])
         NVCCFLAGS="$NVCCFLAGS $attn_mode"],
        [AC_MSG_RESULT([no])])
    rm -f conftest.cu conftest.fatbin])

# Kernels outside the part are compiled by -Ofc=max, which older nvcc do not have; there all are optimised.
AC_DEFUN([_ATTN_CUDA_PART], [
    AC_MSG_CHECKING([whether $NVCC takes -Ofc=max])
    AS_ECHO(['extern "C" __global__ void conftest() {}']) > conftest.cu
    AS_IF([$NVCC -Ofc=max -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])
         NVCC_PART=$with_cuda_part
         attn_cuda="$attn_cuda, part $NVCC_PART of 12 optimised: for tests alone"
         AS_IF([test "$with_cuda_drafts" = no], [attn_cuda="$attn_cuda, the others left out"])],
        [AC_MSG_RESULT([no])])
    rm -f conftest.cu conftest.fatbin])
