#!/bin/bash
# Weights of other programs: import, export, use in place; what is refused.  With PyTorch and diffusers, also their own files.
. "${0%/*}/lib.sh"

python3 -B "$TOP/tests/tools/foreign_models.py" . || exit 1
export OMP_NUM_THREADS=1
values() { # CKPT ...: a hash of names, types, shapes and values, as in the files
	vfm-ckpt hash --raw "$1" | awk 'NR == 2 { print $1 }'
}
model='{"model":{"arch":"wan","layers":2,"hidden":24,"heads":3,"ffn":48,"channels":3,"text_dim":16,"text_pad":true}}'
echo "$model" >model.json

# ---- reading in place
for f in diffusers original megatron; do
	run vfm-ckpt diff own.safetensors $f
	rc_is 0 "$f: our names, shapes and values"
done
is "$(vfm-ckpt ls --raw --format jsonl megatron | jq -r .name | grep -c linear_qkv.weight)" 2 "ls --raw shows the names of the file"
is "$(vfm-ckpt info --format jsonl diffusers | jq -r .model)" "wan, layers 2, hidden 24, heads 3" "info knows the model"
run vfm-ckpt check diffusers original.pth
rc_is 0 "check reads them"
run vfm-ckpt ls original.pth
rc_is 2 "without config.json and with heads that no Wan has: refused"
like "$err" "heads of 128 features, as in the published models, do not divide model.hidden 24" "which says why"
for f in original.pth nested.pth prefix.safetensors; do
	run vfm-ckpt import -q -c model.json "$f" "${f%%.*}-ckpt"
	rc_is 0 "$f: import with -c"
	ok "$f: the same model" vfm-ckpt diff "${f%%.*}-ckpt" own.safetensors
done

# ---- there and back
run vfm-ckpt import diffusers ckpt
rc_is 0 "import"
is "$(vfm-ckpt info --format jsonl ckpt | jq -r '"\(.step) \(.parts)"')" "0 model" "a checkpoint of step 0"
is "$(jq -c '.config.model | [.arch, .layers, .hidden, .heads, .ffn, .channels, .patch, .text_dim, .text_len, .text_pad]' ckpt/step-00000000/manifest.json)" \
	'["wan",2,24,3,48,3,[1,2,2],16,512,true]' "with the model of config.json"
run vfm-ckpt export -l diffusers --shard 40000 ckpt df
rc_is 0 "export to shards"
is "$(values df)" "$(values diffusers)" "import and export: every bit of diffusers' files"
ok "of at most that size, and an index" test -s df/diffusion_pytorch_model-00002-of-*.safetensors -a -s df/diffusion_pytorch_model.safetensors.index.json
is "$(jq -S 'del(._diffusers_version)' df/config.json)" "$(jq -S 'del(._diffusers_version)' diffusers/config.json)" "and its config.json"
run vfm-ckpt export -l original ckpt or
rc_is 0 "export in the original layout"
is "$(values or)" "$(values original)" "every bit of the original files"
is "$(jq -c '[.dim, .num_heads, .text_len, .model_type]' or/config.json) $(ls or)" '[24,3,512,"t2v"] config.json'$'\n'"diffusion_pytorch_model.safetensors" "with config.json, in one file"
run vfm-ckpt import or back
rc_is 0 "and back"
is "$(vfm-ckpt hash --part model back | awk 'NR == 2 { print $1 }')" "$(vfm-ckpt hash --part model ckpt | awk 'NR == 2 { print $1 }')" "the same checkpoint"
vfm-ckpt export -l diffusers back df2 && vfm-ckpt export -l diffusers original df3 && vfm-ckpt export -l original back one.safetensors || exit 1
is "$(values df2) $(values df3)" "$(values diffusers) $(values diffusers)" "by way of the original names, and from file to file"
is "$(values one.safetensors)" "$(values original)" "a single file"
ok "which knows its heads without config.json" vfm-ckpt diff one.safetensors own.safetensors
run vfm-ckpt export --dtype bf16 -l diffusers ckpt half
is "$rc $(vfm-ckpt ls --format jsonl half | jq -r .dtype | sort -u)" "0 bf16" "export -t"
run vfm-ckpt import --dtype bf16 diffusers half-ckpt
ok "import -t: the same values" vfm-ckpt diff half half-ckpt

# ---- weights in 8-bit floats with a scale, as ComfyUI stores them
python3 -B "$TOP/tests/tools/fp8_models.py" original/diffusion_pytorch_model.safetensors fp8 && cp original/config.json fp8 || exit 1
for f in old new meta; do
	run vfm-ckpt export -l original "fp8/$f.safetensors" "fp8-$f.safetensors"
	rc_is 0 "$f: 8-bit weights with scales are read"
	is "$(values "fp8-$f.safetensors")" "$(values fp8/want.safetensors)" "each is a weight times its scale"
done
run vfm-ckpt info fp8/new.safetensors
like "$rc $err" "^0 .*fp8/new.safetensors: 18 scales of inputs are not read: they are for products in 8 bits$" "scales of inputs have no effect on weights"
ok "import makes a checkpoint of them" vfm-ckpt import -q --dtype bf16 fp8/old.safetensors fp8-ckpt
vfm-ckpt import -q --dtype bf16 fp8/want.safetensors fp8-want
ok "with the same values" vfm-ckpt diff fp8-ckpt fp8-want
like "$(vfm-ckpt stat --format jsonl fp8/old.safetensors 'blocks.0.cross.kv.weight' | jq -r .name)" kv "in slices, too"
bad8() { # NAME REGEX
	run vfm-ckpt import "fp8/bad-$1.safetensors" no
	like "$rc $err" "^2 .*fp8/bad-$1.safetensors is no complete wan .*$2" "$1: refused by name"
}
bad8 format "1 tensor of a quantization that is not supported: blocks.0.self_attn.q.comfy_quant \(format nvfp4\)$"
bad8 key "blocks.0.self_attn.q.comfy_quant \(convrot\)$"
bad8 meta "blocks.0.self_attn.q \(format mxfp8\)$"
bad8 rows "blocks.0.self_attn.q.weight_scale \(only one scale for a weight is supported\)$"
bad8 zero "blocks.0.self_attn.q.weight_scale \(not positive\)$"
bad8 twice "blocks.0.self_attn.q.weight_scale \(a second scale\)$"
bad8 second "1 tensor unknown: blocks.0.self_attn.q.weight_scale_2$"
bad8 lone "head.head.weight_scale \(of no weight in 8-bit floats\)$"
bad8 none "blocks.0.self_attn.q.comfy_quant \(without weight_scale\)$"

