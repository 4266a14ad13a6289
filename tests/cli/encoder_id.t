#!/bin/bash
# Identities of the encoders of latents and texts: their geometry gives the sizes of samples; every step refuses
# another encoder, or records that it was forced.
. "${0%/*}/lib.sh"
export PYTHONPATH=$TOP/tests/tools PYTHONDONTWRITEBYTECODE=1

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1 # the models are tiny

# An outside tokenizer: latents of the built-in one, with the identity of another.
geometry='{"stride":[4,16,8],"channels":16,"frames":[1,4],"max_frames":34}'
vae=$(jq -nc --argjson g "$geometry" '{name: "vae", version: "2.1", geometry: $g}')
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d latents --text bytes:32 | records >enc.jsonl || exit 1
jq -c --argjson m "$vae" '.latent.maker = $m' enc.jsonl | vfm-curate shard -q -d vae >log || exit 1
vfm-curate shard -q -d data enc.jsonl >log || exit 1
vfm-pack -q --context 64 -b 2 --steps 4 vae >vae.jsonl || exit 1
cat >tiny.json <<'JSON'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32}, "ckpt": {"every": 0}}
JSON
vfm-train -q -c tiny.json --data vae.jsonl -o run >log || exit 1

# ---- records and datasets -------------------------------------------------------
umt5=$(jq -nc '{name: "umt5", version: "xxl", sha256: ("1a2b3c4d5e6f" + "0" * 52), dim: 32, rows: 5}')
# with ENCODER_ID [KEY=latent]: the records with this identity
with() { jq -c --argjson m "$1" --arg k "${2-latent}" '.[$k].maker = $m' enc.jsonl; }
is "$(jq -r .caption enc.jsonl | wc -w) $(with "$umt5" text | vfm-curate shard -q -d umt5 | records | jq -c '[.error, .text.maker.rows]' | sort -u)" "40 [null,5]" "a text encoder of 5 rows"
is "$(jq -c .makers.text umt5/.nv-meta/vfm.json)" "$umt5" ".nv-meta/vfm.json has it"
# refuses DATASET DESC WHY: shard --resume refuses the records of stdin
refuses() {
	run_stage vfm-curate shard -d "$1" --resume
	is "$rc $(jq -r .error <<<"$out" | sort -u)" "1 $3" "$2"
}
new() { jq -c '.id += "-new"'; }
refuses umt5 "a text of other rows than its encoder makes" \
	"the text has 5 rows, its text encoder 'umt5 xxl (sha256 1a2b3c4d5e6f)' makes 512" <<<"$(with "$(jq -c '.rows = 512' <<<"$umt5")" text | new)"
refuses umt5 "a text of more rows than its encoder makes" \
	"the text has 5 rows, its text encoder 'umt5 xxl (sha256 1a2b3c4d5e6f)' makes at most 4" <<<"$(with "$(jq -c 'del(.rows) | .max_rows = 4' <<<"$umt5")" text | new)"
refuses umt5 "rows that vary" \
	"the sample has text encoder 'umt5 xxl (sha256 1a2b3c4d5e6f) (width 32)', the dataset 'umt5' has 'umt5 xxl (sha256 1a2b3c4d5e6f) (width 32 in 5 rows)'" <<<"$(with "$(jq -c '.rows = 0' <<<"$umt5")" text | new)"
refuses umt5 "other weights" \
	"the sample has text encoder 'umt5 xxl (sha256 ffffffffffff)', the dataset 'umt5' has 'umt5 xxl (sha256 1a2b3c4d5e6f)'" <<<"$(with "$(jq -c '.sha256 = "f" * 64' <<<"$umt5")" text | new)"
refuses umt5 "weights without a sha256" \
	"the sample has text encoder 'umt5 xxl', the dataset 'umt5' has 'umt5 xxl (sha256 1a2b3c4d5e6f)'" <<<"$(with "$(jq -c 'del(.sha256)' <<<"$umt5")" text | new)"
