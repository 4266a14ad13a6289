#!/bin/bash
# NaN and infinities: steps that are not applied, runs that stop, checkpoints and samples that are not finite.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-sample" ] || skip_all "vfm-sample is not built"
export OMP_NUM_THREADS=1
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 >syn.jsonl || exit 1
vfm-curate encode -q -d latents --text bytes:32 syn.jsonl | records >enc.jsonl || exit 1
# spoil_latents VALUE DIR: shards in which the latent of the fourth sample is finite, but its square is not.
spoil_latents() {
	python3 - "$1" <<'PY' | vfm-curate shard -q -d "$2" >log
import json, math, struct, sys
for n, line in enumerate(open("enc.jsonl")):
    r = json.loads(line)
    if n == 3:
        shape = r["latent"]["shape"]
        head = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }" % ", ".join(map(str, shape))
        head = head.ljust(117) + "\n"
        name = "latents/" + sys.argv[1] + ".npy"
        r["latent"].update(path=name, dtype="float32")
        del r["latent"]["sha256"]  # of the file that encode wrote
        with open(name, "wb") as f:
            f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
            f.write(struct.pack("<f", float(sys.argv[1])) * math.prod(shape))
    print(json.dumps(r))
PY
}
spoil_latents 1e25 data || exit 1
spoil_latents 3e38 vast || exit 1
vfm-pack -q --context 16 -b 2 --steps 12 data >plan.jsonl || exit 1
vfm-pack -q --context 16 -b 2 --steps 12 vast >vast.jsonl || exit 1
cat >tiny.json <<'JSON'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "text_dim": 32}, "diffusion": {"kind": "flow"},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0.9, "skip_nonfinite": 20}, "ckpt": {"every": 1, "keep": 0}}
JSON
train=(vfm-train -q -c tiny.json --data plan.jsonl --device cpu)
# The steps that read the sample, by the plan.
bad=$(jq -r 'select(.samples) | select(any(.samples[]; .[2] == 3)) | .step + 1' plan.jsonl | sort -nu | tr '\n' ' ')
bad5=$(for s in $bad; do [ "$s" -gt 5 ] || printf '%s ' "$s"; done)
ok "the plan has good and bad steps among the first five" test "$(wc -w <<<"$bad5")" -ge 2 -a "$(wc -w <<<"$bad5")" -le 4
skipped() { jq -r 'select(.skipped) | .step' "$1/metrics.jsonl" | tr '\n' ' '; }
hash_at() { vfm-ckpt hash --format jsonl "$1/ckpt/step-0000000$2" | jq -r .hash; }

# ---- the update is suppressed, in every layout
i=0
for how in "" "--set train.clip_norm=0" "-n 2" "-n 2 --set parallel.distopt=true" "-n 2 --set parallel.fsdp=true" "-n 2 --set parallel.pp=2" \
	"-n 2 --set parallel.cp=2" "--set train.offload=optimizer" \
	"--set train.dtype=bf16 --set train.master=split --set train.moments=bf16 --set train.fp8=delayed"; do
	i=$((i + 1))
	# shellcheck disable=SC2086 # words
	run "${train[@]}" --steps 5 -o "how$i" $how
	is "$rc $(skipped "how$i")" "0 $bad5" "steps that are not finite are skipped: ${how:-one rank}"
	is "$(grep -c "step .*: the loss is inf and .* so the weights were not updated; not finite is the loss of 1 of its 4 samples: set 'data', shard 0, index 3; " <<<"$err")" \
		"$(wc -w <<<"$bad5")" "a warning names each with its sample: ${how:-one rank}"
	for s in 2 3 4 5; do
		a=$(hash_at "how$i" $((s - 1))) b=$(hash_at "how$i" $s)
		case " $bad5" in
		*" $s "*) is "$b" "$a" "step $s leaves every bit of the state: ${how:-one rank}" ;;
		*) not_ok "step $s changes it: ${how:-one rank}" test "$a" = "$b" ;;
		esac
	done
done
# Values so large that activations become NaN: norms, attention, fp8 scales and routers meet them.
moe="--set model.arch=moe --set model.experts=4 --set model.expert_ffn=32 --set model.moe_capacity=2"
for how in "" "$moe -n 2 --set parallel.ep=2" "$moe --set model.moe_router=token_choice" "--set train.dtype=bf16 --set train.fp8=delayed"; do
	i=$((i + 1))
	# shellcheck disable=SC2086 # words
	run "${train[@]}" --steps 5 --data vast.jsonl -o "how$i" $how
	is "$rc $(skipped "how$i")" "0 $bad5" "NaN in activations: ${how:-dit}"
	is "$(grep -c "the loss is nan and the norm of the gradient nan,.* 1 of its 4 samples: set 'vast', shard 0, index 3; " <<<"$err")" \
		"$(wc -w <<<"$bad5")" "and the sample is named: ${how:-dit}"
	ok "the checkpoint is finite: ${how:-dit}" vfm-ckpt check "how$i"