# ---- what is wrong, all of it
edit() { # FILE PYTHON: changes t, {name: [dtype, shape, bytes]}, of a safetensors file
	python3 - "$@" <<'PY' || exit 1
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8 : 8 + n])
head.pop("__metadata__", None)
t = {k: [v["dtype"], v["shape"], raw[8 + n :][slice(*v["data_offsets"])]] for k, v in head.items()}
exec(sys.argv[2])
head, data = {}, b""
for k, (dtype, shape, b) in t.items():
    head[k] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
    data += b
text = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}
spoiled() { # PYTHON: makes the folder bad
	rm -rf bad && cp -r original bad && edit bad/diffusion_pytorch_model.safetensors "$1"
}
spoiled 't.pop("head.head.bias"); [t.pop(f"blocks.{i}.ffn.2.weight") for i in (0, 1)]
t["blocks.0.cross_attn.k_x.weight"] = t["blocks.1.cross_attn.k_x.weight"] = t["x.proj.1.bias"] = ["F32", [1], b"0000"]
t["blocks.1.norm3.bias"][1] = [2, 12]; t["patch_embedding.weight"][1] = [24, 12]'
run vfm-ckpt import bad no
rc_is 2 "missing, unknown and misshaped tensors"
want="3 tensors missing: blocks.{0-1}.ffn.2.weight, head.head.bias; "
want+="3 tensors unknown: blocks.{0-1}.cross_attn.k_x.weight, x.proj.1.bias; "
want+="2 tensors of another shape: blocks.1.norm3.bias \[2, 12\] in the place of \[24\], "
want+="patch_embedding.weight \[24, 12\] in the place of \[24, 3, 1, 2, 2\]"
like "$err" "^vfm-ckpt import: bad is no complete wan in the layout original: ${want//\{/\\\{}\$" "one message lists all of them"
not_ok "nothing is written" test -e no
run vfm-ckpt ls --raw bad
rc_is 0 "ls --raw shows such files"
spoiled 't["blocks.1.self_attn.k.weight"][0] = "I32"'
run vfm-ckpt import bad no
like "$rc $err" "^2 .*blocks.1.self_attn.k.weight \(i32, but blocks.1.self_attn.q.weight is f32\)" "parts of one tensor with different types"
cp -r original cut && truncate -s -100 cut/diffusion_pytorch_model.safetensors
run vfm-ckpt import cut no
rc_is 2 "a truncated file"
for n in 100 1000 30000 100000; do
	head -c -"$n" original.pth >cut.pth
	run vfm-ckpt import -c model.json cut.pth no
	rc_is 2 "a .pth without its last $n bytes"
done
python3 - <<'PY' || exit 1
import os, zipfile
import pickle
class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)
with zipfile.ZipFile("evil.pth", "w") as z:
    z.writestr("archive/data.pkl", pickle.dumps({"a": Evil()}, protocol=2))
src = zipfile.ZipFile("original.pth")
with zipfile.ZipFile("deflated.pth", "w", zipfile.ZIP_DEFLATED) as z:
    for n in src.namelist():
        z.writestr(n, src.read(n))
with zipfile.ZipFile("float.pth", "w") as z:
    z.writestr("archive/data.pkl", pickle.dumps({"lr": 0.5}, protocol=2))
PY
run vfm-ckpt ls evil.pth
like "$rc $err" "^2 .*data.pkl mentions '(posix|nt) system'; only tensors in dictionaries are read" "a program is not executed"
not_ok "indeed not" test -e executed
run vfm-ckpt import -c model.json columns.pth no
like "$rc $err" "^2 .*data.pkl, byte [0-9]+: a tensor that is not contiguous" "views by column"
run vfm-ckpt ls deflated.pth
like "$rc $err" "^2 .*entry 'archive/[^']*' is compressed" "a compressed archive"
run vfm-ckpt ls float.pth
like "$rc $err" "^2 .*instruction 0x47 at byte [0-9]+, which no dictionary of tensors needs" "an unknown instruction is named"

config() { # JQ: the folder bad with another config.json
	rm -rf bad && cp -r diffusers bad && jq "$1" diffusers/config.json >bad/config.json
}
while IFS='|' read -r change why; do
	config "$change"
	run vfm-ckpt import bad no
	like "$rc $err" "^2 .*bad/config.json: $why" "config.json: $change"
done <<'END'
.qk_norm = "none"|qk_norm: "none" is not supported
.freq_dim = 128|freq_dim: 128 is not supported; expected one of \[256\]
.cross_attn_norm = false|cross_attn_norm: false is not supported
.image_dim = "clip"|image_dim: "clip" is not supported
.extra_layers = 3|unknown key 'extra_layers' of the layout diffusers of wan
.patch_size = 2|patch_size: 2 is not supported
.num_layers = -1|num_layers: -1 is not supported
END
config '.ffn_dim = 49'
run vfm-ckpt import bad no
like "$rc $err" "^2 .*6 tensors of another shape: blocks.\{0-1\}.ffn.net.0.proj.bias \[48\] in the place of \[49\]" "config.json and tensors that disagree"
config '.in_channels = 2'
run vfm-ckpt import bad no
like "$rc $err" "^2 .*bad: the input has 2 channels, the output 3" "fewer inputs than outputs"
config '.in_channels = 36 | .image_dim = 1280'
run vfm-ckpt import bad no
like "$rc $err" "^2 .*tensors missing: blocks.\{0-1\}.attn2.add_k_proj.bias.* of another shape: patch_embedding.weight \[24, 3, 1, 2, 2\] in the place of \[24, 36, 1, 2, 2\]" "a model of images without its tensors"
config '.num_attention_heads = 1 | .attention_head_dim = 24'
run vfm-ckpt import -q -c model.json bad given
is "$rc $(jq .config.model.heads given/step-00000000/manifest.json)" "0 3" "-c takes the place of config.json"
mkdir pipe && cp -r diffusers pipe/transformer && echo '{}' >pipe/model_index.json
run vfm-ckpt ls pipe
like "$rc $err" "^2 .*'pipe' holds several models; give the folder of one, such as 'pipe/transformer'" "a pipeline"
run vfm-ckpt export -l nemo ckpt no
like "$rc $err" "^2 .*can be written in the layouts diffusers, original, not 'nemo'" "an unknown layout"
run vfm-ckpt export -l megatron ckpt no
rc_is 2 "a layout that is only read"
vfm-ckpt import -q -c <(jq '.model.rope_theta = 500' model.json) original.pth theta
run vfm-ckpt export -l diffusers theta no
like "$rc $err" "^2 .*model.rope_theta: the layout diffusers cannot express its value" "a model that the layout cannot express"
run vfm-ckpt export -l diffusers own.safetensors no
like "$rc $err" "^2 .*own.safetensors has no configuration, which --layout needs" "a file without a configuration"
run vfm-ckpt export -l diffusers -c <(jq '.model.ffn = 56' model.json) own.safetensors no
like "$rc $err" "^2 .*does not hold the model of its configuration: 6 tensors of another shape: blocks.\{0-1\}.fc1.bias \[48\] in the place of \[56\]" "a wrong one"
run vfm-ckpt export -l diffusers ckpt df
like "$rc $err" "^2 .*'df' is not empty" "a directory with files"
not_ok "nothing of all this is left" ls -d no no.tmp
for dst in full full.safetensors; do
	run bash -c "trap '' XFSZ; ulimit -f 40; vfm-ckpt export -l diffusers --shard 60000 ckpt $dst"
	rc_is 3 "$dst: no space"
	empty "$dst: nothing is left" find . -name 'full*'
