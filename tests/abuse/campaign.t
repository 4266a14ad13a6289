#!/bin/bash
# campaign.t - random faults in every stage of the pipeline, from clips to samples, for ABUSE_S seconds (120).
#
# Each try copies the reference pipeline, removes the output of one stage, and repeats this stage under one fault.  Then it
# checks the invariants:
#
#   status    0, 1, 2, 3 or 75, or that of the signal that the campaign sent; a failure has a message
#   success   status 0 means that the output equals the reference bit for bit
#   resume    after the fault is undone, the same command (with --done or --resume) ends with the output of the reference
#   loss      no record is lost or doubled, and no temporary file stays
#
# A try follows from its seed: `ABUSE_SEED=123 ABUSE_TRIES=1 tests/abuse/campaign.t` repeats the try that printed 123, apart
# from the time at which a signal arrives.  ABUSE_STAGE=shard and ABUSE_FAULT=kill restrict the choice; KEEP=1 keeps all files.
. "${0%/*}/../cli/lib.sh"

export OMP_NUM_THREADS=1
ABUSE_S=${ABUSE_S:-120} ABUSE_TRIES=${ABUSE_TRIES:-100000}
seed=${ABUSE_SEED:-$((EPOCHSECONDS * 1000))}
STEPS=30 log=$SCRATCH/io/log
toy=$SCRATCH/toy_model # a name of its own, for pgrep
cp "$B/tests/tools/toy_model" "$toy"

# ---- the stages -------------------------------------------------------------------
# stage_NAME AGAIN: runs a stage in the current folder; AGAIN: empty, or that an earlier run may have left a part of the output.

# records FILE AGAIN CMD ARG ...: the output of CMD into FILE; again: with the finished records of FILE.
records() {
	local file=$1 again=$2
	shift 2
	if [ -n "$again" ] && [ -e "$file" ]; then
		mv "$file" "$file.before"
		exec "$@" --done "$file.before" >"$file"
	fi
	exec "$@" >"$file"
}
stage_probe() { records probe.jsonl "$1" vfm-curate probe -q -j 2 clips; }
stage_score() { records score.jsonl "$1" vfm-curate score -q -j 2 probe.jsonl; }
stage_bucket() { records bucket.jsonl "$1" vfm-curate bucket -q -j 2 --sizes 32x32 --frames 4,8 score.jsonl; }
stage_clip() { records clip.jsonl "$1" vfm-curate clip -q -j 2 -d cut --size bucket --fps 8 bucket.jsonl; }
stage_encode() { records encode.jsonl "$1" vfm-curate encode -q -j 2 -d latents --text bytes:16 captions.jsonl; }
stage_outside() {
	mkdir -p shm
	export VFM_EXEC_TMP=$PWD/shm
	records outside.jsonl "$1" vfm-curate encode -q -j 2 -d outside --exec "$toy" --text-exec "$toy -b 2" captions.jsonl
}
stage_decode() { records decode.jsonl "$1" vfm-curate decode -q -j 2 -d decoded --codec ffv1 encode.jsonl; }
stage_shard() { exec vfm-curate shard -q -d data --max-samples 5 ${1:+--resume} encode.jsonl >shard.jsonl; }
# --update repeats the records that failed under the fault
stage_pipeline() { exec vfm-curate run -q -j 2 -c pipeline.json -d piped ${1:+--update}; }
stage_pack() { exec vfm-pack -q --context 64 -b 2 --steps $STEPS data >plan.jsonl; }
stage_train() { exec vfm-train -q -c model.json --data plan.jsonl -o run >steps.jsonl; }
stage_ranks() { exec vfm-train -q -c model.json --data plan.jsonl -n 2 --set parallel.fsdp=true -o ranks >steps2.jsonl; }
stage_sample() { exec vfm-sample -q --ckpt run --size 32x32 --frames 8 --steps 3 -d samples --format npy -p "a red square" -p "" >samples.jsonl; }

STAGES=(probe score bucket clip encode outside decode shard pipeline pack train ranks sample)

# outputs STAGE: the files and folders that it makes.
outputs() {
	case $1 in
	clip) echo clip.jsonl cut ;;
	encode) echo encode.jsonl latents ;;
	outside) echo outside.jsonl outside ;;
	decode) echo decode.jsonl decoded ;;
	shard) echo shard.jsonl data ;;
	pipeline) echo piped ;;
	pack) echo plan.jsonl ;;
	train) echo run steps.jsonl ;;
	ranks) echo ranks steps2.jsonl ;;
	sample) echo samples samples.jsonl ;;
	*) echo "$1.jsonl" ;;
	esac
}