done
is "$(jq -c 'select(.skipped) | [.loss, .grad_norm, .skipped]' how1/metrics.jsonl | head -n 1)" '[null,null,1]' "the record: null, and the count"
is "$(jq -s 'map(select(.loss == null or .grad_norm == null) | has("skipped")) | all' how1/metrics.jsonl)" true "no other record has a null"
is "$(jq .state.skipped how1/ckpt/step-00000005/manifest.json)" "$(wc -w <<<"$bad5")" "the checkpoint counts them"

# ---- resumed runs
run "${train[@]}" -o whole
is "$rc $(skipped whole)" "0 $bad" "a whole run"
for stop in 3 5; do
	run "${train[@]}" -o "part$stop" --steps $stop
	run "${train[@]}" -o "part$stop"
	is "$rc $(skipped "part$stop")" "0 $bad" "resumed after step $stop"
	is "$(vfm-ckpt hash --format jsonl "part$stop" | jq -r .hash)" "$(vfm-ckpt hash --format jsonl whole | jq -r .hash)" "with the same bits"
	is "$(curve "part$stop")" "$(curve whole)" "and the same records"
done

# ---- the limit
first=${bad%% *}
run "${train[@]}" -o stop --set train.skip_nonfinite=0
rc_is 3 "by default the first one ends the run"
like "$err" "^vfm-train: step $first: the loss is inf .* set 'data', shard 0, index 3 \(train.skip_nonfinite is 0\)$" "which says why, in one line"
is "$(tail -n 1 <<<"$out" | jq -c '[.step, .loss, .skipped]')" "[$first,null,1]" "after the record of the step"
is "$(ls stop/ckpt)" "$(ls how1/ckpt | head -n $((first - 1)))" "the checkpoints before it stay, and no other is written"
run "${train[@]}" -o stop --set train.skip_nonfinite=0 -n 2
is "$rc $(grep -c "step $first: the loss is inf" <<<"$err")" "3 1" "on two ranks: one line"
run "${train[@]}" -o stop --set train.skip_nonfinite=1 --steps "$first"
rc_is 0 "one may be skipped"
run "${train[@]}" -o stop --set train.skip_nonfinite=1
is "$rc $(tail -n 1 <<<"$out" | jq -c '[.step, .skipped]')" "3 [$(cut -d' ' -f2 <<<"$bad"),2]" "the second ends the run: the count survives a resume"
like "$err" "\(train.skip_nonfinite is 1\)$" "and is named"

# ---- checkpoints
is "$(vfm-ckpt info --format jsonl whole | jq .nonfinite)" 0 "a checkpoint records that it is finite"
# spoil CKPT FILE: its last element becomes a NaN, and the hashes fit.
spoil() {
	local was now
	was=$(sha256sum <"$1/$2" | cut -c -64)
	printf '\0\0\300\177' | dd of="$1/$2" bs=1 seek=$(($(stat -c %s "$1/$2") - 4)) conv=notrunc 2>/dev/null
	now=$(sha256sum <"$1/$2" | cut -c -64)
	sed -i "s/$was/$now/g" "$1/manifest.json"
	(cd "$1" && sums=$(cut -c67- SHA256SUMS) && echo "$sums" | xargs sha256sum >SHA256SUMS)
}
run "${train[@]}" -o run --steps 8 --set ckpt.every=2
cp -r run nan
spoil nan/ckpt/step-00000008 model-00000.safetensors
run vfm-ckpt check nan
is "$rc $(wc -l <<<"$out")" "1 1" "check finds a NaN"
like "$out" "step-00000008: tensor 'model/[a-z0-9_.]*': 1 of [0-9]* elements are NaN or infinite$" "and names the tensor"
like "$err" "nan: intact, but with values that are NaN or infinite" "apart from damage"
name=$(sed "s/.*tensor '\([^']*\)'.*/\1/" <<<"$out")
is "$(vfm-ckpt stat --format jsonl nan "$name" | jq -c '[.nan, .inf]')" "[1,0]" "stat counts it"
run vfm-ckpt prune --keep-last 1 nan
is "$rc $out" "0 nan/ckpt/step-00000002"$'\n'"nan/ckpt/step-00000004" "prune keeps the newest finite checkpoint"
like "$err" "warning: nan/ckpt/step-00000008 has 1 faults.*'nan/ckpt/step-00000006' is kept in its place" "and says so"
run vfm-train -c tiny.json --data plan.jsonl -o nan --set ckpt.keep=1
rc_is 0 "a run does not resume from it"
like "$err" "warning: .*step-00000008: tensor '[^']*' has values that are NaN or infinite; the run resumes from 'nan/ckpt/step-00000006' instead" "but from the one before"
is "$(vfm-ckpt hash --format jsonl nan | jq -r .hash)" "$(vfm-ckpt hash --format jsonl whole | jq -r .hash)" "to the same end"
fp8=(--set train.dtype=bf16 --set train.fp8=delayed)
run "${train[@]}" "${fp8[@]}" -o fp8 --steps 4
spoil fp8/ckpt/step-00000004 fp8-00000.safetensors
run vfm-train -c tiny.json --data plan.jsonl "${fp8[@]}" -o fp8 --steps 5
rc_is 0 "nor from a history of fp8 with a NaN"
like "$err" "warning: .*step-00000004: tensor 'fp8/[^']*' has values that are NaN or infinite; the run resumes from 'fp8/ckpt/step-00000003' instead" "but from the one before"