done

# ---- LTX-Video
cd ltx || exit 1
echo '{"model":{"arch":"ltx","layers":2,"hidden":24,"heads":3,"channels":3,"patch":[1,1,1],"text_dim":16}}' >model.json
run vfm-ckpt diff own.safetensors diffusers
rc_is 0 "ltx: our names, shapes and values"
run vfm-ckpt import -q -c model.json original.safetensors from-original
rc_is 0 "the file of the release, without the autoencoder"
ok "the same model" vfm-ckpt diff from-original own.safetensors
run vfm-ckpt ls original.safetensors
like "$rc $err" "^2 .*32 heads, as in the published models, do not divide model.hidden 24; -c FILE gives model.heads" "without -c it has the heads of LTX-Video"
run vfm-ckpt import -q diffusers ckpt
is "$(jq -c '.config.model | [.arch, .layers, .hidden, .heads, .ffn, .channels, .patch, .text_dim, .text_pad, .rope_fps == 25, .rope_stride]' ckpt/step-00000000/manifest.json)" \
	'["ltx",2,24,3,96,3,[1,1,1],16,false,true,[8,32,32]]' "the model of config.json"
run vfm-ckpt export -l diffusers ckpt back
is "$rc $(values back)" "0 $(values diffusers)" "import and export: every bit"
is "$(jq -S . back/config.json)" "$(jq -S 'del(._diffusers_version)' diffusers/config.json)" "and config.json"
run vfm-ckpt export -l original ckpt no
like "$rc $err" "^2 .*can be written in the layouts diffusers, not 'original'" "a layout that is only read"
vfm-ckpt import -q -c <(jq '.model += {rope_fps: 24, rope_stride: [4, 8, 16]}' model.json) original.safetensors timed &&
	vfm-ckpt export -q -l diffusers timed timed-df && vfm-ckpt import -q timed-df timed-back || exit 1
is "$(jq -c '.config.model | [.rope_fps == 24, .rope_stride]' timed-back/step-00000000/manifest.json)" "[true,[4,8,16]]" "positions that config.json lacks are in the metadata"
while IFS='|' read -r change why; do
	rm -rf bad && cp -r diffusers bad && jq "$change" diffusers/config.json >bad/config.json
	run vfm-ckpt import bad no
	like "$rc $err" "^2 .*bad/config.json: $why" "config.json: $change"
done <<'END'
.patch_size = 2|patch_size: 2 is not supported
.norm_eps = 1e-5|norm_eps: 1e-05 is not supported; expected one of \[1e-06\]
.norm_elementwise_affine = true|norm_elementwise_affine: true is not supported
.cross_attention_dim = 48|attention_head_dim: 24 contradicts another key, which gives 48
END
for change in norm_eps=1e-5 rope_theta=500 'patch=[1,1,3]'; do
	key=${change%%=*}
	run vfm-ckpt export -l diffusers -c <(jq ".model.$key = ${change#*=} | if .model.patch == [1,1,3] then .model.channels = 1 else . end" model.json) own.safetensors no
	like "$rc $err" "^2 .*model.$key: the layout diffusers cannot express its value" "$change is not exported"
done
sed -i 's/"layers":2/"layers":2,"ffn":48/' model.json
run vfm-ckpt export -l diffusers -c model.json own.safetensors no
like "$rc $err" "^2 .*model.ffn: the layout diffusers cannot express its value" "an MLP of another width is not exported"
not_ok "nothing of all this is left" ls -d no no.tmp
cd .. || exit 1

# ---- Cosmos-Predict: rows of q, k and their norms in another order; no biases; masks in the input
cd cosmos || exit 1
keys='"arch":"cosmos","layers":2,"hidden":32,"heads":2,"channels":3,"text_dim":16,"text_pad":true,"adaln_lora":4,"rope_scale":[1,3,2.5]'
for m in video projection t2i; do
	[ $m = video ] || cd $m || exit 1
	case $m in
	video) more='' want='[16,0,2]' ;;
	projection) more=',"text_proj":12' want='[16,12,2]' ;;
	t2i) more=',"mask_channels":1' want='[16,0,1]' ;;
	esac
	echo "{\"model\":{$keys$more}}" >model.json
	run vfm-ckpt diff own.safetensors diffusers
	rc_is 0 "cosmos, $m: our names, shapes and values"
	run vfm-ckpt import -q diffusers ckpt
	is "$(jq -c '.config.model | [.arch, .layers, .hidden, .heads, .ffn, .channels, .patch, .text_len, .text_pad, .adaln_lora, .rope_scale, .rope_fps == 24]' ckpt/step-00000000/manifest.json)" \
		'["cosmos",2,32,2,128,3,[1,2,2],512,true,4,[1,3,2.5],true]' "$m: the model of config.json"
	is "$(jq -c '.config.model | [.text_dim, .text_proj // 0, .mask_channels]' ckpt/step-00000000/manifest.json)" "$want" "$m: its text and masks"
	run vfm-ckpt export -q -l diffusers ckpt back
	is "$rc $(values back)" "0 $(values diffusers)" "$m: import and export: every bit"
	is "$(jq -S . back/config.json)" "$(jq -S 'del(._diffusers_version)' diffusers/config.json)" "$m: and config.json"
	for f in original.safetensors original.pth; do
		run vfm-ckpt import -q -c model.json $f "of-${f##*.}"
		rc_is 0 "$m, $f: the prefix, and counters that are no weights"
		ok "$m: the same model" vfm-ckpt diff "of-${f##*.}" own.safetensors
		rm -rf "of-${f##*.}"
	done
	run vfm-ckpt export -q -l original ckpt or.safetensors
	is "$rc $(vfm-ckpt ls --raw --format jsonl or.safetensors | jq -r .name | sort)" \
		"0 $(vfm-ckpt ls --raw --format jsonl original.safetensors | jq -r .name | grep -v 'accum_\|pos_embedder\|_extra_state' | sed 's/^net\.//' | sort)" "$m: the original names"
	ok "$m: which is read without config.json" vfm-ckpt diff or.safetensors own.safetensors
	vfm-ckpt export -q -l diffusers or.safetensors df
	is "$(values df)" "$(values diffusers)" "$m: from file to file"
	[ $m = video ] || cd .. || exit 1
