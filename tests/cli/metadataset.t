#!/bin/bash
# vfm-pack on metadatasets of Megatron-Energon: blends, repetitions, nesting, splits; what is refused.
. "${0%/*}/lib.sh"

vfm-curate synth -q --count 12 -d syn | records >syn.jsonl
head -8 syn.jsonl | vfm-curate encode -q -d e1 | vfm-curate shard -q --max-samples 3 -d sets/a >/dev/null
tail -4 syn.jsonl | vfm-curate encode -q -d e2 | vfm-curate shard -q -d sets/b >/dev/null
cd sets || exit 1
head_of() { head -1 "$1" | jq -c "$2"; }
pack() { vfm-pack --context 512 "$@"; }

cat >v2.yaml <<'END'
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  # Train dataset, as in the documentation of Energon
  train:
    blend:
      - weight: 5
        path: ./a
        subflavors:
          augmentation: light # ignored
      - weight: 1
        path: ./b
  val:
    path: ./b
    split_part: train
END
cat >v1.yaml <<'END'
__class__: Metadataset
splits:
  train:
    datasets:
    - {weight: 5, path: a, split_part: train, subflavor: x}
    - {path: "b"}
END
run pack --steps 8 v2.yaml
rc_is 0 "a blend"
printf '%s\n' "$out" >v2.plan
like "$err" "set a: .*asked: [0-9]+" "is reported"
is "$(head_of v2.plan '[.sets[].name]')" '["a","b"]' "the sets"
# Weights of 5 to 1 are shares of the samples.
share() { # PLAN SET: the share of the samples
	sed 1d "$1" | jq -c '.samples[][0]' | awk -v s="$2" '{ n++; k += $1 == s } END { printf "%.2f", k / n }'
}
pack -q --steps 200 v2.yaml >long.plan
like "$(share long.plan 0)" '^0\.8[1-5]$' "5 of 6 samples are of the first set"
pack -q --steps 8 v1.yaml >v1.plan
ok "version 1 gives the same plan" cmp <(sed 's/"dir":"[^"]*"/D/g' v1.plan) <(sed 's/"dir":"[^"]*"/D/g' v2.plan)
pack -q --split val v2.yaml >val.plan
is "$(head_of val.plan '[.sets[] | [.name, .records]]')" '[["b",4]]' "--split"
mkdir below
(cd below && vfm-pack -q --context 512 --steps 8 ../v2.yaml >abs.plan && vfm-bench loader -q -r 1 abs.plan >/dev/null)
is "$?" 0 "folders are relative to the file"
ok "and the plan is read" vfm-bench loader -q -r 1 v2.plan

cat >rep.yaml <<'END'
__class__: MetadatasetV2
splits:
  train:
    blend_epochized:
      - repetitions: 2
        path: ./a
      - path: ./b
END
pack -q rep.yaml >rep.plan
is "$(sed 1d rep.plan | jq -c '.samples[]' | wc -l)" 20 "repetitions: each sample of the first set twice"
is "$(head_of rep.plan '[.sets[] | [.name, .passes]]')" '[["a",2],["b",1]]' "the sets, with their passes"
# counts PLAN: of each set, how often its samples occur
counts() {
	sed 1d "$1" | jq -c '.samples[]' | sort | cut -d, -f1-3 | uniq -c | awk '{ gsub(/[[,]/, " "); print $2, $1 }' | sort | uniq -c |
		awk '{ printf "%s%s: %s x %s", n++ ? "; " : "", $2, $1, $3 }'
}
is "$(counts rep.plan)" "0: 8 x 2; 1: 4 x 1" "each sample as often as asked"
in_train() { printf '__class__: MetadatasetV2\nsplits:\n  train:\n'; sed 's/^/    /'; }
in_train <<<'blend_epochized: [{path: a, repetitions: 2.5}, {path: b, repetitions: 0.5}]' >half.yaml
pack -q half.yaml >half.plan
is "$(counts half.plan)" "0: 4 x 2; 0: 4 x 3; 1: 2 x 1" "half a repetition is half of the samples"
pack -q --epochs 2 half.yaml >half.plan
is "$(counts half.plan)" "0: 8 x 5; 1: 4 x 1" "two halves are all of them"
pack -q --steps 40 half.yaml >half.plan
like "$(counts half.plan)" "^0: .*; 1: " "with --steps the passes go on"
in_train <<<'blend_epochized: [{path: half.yaml, repetitions: 2}, {path: b}]' >twice.yaml
pack -q twice.yaml >twice.plan
is "$(counts twice.plan)" "0: 8 x 5; 1: 4 x 1; 2: 4 x 1" "repetitions multiply"

