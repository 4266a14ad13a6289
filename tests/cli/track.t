#!/bin/bash
# vfm-train --track and share/track: every record is sent once, whatever is killed, stalls or resumes; and nothing waits for it.
. "${0%/*}/lib.sh"

command -v python3 >/dev/null || skip_all "python3 is not installed"
tiny_data 2 120
cat >tiny.json <<'END'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.003, "warmup_steps": 5, "schedule": "cosine"}, "ckpt": {"every": 10, "keep": 20}}
END
vfm-pack -q --context 48 -b 2 --steps 4000 data >long.jsonl # some seconds
train=(vfm-train -q -c tiny.json --data plan.jsonl)
track=$TOP/share/track
stand_in="python3 $TOP/tests/tools/stand_in_tracker.py"

# points FILE: [attempt, step, loss, norm] that the stand-in received; recorded RUN ATTEMPT [FIRST]: those of a run from a step on
points() { jq -c 'select(.point) | [.point, .step, .values.loss, .values.grad_norm]' "$1"; }
recorded() { jq -c --argjson a "$2" --argjson n "${3-1}" 'select(.step >= $n) | [$a, .step, .loss, .grad_norm]' "$1/metrics.jsonl"; }
ends() { jq -r 'select(.close) | .end.status // "none"' "$1" | xargs; }
once() { # FILE RUN DESC
	ok "$3: each step once, in order, with its results" cmp <(points "$1") <(recorded "$2" 1)
}
gone() { ! kill -0 "$1" 2>/dev/null; }
pid_of() { jq -r 'select(.open) | .pid' "$1" | tail -n 1; }
has_step() { [ "$(jq -s 'map(.step // 0) | max' "$1" 2>/dev/null || echo 0)" -ge "$2" ]; }

# ---- a whole run
run "${train[@]}" -o whole --track "$stand_in --out whole.out"
rc_is 0 "a run with a tracker"
is "$err" "" "nothing is said about a tracker that works"
ok "stdout is still the records" cmp "$SCRATCH/io/out" whole/metrics.jsonl
once whole.out whole "a whole run"
is "$(jq -c 'select(.point).values' whole.out)" "$(jq -c 'del(.v, .step) | with_entries(select(.value | type == "number"))' whole/metrics.jsonl)" \
	"every number of a record is sent by its key"
is "$(head -n 2 whole.out | jq -c 'del(.pid)')" '{"open":1,"name":"whole","nice":10,"layers":2}
{"start":1,"resumed":false}' "it knows name and configuration, and has a low priority"
is "$(tail -n 1 whole.out | jq -c .)" "$(jq -c '{close: 1, end: .}' whole/end.json)" "it sends the end of the run last"
is "$(jq -c 'del(.time)' whole/end.json)" '{"v":1,"status":"done","step":120,"steps":120}' "which end.json tells"
like "$(cat whole/track/stand_in_tracker.py.log)" "sent up to step 120; the run: done" "its output is in a log"
run $stand_in --out whole.out whole
like "$rc $err" "^0 .*were sent before" "started again, it has nothing to send"
once whole.out whole "and sends nothing"
run "${train[@]}" -o whole --track "$stand_in --out whole.out"
is "$rc $(ends whole.out)" "0 done done" "a start with no steps left has an end of its own"

# ---- by hand
run $stand_in --out hand.out whole/
is "$rc" 0 "a tracker by hand, after the run"
once hand.out whole "by hand"
mkdir -p whole/samples/step-00000050 whole/samples/step-00000120
touch whole/samples/step-00000050/{00-aa.mp4,01-bb.png,00-aa.npy} whole/samples/step-00000120/{a.mp4,b.png}
for sample in 50/00-aa.mp4:cat 120/a.mp4:dog; do
	step=${sample%%/*} file=${sample#*/}
	jq -nc --arg src "whole/samples/step-00000$(printf %03d "$step")/${file%:*}" --arg text "a ${file#*:}" \
		'{v: 1, id: "sample-000000", caption: $text, prompt: {caption: $text}, src: $src}' >"whole/samples/step-00000$(printf %03d "$step")/samples.jsonl"