done
run vfm-ckpt import original.safetensors no
like "$rc $err" "^2 .*neither config.json nor the tensors give model.rope_scale, and no published model has these dimensions; -c FILE gives it$" "without config.json and -c: the range of the positions is unknown"
while read -r name params scale dims; do
	is "$(vfm-ckpt info --format jsonl "$name.safetensors" 2>err | jq .params)" "$params" "$name: the tensors of the published file"
	is "$(vfm-train --init "$name.safetensors" --print-config 2>err | jq -c '.model | [.rope_scale, [.heads, .text_dim, .text_proj, .mask_channels]]')" \
		"[$scale,$dims]" "its dimensions, and the range of the positions"
done <<'END'
cosmos2-14b 14265285632 [0.8333333333333334,2,2] [40,1024,0,2]
cosmos2-t2i-2b 1956405248 [1,4,4] [16,1024,0,1]
cosmos2.5-2b 2059174912 [1,3,3] [16,100352,1024,2]
END
run vfm-ckpt info other.safetensors
like "$rc $err" "^2 .*nor the tensors give model.rope_scale" "other dimensions with heads of 128 features"
sed -i 's/"net.accum_iteration/"net.other_iteration/' t2i/original.safetensors
run vfm-ckpt import -c t2i/model.json t2i/original.safetensors no
like "$rc $err" "^2 .*1 tensor unknown: net.other_iteration" "other tensors of the file are not ignored"
while IFS='|' read -r change why; do
	rm -rf bad && cp -r diffusers bad && jq "$change" diffusers/config.json >bad/config.json
	run vfm-ckpt import bad no
	like "$rc $err" "^2 .*bad/config.json: $why" "config.json: $change"
done <<'END'
.concat_padding_mask = false|concat_padding_mask: false is not supported; expected one of \[true\]
.extra_pos_embed_type = "learnable"|extra_pos_embed_type: "learnable" is not supported; expected one of \[null\]
.img_context_dim_in = 1152|img_context_dim_in: 1152 is not supported; expected one of \[null\]
.controlnet_block_every_n = 7|controlnet_block_every_n: 7 is not supported; expected one of \[null\]
.patch_size = [1, 1, 1]|patch_size: \[1, ?1, ?1\] is not supported; expected one of \[\[1, 2, 2\]\]
.rope_scale = [1, 3]|rope_scale: \[1, ?3\] is not supported; expected an array of three numbers
.rope_scale = [1, 3, 0]|rope_scale: 0 is not supported; expected an array of three numbers above 0
.mlp_ratio = "4"|mlp_ratio: "4" is not supported; expected a number above 0
.attention_head_dim = 0|attention_head_dim: 0 is not supported; expected an integer of 1 to 1048576
.qk_norm = "rms_norm"|unknown key 'qk_norm' of the layout diffusers of cosmos
END
while IFS=';' read -r from change why; do
	rm -rf bad && cp -r $from bad && jq "$change" $from/config.json >bad/config.json
	run vfm-ckpt import bad no
	like "$rc $err" "^2 .*bad[:/ ].*$why" "$from/config.json: $change"
done <<'END'
diffusers;.in_channels = 3;1 tensor of another shape: patch_embed.proj.weight \[32, 20\] in the place of \[32, 16\]
diffusers;.in_channels = 5;the input has 3 channels after the latents; expected 1 or 2 masks
diffusers;.mlp_ratio = 3;4 tensors of another shape: .*transformer_blocks.\{0-1\}.ff.net.2.weight \[32, 128\] in the place of \[32, 96\]
diffusers;.text_embed_dim = 24;4 tensors of another shape: .*transformer_blocks.\{0-1\}.attn2.to_v.weight \[32, 16\] in the place of \[32, 24\]
diffusers;.use_crossattn_projection = true;use_crossattn_projection: true contradicts the tensors, which give false
projection/diffusers;.use_crossattn_projection = false;use_crossattn_projection: false contradicts the tensors, which give true
projection/diffusers;.crossattn_proj_in_channels = 40;crossattn_proj_in_channels: 40 contradicts the tensors, which give 16
projection/diffusers;.encoder_hidden_states_channels = 16;encoder_hidden_states_channels: 16 contradicts the tensors, which give 12
END
# The text may be projected by its encoder, so that the model is without this layer.
without=$(jq -c '.model += {text_dim: 12, text_proj: 0}' model.json)
run vfm-ckpt import -c <(echo "$without") projection/diffusers outside
like "$rc $err" "^0 .*projection/diffusers: 2 tensors are left out, because the given model is without their layer$" "-c leaves the projection out"
run vfm-ckpt diff --format jsonl outside projection/own.safetensors
is "$(jq -rs 'map(select(.name)) | map(.name) | join(" ")' <<<"$out")" "ctx_proj.bias ctx_proj.weight" "and nothing else"
run vfm-ckpt import -c <(jq '.model.text_dim = 16' <<<"$without") projection/diffusers no
like "$rc $err" "^2 .*4 tensors of another shape: .*attn2.to_k.weight \[32, 12\] in the place of \[32, 16\]" "the text must have the features of the projection"
for change in rope_theta=500 norm_eps=1e-5 patch=[1,1,2]; do
	key=${change%%=*}
	run vfm-ckpt export -l diffusers -c <(jq ".model.$key = ${change#*=} | if .model.patch then .model.channels = 6 else . end" model.json) own.safetensors no
	like "$rc $err" "^2 .*model.$key: the layout diffusers cannot express its value" "$change is not exported"
done
vfm-ckpt import -q -c <(jq '.model += {rope_fps: 16, text_len: 77}' model.json) original.safetensors timed &&
	vfm-ckpt export -q -l diffusers timed timed-df && vfm-ckpt import -q timed-df timed-back || exit 1
is "$(jq -c '.config.model | [.rope_fps == 16, .text_len]' timed-back/step-00000000/manifest.json)" "[true,77]" "what config.json lacks is in the metadata"
not_ok "nothing of all this is left" ls -d no no.tmp
cd .. || exit 1

