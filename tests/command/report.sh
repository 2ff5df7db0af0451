#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# report.sh: `attnhost report`: the page of a run and a bench, looked at by tests/independent/report_page.py.
set -u
top=${ATTNHOST_TEST_SRCDIR:-$(dirname "$0")/..}
. "$top/tests/tools/tap.sh"

python=${PYTHON3:-python3}
for needed in "$python" gnuplot; do
    if ! command -v "$needed" >/dev/null; then
        tap_skip "attnhost report" "$needed is not installed"
        tap_end
    fi
done
tap_folder folder
unset ATTNHOST_PLUGIN_PATH
cd "$folder" || exit 1
"$ATTNHOST_TEST_COMMAND" run "$top/examples/quickstart.ini" --max-requests 4 --quiet --json run.json >said 2>&1 &&
    "$ATTNHOST_TEST_COMMAND" bench --backend cpu_native,portable --set backend.portable.type=cpu_native \
        --set backend.portable.isa=generic --seconds 0.01 --json bench.json --shape \
        q_heads=4,kv_heads=2,head_dim=16,mode=decode:prefill,kv_len=32:64 --shape \
        kind=mla,heads=2,kv_lora_rank=32,rope_dim=8,nope_dim=16,kv_len=32 >said 2>&1 || {
    tap_not_ok "a run and a bench to report" "$(cat said)"
    tap_end
}
PYTHONDONTWRITEBYTECODE=1 "$python" "$top/tests/independent/report_page.py" "$ATTNHOST_TEST_COMMAND" "$top" "$folder"
