/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/check.h"
const struct check check_size_linear[] = {{NULL, NULL, NULL, 0, NULL, NULL}};