rm -rf edited && cp -r umt5 edited && sed -i 's/"rows":5/"rows":6/' edited/000000.tar
run vfm-curate shard -d edited --resume /dev/null
like "$rc $err" "^2 .*'edited/000000.tar': sample 0 .*: the text has 5 rows, its text encoder 'umt5 xxl \(sha256 1a2b3c4d5e6f\)' makes 6" "and in a shard of before"
refuses vae "other channels than its encoder makes" \
	"the latent has 16 channels, its tokenizer 'vae 2.1' makes 8" <<<"$(with "$(jq -c '.geometry.channels = 8' <<<"$vae")" | new)"
refuses vae "another geometry" \
	"the sample has tokenizer 'vae 2.1 (stride 4x16x8, 16 channels, 1 + 8n frames, at most 33)', the dataset 'vae' has 'vae 2.1 (stride 4x16x8, 16 channels, 1 + 4n frames, at most 33)'" <<<"$(with "$(jq -c '.geometry.frames = [1, 8]' <<<"$vae")" | new)"
refuses vae "no encoder" "the sample names no tokenizer, the dataset has 'vae 2.1'" <<<"$(with null | new)"
refuses vae "an encoder without version" "latent.maker.version: missing (expected a string)" <<<"$(with '{"name":"vae"}' | new)"
jq -c '.caption_maker = {name: "captioner", version: "7", sha256: ("0" * 64)}' enc.jsonl | vfm-curate shard -q -d captioned >log
is "$(tar -xOf captioned/000000.tar --wildcards '*.json' | jq -c .caption_maker.version | sort | uniq -c | tr -s ' ')" ' 8 "7"' "the captioner's identity is kept"

# edit DATASET FROM TO: replaces bytes in the JSON of its index, which keeps its length and gets its checksums
edit() {
	rm -rf edited && cp -r "$1" edited && python3 - "$2" "$3" <<-'END'
		import struct, sys
		from index_crc import crc32c, with_tree
		ix = bytearray(open("edited/index.vfmi", "rb").read())
		at, n = struct.unpack_from("<QI", ix, 80)
		meta = bytes(ix[at:at + n]).replace(sys.argv[1].encode(), sys.argv[2].encode())
		assert len(meta) == n and meta != ix[at:at + n]
		ix[at:at + n] = meta
		struct.pack_into("<I", ix, 92, crc32c(meta))
		open("edited/index.vfmi", "wb").write(with_tree(ix))
	END
}
ok "verify likes the datasets" vfm-curate verify vae umt5 data captioned
edit vae '"2.1"' '"2.2"'
run vfm-curate verify edited
is "$rc $(jq -r '.error' <<<"$out" | sort | uniq -c | tr -s ' ')" "1  1 'edited/.nv-meta/vfm.json' has tokenizer 'vae 2.1', the index has 'vae 2.2'
 8 the sample has tokenizer 'vae 2.1', the index has 'vae 2.2'" "verify: an index of another encoder"
edit vae '"tokenizer"' '"tokeniser"'
run vfm-curate verify edited
is "$rc $(jq -r '.error' <<<"$out" | sort | uniq -c | tr -s ' ')" "1  1 'edited/.nv-meta/vfm.json' and the index: only one of them names the tokenizer
 8 the sample has tokenizer 'vae 2.1', the dataset names none" "verify: an index without an encoder"
sed -i 's/"vae"/"vaf"/' edited/.nv-meta/vfm.json && cp vae/index.vfmi edited
run vfm-curate verify edited
is "$rc $(jq -r '.error' <<<"$out")" "1 'edited/.nv-meta/vfm.json' has tokenizer 'vaf 2.1', the index has 'vae 2.1'" "verify: .nv-meta of another encoder"
rm edited/.nv-meta/vfm.json
run vfm-curate verify edited
like "$rc $(jq -r '.error' <<<"$out")" "^1 cannot open 'edited/.nv-meta/vfm.json'" "verify: .nv-meta without encoders"
edit vae '"2.1"' '"2.2"'
vfm-pack -q --context 64 -b 2 --steps 4 vae >stale.jsonl
sed -i '1s|"dir":"vae"|"dir":"edited"|' stale.jsonl
run vfm-train -q -c tiny.json --data stale.jsonl -o stale
is "$rc $err" "2 vfm-train: plan 'stale.jsonl', set 'vae': 'edited/index.vfmi' has tokenizer 'vae 2.2', the plan has 'vae 2.1'" "the loader compares plan and index"

