#!/bin/bash
# Files of prompts, and samples of a run while it trains: what the files may say, what is written, and that every layout
# gives the samples of vfm-sample.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q -d latents --text bytes:32 |
	vfm-curate shard -q -d data >records.jsonl || exit 1
vfm-pack -q --context 64 --batch 4 --steps 4 data >plan.jsonl || exit 1
cat >tiny.json <<END
{"model": {"arch": "wan", "layers": 2, "hidden": 64, "heads": 4, "ffn": 64, "channels": 16, "text_dim": 32, "text_len": 64, "text_pad": true},
 "diffusion": {"kind": "flow"}, "train": {"ema_decay": 0, "lr": 0.01, "warmup_steps": 1}, "eval": {"sample_steps": 4}}
END
train=(vfm-train -q -c tiny.json --data plan.jsonl)
cat >prompts.txt <<'END'
# three prompts
a red square moves left

A wide one, --very-- wide --w 48 --h 16 --d 7 --s 3 --l 2.5 --n a blur
a still --f 1
END

# ---- samples of a run
run "${train[@]}" --prompts prompts.txt --sample-every 3 -o one
rc_is 0 "a run with prompts"
is "$(jq -c 'select(.previews) | [.step, .previews]' one/metrics.jsonl | tr '\n' ' ')" '[3,"samples/step-00000003"] [4,"samples/step-00000004"] ' "every 3 steps and after the last"
is "$(cd one/samples/step-00000004 && echo *)" "00-a-red-square-moves-left.mp4 01-a-wide-one-very-wide.mp4 02-a-still.png samples.jsonl" "files have the names of their prompts"
is "$(jq -c '[.caption, .negative, .width, .height, .frames, .seed]' one/samples/step-00000004/samples.jsonl)" '["a red square moves left",null,32,32,8,0]
["A wide one, --very-- wide","a blur",48,16,8,7]
["a still",null,32,32,1,0]' "sizes are those of the data, or of the prompt"
is "$(strings one/events.out.* | grep -c GIF89a)" 6 "TensorBoard has animations"
vfm-train --report -o page.html one
is "$(grep -c 'A wide one' page.html)" 1 "the page has the prompts"
sampled() { # FILE RUN: samples of vfm-sample with its last weights
	rm -rf s
	vfm-sample -q --ckpt "$2" --prompts "$1" --steps 4 --cfg 4 --size 32x32 --frames 8 -d s >s.jsonl
}
sampled prompts.txt one
ok "vfm-sample makes the same video" cmp s/sample-000000.mp4 one/samples/step-00000004/00-*.mp4
ok "also with a seed, steps, scale and size of the prompt" cmp s/sample-000001.mp4 one/samples/step-00000004/01-*.mp4
"${train[@]}" -o without >log
is "$(jq -c '[.loss, .grad_norm]' one/metrics.jsonl)" "$(jq -c '[.loss, .grad_norm]' without/metrics.jsonl)" "training has the same bits"
rm -rf one/ckpt/step-00000004 one/samples
run "${train[@]}" --prompts prompts.txt --sample-every 3 --steps 4 -o one
rc_is 0 "a run that samples resumes"

