# shellcheck shell=bash
# data.sh - tiny.json, plan.jsonl and functions that compare runs.  Sourced after lib.sh.
[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
[ -x "$B/tests/unit/test_train" ] || skip_all "build/tests/unit/test_train, which makes the data, is not built (make check-unit)"
export OMP_NUM_THREADS=1 # eight ranks share what processors there are

"$B/tests/unit/test_train" make data || exit 1
vfm-pack -q --context 48 -b 8 --steps "${PLAN_STEPS:-20}" data >plan.jsonl || exit 1
cat >tiny.json <<'END'
{"model": {"layers": 4, "hidden": 32, "heads": 4, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.0003, "warmup_steps": 5, "ema_decay": 0.9},
 "ckpt": {"every": 0, "keep": 2}}
END
# shellcheck disable=SC2034 # for those who source it
train=(vfm-train -q -c tiny.json --data plan.jsonl)

# close A B N DESC: the first N lines of two metrics: the same steps, tokens, samples; losses to 1e-5.
close() {
	local bad
	bad=$(jq -s --slurpfile b "$2" --argjson n "$3" -r '. as $a | def off(x; y): ((x - y) / y) | fabs;
		if ($a | length) < $n or ($b | length) < $n then "\($a | length) and \($b | length) steps" else range($n) as $i |
			select(([$a[$i], $b[$i]] | map([.step, .lr, .tokens, .samples]) | unique | length) != 1 or
				off($a[$i].loss; $b[$i].loss) > 1e-5) |
			"\($a[$i].step): \($a[$i].loss) \($b[$i].loss)" end' "$1")
	is "$bad" "" "$4"
}
lines() { # FILE: 0 while it is not there
	if [ -e "$1" ]; then wc -l <"$1"; else echo 0; fi
}
has_lines() { # FILE N
	[ "$(lines "$1")" -ge "$2" ]
}
