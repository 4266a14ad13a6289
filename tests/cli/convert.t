#!/bin/bash
# share/convert/dataset_toml.py: dataset.toml of diffusion-pipe and musubi-tuner become commands that run and make the
# samples that they describe; what has no equivalent is named; faults are refused by name (VFM_PYTHON: Python 3.11).
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"
python=${VFM_PYTHON:-python3}
"$python" -c 'import tomllib' 2>/dev/null || skip_all "no Python 3.11 with tomllib (VFM_PYTHON)"
"$python" "$TOP/tests/tools/tiny_wan.py" wan || exit 1

convert() {
	run "$python" "$TOP/share/convert/dataset_toml.py" --model wan "$@"
}
# commands: runs the commands that were printed
commands() {
	printf '%s\n' "$out" >commands.sh
	run sh commands.sh
}
# samples DIR: caption, frames and size of its samples, sorted
samples() {
	local t
	for t in "$1"/shards/*.tar; do tar xOf "$t" --wildcards '*.json'; done |
		jq -c '[.caption, .latent.frames, .latent.width, .latent.height]' | sort | uniq -c | sed 's/^ *//'
}

vfm-curate synth -q --count 3 -d v --size 96x64 --frames 40 --fps 16 >/dev/null || exit 1
for f in v/*.mp4; do echo "sks $(basename "$f" .mp4)" >"${f%.mp4}.txt"; done
mkdir p && cp "$TOP/docs/loss.png" p/ 2>/dev/null || ffmpeg -v error -i v/000000.mp4 -frames:v 1 p/loss.png
echo "a picture" >p/loss.txt

# ---- diffusion-pipe
cat >dp.toml <<'END'
resolutions = [64, [96, 64]]
enable_ar_bucket = true
min_ar = 0.5
max_ar = 2.0
num_ar_buckets = 3
frame_buckets = [1, 9, 17]
caption_prefix = 'sks '
[[directory]]
path = 'v'
num_repeats = 2.5
mask_path = 'masks'
[[directory]]
path = 'p'
frame_buckets = [1]
resolutions = [64]
END
convert -o dp dp.toml
rc_is 0 "dataset.toml of diffusion-pipe"
like "$out" '"aspects": "1:2..2:1/3", "frames": "9,17"' "ranges of ratios, numbers of frames"
like "$err" 'directory\[0\].mask_path = "masks": no equivalent; losses have no masks' "a key without an equivalent"
like "$err" 'caption_prefix = "sks ": no equivalent' "at the top, too"
like "$out" '# directory\[0\].mask_path' "is a comment of the commands"
like "$out" 'v-64x64=2.5x:dp/v-64x64/shards' "num_repeats is a number of passes"
commands
rc_is 0 "the commands run"
is "$(samples dp/v-96x64 | cut -d' ' -f3-)" $'000000",17,96,48]\n000001",17,96,48]\n000002",17,96,48]' "each video in the shape of the second resolution"
is "$(samples dp/v-64x64 | wc -l) $(samples dp/p-64x64)" "3 1 [\"a picture\",1,64,64]" "the others, and the picture" || ls dp/*
like "$err" "set v-64x64: [78] samples, 2.(33|50|67) passes" "the plan has 2.5 passes"

mkdir j && cp v/*.mp4 j/ && echo '{"000000.mp4":["one","two"]}' >j/captions.json && echo no >j/000001.txt
printf 'size_buckets = [[96, 64, 1], [64, 96, 1], [96, 64, 9], [64, 96, 9]]\nsubsample_ratio = 0.5\n[[directory]]\npath = "j"\n' >sb.toml
convert -o sb sb.toml
like "$out" '"captions": "j/captions.json"' "captions.json precedes text files"
like "$out" '"sizes": "64x96,96x64", "frames": "9"' "size_buckets with a number of frames"
like "$out" '--subset j-9f=0%..50%' "subsample_ratio"
commands
rc_is 0 "these run, too"
is "$(samples sb/j-9f)" $'2 [null,9,96,64]\n1 [{"1":"one","2":"two"},9,96,64]' "captions of the table alone"

# ---- musubi-tuner
while read -r f; do echo "{\"video_path\": \"$f\", \"caption\": \"J $f\"}"; done < <(ls v/*.mp4) >v.jsonl
cat >mu.toml <<'END'
[general]
resolution = [96, 64]
caption_extension = ".txt"
batch_size = 2
enable_bucket = true
[[datasets]]
video_directory = "v"
cache_directory = "v/cache"
target_frames = [1, 19]
num_repeats = 3
[[datasets]]
video_directory = "v"
target_frames = [13]
frame_extraction = "chunk"
source_fps = 16.0
enable_bucket = false
resolution = 64
[[datasets]]
video_jsonl_file = "v.jsonl"
frame_extraction = "full"
max_frames = 31
control_directory = "c"
[[datasets]]
image_directory = "p"
END
convert -o mu mu.toml
rc_is 0 "dataset.toml of musubi-tuner"
like "$out" '"sizes": "32x192,48x128,64x80,64x96,80x64,96x64,128x48,192x32"' "the sizes of its bucket selector"
like "$out" 'cache_directory = "v/cache": replaced by the folders of -o' "what -o replaces"
like "$err" '^dataset_toml.py: datasets\[2\].control_directory = "c": no equivalent' "what has no equivalent"
like "$out" 'vfm-pack --context 384 ' "batch_size: so many of the largest samples"
commands
rc_is 0 "the commands run"
is "$(samples mu/v-17f)" "$(for i in 0 1 2; do echo "1 [\"sks 00000$i\",17,96,64]"; done)" "target_frames 19: 17 frames of each video"
is "$(samples mu/v-1f | wc -l)" 3 "and an image of each"
is "$(samples mu/v-13f)" "$(for i in 0 1 2; do echo "3 [\"sks 00000$i\",13,64,64]"; done)" "chunk: 40 frames are three of 13"
is "$(samples mu/v-jsonl-full)" "$(for i in 0 1 2; do echo "1 [\"J v/00000$i.mp4\",29,96,64]"; done)" "full: up to max_frames, captions of the table"
is "$(samples mu/p-images)" '1 ["a picture",1,96,64]' "images"
convert -o mu <(sed 's/"chunk"/"slide"/' mu.toml)
like "$err" "frame_extraction = slide: no equivalent" "slide has none"
convert -o mu <(sed 's/"full"/"head"/' mu.toml)
like "$out" '# datasets\[2\].max_frames: frame_extraction = head does not read it' "a key that has no effect"

# ---- faults
refused() { # DESC REGEX TOML
	printf '%b' "$3" >bad.toml
	convert bad.toml
	like "$rc $err" "^2 dataset_toml.py: .*$2" "$1"
	is "$out" "" "... and prints nothing"
}
refused "an unknown key" "'bad.toml': unknown key directory\[0\].num_repeat \(did you mean num_repeats\?\)" 'resolutions = [5]\n[[directory]]\npath="v"\nnum_repeat = 2\n'
refused "two of them" "unknown key a.*unknown key general.b" 'a = 1\n[general]\nb = 1\n[[datasets]]\nvideo_directory="v"\n'
refused "the key of another kind of dataset" "unknown key datasets\[0\].target_frames" '[[datasets]]\nimage_directory="v"\ntarget_frames=[1]\n'
refused "a wrong type" "datasets\[0\].resolution: expected a length up to 16384, or width and height" '[[datasets]]\nvideo_directory="v"\ncaption_extension=".txt"\nresolution="512"\n'
refused "a truth value for a number" "num_repeats: expected a positive number" 'resolutions=[64]\nnum_repeats=true\n[[directory]]\npath="v"\n'
refused "no path" "directory\[0\].path is missing" 'resolutions=[64]\n[[directory]]\n'
refused "no resolutions" "resolutions is missing" '[[directory]]\npath="v"\n'
refused "no extension of captions" "datasets\[0\].caption_extension is missing" '[[datasets]]\nvideo_directory="v"\n'
refused "two sources" "expected one of video_directory and video_jsonl_file" '[[datasets]]\nvideo_directory="v"\nvideo_jsonl_file="v"\n'
refused "another extraction" "frame_extraction: expected head, .* got 'tail'" '[[datasets]]\nvideo_directory="v"\ncaption_extension=".txt"\nframe_extraction="tail"\n'
refused "subsets of sd-scripts" "unknown key datasets\[0\].subsets" '[[datasets]]\nresolution=512\n[[datasets.subsets]]\nimage_dir="v"\n'
refused "the configuration of a training" "configuration of a training: read the file of its key dataset, 'd.toml'" 'dataset="d.toml"\noutput_dir="o"\n'
refused "neither" "neither \[\[directory\]\] of diffusion-pipe nor \[\[datasets\]\]" 'x = 1\n'
refused "no TOML" "'bad.toml': .*at line 2" 'x = 1\ny = \n'
refused "not UTF-8" "is not UTF-8" 'x = "\xff"\n'
convert nowhere.toml
like "$rc $err" "2 .*cannot read 'nowhere.toml'" "a file that is missing"
head -c 1100000 /dev/zero | tr '\0' '\n' >bad.toml
convert bad.toml
like "$rc $err" "2 .*exceeds 1 MiB" "a file that is too large"

# Random changes of both files: commands or one sentence, never a traceback.
run "$python" - "$TOP/share/convert/dataset_toml.py" dp.toml mu.toml <<'END'
import contextlib, io, random, runpy, sys
program, *files = sys.argv[1:]
values = ["0", "-1", "1e400", "nan", "true", '""', '"x"', "[]", "[0]", "[[1,2]]", "[[1,2],3]", "{}", "1979-05-27", "[1,1000000]", "99999999999"]
random.seed(7)
counts = {}
for i in range(1500):
    lines = open(random.choice(files)).read().split("\n")
    for _ in range(random.randint(1, 3)):
        k = random.randrange(len(lines))
        if "=" in lines[k] and random.random() < 0.7:
            lines[k] = lines[k].split("=")[0] + "= " + random.choice(values)
        elif random.random() < 0.5:
            lines.insert(k, random.choice(lines))
        else:
            del lines[k]
    open("random.toml", "w").write("\n".join(lines))
    sys.argv = [program, "random.toml"]
    out, err, code = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as e:
            code = e.code
    out.flush()
    if code not in (0, 2) or (code == 2) == bool(out.buffer.getvalue()) or (code == 2 and not err.getvalue().startswith("dataset_toml.py: ")):
        sys.exit(f"try {i}: status {code}: {err.getvalue()}\n" + "\n".join(lines))
    counts[code] = counts.get(code, 0) + 1
print(len(counts))
END
is "$rc $out" "0 2" "1500 random changes: commands, or a sentence" || printf '%s\n' "$err" | sed 's/^/# /'
done_testing
