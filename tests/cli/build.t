#!/bin/bash
# The Makefile: what each target builds, the architectures of the CUDA plugin, and the scripts that report the tests.
. "${0%/*}/lib.sh"

unset MAKEFLAGS MAKELEVEL MFLAGS CUDA_ARCHS CUDA_HOME WERROR
mk() { # prints what make would run, in a build folder of its own
	run make -C "$TOP" --no-print-directory -n V=1 B="$PWD/b" "$@"
}

mk demo CUDA_HOME=/opt/cuda
rc_is 0 "make demo"
unlike "$out" 'nvcc' "does not compile the CUDA plugin"
unlike "$out" 'cmocka' "and does not need cmocka"
like "$out" 'tests/tools/recognise' "it builds the recogniser"
mk check-quick CUDA_HOME=/opt/cuda
unlike "$out" 'nvcc|bin/vfm-|emu/' "make check-quick builds no command, no plugin and no emulation"
like "$out" 'tests/unit/test_tape' "but the unit tests"

# ---- CUDA_ARCHS ------------------------------------------------------------------
archs() { # ARG ...: "arch/code ..." for one kernel
	mk "$PWD/b/lib/device/cuda/kern/elem.cu.o" CUDA_HOME=/opt/cuda "$@"
	grep -o 'arch=compute_[^ ]*' <<<"$out" | sed 's/arch=compute_//; s/,code=/:/' | sort | paste -sd' '
}
mkdir gpu
nvidia_smi() { # LINE ...: what it prints
	printf '#!/bin/sh\ncat <<END\n%s\nEND\n' "$(printf '%s\n' "$@")" >gpu/nvidia-smi
	chmod +x gpu/nvidia-smi
}
PATH=$PWD/gpu:$PATH
nvidia_smi "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver 1.2.3."
is "$(archs)" "90a:sm_90a" "no GPU: sm_90a"
nvidia_smi 8.6
is "$(archs)" "80:sm_80" "an Ampere GPU"
nvidia_smi 8.9
is "$(archs)" "89:sm_89" "an Ada GPU"
nvidia_smi 12.0 12.1
is "$(archs)" "120:sm_120" "GeForce GPUs of Blackwell"
nvidia_smi 10.0 10.0
is "$(archs)" "100a:sm_100a" "two Blackwell GPUs"
nvidia_smi 9.0 13.0
is "$(archs)" "90:compute_90 90a:sm_90a" "a Hopper GPU and a later one: machine code and PTX"
is "$(archs CUDA_ARCHS="90a 80")" "80:sm_80 90a:sm_90a" "a list"
is "$(archs CUDA_ARCHS=all)" "100a:sm_100a 120:sm_120 80:sm_80 89:sm_89 90:compute_90 90a:sm_90a" "all"
mk help CUDA_HOME=/opt/cuda CUDA_ARCHS="80 75"
rc_is 2 "an unknown architecture"
like "$err" "CUDA_ARCHS: unknown architecture '75'" "is named"
run make -C "$TOP" --no-print-directory B="$PWD/b" CUDA_HOME=/opt/cuda CUDA_ARCHS=90a --eval='show: ; @echo "$$CUDA_ARCHS"' show
is "$out" 90a "a make within a test builds the same"
list=$PWD/b/cuda_archs
archs CUDA_ARCHS="80" >/dev/null
touch -d 2000-01-01 "$list"
archs CUDA_ARCHS="80" >/dev/null
ok "the same list again rebuilds nothing" test "$list" -ot "$TOP/Makefile"
archs CUDA_ARCHS="90a" >/dev/null
not_ok "another list rebuilds the kernels" test "$list" -ot "$TOP/Makefile"

