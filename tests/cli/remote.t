#!/bin/bash
# vfm-train and vfm-bench loader with shards that are elsewhere: --remote, --cache, --fetch.  No network but 127.0.0.1.
. "${0%/*}/lib.sh"
for tool in jq python3; do command -v $tool >/dev/null || skip_all "no $tool"; done
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export no_proxy=127.0.0.1,localhost

tiny_data 6 40
echo '{"model": {"layers": 2, "hidden": 32, "heads": 2, "channels": 4, "text_dim": 8}}' >tiny.json
train=(vfm-train -q -c tiny.json --data far.jsonl)
mkdir -p store/data far
for shard in data/*.tar; do cp "$shard" store/data/; done
cp data/index.vfmi far/
sed 's/"dir":"data"/"dir":"far"/' plan.jsonl >far.jsonl
shards=$(find data -name '*.tar' | wc -l)
cat >get.sh <<'END'
echo "$1" >>fetched.log
cp "store/${1#s3://bucket/}" "$2"
END
s3=(--remote 's3://bucket/{set}' --cache near --cache-gib 1 --fetch 'sh get.sh')
is_locked() { ! flock -n "$1" true; }
cached() { find near -type f -regex '.*/[0-9a-f]*' | wc -l; }

run vfm-train -q -c tiny.json --data plan.jsonl -o local
run "${train[@]}" -o none
rc_is 3 "without --remote"
like "$err" "cannot open 'far/00000[01].tar': No such file" "the shard is named"
run "${train[@]}" "${s3[@]}" -o remote
rc_is 0 "a command fetches the shards"
is "$(jq -c '[.step, .loss]' remote/metrics.jsonl)" "$(jq -c '[.step, .loss]' local/metrics.jsonl)" "the losses are those of local shards"
is "$(sort fetched.log)" "$(for s in data/*.tar; do echo "s3://bucket/$s"; done | sort)" "each shard is fetched once, from URL/SET/SHARD"
is "$(cached)" "$shards" "and kept"
run "${train[@]}" "${s3[@]}" -o ranks -n 3
is "$rc $(wc -l <fetched.log)" "0 $shards" "another run, on 3 ranks, fetches none"
rm -r near fetched.log
run "${train[@]}" "${s3[@]}" -o ranks2 -n 3
is "$rc $(wc -l <fetched.log) $(cached)" "0 $shards $shards" "3 ranks with an empty cache fetch each shard once"
is "$(find near -name '*.want' | wc -l)" 0 "and leave no marks"

