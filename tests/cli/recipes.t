#!/bin/bash
# HACKING.md names every file that an addition touches: compared with the files that mention one that was made by the recipe.
. "${0%/*}/lib.sh"
plan 6

# recipe HEADING NAME: the files that begin the numbered steps of a section, for an addition called NAME.
recipe() {
	sed -n "/^## $1\$/,/^## /s/^[0-9][0-9]*\. \`\([^\`]*\)\`.*/\1/p" "$TOP/HACKING.md" | sed "s/NAME/$2/g" | sort
}
# mentions WORD: the files with it, without those that a step's command writes and this test.
mentions() {
	(cd "$TOP" && grep -rlIw -- "$1" lib cmd man share tests bench examples Makefile ./*.md) |
		grep -v -e '^tests/golden/' -e '^tests/cli/recipes\.t$' | sed 's,^\./,,' | sort
}

files=$(recipe "Add a model" pixart)
is "$files" "$(mentions pixart)" "the recipe of a model names each file that has to do with pixart"
ok "which are at most 7" test "$(wc -l <<<"$files")" -le 7
ok "the golden files are there" ls "$TOP"/tests/golden/pixart-*.json "$TOP"/tests/golden/pixart-*.safetensors
is "$(mesh_models | grep -x pixart)" pixart "and the tests on models find it"

# The steps of an op name several files each, some by a pattern; OP.cu is any file of kernels.  tests/gpu/run names ops
# for their order alone.
names=$(sed -n '/^## Add an op$/,/^## Add a model$/p' "$TOP/HACKING.md" | grep -o '`[^` ]*`' | tr -d '`' | sed 's,.*/,,; s,^OP,*,')
named() {
	local w
	while read -r w; do
		# shellcheck disable=SC2053  # a pattern
		[[ ${1##*/} == $w ]] && return
	done <<<"$names"
	return 1
}
unnamed=$(mentions 'add_row\|add_row_bwd\|vfm_case_add_row' | grep -vx -e HACKING.md -e tests/gpu/run | while read -r f; do named "$f" || echo "$f"; done)
is "$unnamed" "" "the recipe of an op names each file that has to do with add_row"

# Those without a probe: what the kinds of attention share, conversions, inputs without gradients, and the loss (test_tape).
missing=$(grep -o 'vfm_g_[a-z0-9_]*(' "$TOP/lib/net/tape/gops.h" | tr -d '(' | sort -u | while read -r g; do
	grep -qw "$g" "$TOP"/tests/unit/test_gops*.c || echo "$g"
done)
is "$(paste -sd' ' <<<"$missing")" "vfm_g_attn_by vfm_g_cast vfm_g_join_inputs vfm_g_mse vfm_g_timestep" "each differentiable op has a probe in test_gops"
