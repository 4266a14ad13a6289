#!/bin/bash
# vfm-sample: what a video depends on and what not, formats, parts, records, and clear words when it cannot.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1 # the models are tiny

# Two models, a few steps each, on a few clips.
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d latents --text bytes:32 |
	vfm-curate shard -q -d data >records.jsonl || exit 1
vfm-pack -q --context 64 --steps 20 data >plan.jsonl || exit 1
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "text_dim": 32, "pooled_text": true},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0.9}, "ckpt": {"every": 6, "keep": 2}}
END
vfm-train -q -c tiny.json --data plan.jsonl --steps 12 -o edm >log || exit 1
vfm-train -q -c tiny.json --data plan.jsonl --steps 12 --set diffusion.kind=flow --set train.ema_decay=0 -o flow >log || exit 1

vfm-train -q -c tiny.json --data plan.jsonl --steps 12 --set diffusion.kind=flow --set train.seed=5 -o flow2 >log || exit 1
vfm-train -q -c tiny.json --data plan.jsonl --steps 2 --set diffusion.kind=flow --set model.layers=1 -o thin >log || exit 1

small=(--size 32x32 --frames 8 --steps 4)
s=(vfm-sample -q --ckpt edm "${small[@]}")
# pictures FILE ...: a hash of what they show
pictures() {
	local f
	for f; do ffmpeg -v error -i "$f" -f rawvideo -pix_fmt rgb24 - | sha256sum; done
}
# shape FILE: WIDTHxHEIGHT, frames a second, frames
shape() {
	ffprobe -v error -count_frames -select_streams v -show_entries stream=width,height,r_frame_rate,nb_read_frames -of csv=p=0 "$1"
}
# complaint STATUS REGEX DESC: of the last run: the status, one line on stderr that says it, nothing on stdout.
complaint() {
	is "$rc $(wc -l <"$SCRATCH/io/err") ${#out}" "$1 1 0" "$3: status $1, one line"
	like "$err" "^vfm-sample: .*$2" "$3: which says it"
}

# ---- one video, and its record ---------------------------------------------------
run "${s[@]}" -p "a red square moves left" -o one.mp4
rc_is 0 "a video"
is "$err" "" "-q is quiet"
is "$(jq -c . <<<"$out")" \
	'{"v":1,"id":"sample-000000","caption":"a red square moves left","src":"one.mp4","kind":"video","width":32,"height":32,"frames":8,"fps":"8/1","seed":0,"encoders":{"tokenizer":'"$(jq -c .encoders.tokenizer <<<"$out")"',"text":{"name":"bytes:32","version":"1","dim":32}}}' \
	"its record"
is "$(jq -c .encoders.tokenizer <<<"$out")" "$(head -1 plan.jsonl | jq -c .encoders.tokenizer)" "with the encoders"
is "$(shape one.mp4)" "32,32,8/1,8" "its shape"
run vfm-sample --ckpt edm "${small[@]}" -p "a red square moves left" -o noisy.mp4
like "$err" "ema of edm/ckpt/step-00000012, step 12, [0-9]+ parameters" "without -q it says what it samples"
ok "the same again" cmp one.mp4 noisy.mp4
run "${s[@]}" -p "a red square moves left" -o seed.mp4 --seed 1
is "$(jq .seed <<<"$out")" 1 "--seed: the record has it"
not_ok "another seed, another video" cmp one.mp4 seed.mp4
"${s[@]}" -p "a blue circle moves up" -o other.mp4 >log
not_ok "another prompt, another video" cmp one.mp4 other.mp4
"${s[@]}" -p "a red square moves left" -o plain.mp4 --cfg 1 >log
not_ok "--cfg 1 is no guidance" cmp one.mp4 plain.mp4
"${s[@]}" -p "" -o empty.mp4 --cfg 1 >log
not_ok "and looks at the text" cmp plain.mp4 empty.mp4

