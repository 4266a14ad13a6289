# shellcheck shell=bash disable=SC2154
# rows.sh - the training steps that tests/gpu/run measures.  $gib, the memory of the device, is set.

# layers OF: as many of a model's layers as an H200 (140 GiB) would have at the same memory a layer
layers() {
	local n=$(($1 * ${gib%.*} / 140 / 2 * 2))
	echo "--layers $((n > $1 ? $1 : n < 2 ? 2 : n))"
}

# Prints rows: a name, expected seconds, the options of vfm-bench step and bench/torch_dit.py, then "--" and those of
# vfm-bench step alone.  torch_dit.py takes the adaLN-LoRA rank and the dtype of the residual stream of these.
goal_rows() {
	local b="--dtype bf16 --warmup 2" s7="--model dit-7b --samples 1 --text-len 512"
	if cpu; then
		echo "tiny 0 --model dit-s --layers 2 --samples 2 --grid 1,4,4 $tiny"
		return
	fi
	echo "dit-7b-8k 80 $s7 $(layers 28) --grid 32,16,16 --packs 8 $b -r 3 -- --recompute auto $half $small"
	echo "dit-7b-64k 190 $s7 $(layers 28) --grid 64,32,32 --packs 1 --recompute full $b -r 2 -- --recompute auto --set train.offload=activations --set train.host_gib=HOST_GIB $half $small"
	echo "dit-xl-images 60 --model dit-xl --samples 64 --grid 1,16,16 --text-len 128 --packs 8 $b -r 5 -- --recompute auto $half"
}
other_rows() {
	local b="--dtype bf16 --warmup 2" s7="--model dit-7b --samples 1 --text-len 512" tiny_s="--model dit-s --samples 1 --grid 1,8,8 --text-len 32 --packs 8"
	if cpu; then
		echo "tiny-lora 0 --model dit-s --layers 2 --samples 1 --grid 2,4,4 --recompute full $tiny -- --set model.adaln_lora=8"
		echo "tiny-fp8 0 --model dit-s --layers 2 --samples 1 --grid 2,4,4 $tiny -- --set train.fp8=delayed"
		echo "tiny-graphs 0 --model dit-s --layers 2 --samples 1 --grid 2,4,4 $tiny -- --set train.graphs=on"
		echo "tiny-half 0 --model dit-s --layers 2 --samples 1 --grid 2,4,4 $tiny -- --set train.residual=bf16"
		return
	fi
	echo "moviegen-5b 70 --model moviegen-5b $(layers 32) --samples 1 --grid 32,16,16 --text-len 512 --packs 4 $b -r 3 -- --recompute auto $half $small"
	echo "stdit-xl 60 --model stdit-xl --samples 4 --grid 16,16,16 --text-len 120 --packs 4 $b -r 3 -- --recompute auto $half"
	echo "moe-1b 60 --model moe-1b $(layers 16) --samples 4 --grid 8,16,16 --text-len 120 --packs 4 $b -r 3 -- --recompute auto $half"
	echo "dit-xl-8k 60 --model dit-xl --samples 32 --grid 1,16,16 --text-len 128 --packs 8 $b -r 5 -- --recompute auto"
	echo "dit-s 40 --model dit-s --samples 32 --grid 1,16,16 --text-len 128 --packs 4 $b -r 10"
	echo "dit-7b-8k-fp32 80 $s7 $(layers 28) --grid 32,16,16 --packs 8 $b -r 3 -- --recompute auto --set train.residual=fp32 $small"
	# The update in front of the forward, and overlapping it.
	echo "dit-7b-8k-order 60 $s7 $(layers 28) --grid 32,16,16 --packs 1 $b -r 5 -- --recompute auto --set train.overlap_update=off $half $small"
	echo "dit-7b-8k-overlap 60 $s7 $(layers 28) --grid 32,16,16 --packs 1 $b -r 5 -- --recompute auto --set train.overlap_update=on $half $small"
	# Small models, where kernel launches may take longer than the kernels.
	echo "dit-xl-256 40 --model dit-xl --samples 1 --grid 1,16,16 --text-len 128 --packs 8 $b -r 10 -- --set train.graphs=off"
	echo "dit-xl-256-graphs 40 --model dit-xl --samples 1 --grid 1,16,16 --text-len 128 --packs 8 $b -r 10 -- --set train.graphs=on"
	echo "dit-s-few 35 $tiny_s $b -r 20 -- --set train.graphs=off"
	echo "dit-s-few-graphs 35 $tiny_s $b -r 20 -- --set train.graphs=on"
	echo "dit-7b-8k-fp8 80 $s7 $(layers 28) --grid 32,16,16 --packs 4 $b -r 3 -- --recompute auto --set train.fp8=delayed $half $small"
}
tiny="--hidden 96 --heads 2 --text-len 16 --packs 1 --dtype bf16 -r 1 --warmup 1"
small="--set train.master=split --set train.moments=bf16" half="--set train.residual=bf16"
