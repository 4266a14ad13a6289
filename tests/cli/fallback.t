#!/bin/bash
# Damaged checkpoints: what a run resumes from, what becomes of them, what may be removed, and what is no damage.
. "${0%/*}/lib.sh"

tiny_data 2 12
cat >tiny.json <<'JSON'
{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8},
 "train": {"lr": 0.01, "warmup_steps": 2, "ema_decay": 0.9}, "ckpt": {"every": 2, "keep": 0}}
JSON
train=(vfm-train -q -c tiny.json --data plan.jsonl --device cpu)
run "${train[@]}" -o ref
rc_is 0 "a run"
ref=$(vfm-ckpt hash --format jsonl ref | jq -r .hash)
run "${train[@]}" -o run --steps 8
newest=step-00000008
flip() { printf x | dd of="$1" bs=1 seek="${2-30000}" conv=notrunc 2>/dev/null; }
fresh() { rm -rf r && cp -r run r; }
aside() { find r/ckpt -name "*.damaged*" | wc -l; } # checkpoints under another name
# ends_as_ref DESC: the last run ended like one that met no damage.
ends_as_ref() {
	is "$rc $(vfm-ckpt hash --format jsonl r | jq -r .hash)" "0 $ref" "$1: the run goes on to the same end"
	is "$(curve r)" "$(curve ref)" "$1: with the same records"
}

# ---- one kind of damage after the other
harm() {
	local c=r/ckpt/$newest
	case $1 in
	"a flipped byte") flip $c/optim-00000.safetensors ;;
	"a short file") truncate -s -8 $c/ema-00000.safetensors ;;
	"a missing file") rm $c/ema-00000.safetensors ;;
	"no manifest") rm $c/manifest.json ;;
	"no SHA256SUMS") rm $c/SHA256SUMS ;;
	"an empty manifest") : >$c/manifest.json ;;
	"a FIFO as its manifest") rm $c/manifest.json && mkfifo $c/manifest.json ;;
	"a changed manifest") sed -i 's/"step":8/"step":9/' $c/manifest.json ;;
	"a damaged header") flip $c/model-00000.safetensors 20 ;;
	esac
}
for what in "a flipped byte" "a short file" "a missing file" "no manifest" "no SHA256SUMS" "an empty manifest" \
	"a FIFO as its manifest" "a changed manifest" "a damaged header"; do
	fresh
	harm "$what"
	run vfm-ckpt check r/ckpt/$newest
	like "$rc" '^[12]$' "$what: vfm-ckpt check finds it"
	run "${train[@]}" -o r
	like "$err" "^vfm-train: warning: .*r/ckpt/${newest}['/].*; the run resumes from 'r/ckpt/step-00000006' instead$" "$what: one line says what is wrong and what is used"
	ends_as_ref "$what"
	is "$(ls -d r/ckpt/$newest*)" "r/ckpt/$newest"$'\n'"r/ckpt/$newest.damaged" "$what: the checkpoint is kept under another name"
	ok "$what: and saved again" vfm-ckpt check r/ckpt/$newest
done
fresh
flip r/ckpt/$newest/optim-00000.safetensors
flip r/ckpt/step-00000006/model-00000.safetensors
run "${train[@]}" -o r
like "$err" "$newest/.*step-00000006/.*resumes from 'r/ckpt/step-00000004' instead$" "two damaged checkpoints: the one before counts"
ends_as_ref "two damaged checkpoints"
rm -r r/ckpt/step-0000001?
flip r/ckpt/$newest/optim-00000.safetensors
run "${train[@]}" -o r
is "$rc $(ls -d r/ckpt/$newest.*)" "0 r/ckpt/$newest.damaged"$'\n'"r/ckpt/$newest.damaged-2" "damaged again: another name"

# A folder of weights that has the name of a checkpoint.
fresh
mkdir r/ckpt/step-00000010
vfm-ckpt export r/ckpt/$newest r/ckpt/step-00000010/model.safetensors
jq -nc --argjson names "$(vfm-ckpt ls --format jsonl r/ckpt/step-00000010/model.safetensors | jq -s 'map(.name)')" \
	'{weight_map: ($names | map({key: ., value: "model.safetensors"}) | from_entries)}' >r/ckpt/step-00000010/model.safetensors.index.json