vfm-ckpt export -q --part model run good.safetensors
cp good.safetensors nan.safetensors
printf '\0\0\200\377' | dd of=nan.safetensors bs=1 seek=$(($(stat -c %s nan.safetensors) - 4)) conv=notrunc 2>/dev/null
run vfm-ckpt check nan.safetensors
is "$rc $(wc -l <<<"$out")" "1 1" "check finds an infinity in a file of weights"
run vfm-ckpt check good.safetensors
rc_is 0 "and none in a good one"
run "${train[@]}" -o init --init nan.safetensors
rc_is 2 "--init of weights that are not finite is refused"
like "$err" "nan.safetensors: tensor '[^']*' has values that are NaN or infinite$" "and names the tensor"
run "${train[@]}" -o init --init nan.safetensors -n 2 --set parallel.fsdp=true
is "$rc $(grep -c "tensor '[^']*' has values that are NaN" <<<"$err")" "2 1" "--init: on two ranks"
vfm-ckpt import -q -c run/config.json nan.safetensors from
is "$(vfm-ckpt info --format jsonl from | jq .nonfinite)" 1 "import records it"
is "$(jq -c '[.nonfinite, (.tensors | map(select(.nonfinite)) | length)]' from/step-00000000/manifest.json)" "[1,1]" "with the tensor"
is "$(vfm-ckpt reshard --files 3 from again; vfm-ckpt info --format jsonl again | jq .nonfinite)" 1 "and so does reshard"

# ---- samples
small=(vfm-sample -q --size 32x32 --frames 4 --steps 2 -p "a red square")
run "${small[@]}" --ckpt from --part model -o x.npy
is "$rc ${#out}" "2 0" "weights that are not finite are not sampled"
like "$err" "tensor '[^']*' has values that are NaN or infinite$" "and the tensor is named"
not_ok "nor leave a file" test -e x.npy
# Finite weights whose products are not: the last layer times 1e38.
python3 - <<'PY' || exit 1
import json, struct
b = bytearray(open("good.safetensors", "rb").read())
n = struct.unpack("<Q", b[:8])[0]
head = json.loads(b[8:8 + n])
for name, t in head.items():
    if name != "__metadata__" and name.endswith("weight"):
        lo, hi = t["data_offsets"]
        b[8 + n + lo:8 + n + hi] = struct.pack("<f", 1e38) * ((hi - lo) // 4)
open("big.safetensors", "wb").write(b)
PY
vfm-ckpt import -q -c run/config.json big.safetensors big
run vfm-ckpt check big
rc_is 0 "large weights are finite"
for n in 1 2; do
	run "${small[@]}" -p "a blue circle" --ckpt big --part model -n $n -d big-out --format npy
	rc_is 1 "videos that are not finite: status 1, -n $n"
	is "$(jq -c '[.id, (.error | test("values of the latent are NaN or infinite")), .latent]' <<<"$out")" \
		'["sample-000000",true,null]'$'\n''["sample-000001",true,null]' "their records say so, -n $n"
	like "$err" "2 of 2 videos failed and have no file; their records say why$" "and the last line, -n $n"
	empty "no file is written, -n $n" ls big-out
done
done_testing