# ---- the null text, and negative texts ------------------------------------------------
square=(-p "a red square moves left")
"${s[@]}" -p "" -o null.mp4 >log
ok "the empty prompt is not guided" cmp null.mp4 empty.mp4
run "${s[@]}" "${square[@]}" --negative "a blue circle" -o negative.mp4
is "$rc $(jq -r .negative <<<"$out")" "0 a blue circle" "--negative, and its record"
not_ok "changes the video" cmp one.mp4 negative.mp4
run "${s[@]}" "${square[@]}" --negative "" -o none.mp4
is "$rc $(jq -r .negative <<<"$out")" "0 null" "an empty --negative"
ok "is none" cmp one.mp4 none.mp4
"${s[@]}" "${square[@]}" --negative "a blue circle" --cfg 1 -o plain-negative.mp4 >log
ok "without guidance it has no effect" cmp plain.mp4 plain-negative.mp4
"${s[@]}" -p "" --negative "a blue circle" -o null-negative.mp4 >log
not_ok "the empty prompt is guided away from a negative text" cmp null.mp4 null-negative.mp4
cat >negative.jsonl <<'END'
{"caption":"a red square moves left","negative":"a blue circle"}
{"caption":"","negative":""}
{"caption":"a red square moves left"}
{"caption":"a red square moves left","negative":null}
END
run "${s[@]}" --prompts negative.jsonl --negative "a green triangle" -d negatives
is "$rc $(jq -c .negative <<<"$out" | tr '\n' ' ')" '0 "a blue circle" "" "a green triangle" null ' "each prompt has its own, else that of --negative"
ok "a negative text of its own is the same as --negative" cmp negative.mp4 negatives/sample-000000.mp4
"${s[@]}" -p x -p "" "${square[@]}" --negative "a green triangle" -d green >log
ok "a video does not depend on the negative texts beside it" cmp green/sample-000002.mp4 negatives/sample-000002.mp4
not_ok "an empty negative text of its own is none" cmp green/sample-000001.mp4 negatives/sample-000001.mp4
"${s[@]}" -p x -p "" -p x "${square[@]}" -d plain >log
ok "and null likewise" cmp plain/sample-000003.mp4 negatives/sample-000003.mp4
ok "beside guided prompts, too" cmp plain/sample-000001.mp4 negatives/sample-000001.mp4

