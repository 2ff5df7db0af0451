# SPDX-License-Identifier: Apache-2.0

# ATTN_CUDA: --with-cuda=auto|yes|no|DIR and --with-cuda-arch=LIST.
#
# Finds nvcc, which makes the fatbins that the host and CUDA plugins embed. Nothing links a CUDA library: the
# driver is opened at run time, so that a build with kernels runs on a machine without a GPU, too.
# Sets attn_cuda (nvcc's path, or why not), the conditional HAVE_NVCC, and substitutes NVCC,
# NVCCFLAGS, NVCC_GENCODE (of the plugins' kernels), NVCC_HOST_GENCODE (of the host's),
# INCLUDE_CUDA_DEPS.
AC_DEFUN([ATTN_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda=auto|yes|no|DIR],
            [build the kernels of the host and the CUDA plugins with the nvcc found, or the one of DIR (default: auto)])],
        [], [with_cuda=auto])
    AC_ARG_WITH([cuda-arch],
        [AS_HELP_STRING([--with-cuda-arch=LIST],
            [GPU architectures to build the plugins' kernels for, as in "80 90a" (default: 90a)])],
        [], [with_cuda_arch=90a])
    AC_ARG_VAR([NVCC], [the CUDA compiler])
    AC_ARG_VAR([NVCCFLAGS], [flags of the CUDA compiler])
    AS_IF([test -z "$NVCCFLAGS"], [NVCCFLAGS="-O3 -lineinfo"])

    AS_CASE([$with_cuda],
        [no], [NVCC= attn_cuda="no (asked for)"],
        [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH$PATH_SEPARATOR/usr/local/cuda/bin])],
        [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
    AS_IF([test "$with_cuda" != no && test -z "$NVCC"],
        [attn_cuda="no (nvcc not found)"
         AS_IF([test "$with_cuda" != auto],
               [AC_MSG_ERROR([--with-cuda=$with_cuda: nvcc not found])])])

    NVCC_GENCODE=
    for attn_arch in $(AS_ECHO(["$with_cuda_arch"]) | tr ',;' '  '); do
        AS_CASE([$attn_arch], [*[[!0-9af]]*|""],
            [AC_MSG_ERROR([--with-cuda-arch: "$attn_arch" is no architecture; accepted: 80, 90, 90a, 100a ...])])
        NVCC_GENCODE="$NVCC_GENCODE -gencode arch=compute_$attn_arch,code=sm_$attn_arch"
    done
    # PTX, which the driver of every later GPU compiles.
    NVCC_HOST_GENCODE="-gencode arch=compute_80,code=compute_80"
    AS_IF([test -n "$NVCC"], [_ATTN_CUDA_TRY])
    AC_SUBST([NVCC_GENCODE])
    AC_SUBST([NVCC_HOST_GENCODE])
    AM_CONDITIONAL([HAVE_NVCC], [test -n "$NVCC"])

    # The dependency files that nvcc wrote; a line of GNU make, hidden from automake.
    INCLUDE_CUDA_DEPS=
    AS_IF([test -n "$NVCC"],
        [INCLUDE_CUDA_DEPS='-include $(wildcard host/*/.deps/*.cu.d plugins/*/.deps/*.cu.d tests/*/.deps/*.cu.d)'])
    AC_SUBST([INCLUDE_CUDA_DEPS])
    AM_SUBST_NOTMAKE([INCLUDE_CUDA_DEPS])])

# An nvcc without a host compiler, or too old for the architecture, is found here and not at the
# first kernel.
AC_DEFUN([_ATTN_CUDA_TRY], [
    AC_MSG_CHECKING([whether $NVCC makes fatbins for $with_cuda_arch and PTX for compute_80])
    AS_ECHO(['extern "C" __global__ void conftest() {}']) > conftest.cu
    AS_IF([$NVCC $NVCC_GENCODE $NVCC_HOST_GENCODE -fatbin -o conftest.fatbin conftest.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [AC_MSG_RESULT([yes])
         attn_cuda="$NVCC ($with_cuda_arch)"],
        [AC_MSG_RESULT([no])
         attn_cuda="no ($NVCC fails, see config.log)"
         AS_IF([test "$with_cuda" != auto],
               [AC_MSG_ERROR([$NVCC cannot compile for --with-cuda-arch=$with_cuda_arch and compute_80])])
         NVCC=])
    rm -f conftest.cu conftest.fatbin])
