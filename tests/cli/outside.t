#!/bin/bash
# One pair of children from curation to samples: latents and texts of outside models train a model, and the same models
# encode its prompts and decode its samples.  Another model in between is refused.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1 # the models are tiny
toy=$B/tests/tools/toy_model

vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 >syn.jsonl
run vfm-curate encode -q -d latents --exec "$toy -t bfloat16" --text-exec "$toy" syn.jsonl
rc_is 0 "encode with children"
printf '%s\n' "$out" | vfm-curate shard -q -d data >shard.jsonl
ok "a dataset of them" vfm-curate verify -q data
ok "a plan" eval "vfm-pack -q --context 256 --steps 6 data >plan.jsonl"
is "$(head -1 plan.jsonl | jq -c '[.encoders.tokenizer.name, .encoders.tokenizer.geometry.stride, .encoders.text.dim]')" '["toy",[2,4,4],8]' "the plan names the encoders"
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 3, "text_dim": 8}, "train": {"lr": 0.01}, "ckpt": {"every": 6}}
END
run vfm-train -q -c tiny.json --data plan.jsonl -o run
rc_is 0 "training on them"
is "$(tail -1 <<<"$out" | jq '.loss < 10')" true "with a finite loss"

run vfm-curate encode -q -d pairs --exec "$toy" --patch 4x2x2 syn.jsonl
is "$rc $(records <<<"$out" | jq -c '.latent | [.shape, .frames]' | sort -u)" "0 [[3,4,8,8],7]" "--patch 4x2x2: 8 frames give whole patches of 7"

# complaint REGEX DESC: the last run was refused and says why
complaint() {
	is "$rc ${#out}" "2 0" "$2: refused"
	like "$err" "$1" "$2: which says why"
}

### sampling through the same children
s=(vfm-sample -q --ckpt run --steps 3 --size 32x32 --frames 7)
run "${s[@]}" -p "a red square" -o one.mp4 --latents --exec "$toy" --text-exec "$toy"
rc_is 0 "samples through the same children"
is "$(jq -c '[.frames, .latent.shape, .latent.maker.name, .encoders.text.name, .forced]' <<<"$out")" '[7,[3,4,8,8],"toy","toy",null]' "record: frames, latents, makers"
ok "--latents: their digest" digests_match .latent <<<"$out"
is "$(video_shape one.mp4 2>&1)" "32,32,7" "the video"
run "${s[@]}" -p "a red square" -o two.mp4 --exec "$toy" --text-exec "$toy -b 4"
is "$(sha256sum <one.mp4)" "$(sha256sum <two.mp4)" "the same video again"
run "${s[@]}" -p "" -o null.npy
is "$rc $(jq -c '.latent.shape' <<<"$out")" "0 [3,4,8,8]" "latents of the null text need no child"
run "${s[@]}" --frames 8 -p "" -o null.npy
complaint 'frames' "8 frames are none of 1 + 2n"

run "${s[@]}" -p "" -o x.mp4 --exec-timeout 600
complaint "^vfm-sample: --exec-timeout: only with --exec CMD, --text-exec CMD, --text2-exec CMD or --image-exec CMD$" "an option of children without a child"