# ---- sizes of samples -----------------------------------------------------------
# latents ARG ...: status, messages and the shape of the latent
latents() {
	run vfm-sample -q --ckpt run --steps 1 -p "a red square" -o x.npy "$@"
	echo "$rc $err $([ "$rc" = 0 ] && head -c 128 x.npy | grep -aoE '\([0-9, ]+\)')"
	rm -f x.npy
}
is "$(latents)" "0  (16, 2, 4, 4)" "the defaults: 5 frames of 32x64, as in the data of the training"
is "$(latents --frames 33 --size 32x64)" "0  (16, 9, 4, 4)" "33 frames of 32x64"
is "$(latents --frames 1 --size 16x32)" "0  (16, 1, 2, 2)" "a still of 16x32"
is "$(latents --frames 16)" "2 vfm-sample: --frames: 16 frames: the tokenizer takes 1 + 4n frames, at most 33 " "16 frames"
is "$(latents --frames 37)" "2 vfm-sample: --frames: 37 frames: the tokenizer takes 1 + 4n frames, at most 33 " "37 frames"
is "$(latents --size 64x48)" "2 vfm-sample: --size: 64x48: tokenizer and patch need a width that is a multiple of 16 and a height that is a multiple of 32 " \
	"a height that the patch does not divide"

run vfm-sample -q --ckpt run --steps 1 --size 32x32 --frames 5 -p "" -o x.npy
is "$(jq -c .encoders <<<"$out")" "{\"tokenizer\":$(jq -c '.max_frames = 33' <<<"$geometry" | jq -c --argjson m "$vae" '$m + {geometry: .}')}" "the record of latents names their tokenizer, and no text encoder"

# ---- sets of two tokenizers -----------------------------------------------------
# forced FILTER FILE: tool, encoder, names of both encoders of each entry of .forced
forced() { jq -c "$1"' | if .forced then [.forced[] | [.tool, .encoder, .file, .expected.name, .used.name]] else null end' "$2"; }
run vfm-pack -q --context 64 data vae
is "$rc ${#out} $err" "2 0 vfm-pack: set 'vae' (vae) has tokenizer 'vae 2.1', set 'data' (data) has 'wavelet:16 1' (--force mixes them)" "vfm-pack: two tokenizers"
run vfm-pack -q --context 64 -b 2 --steps 4 --force data vae data
is "$rc $(grep -c "warning: set 'vae' (vae) has tokenizer 'vae 2.1', set 'data' (data) has 'wavelet:16 1': mixed by --force" <<<"$err")" "0 1" "vfm-pack --force"
printf '%s\n' "$out" >mixed.jsonl
pack='["vfm-pack","tokenizer","vae","wavelet:16","vae"]'
is "$(head -1 mixed.jsonl | forced . -) $(head -1 mixed.jsonl | jq -c '[.forced[0].set, .encoders.tokenizer.name]')" "[$pack] [1,\"wavelet:16\"]" "is recorded in the plan"
vfm-pack -q --context 64 -b 2 --steps 4 --force --format bin data vae data >mixed.bin 2>log
ok "also in the binary one" grep -aq '"forced":\[{"tool":"vfm-pack"' mixed.bin
run vfm-train -q -c tiny.json --data mixed.bin -o mixed
is "$rc $(forced . mixed/run.json) $(forced .state mixed/ckpt/*4/manifest.json)" "0 [$pack] [$pack]" "in the run and its checkpoints"
run vfm-train -q -c tiny.json --data mixed.jsonl -o mixed
is "$rc $(forced . mixed/run.json)" "0 [$pack]" "once, also when the run goes on"
small=(--size 32x32 --frames 4 --steps 1)
run vfm-sample -q --ckpt mixed "${small[@]}" -p "a red square" -o x.gif
is "$rc $(forced . - <<<"$out")" "0 [$pack]" "and in the records of its samples"

