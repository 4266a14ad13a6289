#!/bin/bash
# What the commands load when they start: those that run on machines with GPUs need neither FFmpeg nor a database, and no command needs CUDA.
. "${0%/*}/lib.sh"

command -v ldd >/dev/null || skip_all "no ldd"
for c in vfm-train vfm-bench vfm-ckpt vfm-pack; do
	needs=$(ldd "$B/bin/$c")
	rc=$?
	is "$rc" 0 "$c is a program that ldd reads"
	is "$(grep -oE 'lib(av|sw)[a-z]+|libsqlite3|libpmi[0-9x]*' <<<"$needs")" "" "$c loads no FFmpeg, no sqlite, no Slurm"
done
for c in "$B"/bin/vfm-*; do
	is "$(ldd "$c" | grep -oE 'libcuda|libcublas|libcudnn|libnccl|libnvidia|lib(av|sw)[a-z]+')" "" "${c##*/} loads no CUDA and no FFmpeg at its start"
done
# Only lib/media includes FFmpeg, and `make gpu` builds without the files that know it.
is "$(cd "$TOP" && make -s -n WITHOUT='ffmpeg sqlite dnnl text' B="$SCRATCH/none" 2>&1 | grep -oE '(lib/media/(av|video_in)[a-z_]*|energon|cpu_gemm_dnnl|encoder/(clean_html|charsmap)|vfm-curate)\.c')" \
	"" "a build without FFmpeg, sqlite, oneDNN and text compiles nothing that includes their headers"
done_testing
