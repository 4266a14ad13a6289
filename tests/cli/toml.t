#!/bin/bash
# Files that people write, in JSON, YAML and TOML: the same document in each form is the same, and faults are named with file and line.
. "${0%/*}/lib.sh"

[ -x "$B/bin/vfm-train" ] || skip_all "vfm-train is not built"
python3 -c 'import tomllib' 2>/dev/null || python3 -c 'import tomli' 2>/dev/null || skip_all "python3 has no tomllib (3.11) or tomli"
# to_toml: JSON objects of objects as TOML; a value of JSON is one of TOML, but for objects and null
to_toml() {
	jq -r 'def value: if type == "object" then "{" + ([to_entries[] | "\(.key | tojson) = \(.value | value)"] | join(", ")) + "}"
		elif type == "array" then "[" + (map(value) | join(", ")) + "]" else tojson end;
		to_entries[] | "[\(.key)]", (.value | to_entries[] | "\(.key) = \(.value | value)"), ""'
}

# ---- vfm-train -c
cat >c.json <<'END'
{"model": {"preset": "dit-b", "layers": 16, "patch": [1, 2, 2], "qk_norm": true},
 "train": {"lr": 2e-4, "schedule": "cosine", "steps": 1e6, "seed": 8999999999999999},
 "data": {"captions": {"short": 1, "long": 2.5}}}
END
cat >c.yaml <<'END'
# a run
model:
  preset: dit-b   # 12 layers
  layers: 16
  patch: [1, 2, 2]
  qk_norm: true
train: {lr: 2e-4, schedule: cosine, steps: 1e6, seed: 8999999999999999}
data:
  captions: {short: 1, long: 2.5}
END
cat >c.toml <<'END'
# a run
model.preset = "dit-b"   # 12 layers
model.layers = 0x10
model.patch = [1, 2,
  2]
model.qk_norm = true

[train]
lr = 2e-4
'schedule' = 'cosine'
steps = 1_000_000
seed = 8999999999999999

[data.captions]
short = 1
long = 2.5
END
vfm-train -c c.json --print-config >want.json || exit 1
is "$(jq -cS '[.model.layers, .train.lr, .data.captions]' want.json) $(grep -c 8999999999999999 want.json)" '[16,0.0002,{"long":2.5,"short":1}] 1' "a configuration"
ok "in YAML it is the same" cmp want.json <(vfm-train -c c.yaml --print-config)
ok "in TOML it is the same" cmp want.json <(vfm-train -c c.toml --print-config)
sed 's/$/\r/' c.toml >crlf.toml
ok "with the line ends of Windows, too" cmp want.json <(vfm-train -c crlf.toml --print-config)
to_toml <want.json >all.toml
ok "every key of --print-config can be read as TOML" cmp want.json <(vfm-train -c all.toml --print-config)
: >empty.toml
ok "an empty file is a configuration without keys" cmp <(vfm-train --print-config) <(vfm-train -c empty.toml --print-config)
ok "the reader is found in PATH first" env PATH="$TOP/share/exec:$PATH" vfm-train -c c.toml --print-config