cat >nested.yaml <<'END'
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 3
        path: v2.yaml
      - weight: 1
        path: v2.yaml
        split_part: val # of the metadataset
END
cp b/.nv-meta/split.yaml keep.yaml
printf 'exclude: []\nsplit_parts:\n  train:\n    - "{000000..000003}.tar"\n  val: ["00000{0,1}.tar"]\n' >b/.nv-meta/split.yaml
run pack --steps 8 nested.yaml
rc_is 0 "nested metadatasets, and lists with braces"
is "$(head_of <(printf '%s\n' "$out") '[.sets[].name]')" '["a","b","b.2"]' "the sets"
cp keep.yaml b/.nv-meta/split.yaml

# refuses NAME REGEX <FILE
refuses() {
	cat >bad.yaml
	run pack bad.yaml
	rc_is 2 "$1"
	like "$err" "$2" "says so"
}
refuses "a join" "split 'train': join: make one folder of its datasets, 'vfm-curate index --join -d DIR a b', and name" < <(
	in_train <<<'join: {x: {path: a}, y: {path: b}}')
refuses "a join as a list" "index --join -d DIR --nonmatch skip a b c'" < <(
	in_train <<<'join: [{path: a}, {path: b, nonmatch: skip}, {path: c, nonmatch: error}]')
