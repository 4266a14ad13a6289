#!/bin/bash
# Every model of tests/mesh/meshes.txt through the commands: training, a run in two halves, on two ranks, sampling; and samples that do not fit.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1 # the models are tiny

# The image rows of all samples are the text of the first.
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d latents --text bytes:32 --condition >encoded.jsonl || exit 1
rows=$(records encoded.jsonl | jq -r .text.path | head -1)
jq -c --arg rows "$rows" 'if .id then .image = {path: $rows} else . end' encoded.jsonl >all.jsonl
vfm-curate shard -q -d data all.jsonl >records.jsonl || exit 1
records all.jsonl | head -2 >two.jsonl
head -1 two.jsonl >one.jsonl
vfm-pack -q --context 64 --steps 8 data >plan.jsonl || exit 1
cat >tiny.json <<'END2'
{"train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0}, "ckpt": {"every": 4, "keep": 0}}
END2
# far A B: near, or far: whether two arrays agree to rounding
far() {
	python3 - "$1" "$2" <<'END3'
import array, sys
def load(path):
    b = open(path, "rb").read()
    n = 10 + int.from_bytes(b[8:10], "little")
    assert b"'<f4'" in b[:n] or b"'<f2'" in b[:n]
    if b"'<f4'" in b[:n]:
        return array.array("f", b[n:])
    import struct
    return struct.unpack("<%de" % ((len(b) - n) // 2), b[n:])
a, b = load(sys.argv[1]), load(sys.argv[2])
print("near" if len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) <= 2e-3 * max(map(abs, a)) else "far")
END3
}
# undocumented RUN: parameters of its checkpoint that vfm-models(7) does not name.  Of a linear layer it names the layer.
undocumented() {
	local name
	vfm-ckpt ls --format json "$1" | jq -r '.rows[].name' |
		sed -nE 's/^model\///; T; s/\.lora_[AB]\.weight$/.weight/; s/^blocks\.[0-9]+\.//; s/^attn(_[st])?\./ATTN./; s/^refiner\.[0-9]+\./R./; p' | sort -u |
		while read -r name; do
			grep -qF -e "$name" <<<"$models" || grep -qF -e " ${name%.*} [" <<<"$models" || echo "$name"
		done
}
models=$(mandoc -Tascii -Owidth=900 "$TOP/man/vfm-models.7" | sed 's/.\x08//g')
losses() {
	jq -c .loss "$1"/metrics.jsonl
}
# Sets train: the command that trains a small model of an architecture; two, one: options that name prompts for it.
set_train() {
	read -ra keys < <(mesh_model "$1")
	train=(vfm-train -q -c tiny.json --data plan.jsonl "${keys[@]}" --set model.channels=16
		--set model.text_dim=32 --set 'model.pos_max=[4,4,4]' --set diffusion.kind=flow)
	two=(-p "a red square moves left" -p "a blue circle")
	one=(-p "a red square moves left")
	[[ "${keys[*]}" != *model.image_dim* ]] || train+=(--set model.image_dim=32 --set model.image_len=5)
	if [[ "${keys[*]}" == *model.cond_channels* ]]; then
		train+=(--set model.cond_channels=20 --set model.image_dim=32 --set model.image_len=5)
		[[ " ${train[*]} " != *model.image_pos=* ]] || train+=(--set model.image_pos=5)
		two=(--prompts two.jsonl)
		one=(--prompts one.jsonl)
	fi
	[[ "${keys[*]}" == *lora.rank* ]] || return 0
	"${train[@]}" --set lora.rank=0 --set train.freeze= --steps 8 -o "base-$1" >log || exit 1
	train+=(--init "base-$1" --init-part model)
}
for arch in $(mesh_models); do
	set_train "$arch"
	[ "$arch" != moe ] || train+=(--set train.recompute=full)
	run "${train[@]}" --steps 8 -o "$arch"
	rc_is 0 "$arch is trained"
	# Steps differ in noise, and a trained base leaves little to gain: compare with the run that does not learn.
	"${train[@]}" --set train.lr=0 --steps 8 -o "still-$arch" >log
	ok "$arch: the loss falls" jq -ne --slurpfile a "$arch/metrics.jsonl" --slurpfile b "still-$arch/metrics.jsonl" '$a[-1].loss < $b[-1].loss'
	"${train[@]}" --steps 4 -o "half-$arch" >log
	"${train[@]}" --steps 8 -o "half-$arch" >log
	empty "$arch: vfm-models(7) names every parameter" undocumented "$arch"
	is "$(losses "half-$arch")" "$(losses "$arch")" "$arch: in two halves, the same losses to the last bit"
	run "${train[@]}" -n 2 --set parallel.cp=2 --steps 8 -o "cp-$arch"
	rc_is 0 "$arch on two ranks"
	ok "$arch: with the losses of one" jq -ne --slurpfile a "$arch/metrics.jsonl" --slurpfile b "cp-$arch/metrics.jsonl" \
		'[range(8) | ($a[.].loss - $b[.].loss | fabs) < 1e-4 * $a[.].loss] | all'
	run vfm-sample -q --ckpt "$arch" --size 32x32 --frames 8 --steps 3 "${two[@]}" -d "out-$arch"
	rc_is 0 "$arch: samples"
	vfm-sample -q --ckpt "$arch" --size 32x32 --frames 8 --steps 3 "${one[@]}" --format npy -d one >log
	for how in "-n 2" "-n 4 --set parallel.tp=2"; do
		# shellcheck disable=SC2086 # words
		run vfm-sample -q $how --ckpt "$arch" --size 32x32 --frames 8 --steps 3 "${one[@]}" --format npy -d ranks
		is "$rc $(far one/sample-000000.npy ranks/sample-000000.npy)" "0 near" "$arch: the same latents with $how"
		rm -rf ranks
	done
	run vfm-sample -q --ckpt "$arch" --size 32x32 --frames 8 --steps 3 "${one[@]}" -d "alone-$arch"
	ok "$arch: a sample does not depend on what shares its pack" cmp "out-$arch/sample-000000.mp4" "alone-$arch/sample-000000.mp4"
done

set_train dit
for n in 1 3; do
	run "${train[@]}" --set model.adaln_lora=4 --set train.lr=0 --steps $n -o "init-$n"
	rc_is 0 "$n steps with a learning rate of 0"
done
is "$(vfm-ckpt hash --format json --part model init-1 | jq -r '.rows[0].hash')" "$(vfm-ckpt hash --format json --part model init-3 | jq -r '.rows[0].hash')" "leave the initial weights"
empty "dit with adaln_lora: vfm-models(7) names every parameter" undocumented init-1

run vfm-sample -q --ckpt moviegen --size 96x96 --frames 8 --steps 3 -p "too large" -o big.mp4
rc_is 2 "more patches than learned positions"
like "$err" "has 6 patches in h, but model.pos_max holds positions for 4" "which it says"
done_testing