# ---- training and sampling
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 4 >syn.jsonl || exit 1
vfm-curate encode -q -d latents --tokenizer wavelet:3 --text bytes:16 syn.jsonl >enc.jsonl 2>enc.err
if vfm-curate shard -q -d data enc.jsonl >log 2>&1 && vfm-pack -q --context 64 -b 2 --steps 4 data >plan.jsonl 2>>log; then
	train=(vfm-train -q --device cpu --data plan.jsonl --set train.lr=0 --set train.warmup_steps=0 --steps 1)
	weights() {
		vfm-ckpt hash --part model "$1" | awk 'NR == 2 { print $1 }'
	}
	cp original/config.json .
	for from in diffusers original megatron original.pth ckpt; do
		run "${train[@]}" --init $from -o "run-$from"
		is "$rc $(weights "run-$from")" "0 $(weights ckpt)" "--init $from: the weights, and the model without -c"
	done
	is "$(jq -c '[.model.arch, .model.heads, .model.text_pad, .diffusion.kind]' run-diffusers/config.json)" '["wan",3,true,"flow"]' "the configuration"
	sums=$(cd diffusers && sha256sum ./*.safetensors | sed 's,\./,,' | sha256sum | cut -c -64)
	is "$(jq -c .init run-diffusers/run.json)" "{\"path\":\"$PWD/diffusers\",\"sha256\":\"$sums\",\"layout\":\"diffusers\"}" "run.json names them, their hash and their layout"
	for n in "2 --set parallel.fsdp=true" "2 --set parallel.pp=2" "2 --set parallel.cp=2" "3 --set parallel.tp=3"; do
		# shellcheck disable=SC2086 # words
		run "${train[@]}" --init diffusers -o "mesh-${n// /-}" -n $n
		is "$rc $(weights "mesh-${n// /-}")" "0 $(weights ckpt)" "--init, -n $n"
	done
	run "${train[@]}" --init diffusers -o no --set model.layers=3
	like "$rc $err" "^2 .*cannot take the weights of 'diffusers': model.layers: 2 -> 3 \(--allow-change model" "a contradiction is refused"
	mv diffusers gone
	run "${train[@]}" --init diffusers -o run-diffusers --steps 2
	rc_is 0 "the run goes on without them"
	mv gone diffusers
	"${train[@]}" --init fp8/want.safetensors -o want8 >/dev/null
	run "${train[@]}" --init fp8/old.safetensors -o run-fp8
	is "$rc $(weights run-fp8)" "0 $(weights want8)" "--init, weights in 8-bit floats with scales"
	run "${train[@]}" --init fp8/new.safetensors -o mesh-fp8 -n 3 --set parallel.tp=3
	rc_is 0 "on three ranks"
	# Zeros may differ in sign: with a learning rate of 0, -0 minus 0 times the update is 0 if that is negative.
	is "$(vfm-ckpt diff --part model mesh-fp8 want8 2>&1)" "" "the same weights"
	vfm-sample -q --device cpu --steps 2 --frames 4 --size 32x32 -o fp8.gif -p x --ckpt fp8/old.safetensors >/dev/null
	vfm-sample -q --device cpu --steps 2 --frames 4 --size 32x32 -o want8.gif -p x --ckpt fp8/want.safetensors >/dev/null
	ok "vfm-sample reads them, too" cmp fp8.gif want8.gif
	run vfm-sample -q --device cpu --steps 2 --frames 4 --size 32x32 -o out.gif -p x --ckpt original
	rc_is 0 "vfm-sample reads them"
	for m in cosmos cosmos/projection cosmos/t2i; do
		for from in diffusers ckpt; do
			run "${train[@]}" --init $m/$from -o "run-${m//\//-}-$from"
			is "$rc $(weights "run-${m//\//-}-$from")" "0 $(weights $m/ckpt)" "--init $m/$from: the weights, and the model without -c"
		done
	done
	for n in "2 --set parallel.fsdp=true" "2 --set parallel.pp=2" "2 --set parallel.tp=2"; do
		# shellcheck disable=SC2086 # words
		run "${train[@]}" --init cosmos/projection/diffusers -o "cosmos-mesh-${n// /-}" -n $n
		is "$rc $(weights "cosmos-mesh-${n// /-}")" "0 $(weights cosmos/projection/ckpt)" "--init of cosmos, -n $n"
	done
	sample=(vfm-sample -q --device cpu --steps 2 --frames 4 --size 32x32 -p x)
	for m in cosmos cosmos/projection; do
		r=lora-${m//\//-} base=$m/ckpt
		run vfm-train -q --device cpu --data plan.jsonl --init $m/diffusers -o "$r" --steps 3 --set lora.rank=2 --set lora.alpha=4 \
			--set train.lr=1e-2 --set train.warmup_steps=0
		vfm-ckpt merge -q $base "$r" "$r-merged.safetensors" && vfm-ckpt export -q "$r" "$r-own.safetensors"
		is "$rc $?" "0 0" "$m: adapters"
		for layout in peft diffusers original comfyui; do
			dst=$r-$layout.safetensors
			[ $layout != peft ] || dst=$r-peft
			run vfm-ckpt export -q -l $layout "$r" "$dst"
			vfm-ckpt merge -q $base "$dst" again.safetensors
			is "$rc $?" "0 0" "$m: exported as $layout, and merged"
			ok "$m: into the same weights" cmp again.safetensors "$r-merged.safetensors"
			"${sample[@]}" --ckpt $m/diffusers --lora "$dst" --force -o "$layout.npy" >/dev/null 2>&1
		done
		"${sample[@]}" --ckpt "$r" --part model --force -o run.npy >/dev/null 2>&1
		"${sample[@]}" --ckpt $m/diffusers --force -o base.npy >/dev/null 2>&1
		ok "$m: --lora of these files gives the samples of the run" cmp run.npy original.npy
		ok "$m: in every layout" cmp peft.npy diffusers.npy
		not_ok "$m: which are not those of the model" cmp base.npy run.npy
		ok "$m: names and rows are those of diffusers" python3 - "$r-own.safetensors" "$r-diffusers.safetensors" "$r-peft/adapter_model.safetensors" <<'PY'
import json, struct, sys
def load(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    head.pop("__metadata__", None)
    t = {}
    for k, v in head.items():
        a, b = v["data_offsets"]
        x, width = struct.unpack("<%df" % ((b - a) // 4), data[8 + n + a:8 + n + b]), v["shape"][1]
        t[k] = [x[i:i + width] for i in range(0, len(x), width)]
    return t
own, diffusers, peft = map(load, sys.argv[1:])
names = {"attn.qkv": ["attn1.to_q", "attn1.to_k", "attn1.to_v"], "attn.proj": ["attn1.to_out.0"], "cross.q": ["attn2.to_q"],
         "cross.kv": ["attn2.to_k", "attn2.to_v"], "cross.proj": ["attn2.to_out.0"], "fc1": ["ff.net.0.proj"], "fc2": ["ff.net.2"]}
seen = set()
for name, rows in own.items():
    layer, x = name[:-len(".lora_A.weight")], name[-len("lora_A.weight"):]
    _, i, rest = layer.split(".", 2)
    parts = names[rest]
    for k, part in enumerate(parts):
        mine = rows[len(rows) // len(parts) * k:len(rows) // len(parts) * (k + 1)]
        if x[5] == "B" and part in ("attn1.to_q", "attn1.to_k"):  # heads of 16
            mine = [mine[head + 2 * (r % 8) + r // 8] for head in (0, 16) for r in range(16)]
        theirs = f"transformer_blocks.{i}.{part}.{x}"
        seen.add(theirs)
        assert peft["base_model.model." + theirs] == mine, name
        scaled = [tuple(2 * v for v in row) for row in mine] if x[5] == "B" else mine
        assert diffusers["transformer." + theirs] == scaled, name
        assert any(v for row in mine for v in row) and len(set(mine)) == len(mine), name
assert len(own) == 28 and len(diffusers) == len(peft) == len(seen) == 40, (len(own), len(diffusers))
PY
	done
	run vfm-ckpt export -l kohya lora-cosmos no
	like "$rc $err" "^2 .*adapters of model.arch 'cosmos' are written as peft, diffusers, original or comfyui, not 'kohya'" "kohya's scripts have none of cosmos"
	run vfm-ckpt merge ckpt lora-cosmos-diffusers.safetensors no
	like "$rc $err" "^2 " "adapters of cosmos for another model are refused"
	"${sample[@]}" --frames 1 -o picture.png --ckpt cosmos/diffusers >/dev/null 2>&1
	for m in cosmos cosmos/projection cosmos/t2i; do
		run "${sample[@]}" -o "${m//\//-}.gif" --ckpt $m/diffusers
		rc_is 0 "vfm-sample reads $m"
	done
	run "${sample[@]}" --frames 8 -o picture.gif --ckpt cosmos/diffusers --image picture.png
	rc_is 0 "a picture is given"
	unlike "$err" "was trained with given first frames" "without a warning: a mask says that the model knows them"
	run "${sample[@]}" -o no.gif --ckpt cosmos/t2i/diffusers --image picture.png
	like "$rc $err" "^2 .*prompt 0: the model reads no mask of given frames \(model.mask_channels is 1\)" "a model without that mask refuses it"
	cat >wide.py <<'PY'
import json, os, sys
print(json.dumps({"vfm_exec": 1, "name": "wide", "version": "1", "sha256": "0" * 64, "capabilities": ["text-encode"],
                  "text": {"dim": int(sys.argv[1]), "max_rows": 512}}), flush=True)
for line in sys.stdin:
    r = json.loads(line)
    with open(r["out"], "wb") as f:
        f.write(b"\0\x3f" * 3 * int(sys.argv[1]))
    print(json.dumps({"id": r["id"], "rows": {"shape": [3, int(sys.argv[1])], "dtype": "bfloat16"}}), flush=True)
PY
	run "${sample[@]}" -o wide.gif --ckpt cosmos/wide --text-exec "python3 wide.py 100352"
	rc_is 0 "rows of 100352 features, as of Cosmos-Reason1, pass through a child"
	run "${sample[@]}" -o no.gif --ckpt cosmos/wide --text-exec "python3 wide.py 1048577"
	like "$rc $err" "^2 .*hello.text.dim: expected an integer from 1 to 1048576, got 1048577" "but not any number of them"
	run "${sample[@]}" -o no.gif --ckpt cosmos/wide --text-exec "python3 wide.py 3584"
	like "$rc $err" "^2 .*the text encoder 'wide' has rows of width 3584, the model reads 100352" "nor those of another model"
	run vfm-curate encode -q -d no --tokenizer wavelet:3 --text-exec "python3 wide.py 100352" syn.jsonl
	like "$rc $err" "^2 .*the text encoder 'wide' makes rows of 100352 features, but a dataset holds at most 65535" "a dataset cannot hold them"
	run "${train[@]}" --init cosmos/t2i/diffusers -o no --set diffusion.image_cond=0.5
	like "$rc $err" "^2 .*diffusion.image_cond: the model reads no mask of given frames \(model.mask_channels is 1\)" "and so does vfm-train"
	vfm-pack -q --context 64 -b 2 --patch 1x1x1 --ragged drop --steps 4 data >plan.jsonl || exit 1
	for from in ltx/diffusers ltx/ckpt; do
		run "${train[@]}" --init $from -o "run-${from//\//-}"
		is "$rc $(weights "run-${from//\//-}")" "0 $(weights ltx/ckpt)" "--init $from: the weights, and the model without -c"
	done
	run "${train[@]}" --init ltx/diffusers -o run-lora --set lora.rank=2 --set lora.alpha=2 --set train.lr=1e-3
	vfm-ckpt export -q -l diffusers run-lora lora.safetensors
	is "$rc $(vfm-ckpt ls --raw --format jsonl lora.safetensors | jq -r .name | grep -c 'transformer_blocks.1.attn1.to_k.lora_A.weight')" "0 1" "adapters of ltx have the names of diffusers"
	run vfm-sample -q --device cpu --steps 2 --frames 4 --size 32x32 -o ltx.gif -p x --ckpt ltx/diffusers
	rc_is 0 "vfm-sample reads ltx"
else
	skip 65 "no data of 3 channels: $(cat enc.err log)"
fi

# ---- PyTorch and diffusers
PY=${VFM_PYTHON:-python3}
if (cd / && "$PY" -c 'import torch, diffusers' 2>/dev/null); then
	export PYTHONDONTWRITEBYTECODE=1
	"$PY" - <<'END' 2>py.err || exit 1
import torch
from collections import OrderedDict
from diffusers import (CosmosTransformer3DModel, FluxTransformer2DModel, HunyuanVideo15Transformer3DModel, HunyuanVideoTransformer3DModel,
                       LTXVideoTransformer3DModel, WanTransformer3DModel)
torch.manual_seed(3)
for name, heads, dim, layers, single, channels, guided, axes in (("x", 3, 24, 2, 2, 4, True, (8, 8, 8)), ("y", 2, 40, 1, 3, 3, False, (8, 12, 20))):
    m = FluxTransformer2DModel(num_attention_heads=heads, attention_head_dim=dim, num_layers=layers, num_single_layers=single,
                               in_channels=4 * channels, out_channels=4 * channels, guidance_embeds=guided, joint_attention_dim=24,
                               pooled_projection_dim=20, axes_dims_rope=axes)
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.1)
    m.save_pretrained("py-" + name, max_shard_size="200KB")
# heads * dim = 120, 80 and 112: with 0, 2 and 4 features that do not rotate
for name, heads, dim, layers, channels in ("l", 3, 40, 3, 5), ("m", 5, 16, 1, 6), ("n", 7, 16, 2, 9):
    m = LTXVideoTransformer3DModel(num_attention_heads=heads, attention_head_dim=dim, num_layers=layers, in_channels=channels,
                                   out_channels=channels, cross_attention_dim=heads * dim, caption_channels=24)
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.1)
    m.save_pretrained("py-" + name, max_shard_size="200KB")
for name, heads, dim, layers, channels, cond, image, patch in (
        ("a", 3, 40, 3, 5, 0, None, (1, 2, 2)), ("b", 5, 16, 1, 6, 0, None, (2, 1, 3)),
        ("i", 3, 24, 2, 4, 9, 40, (1, 2, 2)), ("c", 2, 24, 2, 4, 3, None, (1, 2, 2))):
    m = WanTransformer3DModel(num_attention_heads=heads, attention_head_dim=dim, num_layers=layers, ffn_dim=104,
                              in_channels=channels + cond, out_channels=channels, text_dim=24, patch_size=patch,
                              image_dim=image, added_kv_proj_dim=image and heads * dim)
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.15 if image else 0.05)
    m.save_pretrained("py-" + name, max_shard_size="200KB")
m.to(torch.bfloat16).save_pretrained("py-bf16")
# heads of 16 and 24 features have other parts of t, h and w; with and without a projection; text to image
for name, heads, dim, layers, channels, masks, proj in (("o", 3, 16, 3, 5, 2, 0), ("p", 2, 24, 2, 4, 2, 20), ("q", 1, 40, 2, 3, 1, 0)):
    m = CosmosTransformer3DModel(num_attention_heads=heads, attention_head_dim=dim, num_layers=layers, out_channels=channels,
                                 in_channels=channels + masks - 1, text_embed_dim=proj or 24, adaln_lora_dim=8,
                                 rope_scale=(1.0, 3.0, 2.0), extra_pos_embed_type=None, use_crossattn_projection=proj > 0,
                                 crossattn_proj_in_channels=24 if proj else 1024, encoder_hidden_states_channels=proj or 1024)
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.1)
    m.save_pretrained("py-" + name, max_shard_size="200KB")
# HunyuanVideo: 1.5; single-stream blocks with and without the guidance scale, and without these blocks
for name, heads, dim, layers, single, channels, guided, axes in (
        ("h", 2, 24, 2, None, 3, None, (8, 8, 8)), ("u", 3, 24, 2, 3, 4, True, (8, 8, 8)),
        ("v", 2, 40, 1, 1, 3, False, (8, 12, 20)), ("w", 4, 16, 3, 0, 4, True, (4, 6, 6))):
    common = dict(num_attention_heads=heads, attention_head_dim=dim, num_layers=layers, out_channels=channels, num_refiner_layers=2,
                  mlp_ratio=3.0, text_embed_dim=24, rope_axes_dim=axes)
    m = (HunyuanVideo15Transformer3DModel(**common, in_channels=2 * channels + 1, text_embed_2_dim=20, image_embed_dim=12)
         if single is None else HunyuanVideoTransformer3DModel(**common, in_channels=channels, num_single_layers=single,
                                                               guidance_embeds=guided, pooled_projection_dim=20))
    for p in m.parameters():
        torch.nn.init.normal_(p, std=0.1)
    m.save_pretrained("py-" + name, max_shard_size="200KB")
END
	for m in l m n o p q h u v w x y; do
		vfm-ckpt import -q py-$m im-$m && vfm-ckpt export -q -l diffusers --shard 150000 im-$m ex-$m || exit 1
		run "$PY" - py-$m ex-$m <<'END'
import json, sys, torch, diffusers
name = json.load(open(sys.argv[1] + "/config.json"))["_class_name"]
models = [getattr(diffusers, name).from_pretrained(p, torch_dtype="auto") for p in sys.argv[1:]]
a, b = ({k: v for k, v in m.config.items() if k[0] != "_"} for m in models)
assert a == b, (a, b)
a, b = (m.state_dict() for m in models)
assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
END
		rc_is 0 "$m: diffusers loads what we export of ltx, cosmos, hunyuan and flux"
	done
	for m in o p q; do
		vfm-ckpt export -q -l original im-$m or-$m.safetensors || exit 1
		run "$PY" - py-$m or-$m.safetensors <<'END'
import sys, torch
from diffusers import CosmosTransformer3DModel
from diffusers.loaders.single_file_utils import convert_cosmos_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file
a = CosmosTransformer3DModel.from_pretrained(sys.argv[1]).state_dict()
o = convert_cosmos_transformer_checkpoint_to_diffusers(load_file(sys.argv[2]))
assert a.keys() == o.keys() and all(torch.equal(a[k], o[k]) for k in a)
END
		rc_is 0 "$m: the converter of diffusers reads what we call original"
	done
	for m in u v w x y; do
		vfm-ckpt export -q -l original im-$m or-$m.safetensors || exit 1
		run "$PY" - py-$m or-$m.safetensors <<'END'
import diffusers, inspect, json, sys, torch
from diffusers.loaders import single_file_utils as s
from safetensors.torch import load_file
kind = json.load(open(sys.argv[1] + "/config.json"))["_class_name"]
m = getattr(diffusers, kind).from_pretrained(sys.argv[1])
name = "convert_flux_transformer_checkpoint_to_diffusers" if kind[0] == "F" else "convert_hunyuan_video_transformer_to_diffusers"
code = inspect.getsource(getattr(s, name))
assert code.count("3072") == 1  # it knows only the published width
exec(code.replace("3072", str(m.config.num_attention_heads * m.config.attention_head_dim)), s.__dict__)
a, o = m.state_dict(), getattr(s, name)(load_file(sys.argv[2]))
assert a.keys() == o.keys() and all(torch.equal(a[k], o[k]) for k in a)
END
		rc_is 0 "$m: the converter of diffusers reads what we call original"
		cp py-$m/config.json config.json
		vfm-ckpt import -q or-$m.safetensors again-$m
		is "$(vfm-ckpt hash again-$m | awk 'NR == 2 { print $1 }')" "$(vfm-ckpt hash im-$m | awk 'NR == 2 { print $1 }')" "$m: which is read as it was written"
	done
	rm -f config.json
	# Adapters of layers that hold several of ours: one A for q, k, v and the MLP; one B for attention and MLP.
	"$PY" - <<'END' 2>py.err || exit 1
import torch
from diffusers import HunyuanVideoTransformer3DModel
from safetensors.torch import save_file
torch.manual_seed(4)
m = HunyuanVideoTransformer3DModel(num_attention_heads=3, attention_head_dim=24, num_layers=2, num_single_layers=2, in_channels=3,
                                   out_channels=3, num_refiner_layers=1, mlp_ratio=3.0, text_embed_dim=16, pooled_projection_dim=20,
                                   rope_axes_dim=(8, 8, 8))
for p in m.parameters():
    torch.nn.init.normal_(p, std=0.1)
m.save_pretrained("py-t")
d, f, t = 72, 216, {}
for layer, n, out in (("double_blocks.%d.img_attn_qkv", d, 3 * d), ("double_blocks.%d.txt_mlp.fc1", d, f),
                      ("single_blocks.%d.linear1", d, 3 * d + f), ("single_blocks.%d.linear2", d + f, d)):
    for b in range(2):
        t["diffusion_model.%s.lora_A.weight" % (layer % b)] = torch.randn(2, n) * 0.1
        t["diffusion_model.%s.lora_B.weight" % (layer % b)] = torch.randn(out, 2) * 0.1
save_file(t, "fused.safetensors")
gone = "transformer.single_transformer_blocks.%d.proj_out.lora_%s.weight"
save_file({gone % (i, x): torch.randn((2, d + f) if x == "A" else (d, 2)) for i in (1, 7) for x in "AB"}, "gone.safetensors")
END
	vfm-ckpt import -q py-t im-t && vfm-ckpt merge -q im-t fused.safetensors want.safetensors || exit 1
	if vfm-pack -q --context 64 -b 2 --steps 4 data >fused.jsonl 2>log; then
		run vfm-train -q --device cpu --data fused.jsonl --init py-t --init-lora fused.safetensors -o fused --steps 1 \
			--set train.lr=0 --set train.min_lr=0 --set "lora.targets=blocks.*.attn.*,blocks.*.fc?,blocks.*.text.fc1"
		vfm-ckpt merge -q im-t fused again.safetensors
		is "$rc $?" "0 0" "adapters of fused layers are trained further"
		ok "they begin as the sums of vfm-ckpt merge" cmp again.safetensors want.safetensors
		run vfm-train -q --device cpu --data fused.jsonl --init py-t -o ours --steps 3 --set lora.rank=2 --set lora.alpha=4 \
			--set train.lr=1e-2 --set train.warmup_steps=0
		vfm-ckpt merge -q im-t ours want.safetensors
		for layout in peft diffusers original comfyui; do
			run vfm-ckpt export -q -l $layout ours "ours-$layout.safetensors"
			vfm-ckpt merge -q im-t "ours-$layout.safetensors" again.safetensors
			ok "$layout: exported and merged, the same weights" cmp again.safetensors want.safetensors
		done
		run vfm-train -q --device cpu --data fused.jsonl --init py-t --init-lora ours-peft.safetensors -o x --steps 1
		like "$rc $err" "^2 .*: 2 tensors of another rank: [^,]*single_transformer_blocks.[{]0-1[}].proj_out.lora_A.weight \(4, others 2\)" \
			"ranks that differ; each tensor counts once"
	else
		skip 7 "no data of 3 channels: $(cat log)"
	fi
	run vfm-ckpt merge -q im-t gone.safetensors no.safetensors
	like "$rc $err" "^2 .*1 tensor of no layer of the model [^:]*: [^ ]*blocks.7.proj_out.lora_A.weight$" "proj_out of a block that the model lacks is not the head's"
	run vfm-ckpt merge -q --skip-missing im-t gone.safetensors yes.safetensors
	rc_is 0 "and is left out with --skip-missing"
	if "$PY" -c 'import peft' 2>/dev/null && [ -d ours ]; then
		run "$PY" "$TOP/tests/ref/check_adapters.py" im-t ours
		is "$rc $(sed 's/:.*//' <<<"$out" | tr '\n' ' ')" "0 peft diffusers " "hunyuan1: the loaders of peft and diffusers give the sums of vfm-ckpt merge"
	else
		skip 1 "no adapters of hunyuan1, or no peft for $PY (set VFM_PYTHON)"
	fi
	for m in a b i c bf16; do
		vfm-ckpt import -q py-$m im-$m && vfm-ckpt export -q -l diffusers --shard 150000 im-$m ex-$m &&
			vfm-ckpt export -q -l original im-$m or-$m.safetensors || exit 1
		run "$PY" - py-$m ex-$m or-$m.safetensors <<'END'
import sys, torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import load_file
a, b = (WanTransformer3DModel.from_pretrained(p, torch_dtype="auto").state_dict() for p in sys.argv[1:3])
o = convert_wan_transformer_to_diffusers(load_file(sys.argv[3]))
assert a.keys() == b.keys() == o.keys()
for k in a:
    assert a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) and torch.equal(a[k].to(o[k].dtype), o[k]), k
    assert a[k].shape == o[k].shape, k
