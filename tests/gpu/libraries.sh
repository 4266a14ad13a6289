# shellcheck shell=bash disable=SC2154
# libraries.sh - finds the CUDA libraries, of the system or of Python packages.  tests/gpu/run includes it; $python, $deps
# and $G are set.

# Prints the folders of the Python packages nvidia-*: nvidia/cu13, nvidia/cudnn, nvidia/nccl …
python_roots() {
	"$python" -c '
import glob, os
try:
    import nvidia
    print(*sorted(d for p in nvidia.__path__ for d in glob.glob(os.path.join(p, "*")) if os.path.isdir(d)))
except ImportError:
    pass' 2>/dev/null
}

# Prints the folders of headers and libraries as make variables.
cuda_vars() {
	local nvcc home roots root lib inc incs='' libs='' want
	nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || return
	home=$(dirname "$(dirname "$(realpath "$nvcc")")")
	roots="$home $home/targets/x86_64-linux /usr $(python_roots)"
	for want in cuda_runtime_api.h:cudart cublasLt.h:cublasLt cudnn.h:cudnn_graph nccl.h:nccl; do
		for root in $roots; do
			for inc in "$root/include" "$root/include/x86_64-linux-gnu"; do
				for lib in "$root/lib64" "$root/lib" "$root/lib/x86_64-linux-gnu"; do
					[ -e "$inc/${want%:*}" ] && ls "$lib/lib${want#*:}".so* >/dev/null 2>&1 || continue
					case " $incs " in *" $inc "*) ;; *) incs="$incs $inc" ;; esac
					case " $libs " in *" $lib "*) ;; *) libs="$libs $lib" ;; esac
					continue 4
				done
			done
		done
		echo "run: no folder has both ${want%:*} and lib${want#*:}.so" >&2
	done
	for inc in $(for root in $roots; do echo "$root/include" "$root/extras/CUPTI/include"; done); do
		[ ! -e "$inc/cupti.h" ] || { echo "CUPTI_INC=$inc"; break; }
	done
	# Omit the default search path, which would change the order.
	incs=$(for inc in $incs; do case $inc in /usr/include*) ;; *) echo "$inc" ;; esac; done)
	echo "CUDA_HOME=$home"
	echo "CUDA_INC=$(echo $incs)"
	echo "CUDA_LIBDIR=$(echo $libs)"
}

# Prints a search path: the build's own libraries, those of CUDA, then $1.
library_path() {
	local dirs='' dir want
	for want in cublasLt cudnn_graph nccl nvrtc; do
		for dir in $(for root in $(python_roots); do echo "$root/lib"; done) /usr/local/cuda*/lib64 \
			/usr/local/cuda/targets/x86_64-linux/lib /usr/lib/x86_64-linux-gnu; do
			ls "$dir/lib$want".so.* >/dev/null 2>&1 || continue
			# the loader appends the default path itself
			case ":$dirs:/usr/lib/x86_64-linux-gnu:" in *":$dir:"*) ;; *) dirs=$dirs${dirs:+:}$dir ;; esac
			break
		done
	done
	echo "$G/lib${deps:+:$(realpath "$deps")/lib}${dirs:+:$dirs}${1:+:$1}"
}

# Prints the path of libcupti.
cupti() {
	local dir
	for dir in $(tr ':' ' ' <<<"$libraries") /usr/local/cuda/extras/CUPTI/lib64 \
		$(for root in $(python_roots); do echo "$root/lib"; done); do
		ls "$dir"/libcupti.so* 2>/dev/null
	done | head -1
}