# tampered FILTER STATUS REGEX DESC: a plan whose header the filter changed
tampered() {
	{ head -1 mixed.jsonl | jq -c "$1" && tail -n +2 mixed.jsonl; } >bad.jsonl
	run vfm-train -q -c tiny.json --data bad.jsonl -o bad
	like "$rc $err" "^2 vfm-train: .*$2" "$3"
}
tampered 'del(.forced, .encoders)' "set 'data': '.*/data/index.vfmi' has tokenizer 'wavelet:16 1', the plan names none \(encoders\): pack again" "nor is one without encoders"
tampered 'del(.forced)' "set 'vae': '.*/vae/index.vfmi' has tokenizer 'vae 2.1', the plan has 'wavelet:16 1'" "a plan that does not record it is refused"
tampered '.forced[0].used.version = "2.2"' "set 'vae': '.*/vae/index.vfmi' has tokenizer 'vae 2.1', the plan has 'vae 2.2'" "the recorded encoder counts"
tampered '.forced[0].used.sha256 = "0" * 64' "set 'vae': '.*/vae/index.vfmi' has tokenizer 'vae 2.1', the plan has 'vae 2.1 \(sha256 000000000000\)'" "and its sha256"
tampered '.forced[0].set = 3' "forced\[0\].set: expected an integer from 0 to 2, got 3" "a set that is none"
tampered '.forced += .forced' "forced\[1\]: set 1 is listed twice for one encoder" "two entries of a set"
tampered '.forced[0].encoder = "audio"' "forced\[0\].encoder: expected tokenizer or text" "an unknown encoder"
tampered '.forced[0].used = null' "forced\[0\].used: expected an object" "an entry without an encoder"
tampered '.forced = {}' "forced: expected an array" "entries that are no array"

# ---- makers that only some know --------------------------------------------------
plain=$(jq -c 'del(.geometry)' <<<"$vae") other=$(jq -c '.geometry.stride = [4, 8, 8]' <<<"$vae")
{ with "$vae" | head -6 && with "$plain" | tail -n +7; } | vfm-curate shard -q -d last >log
is "$(vfm-pack -q --context 64 --steps 4 last | head -1 | jq -c .encoders.tokenizer.geometry.stride)" "[4,16,8]" "a sample without a geometry leaves that of the dataset"
{ with "$vae" | head -3 && with "$plain" | sed -n 4p && with "$other" | tail -n +5; } >three.jsonl
run_stage vfm-curate shard -d three --max-samples 2 three.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out" | grep -c "stride 4x8x8, .*the dataset 'three' has .*stride 4x16x8")" "1 4" "and hides no other"
ok "which verify likes" vfm-curate verify -q three

with null | jq -c 'del(.text.maker)' | vfm-curate shard -q -d bare >log
vfm-pack -q --context 64 -b 2 --steps 6 bare >bare.plan 2>log
cp -r run kept
run vfm-train -c tiny.json --data bare.plan -o kept --allow-change plan
is "$rc $(jq -r .encoders.tokenizer.name kept/run.json) $(grep -c "the plan names no tokenizer: .* checkpoint, 'vae 2.1'" <<<"$err")" "0 vae 1" "a plan without encoders leaves those of the run"
vfm-pack -q --context 64 -b 2 --steps 8 data >later.jsonl
run vfm-train -q -c tiny.json --data later.jsonl -o kept --allow-change plan
like "$rc $err" "^2 .*has tokenizer 'vae 2.1', the plan has 'wavelet:16 1'" "so that it cannot go on with those of others"
run vfm-train -q -c tiny.json --data bare.plan -o fresh --init run
is "$rc $(jq -r .encoders.tokenizer.name fresh/run.json)" "0 vae" "also after --init"