ok "a folder of weights" vfm-ckpt ls r/ckpt/step-00000010
run "${train[@]}" -o r
like "$err" "'r/ckpt/step-00000010' holds files of weights, not a checkpoint; the run resumes from 'r/ckpt/$newest' instead$" "weights with the name of a checkpoint are none"
ends_as_ref "weights with the name of a checkpoint"

# ---- ranks
for how in "" "--set parallel.distopt=true" "--set parallel.fsdp=true" "--set parallel.pp=2"; do
	rm -rf two
	# shellcheck disable=SC2086 # words
	run "${train[@]}" -n 2 -o two --steps 8 $how
	file=$(ls two/ckpt/$newest/*-00001.safetensors 2>/dev/null | tail -n 1)
	flip "${file:-two/ckpt/$newest/model-00000.safetensors}" 20000
	# shellcheck disable=SC2086
	run "${train[@]}" -n 2 -o two $how
	rc_is 0 "two ranks ${how#--set }: damage, perhaps on one of them"
	is "$(grep -c "sha256 mismatch.*; the run resumes from 'two/ckpt/step-00000006' instead$" <<<"$err") $(wc -l <<<"$err")" "1 1" \
		"two ranks ${how#--set }: all fall back, one of them says so"
	is "$(jq -s 'map(.step) == [range(1; 13)]' two/metrics.jsonl)" true "two ranks ${how#--set }: each step once"
done

# ---- nothing left
fresh
flip r/ckpt/$newest/optim-00000.safetensors
for s in 2 4 6; do rm r/ckpt/step-0000000$s/SHA256SUMS; done
before=$(ls r/ckpt)
run "${train[@]}" -o r
is "$rc ${#out}" "2 0" "no good checkpoint: the run does not begin anew"
like "$err" "^vfm-train: no checkpoint of 'r' can be used: .*step-00000008.*step-00000002/SHA256SUMS" "and says why"
is "$(ls r/ckpt)" "$before" "and changes nothing"
fresh
rm r/ckpt/$newest/SHA256SUMS
run "${train[@]}" -o r --set model.layers=3
is "$rc $(aside)" "2 0" "a run that is refused renames nothing"

# ---- --resume CKPT
fresh
run "${train[@]}" -o r --resume r/ckpt/step-00000004
rc_is 2 "--resume of an older one is refused if the newer ones are good"
like "$err" "holds newer checkpoints, up to step 8; to go back, rename or remove them, as in mv 'r/ckpt/$newest' 'r/ckpt/$newest.old', or use another RUN$" "and the message says how"
truncate -s -8 r/ckpt/$newest/ema-00000.safetensors
run "${train[@]}" -o r --resume r/ckpt/step-00000004
rc_is 2 "but not if one of them is"
like "$err" "mv 'r/ckpt/step-00000006'" "which is named"
run "${train[@]}" -o r --resume r/ckpt/step-00000006
like "$err" "ema-00000.safetensors.*the run resumes from 'r/ckpt/step-00000006' instead$" "--resume of the newest good one"
ends_as_ref "--resume of the newest good one"
fresh
flip r/ckpt/$newest/optim-00000.safetensors
run "${train[@]}" -o else --resume r
is "$rc $(grep -c "is damaged" <<<"$err")" "2 1" "--resume of another run: no other checkpoint was asked for"
run "${train[@]}" -o r --resume run/ckpt/step-00000002
like "$err" "the run resumes from 'r/ckpt/step-00000006' instead$" "--resume CKPT again: the run's own count, also then"

# ---- a newer program is no damage
fresh
sed -i 's/"v":1/"v":2/' r/ckpt/$newest/manifest.json
(cd r/ckpt/$newest && sums=$(cut -c67- SHA256SUMS) && echo "$sums" | xargs sha256sum >SHA256SUMS)
run "${train[@]}" -o r
is "$rc $(aside)" "3 0" "a checkpoint of a newer format: status 3, nothing is renamed"
like "$err" "^vfm-train: r/ckpt/$newest: .*format 2 is newer than this program" "and it says so"
for verb in check info "prune --keep-last 1"; do
	# shellcheck disable=SC2086 # words
	run vfm-ckpt $verb r
	is "$rc $(ls r/ckpt | wc -l)" "3 4" "and vfm-ckpt ${verb%% *}"
done

# ---- a machine that fails is no damage
fresh
chmod -R a+rwX . ..
chmod 000 r/ckpt/$newest/optim-00000.safetensors
as=()
[ "$(id -u)" != 0 ] || as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${as[@]}" true 2>/dev/null && ! "${as[@]}" test -r r/ckpt/$newest/optim-00000.safetensors; then
	run "${as[@]}" "${train[@]}" -o r
	is "$rc $(aside)" "3 0" "no permission: status 3, nothing is renamed"
	like "$err" "^vfm-train: .*cannot open 'r/ckpt/$newest/optim-00000.safetensors': Permission denied$" "and it says so"
	chmod 000 r/ckpt/$newest/manifest.json
	run "${as[@]}" "${train[@]}" -o r
	is "$rc $(aside)" "3 0" "no permission for the manifest: likewise"
	run "${as[@]}" vfm-ckpt check r
	rc_is 3 "and vfm-ckpt check"
else
	skip 4 "cannot take the permission to read"
fi

# ---- prune
fresh
flip r/ckpt/$newest/optim-00000.safetensors
run vfm-ckpt prune --dry-run --keep-last 1 r
is "$rc $out" "0 r/ckpt/step-00000002"$'\n'"r/ckpt/step-00000004" "prune --dry-run: what is kept is read in full"
run vfm-ckpt prune --keep-last 1 r
is "$rc $(ls r/ckpt | tr '\n' ' ')" "0 step-00000006 step-00000008 " "prune keeps the newest good checkpoint"
like "$err" "warning: r/ckpt/$newest has 1 faults .*; 'r/ckpt/step-00000006' is kept in its place" "and says so"
flip r/ckpt/step-00000006/model-00000.safetensors
run vfm-ckpt prune --keep-last 1 r
is "$rc $(ls r/ckpt | tr '\n' ' ')" "2 step-00000006 step-00000008 " "without a good one it removes nothing"
like "$err" "no checkpoint in 'r/ckpt' is good, so none is removed" "and says so"
fresh
rm r/ckpt/$newest/SHA256SUMS
run "${train[@]}" -o r --steps 10 --set ckpt.keep=1
is "$rc $(ls r/ckpt | tr '\n' ' ')" "0 $newest.damaged step-00000010 " "a run prunes as before"

# ---- vfm-ckpt check names the tensors
fresh
flip r/ckpt/$newest/model-00000.safetensors "$(($(stat -c %s r/ckpt/$newest/model-00000.safetensors) - 40))"
run vfm-ckpt check r
like "$out" "model-00000.safetensors: bytes 0 to [0-9]*: sha256 mismatch \(tensor 'model/.*' and [0-9]* more, or the header\)$" "check: a file smaller than a chunk"
vfm-ckpt export -q --part model run one.safetensors
python3 - <<'PY'
import struct
head = b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
open("one.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<3f", 1, 2, 3))
PY
vfm-ckpt import -q one.safetensors one
flip one/step-00000000/model-00000.safetensors "$(($(stat -c %s one/step-00000000/model-00000.safetensors) - 2))"
run vfm-ckpt check one
like "$out" "sha256 mismatch \(tensor 'model/a', or the header\)$" "check: a file of one tensor"
flip one/step-00000000/model-00000.safetensors 8
run vfm-ckpt check one
like "$out" "sha256 mismatch \(the header\)$" "check: a header that cannot be read"

# ---- what killed processes leave
fresh
mkdir r/ckpt/step-00000099.tmp r/ckpt/step-00000002.old.tmp
: >r/config.json.vfm-tmp
: >r/run.json.vfm-tmp.22.3
: >r/notes.tmp
run "${train[@]}" -o r --steps 8
is "$rc $(find r -name "*tmp*")" "0 r/notes.tmp" "a start without a save removes them, and nothing else"
done_testing
