#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kernel_usage.sh: no kernel that is shipped spills more registers than its line of kernel_usage.txt says, none of
# fa3_like's forward kernels any, and products of warpgroups are neither serialised nor gone, and keep their registers.
# What ptxas said when a kernel was built lies beside it (plugins/Makefile.am.inc); products are counted and followed
# (tests/tools/wgmma_registers.py) in machine code, which cuobjdump shows.
# Drafts, which a build for tests does not optimise or leaves out (plugins/nvcc.mk), are named alone.
set -u
top=${ATTNHOST_TEST_SRCDIR:-.}
build=${ATTNHOST_TEST_BUILDDIR:-.}
. "$top/tests/tools/tap.sh"
list=$top/tests/kernel_usage.txt
tap_folder scratch

# Files that were built, without their suffix: of plugins and of the host.
(cd "$top" && find plugins host -name '*.cu') | sed 's/\.cu$//' | sort | while read -r file; do
    test ! -f "$build/$file.lo" || echo "$file"
done >"$scratch/files"
if test ! -s "$scratch/files"; then
    tap_skip "what kernels use" "no nvcc at configure time"
    tap_end
fi
: >"$scratch/drafts"
: >"$scratch/left_out"
: >"$scratch/optimised"
while read -r file; do
    case $(tail -n 3 "$build/.deps/nvcc/$(echo "$file" | tr / -).d") in
    *" -Ofc=max "*) echo "$file" >>"$scratch/drafts" ;;
    *" left out"*) echo "$file" | tee -a "$scratch/left_out" >>"$scratch/drafts" ;;
    *) echo "$file" >>"$scratch/optimised" ;;
    esac
done <"$scratch/files"
if test -s "$scratch/drafts"; then
    tap_skip "what $(grep -c . "$scratch/drafts") of $(grep -c . "$scratch/files") files use" \
        "this build does not optimise them (--with-cuda-part); ATTNHOST_TEST_ALL=1 ./dev test does"
fi
nvcc=$(sed -n 's/^NVCC = //p' "$build/Makefile")
release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
of_list=$(sed -n 's/^nvcc //p' "$list")

# none NAME FILE: what the file has is what is wrong.
none()
{
    if test -s "$2"; then tap_not_ok "$1" "$(cat "$2")"; else tap_ok "$1"; fi
}

# NAME STACK STORES LOADS, bytes: the most over architectures; of all functions in a file that are no kernels together,
# named as the file.
used()
{
    awk -v file="${1##*/}.cu" -v quote="'" '
        function most(a, b) { return a > b ? a : b }
        /Compiling entry function/ { split($0, part, quote); kernels[part[2]] }
        /Function properties for/ { name = $NF in kernels ? $NF : file }
        / bytes stack frame, / {
            is_kernel = name in kernels
            stack[name] = is_kernel ? most(stack[name], $1 + 0) : stack[name] + $1
            stores[name] = is_kernel ? most(stores[name], $5 + 0) : stores[name] + $5
            loads[name] = is_kernel ? most(loads[name], $9 + 0) : loads[name] + $9
        }
        END { for (name in stack) print name, stack[name], stores[name], loads[name] }' "$build/$1.ptxas"
}

: >"$scratch/used"
while read -r file; do
    if test -s "$build/$file.ptxas"; then
        used "$file" | sort >>"$scratch/used"
    elif grep -q 'asciz.*sm_' "$build/$file.fatbin.c"; then # PTX alone says nothing
        echo "$build/$file.ptxas is not there, or empty"
    fi
done <"$scratch/optimised" >"$scratch/missing"
: >"$scratch/unknown" # kernels of drafts
while read -r file; do
    { used "$file" && echo "${file##*/}.cu"; } | sed 's/^/draft /' >>"$scratch/unknown"
done <"$scratch/drafts"
all_are_known=yes
test ! -s "$scratch/left_out" || all_are_known=no

# Files may have kernels of one name, as those of linear_like have for each layout and type of states: the most of them.
awk 'function most(a, b) { return a > b ? a : b }
    { stack[$1] = most(stack[$1], $2); stores[$1] = most(stores[$1], $3); loads[$1] = most(loads[$1], $4) }
    END { for (name in stack) print name, stack[name] + 0, stores[name] + 0, loads[name] + 0 }' \
    "$scratch/used" | sort >"$scratch/most"
mv "$scratch/most" "$scratch/used"
none "what ptxas said of each kernel was kept" "$scratch/missing"

# compare WHAT: of lines and kernels what is `more`, what is `less`.
compare()
{
    sed '/^#/d; /^nvcc /d; /^$/d; s/^/line /' "$list" | awk -v what="$1" '
        $1 == "draft" { draft[$2]; next }
        $1 == "line" { line[$2] = $3 " " $4 " " $5; next }
        {
            split($1 in line ? line[$1] : "0 0 0", may)
            is_more = $2 > may[1] || $3 > may[2] || $4 > may[3]
            is_less = $2 < may[1] || $3 < may[2] || $4 < may[3]
            said = $1 " uses stack, stores, loads: " $2 " " $3 " " $4 "; its line: " ($1 in line ? line[$1] : "none")
            if (what == "more" && is_more) print said
            if (what == "less" && is_less && !is_more && !($1 in draft)) print said ($2 + $3 + $4 ? "; lower it" : "; take it out")
            seen[$1]
        }
        END {
            for (name in line)
                if (what == "less" && !(name in seen) && !(name in draft)) print name " was not built; take its line out"
        }' "$scratch/unknown" - "$scratch/used"
}

