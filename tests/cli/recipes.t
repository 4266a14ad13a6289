#!/bin/bash
# HACKING.md names every file that an addition touches: compared with the files that mention one that was made by the recipe.
. "${0%/*}/lib.sh"
plan 4

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
is "$files" "$(mentions 'pixart\|vfm_block_pixart')" "the recipe of a model names each file that has to do with pixart"
ok "which are at most 8" test "$(wc -l <<<"$files")" -le 8
ok "the golden files are there" ls "$TOP"/tests/golden/pixart-*.json "$TOP"/tests/golden/pixart-*.safetensors
is "$(mesh_models | grep -x pixart)" pixart "and the tests on models find it"
