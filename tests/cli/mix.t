#!/bin/bash
# vfm-pack: weights over steps, sets with a number of passes, subsets; what the header and stats say; what is refused.
. "${0%/*}/lib.sh"

{ vfm-curate synth --count 24 --seed 1 -d v >s.jsonl && vfm-curate encode --text bytes:16 -d lat <s.jsonl >e.jsonl &&
	records e.jsonl | head -16 | vfm-curate shard --max-samples 5 -d a && records e.jsonl | tail -8 | vfm-curate shard -d b; } >log 2>&1 ||
	skip_all "the dataset cannot be made: $(tail -1 log)"
tokens=$(records e.jsonl | head -1 | jq '.latent.shape | .[1] * .[2] * .[3] / 4')
pack() { vfm-pack --context $((4 * tokens)) --seed 3 "$@"; }
# share PLAN SET FROM END: the share of a set of the tokens of the steps FROM..END-1
share() {
	tail -n +2 "$1" | jq -s --argjson s "$2" --argjson from "$3" --argjson to "$4" \
		'map(select(.step >= $from and .step < $to) | .samples[]) | (map(select(.[0] == $s) | .[3]) | add // 0) / (map(.[3]) | add)'
}
near() { # GOT WANT DESC
	ok "$3 ($1, asked $2)" jq -en "($1 - $2) | fabs < 0.03"
}

# ---- weights over steps -----------------------------------------------------------
run pack -b 4 --steps 400 --blend a=0.8@0,0.2@200:a --blend b=0.2@0,0.8@200:b
rc_is 0 "weights that change"
printf '%s\n' "$out" >ramp
like "$err" "set a: .* 3[45]\.[0-9]*% of the tokens \(asked: 35.00%\)" "the report compares the shares of the plan"
near "$(share ramp 0 0 50)" 0.725 "the share at the beginning"
near "$(share ramp 0 100 150)" 0.425 "later"
near "$(share ramp 0 200 400)" 0.2 "and after the last step"
is "$(head -1 ramp | jq -c '[.steps, (.sets[] | .schedule, (.weight * 1000 | round))]')" \
	'[400,[[0,0.8],[200,0.2]],350,[[0,0.2],[200,0.8]],650]' "the header has the weights, and the shares of the whole plan"
pack -q -b 4 --steps 400 --blend a=0.8@0,0.2@200:a --blend b=0.2@0,0.8@200:b --format bin >ramp.bin
is "$(vfm-pack --check ramp.bin 2>&1 | grep -o 'sha256 .*')" "$(vfm-pack --check ramp 2>&1 | grep -o 'sha256 .*')" "the same in binary"
run vfm-pack stats ramp
like "$out" "from step +to +set +share +asked" "stats has a table by steps"
is "$(vfm-pack stats --format json ramp.bin | jq -c '[.ranges | length, .[0].from, .[0].to, .[9].to]')" "[10,0,39,399]" "ten ranges"
ok "whose shares are near those asked for" jq -e '[.ranges[].sets[] | (.share - .weight) | fabs < 0.03] | all' <(vfm-pack stats --format json ramp)
ok "a constant mix has none" jq -e 'has("ranges") | not' <(pack -q --steps 4 --blend a=1:a --blend b=1:b >flat && vfm-pack stats --format json flat)

pack -q -b 4 --steps 1K --blend a=1:a >/dev/null 2>&1 # --steps has no suffix
is "$?" 2 "--steps is a plain number"
pack -q -b 4 --steps 2000 --blend a=1@1K,0@1K:a --blend b=0@1K,1@1K:b >jump
is "$(share jump 0 0 998) $(share jump 1 1002 2000)" "1 1" "a jump: a set ends, another begins"
near "$(share jump 0 0 2000)" 0.5 "at its step"
pack -q -b 4 --steps 300 --phase x -o plans --blend a=1@0,0@300:a --blend b=1:b
ok "a stage has weights of its own" test "$(head -1 plans/x.jsonl | jq -c '.sets[0].schedule')" = '[[0,1],[300,0]]'

# ---- passes -----------------------------------------------------------------------
# counts PLAN SET: how often its samples occur
counts() {
	tail -n +2 "$1" | jq -c --argjson s "$2" '.samples[] | select(.[0] == $s) | .[:3]' | sort | uniq -c | awk '{ print $1 }' | sort | uniq -c |
		awk '{ printf "%s%s x %s", n++ ? "; " : "", $1, $2 }'
}
run pack -b 4 --steps 100 --blend a=3x:a --blend b=1:b
rc_is 0 "a set with three passes"
printf '%s\n' "$out" >three
is "$(counts three 0)" "16 x 3" "has each sample three times"
is "$(head -1 three | jq -c '.sets[0].passes')" 3 "the header says so"
near "$(share three 0 0 50)" "$(share three 0 0 100)" "evenly"
pack -q -b 4 --steps 100 --blend a=2.25x:a --blend b=1@0,0@100:b --blend c=0@0,1@100:b >quarter
is "$(counts quarter 0)" "12 x 2; 4 x 3" "and a quarter, while other weights change"
pack -q --blend a=2x:a --blend b=0.5x:b >both
is "$(counts both 0), $(counts both 1)" "16 x 2, 4 x 1" "all sets with passes: they are the plan"
pack -q --epochs 2 --blend a=2x:a --blend b=0.5x:b >both
is "$(counts both 0), $(counts both 1)" "16 x 4, 8 x 1" "and --epochs multiplies"