if test "$release" = "$of_list"; then
    compare more >"$scratch/more"
    compare less >"$scratch/less"
    none "no kernel spills more than its line" "$scratch/more"
    if test $all_are_known = yes; then
        none "no line could be lower" "$scratch/less"
    else
        tap_skip "no line could be lower" "a file that is left out may have the kernel that needs it, by the same name"
    fi
else
    tap_skip "no kernel spills more than its line" "lines are of nvcc $of_list, this is $release"
fi
awk '/^fa3_forward_/ && $2 + $3 + $4 > 0' "$scratch/used" >"$scratch/forward"
tap_try "forward kernels were looked at" grep -q '^fa3_forward_' "$scratch/used"
none "none of fa3_like's forward kernels spills" "$scratch/forward"
while read -r file; do
    grep -H -i serialized "$build/$file.ptxas" 2>/dev/null
done <"$scratch/optimised" >"$scratch/serialized"
none "products of warpgroups are not serialised" "$scratch/serialized"

# $found is cuobjdump: of the CUDA Toolkit, which need not have it, or of pip, kept in the build folder.
find_cuobjdump()
{
    found=$(PATH=$PATH:$(dirname "$nvcc") command -v cuobjdump) && return
    found=$build/cuobjdump-venv/lib/python*/site-packages/nvidia/cu*/bin
    test -x "$(echo $found/cuobjdump)" || {
        test -z "${ATTNHOST_NO_PYTHON-}" && python3 -m venv "$build/cuobjdump-venv" >"$scratch/pip" 2>&1 &&
            "$build/cuobjdump-venv/bin/pip" install -q --no-compile \
                nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm >"$scratch/pip" 2>&1 || return
    }
    PATH=$PATH:$(cd $found && pwd) && found=$(command -v cuobjdump)
}

# Products of warpgroups: of 8 bits QGMMA, of 16 HGMMA. The smallest kernel has 16 of them.
if ! find_cuobjdump; then
    tap_skip "products of warpgroups" "no cuobjdump on PATH or beside nvcc, and pip installs none here"
    tap_end
fi
while read -r file; do
    case $(tail -n 3 "$build/.deps/nvcc/$(echo "$file" | tr / -).d") in *sm_90a*) echo "$file" ;; esac
done <"$scratch/optimised" >"$scratch/products"
test -s "$scratch/drafts" ||
    sh "$top/tests/tools/part.sh" 6 'kernels whose products are read' <"$scratch/products" >"$scratch/part"
test ! -f "$scratch/part" || mv "$scratch/part" "$scratch/products"
: >"$scratch/few"
: >"$scratch/taken"
while read -r file; do
    "$found" -sass "$build/$file.fatbin" >"$scratch/sass" 2>&1
    count=$(grep -c ' [HQ]GMMA' "$scratch/sass")
    case $file in
    */forward_codes_*) test "$(grep -c ' QGMMA' "$scratch/sass")" -ge 16 || echo "$file.cu has $count products" >>"$scratch/few" ;;
    */forward_* | */prefill_*) test "$count" -ge 16 || echo "$file.cu has $count products" >>"$scratch/few" ;;
    esac
    test "$count" -gt 0 || continue
    python3 "$top/tests/tools/wgmma_registers.py" "$scratch/sass" >"$scratch/found" 2>&1
    test $? -eq 0 || sed "s|^|$file.cu: |" "$scratch/found" >>"$scratch/taken"
    if test ! -f "$scratch/last" || grep -q 'GMMA[^ ]* R[0-9]*, R' "$scratch/sass"; then
        cp "$scratch/sass" "$scratch/last"
    fi
done <"$scratch/products"
tap_try "kernels were looked at for products" test -s "$scratch/products"
none "products are of warpgroups" "$scratch/few"
none "no register of a product is taken before its wait" "$scratch/taken"
if test -f "$scratch/last"; then
    finds()
    {
        python3 "$top/tests/tools/wgmma_registers.py" "$scratch/sass" 2>&1 | grep -q "$1"
    }
    sed 's/WARPGROUP\.DEPBAR\.LE gsb0, 0x0 ;/NOP ;/' "$scratch/last" >"$scratch/sass"
    tap_try "without waits, sums are found to be taken" finds '(sums)$'
    # After each product with a left operand in registers, a write to the first of these.
    sed -E 's|^( +/\*[0-9a-f]+)0(\*/ +)[HQ]GMMA[^ ]* R[0-9]+, R([0-9]+), .*|&\n\18\2MOV R\3, RZ ;|' \
        "$scratch/last" >"$scratch/sass"
    if cmp -s "$scratch/last" "$scratch/sass"; then
        tap_skip "a left operand that is written is found" "no file of this part has one in registers"
    else
        tap_try "a left operand that is written is found" finds '(left)$'
    fi
fi
tap_end
