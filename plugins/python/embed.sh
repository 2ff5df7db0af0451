#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# embed.sh FILE: writes C that holds the text of FILE as python_module.
set -eu
echo '/* Written by embed.sh. */'
echo '#include "plugins/python/python.h"'
echo 'const char python_module[] = {'
od -An -v -tu1 "$1" | sed 's/  *\([0-9][0-9]*\)/ \1,/g'
echo '0};'
