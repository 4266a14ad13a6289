#!/bin/bash
# Low-rank adapters: trained alone, on any layout, and resumed on another; the base model keeps its bits; merged, sampled with a scale, and
# written for other programs.  Frozen parameters: they keep their bits and have no state; with train.frozen_dtype=fp8 they are rounded once.
. "${0%/*}/lib.sh"

tiny_data 4 40
cat >tiny.json <<'END2'
{"model": {"arch": "wan", "layers": 2, "hidden": 32, "heads": 2, "ffn": 48, "channels": 4, "text_dim": 8, "text_len": 16, "text_pad": true},
 "diffusion": {"kind": "flow"}, "train": {"lr": 0.01, "warmup_steps": 2, "schedule": "constant"}}
END2
base=(vfm-train -q -c tiny.json --data plan.jsonl -o base --steps 8)
lora=(vfm-train -q -c tiny.json --data plan.jsonl --set lora.rank=3 --set lora.alpha=6)
ok "a base model" "${base[@]}"
sum=$(vfm-ckpt hash --format jsonl base | jq -r .hash)

# ---- training
run vfm-train -c tiny.json --data plan.jsonl --set lora.rank=3 -o x
like "$rc $err" '^2 .*lora.rank: adapters need a base model \(--init\)$' "adapters need a base model"
run "${lora[@]}" --init base -o x --set lora.targets=blocks.*.nothing
like "$rc $err" "^2 .*lora.targets: no linear layer of the model matches 'blocks.\*.nothing' \(such as \*\.attn\.qkv\)$" "patterns that match nothing are refused"
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set 'train.freeze=*'
like "$rc $err" "^2 .*train.freeze: '\*' leaves no parameter to train$" "so is a model without trained parameters"
run vfm-train -c tiny.json --data plan.jsonl --set lora.rank=3 --set lora.alpha=6 --init base -o whole --steps 12
rc_is 0 "a run with adapters"
like "$err" '[0-9]+ parameters are trained \([0-9]+ in adapters of rank 3\), [0-9]+ are frozen' "it says how much is trained"
b_norm() { vfm-ckpt stat --format jsonl whole "$1/*.lora_B.*" | jq -s '[.[].norm | . * .] | add | sqrt'; }
ok "after 12 steps their average has left its initial value, 0" jq -en "$(b_norm ema) / $(b_norm model) | . > 0.5 and . < 0.99"
is "$(vfm-ckpt ls --format jsonl whole | jq -r .name | grep -v lora_ | wc -l)" 0 "its checkpoint holds adapters only"
is "$(vfm-ckpt hash --format jsonl base | jq -r .hash)" "$sum" "the base model keeps its bits"
run "${lora[@]}" --init base -o stopped --steps 5
run "${lora[@]}" -o stopped --steps 12
ok "stopped after 5 steps, it goes on with the same bits" cmp <(curve whole) <(curve stopped)
run vfm-train --data plan.jsonl --set lora.rank=3 --set lora.alpha=6 -o stopped --steps 12 --print-config
is "$rc $(jq -c .model <<<"$out")" "0 $(vfm-train -c tiny.json --init base --print-config | jq -c .model)" "a run that began with --init knows its model"
run "${lora[@]}" --init base -o ranks --steps 5
run "${lora[@]}" -o ranks --steps 12 -n 4 --set parallel.tp=2 --set parallel.cp=2
rc_is 0 "it goes on with tp=2, cp=2"
less "$(apart whole ranks)" 0.0001 "with the same losses"
run "${lora[@]}" --init base -o sharded --steps 12 -n 4 --set parallel.fsdp=true --set parallel.pp=2
rc_is 0 "with fsdp and pp=2 from the start"
less "$(apart whole sharded)" 0.0001 "with the same losses"
run "${lora[@]}" -o stopped --set lora.alpha=3
like "$rc $err" '^2 .*lora.alpha: 6.0 -> 3.0 \(--allow-change model' "another alpha is refused"
run vfm-train -q -c tiny.json --data plan.jsonl -o y --init whole
like "$rc $err" "^2 .*'whole' holds adapters, not a model" "adapters are no model"
mv base moved
run "${lora[@]}" -o stopped --steps 13
like "$rc $err" "^2 .*the base model of stopped/ckpt/step-00000012 \(--init tells where it is\): .*base/ckpt" "a base model that is gone is named"
run "${lora[@]}" -o stopped --steps 13 --init moved
rc_is 0 "--init tells where it is"
cp -r moved other
vfm-train -q -c tiny.json --data plan.jsonl -o other --steps 9 >/dev/null
run "${lora[@]}" -o stopped --steps 14 --init other
like "$rc $err" '^2 .*other/ckpt/step-00000009 is not the base model of stopped/ckpt/step-00000013: sha256' "another model is refused"
mv moved base

