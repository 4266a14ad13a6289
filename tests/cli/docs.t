#!/bin/bash
# README.md and docs/: every command block runs, on small data, with tiny weights and on the CPU; output shown is output seen.
. "${0%/*}/lib.sh"
# shellcheck source=../docs.sh
. "$TOP/tests/docs.sh"
[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
[ -x "$B/tests/tools/toy_model" ] || skip_all "build/tests/tools/toy_model is not built (make check-cli)"
export OMP_NUM_THREADS=1

# What the documents take for granted: videos, a release of Wan, one of Wan for image to video, a picture, captions.
python3 "$TOP/tests/tools/tiny_wan.py" Wan2.1-T2V-1.3B || exit 1
vfm-curate synth -q --count 6 -d raw --size 96x64 --frames 40 --fps 16 >clips.jsonl || exit 1
python3 "$TOP/tests/tools/tiny_wan.py" --i2v Wan2.1-I2V-14B-480P || exit 1
toy="$B/tests/tools/toy_model"
ffmpeg -v error -i raw/000000.mp4 -frames:v 1 fox.png
echo "a shape moves" >raw/000000.txt
printf 'clip,text\nnone,a shape\n' >captions.csv

# Two tasks of a job array, in turn.
sbatch() {
	local i
	for i in 0 1; do SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=2 bash "${@:2}" || return 1; done
}
export -f sbatch

small=(
	-e 's/--device cuda//; s/--gpus-per-[a-z]*=[0-9]*//'
	-e 's/synth --count 1000/synth --count 40/; s/--steps 4000/--steps 30/; s/--steps 1000/--steps 2/; s/--steps 50 /--steps 2 /'
	-e 's/832x480/64x64/; s/--frames 81/--frames 17/; s/--height 480/--height 48/; s/--area 480p/--area 96x64/; s/--max-frames 81/--max-frames 17/'
	-e 's,high=Wan2.*,high=tiny-wan low=tiny-wan,'
	-e 's/-n 8 /-n 4 /; s/parallel.cp=4/parallel.cp=2/'
	-e 's,caption_vlm.py Qwen2.5-VL-7B-Instruct,caption.sh id kind,; s/-j 8/-j 2/'
	-e "s,vae_wan.py models/wan,$toy -c encode,; s,text_t5.py models/wan,$toy -c text-encode,"
)

docs=()
for doc in "$TOP"/docs/*.md; do docs+=("${doc#"$TOP/"}"); done
ok "README.md has at most 100 lines" test "$(wc -l <"$TOP/README.md")" -le 100
for doc in README.md bench/results/README.md "${docs[@]}"; do
	broken=$(cd "$TOP/$(dirname "$doc")" && grep -oE '\]\([^):]+\)|src="[^"]+"' "$(basename "$doc")" | sed 's/^](//; s/)$//; s/^src="//; s/"$//' |
		while read -r link; do [ -e "$link" ] || echo "$link"; done)
	is "$broken" "" "$doc: every link leads to a file"
done

guide README.md "${small[@]}" -e 's/vfm-sample/& --steps 2/'
guide docs/first-model.md "${small[@]}"
guide docs/finetune-wan.md "${small[@]}"
guide docs/coming-from.md "${small[@]}" -e "s/\[832, 480\]/[96, 64]/"
guide docs/extend.md "${small[@]}"
guide docs/plan-cluster.md -e 's/--packs 64 --gpus 64 --search/--packs 8 --gpus 8 --search/'
guide docs/curate.md "${small[@]}"
done_testing