# ---- the bound --------------------------------------------------------------------
rm -r near
gib=$(stat -c %s store/data/*.tar | sort -n | tail -n 1 | awk '{ printf "%.9f", $1 * 1.2 / 2^30 }')
run "${train[@]}" --remote s3://bucket/data --cache near --cache-gib "$gib" --fetch 'sh get.sh' -o bound --set data.threads=1 --steps 3
is "$rc $(cached)" "0 1" "a cache for one shard holds one"
is "$(jq -c .loss bound/metrics.jsonl)" "$(head -n 3 local/metrics.jsonl | jq -c .loss)" "with the same losses"
run "${train[@]}" --remote s3://bucket/data --cache near --cache-gib 0.000001 --fetch 'sh get.sh' -o small
rc_is 3 "a cache that is smaller than a shard"
like "$err" "a shard of [0-9]* bytes does not fit into the cache 'near' of [0-9]* bytes" "says it"

# ---- faults -----------------------------------------------------------------------
rm -rf near
printf 'sleep 30\n' >slow.sh
{ timeout -s KILL 1 vfm-train -q -c tiny.json --data far.jsonl --remote s3://bucket/data --cache near --cache-gib 1 --fetch 'sh slow.sh' -o killed; } 2>/dev/null
is "$(find near -name '*.want' | wc -l | sed 's/[1-9].*/some/')" some "a killed run leaves a mark"
run "${train[@]}" --remote s3://bucket/data --cache near --cache-gib 1 --fetch 'sh get.sh' -o after
is "$rc $(find near -name '*.want' | wc -l)" "0 0" "and the next run goes on"
mkdir near3
{ timeout -s KILL 1 vfm-train -q -c tiny.json --data far.jsonl --remote s3://bucket/data --cache near3 --cache-gib "$gib" --fetch 'sh slow.sh' -o killed3 --set data.threads=1; } 2>/dev/null
is "$(find near3 -name '*.want' -size +0 | wc -l)" 1 "a run with a cache for one shard, killed while it fetches"
mkdir -p near3/.fetch-killed/0 near3/.fetch-living/0 # of a run that was killed with its guardian, and one that goes on
touch near3/.fetch-{killed,living}/lock
flock near3/.fetch-living/lock sleep 60 &
kill_at_end $!
wait_for 30 is_locked near3/.fetch-living/lock
run "${train[@]}" --remote s3://bucket/data --cache near3 --cache-gib "$gib" --fetch 'sh get.sh' -o after3 --set data.threads=1 --steps 3
rc_is 0 "the next run has the room that the killed one had reserved"
is "$(find near3 -name '*.want' -o -name '.fetch-*' -printf '%f\n')" .fetch-living "and removes its unfinished downloads"

# Copies that are damaged here and whole on the server are downloaded once more, by one of the ranks.
damage() { # FILE: many bytes of its arrays, with the same length
	python3 - "$1" <<-'END'
		import sys
		data = bytearray(open(sys.argv[1], "rb").read())
		for i in range(1024, len(data), 211): data[i] ^= 0xff
		open(sys.argv[1], "wb").write(data)
	END
}
is_local() { # RUN DESC
	is "$rc $err$(jq -c '[.step, .loss]' "$1/metrics.jsonl")" "0 $(jq -c '[.step, .loss]' local/metrics.jsonl)" "$2: the losses of local shards, no message"
	is "$(jq '.replaced // 0' "$1/metrics.jsonl" | sort -u)" 0 "$2: no sample is replaced"
}
for ranks in 1 3; do
	rm -f fetched.log
	for f in near/*; do damage "$f"; done
	run "${train[@]}" "${s3[@]}" -o damaged$ranks -n $ranks --set data.threads=2 --set data.max_damaged=1
	[ $ranks = 3 ] || is_local damaged1 "damaged copies"
	is "$rc $err$(wc -l <fetched.log) $(cached)" "0 $shards $shards" "damaged copies, $ranks ranks: each is downloaded once more"
done
rm -f fetched.log
for f in near/*[0-9a-f]; do truncate -s -700 "$f"; done
run "${train[@]}" "${s3[@]}" -o truncated
is_local truncated "truncated copies"
is "$(wc -l <fetched.log)" "$shards" "truncated copies: each is downloaded once more"
cat >flaky.sh <<'END'
echo "$1" >>fetched.log
[ -e "seen.${1##*/}" ] || { echo '<html>Service Unavailable</html>' >"$2" && : >"seen.${1##*/}"; exit; }
cp "store/${1#s3://bucket/}" "$2"
END
rm -rf near fetched.log
run "${train[@]}" "${s3[@]:0:6}" --fetch 'sh flaky.sh' -o flaky --set data.max_damaged=0
is_local flaky "a page of HTML at first"
is "$(wc -l <fetched.log)" $((2 * shards)) "a page of HTML at first: each shard is downloaded twice"

# What the server has damaged: downloaded twice, by all ranks together, and named once by each that reads it.
cp store/data/000001.tar whole.tar
damage store/data/000001.tar
rm -rf near fetched.log
run "${train[@]}" "${s3[@]}" -o server -n 1 --set data.max_damaged=1
is "$rc $(grep -c 000001 fetched.log) $(grep -c 000000 fetched.log)" "0 2 1" "a shard that the server has damaged: two downloads"
is "$(grep -c 'damaged, and replaced' <<<"$err")" 1 "it is named once"
like "$err" "'far/000001.tar', byte [0-9]*: .*wrong checksum" "with the fault"
ok "samples are replaced" test "$(jq '.replaced // 0' server/metrics.jsonl | awk '{ n += $1 } END { print n }')" -gt 1
rm -rf near fetched.log
run "${train[@]}" "${s3[@]}" -o server3 -n 3 --set data.max_damaged=1
is "$rc $(grep -c 000001 fetched.log) $(grep -c 000000 fetched.log)" "0 2 1" "the same with 3 ranks"
cp whole.tar store/data/000001.tar
rm -f fetched.log
run "${train[@]}" "${s3[@]}" -o repaired
is_local repaired "repaired on the server"
is "$(sort -u fetched.log | xargs) $(wc -l <fetched.log)" "s3://bucket/data/000001.tar 1" "repaired on the server: one download"

truncate -s -512 store/data/000001.tar
for ranks in 1 3; do
	rm -rf near fetched.log
	run "${train[@]}" "${s3[@]}" -o short$ranks -n $ranks --set data.max_damaged=1
	is "$rc $(grep -c 000001 fetched.log)" "0 2" "a shard of another size, $ranks ranks: two downloads"
	is "$(grep -c "'s3://bucket/data/000001.tar' has [0-9]* bytes where the index says [0-9]*" <<<"$err")" \
		"$(grep -c 'damaged, and replaced' <<<"$err")" "a shard of another size, $ranks ranks: the message"
	ok "a shard of another size, $ranks ranks: once from each" test "$(wc -l <<<"$err")" -le $ranks
done
rm -rf near fetched.log
run "${train[@]}" "${s3[@]}" -o cut --set data.max_damaged=0
rc_is 1 "a shard of another size"
like "$err" "'s3://bucket/data/000001.tar' has [0-9]* bytes where the index says [0-9]*" "is named"
is "$(grep -c 000001 fetched.log)" 2 "after two downloads"
: >store/data/000001.tar
rm -rf near fetched.log
run "${train[@]}" "${s3[@]}" -o empty --set data.max_damaged=1
is "$rc $(grep -c 000001 fetched.log)" "0 2" "an empty shard: two downloads"
like "$err" "'s3://bucket/data/000001.tar' has 0 bytes where the index says [0-9]*" "an empty shard: the message"
rm store/data/000001.tar
run "${train[@]}" "${s3[@]}" -o gone --set data.max_damaged=1
rc_is 3 "a shard that cannot be fetched is no damage"
like "$err" "s3://bucket/data/000001.tar.*cannot stat" "its error is that of the command"
run "${train[@]}" --remote s3://bucket -o x
is "$rc $err" "2 vfm-train: --remote: --cache DIR and --cache-gib N above 0 are missing" "--remote alone"
run "${train[@]}" --cache near -o x
is "$rc $err" "2 vfm-train: --cache, --cache-gib, --fetch: --remote URL is missing" "--cache alone"

# ---- two runs with one cache ------------------------------------------------------
# The first shard that the plan reads is 000002.  While the run fetches a shard of $meet_at, another run reads $other.
cp whole.tar store/data/000001.tar
vfm-pack -q --context 48 -b 6 --steps 40 --seed 3 data >plan3.jsonl
sed 's/"dir":"data"/"dir":"far"/' plan3.jsonl >far3.jsonl
is "$(jq -s '.[1].samples[0][1]' plan3.jsonl)" 2 "the plan"
meet=(vfm-train -q -c tiny.json --data far3.jsonl "${s3[@]:0:6}" --fetch 'sh meet.sh' --set data.threads=1)
run vfm-train -q -c tiny.json --data plan3.jsonl -o local3
cat >meet.sh <<'END'
case " $meet_at " in
*" ${1##*/} "*) timeout 60 vfm-bench loader -r 1 --remote 's3://bucket/{set}' --cache near --cache-gib 1 --fetch 'sh get.sh' $other >other.out 2>&1 ;;
esac
case $1 in
*/000002.tar) [ ! -e bad ] || { echo "$1" >>fetched.log; cat bad >"$2"; exit; } ;;
esac
sh get.sh "$1" "$2"
END
export meet_at='000000.tar 000001.tar' other=plan.jsonl
head -c 700 store/data/000002.tar >short
cp store/data/000002.tar damaged && damage damaged
for kind in short damaged; do
	cp $kind bad
	rm -rf near fetched.log
	run "${meet[@]}" -o meet_$kind --set data.max_damaged=1
	is "$rc $(grep -c 000002 fetched.log)" "0 2" "a $kind shard, while other runs begin: two downloads"
	is "$(grep -c 'damaged, and replaced' <<<"$err")" 1 "a $kind shard, while other runs begin: it is named once"