# ---- merging: W + 2 B A, computed here, for the second block of outputs of a fused layer
ok "vfm-ckpt merge" vfm-ckpt merge --scale 0.5 base whole merged.safetensors
ok "with scale 0" vfm-ckpt merge --scale 0 base whole zero.safetensors
ok "the base model as a file" vfm-ckpt export base base.safetensors
vfm-ckpt export whole adapters.safetensors
ok "the merged weights" python3 - <<'PY'
import json, struct
def load(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["shape"], struct.unpack("<%df" % ((v["data_offsets"][1] - v["data_offsets"][0]) // 4),
            data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])) for k, v in head.items()}
base, merged, lora, zero = (load(p + ".safetensors") for p in ("base", "merged", "adapters", "zero"))
assert base.keys() == merged.keys() and zero == base
changed = 0
for name, (shape, w) in base.items():
    layer = name[:-7]
    if layer + ".lora_A.weight" not in lora:
        assert merged[name][1] == w, name
        continue
    (ra, cols), a = lora[layer + ".lora_A.weight"]
    (rows, r), b = lora[layer + ".lora_B.weight"]
    for i in range(0, rows, 5):
        block = i // (rows // (ra // r))
        for j in range(0, cols, 3):
            want = w[i * cols + j] + 0.5 * 6 / 3 * sum(b[i * r + k] * a[(block * r + k) * cols + j] for k in range(r))
            assert abs(merged[name][1][i * cols + j] - want) < 1e-6, (name, i, j)
            changed += want != w[i * cols + j]
assert changed > 1000, changed
PY

run "${lora[@]}" --init base --init-part ema -o averaged --steps 3 --set train.ema_decay=0.5
rc_is 0 "adapters of the base model's average"
ok "are merged" vfm-ckpt merge --scale 0 base averaged average.safetensors
ok "with the average" cmp average.safetensors <(vfm-ckpt export --part ema base part.safetensors && cat part.safetensors)
ok "--base-part chooses other weights" vfm-ckpt merge --scale 0 --base-part model base averaged last.safetensors
ok "those of the model" cmp last.safetensors zero.safetensors
not_ok "the two differ" cmp -s last.safetensors average.safetensors
run vfm-ckpt merge base nowhere x.safetensors
like "$rc $err" "^2 .*nowhere" "adapters that are missing are named"
run vfm-ckpt merge --base-part optim base averaged x.safetensors
like "$rc $err" "^2 .*--base-part': expected model\|ema, got 'optim'" "no other part"

# ---- sampling: the adapters as a run, as a file of another program, merged; with a scale
pick=(-p "a red square" --steps 3 --frames 4 --size 16x16 -q --part model --tokenizer wavelet:4 --force)
ok "a run with adapters is sampled" vfm-sample --ckpt whole "${pick[@]}" -o run.npy
ok "the same by --lora" vfm-sample --ckpt base --lora whole "${pick[@]}" -o lora.npy
ok "the same latents" cmp run.npy lora.npy
ok "on two ranks" vfm-sample --ckpt whole "${pick[@]}" -o two.npy -n 2 --set parallel.tp=2
for layout in peft diffusers original comfyui kohya; do
	dst=$layout.safetensors
	[ $layout != peft ] || dst=peft
	ok "export -l $layout" vfm-ckpt export -l $layout whole $dst
	ok "it is sampled with half the scale" vfm-sample --ckpt base --lora $dst:0.5 "${pick[@]}" -o $layout.npy
	ok "and merged" vfm-ckpt merge --scale 0.5 base $dst "$layout-merged.safetensors"
	ok "into the same weights" cmp merged.safetensors "$layout-merged.safetensors"
