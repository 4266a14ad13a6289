#!/bin/bash
# vfm-bench eval: values that are known, pairs that do not match, and bad files of vectors.
. "${0%/*}/lib.sh"

# field KEY [METRIC]: of the rows in $out (jsonl).
field() { jq -r "select(.metric == \"${2-$(jq -rs '.[0].metric' <<<"$out")}\") | .$1" <<<"$out"; }
# near GOT WANT DESC: to 1e-12 of WANT.
near() { ok "$3 ($1)" jq -en "(($1) - ($2) | fabs) <= 1e-12 * ($2 | fabs)"; }
eval_json() { run vfm-bench eval -q --format jsonl "$@"; }

# grey FILE WxH LEVEL ...: a picture of each level, lossless; video: a video of them.
# shellcheck disable=SC2086
grey() {
	local file=$1 size=$2 level
	shift 2
	for level in "$@"; do
		head -c $((3 * ${size%x*} * ${size#*x})) /dev/zero | tr '\0' "\\$(printf %o "$level")"
	done | ffmpeg -v error -y -f rawvideo -pix_fmt rgb24 -s "$size" -r 8 -i - ${LOSSLESS-} "$file"
}
video() { LOSSLESS='-c:v ffv1 -pix_fmt gbrp' grey "$@"; }

# npy FILE TYPE SHAPE ...: numbers on stdin.
npy() {
	python3 -c '
import struct, sys
path, kind, *shape = sys.argv[1:]
x = [float(v) for v in sys.stdin.read().split()]
head = "{%r: %r, %r: False, %r: (%s,), }" % ("descr", "<" + {"e": "f2", "f": "f4", "d": "f8"}[kind], "fortran_order", "shape", ", ".join(shape))
head += " " * (-(len(head) + 11) % 64) + "\n"
open(path, "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%d%s" % (len(x), kind), *x))' "$@"
}

# ---- reconstructions

mkdir -p a/sub b/sub
video a/one.mkv 16x12 100 100 100
video b/one.mkv 16x12 100 110 100
grey a/sub/two.png 16x12 50
grey b/sub/two.png 16x12 60
touch a/notes.txt
eval_json --reconstruction --each each.jsonl a b
rc_is 0 "two folders"
# Of constant pictures: SSIM = (2 a b + C1) / (a^2 + b^2 + C1).
one="(10 * (65025 * 3 / 100 | log10))" two="(10 * (650.25 | log10))"
s1="((2 + (22000 + 6.5025) / (22100 + 6.5025)) / 3)" s2="((6000 + 6.5025) / (6100 + 6.5025))"
near "$(field value psnr)" "($one + $two) / 2" "PSNR: the mean over clips, a clip's is that of all frames"
near "$(field value ssim)" "($s1 + $s2) / 2" "SSIM"
near "$(field value mse)" "200 / 3" "the mean squared error"
is "$(jq -c '[.id, .frames, .width, .height]' each.jsonl)" $'["one",3,16,12]\n["sub/two",1,16,12]' "--each: a record for each clip"
near "$(jq -s '.[1].ssim' each.jsonl)" "$s2" "with its values"
is "$(field n psnr) $(field resamples psnr) $(field kind psnr)" "2 10000 measured" "clips and resamples"
cp "$SCRATCH/io/out" first
eval_json --reconstruction --threads 1 a b
is "$out" "$(cat first)" "one thread: the same bits"
eval_json --reconstruction --seed 1 --confidence 0.5 --resamples 300 a b
is "$(field resamples psnr) $(field value psnr)" "300 $(jq -s '.[0].value' first)" "options of the interval"
eval_json --reconstruction --resamples 0 a b
is "$(field low psnr) $(field resamples psnr)" "null 0" "no interval"
eval_json --reconstruction a/one.mkv a/one.mkv
is "$(jq -c '[.metric, .value]' <<<"$out")" $'["psnr",null]\n["ssim",1]\n["mse",0]' "a clip and itself"
run vfm-bench eval --reconstruction a/one.mkv a/one.mkv
like "$out" '1 clips equal their originals' "said in a note"

{
	echo '{"v":1,"id":"x","src":"a/one.mkv","start_frame":1,"end_frame":3,"reconstruction":"b/one.mkv"}'
	echo '{"v":1,"id":"y","src":"a/sub/two.png","reconstruction":{"path":"b/sub/two.png"}}'
	echo '{"v":1,"id":"z","src":"none","error":"bad"}'
} >rec.jsonl
run vfm-bench eval -q --reconstruction rec.jsonl
rc_is 1 "a range of two frames beside three"
like "$err" "x: 'b/one.mkv' has more than 2 frames, 'a/one.mkv' only these" "names pair and files"
eval_json --reconstruction --frames 1 rec.jsonl
rc_is 0 "--frames: the first of each"
near "$(field value mse)" "(100 + 100) / 2 * 0.5" "frame 1 of the file, 0 of the range"
run vfm-bench eval -q --reconstruction --frames 3 rec.jsonl
rc_is 1 "--frames: more than there are"
jq -c 'select(.id == "x")' rec.jsonl >range.jsonl
run vfm-bench eval -q --reconstruction --frames 3 range.jsonl range.jsonl
like "$rc $err" "^1 .*x: 2 frames, expected 3$" "also if both have as few"
sed 's/"start_frame":1,"end_frame":3,//; s/reconstruction/out.file/' rec.jsonl >other.jsonl
jq -c 'if .["out.file"] then .out = {file: .["out.file"]} else . end' other.jsonl >key.jsonl
run vfm-bench eval -q --reconstruction key.jsonl
is "$rc $err" "2 vfm-bench eval: key.jsonl: the record 'x' has no reconstruction (expected a path, or an object with 'path')" \
	"a record without a reconstruction"
run vfm-bench eval --reconstruction --key out.file key.jsonl
rc_is 0 "--key"
like "$out" "1 records with 'error' or 'drop' were left out" "records with an error are counted"
jq -c 'select(.error | not) | del(.out) | .id = {x: "one", y: "sub/two"}[.id]' key.jsonl >ids.jsonl
eval_json --reconstruction ids.jsonl b
is "$rc $(field value psnr)" "0 $(jq -s '.[0].value' first)" "records and a folder"
sed 1d ids.jsonl >fewer.jsonl
run vfm-bench eval -q --reconstruction fewer.jsonl b
is "$rc $err" "2 vfm-bench eval: 'one' of 'b' has no partner in 'fewer.jsonl'" "a reconstruction without an original"
run vfm-bench eval -q --reconstruction a fewer.jsonl
is "$rc $err" "2 vfm-bench eval: 'one' of 'a' has no partner in 'fewer.jsonl'" "an original without a reconstruction"
cat ids.jsonl fewer.jsonl >twice.jsonl
run vfm-bench eval -q --reconstruction twice.jsonl b
is "$rc $err" "2 vfm-bench eval: 'twice.jsonl': two clips have the name 'sub/two'" "a name that is not unique"
grey wide.png 32x12 50
run vfm-bench eval -q --reconstruction wide.png b/sub/two.png
is "$rc $err" "1 vfm-bench eval: wide: 'wide.png' is 32x12, 'b/sub/two.png' 16x12" "another size"
eval_json --reconstruction --size 16x12 wide.png b/sub/two.png
is "$rc $(field value mse)" "0 100" "--size: the original is scaled and cropped"
grey small.png 10x12 50
run vfm-bench eval -q --reconstruction small.png small.png
like "$rc $err" "^1 .*small: pictures of 10x12 are smaller than the window of SSIM, 11x11$" "too small for SSIM"
head -c 60 b/sub/two.png >cut.png
run vfm-bench eval -q --reconstruction a/sub/two.png cut.png
like "$rc $err" "^1 .*cut.png" "a truncated picture"
mkdir empty
run vfm-bench eval -q --reconstruction empty empty
is "$rc $err" "2 vfm-bench eval: 'empty' has no clips" "empty folders"
run vfm-bench eval -q --reconstruction none a
like "$rc $err" "^2 .*cannot open 'none'" "a folder that is missing"

# ---- features

echo "0 0  2 0  0 2  2 2" | npy a.npy d 4 2
echo "3 4  7 4  3 8  7 8" | npy b.npy f 4 2
eval_json --frechet a.npy b.npy
rc_is 0 "the Frechet distance"
near "$(field value)" "41 + 2 * (16 / 3 + 4 / 3 - 2 * (64 / 9 | sqrt))" "|m1 - m2|^2 + sum (s1 - s2)^2"
is "$(field n_a) $(field n_b) $(field dim) $(field resamples)" "4 4 2 1000" "sizes"
ok "an interval around it" jq -en "$(field low) < $(field value) and $(field value) < $(field high)"
cp "$SCRATCH/io/out" first
eval_json --frechet --threads 1 a.npy b.npy
is "$out" "$(cat first)" "one thread: the same bits"
eval_json --frechet --resamples 0 a.npy a.npy
is "$(field value) $(field low) $(field bias)" "0 null null" "a set and itself"
echo "0 0 0 0  1 2 3 4" | npy few.npy e 2 4
run vfm-bench eval --frechet few.npy few.npy
like "$err" "warning: 'few.npy' has 2 vectors of 4 elements: its covariance is singular" "fewer rows than dimensions: a warning"
is "$rc" 0 "and a distance"
eval_json --frechet few.npy few.npy
ok "which is 0 of equal sets" jq -en "$(field value) < 1e-12"
echo "0 0  2 nan  0 2  2 2" | npy bad.npy d 4 2
run vfm-bench eval -q --frechet bad.npy b.npy
is "$rc $err" "1 vfm-bench eval: bad.npy: element [1,1] is NaN" "NaN"
echo "1 2" | npy one.npy d 1 2
run vfm-bench eval -q --frechet a.npy one.npy
is "$rc $err" "2 vfm-bench eval: 'one.npy' has 1 vectors: a covariance needs at least 2" "one row"
echo "" | npy none.npy d 0 2
run vfm-bench eval -q --frechet none.npy a.npy
is "$rc $err" "2 vfm-bench eval: 'none.npy' has 0 vectors: a covariance needs at least 2" "no row"
run vfm-bench eval -q --frechet a.npy few.npy
is "$rc $err" "2 vfm-bench eval: vectors of 'a.npy' have 2 elements, those of 'few.npy' 4" "other dimensions"
head -c 150 a.npy >cut.npy
run vfm-bench eval -q --frechet cut.npy a.npy
like "$rc $err" "^1 .*cut.npy: truncated" "a truncated file"
: >empty.jsonl
run vfm-bench eval -q --frechet empty.jsonl a.npy
like "$rc $err" "^2 .*'empty.jsonl' has 0 vectors" "no records"

# Vectors of records, as `vfm-curate embed` writes them.
toy=$B/tests/tools/toy_model
if [ -x "$toy" ]; then
	vfm-curate synth -q --count 6 -d clips >syn.jsonl && vfm-curate embed -q -d emb --exec "$toy" syn.jsonl >emb.jsonl
	eval_json --frechet --resamples 50 emb.jsonl emb.jsonl
	rc_is 0 "records of embed"
	is "$(field value) $(field n_a) $(field dim)" "0 6 3" "their vectors"
	eval_json --cosine emb.jsonl emb.jsonl
	near "$(field value)" 1 "the cosine of vectors and themselves, by id"
	sed 's/"name":"toy"/"name":"other"/' emb.jsonl >other.jsonl
	run vfm-bench eval -q --frechet emb.jsonl other.jsonl
	like "$rc $err" "^2 .*vectors of 'emb.jsonl' were made by 'toy .*', those of 'other.jsonl' by 'other" "vectors of different models"
	file=$(jq -r 'select(.id) | .embedding.path' emb.jsonl | tail -1)
	printf x | dd of="$file" bs=1 seek=130 conv=notrunc 2>/dev/null
	run vfm-bench eval -q --frechet emb.jsonl emb.jsonl
	like "$rc $err" "^1 .*emb.jsonl:7: '$file' is not the file of the record: another sha256" "a vector that was changed"
else
	skip 6 "build/tests/tools/toy_model is not built"
fi

# ---- cosines

for i in 1 2 3; do
	echo "3 4" | npy clip$i.npy f 2
	echo "4 $i" | npy text$i.npy d 2
	echo "{\"v\":1,\"id\":\"c$i\",\"embedding\":\"clip$i.npy\",\"text_embedding\":{\"path\":\"text$i.npy\"}}"
done >cos.jsonl
eval_json --cosine --each each.jsonl cos.jsonl
rc_is 0 "cosines of records"
near "$(jq -s '.[2].cosine' each.jsonl)" 0.96 "3,4 and 4,3"
near "$(field value)" "(16 / 5 / (17 | sqrt) + 20 / 5 / (20 | sqrt) + 0.96) / 3" "their mean"
is "$(jq -r .id each.jsonl | tr '\n' ' ')" "c1 c2 c3 " "--each: ids"
tac cos.jsonl | jq -c '.embedding = .text_embedding' >texts.jsonl
cp "$SCRATCH/io/out" first
eval_json --cosine cos.jsonl texts.jsonl
is "$out" "$(cat first)" "two files, by id"
echo "3 4  0 0" | npy zero.npy d 2 2
run vfm-bench eval -q --cosine zero.npy zero.npy
is "$rc $err" "1 vfm-bench eval: 'zero.npy': row 1 is 0: it has no direction" "a vector of zeros"
sed -i '2s/clip2/nowhere/' cos.jsonl
run vfm-bench eval -q --cosine cos.jsonl
like "$rc $err" "^1 .*cos.jsonl:2: cannot open 'nowhere.npy'" "a vector that is missing"
run vfm-bench eval -q --cosine --text-key caption_vector texts.jsonl
like "$rc $err" "^1 .*texts.jsonl:1: caption_vector: missing" "a key that is missing"
sed 1d texts.jsonl >fewer.jsonl
run vfm-bench eval -q --cosine texts.jsonl fewer.jsonl
is "$rc $err" "2 vfm-bench eval: the record 'c3' of 'texts.jsonl' has no partner in 'fewer.jsonl'" "no partner"

# ---- options

for args in "" "--frechet --cosine a.npy b.npy" "--frechet --size 8x8 a.npy b.npy" "--frechet a.npy" "--cosine --frames 2 a.npy b.npy" \
	"--reconstruction --size 8x a b" \
	"--frechet --resamples -2 a.npy b.npy" "--frechet --confidence 1 a.npy b.npy" "--frechet --seed -3 a.npy b.npy" \
	"--reconstruction --frames 0 a b" "--cosine -" "--reconstruction --key k a b" "--cosine --text-key k a.npy b.npy" "-o x --frechet a.npy b.npy"; do
	# shellcheck disable=SC2086
	run vfm-bench eval $args
	is "$rc $(wc -l <"$SCRATCH/io/err")" "2 1" "refused: eval $args"
done
done_testing