done

# The other run has an index by which the shards of the server have a wrong length.
vfm-curate synth -q --count 8 -d clips --size 32x32 --frames 8 | vfm-curate encode -q --text bytes:32 -d latents | vfm-curate shard -q -d changed/data --max-samples 4 >/dev/null
vfm-pack -q --context 64 -b 1 --steps 4 changed/data >changed.jsonl
rm changed/data/*.tar
meet_at=000002.tar other=changed.jsonl
rm -rf near fetched.log bad
run "${meet[@]}" -o meet_index --set data.max_damaged=0
like "$(cat other.out)" "'s3://bucket/data/00000[01].tar' has [0-9]* bytes where the index says [0-9]*" "a run whose index has other lengths"
is "$rc $err$(jq -c '[.step, .loss]' meet_index/metrics.jsonl)" "0 $(jq -c '[.step, .loss]' local3/metrics.jsonl)" "leaves the shards of another run as they are"

# ---- HTTP -------------------------------------------------------------------------
mkdir web && cp data/*.tar web/
python3 "$TOP/tests/tools/http_faults.py" web web.port web.log 2>/dev/null &
kill_at_end $!
wait_for 30 test -e web.port
run vfm-bench loader -r 1 --format jsonl --remote "http://127.0.0.1:$(cat web.port)/ok" --cache near2 --cache-gib 1 far.jsonl
rc_is 0 "over HTTP"
run vfm-bench loader -r 1 --format jsonl plan.jsonl
rc_is 0 "the local shards"
is "$(cat near2/[0-9a-f]* | wc -c) $(sha256sum near2/[0-9a-f]* | cut -c 1-64 | sort)" "$(cat data/*.tar | wc -c) $(sha256sum data/*.tar | cut -c 1-64 | sort)" "the shards are those of the server"
for way in chunked nolength; do
	run vfm-bench loader -r 1 --format jsonl --remote "http://127.0.0.1:$(cat web.port)/$way" --cache near5 --cache-gib 1 far.jsonl
	rc_is 0 "$way: a server that names no length"
done
is "$(sha256sum near5/[0-9a-f]* | cut -c 1-64 | sort | uniq -c | sed 's/^ *//')" "$(sha256sum data/*.tar | cut -c 1-64 | sort | sed 's/^/2 /')" "no length: the shards are those of the server"

: >web/000001.tar
run "${train[@]}" --remote "http://127.0.0.1:$(cat web.port)/ok" --cache near4 --cache-gib 1 -o http_empty --set data.max_damaged=1
is "$rc $(grep -c 'GET /ok/000001.tar' web.log)" "0 3" "an empty shard over HTTP: two downloads after that of the loader"
like "$err" "000001.tar' has 0 bytes where the index says" "an empty shard over HTTP: the message"
done_testing
