#!/bin/bash
# Frozen weights in host memory, pinned or in files, and in 4 or 8 bits: the bits of a run stay, on any layout and after a stop; samples
# are those of weights on the device; --levers lists what saves memory, and its numbers are those of a dry run.
. "${0%/*}/lib.sh"

tiny_data 4 40
cat >tiny.json <<'END2'
{"model": {"arch": "wan", "layers": 6, "hidden": 128, "heads": 4, "ffn": 256, "channels": 4, "text_dim": 8, "text_len": 16, "text_pad": true},
 "diffusion": {"kind": "flow"}, "train": {"lr": 0.01, "warmup_steps": 2, "schedule": "constant"}}
END2
ok "a base model" vfm-train -q -c tiny.json --data plan.jsonl -o base --steps 8
lora=(vfm-train -q -c tiny.json --data plan.jsonl --set lora.rank=3 --set lora.alpha=6)

# ---- training
run "${lora[@]}" --init base -o device --steps 8
rc_is 0 "a run with its weights on the device"
for n in 1 6; do
	run "${lora[@]}" --init base -o host$n --steps 8 --set train.offload_weights=$n
	rc_is 0 "with the weights of $n blocks in host memory"
	ok "it has the same bits" cmp <(curve device) <(curve host$n)
done
mkdir scratch
TMPDIR=$PWD/scratch run "${lora[@]}" --init base -o file --steps 5 --set train.offload_weights=6 --set train.host_gib=1e-6
rc_is 0 "with weights in files"
is "$(ls scratch)" "" "which have no name"
TMPDIR=$PWD/scratch run "${lora[@]}" -o file --steps 8 --set train.offload_weights=2 --set train.host_gib=1e-6
ok "stopped after 5 steps, it goes on with the same bits" cmp <(curve device) <(curve file)
TMPDIR=$PWD/nowhere run "${lora[@]}" --init base -o x --set train.offload_weights=6 --set train.host_gib=1e-6
like "$rc $err" "^3 .*cannot create a file in .*nowhere.*: No such file or directory$" "a missing folder for files is named"
run vfm-train -c tiny.json --data plan.jsonl --set lora.rank=3 --set lora.alpha=6 --init base -o auto --steps 8 --set train.offload_weights=auto \
	--set train.memory_gib=0.0065
rc_is 0 "as many blocks as memory requires"
like "$err" 'recompute: .*; weights of [1-6] of 6 blocks on the host; ' "it says how many"
ok "the same bits" cmp <(curve device) <(curve auto)
run "${lora[@]}" --init base -o x --set train.offload_weights=7
like "$rc $err" '^2 .*train.offload_weights: the model has 6 blocks, not 7$' "more blocks than the model has are refused"
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set train.offload_weights=1
like "$rc $err" '^2 .*train.offload_weights: it is for frozen weights, ' "so is a run that freezes nothing"
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set train.offload_weights=1 --set 'train.freeze=patch*'
like "$rc $err" "^2 .*train.offload_weights: it is for linear layers of blocks, and train.freeze 'patch\*' freezes none$" "or no layer of a block"

# ---- 4 and 8 bits
for d in int8 nf4; do
	run vfm-train -c tiny.json --data plan.jsonl --set lora.rank=3 --set lora.alpha=6 --init base -o $d --steps 8 --set train.frozen_dtype=$d
	rc_is 0 "weights in $d"
	like "$err" "[0-9]+ are frozen \([1-9][0-9]+ in $d\) and take [01]\.[0-9] MiB" "it says how many, and their memory"
	run "${lora[@]}" --init base -o $d-ranks --steps 5 --set train.frozen_dtype=$d -n 4 --set parallel.tp=2 --set parallel.fsdp=true \
		--set train.offload_weights=2 || tail -3 <<<"$err"
	rc_is 0 "on 4 ranks, 2 blocks in host memory"
	run "${lora[@]}" -o $d-ranks --steps 8 --set train.frozen_dtype=$d
	less "$(apart $d $d-ranks)" 0.0001 "the same losses on 4 ranks, then on one"
	less 0.000001 "$(apart $d device)" "which are not those of the weights as they are"
	less "$(apart $d device)" 0.05 "but near"
done
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set train.frozen_dtype=nf4 --set 'train.freeze=blocks.0.*'
like "$rc $err" '^2 .*train.frozen_dtype: nf4 needs lora.rank, ' "weights that a checkpoint would hold are refused"
cp -r base bad
python3 - bad <<'END2' || exit 1
import glob, sys
for f in glob.glob(sys.argv[1] + "/ckpt/**/*.safetensors", recursive=True):
    b = bytearray(open(f, "rb").read())
    b[-4096:] = b"\xff" * 4096
    open(f, "wb").write(b)
END2
run "${lora[@]}" --init bad -o x --set train.frozen_dtype=nf4 -n 2 --set parallel.fsdp=true
is "$((rc > 0 && rc < 75))" 1 "a damaged base model ends all ranks"
is "$(grep -c 'another rank' <<<"$err")" 0 "with the message of the rank that read it"

ok "a base model as one file" vfm-ckpt export --part model base whole.safetensors
python3 - whole.safetensors hole.safetensors <<'END2' || exit 1
import json, struct, sys
b = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", b[:8])[0]
at = json.loads(b[8:8 + n])["ada_shared.weight"]["data_offsets"][1] + 8 + n
b[at - 64:at] = b"\xff" * 64
open(sys.argv[2], "wb").write(b)
END2
run timeout 60 "${lora[@]}" --init hole.safetensors -o x --set train.frozen_dtype=nf4 -n 4 --set parallel.fsdp=true
like "$rc $err" "^2 .*hole.safetensors: tensor 'ada_shared.weight' has values that are NaN or infinite$" \
	"one damaged tensor that is not coded ends all ranks, too"

