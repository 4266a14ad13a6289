#!/bin/bash
# The EXAMPLES of the manual pages run: each command block, on small synthetic clips.  Blocks that need a GPU, weights, the
# network or Slurm are left out; children of share/exec are replaced by a toy model.
. "${0%/*}/lib.sh"

for c in curate bench pack train; do [ -x "$B/bin/vfm-$c" ] || skip_all "vfm-$c is not built"; done
toy=$B/tests/tools/toy_model
[ -x "$toy" ] || skip_all "needs $toy"
elsewhere='srun|sbatch|SLURM_|cuda|_nvenc|--vae|--text-encoder|aws |curl |urls\.|OpenVid|\.parquet'

# blocks PAGE: each command block of its EXAMPLES, followed by a line "---".
blocks() {
	awk '/^\.Sh / { on = /^\.Sh EXAMPLES/ } !on { next }
		/^\.Bd -literal/ { in_block = 1; next }
		/^\.Ed/ { in_block = 0; print "---"; next }
		sub(/^\.Dl /, "") { print; print "---"; next }
		in_block' "$1" | sed 's/\\e/\\/g; s/\\-/-/g; s/\\(dq/"/g; s/\\&//g'
}

# The files that the examples begin with, each in the folder that it has there: videos, the records of each stage, a
# dataset, a plan and two runs.
make_scene() {
	local i
	vfm-curate synth -q --count 6 -d raw --size 128x96 --frames 24 --seed 3 >synth.jsonl &&
		ffmpeg -v error -i raw/000000.mp4 -i raw/000001.mp4 -i raw/000002.mp4 \
			-filter_complex '[0][1][2]concat=n=3' raw/film.mp4 &&
		vfm-curate probe -q raw >videos.jsonl && vfm-curate split -q videos.jsonl >shots.jsonl &&
		vfm-curate clip -q -d clips shots.jsonl | vfm-curate caption -q --exec caption_vlm.py >clips.jsonl &&
		vfm-curate score -q clips.jsonl >scored.jsonl && vfm-curate hash -q clips.jsonl >hashed.jsonl &&
		vfm-curate embed -q --of clips,captions -d vectors --exec embed_clip.py clips.jsonl >embedded.jsonl &&
		vfm-curate encode -q -d latents clips.jsonl >encoded.jsonl &&
		vfm-curate shard -q -d data encoded.jsonl >shards.jsonl && vfm-pack -q --context 512 -b 16 --epochs 20 data >plan.jsonl &&
		tar -cf shards.tar --transform 's,.*/0*,,' raw/00000?.mp4 || return 1
	cp embedded.jsonl real.jsonl
	cp embedded.jsonl samples.jsonl
	head -n 4 hashed.jsonl >hashed-monday.jsonl
	tail -n 4 hashed.jsonl >hashed-tuesday.jsonl
	printf 'file,caption,views\nfilm.mp4,shapes that move,12\n000000.mp4,a square,\n' >videos.csv
	mkdir run-a run-b
	for i in {1..9}; do printf '{"v":1,"step":%d,"loss":%d.5,"lr":0.1}\n' "$i" $((10 - i)); done |
		tee run-a/metrics.jsonl >run-b/metrics.jsonl
}

# The benchmarks, once each instead of for seconds.
quick_bench() {
	cat <<-END
		#!/bin/bash
		case " \$* " in
		*' --predict '* | *' sim '* | ' launches '* | ' eval '* | ' plot '* | *' --list '*) ;;
		' matrix '*) set -- "\$@" --model dit-s --context 64 --seconds 0.001 --repeat 1 --warmup 0 ;;
		' step '* | ' sample '*) set -- "\$@" --seconds 0.001 --repeat 1 --warmup 0 ;;
		' cost '*) set -- "\$@" --seconds 0.1 --warmup 1 ;;
		' comm '*) set -- "\$@" --seconds 0.001 --repeat 1 ;;
		' calibrate '*) set -- "\$@" --tiny ;;
		' ops '* | ' loader '*) set -- "\$@" --repeat 1 ;;
		esac
		exec "$B/bin/vfm-bench" "\$@"
	END
}

mkdir bin scene && PATH=$PWD/bin:$PATH
for child in "$TOP"/share/exec/*.py; do
	printf '#!/bin/sh\nexec "%s"\n' "$toy" >"bin/${child##*/}" && chmod +x "bin/${child##*/}"
done
quick_bench >bin/vfm-bench && chmod +x bin/vfm-bench
(cd scene && make_scene) 2>io.log || { cat io.log >&2; exit 1; }

for page in "$TOP"/man/vfm-{curate,bench}*.1; do
	name=${page##*/} block='' tried=0
	case $name in *"${ONLY:-}"*) ;; *) continue ;; esac
	rm -rf here && cp -r scene here
	while IFS= read -r -u 3 line; do
		if [ "$line" != --- ]; then
			block+=$line$'\n'
			continue
		fi
		if ! grep -qE "$elsewhere" <<<"$block"; then
			! grep -q 'shard -d data' <<<"$block" || rm -rf here/data
			run env -C here timeout 120 bash -euo pipefail -c "$block"
			rc_is 0 "$name: ${block%%$'\n'*}"
			tried=1
		fi
		block=''
	done 3< <(blocks "$page")
	is "$tried" 1 "$name: an example runs here"
done
done_testing