# ---- subsets ----------------------------------------------------------------------
numbers() { tail -n +2 "$1" | jq -c '.samples[] | .[1] * 5 + .[2]' | sort -n | paste -sd' '; }
run pack --subset a=3..7 a
rc_is 0 "--subset"
printf '%s\n' "$out" >part
is "$(numbers part)" "3 4 5 6" "of numbers"
like "$err" "4 of its 16 samples are selected" "is reported"
pack -q --subset a=14..end a >part
is "$(numbers part)" "14 15" "to the end"
pack -q --blend x=1x:a --subset x=50%..75% >part
is "$(numbers part)" "8 9 10 11" "of percentages, of a set of --blend"
is "$(head -1 part | jq -c '[.sets[0] | .records, .selected]')" "[16,4]" "the header tells the size"
pack -q --subset a=0..8 --held-out 0.4 --held-out-plan held a >part
is "$(cat <(numbers part) <(numbers held) | tr ' ' '\n' | sort -n | paste -sd' ')" "0 1 2 3 4 5 6 7" "with held-out data: both sides are of the subset"
ok "the loader reads it" vfm-bench loader -q -r 1 part

# ---- without packing: a pack has one sample, and its tokens vary --------------------------
run vfm-pack --context $((4 * tokens)) --algo none -b 2 --steps 40 --blend a=3x:a --blend b=1:b
rc_is 0 "passes besides a weight, without packing"
like "$err" "set a: 48 samples, 3.00 passes" "have their passes"
near "$(printf '%s\n' "$out" | head -1 | jq '.sets[0].weight')" "$(printf '%s\n' "$out" | sed 1d |
	jq -s 'map(.samples[]) | (map(select(.[0] == 0) | .[3]) | add) / (map(.[3]) | add)')" "the header has their share"

# ---- refused ----------------------------------------------------------------------
bad() {
	local want=${*: -1}
	run pack "${@:1:$#-1}"
	rc_is 2 "refused: ${*:1:$#-1}"
	like "$err" "$want" "and says why"
	is "$(wc -l <"$SCRATCH/io/err")" 1 "in one line"
	is "$out" "" "nothing on stdout"
}
bad --blend a=1@0,0@9:a --blend b=1:b "weights that change need --steps"
bad --blend a=1@0,0@9:a --blend b=1:b --steps 8 "set 'a': step 9 of its weights is beyond --steps 8"
bad --blend a=1@0,2:a --steps 8 "--blend a=1@0,2:a: expected WEIGHT@STEP, got '2'"
bad --blend a=1@5,2@4:a --steps 8 "step 4: expected steps in ascending order"
bad --blend a=1@0,1@0,2@0:a --steps 8 "step 0: more than two weights"
bad --blend a=0@0,0@5:a --steps 8 "the weight must be > 0"
bad --blend a=-1@0,1@5:a --steps 8 "expected a weight >= 0"
bad --blend a=1@0,0@4:a --blend b=0@4,1@8:b --max-passes a=1 --steps 8 "no set has a weight above 0 and any number of passes"
bad --blend a=1@0,0@4:a --blend b=0@6,1@8:b --steps 8 "after step 4 no set has a weight above 0"
bad --blend a=1x:a --blend b=1:b "sets with passes together with sets with weights need --steps"
bad --blend a=1x:a --steps 8 "which is the length of the plan"
bad --blend a=0x:a "the number of passes must be > 0"
bad --blend a=yx:a "expected a number"
bad --blend a=2x:a --blend b=1:b --steps 8 --max-passes a=1 "set 'a' has a number of passes"
bad --blend a=50x:a --blend b=1:b --steps 8 "the sets with passes have"
bad --subset x=0..1 a "--subset: expected NAME=A..B with the name of a set, got 'x=0..1'"
bad --subset a=0..17 a "set 'a': samples 0 to 17 of 16"
bad --subset a=1 a "--subset a=1: expected A..B"
bad --subset a=50%..40% a "'50%' is above '40%'"
bad --subset a=0..50% a "two numbers or two percentages"
bad --subset a=3..3 a "no usable samples"
bad --subset a=0..1 --subset a=1..2 a "has a subset already"
done_testing
