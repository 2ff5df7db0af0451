/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: is what ctypes makes of the headers what the compiler makes of them?
 */
#include <attnhost.h>

#include "_layout.h"

typedef int not_an_empty_file;