done
run $stand_in --out samples.out --name other whole
is "$(jq -c 'select(.point and .samples != {}) | [.step, .samples]' samples.out)" '[50,{"00-aa.mp4":"a cat","01-bb.png":"01-bb"}]
[120,{"a.mp4":"a dog","b.png":"b"}]' "samples go with their step, with prompts"
is "$(jq -r 'select(.open).name' samples.out)" other "--name"
mkdir levels && cp whole/config.json levels
cat >levels/metrics.jsonl <<'END'
{"v":1,"step":1,"stage":"levels","loss":null,"grad_norm":2,"mfu":null}
{"v":1,"step":2,"stage":"levels","loss":1.5,"held_out_loss":0.5,"held_out_levels":[0.25,null,0.75],"previews":"samples/step-00000002"}
END
echo '{"v":1,"status":"stopped","step":2,"steps":9,"message":"why","time":1.5}' >levels/end.json
run $stand_in --out levels.out levels
is "$(jq -c 'select(.point) | .values' levels.out | xargs -n 1 echo)" "$(xargs -n 1 echo <<<'{"grad_norm":2} {"loss":1.5,"held_out_loss":0.5,"held_out_levels/00":0.25,"held_out_levels/02":0.75}')" \
	"elements of arrays have keys of their own; null is not sent"
is "$(jq -r 'select(.open).name' levels.out) $(ends levels.out)" "work/levels stopped" "a phase has the name of its run, too"
run $stand_in --out x.out nothing
like "$rc $err" "^2 .*'nothing' is not a run: there is no metrics.jsonl$" "a folder without a run"
mkdir cut && head -c -30 whole/metrics.jsonl >cut/metrics.jsonl && cp whole/config.json cut && sed -i '7s/"step"/"st/' cut/metrics.jsonl
run $stand_in --idle 0 --out cut.out cut
is "$rc $(points cut.out | jq -s -c '[length, .[5][1], .[6][1]]') $(ends cut.out)" "0 [118,6,8] killed" "a damaged line is left out, and one without end is not read"
like "$err" "'.*/cut/metrics.jsonl': a damaged line at byte [0-9]+ is not sent" "and named"
printf '%s\n' "$(tail -c 30 whole/metrics.jsonl)" >>cut/metrics.jsonl && cp whole/end.json cut
run $stand_in --out cut.out cut
is "$rc $(points cut.out | tail -n 1 | jq -c '.[1]') $(points cut.out | wc -l) $(ends cut.out)" "0 120 119 killed done" "once it is complete, it is sent"
run $stand_in --out whole.out whole
rm -r whole/samples

# ---- what is refused, and what fails
run "${train[@]}" -o no --track 'no-such-tracker --x'
is "$rc $err" "2 vfm-train: --track: there is no program 'no-such-tracker'" "no such program"
not_ok "and nothing is written" test -e no
run "${train[@]}" -o no --track "a 'b"
like "$rc $err" "^2 .*--track: the command 'a 'b' has an open '" "an open quote"
run vfm-train --dry-run --track x
like "$rc $err" "^2 .*--track: not with --dry-run" "not with --dry-run"
run "${train[@]}" -o usage --track "track_webhook.py --url ftp://x"
is "$rc $(wc -l <"$SCRATCH/io/err")" "0 1" "a tracker that does not start does not stop the run"
like "$err" "warning: the tracker track_webhook.py exited with status 2, which another start would not change: see usage/track/track_webhook.py.log; the run goes on without it" "which says so in one line"
like "$(cat usage/track/track_webhook.py.log)" "expected a URL of http or https" "the log says why; the program is found in share/track"

# ---- killed in the middle: before a step is sent, and after it is sent but not noted
for how in at after; do
	run "${train[@]}" -o "crash$how" --track "$stand_in --out crash$how.out --crash-$how 40"
	is "$rc $(wc -l <<<"$err")" "0 1" "a tracker that kills itself $how step 40: the run is done, with one line"
	like "$err" "warning: the tracker stand_in_tracker.py was killed by SIGKILL \(crash$how/track/stand_in_tracker.py.log\); it (starts again in 10 s|continues when it is started again)" "about it"
	run $stand_in --out "crash$how.out" "crash$how"
	is "$rc $(ends "crash$how.out")" "0 done" "another start continues, that of the run or that by hand"
	once "crash$how.out" "crash$how" "killed $how a step"
