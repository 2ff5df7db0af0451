# SPDX-License-Identifier: Apache-2.0

# ATTN_CONFIGURED: answers of configure that the code knows, in two headers. config.status writes one
# anew only if it changes, so that a build folder that is configured again for another prefix, or with nvcc
# where it had none, compiles the objects that include it and no others. Flags of the compiler would not do:
# make compiles nothing because of a flag.
AC_DEFUN([ATTN_CONFIGURED], [
    # As make expands the directories: datadir is written in terms of datarootdir, that of prefix.
    attn_directory() (
        test "$prefix" != NONE || prefix=$ac_default_prefix
        test "$exec_prefix" != NONE || exec_prefix=$prefix
        eval "attn_value=\"@S|@1\""
        eval "attn_value=\"$attn_value\""
        AS_ECHO(["$attn_value"]))
    attn_libdir=$(attn_directory "$libdir")/$PACKAGE
    attn_datadir=$(attn_directory "$datadir")/$PACKAGE
    AS_IF([test -n "$NVCC"], [attn_nvcc="#define HAVE_NVCC 1"], [attn_nvcc="/* HAVE_NVCC is undefined. */"])
    AC_CONFIG_COMMANDS([host/base/configured.h],
        [cat >conftest.h <<_ATTN_EOF
/* Written by config.status. */
#ifndef HOST_BASE_CONFIGURED_H
#define HOST_BASE_CONFIGURED_H

$attn_nvcc
#define ATTNHOST_VERSION     "$attn_version"
#define ATTNHOST_DATA_DIR    "$attn_datadir"
#define ATTNHOST_PKGLIB_DIR  "$attn_libdir"
#define ATTNHOST_PLUGIN_DIR  ATTNHOST_PKGLIB_DIR "/plugins"
#define ATTNHOST_PROFILE_DIR ATTNHOST_DATA_DIR "/profiles"
#define ATTNHOST_SPY_FILE    ATTNHOST_PKGLIB_DIR "/spy/libcuda.so.1"

#endif
_ATTN_EOF
        _ATTN_WRITE_CHANGED([host/base/configured.h])],
        [attn_version='$PACKAGE_VERSION' attn_datadir='$attn_datadir' attn_libdir='$attn_libdir' attn_nvcc='$attn_nvcc'])
    AC_CONFIG_COMMANDS([plugins/common/configured.h],
        [cat >conftest.h <<_ATTN_EOF
/* Written by config.status. */
#ifndef PLUGINS_COMMON_CONFIGURED_H
#define PLUGINS_COMMON_CONFIGURED_H

$attn_nvcc
#define ATTNHOST_KERNEL_DIR "$attn_datadir/kernels" /* of sources; a plugin's lie in the folder of its name */

#endif
_ATTN_EOF
        _ATTN_WRITE_CHANGED([plugins/common/configured.h])])])

# _ATTN_WRITE_CHANGED(FILE): conftest.h becomes the file, unless it is it.
AC_DEFUN([_ATTN_WRITE_CHANGED], [
    AS_IF([cmp -s conftest.h "$1"], [rm -f conftest.h],
        [AS_MKDIR_P([$(AS_DIRNAME(["$1"]))])
         mv conftest.h "$1"])])