# inputs STAGE: the files whose damage must not change the output unnoticed.
inputs() {
	case $1 in
	encode | outside | clip | pipeline) find clips -name '*.mp4' ;;
	decode) find latents -name '*.latent.npy' ;;
	shard) find latents -name '*.npy' ;;
	pack) echo data/index.vfmi ;;
	train) find data -name '*.tar' && echo data/index.vfmi ;;
	ranks) find data -name '*.tar' && echo data/index.vfmi ;;
	sample) find run/ckpt -type f -path "*$(basename "$(ls -d run/ckpt/step-* | tail -n 1)")*" ;;
	esac
}

weights_of() { vfm-ckpt hash "$1" | awk 'NR == 2 { print $1 }'; }

# same STAGE: prints how the output differs from the reference; nothing if it does not.
same() {
	local r=../ref
	case $1 in
	probe | score | bucket) cmp "$1.jsonl" "$r/$1.jsonl" ;;
	clip) cmp clip.jsonl $r/clip.jsonl && diff -rq cut $r/cut ;;
	encode) cmp encode.jsonl $r/encode.jsonl && diff -rq latents $r/latents ;;
	decode) cmp decode.jsonl $r/decode.jsonl && diff -rq decoded $r/decoded ;;
	outside)
		cmp outside.jsonl $r/outside.jsonl && diff -rq outside $r/outside
		for _ in {1..60}; do [ -n "$(ls shm)" ] && sleep 0.05; done
		ls shm # neither arrays nor children stay
		pgrep -f "$toy"
		;;
	shard) # a resumed dataset begins a new shard
		diff <(jq -r .id shard.jsonl | sort) <(jq -r .id $r/shard.jsonl | sort)
		diff <(cat data/*.tar | tar -ti --ignore-zeros | sort) <(cat $r/data/*.tar | tar -ti --ignore-zeros | sort)
		vfm-curate verify -q data >verify.jsonl || cat verify.jsonl
		;;
	pipeline)
		for s in 00-probe 01-score 02-filter 03-clip 04-encode; do cmp "piped/$s.jsonl" "$r/piped/$s.jsonl"; done
		diff -rq piped/clips $r/piped/clips && diff -rq piped/latents $r/piped/latents
		diff <(cat piped/data/*.tar | tar -ti --ignore-zeros | sort) <(cat $r/piped/data/*.tar | tar -ti --ignore-zeros | sort)
		vfm-curate verify -q piped/data >verify.jsonl || cat verify.jsonl
		;;
	pack) cmp plan.jsonl $r/plan.jsonl ;;
	train | ranks)
		local run=run
		[ "$1" = train ] || run=ranks
		[ "$(weights_of $run 2>&1)" = "$(weights_of $r/$run)" ] || echo "the weights of $run differ"
		[ "$(jq .step $run/metrics.jsonl | tr '\n' ' ')" = "$(seq -s ' ' $STEPS) " ] || echo "the steps of $run differ"
		diff <(jq -c '[.step, .loss]' $run/metrics.jsonl) <(jq -c '[.step, .loss]' $r/$run/metrics.jsonl) | head -n 4
		vfm-ckpt check -q $run || echo "vfm-ckpt check finds faults"
		;;
	sample) diff -rq samples $r/samples && cmp samples.jsonl $r/samples.jsonl ;;
	esac 2>&1
	find . -name '*.vfm-tmp*' -o -name 'step-*.tmp'
}

# ---- faults -----------------------------------------------------------------------
# Each fault_NAME STAGE runs the stage, sets rc, writes its stderr into the file $log, and undoes the fault.

pick() { # N: sets n to a random number from 0 to N-1
	n=$(((RANDOM * 32768 + RANDOM) % $1))
}

# start STAGE [AGAIN]: in a process group of its own, in the background.
start() {
	set -m
	("stage_$1" "${2:-}") 2>"$log" </dev/null &
	pid=$!
	set +m
}
finish_stage() {
	wait $pid 2>/dev/null
	rc=$?
}
# members: the processes of the stage.
members() { pgrep -g $pid; }

signal_at_random() { # STAGE SIGNAL
	local ms
	pick $((${took[$1]} * 5 / 4 + 5))
	ms=$n
	what="$what after $ms ms"
	start "$1"
	sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
	kill "-$2" -- -$pid 2>/dev/null
}
fault_kill() {
	signal_at_random "$1" KILL
	finish_stage
}
fault_terminate() {
	signal_at_random "$1" TERM
	finish_stage
}
fault_pause() {
	signal_at_random "$1" STOP
	sleep 0.2
	kill -CONT -- -$pid 2>/dev/null
	finish_stage
}
# One process of the stage: a rank, or the parent of the ranks.
fault_kill_one() {
	local list
	signal_at_random "$1" 0
	mapfile -t list < <(members)
	if [ ${#list[@]} -gt 0 ]; then
		pick ${#list[@]}
		what="$what (process $n of ${#list[@]})"
		kill -KILL "${list[n]}" 2>/dev/null
	fi
	finish_stage
}
fault_close() { # a standard descriptor
	pick 3
	what="$what descriptor $n"
	: >"$log"
	case $n in
	0) ("stage_$1" "") 2>"$log" <&- ;;
	1) (sed "s/^stage_$1 *()/closed ()/" <<<"$(declare -f "stage_$1")" >fn && . ./fn && closed "" >&-) 2>"$log" ;;
	2) ("stage_$1" "") 2>&- </dev/null ;;
	esac
	rc=$?
	[ $n != 2 ] || echo "(closed)" >"$log"
}
fault_descriptors() {
	pick 30
	what="$what of $((n + 4))"
	(ulimit -n $((n + 4)) && "stage_$1" "") 2>"$log" </dev/null
	rc=$?
}
fault_memory() { # MiB
	pick 300
	what="$what of $((n + 20)) MiB"
	(ulimit -v $(((n + 20) * 1024)) && "stage_$1" "") 2>"$log" </dev/null
	rc=$?
}
fault_file_size() { # KiB: writing fails with EFBIG; the log needs one
	pick 100
	what="$what of $((n + 1)) KiB"
	(ulimit -f $((n + 1)) && "stage_$1" "") 2>"$log" </dev/null
	rc=$?
}
fault_full_disk() { # the stage runs in a small file system
	local kib
	pick 400
	kib=$((n + 50 + $(du -sk . | cut -f 1)))
	what="$what, $((n + 50)) KiB free"
	mkdir ../small && mount -t tmpfs -o "size=${kib}k" none ../small || return
	cp -a . ../small/
	(cd ../small && "stage_$1" "") 2>"$log" </dev/null
	rc=$?
	# The partial output stays, on a disk with space.
	rm -rf ./* && cp -a ../small/. .
	umount ../small && rmdir ../small
}
# damage STAGE CMD ...: CMD changes an input, whose name and size are appended.
damage() {
	local stage=$1 files file
	shift
	mapfile -t files < <(inputs "$stage")
	pick ${#files[@]}
	file=${files[n]}
	what="$what $file"
	cp -p "$file" victim
	"$@" "$file" "$(stat -c %s "$file")"
	("stage_$stage" "") 2>"$log" </dev/null
	rc=$?
	mv victim "$file"
}
cut_file() {
	pick "$2"
	what="$what at byte $n"
	truncate -s "$n" "$1"
}
flip_bit() {
	local at byte
	pick "$2"
	at=$n
	pick 8
	what="$what at byte $at, bit $n"
	byte=$(od -An -tu1 -j "$at" -N 1 "$1")
	printf "%b" "\\x$(printf %02x $((byte ^ (1 << n))))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}
fault_truncate() { damage "$1" cut_file; }
fault_flip() { damage "$1" flip_bit; }
# The newest checkpoint of a half of the run is damaged.
fault_checkpoint() {
	local run=run files file newest
	[ "$1" = train ] || run=ranks
	start "$1"
	while kill -0 $pid 2>/dev/null && [ ! -d "$(printf '%s/ckpt/step-%08d' $run $((STEPS * 2 / 3)))" ]; do sleep 0.01; done
	kill -KILL -- -$pid 2>/dev/null
	finish_stage
	newest=$(find $run/ckpt -maxdepth 1 -name 'step-*[0-9]' | sort | tail -n 1)
	mapfile -t files < <(find "$newest" -type f | sort)
	pick ${#files[@]}
	file=${files[n]}
	what="$what $file"
	pick 2
	if [ "$n" = 0 ]; then cut_file "$file" "$(stat -c %s "$file")"; else flip_bit "$file" "$(stat -c %s "$file")"; fi
	if vfm-ckpt check -q "$newest" >check.out 2>&1; then wrong+=("vfm-ckpt check finds no fault"); fi
	("stage_$1" "") 2>"$log" </dev/null
	rc=$?
	[ $rc = 0 ] || wrong+=("no fallback from a damaged checkpoint: status $rc")
}
fault_twice() { # two processes write the same output
	start "$1"
	("stage_$1" again) 2>/dev/null </dev/null
	finish_stage
}

# faults STAGE: those that apply.
faults() {
	echo kill kill kill terminate pause close descriptors memory file_size
	[ -z "$can_mount" ] || echo full_disk
	case $1 in
	encode | outside | clip | decode | shard | pack | sample) echo truncate flip ;;
	pipeline) echo truncate flip twice kill_one kill_one kill_one ;;
	train) echo truncate flip twice checkpoint checkpoint ;;
	ranks) echo truncate flip twice checkpoint kill_one kill_one kill_one ;;
	esac
}

# ---- a try ------------------------------------------------------------------------
wrong=()
signalled() { # whether the status is that of a signal that the campaign sent
	case $fault in
	kill | kill_one | checkpoint) [ "$rc" = 137 ] ;;
	terminate) [ "$rc" = 143 ] ;;
	*) false ;;
	esac
}
check_status() {
	case $rc in
	0) ;;
	1 | 2 | 3 | 75)
		[ -s "$log" ] || grep -qs '"error"' ./*.jsonl piped/*.jsonl || wrong+=("status $rc without a message")
		;;
	127) grep -q "loading shared libraries" "$log" || wrong+=("status $rc") ;; # the limit applies to the loader, too
	*) signalled || wrong+=("status $rc") ;;
	esac
	! grep -qE 'Sanitizer|internal:|Assertion' "$log" || wrong+=("$(head -n 3 "$log")")
}
check_success() {
	local diff list
	[ "$rc" = 0 ] || return
	# A decoder conceals damage of a clip: the output is a good one of another input.
	case $stage:$fault in encode:flip | encode:truncate | outside:flip | outside:truncate | clip:flip | clip:truncate | pipeline:flip | pipeline:truncate)
		read -ra list < <(outputs "$stage")
		rm -rf "${list[@]}"
		return
		;;
	esac
	diff=$(same "$stage")
	[ -z "$diff" ] || wrong+=("status 0, but: $diff")
}
check_resume() {
	local diff again_rc
	("stage_$stage" again) 2>"$log.again" </dev/null
	again_rc=$?
	[ $again_rc = 0 ] || wrong+=("the stage cannot be repeated: status $again_rc: $(head -c 500 "$log.again")")
	[ $again_rc != 0 ] || diff=$(same "$stage")
	[ -z "${diff-}" ] || wrong+=("after it was repeated: $diff")
}
try() {
	local list
	RANDOM=$seed
	pick ${#STAGES[@]}
	stage=${ABUSE_STAGE:-${STAGES[n]}}
	read -ra list < <(faults "$stage" | tr '\n' ' ')
	pick ${#list[@]}
	fault=${ABUSE_FAULT:-${list[n]}}
	wrong=() what=$fault rc=0
	rm -rf ../try && cp -a ../ref ../try && cd ../try || exit 1
	read -ra list < <(outputs "$stage")
	rm -rf "${list[@]}"
	"fault_$fault" "$stage"
	check_status
	check_success
	check_resume
	cd ../ref || exit 1
	report "$([ ${#wrong[@]} = 0 ]; echo $?)" "seed $seed: $stage: $what" "status $rc" "${wrong[@]}" "stderr: $(head -c 1000 "$log")" || failed_tries+=("$seed")
}

# ---- the reference ----------------------------------------------------------------
mkdir ref && cd ref || exit 1
cat >model.json <<END2
{"model": {"layers": 2, "hidden": 32, "heads": 2, "text_dim": 16},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0.9}, "ckpt": {"every": 5, "keep": 3},
 "data": {"max_damaged": 0}}
END2
cat >pipeline.json <<END2
{"inputs": ["clips"],
 "stages": [{"stage": "probe"}, {"stage": "score"}, {"stage": "filter", "max": ["black_ratio=0.9"]},
            {"stage": "clip", "dir": "piped/clips", "size": "32x32", "fps": 8},
            {"stage": "encode", "dir": "piped/latents", "text": "bytes:16"},
            {"stage": "shard", "dir": "piped/data", "max-samples": 5}]}
END2
vfm-curate synth -q --count 12 -d clips --size 48x48 --frames 9 --fps 8 >synth.jsonl || exit 1
declare -A took
for s in "${STAGES[@]}"; do
	t0=${EPOCHREALTIME/./}
	("stage_$s" "") 2>"$log" </dev/null || { cat "$log" && exit 1; }
	took[$s]=$(((${EPOCHREALTIME/./} - t0) / 1000))
	# The text of a caption is not in its clip.
	[ "$s" != clip ] || jq -c '. + {caption: "clip \(.id)"}' clip.jsonl >captions.jsonl
done
can_mount=
[ "$(id -u)" != 0 ] || { mkdir ../small && mount -t tmpfs -o size=64k none ../small 2>/dev/null && umount ../small && can_mount=1; rmdir ../small; }
[ -n "$can_mount" ] || echo "# no full disks: this user cannot mount a file system" >&2

failed_tries=()
for ((k = 0; k < ABUSE_TRIES && (k == 0 || SECONDS < ABUSE_S); k++)); do
	try
	seed=$((seed + 1))
done
[ ${#failed_tries[@]} = 0 ] || echo "# repeat with ABUSE_TRIES=1 ABUSE_SEED= one of: ${failed_tries[*]}" >&2
done_testing