done

# ---- signals of the trainer
start() { # RUN ARG ...: in the background, from the first step on
	local run=$1
	shift
	"${train[@]}" -o "$run" "$@" >"$run.steps" 2>"$run.err" &
	pid=$!
	wait_for 60 written "$run.steps" "$pid"
}
start slow --data long.jsonl --track "$stand_in --out slow.out --slow 0.001"
wait_for 60 written slow.out "$pid"
kill -TERM "$pid"
wait "$pid"
is "$? $(jq -r .status slow/end.json)" "75 stopped" "SIGTERM"
is "$(ends slow.out)" stopped "the tracker still sends the end"
once slow.out slow "after SIGTERM"
run "${train[@]}" -o slow --data long.jsonl --steps 600 --allow-change schedule --track "$stand_in --out slow.out"
rc_is 0 "the run goes on"
once slow.out slow "after a resume"

# A tracker that does not end: the run waits for it for a limited time, which another signal ends.
cat >stuck.sh <<'END'
#!/bin/sh
trap '' TERM
echo $$ >stuck.pid
sleep 1000 & echo $! >>stuck.pid
wait
wait
sleep 1000
END
chmod +x stuck.sh
vfm-train -c tiny.json --data plan.jsonl -o stuck --track ./stuck.sh >/dev/null 2>stuck.err &
pid=$!
ok "a tracker that does not end: the run says that it waits" wait_for 60 grep -q "waiting up to 60 s for the tracker stuck.sh to send the end of the run" stuck.err
kill -INT $pid
wait $pid
is "$?" 0 "another signal ends the wait, and the run is done"
like "$(tail -n 1 stuck.err)" "warning: the tracker stuck.sh is stopped before it has sent all of 'stuck'; it continues when it is started again" "one line says what is missing"
ok "and its processes are gone" gone "$(cat stuck.pid)"
for p in $(cat stuck.pid); do ok "process $p is gone" wait_for 10 gone "$p"; done

# ---- kill -9 of the trainer: the tracker ends with it; repeated steps are not sent twice
kills=0 t_end=$((SECONDS + 30))
while [ $kills -lt 6 ] && [ $SECONDS -lt $t_end ]; do
	start killed --track "$stand_in --out killed.out --slow 0.01"
	wait_for 20 has_step killed.out $((kills * 12 + 5))
	tracker=$(pid_of killed.out)
	kill -9 $pid 2>/dev/null
	wait $pid 2>/dev/null
	[ $? = 137 ] || break
	kills=$((kills + 1))
	ok "kill $kills: the tracker is killed, too" wait_for 10 gone "$tracker"
done
run "${train[@]}" -o killed --track "$stand_in --out killed.out"
is "$rc" 0 "after $kills kills the run goes on to the end"
once killed.out killed "after $kills kills"
is "$(jq -r 'select(.start).start' killed.out | wc -l)" "$(ends killed.out | wc -w)" "a killed process has not sent an end, so the start is not repeated"

# ---- a resume with other results: no attempt has two values of a step
run "${train[@]}" -o other --steps 40 --set train.schedule=constant --track "$stand_in --out other.out"
cp -r other before
rm -r other/ckpt/step-0000004* other/ckpt/step-0000003*
run "${train[@]}" -o other --steps 60 --set train.schedule=constant --set train.seed=7 --track "$stand_in --out other.out"
rc_is 0 "a resume before the last step that was sent, with another seed"
ok "the first attempt has the first results, the second all since the checkpoint" cmp <(points other.out) \
	<(recorded before 1 && recorded other 2 21)
is "$(jq -c 'select(.close) | [.close, .end.status]' other.out | xargs)" '[1,done] [1,replaced] [2,done]' "the first attempt ends as replaced"
rm -r other/ckpt other/metrics.jsonl
run "${train[@]}" -o other --steps 3 --set train.schedule=constant --set train.seed=9 --track "$stand_in --out other.out"
is "$rc $(points other.out | tail -n 3 | jq -c '.[:2]' | xargs)" "0 [3,1] [3,2] [3,3]" "a run from the first step on is an attempt, too"

