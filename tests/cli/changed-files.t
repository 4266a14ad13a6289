#!/bin/bash
# Files that another process changes while a command uses them; standard descriptors that are closed.
. "${0%/*}/lib.sh"

tiny_data 2 4000
cat >tiny.json <<'END2'
{"model": {"layers": 1, "hidden": 16, "heads": 2, "channels": 4, "text_dim": 8}, "ckpt": {"every": 0}}
END2
cp plan.jsonl plan.keep
cp -r data data.keep

# change_while_training NAME CMD ...: starts a run, stops it after some steps, runs CMD, and lets it continue.
change_while_training() {
	local name=$1 pid
	shift
	rm -rf "$name" data plan.jsonl steps
	cp -rp data.keep data && cp -p plan.keep plan.jsonl
	vfm-train -q -c tiny.json --data plan.jsonl ${ranks:+-n "$ranks"} -o "$name" >steps 2>"$SCRATCH/io/err" &
	pid=$!
	wait_for 60 written steps $pid
	pkill -STOP -P $pid
	kill -STOP $pid
	sleep 0.05
	"$@"
	kill -CONT $pid
	pkill -CONT -P $pid
	wait $pid
	rc=$?
	err=$(cat "$SCRATCH/io/err")
}

truncate_plan() { : >plan.jsonl; }
change_digit() { # FILE: other bytes, the same size
	local at
	at=$(($(wc -c <"$1") - 3000))
	dd if="$1" of=half bs=1 skip=$at count=2000 status=none
	tr 0123456789 1234567890 <half | dd of="$1" bs=1 seek=$at conv=notrunc status=none
}
change_plan() { change_digit plan.jsonl; }
append_to_plan() { echo '{}' >>plan.jsonl; }
touch_all() { touch plan.jsonl data/index.vfmi; }
replace_all() {
	cp plan.jsonl p && cp data/index.vfmi i && printf x >>p && printf x >>i
	mv p plan.jsonl && mv i data/index.vfmi
}
change_index() { printf x | dd of=data/index.vfmi bs=1 seek=300 conv=notrunc status=none; }
truncate_index() { : >data/index.vfmi; }

run vfm-train -q -c tiny.json --data plan.jsonl -o ref
rc_is 0 "an undisturbed run"
want=$(vfm-ckpt hash ref | awk 'NR == 2 { print $1 }')

change_while_training cut truncate_plan
rc_is 3 "a plan that is truncated"
like "$err" "plan.jsonl.*truncated while it was in use|plan.jsonl' changed while it was in use" "the file is named"
change_while_training digits change_plan
rc_is 3 "a plan that is rewritten in place"
like "$err" "'plan.jsonl' changed while it was in use" "the plan is named"
change_while_training longer append_to_plan
rc_is 3 "a plan that grows"
like "$err" "'plan.jsonl' changed while it was in use: it had [0-9]+ bytes, now it has [0-9]+" "with its sizes"
change_while_training touched touch_all
rc_is 0 "new modification times"
is "$(vfm-ckpt hash touched | awk 'NR == 2 { print $1 }')" "$want" "the weights are those of the undisturbed run"
change_while_training replaced replace_all
rc_is 0 "files that are replaced by rename"
is "$(vfm-ckpt hash replaced | awk 'NR == 2 { print $1 }')" "$want" "the weights are those of the undisturbed run"
change_while_training index change_index
rc_is 3 "an index that is rewritten in place"
like "$err" "'data/index.vfmi' changed while it was in use" "the index is named"
change_while_training noindex truncate_index
rc_is 3 "an index that is truncated"
like "$err" "data/index.vfmi.*while it was in use" "the index is named"

remove_run() { rm -rf gone; }
move_run() { mv moved elsewhere; }
change_while_training gone remove_run
rc_is 3 "a run whose folder is removed"
like "$err" "'gone/metrics.jsonl' was removed or replaced during the run" "says so"
not_ok "and does not make the folder again" test -e gone
change_while_training moved move_run
rc_is 3 "a run whose folder is moved"
not_ok "does not make the folder again" test -e moved
ranks=2
change_while_training ranks truncate_plan
rc_is 3 "two ranks, and a plan that is truncated"
like "$err" "rank [01]: .*plan.jsonl.*while it was in use" "rank and file are named"

# ---- closed descriptors -----------------------------------------------------------
rm -rf data plan.jsonl
cp -r data.keep data && cp plan.keep plan.jsonl
vfm-train -q -c tiny.json --data plan.jsonl --steps 20 -o all >/dev/null
(vfm-train -c tiny.json --data plan.jsonl --steps 20 -o none <&- >&- 2>&-)
is $? 3 "a run without stdin, stdout and stderr cannot print its steps"
(vfm-train -c tiny.json --data plan.jsonl --steps 20 -o noerr <&- >/dev/null 2>&-)
is $? 0 "a run without stdin and stderr"
ok "no message is in its metrics" jq -es 'length == 20' noerr/metrics.jsonl
is "$(vfm-ckpt hash noerr | awk 'NR == 2 { print $1 }')" "$(vfm-ckpt hash all | awk 'NR == 2 { print $1 }')" "the weights are the same"
ok "and the checkpoint is good" vfm-ckpt check noerr
(vfm-curate encode -d lat <&- >&- 2>&-)
is $? 3 "a stage without stdin"
vfm-curate synth -q --count 4 --size 32x32 --frames 8 -d clips >clips.jsonl
(vfm-curate encode -d lat clips.jsonl <&- >&-) 2>err
is $? 3 "a stage without stdout"
like "$(cat err)" "cannot write the records: Bad file descriptor" "says that it cannot write"
(vfm-curate encode -d lat2 clips.jsonl 2>&- <&- | vfm-curate shard -d two 2>&- >two.jsonl)
ok "a dataset that was made without stderr is good" vfm-curate verify two
is "$(count two.jsonl)" 4 "and complete"

done_testing
