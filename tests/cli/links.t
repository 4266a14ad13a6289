#!/bin/bash
# What the commands load when they start: those that run on machines with GPUs need neither FFmpeg nor a database, and no command needs CUDA.
. "${0%/*}/lib.sh"

command -v ldd >/dev/null || skip_all "no ldd"
for c in vfm-train vfm-bench vfm-ckpt vfm-pack; do
	needs=$(ldd "$B/bin/$c")
	rc=$?
	is "$rc" 0 "$c is a program that ldd reads"
	unlike "$needs" 'lib(av|sw)[a-z]+|libsqlite3|libpmi[0-9x]*' "$c loads no FFmpeg, no sqlite, no Slurm"
done
for c in "$B"/bin/vfm-*; do
	empty "${c##*/} loads no CUDA and no FFmpeg at its start" \
		awk '/libcuda|libcublas|libcudnn|libnccl|libnvidia|lib(av|sw)[a-z]/' < <(ldd "$c")
done
# Only lib/media includes FFmpeg, and `make gpu` builds without the files that know it.
is "$(cd "$TOP" && make -s -n WITHOUT='ffmpeg sqlite text' B="$SCRATCH/none" 2>&1 | grep -oE '(lib/media/av/(av|video_in)[a-z_]*|energon|encoder/text/(clean_html|charsmap)|vfm-curate)\.c')" \
	"" "a build without FFmpeg, sqlite and text compiles nothing that includes their headers"
# The same build links: the objects of this one without those files, and with what stands for FFmpeg.
if nm "$B/bin/vfm-pack" 2>/dev/null | grep -qE '__(asan|ubsan|tsan)'; then
	skip 5 "a sanitizer changes the objects"
else
	mkdir objects
	(cd "$TOP" && grep -LE '<lib(av|sw)|media/av/av\.h|<sqlite3|<(utf8proc|gumbo)|<(cuda|cublas|cudnn|nccl)' lib/*/*.c lib/*/*/*.c) | while read -r f; do
		o=$B/${f%.c}.o
		[[ $f = */no_* ]] || [ ! -f "$o" ] || cp "$o" "objects/$(tr / - <<<"${o#"$B"/}")"
	done
	for absent in media/av/no_ffmpeg encoder/text/no_text; do
		ok "${absent##*/}.c compiles" gcc -std=c11 -D_GNU_SOURCE -I"$TOP/lib" -c -o "objects/${absent##*/}.o" "$TOP/lib/$absent.c"
	done
	ar rcs rest.a objects/*.o
	for c in vfm-train vfm-bench vfm-pack; do
		mapfile -t of < <(cd "$TOP" && find "cmd/$c" -name '*.c' | sed "s|.*|$B/&|; s|c\$|o|")
		ok "$c links without FFmpeg, sqlite and text" gcc -o linked "${of[@]}" rest.a -ljansson -lyaml -lz -lcrypto -lpthread -lm -ldl
	done
fi
done_testing