# ---- two networks in turn
two=("${lora[@]}" --init base --low-noise base2 --set experts.boundary=0.5 --set experts.turn=2 --steps 12)
ok "another base model" vfm-train -q -c tiny.json --data plan.jsonl -o base2 --steps 8 --set train.seed=3
run "${two[@]}" -o two
rc_is 0 "two networks in turn"
losses() { jq -c '[.step, .loss]' "$1/metrics.jsonl"; }
run "${two[@]}" -o two-files --set train.offload_weights=6 --set train.host_gib=1e-9
ok "with weights in files, the same losses" cmp <(losses two) <(losses two-files)
run "${two[@]}" -o two-host --set train.offload_weights=2
ok "in host memory" cmp <(losses two) <(losses two-host)
run "${two[@]}" -o two-device --set train.offload_weights=1 --set experts.idle=device
ok "and with the idle network on the device" cmp <(losses two) <(losses two-device)
for d in nf4 int8; do
	run "${two[@]}" -o two-$d --set train.frozen_dtype=$d
	run "${two[@]}" -o two-$d-files --set train.frozen_dtype=$d --set train.offload_weights=6 --set train.host_gib=1e-9
	ok "in $d and in files, the same losses as on the device" cmp <(losses two-$d) <(losses two-$d-files)
done

# ---- samples
pick=(-p "a red square" --steps 2 --frames 4 --size 16x16 -q --tokenizer wavelet:4 --force)
ok "a sample" vfm-sample --ckpt base "${pick[@]}" -o device.npy
ok "with weights in host memory" vfm-sample --ckpt base "${pick[@]}" --offload-weights 2 -o host.npy
ok "it is the same" cmp device.npy host.npy
ok "with as many as memory requires" vfm-sample --ckpt base "${pick[@]}" --offload-weights auto -o auto.npy
ok "the same" cmp device.npy auto.npy
for d in fp8 int8 nf4; do
	ok "weights in $d" vfm-sample --ckpt base "${pick[@]}" --weights $d -o $d.npy
	ok "on 2 ranks, in host memory" vfm-sample --ckpt base "${pick[@]}" --weights $d --offload-weights 3 -n 2 -o $d-2.npy
	run python3 - device.npy $d.npy $d-2.npy <<'END2'
import struct, sys
def load(f):
    b = open(f, "rb").read(); n = struct.unpack("<H", b[8:10])[0]
    d = b[10 + n:]; return struct.unpack("<%df" % (len(d) // 4), d)
a, b, c = map(load, sys.argv[1:])
norm = lambda x: sum(v * v for v in x) ** .5
off = lambda x, y: norm([u - v for u, v in zip(x, y)]) / norm(x)
print(0 < off(a, b) < 0.3, off(b, c) < 1e-4)
END2
	is "$out" "True True" "other values, nearly those of the weights as they are; the same on 2 ranks"
done
ok "adapters on weights in nf4" vfm-sample --ckpt nf4 "${pick[@]}" --weights nf4 -o adapted.npy
run vfm-sample --ckpt base "${pick[@]}" --weights nf4 -n 4 --set parallel.tp=4 -o x.npy
like "$rc $err" '^2 .*--weights: nf4 needs rows of a multiple of 64 elements on each rank, and blocks.0.attn.proj.weight has 32 of 128$' "rows that tp divides are refused"
run vfm-sample --ckpt base "${pick[@]}" --offload-weights 7 -o x.npy
like "$rc $err" "^2 .*--offload-weights: expected auto or 0 to 6 blocks, got .7.$" "too many blocks are refused"

# ---- levers
levers=(vfm-train --dry-run --machine rtx-4090 --model wan-1.3b --set model.layers=4 --set lora.rank=16 --set train.dtype=bf16
	--context 32760 --packs 1)
run "${levers[@]}" --set train.memory_gib=4 --levers --format json
rc_is 0 "the settings that save memory"
cp out levers.json 2>/dev/null || printf '%s' "$out" >levers.json
row() { jq -r --arg s "$1" '.rows[]? // .[] | select(.set == $s) | '"$2" levers.json; }
is "$(jq -r '(.rows? // .)[0].set' levers.json)" "as given" "the first row is the run as given"
run "${levers[@]}" --set train.memory_gib=4 --format json
is "$(jq -r '(.rows? // .)[] | select(.rank == "all") | .step_ms | round' <<<"$out")" "$(jq -r '(.rows? // .)[0].step_ms | round' levers.json)" \
	"whose time is that of a dry run"
best=$(jq -r '[(.rows? // .)[] | select(.fits == "yes" and .gpus == 1)] | min_by(.step_ms) | .set' levers.json)
set -- ; [ "$best" = "as given" ] || for s in $best; do set -- "$@" --set "$s"; done
run "${levers[@]}" --set train.memory_gib=4 "$@" --format json
is "$(jq -r '(.rows? // .)[] | select(.rank == "all") | .fits' <<<"$out")" yes "the fastest row that fits, $best, fits as a dry run"
is "$(jq -r '[(.rows? // .)[] | select(.values == "rounded")] | length > 0' levers.json)" true "it marks settings that round"
run "${levers[@]}" --levers --html page.html
like "$rc $err" '^2 .*--levers: it prints a table; leave out --html$' "a page of levers is refused"
run vfm-train -c tiny.json --data plan.jsonl -o x --levers
like "$rc $err" '^2 .*only with --dry-run' "so are levers without a dry run"
done_testing