done
ok "the same latents" cmp peft.npy diffusers.npy
ok "from all" cmp peft.npy original.npy
not_ok "the scale counts" cmp peft.npy run.npy
ok "comfyui and original are the same file" cmp original.safetensors comfyui.safetensors
header() { python3 -c 'import json, struct, sys; f = open(sys.argv[1], "rb"); print(f.read(struct.unpack("<Q", f.read(8))[0]).decode())' "$1"; }
is "$(header kohya.safetensors | jq -cS '.__metadata__')" \
	'{"format":"pt","ss_network_alpha":"6","ss_network_dim":"3","ss_network_module":"networks.lora_wan"}' "kohya: the metadata"
is "$(header kohya.safetensors | jq -r 'keys[]' | sed -n 's/^lora_unet_blocks_0_ffn_0/./p' | tr '\n' ' ')" \
	"..alpha ..lora_down.weight ..lora_up.weight " "and the names of a layer"
is "$(jq -c '[.r, .lora_alpha, (.target_modules | length)]' peft/adapter_config.json)" '[3,6,20]' "adapter_config.json"
run vfm-sample --ckpt base --lora base "${pick[@]}" -o no.npy
like "$rc $err" '^2 .*holds no adapters: lora.rank of its configuration is 0' "a model is no adapter"
"${base[@]}" -o wide --set model.hidden=64 >/dev/null
run vfm-ckpt merge wide whole no.safetensors
like "$rc $err" '^2 .*the adapters of [^ ]*whole do not fit wide/ckpt/step-00000008: 14 tensors of another shape: model/blocks.\{0-1\}.attn.proj.lora_A.weight \[3, 32\] in the place of' "adapters of another model are refused"

# ---- adapters of other programs
is "$(jq -Rn 'input' <<<"$(head -c 4000 diffusers.safetensors | tr -d '\\' | grep -ao '"transformer.lora_alpha":[^,]*')")" '"\"transformer.lora_alpha\":3.0"' \
	"diffusers: alpha is the rank, and B has the scale"
