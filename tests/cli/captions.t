#!/bin/bash
# Several captions of a sample: records, shards, verify, --resume, and the choice in training.
. "${0%/*}/lib.sh"
export PYTHONPATH=$TOP/tests/tools PYTHONDONTWRITEBYTECODE=1
for tool in jq python3; do command -v $tool >/dev/null || skip_all "no $tool"; done

vfm-curate synth -q --count 12 -d syn | records >syn.jsonl
# Two captions each; the second record has one, the third a third name alone.
jq -c 'if input_line_number == 2 then . elif input_line_number == 3 then .caption = {only: "x"}
	else .caption = {short: "a shape", long: (.caption + ", slowly, on a dark background")} end' syn.jsonl >named.jsonl
run_stage vfm-curate encode -q -d enc --text bytes:32 named.jsonl
rc_is 0 "encode takes named captions"
printf '%s\n' "$out" >enc.jsonl
id=$(head -1 enc.jsonl | jq -r .id)
is "$(head -1 enc.jsonl | jq -c '[.text | keys, (.captions | keys), (.captions.short | keys)]')" \
	'[["captions","maker"],["long","short"],["caption_sha256","dtype","path","sha256","shape"]]' "text.captions"
is "$(head -1 enc.jsonl | jq -c '.text.captions | [.short.path, .short.shape, .long.shape]')" \
	"[\"enc/$id.text.short.npy\",[2,32],[12,32]]" "a file for each caption"
is "$(head -1 enc.jsonl | jq -r .text.captions.short.sha256)" "$(sha256sum <"enc/$id.text.short.npy" | cut -c-64)" "bound by sha256"
is "$(head -1 enc.jsonl | jq -r .text.captions.short.caption_sha256)" "$(printf 'a shape' | sha256sum | cut -c-64)" "to its caption"
is "$(sed -n 2p enc.jsonl | jq -r '.text.path')" "enc/$(sed -n 2p enc.jsonl | jq -r .id).text.npy" "a single caption as before"
ok "the embedding is that of the caption alone" cmp "enc/$id.text.short.npy" \
	"$(head -1 syn.jsonl | jq -c '.caption = "a shape"' | vfm-curate encode -q -d alone --text bytes:32 | records | jq -r .text.path)"
run_stage vfm-curate encode -d enc --text bytes:32 --done enc.jsonl named.jsonl
like "$err" "12 were done already" "--done copies them"
rm "enc/$id.text.long.npy"
run_stage vfm-curate encode -d enc --text bytes:32 --done enc.jsonl named.jsonl
like "$err" "11 were done already" "--done: but not if a file is gone"
for bad in '{}' '{"Short":"a"}' '{"":"a"}' '{"a.b":"a"}' '{"a":1}' '7' '{"a/../b":"x"}' '{"abcdefghijabcdefghijabcdefghijab":"x"}'; do
	run_stage vfm-curate encode -d hostile <<<"$(head -1 syn.jsonl | jq -c ".caption = $bad")"
	is "$rc $(jq -r .error <<<"$out" | grep -c '^caption')" "1 1" "bad captions: $bad"
done
empty "no file is written for them" find hostile -name '*.text*'
run_stage vfm-curate encode -d hostile <<<"$(head -1 syn.jsonl | jq -c '.caption = ([range(17) | {("n\(.)"): "x"}] | add)')"
is "$rc $(jq -r .error <<<"$out")" "1 caption: 17 captions, expected 1 to 16" "17 captions"

run_stage vfm-curate shard -d data --max-samples 5 enc.jsonl
rc_is 0 "shard"
printf '%s\n' "$out" >data.jsonl
unlike "$err" "no sha256" "all of it is bound"
is "$(tar -tf data/000000.tar | head -4 | tr '\n' ' ')" "$id.latent.npy $id.text.long.npy $id.text.short.npy $id.json " "members"
is "$(tar -xOf data/000000.tar "$id.json" | jq -c '[.. | .path? // empty]')" "[]" "no paths in the json"
meta() {
	local at bytes
	at=$(od -An -tu8 -j80 -N8 "$1/index.vfmi" | tr -d ' ')
	bytes=$(od -An -tu4 -j88 -N4 "$1/index.vfmi" | tr -d ' ')
	tail -c +$((at + 1)) "$1/index.vfmi" | head -c "$bytes"
}
is "$(meta data | jq -c .texts)" '["long","short","","only"]' "the names are in the index"
ok "verify likes it" vfm-curate verify data
ok "Energon's database has all parts" python3 - "$id" <<'END'
import sqlite3, sys
q = sqlite3.connect("data/.nv-meta/index.sqlite").execute(
    "SELECT part_name FROM samples JOIN sample_parts USING (tar_file_id, sample_index) WHERE sample_key = ? ORDER BY 1", sys.argv[1:])
assert [r[0] for r in q] == ["json", "latent.npy", "text.long.npy", "text.short.npy"]
END
cp -r data keep
run_stage vfm-curate shard -d data --max-samples 5 --resume enc.jsonl
ok "--resume changes nothing" diff -r data keep
is "$out" "$(cat data.jsonl)" "and gives the same records"