# ---- tests/cuda/ptxas ------------------------------------------------------------
mkdir cuda
cp "$TOP/tests/cuda/ptxas" cuda/
says() { # TARGET REGISTERS SPILLS: the assembler's report of one kernel
	cat <<-END
		ptxas info    : Compiling entry function '_Z4axpyIfEvPT_' for '$1'
		    0 bytes stack frame, $3 bytes spill stores, 0 bytes spill loads
		ptxas info    : Used $2 registers, used 1 barriers, 32 bytes smem
	END
}
printf '# a note\n' >cuda/ptxas.txt
{ says sm_80 56 0; says sm_90a 30 0; } >a.ptxas
ok "ptxas -w" cuda/ptxas -w a.ptxas
is "$(tr -s ' ' <cuda/ptxas.txt)" "# a note
axpy sm_80 56 32 0 0
axpy sm_90a 30 32 0 0" "writes a line for each kernel and architecture"
says sm_90a 40 0 >b.ptxas
run cuda/ptxas b.ptxas
rc_is 0 "one of two architectures, with one step of registers more"
is "$out" "ok   ptxas: 1 passed, 0 failed, kernels as listed for sm_90a" "is compared, and named"
says sm_90a 41 0 >b.ptxas
run cuda/ptxas b.ptxas
rc_is 1 "more registers than on this architecture"
like "$out" "FAIL axpy, sm_90a: 41 registers, the list allows 40" "although another has as many"
says sm_90a 30 8 >b.ptxas
run cuda/ptxas b.ptxas
rc_is 1 "spills"
says sm_100a 30 8 >b.ptxas
run cuda/ptxas b.ptxas
rc_is 1 "spills on an architecture that is not in the list"
says sm_90a 24 0 >b.ptxas
cuda/ptxas -w b.ptxas
is "$(grep -v '^#' cuda/ptxas.txt | tr -s ' ')" "axpy sm_80 56 32 0 0
axpy sm_90a 24 32 0 0" "-w keeps the lines of the other architectures"

# ---- tests/run_tests.sh, tests/parts.sh --------------------------------------------
program() { # NAME STATUS LINE ...: a test program
	{
		echo '#!/bin/sh'
		printf 'echo "%s"\n' "${@:3}"
		echo "exit $2"
	} >"$1"
	chmod +x "$1"
}
good='[       OK ] one' bad='[  FAILED  ] two'
program good 0 "$good" "skip: no such CPU"
program bad 1 "$good" "$bad" "[  FAILED  ] 1 test(s), listed below:" "$bad"
program dead 139 "$good"
run "$TOP/tests/run_tests.sh" ./good
rc_is 0 "run_tests.sh: a program that passes"
like "$out" "^skip: no such CPU
ok   good: 1 passed, 0 failed, [0-9.]+ s$" "its skips and its line"
run "$TOP/tests/run_tests.sh" ./good ./bad ./dead
rc_is 1 "run_tests.sh: programs that fail"
like "$out" "FAIL bad: 1 passed, 1 failed, [0-9.]+ s, status 1" "failed tests are counted"
like "$out" "FAIL dead: 1 passed, 1 failed, [0-9.]+ s, status 139" "a program that dies has failed"
like "$out" "two" "its output is shown"

cat >t.t <<'END'
#!/bin/sh
echo ok 1
echo "$T_TWO"
echo 1..2
END
chmod +x t.t
printf '%s\n' 'units: ; @'"$TOP"'/tests/run_tests.sh ./good ./dead' 'fine: ; @'"$TOP"'/tests/run_tests.sh ./good' \
	'taps: ; @prove --timer ./t.t' 'rows: ; @echo "7 rows, 2 failed, 3 s; differences"; false' 'quiet: ; @true' 'check-build: ; @false' >Makefile
export MAKE='make --no-print-directory' LOGS=logs
T_TWO="ok 2" run "$TOP/tests/parts.sh" fine taps quiet
rc_is 0 "parts.sh: parts that pass"
is "$(tail -n 1 <<<"$out")" "4 passed, 0 failed" "the last line counts; a part without tests is one"
like "$out" "taps +[0-9]+" "the seconds of a part"
like "$out" "t\.t +[0-9.]+" "and of a file"
T_TWO="not ok 2" run "$TOP/tests/parts.sh" units taps rows fine
rc_is 1 "parts.sh: parts that fail"
is "$(tail -n 2 <<<"$out")" "failed: units taps rows
9 passed, 4 failed" "the others run; all are counted"
run "$TOP/tests/parts.sh" check-build fine
is "$(tail -n 2 <<<"$out")" "failed: check-build
0 passed, 1 failed" "without a build nothing runs"
done_testing