ok "export with our names" vfm-ckpt merge --scale 0.5 base adapters.safetensors own-merged.safetensors
ok "keeps the scale, too" cmp merged.safetensors own-merged.safetensors
run vfm-ckpt merge --scale 0.5 base peft/adapter_model.safetensors beside.safetensors
ok "adapter_config.json next to the file counts" cmp merged.safetensors beside.safetensors
ok "the base model in the original layout" vfm-ckpt export -q -l original base names.safetensors
run python3 -B "$TOP/tests/tools/lora_campaign.py" base names.safetensors "${LORA_TRIES:-100}" "${LORA_SEED:-1}"
like "$rc $out" '^0 .*[1-9][0-9]* passed, 0 failed$' "random files of adapters are merged as PEFT does, or refused with the name of the fault"
python3 - <<'PY'
import json, struct
def write(path, names):
    head, n = {}, 0
    for name, shape in names.items():
        size = 4 * shape[0] * shape[1]
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [n, n + size]}
        n += size
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + struct.pack("<f", .01) * (n // 4))
a, b = ".lora_down.weight", ".lora_up.weight"
layer = lambda k, r=2: {k + a: [r, 32], k + b: [32, r]}
image = {**layer("lora_unet_blocks_0_cross_attn_k_img"), **layer("lora_unet_blocks_1_cross_attn_v_img")}
write("some.safetensors", {**layer("lora_unet_blocks_0_self_attn_o"), **image})
write("mixed.safetensors", {**layer("lora_unet_blocks_0_self_attn_o"), **layer("lora_unet_blocks_0_cross_attn_o", 3)})
write("i2v.safetensors", {**layer("lora_unet_blocks_0_self_attn_q"), **image})
write("q.safetensors", layer("lora_unet_blocks_0_self_attn_q"))
write("image.safetensors", image)
q, o = "diffusion_model.blocks.0.self_attn.q", "diffusion_model.blocks.0.self_attn.o"
write("two.safetensors", {**layer(q), q + ".lokr_w1": [4, 4], q + ".lokr_w2": [8, 8]})
write("narrow.safetensors", {q + ".lokr_w1": [4, 4], q + ".lokr_w2": [8, 7]})
write("kron.safetensors", {o + ".lokr_w1": [4, 4], o + ".lokr_w2": [8, 8]})
PY
run vfm-ckpt merge -q base i2v.safetensors no.safetensors
like "$rc $err" "^2 .*the adapters of i2v.safetensors do not fit base.*: 2 tensors of no layer of the model that can have an adapter: lora_unet_blocks_0_cross_attn_k_img.lora_down.weight, " \
	"layers that the model lacks are refused"
run vfm-ckpt merge --skip-missing base i2v.safetensors skipped.safetensors
like "$rc $err" "^0 .*i2v.safetensors: 2 adapters are left out, whose layers the model lacks: lora_unet_blocks_0_cross_attn_k_img, lora_unet_blocks_1_cross_attn_v_img$" \
	"or left out with --skip-missing"
vfm-ckpt merge base q.safetensors q-merged.safetensors
ok "and the others are merged" cmp skipped.safetensors q-merged.safetensors
run vfm-ckpt merge --skip-missing base image.safetensors no.safetensors
like "$rc $err" "^2 .*image.safetensors has no layer of base/.*: lora_unet_blocks_0_cross_attn_k_img, " "a file without a layer of the model is refused"
run vfm-sample --ckpt base --lora i2v.safetensors --skip-missing "${pick[@]}" -o skipped.npy
rc_is 0 "vfm-sample leaves them out, too"
vfm-sample --ckpt base --lora q.safetensors "${pick[@]}" -o q.npy >/dev/null
ok "with the same latents" cmp skipped.npy q.npy
run vfm-ckpt merge base two.safetensors no.safetensors
like "$rc $err" "^2 .*1 tensor of a layer that is given twice: diffusion_model.blocks.0.self_attn.q.lo" "two forms for one layer are refused"
run vfm-ckpt merge base narrow.safetensors no.safetensors
like "$rc $err" "^2 .*1 tensor of another shape: diffusion_model.blocks.0.self_attn.q \(LoKr\) \[32, 28\] in the place of \[32, 32\]$" \
	"and a product that does not fit"

# ---- training goes on from a file of another program
vfm-ckpt merge base original.safetensors all.safetensors
vfm-train -q -c tiny.json --data plan.jsonl --init all.safetensors -o all --steps 1 --set train.lr=0 >/dev/null
more=(vfm-train -c tiny.json --data plan.jsonl --init base)
one() { vfm-train -q -c tiny.json --data plan.jsonl --init base --steps 1 --set train.lr=0 "$@" >/dev/null; }
run "${more[@]}" --init-lora original.safetensors -o more --steps 1 --set train.lr=0
rc_is 0 "vfm-train --init-lora"
like "$err" "adapters of original.safetensors: rank 3, alpha 6; 14 layers, all of lora.targets" "rank and alpha are those of the file"
empty "its adapters are those of the file, bit by bit" vfm-ckpt diff --part model whole more
less "$(apart all more)" 0.00000005 "the first loss is that of the merged model"
is "$(jq -c '[.init.path, .init.adapters.path, .init.adapters.layout] | map(sub(".*/"; ""))' more/run.json)" '["step-00000008","original.safetensors","original"]' \
	"run.json names base model and file"
vfm-sample --ckpt more "${pick[@]}" -o more.npy >/dev/null
ok "the same latents as by vfm-sample --lora" cmp more.npy lora.npy
for keys in tp=2 cp=2 fsdp=true pp=2; do
	file=peft
	[ $keys != cp=2 ] || file=diffusers.safetensors
	ok "on two ranks with $keys" one --init-lora $file -o "more-$keys" -n 2 --set parallel.$keys
	less "$(apart all "more-$keys")" 0.00000005 "the same loss"
done
empty "and the same adapters" vfm-ckpt diff --part model whole more-tp=2
run vfm-train -q -c tiny.json --data plan.jsonl -o more --steps 2 --set train.lr=0
rc_is 0 "the run goes on without the options"
run "${more[@]}" --init-lora original.safetensors -o more --steps 3 --set train.lr=0 -q
rc_is 0 "or with the same options"
mv base moved
run vfm-train -q -c tiny.json --data plan.jsonl --init moved -o more --steps 4 --set train.lr=0
rc_is 0 "--init tells where its base model is"
mv moved base
cp -r more begun && rm -r begun/ckpt
run "${more[@]}" -o begun --set lora.rank=3 --set lora.alpha=6
like "$rc $err" "^2 .*'begun' began with --init-lora '.*/original.safetensors' and has no checkpoint yet: give it again" \
	"without a checkpoint, a restart needs the same file"
refused() { # WHAT REGEX OPTION ...
	run "${more[@]}" -o x "${@:3}"
	like "$rc $err" "^2 .*$2" "$1 is refused"
}
refused "another rank" "lora.rank is 4, but the adapters of original.safetensors have rank 3$" --init-lora original.safetensors --set lora.rank=4
refused "another alpha" "lora.alpha is 4, but the adapters of original.safetensors have alpha 6$" --init-lora original.safetensors --set lora.alpha=4
refused "a layer without adapters" "has adapters of 12 layers that lora.targets='blocks.\*.fc1' does not cover \(vfm-ckpt merge .*: 'blocks.0.attn" \
	--init-lora original.safetensors --set 'lora.targets=blocks.*.fc1'
refused "a LoKr" "kron.safetensors .*: 1 tensor that no adapter of a run can be: diffusion_model.blocks.0.self_attn.o.lokr_w1 \(LoKr\)$" \
	--init-lora kron.safetensors
refused "a file of several ranks" "mixed.safetensors .*: 1 tensor of another rank: lora_unet_blocks_0_cross_attn_o.lora_down.weight \(3, others 2\)$" \
	--init-lora mixed.safetensors
refused "a run" "whole is a checkpoint, which names its base model: give it as --init$" --init-lora whole
refused "a base model that is adapters" "whole/.* holds adapters, not their base model$" --init whole --init-lora original.safetensors
refused "--skip-missing alone" "skip-missing: it needs --init-lora$" --skip-missing
run vfm-train -c tiny.json --data plan.jsonl --init original.safetensors -o x
like "$rc $err" "^2 .*original.safetensors: a LoRA file, not a model .*vfm-train as --init-lora$" "a LoRA file as --init is refused with advice"
run "${more[@]}" --init-lora some.safetensors --skip-missing -o some --steps 1
like "$rc $err" "^0 .*2 adapters are left out.*rank 2, alpha 2; 1 layers.*13 other layers of lora.targets have no adapter there, and get new ones" \
	"other layers get new adapters"
is "$(grep -c 'left out' <<<"$err")" 1 "one warning names those that are left out"
run "${more[@]}" --init-lora q.safetensors -o part --steps 1 --set train.lr=0
like "$rc $err" "^0 .*1 fused layers have adapters of some outputs there, and get new ones for the others" "so do parts of fused layers"
vfm-sample --ckpt part "${pick[@]}" -o part.npy >/dev/null
ok "whose latents are those of the file" cmp part.npy q.npy
ok "they are trained" vfm-train -q -c tiny.json --data plan.jsonl --init base --init-lora q.safetensors -o moved --steps 3
vfm-ckpt export -l original moved moved.safetensors
ok "on two ranks, too" vfm-train -q -c tiny.json --data plan.jsonl --init base --init-lora q.safetensors -o moved2 --steps 3 -n 2 --set parallel.tp=2
less "$(apart moved moved2)" 0.000001 "with the same losses"
ok "those of k have left 0" jq -en "$(vfm-ckpt stat --raw --format jsonl moved.safetensors '*blocks.0.self_attn.k.lora_B.weight' | jq .norm) > 0"

# ---- frozen parameters
run vfm-train -q -c tiny.json --data plan.jsonl --init base -o frozen --steps 4 --set 'train.freeze=*,!blocks.1.*,!out.*'
rc_is 0 "a run with frozen parameters"
is "$(vfm-ckpt diff --format jsonl --part model base frozen 2>/dev/null | jq -r 'select(.state == "values") | .name' | sed 's/.*\(blocks.[01]\|out\).*/\1/' | sort -u | tr '\n' ' ')" \
	"blocks.1 out " "the others keep their bits"
is "$(vfm-ckpt ls --format jsonl frozen | jq -r .name | grep -c '^optim/m/blocks.0')" 0 "and have no state"
ok "its averages are sampled" vfm-sample --ckpt frozen -p "a red square" --steps 2 --frames 4 --size 16x16 -q --tokenizer wavelet:4 --force -o f.npy
ok "and exported" vfm-ckpt export --part ema -l diffusers frozen ema
is "$(jq -r .num_layers ema/config.json)" 2 "as a whole model"
run vfm-train -q -c tiny.json --data plan.jsonl -o frozen --steps 6 --set 'train.freeze=*,!blocks.1.*,!out.*'
rc_is 0 "and the run goes on"

# ---- frozen weights in fp8
run "${lora[@]}" --init base -o x --set train.frozen_dtype=fp9
like "$rc $err" "^2 .*train.frozen_dtype: expected one of same, fp8, int8, nf4, got 'fp9'$" "another type is refused"
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set train.frozen_dtype=fp8
like "$rc $err" '^2 .*train.frozen_dtype: fp8 is for frozen weights, and without lora.rank or train.freeze all are trained$' \
	"a run that trains all weights is refused"
run vfm-train -q -c tiny.json --data plan.jsonl -o x --set train.frozen_dtype=fp8 --set 'train.freeze=patch*'
like "$rc $err" "^2 .*fp8 is for linear layers of blocks, and train.freeze 'patch\*' freezes none$" "so is one that freezes no layer of a block"
run "${lora[@]}" --init base -o x --set train.frozen_dtype=fp8
like "$rc $err" '^2 .*fp8 needs rows of a multiple of 32 elements on each rank, and blocks.0.fc2.weight has 48 of 48$' "and a layer with other rows"
"${base[@]}" -o base8 --set model.ffn=64 >/dev/null
fp8=("${lora[@]}" --set model.ffn=64 --set train.frozen_dtype=fp8)
run "${fp8[@]}" --init base8 -o x -n 2 --set parallel.tp=2
like "$rc $err" '^2 .*fp8 needs rows of a multiple of 32 elements on each rank, and blocks.0.attn.proj.weight has 16 of 32$' "tp divides rows, too"
run vfm-train -c tiny.json --data plan.jsonl --init base8 -o whole8 --steps 12 "${fp8[@]:6}"
rc_is 0 "adapters of a base model in fp8"
like "$err" '[0-9]+ are frozen \([1-9][0-9]+ in fp8\) and take 0\.[0-9] MiB' "it says how many are in fp8, and their memory"
is "$(vfm-ckpt ls --format jsonl whole8 | jq -r .name | grep -v lora_ | wc -l)" 0 "its checkpoint holds adapters only"
run "${fp8[@]}" --init base8 -o stopped8 --steps 5
run "${fp8[@]}" -o stopped8 --steps 12
ok "stopped after 5 steps, it goes on with the same bits" cmp <(curve whole8) <(curve stopped8)
run "${fp8[@]}" --init base8 -o ranks8 --steps 5
run "${fp8[@]}" -o ranks8 --steps 12 -n 4 --set parallel.fsdp=true --set parallel.pp=2
rc_is 0 "it goes on with fsdp and pp=2"
less "$(apart whole8 ranks8)" 0.0001 "with the same losses"
"${lora[@]}" --set model.ffn=64 --init base8 -o plain8 --steps 12 >/dev/null
less 0.000001 "$(apart whole8 plain8)" "which are not those of the weights as they are"
less "$(apart whole8 plain8)" 0.05 "but near"
ok "its adapters are sampled" vfm-sample --ckpt whole8 "${pick[@]}" -o whole8.npy
ok "and merged into the weights as they are" vfm-ckpt merge --scale 0 base8 whole8 zero8.safetensors
vfm-ckpt merge --scale 0 base8 plain8 plain8.safetensors
ok "which keep their bits" cmp zero8.safetensors plain8.safetensors
freeze=(vfm-train -q -c tiny.json --data plan.jsonl -o frozen8 --set model.ffn=64 --set train.frozen_dtype=fp8 --set 'train.freeze=blocks.0.*')
run "${freeze[@]}" --init base8 --steps 4
rc_is 0 "frozen parameters in fp8"
changed() { vfm-ckpt diff --format jsonl --part model "$@" 2>/dev/null | jq -r 'select(.state == "values") | .name' | grep -c 'blocks.0'; }
is "$(changed base8 frozen8)" 7 "the weights of their layers are rounded"
cp -r frozen8 at4
run "${freeze[@]}" --steps 6
rc_is 0 "and the run goes on"
is "$(changed at4 frozen8)" 0 "with the same rounded weights"
done_testing