vfm-ckpt export --part model run weights.safetensors && vfm-ckpt export --part model --shard 20000 run weights
for w in weights.safetensors weights; do
	run vfm-train -q -c tiny.json --data later.jsonl -o conv --init $w
	like "$rc $err" "^2 .*has tokenizer 'vae 2.1', the plan has 'wavelet:16 1'" "$w: the encoders go with the weights"
	vfm-ckpt import -c run/config.json $w back-"$w"
	is "$(vfm-ckpt info --format jsonl back-"$w" | jq -r '.tokenizer, .text' | tr '\n' ' ')" "vae 2.1 bytes:32 1 " "$w: and come back"
done

# ---- a run that goes on with the data of another encoder --------------------------
vfm-pack -q --context 64 -b 2 --steps 6 data >data.jsonl || exit 1
run vfm-train -q -c tiny.json --data data.jsonl -o next --init run
like "$rc $err" "^2 .*vfm-train: cannot take the weights of 'run/ckpt/step-00000004': the checkpoint has tokenizer 'vae 2.1', the plan has 'wavelet:16 1' \(--allow-change encoders" \
	"--init from a run on another tokenizer"
run vfm-train -q -c tiny.json --data data.jsonl -o next --init run --allow-change encoders
change='["vfm-train","tokenizer","run/ckpt/step-00000004","vae","wavelet:16"]'
is "$rc $(forced . next/run.json) $(forced .state next/ckpt/*6/manifest.json)" "0 [$change] [$change]" "--allow-change encoders is recorded"
run vfm-train -q -c tiny.json --data data.jsonl -o run --resume next/ckpt/step-00000006
is "$rc $(forced . run/run.json)" "0 [$change]" "a run that resumes from it passes it on"
run vfm-sample -q --ckpt next "${small[@]}" -p "a red square" -o x.gif
is "$rc $(forced . - <<<"$out")" "0 [$change]" "and so do its samples"
rm -r run
vfm-train -q -c tiny.json --data vae.jsonl -o run >log || exit 1
is "$(vfm-ckpt info --format jsonl run next mixed | jq -c '[.tokenizer, .text, .forced]')" '["vae 2.1","bytes:32 1",null]
["wavelet:16 1","bytes:32 1","vfm-train: tokenizer of run/ckpt/step-00000004"]
["wavelet:16 1","bytes:32 1","vfm-pack: tokenizer of vae"]' "vfm-ckpt info prints them"
run vfm-ckpt diff --part ema --atol 1000 run mixed
is "$rc $out$err" "1 vfm-ckpt diff: warning: A has tokenizer 'vae 2.1', B has 'wavelet:16 1'" "vfm-ckpt diff: two encoders are a difference"
run vfm-ckpt diff --part ema --atol 1000 next mixed
is "$rc $out$err" "0 " "and equal ones none"
run vfm-train -q -c tiny.json --data data.jsonl -o run --allow-change plan,schedule
like "$rc $err" "^2 vfm-train: cannot resume from 'run/ckpt/.*: the checkpoint has tokenizer 'vae 2.1', the plan has 'wavelet:16 1' \(--allow-change encoders" "resuming with another tokenizer"
run vfm-sample -q --ckpt run --size 32x32 --frames 5 --steps 1 -p "a red square" -o x.gif
is "$rc $err" "2 vfm-sample: run/ckpt/step-00000004 was trained on data of the tokenizer 'vae 2.1', but 'wavelet:16 1' would be used: name the former with --vae, or give --force" \
	"latents of another tokenizer are not decoded"
run vfm-sample -q --ckpt next "${small[@]}" -p "a red square" -o x.gif --force
is "$rc $(forced . - <<<"$out")" "0 [$change]" "--force of vfm-sample adds nothing where the encoders match"
run vfm-sample -q --ckpt run --size 32x32 --frames 7 --steps 1 -p "a red square" -o x.gif --force
is "$rc $(forced . - <<<"$out")" '0 [["vfm-sample","tokenizer","run/ckpt/step-00000004","vae","wavelet:16"]]' "and is recorded where they do not; the sizes are those of the tokenizer in use"
done_testing