torch.save(load_file(sys.argv[3]), sys.argv[3].replace("safetensors", "pth"))
END
		rc_is 0 "$m: diffusers loads what we export, and its converter what we call original"
		cp py-$m/config.json config.json
		is "$(vfm-ckpt hash or-$m.pth | awk 'NR == 2 { print $1 }')" "$(vfm-ckpt hash --part model im-$m | awk 'NR == 2 { print $1 }')" "$m: a file of torch.save"
	done
	vfm-ckpt export -q -l original im-i or-i && vfm-ckpt export -q -l original im-a or-a || exit 1
	is "$(jq -r .model_type or-i/config.json or-a/config.json | tr '\n' ' ')" "i2v t2v " "the type of the model in the original config.json"
	for m in a b i c l m n o p q h u v w x y; do
		run "$PY" "$TOP/tests/ref/check_diffusers.py" --bin "$B/bin" --steps 3 py-$m
		is "$rc $(sed 's/ .*//' <<<"$out" | sort | uniq -c | awk '{ print $2 }' | tr '\n' ' ')" "0 # ok " "$m: forward, gradients and training are those of diffusers"
	done
	if [ -d lora-cosmos-projection ] && "$PY" -c 'import peft' 2>/dev/null; then
		run "$PY" "$TOP/tests/ref/check_adapters.py" cosmos/projection/ckpt lora-cosmos-projection
		is "$rc $(sed 's/:.*//' <<<"$out" | tr '\n' ' ')" "0 peft diffusers " "the loaders of peft and diffusers give the sums of vfm-ckpt merge"
	else
		skip 1 "no adapters of cosmos, or no peft for $PY (set VFM_PYTHON)"
	fi
	"$PY" -c '