# ---- layouts: the videos of one process
run "${train[@]}" --prompts prompts.txt -o alone
for layout in "2 parallel.cp=2" "2 parallel.tp=2" "2 parallel.dp=2" "2 parallel.fsdp=true" "4 parallel.fsdp=true" "4 parallel.cp=2" "2 parallel.pp=2" "4 parallel.pp=2 --set parallel.cp=2" "4 parallel.pp=2 --set parallel.fsdp=true"; do
	run "${train[@]}" --prompts prompts.txt -n "${layout%% *}" --set ${layout#* } -o many
	rc_is 0 "-n $layout"
	is "$(near_videos alone/samples/step-00000004 many/samples/step-00000004)" near "-n $layout: the same samples"
	is "$(jq -r .caption many/samples/step-00000004/samples.jsonl | wc -l)" 3 "-n $layout: a record each"
	rm -rf many
done

"${train[@]}" --prompts prompts.txt --set model.layers=4 --set parallel.pp=2 --set parallel.vpp=2 -n 2 -o chunks >log
"${train[@]}" --prompts prompts.txt --set model.layers=4 -o chunks1 >log
is "$(near_videos chunks1/samples/step-00000004 chunks/samples/step-00000004)" near "pp stages of two chunks: the same samples"

# ---- files
small=(--ckpt one --steps 2 --size 32x32 --frames 8)
printf '[{"caption": "a cat", "size": "48x32", "frames": 4, "fps": "24000/1001", "seed": 3},\n {"caption": "a dog", "negative": null}]' >list.json
run vfm-sample -q "${small[@]}" --prompts list.json -d out
is "$rc $(jq -c '[.width, .height, .frames, .fps, .seed]' <<<"$out" | tr '\n' ' ')" '0 [48,32,4,"24000/1001",3] [32,32,8,"8/1",0] ' "an array of JSON"
printf '\xef\xbb\xbf[style] a cat\r\n  a dog  \r\n' >odd.txt
run vfm-sample -q "${small[@]}" --prompts odd.txt -d out
is "$rc $(jq -c .caption <<<"$out" | tr '\n' ' ')" '0 "[style] a cat" "a dog" ' "a text file with a byte order mark and CRLF"
run bash -c 'printf "a cat --f 4\n" | vfm-sample -q "$@" --prompts - -d out' - "${small[@]}"
is "$rc $(jq -c '[.caption, .frames]' <<<"$out")" '0 ["a cat",4]' "text on standard input"
vfm-sample -q --ckpt one --steps 2 --size 48x32 --frames 8 --seed 3 -p x -p y -d alone2 >log
printf 'x --w 32 --h 32\ny --w 48 --h 32 --d 3\n' >two.txt
vfm-sample -q --ckpt one --steps 2 --size 32x32 --frames 8 --prompts two.txt -d mixed >log
ok "sizes and seeds of prompts are those of the options" cmp alone2/sample-000001.mp4 mixed/sample-000001.mp4

bad() { # DESC REGEX FILE-CONTENT [NAME]
	printf '%s' "$3" >"${4:-bad.txt}"
	run vfm-sample -q "${small[@]}" --prompts "${4:-bad.txt}" -d bad
	like "$rc $err" "^${status:-2} .*vfm-sample: .*$2" "$1"
	run "${train[@]}" --prompts "${4:-bad.txt}" -o bad
	like "$rc $err" "^${status:-2} .*vfm-train: .*$2" "$1: vfm-train"
}
bad "an option that is none" "bad.txt:2: --x: not an option of a prompt" $'a\nb --x 3\n'
bad "a width alone" "bad.txt:1: --w and --h need each other" "a --w 32"
bad "a width twice" "bad.txt:1: --w: given twice" "a --w 32 --w 48"
bad "a capital letter" "bad.txt:1: --N: not an option of a prompt" "a --N x"
bad "prompts in TOML" "bad.toml.: prompts are .txt, .json or .jsonl" 'prompt = "x"' bad.toml
bad "a number that is none" "bad.txt:1: --d: .*'seven'" "a --d seven"
bad "an option twice" "bad.txt:1: --d: given twice" "a --d 7 --d 8"
bad "an unknown key" "bad.jsonl:1: size_: unknown key" '{"caption": "a", "size_": "32x32"}' bad.jsonl
bad "a wrong size" "bad.jsonl:1: size: " '{"caption": "a", "size": "32"}' bad.jsonl
bad "a size that does not fit" "prompt 0: size: 33x32: tokenizer and patch need" "a --w 33 --h 32"
bad "no caption" "bad.jsonl:1: caption: missing" '{"size": "32x32"}' bad.jsonl
bad "an object instead of an array" "bad.json.: expected an array of prompts" '{"caption": "a"}' bad.json
bad "a text that is not UTF-8" "bad.txt:1: the prompt is not UTF-8" $'a \xff'
status=1 bad "a picture that is not there" "prompt 0: image: .*no.png" "a --i no.png"
bad "no steps" "bad.jsonl:1: steps: " '{"caption": "a", "steps": 0}' bad.jsonl
: >empty.txt
run "${train[@]}" --prompts empty.txt -o bad
like "$rc $err" "^2 .*empty.txt. has no prompts" "an empty file is refused"
run "${train[@]}" --prompts none.txt -o bad
like "$rc $err" "^2 .*none.txt" "a file that is not there"
not_ok "nothing is written for refused prompts" test -e bad/config.json

# ---- options
refused() { # REGEX ARG ...
	local regex=$1
	shift
	run "${train[@]}" "$@" -o bad
	like "$rc $err" "^2 .*$regex" "refused: $*"
}
refused "eval.sample_every: there is nothing to sample" --sample-every 5
refused "vae: there is nothing to sample" --vae nowhere
refused "expert: there is nothing to sample" --expert one
refused "not with --dry-run" --prompts prompts.txt --dry-run

# ---- a decoder that vanishes, a video that cannot be written
python3 "$TOP/tests/tools/tiny_wan.py" tiny-wan || exit 1
vfm-curate synth -q --count 4 -d wan-clips --size 64x64 --frames 9 | vfm-curate encode -q -d wan-latents --vae tiny-wan --text-encoder tiny-wan |
	vfm-curate shard -q -d wan-data >wan.jsonl || exit 1
vfm-pack -q --context 64 --batch 1 --steps 4 wan-data >wan-plan.jsonl || exit 1
cp -r tiny-wan decoder
run bash -c 'vfm-train -q --init tiny-wan --data wan-plan.jsonl --prompts prompts.txt --set eval.sample_steps=2 --sample-every 2 --fps 16 --vae decoder \
	--text-encoder tiny-wan -o gone | while read -r line; do rm -rf decoder; echo "$line"; done'
like "$rc $err" "warning: the samples after step [24] failed: .*decoder" "samples that fail do not stop the run"
is "$(wc -l <gone/metrics.jsonl)" 4 "all steps are trained"
mkdir -p dead/samples/step-00000004/00-a-red-square-moves-left.mp4
run "${train[@]}" --prompts prompts.txt -o dead
like "$rc $err" "^0 .*warning: a sample of the run has no file: .*00-a-red-square-moves-left.mp4" "it does not stop the run"
is "$(jq -c '[.caption, has("error")]' dead/samples/step-00000004/samples.jsonl | head -2 | tr '\n' ' ')" '["a red square moves left",true] ["A wide one, --very-- wide",false] ' "its record says why"
is "$(wc -l <dead/metrics.jsonl)" 4 "all steps are trained"
done_testing
