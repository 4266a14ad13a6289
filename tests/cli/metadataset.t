#!/bin/bash
# vfm-pack on metadatasets of Megatron-Energon: blends, repetitions, nesting, splits; what is refused.
. "${0%/*}/lib.sh"

vfm-curate synth -q -n 12 -d syn | records >syn.jsonl
head -8 syn.jsonl | vfm-curate encode -q -d e1 | vfm-curate shard -q --max-samples 3 -d sets/a >/dev/null
tail -4 syn.jsonl | vfm-curate encode -q -d e2 | vfm-curate shard -q -d sets/b >/dev/null
cd sets || exit 1
head_of() { head -1 "$1" | jq -c "$2"; }
pack() { vfm-pack -c 512 "$@"; }

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
(cd below && vfm-pack -q -c 512 --steps 8 ../v2.yaml >abs.plan && vfm-bench loader -q -r 1 abs.plan >/dev/null)
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
is "$(head_of rep.plan '[.sets[].name]')" '["a","a.2","b"]' "the sets"

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
in_train() { printf '__class__: MetadatasetV2\nsplits:\n  train:\n'; sed 's/^/    /'; }
refuses "a join" "metadataset 'bad.yaml', split 'train': join: not supported" < <(in_train <<<'join: {x: {path: a}}')
refuses "a subset" "subset: not supported" < <(in_train <<<$'path: a\nsubset: {range: [0%, 50%]}')
refuses "auxiliary datasets" "aux: not supported" < <(in_train <<<$'path: a\naux: {x: b}')
refuses "half a repetition" "repetitions: only whole numbers" < <(in_train <<<'blend_epochized: [{path: a, repetitions: 0.5}]')
refuses "a weight below 0" "weight: expected a number > 0" < <(in_train <<<'blend: [{path: a, weight: -1}]')
refuses "a path that is missing" "'./nowhere': No such file" < <(in_train <<<'path: nowhere')
refuses "a remote path" "only local paths" < <(in_train <<<'path: s3://bucket/x')
refuses "a metadataset within itself" "nested too deeply" < <(in_train <<<'path: bad.yaml')
refuses "repetitions within weights" "blend_epochized: within a blend by weights" < <(in_train <<<'blend: [{path: rep.yaml}, {path: a}]')
refuses "YAML that is not read" "'bad.yaml', line 4: anchors" < <(in_train <<<'a: &x 1')
refuses "another class" "__class__: expected Metadataset" <<<$'__class__: Other\nsplits: {train: {path: a}}'
refuses "a split that is missing" "splits: this split is missing" <<<$'__class__: MetadatasetV2\nsplits: {test: {path: a}}'
printf 'exclude: []\nsplit_parts: {train: ["000000.tar"], val: ["{000001..000002}.tar"]}\n' >a/.nv-meta/split.yaml
refuses "a part of a dataset" "000001.tar is not in 'train'; a part of a dataset is not supported" < <(in_train <<<'path: a')
run pack --split val a b
rc_is 2 "--split without a metadataset"
done_testing