import torch
torch.save({"a": torch.zeros(3, 4).t()}, "strided.pth")
torch.save({"a": torch.zeros(3)}, "old.pth", _use_new_zipfile_serialization=False)
torch.save(torch.nn.Linear(2, 2), "module.pth")
m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
torch.save({k: torch.nn.Parameter(v) for k, v in m.state_dict().items()}, "parameters.pth")
torch.save({"a": torch.arange(10)[2:6], "b": torch.zeros(0, 3), "c": torch.tensor(3.0, dtype=torch.float64)}, "views.pth")' || exit 1
	for f in "strided a tensor that is not contiguous" "old a file of PyTorch before 1.6" "module mentions 'torch.nn.modules.linear Linear'"; do
		run vfm-ckpt ls "${f%% *}.pth"
		like "$rc $err" "^2 .*${f#* }" "${f%% *}.pth is refused"
	done
	is "$(vfm-ckpt ls --format jsonl parameters.pth | jq -r .name | tr '\n' ' ')" "0.bias 0.weight 1.bias 1.weight " "parameters"
	is "$(vfm-ckpt stat --format jsonl views.pth | jq -c '[.name, .elements, .min, .max]' | tr '\n' ' ')" '["a",4,2,5] ["b",0,null,null] ["c",1,3,3] ' "views of a storage"
else
	skip 68 "no PyTorch and diffusers for $PY (set VFM_PYTHON)"
fi
done_testing