refuses "a join of anything" "index --join -d DIR'" < <(in_train <<<'join: 3')
refuses "auxiliary datasets" "aux: not supported" < <(in_train <<<$'path: a\naux: {x: b}')
refuses "no repetition" "repetitions: expected a number > 0" < <(in_train <<<'blend_epochized: [{path: a, repetitions: 0}]')
refuses "too few samples for a part of a repetition" "no set has usable samples" < <(in_train <<<'blend_epochized: [{path: a, repetitions: 0.1}]')
refuses "too many repetitions" "at most 1000" < <(in_train <<<'blend_epochized: [{path: rep.yaml, repetitions: 501}]')
refuses "a subset without a range" "subset: expected .range: .a, b.." < <(in_train <<<$'path: a\nsubset: {first: 3}')
refuses "a subset of a number and a percentage" "subset: expected two numbers or two percentages" < <(in_train <<<$'path: a\nsubset: {range: [3, 50%]}')
refuses "a subset beyond the end" "samples 0 to 9 of 8" < <(in_train <<<$'path: a\nsubset: {range: [0, 9]}')
refuses "a subset backwards" "subset: '4' is above '3'" < <(in_train <<<$'path: a\nsubset: {range: [4, 3]}')
refuses "an empty subset" "no sample is in split 'train', or in this subset" < <(in_train <<<$'path: a\nsubset: {range: [3, 3]}')
refuses "numbers of samples of a blend" "subset: numbers of samples are for a dataset alone" < <(in_train <<<$'blend: [{path: a}]\nsubset: {range: [0, 2]}')
refuses "a weight below 0" "weight: expected a number > 0" < <(in_train <<<'blend: [{path: a, weight: -1}]')
refuses "a path that is missing" "'./nowhere': No such file" < <(in_train <<<'path: nowhere')
refuses "a remote path" "only local paths" < <(in_train <<<'path: s3://bucket/x')
refuses "a metadataset within itself" "nested too deeply" < <(in_train <<<'path: bad.yaml')
refuses "repetitions within weights" "blend_epochized: within a blend by weights" < <(in_train <<<'blend: [{path: rep.yaml}, {path: a}]')
refuses "YAML that is not read" "'bad.yaml', line 4: anchors" < <(in_train <<<'a: &x 1')
refuses "another class" "__class__: expected Metadataset" <<<$'__class__: Other\nsplits: {train: {path: a}}'
refuses "a split that is missing" "splits: this split is missing" <<<$'__class__: MetadatasetV2\nsplits: {test: {path: a}}'
# ---- parts of a dataset
# records PLAN: the records of its samples, of shards of three
numbers() { sed 1d "$1" | jq -c '.samples[] | .[1] * 3 + .[2]' | sort -n | paste -sd' '; }
# part YAML: the records of a dataset with this split.yaml and this reference
part() {
	in_train <<<"$1" >part.yaml
	pack -q part.yaml >part.plan && numbers part.plan
}
is "$(part $'path: a\nsubset: {range: [2, 5]}')" "2 3 4" "a subset by numbers"
is "$(head_of part.plan '[.sets[] | .records, .selected]')" '[8,3]' "the header tells its size"
is "$(vfm-pack stats --format json part.plan | jq .sets[0].epochs)" 1 "of which it is one pass"
is "$(part $'path: a\nsubset: {range: [6, end]}')" "6 7" "to the end"
is "$(part $'path: a\nsubset: {range: [25%, 70%]}')" "2 3 4" "by percentages, rounded down"
is "$(part $'blend_epochized: [{path: a, subset: {range: [4, end]}}]\nsubset: {range: [50%, 100%]}')" "6 7" "a percentage of a subset"
in_train <<<$'path: a\nsubset: {range: [50%, 100%]}' >inner.yaml
is "$(part $'path: inner.yaml\nsubset: {range: [0%, 50%]}')" "4 5" "of a nested metadataset"
printf 'exclude: []\nsplit_parts: {train: ["000002.tar", "000000.tar"], val: ["000001.tar"]}\n' >a/.nv-meta/split.yaml
is "$(part 'path: a')" "0 1 2 6 7" "the tars of a split"
is "$(part $'path: a\nsplit_part: val')" "3 4 5" "of another"
is "$(part $'path: a\nsubset: {range: [0, 3]}')" "0 6 7" "a subset counts in the order of the list"
key=$(tar tf a/000000.tar | sed -n 's/\.json$//p' | sed -n 2p)
printf 'exclude: ["{000001..000002}.tar", "000000.tar/%s"]\nsplit_parts: {train: ["{000000..000002}.tar"]}\n' "$key" >a/.nv-meta/split.yaml
is "$(part 'path: a')" "0 2" "exclude: tars and samples"
is "$(part $'path: a\nsubset: {range: [1, end]}')" "2" "after a subset is counted"
refuses "a split of excluded tars" "no sample is in split 'val'" < <(printf 'split_parts: {val: ["000001.tar"]}\nexclude: ["000001.tar"]\n' >a/.nv-meta/split.yaml; in_train <<<$'path: a\nsplit_part: val')
refuses "a tar twice" "000001.tar is named twice" < <(printf 'split_parts: {train: ["000001.tar", "{000000..000001}.tar"]}\n' >a/.nv-meta/split.yaml; in_train <<<'path: a')
refuses "a bad exclude" "exclude: expected a list" < <(printf 'split_parts: {train: ["000001.tar"]}\nexclude: 3\n' >a/.nv-meta/split.yaml; in_train <<<'path: a')
rm a/.nv-meta/split.yaml
echo '{"split_parts":{"train":["000001.tar"]},"exclude":[]}' >a/.nv-meta/split.json
is "$(part 'path: a')" "3 4 5" "split.json"
run pack --subset a=0..1 part.yaml
rc_is 2 "--subset is not for a metadataset"
run pack --split val a b
rc_is 2 "--split without a metadataset"
done_testing