# ---- what a video does not depend on ------------------------------------------------
prompts=(-p "a red square moves left" -p "a blue circle moves up" -p "" -p "a green triangle" -p "a yellow square moves down and on")
run "${s[@]}" "${prompts[@]}" -d all
rc_is 0 "several prompts"
is "$(jq -r .src <<<"$out" | tr '\n' ' ')" "$(printf 'all/sample-00000%d.mp4 ' 0 1 2 3 4)" "records in their order"
ok "the first of many is the one alone" cmp one.mp4 all/sample-000000.mp4
want=$(sha256sum all/*.mp4 | cut -c -64)
for context in 1 200 64K; do
	"${s[@]}" "${prompts[@]}" -d "c$context" --context "$context" >log
	is "$(sha256sum "c$context"/*.mp4 | cut -c -64)" "$want" "--context $context: the same videos"
done
"${s[@]}" "${prompts[@]}" -d threads --threads 2 >log
is "$(sha256sum threads/*.mp4 | cut -c -64)" "$want" "--threads 2: the same videos"

records records.jsonl | jq -c '{caption, key: .id, seed: 7}' | head -3 >captions.jsonl
run "${s[@]}" -p first --prompts captions.jsonl -d file
rc_is 0 "--prompts"
is "$(jq -r .caption <<<"$out")" "first
$(jq -r .caption captions.jsonl)" "they come after those of -p"
is "$(jq -c '[.prompt, .seed]' <<<"$out" | tail -n +2)" "$(jq -c '[., 0]' captions.jsonl)" "a record holds the line of its prompt"
records records.jsonl | head -1 | jq -c '.error = "old", .caption = null, (.caption = {short: "a red square", long: "a large red square"})' >clips.jsonl
run "${s[@]}" --prompts clips.jsonl --caption short -d clips
is "$rc $(jq -c '[.caption, .error, .latent, .start_frame, .prompt.id]' <<<"$out")" "$(records records.jsonl | head -1 | jq -r '"0 [\(.caption | tojson),null,null,null,\"\(.id)\"]
[\"\",null,null,null,\"\(.id)\"]
[\"a red square\",null,null,null,\"\(.id)\"]"')" "records of clips as prompts: nothing of theirs describes the video"
printf '%s\n' "$out" | vfm-curate score -q >scored.jsonl
is "$(records scored.jsonl | jq -c .error | sort -u)" "null" "so that the videos are scored as a whole"
run bash -c 'vfm-sample -q --ckpt edm --size 32x32 --frames 8 --steps 4 --prompts - -d stdin < <(head -1 records.jsonl && cat captions.jsonl)'
is "$rc $(wc -l <"$SCRATCH/io/out")" "0 3" "--prompts -, past a header"

# ---- ranks ---------------------------------------------------------------------------
# far A B: the largest difference of two .npy of float32, relative to the largest value
far() {
	python3 - "$@" <<-'END'
		import struct, sys
		def load(path):
		    b = open(path, "rb").read()
		    at = 10 + struct.unpack("<H", b[8:10])[0]
		    return b[:at], struct.unpack("<%df" % ((len(b) - at) // 4), b[at:])
		(ha, a), (hb, b) = load(sys.argv[1]), load(sys.argv[2])
		assert ha == hb and len(a) == len(b) > 100
		print("near" if max(abs(x - y) for x, y in zip(a, b)) < 1e-4 * max(map(abs, a)) else "far")
	END
}
two=(-p "a red square moves left" -p "a green triangle")
run "${s[@]}" "${two[@]}" -d r1 --format npy
rc_is 0 "latents"
is "$(jq -r '"\(.latent.path) \(.latent.frames)"' <<<"$out" | tr '\n' ' ')" "r1/sample-000000.npy 8 r1/sample-000001.npy 8 " "and their records"
is "$(far r1/sample-000000.npy r1/sample-000001.npy)" far "which differ"
"${s[@]}" -n 4 "${square[@]}" --negative "a blue circle" -p "" -d many --format npy >log
"${s[@]}" "${square[@]}" --negative "a blue circle" -p "" -d few --format npy >log
is "$(far few/sample-000000.npy many/sample-000000.npy) $(far few/sample-000001.npy many/sample-000001.npy)" "near near" "-n 4: negative texts"
for how in "-n 2" "-n 4" "-n 2 --set parallel.dp=2 --context 64" "-n 4 --set parallel.dp=2 --context 64" "-n 2 --set parallel.cp_mode=a2a" "-n 4 --set parallel.tp=2" "-n 2 --set parallel.tp=2"; do
	# shellcheck disable=SC2086 # words
	run "${s[@]}" $how "${two[@]}" -d ranks --format npy
	is "$rc $(wc -l <<<"$out")" "0 2" "$how: each video once"
	is "$(far r1/sample-000000.npy ranks/sample-000000.npy) $(far r1/sample-000001.npy ranks/sample-000001.npy)" "near near" "$how: the same latents"
	rm -rf ranks
done
echo '{"caption":"a red square moves left","key":1}' >one.jsonl
run bash -c 'vfm-sample -q -n 2 --ckpt edm --size 32x32 --frames 8 --steps 4 --prompts - -d stdin2 --format npy <one.jsonl'
is "$rc $(jq .prompt.key <<<"$out") $(far r1/sample-000000.npy stdin2/sample-000000.npy)" "0 1 near" "standard input is read by one and known to all"
run "${s[@]}" -n 2 --set parallel.tp=3 -p x -o x.npy
complaint 2 "3" "a degree that does not fit"
run "${s[@]}" -n 2 --set train.lr=1 -p x -o x.npy
complaint 2 "section parallel" "--set of another section"
run "${s[@]}" -n 2 -p x -o /nowhere/x.npy
is "$rc $(wc -l <"$SCRATCH/io/err")" "3 1" "a file that cannot be written: all ranks end, and it is said once"

# ---- formats -----------------------------------------------------------------------
run "${s[@]}" -p x -o x.gif --fps 10
is "$rc $(shape x.gif)" "0 32,32,10/1,8" "gif"
run "${s[@]}" -p x -o x.png
is "$rc $(shape x.png | cut -d, -f 1,2,4)" "0 32,32,1" "png: the first picture"
is "$(jq -c '[.kind, .frames]' <<<"$out")" '["image",1]' "and its record says so"
run "${s[@]}" -p x -o 'x-%02d.png'
is "$rc $(echo x-??.png | wc -w)" "0 8" "png with a number: a file a picture"
is "$(pictures x-00.png)" "$(pictures x.png)" "of which the first is that picture"
run "${s[@]}" -p x -p y -d pngs --format png --frames 1 --size 48x16
is "$rc $(echo pngs/*) $(shape pngs/sample-000001.png | cut -d, -f 1,2)" "0 pngs/sample-000000.png pngs/sample-000001.png 48,16" "stills, --size 48x16"
is "$(jq -c '[.kind, .width, .height, .frames]' <<<"$out" | sort -u)" '["image",48,16,1]' "and their records"
run "${s[@]}" -p x -o ntsc.mp4 --fps 30000/1001 --frames 7
is "$rc $(shape ntsc.mp4)" "0 32,32,30000/1001,7" "--fps 30000/1001, 7 frames"

# ---- parts, samplers, checkpoints ----------------------------------------------------
"${s[@]}" -p x -o ema.png >log
run "${s[@]}" -p x -o last.png --part model
rc_is 0 "--part model"
not_ok "other weights, another picture" cmp ema.png last.png
run vfm-sample --ckpt flow "${small[@]}" -p x -o flow.png
is "$rc" 0 "flow, a run without an average"
like "$err" "model of flow/" "says that these are the last weights"
vfm-sample -q --ckpt flow "${small[@]}" --sampler euler -p x -o euler.png >log
ok "flow: auto is euler" cmp flow.png euler.png
"${s[@]}" --sampler heun -p x -o heun.png >log
ok "edm: auto is heun" cmp ema.png heun.png
run "${s[@]}" --sampler euler -p x -o euler.png
rc_is 0 "edm with euler"
not_ok "another picture" cmp heun.png euler.png
run "${s[@]}" --sigma-max 20 -p x -o sigma.png
rc_is 0 "--sigma-max"
not_ok "another picture" cmp heun.png sigma.png
run "${s[@]}" --sigma-min 0.5 -p x -o sigma.png
rc_is 0 "--sigma-min"
not_ok "another picture" cmp heun.png sigma.png
run "${s[@]}" --dtype bf16 -p x -o bf16.png
rc_is 0 "--dtype bf16"
seen=''
for how in euler heun unipc "unipc --order 1" dpm++ res "euler --shift 3" "euler --shift-terminal 0.1" "unipc --schedule diffusers" "dpm++ --schedule diffusers" "heun --schedule diffusers" \
	"euler --schedule karras" "unipc --schedule karras" "unipc --schedule karras --sigma-max 200" "unipc --schedule karras --sigma-min 0.1" "res --schedule karras"; do
	# shellcheck disable=SC2086 # words
	run vfm-sample -q --ckpt flow "${small[@]}" -p x -o how.npy --sampler $how
	is "$rc $(far how.npy how.npy)" "0 near" "flow: --sampler $how"
	seen+=$(sha256sum <how.npy)$'\n'
	# shellcheck disable=SC2086 # words
	vfm-sample -q --ckpt flow "${small[@]}" -p x -o how2.npy --sampler $how -n 2 >log
	is "$(far how.npy how2.npy)" near "flow: --sampler $how: the same latents on two ranks"
done
is "$(sort <<<"${seen%$'\n'}" | uniq | wc -l)" 16 "each gives other latents"
for how in euler unipc dpm++ res; do
	run "${s[@]}" --sampler $how -p x -o how.png
	rc_is 0 "edm: --sampler $how"
	not_ok "is not heun" cmp heun.png how.png
done

# ---- guidance schedule, two networks, guidance over two groups of ranks -----------------
f=(vfm-sample -q --ckpt flow "${small[@]}" -p "a red square moves left" -p "" -p "a green triangle" --negative "a blue circle" --format npy)
latents() { sha256sum "$1"/*.npy | cut -c -64; }
"${f[@]}" -d guided >log
"${f[@]}" -d unguided --cfg 1 >log
"${f[@]}" -d outside --cfg-interval 2:3 >log
is "$(latents outside)" "$(latents unguided)" "--cfg-interval without a level: no guidance"
"${f[@]}" -d inside --cfg-interval 0: >log
is "$(latents inside)" "$(latents guided)" "--cfg-interval of all levels: the same"
"${f[@]}" -d half --cfg-interval 0.4:0.8 >log
is "$(far half/sample-000000.npy guided/sample-000000.npy) $(far half/sample-000000.npy unguided/sample-000000.npy)" "far far" "--cfg-interval of some levels"
"${f[@]}" -d ramp --cfg-end 1 >log
is "$(far ramp/sample-000000.npy guided/sample-000000.npy) $(far ramp/sample-000000.npy unguided/sample-000000.npy)" "far far" "--cfg-end"
"${f[@]}" -d both --low-noise flow2 --boundary 0.6 --low-noise-cfg 2 >log
"${f[@]}" -d same --low-noise flow --boundary 0.6 >log
is "$(latents same)" "$(latents guided)" "the same network twice is one network"
vfm-sample -q --ckpt flow2 "${f[@]:4}" -d second >log
"${f[@]}" -d second-all --low-noise flow2 --boundary 1 --shift 0.999 --sampler dpm++ >log
vfm-sample -q --ckpt flow2 "${f[@]:4}" -d second-alone --shift 0.999 --sampler dpm++ >log
is "$(latents second-all)" "$(latents second-alone)" "--boundary 1: the second network alone, where no level is 1"
is "$(far both/sample-000000.npy guided/sample-000000.npy) $(far both/sample-000000.npy second/sample-000000.npy)" "far far" "two networks are neither"
run vfm-sample --ckpt flow "${small[@]}" -p x -o log.npy --low-noise flow2 --boundary 0.6
like "$err" "model of flow/.*
.*ema of flow2/" "two networks: each checkpoint is named, with its part"
for how in "-n 2" "-n 4 --set parallel.dp=4" "-n 2 --context 1"; do
	for what in guided half both; do
		declare -A options=([guided]='' [half]='--cfg-interval 0.4:0.8' [both]='--low-noise flow2 --boundary 0.6 --low-noise-cfg 2')
		# shellcheck disable=SC2086 # words
		run "${f[@]}" -d split --split-cfg $how ${options[$what]}
		is "$rc $(wc -l <<<"$out") $(latents split)" "0 3 $(latents $what)" "$how --split-cfg: $what: bit for bit"
		rm -rf split
	done
done
for how in "-n 4" "-n 4 --set parallel.tp=2"; do
	for what in guided both; do
		# shellcheck disable=SC2086 # words
		run "${f[@]}" -d split --split-cfg $how ${options[$what]}
		is "$rc $(far split/sample-000000.npy $what/sample-000000.npy) $(far split/sample-000002.npy $what/sample-000002.npy)" \
			"0 near near" "$how --split-cfg: $what"
		rm -rf split
	done
done
mixed=(--low-noise flow2 --boundary 0.6 --low-noise-cfg 2 --sampler unipc --cfg-interval 0.4:0.8)
"${f[@]}" -d rank1 "${mixed[@]}" >log
for n in 2 4; do
	"${f[@]}" -d ranks -n $n "${mixed[@]}" >log
	is "$(far ranks/sample-000000.npy rank1/sample-000000.npy)" near "-n $n: two networks, unipc and an interval: the same latents"
done

for c in edm/ckpt edm/ckpt/step-00000012; do
	vfm-sample -q --ckpt $c "${small[@]}" -p x -o c.png >log
	ok "--ckpt $c is the same" cmp ema.png c.png
done
vfm-sample -q --ckpt edm/ckpt/step-00000006 "${small[@]}" -p x -o c.png >log
not_ok "an earlier checkpoint is not" cmp ema.png c.png

# ---- names ---
run "${s[@]}" -p "a cat" -p "{n}" -p "" -p "a cat" -o 'named/v/{prompt}-{n}.npy'
is "$rc $(jq -r .latent.path <<<"$out" | tr '\n' ' ')" "0 named/v/a cat-0.npy named/v/{n}-0.npy named/v/-0.npy named/v/a cat-1.npy " "-o with {prompt} and {n}"
run "${s[@]}" -n 2 -p "a cat" -p "{n}" -p "" -p "a cat" -o 'ranks2/{prompt}-{n}.npy'
is "$rc $(cd ranks2 && ls)" "0 $(cd named/v && ls)" "on two ranks: the same names"

# ---- progress ---------------------------------------------------------------------------
# on_terminal CMD ARG ...: stderr is a terminal; prints what appears there, the bars on lines of their own
on_terminal() {
	python3 - "$@" <<-'END' | tr '\r' '\n'
		import os, pty, sys
		pid, fd = pty.fork()
		if pid == 0:
		    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
		    os.execvp(sys.argv[1], sys.argv[1:])
		while True:
		    try:
		        text = os.read(fd, 65536)
		    except OSError:
		        break
		    sys.stdout.buffer.write(text)
		sys.stdout.flush()
		os.waitpid(pid, 0)
	END
}
slow=(vfm-sample --ckpt edm --size 128x128 --frames 16 --steps 200 -p x -p y -p z --context 1 --format npy -d terminal)
on_terminal "${slow[@]}" >bar
like "$(cat bar)" "passes [0-9]+/2394 .*[0-9.]+(/s| s each), [0-9]+:[0-9]+ left" "on a terminal: progress with the time left"
like "$(grep passes bar | tail -n 1)" "passes 2394/2394 100%.*0:00 left" "which ends at all of them"
on_terminal "${slow[@]}" --cfg-interval 0:0.5 >bar
like "$(grep passes bar | tail -n 1)" "passes 1605/1605 100%" "evaluations without guidance count once: 3 x (399 + 136 with sigma up to 0.5)"
on_terminal "${slow[@]}" -q >bar
ok "not with -q" cmp bar /dev/null
run "${slow[@]}"
not_ok "without a terminal there is no bar" grep -q passes "$SCRATCH/io/err"

# ---- complaints -------------------------------------------------------------------------
bad() { # DESC REGEX ARG ...: bad usage, and no file
	local desc=$1 regex=$2
	shift 2
	rm -rf bad.mp4
	run vfm-sample -q "${small[@]}" "$@"
	complaint 2 "$regex" "$desc"
	not_ok "$desc: no file" test -e bad.mp4
}
bad "no such checkpoint" "nowhere" --ckpt nowhere -p x -o bad.mp4
mkdir empty
bad "a folder without checkpoints" "empty" --ckpt empty -p x -o bad.mp4
bad "a plain safetensors file" "has no configuration of its model" --ckpt edm/ckpt/step-00000012/ema-00000.safetensors -p x -o bad.mp4
bad "no --ckpt" "--ckpt PATH is missing" -p x -o bad.mp4
bad "an unknown sampler" "--sampler': expected auto.euler.heun.unipc.dpm..[|]res, got 'dpm'" --ckpt edm --sampler dpm -p x -o bad.mp4
bad "an order of another sampler" "--order: it is for --sampler unipc" --ckpt edm --sampler res --order 3 -p x -o bad.mp4
bad "an order that does not exist" "order: expected 1 to 3, got 4" --ckpt edm --sampler unipc --order 4 -p x -o bad.mp4
bad "a shift of edm" "shift: it is for flow; this model was trained with edm" --ckpt edm --shift 3 -p x -o bad.mp4
bad "a last level of 1" "shift_terminal: expected a level above 0, below 1, got 1" --ckpt flow --shift-terminal 1 -p x -o bad.mp4
bad "no last level" "--shift-terminal': expected more than 0, got '0'" --ckpt flow --shift-terminal 0 -p x -o bad.mp4
bad "no shift" "--shift': expected more than 0, got '0'" --ckpt flow --shift 0 -p x -o bad.mp4
bad "--sigma-max of flow" "--sigma-max: it is for edm, and for --schedule karras; this model was trained with flow" --ckpt flow --sigma-max 20 -p x -o bad.mp4
bad "--sigma-min of flow" "--sigma-min: it is for edm, and for --schedule karras; this model was trained with flow" --ckpt flow --sigma-min 0.1 -p x -o bad.mp4
bad "a last level above the first" "expected 0 < sigma_min \(300\) < sigma_max and rho > 0, got sigma_max 80" --ckpt edm --sigma-min 300 -p x -o bad.mp4
bad "no last level of karras" "expected 0 < sigma_min \(0\) < sigma_max" --ckpt flow --schedule karras --sigma-min 0 -p x -o bad.mp4
bad "an unknown schedule" "--schedule': expected default\|diffusers\|karras, got 'edm'" --ckpt flow --schedule edm -p x -o bad.mp4
for schedule in diffusers karras; do
	bad "a schedule of $schedule for edm" "schedule: only flow has a choice; this model was trained with edm, whose levels are those of karras" --ckpt edm --schedule $schedule -p x -o bad.mp4
done
bad "karras with a shift" "shift: the levels of karras have none" --ckpt flow --schedule karras --shift 3 -p x -o bad.mp4
bad "a schedule that diffusers lacks" "schedule: diffusers has none for the sampler res" --ckpt flow --sampler res --schedule diffusers -p x -o bad.mp4
bad "more steps than levels" "steps: 100000 are too many: the noise levels of steps 1 and 2 are equal" --ckpt flow --sampler unipc --shift 100 --steps 100000 -p x -o bad.mp4
for interval in 0.5 0.6:0.5 a:1 -1:1 0:b; do
	bad "--cfg-interval $interval" "cfg.interval: expected" --ckpt flow --cfg-interval=$interval -p x -o bad.mp4
done
bad "a ramp and two scales" "cfg: a ramp is for one network" --ckpt flow --low-noise flow2 --boundary 0.6 --cfg-end 2 --low-noise-cfg 2 -p x -o bad.mp4
bad "--low-noise alone" "--low-noise and --boundary need each other" --ckpt flow --low-noise flow2 -p x -o bad.mp4
bad "--boundary alone" "--low-noise and --boundary need each other" --ckpt flow --boundary 0.6 -p x -o bad.mp4
bad "--low-noise-cfg alone" "--low-noise-cfg: it needs --low-noise" --ckpt flow --low-noise-cfg 6 -p x -o bad.mp4
for boundary in 0 -1 1.1; do
	bad "--boundary $boundary" "--boundary': expected more than 0, at most 1, got '$boundary'" --ckpt flow --low-noise flow2 --boundary=$boundary -p x -o bad.mp4
done
bad "two networks of edm" "boundary: two networks are for flow; this model was trained with edm" --ckpt edm --low-noise edm --boundary 0.6 -p x -o bad.mp4
bad "two kinds of diffusion" "the two networks differ: diffusion.kind is \"flow\" in flow.* and \"edm\" in edm" --ckpt flow --low-noise edm --boundary 0.6 -p x -o bad.mp4
bad "two models" "the two networks differ: model.layers is 2 in flow.* and 1 in thin" --ckpt flow --low-noise thin --boundary 0.6 -p x -o bad.mp4
bad "no second checkpoint" "nowhere" --ckpt flow --low-noise nowhere --boundary 0.6 -p x -o bad.mp4
bad "--split-cfg without guidance" "two groups of ranks need guidance, but its scale is 1" -n 2 --ckpt flow --split-cfg --cfg 1 -p x -o bad.mp4
bad "--split-cfg on one rank" "parallel.dp" --ckpt flow --split-cfg -p x -o bad.mp4
bad "--split-cfg on three groups" "parallel.dp: guidance over two groups of ranks needs an even number, got 3" -n 3 --ckpt flow --split-cfg --set parallel.dp=3 -p x -o bad.mp4
bad "no steps" "steps: expected 1 to 100000, got 0" --ckpt edm --steps 0 -p x -o bad.mp4
for size in 33x32 32x0 32 x 32x32x32 -32x32 32x99999999999; do
	bad "--size $size" "--size" --ckpt edm --size=$size -p x -o bad.mp4
done
bad "a huge size" "too large" --ckpt edm --size 16384x16384 --frames 65536 -p x -o bad.mp4
bad "a large size" "too large; at most 16777216" --ckpt edm --size 4096x4096 --frames 1200 -p x -o bad.mp4
bad "no frames" "--frames': expected 1 to 65536, got '0'" --ckpt edm --frames 0 -p x -o bad.mp4
bad "--fps 0" "--fps" --ckpt edm --fps 0 -p x -o bad.mp4
bad "-o with two prompts" "-o FILE is for a single prompt; there are 2" --ckpt edm -p x -p y -o bad.mp4
bad "two prompts of one name" "-o: several prompts have the file 'bad/x.mp4'" --ckpt edm -p x -p y -p x -o 'bad/{prompt}.mp4'
bad "two prompts of one number" "-o: several prompts have the file 'bad/0.mp4'" --ckpt edm -p x -p y -o 'bad/{n}.mp4'
bad "a placeholder in the folder" "-o FILE is for a single prompt" --ckpt edm -p x -p y -o '{prompt}/{n}/bad.mp4'
for prompt in and/or $'two\nlines' "$(printf 'x%.0s' {1..221})"; do
	bad "a prompt that is no file name" "-o: a prompt cannot be in a file name.*: '${prompt::3}" --ckpt edm -p "$prompt" -o 'bad-{prompt}.mp4'
done
bad "a prompt that would number frames" "no '/', control character or, in .png, '%': '5 %d'" --ckpt edm -p "5 %d" -o 'bad-{prompt}.png'
bad "-o and -d" "expected one of -o FILE and -d DIR" --ckpt edm -p x -o bad.mp4 -d bad
bad "neither" "expected one of -o FILE and -d DIR" --ckpt edm -p x
bad "no prompt" "no prompt" --ckpt edm -o bad.mp4
bad "an ending that it does not know" "should end in" --ckpt edm -p x -o bad.avi
bad "a name of one letter" "should end in" --ckpt edm -p x -o b
bad "an unknown format" "--format" --ckpt edm -p x -d bad --format webm
bad "a prompt that is not UTF-8" "not UTF-8" --ckpt edm -p $'\xff' -o bad.mp4
bad "a tokenizer of another width" "has 8 channels, the model 16" --ckpt edm --tokenizer wavelet:8 -p x -o bad.mp4
bad "an unknown part" "--part': expected ema\|model, got 'optim'" --ckpt edm --part optim -p x -o bad.mp4
bad "an unknown device" "unknown device 'tpu'" --ckpt edm --device tpu -p x -o bad.mp4
bad "no ranks" "-n: expected 1 to 1048576, got 0" --ckpt edm -n 0 -p x -o bad.mp4
bad "no threads" "--threads: expected 1 to 4096, got 0" --ckpt edm --threads 0 -p x -o bad.mp4
bad "a negative text that is not UTF-8" "--negative: not UTF-8" --ckpt edm -p x --negative $'\xff' -o bad.mp4
echo '{"caption": "x", "negative": 5}' >five.jsonl
bad "a negative text that is a number" "five.jsonl:1: negative: expected a string" --ckpt edm --prompts five.jsonl -d bad
echo '{"caption": 5}' >five.jsonl
bad "a caption that is a number" "five.jsonl:1" --ckpt edm --prompts five.jsonl -d bad
bad "captions with names" "clips.jsonl:3: caption: 2 captions with names: choose one by --caption" --ckpt edm --prompts clips.jsonl -d bad
bad "an unknown caption" "clips.jsonl:3: caption: no caption has the name 'medium'" --ckpt edm --prompts clips.jsonl --caption medium -d bad
bad "--caption without prompts" "--caption: it needs --prompts" --ckpt edm -p x --caption short -d bad
bad "no file of prompts" "gone.jsonl" --ckpt edm --prompts gone.jsonl -d bad

cp -r edm/ckpt/step-00000012 cut
truncate -s -100 cut/ema-00000.safetensors
run "${s[@]}" --ckpt cut -p x -o bad.mp4
is "$rc ${#out}" "2 0" "a truncated file is refused"
like "$err" "^vfm-sample: .*ema-00000.safetensors" "and named"
rm cut/ema-00000.safetensors
run "${s[@]}" --ckpt cut -p x -o bad.mp4
is "$rc ${#out}" "2 0" "a missing file is refused"
like "$err" "^vfm-sample: .*ema-00000.safetensors" "and named"
echo '{' >cut/manifest.json
run "${s[@]}" --ckpt cut -p x -o bad.mp4
is "$rc ${#out}" "2 0" "a broken manifest is refused"
like "$err" "^vfm-sample: .*cut" "and named"

# ---- model.text_len ------------------------------------------------------------------------
run vfm-train -c tiny.json --data plan.jsonl --steps 6 --set model.text_len=2 -o short
is "$rc $(grep -c 'of each sample the first 2 are read (model.text_len)' <<<"$err")" "0 1" "training cuts long texts and says so once"
not_ok "which gives other losses" cmp <(jq -c .loss short/metrics.jsonl) <(head -n 6 edm/metrics.jsonl | jq -c .loss)
vfm-train -q -c tiny.json --data plan.jsonl --steps 6 --set model.text_len=40 -o long >log
is "$(jq -c .loss long/metrics.jsonl)" "$(head -n 6 edm/metrics.jsonl | jq -c .loss)" "texts that are short enough stay as they are"
run vfm-sample --ckpt short "${small[@]}" -p "a red square moves left" -p "a red circle" -d cut-long
is "$rc $(grep -c 'a prompt has 5 text rows; of each prompt the first 2 are read (model.text_len)' <<<"$err")" "0 1" \
	"sampling cuts long prompts and says so once"
run vfm-sample --ckpt short "${small[@]}" -p "a red" -p "a red" -d cut-short
not_ok "and says nothing of a short one" grep -q text_len <<<"$err"
is "$(pictures cut-long/*.mp4)" "$(pictures cut-short/*.mp4)" "a prompt is its first rows"
run vfm-bench step --model dit-s --layers 1 --text-len 20 --set model.text_len=16
is "$rc $err" "2 vfm-bench step: sample 1 has 20 text rows, but model.text_len is 16" "a benchmark of longer texts is refused"

# ---- the environment fails -----------------------------------------------------------------
# A sample of 8 tokens: sqrt(8 / 2) times the shift.
for o in shift=1 shift=2 shift_tokens=2; do
	vfm-train -q -c tiny.json --data plan.jsonl --steps 1 --init flow --set diffusion.kind=flow --set train.ema_decay=0 --set train.lr=0 --set diffusion.$o -o by_$o >log
	vfm-sample -q --ckpt by_$o "${small[@]}" -p x -d by_$o/out --format npy >log
done
is "$(far by_shift_tokens=2/out/sample-000000.npy by_shift=2/out/sample-000000.npy)" near "diffusion.shift_tokens: the shift of the size"
is "$(far by_shift_tokens=2/out/sample-000000.npy by_shift=1/out/sample-000000.npy)" far "not that of all sizes"

run bash -c "ulimit -f 1; ${s[*]} -p x -o full.mp4 --size 128x128"
complaint 3 "cannot write 'full.mp4'.*File too large" "no space for the video"
is "$(echo full*)" "full*" "nothing is left of it"
run bash -c "ulimit -f 1; ${s[*]} -p x -o full.png --size 128x128"
complaint 3 "full.png'.*File too large" "no space for the picture"
is "$(echo full*)" "full*" "nothing is left of it"
run bash -c "${s[*]} -p x -o record.mp4 >/dev/full"
rc_is 3 "no space for the record"
like "$err" "No space left on device" "says so"
run "${s[@]}" -p x -o no/such/folder.mp4
complaint 3 "no/such/folder.mp4" "no such folder"
done_testing