# ---- ranks and phases
run "${train[@]}" -n 2 -o ranks --steps 20 --set train.schedule=constant --track "$stand_in --out ranks.out"
is "$rc $err" "0 " "two ranks"
once ranks.out ranks "two ranks"
is "$(jq -c 'select(.open)' ranks.out | wc -l)" 1 "they have one tracker"
cp -r data bad && dd if=/dev/zero of=bad/000000.tar bs=512 seek=4 count=8 conv=notrunc 2>/dev/null && vfm-pack -q --context 48 -b 2 --steps 120 bad >bad.jsonl
for n in 1 2; do
	run vfm-train -q -n $n -c tiny.json --data bad.jsonl -o lost$n --track "$stand_in --out lost$n.out"
	is "$(jq -r .status lost$n/end.json)" failed "a run of $n ranks that fails with status $rc"
	like "$(jq -r .message lost$n/end.json)" "samples are damaged, more than" "end.json says why"
	is "$(ends lost$n.out)" failed "the tracker sends it"
done
vfm-pack -q --phase small:context=48,batch=2,steps=6 --phase large:context=96,batch=1,steps=6 -o plans data 2>phase.err
if [ -f plans/stages.json ]; then
	run vfm-train -q -c tiny.json --phases plans/stages.json -o phased --track "$stand_in --out \$RUN.out"
	run vfm-train -q -c tiny.json --phases plans/stages.json -o phased2 --track "$stand_in --out phased.out"
	is "$rc $(jq -r 'select(.open).name' phased.out | sort | xargs)" "0 phased2/large phased2/small" "each phase is a run: RUN/PHASE"
fi

# ---- the webhook
echo 200 >mode
serve() { python3 "$TOP/tests/tools/hook_server.py" hooked port mode "$@" & server=$!; kill_at_end $server; wait_for 20 test -s port; }
serve
port=$(cat port) url=http://127.0.0.1:$(cat port)/hook
hook="track_webhook.py --timeout 0.5 --every 30"
export VFM_WEBHOOK=$url
distinct() { jq -c '[.event, .id, .step]' "$1" | awk '!seen[$0]++' | jq -r '"\(.[0]) \(.[2])"' | xargs; }
all="start 0 step 30 step 60 step 90 step 120 end 120"
run "${train[@]}" -o hook --track "$hook"
is "$rc $err" "0 " "a webhook"
is "$(distinct hooked)" "$all" "the start, every 30th step and the end are posted"
is "$(jq -c 'select(.event == "step").metrics' hooked)" "$(jq -c 'select(.step % 30 == 0) | del(.v, .step) | with_entries(select(.value | type == "number"))' hook/metrics.jsonl)" "with all numbers"
is "$(jq -c 'select(.event == "start").config' hooked)" "$(jq -c . hook/config.json)" "and the configuration"
is "$(jq -r 'select(.event == "end") | .text' hooked)" "hook: done after step 120" "and a sentence"
rm hooked
run "$track/track_webhook.py" --every 1000 levels
is "$rc $(jq -c '[.event, .step, .text, .status]' hooked | tail -n 2 | xargs)" "0 [step,2,work/levels: step 2, loss 1.5, held out loss 0.5,null] [end,2,work/levels: stopped after step 2: why,stopped]" \
	"an evaluation is posted at any step"
unlike "$(cat hook/track/*.json hook/track/*.log)" "127.0.0.1" "the URL, which may be a secret, is in no file"
for fault in stall 503 cut late; do
	rm -f hooked mode.seen
	echo $fault >mode
	"${train[@]}" -o "hook$fault" --track "$hook" >/dev/null 2>"hook$fault.err" &
	pid=$!
	ok "$fault: the server has the first request" wait_for 30 test -s mode.seen
	ok "$fault: the run goes on to its end meanwhile" wait_for 60 test -s "hook$fault/end.json"
	echo 200 >mode
	wait $pid
	is "$? $(cat "hook$fault.err")" "0 " "$fault: once the server is well, all is sent before the limit"
	is "$(distinct hooked)" "$all" "$fault: each event is received"