# Digests, of each text and caption.
run_stage vfm-curate shard -d edited <<<"$(head -1 enc.jsonl | jq -c '.caption.short = "other"'; sed -n 4p enc.jsonl | jq -c 'del(.caption.short)'
	sed -n 5p enc.jsonl | jq -c '.text.captions |= {long: .short, short: .long}'
	sed -n 6p enc.jsonl | jq -c '.text.captions.long.sha256 = .text.captions.short.sha256' | sed 's/x/x/')"
is "$rc $(jq -r .error <<<"$out" | sed 's/enc.*npy is/FILE is/; s/sha256 is.*//')" "1 the text was made from another caption (text.captions.short.caption_sha256)
the text was made from another caption (text.captions.short.caption_sha256)
the text was made from another caption (text.captions.long.caption_sha256)
FILE is not the file of this record: its " "captions and texts that were edited"
mkdir m && tar -xf data/000000.tar -C m
remake() { # the shard from the files in m
	rm -rf broken && mkdir broken
	(cd m && tar -cf ../broken/000000.tar $(tar -tf ../data/000000.tar | while read -r f; do [ -e "$f" ] && echo "$f"; done))
	run_stage vfm-curate shard -q -d broken --resume /dev/null
}
remake
rc_is 0 "the members again"
cp "m/$id.text.short.npy" save
cp "m/$id.text.long.npy" "m/$id.text.short.npy"
remake
like "$err" "\('$id'\): text.short.npy is not the file of this record" "a text of another caption"
rm "m/$id.text.short.npy"
remake
like "$err" "\('$id'\): text.short.npy is missing" "a text that is gone"
mv save "m/$id.text.short.npy"
cp -r data harm
at=$(grep -obUa "$id.text.short.npy" harm/000000.tar | head -1 | cut -d: -f1)
printf X | dd of=harm/000000.tar bs=1 seek=$((at + 512 + 130)) conv=notrunc status=none
run vfm-curate verify harm
like "$out" "\"key\":\"$id\",\"error\":\"text.short.npy: wrong checksum\"" "verify: a damaged text"

# ---- training
cat >tiny.json <<'END'
{"model": {"layers": 1, "hidden": 32, "heads": 2, "text_dim": 32}, "train": {"lr": 0.01, "warmup_steps": 0}}
END
train=(vfm-train -q --device cpu -c tiny.json --data data.plan)
vfm-pack -q --context 256 -b 2 --epochs 4 data >data.plan
run "${train[@]}" -o all
rc_is 0 "trains"
printf '%s\n' "$out" >all.loss
unlike "$err" "data.captions" "without weights, all captions are equal"
run vfm-train "${train[@]:2}" -o long --set data.captions=long:1
rc_is 0 "trains on one of the captions"
is "$(grep -c "^vfm-train: sample [0-9]* has no caption with a weight" <<<"$err")" 1 "samples without it: the first is logged"
like "$err" "8 of the 48 samples that this rank read had no caption with a weight" "and all are counted"
is "$(jq '.data.captions | keys[], .long == 1' long/config.json | tr '\n' ' ')" '"long" true ' "config.json has the weights"
run "${train[@]}" -o again --set 'data.captions={"long":2}'
is "$(jq -c .loss <<<"$out" | sha256sum)" "$(jq -c .loss long/metrics.jsonl | sha256sum)" "only the proportions count"
not_ok "other captions give other losses" cmp <(jq -c .loss all/metrics.jsonl) <(jq -c .loss long/metrics.jsonl)
run "${train[@]}" -o stop --steps 3 --set data.captions=short:1,long:3
run "${train[@]}" -o stop
rc_is 2 "resuming with other weights is refused"
like "$err" 'data.captions: \{"long":3.0,"short":1.0\} -> \{\} \(--allow-change captions accepts this' "and says how to allow it"
run "${train[@]}" -o stop --set data.captions=long:3,short:1
rc_is 0 "the same weights resume"
run "${train[@]}" -o whole --set data.captions=long:3,short:1
is "$(jq -c .loss stop/metrics.jsonl | sha256sum)" "$(jq -c .loss whole/metrics.jsonl | sha256sum)" "with the captions of a run that was not stopped"
run "${train[@]}" -n 2 -o ranks --set data.captions=long:3,short:1
ok "and of two ranks" python3 - <<'END'
import json
a, b = ([json.loads(x)["loss"] for x in open(d + "/metrics.jsonl")] for d in ("whole", "ranks"))
assert len(a) == len(b) > 3 and all(abs(x - y) < 1e-4 * x for x, y in zip(a, b)), (a, b)
END
run "${train[@]}" -o typo --set data.captions=shrt:1
is "$rc $err" "2 vfm-train: data.captions: no set of plan 'data.plan' has the caption 'shrt'" "a name that no set has"

# ---- padded texts
run "${train[@]}" -o pad --steps 4 --set model.text_len=16 --set model.text_pad=true
rc_is 0 "trains on padded texts"
isnt=$(sed -n 4p all/metrics.jsonl | jq -c .loss)
unlike "$(jq -c .loss <<<"$out" | tail -1)" "^$isnt\$" "which changes the loss"
run "${train[@]}" -o pad --steps 6 --set model.text_len=16
like "$err" "model.text_pad: true -> false \(--allow-change model accepts this" "it is a property of the model"
run vfm-sample -q --device cpu --ckpt pad --size 32x32 --frames 4 --steps 2 -p "a shape" --format npy -d sampled
rc_is 0 "vfm-sample reads it from the checkpoint"

done_testing