### another encoder is refused
run "${s[@]}" -p "a red square" -o x.mp4 --exec "$toy -w b" --text-exec "$toy"
complaint "was trained on data of the tokenizer 'toy 1.0 \(sha256 aaaaaaaaaaaa\)', but 'toy 1.0 \(sha256 bbbbbbbbbbbb\)' would be used" "another decoder"
run "${s[@]}" -p "a red square" -o x.mp4 --exec "$toy" --text-exec "$toy -v 2.0"
complaint "text encoder 'toy 1.0.*', but 'toy 2.0" "another text encoder"
run "${s[@]}" -p "a red square" -o x.mp4 --exec "$toy" --text-exec "$toy -m 9"
complaint "text encoder 'toy 1.0.* in at most 64 rows\)', but 'toy 1.0.* in at most 9 rows\)' would be used" "one that cuts texts elsewhere"
run "${s[@]}" -p "a red square" -o x.mp4 --exec "$toy"
complaint "text encoder 'toy 1.0.*', but 'bytes:8" "the built-in text encoder"
run "${s[@]}" -p "" -o x.mp4
complaint "tokenizer 'toy 1.0.*', but 'wavelet:3" "the built-in decoder"
run "${s[@]}" -p "" -o x.mp4 --exec "$toy -c encode"
complaint "lacks 'decode'" "a child that cannot decode"
run "${s[@]}" --force -p "a red square" -o x.mp4 --exec "$toy -w b" --text-exec "$toy"
is "$rc $(jq -c '[.forced[] | [.encoder, .used.sha256[:4]]]' <<<"$out")" '0 [["tokenizer","bbbb"]]' "--force does it, and the record says so"
vfm-curate encode -q -d latents2 --exec "$toy -w b" --text-exec "$toy" syn.jsonl | vfm-curate shard -q -d data2 >shard2.jsonl
run vfm-pack -q --context 256 --steps 6 data data2
complaint "set 'data2'.* has tokenizer 'toy 1.0 \(sha256 bbbbbbbbbbbb\)', set 'data'.* has 'toy 1.0 \(sha256 aaaaaaaaaaaa\)'" "sets of two encoders"
ok "a plan of the other set" eval "vfm-pack -q --context 256 --steps 12 data2 >plan2.jsonl"
run vfm-train -q -c tiny.json --data plan2.jsonl -o run --allow-change plan,schedule
complaint "tokenizer 'toy 1.0 \(sha256 aaaaaaaaaaaa\)'.*'toy 1.0 \(sha256 bbbbbbbbbbbb\)'" "resuming with the data of another"
run vfm-train -q -c tiny.json --data plan2.jsonl -o run2 --init run
complaint "tokenizer 'toy 1.0" "--init with the data of another"
vfm-curate encode -q -d latents3 --exec "$toy -w b" --text-exec "$toy" syn.jsonl | jq -c 'select(.id)' | tail -4 >other.jsonl
jq -c 'select(.id)' shard.jsonl | head -4 >first.jsonl
run vfm-curate shard -q -d data3 first.jsonl other.jsonl
is "$rc $(jq -r 'select(.error) | .error' <<<"$out" | grep -c "'toy 1.0 (sha256 bbbbbbbbbbbb)'.*'toy 1.0 (sha256 aaaaaaaaaaaa)'")" "1 4" "records of two encoders in one dataset fail"

### many prompts, over dp ranks
printf '{"caption":"a %s"}\n' red green blue square circle >prompts.jsonl
for how in "-n 1" "-n 2 --set parallel.dp=2" "-n 4 --set parallel.dp=2"; do
	# shellcheck disable=SC2086 # words
	run "${s[@]}" $how --context 512 --prompts prompts.jsonl -d "many${how//[^0-9]/}" --latents --exec "$toy" --text-exec "$toy"
	is "$rc $(jq -r .id <<<"$out" | tr '\n' ' ')" "0 sample-000000 sample-000001 sample-000002 sample-000003 sample-000004 " "$how: all videos, in order"
done
is "$(jq -r '.latent.sha256' <<<"$out" | sort | uniq | wc -l)" 5 "each prompt has its video"
run "${s[@]}" -q --prompts prompts.jsonl -d fails --exec "$toy -f short" --text-exec "$toy"
is "$rc $(jq -c .error <<<"$out" | grep -c 'null')" "0 5" "decoded frames have no floating-point fault"
run "${s[@]}" -q -p "a b" -d fails --exec "$toy" --text-exec "$toy -f nan"
is "$rc $(jq -r .error <<<"$out")" "1 rows: element [1,0] is NaN" "a prompt whose embedding is bad fails with its reason"

done_testing
