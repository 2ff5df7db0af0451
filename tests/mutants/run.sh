# SPDX-License-Identifier: Apache-2.0
#
# run.sh: sourced with $plugin by the test of its name: the plugin with one fault each is caught by
# the default run of `attnhost check`; see mutants.py. Arguments are its arguments.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
. "$top/tests/tools/tap.sh"

tap_python "mutants of $plugin"
umask 022 # a plugin that others may write is refused
exec "$python" "$top/tests/mutants/mutants.py" "$plugin" "$@"