done
rm -f hooked port
kill $server && wait $server 2>/dev/null
"${train[@]}" -o gone --track "$hook" >/dev/null 2>gone.err &
pid=$!
ok "no server: the run goes on" wait_for 60 test -s gone/end.json
ok "the tracker tries again" wait_for 30 grep -q "Connection refused; again in" gone/track/track_webhook.py.log
serve "$port"
wait $pid
is "$? $(distinct hooked)" "0 $all" "the server returns: all is sent"
for code in 404 302; do
	echo $code >mode && rm -f hooked
	run "$track/track_webhook.py" gone --every 50 --name again --url "$url/$code"
	like "$rc $err" "^1 .*start of step 0: the server answers $code" "an answer of $code ends the tracker"
	echo 200 >mode
	run "$track/track_webhook.py" gone --every 50 --name again --url "$url/$code"
	is "$rc $(distinct hooked)" "0 start 0 step 50 step 100 end 120" "and another start sends all"
done

# ---- the libraries
is_long() { # BYTES PATTERN of folders, which need not exist yet
	# shellcheck disable=SC2086
	[ "$(du -sb --exclude=files $2 | awk '{ n += $1 } END { print n }')" -gt "$1" ]
}
echo "a red square" >prompts.txt
python_has() { python3 -c "import $1" 2>/dev/null; }
if python_has wandb; then
	export WANDB_MODE=offline
	run "${train[@]}" -o wandb --prompts prompts.txt --track "track_wandb.py --project films"
	is "$rc $err" "0 " "Weights & Biases, offline"
	is "$(cd wandb/track/wandb && echo offline-run-*/files/media/videos/samples/*.mp4 | wc -w)" 1 "and the sample"
	ok "each number of each step is in the log of wandb" python3 "$TOP/tests/tools/track_read.py" wandb wandb -
	start wkill --data long.jsonl --track track_wandb.py
	ok "a log with some steps" wait_for 60 is_long 50000 'wkill/track/wandb/offline-run-*'
	ok "kill -9 of the trainer" kill -9 $pid
	wait $pid 2>/dev/null
	run "${train[@]}" -o wkill --data long.jsonl --track track_wandb.py
	rc_is 0 "after kill -9"
	ok "each number is there once" python3 "$TOP/tests/tools/track_read.py" wandb wkill - resumed
	cp -r wkill wlost && rm -r wlost/track
	"$track/track_wandb.py" wlost >wlost.log 2>&1 &
	pid=$!
	wait_for 60 is_long 20000 'wlost/track/wandb/offline-run-*'
	ok "kill -9 of the tracker" kill -9 $pid
	wait $pid 2>/dev/null
	ok "a tracker that was killed by hand" "$track/track_wandb.py" wlost
	ok "loses and repeats nothing" python3 "$TOP/tests/tools/track_read.py" wandb wlost -
else
	skip 1 "the Python package wandb is not installed"
fi
if python_has mlflow; then
	export MLFLOW_ALLOW_FILE_STORE=true MLFLOW_TRACKING_URI=file:$PWD/mlruns
	run "${train[@]}" -o mlflow --prompts prompts.txt --track "track_mlflow.py --experiment films"
	is "$rc $err" "0 " "MLflow, in files"
	is "$(find mlruns -path '*/samples/step-*' -type f | sed 's,.*/,,' | sort | tr '\n' ' ')" "00-a-red-square.mp4 samples.jsonl " "and the sample with its record"
	ok "each number of each step is in MLflow, and the configuration" python3 "$TOP/tests/tools/track_read.py" mlflow mlflow films
	start mkill --data long.jsonl --track "track_mlflow.py --experiment kill"
	ok "some steps" wait_for 60 is_long 20000 'mlruns/*/*/metrics'
	ok "kill -9 of the trainer" kill -9 $pid
	wait $pid 2>/dev/null
	run "${train[@]}" -o mkill --data long.jsonl --track "track_mlflow.py --experiment kill"
	rc_is 0 "after kill -9"
	ok "each number is there once" python3 "$TOP/tests/tools/track_read.py" mlflow mkill kill resumed
else
	skip 1 "the Python package mlflow is not installed"
fi
done_testing