bad() { # TEXT REGEX DESC
	printf '%b' "$1" >bad.toml
	run vfm-train -c bad.toml --print-config
	is "$rc $(wc -l <"$SCRATCH/io/err") ${#out}" "2 1 0" "$3: status 2, one line"
	like "$err" "^vfm-train: $2$" "$3: which says it"
}
bad '[train]\nlr = 1\nlr = 2\n' "'bad.toml', line 3: Cannot overwrite a value" "a key twice"
bad '[train]\nlr = 1\n\n[train]\n' "'bad.toml', line 4: Cannot declare .* twice" "a section twice"
bad '[train\n' "'bad.toml', line 1: .*" "a bracket that is missing"
bad '[train]\nname = "x' "'bad.toml', line 2: Unterminated string" "a text without end"
bad '\n[train]\nlr = nan\n' "'bad.toml', line 3: train.lr: nan is not a finite number" "nan"
bad '[train]\nlr = -inf\n' "'bad.toml', line 2: train.lr: -inf is not a finite number" "inf"
bad '[train]\nlr = 1e999\n' "'bad.toml', line 2: train.lr: inf is not a finite number" "a number that is too large"
bad '[train]\nsteps = 9223372036854775808\n' "'bad.toml', line 2: train.steps: an integer beyond 64 bits" "an integer beyond 64 bits"
bad '[train]\nlr = 1979-05-27\n' "'bad.toml', line 2: train.lr: a date or time; write it as a text, in quotes" "a date"
bad '[train]\nlr = 07:32:00\n' "'bad.toml', line 2: train.lr: a date or time.*" "a time"
bad '[train]\nlr = "a\\u0000"\n' "'bad.toml', line 2: train.lr: a text with a zero byte" "a zero byte"
bad '[train]\n\xff = 1\n' "'bad.toml', line 2: not UTF-8" "no UTF-8"
bad "a = $(printf '%040d' 0 | tr 0 '[')$(printf '%040d' 0 | tr 0 ']')" "'bad.toml', line 1: a(\[0\])+: nested too deeply" "40 levels"
bad "a = $(printf '%05000d' 0 | tr 0 '[')" "'bad.toml'.*: .*" "5000 levels"
bad '[model]\nlayer = 1\n' "bad.toml: unknown key 'model.layer' \(did you mean 'model.layers'\?\)" "an unknown key"
bad '"train.lr" = 1e-4\n' "bad.toml: train.lr: expected an object \(a section\); a key is within its section: .*" "a quoted key with a dot"
echo '{"train.lr": 1e-4}' >dot.json
run vfm-train -c dot.json --print-config
like "$rc $err" "^2 .*dot.json: train.lr: expected an object \(a section\); a key is within its section" "as in JSON"
run env PATH="$B/bin" "$B/bin/vfm-train" -c c.toml --print-config
like "$rc $err" "^3 vfm-train: 'c.toml': the reader of TOML, config_toml.py, exited with status 127: .*python3" "without Python"
truncate -s 2M big.toml
run vfm-train -c big.toml --print-config
like "$rc $err" "^2 .*'big.toml' is too large" "a large file"

# ---- ranks and phases read it once
if [ -x "$B/tests/unit/test_train" ]; then
	tiny_data 2 4
	echo '{"model": {"layers": 1, "hidden": 16, "heads": 2, "channels": 4, "text_dim": 8}}' >tiny.json
	to_toml <tiny.json >tiny.toml
	run vfm-train -q -n 2 -c tiny.toml --data plan.jsonl -o two
	rc_is 0 "two ranks"
	run vfm-train -q -n 2 -c <(cat tiny.json) --data plan.jsonl -o piped
	rc_is 0 "two ranks, with a configuration that can be read once"
	ok "and the same result" cmp two/config.json piped/config.json
	run vfm-train -q -n 2 -c bad.toml --data plan.jsonl -o no
	is "$rc $(wc -l <"$SCRATCH/io/err")" "2 1" "a fault is said once"
fi

# ---- other files
printf '[[stages]]\nstage = "probe"\n[[stages]]\nstage = "filter"\nmin = ["duration=1"]\n' >p.toml
printf 'stages:\n- {stage: probe}\n- stage: filter\n  min: [duration=1]\n' >p.yaml
echo '{"stages": [{"stage": "probe"}, {"stage": "filter", "min": ["duration=1"]}]}' >p.json
for f in json yaml toml; do
	run vfm-curate run -c p.$f -d run --print-pipeline clips
	rc_is 0 "a pipeline in $f"
	is "$(jq -c '[.stages[].stage]' <<<"$out")" '["probe","filter"]' "has its stages"
	cp "$SCRATCH/io/out" pipeline.$f
	ok "and is the same as in JSON" cmp pipeline.$f pipeline.json
done
cp "$TOP/share/machines/h100-dgx.json" m.json
jq -r 'to_entries[] | "\(.key): \(.value | tojson)"' m.json >m.yaml
jq -r 'def value: if type == "object" then "{" + ([to_entries[] | "\(.key | tojson) = \(.value | value)"] | join(", ")) + "}"
	elif type == "array" then "[" + (map(value) | join(", ")) + "]" else tojson end; to_entries[] | "\(.key) = \(.value | value)"' m.json >m.toml
for f in json yaml toml; do
	vfm-train --dry-run --model dit-s --steps 10 --machine ./m.$f 2>&1 | sed "s/m\.$f/m/" >dry.$f
	ok "a machine in $f" cmp dry.$f dry.json
done
ok "which is predicted" grep -q "^fits" dry.json
done_testing
