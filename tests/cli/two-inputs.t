#!/bin/bash
# An input that is refused changes nothing of what the same thread reads behind it: each reader and each stage gives the
# records, and the files, of the good input alone.
. "${0%/*}/lib.sh"
for tool in jq tar ffmpeg; do command -v $tool >/dev/null || skip_all "no $tool"; done

# good_part FILE: the records of the good input, which have the word "good".
good_part() {
	records "$1" | jq -cS 'select(.error == null and (tostring | contains("good")))'
}
# behind NAME ERRORS DIR CMD ARG ...: in the folder DIR, runs CMD with the file "good", and with "bad" in front of it and
# behind it.  The bad input has ERRORS errors.  If there is a file "first", it comes before these: a command refuses its
# first table as a whole.
behind() {
	local name=$1 errors=$2 dir=$3 first='' order
	[ ! -e "$3/in/first" ] || first=first
	shift 3
	for order in "good" "bad good" "good bad"; do
		mkdir -p "$dir/$order"
		# shellcheck disable=SC2086 # words
		(cd "$dir/$order" && ln -sf ../in/* . && "$@" $first $order >out.jsonl 2>err)
	done
	ok "$name: the good input alone" test -n "$(good_part "$dir/good/out.jsonl")"
	for order in "bad good" "good bad"; do
		is "$(good_part "$dir/$order/out.jsonl")" "$(good_part "$dir/good/out.jsonl")" "$name: $order: the records of the good one"
		is "$(records "$dir/$order/out.jsonl" | jq -c 'select(.error)' | wc -l)" "$errors" "$name: $order: the errors of the bad one"
		empty "$name: $order: no record of the bad one" \
			jq -c 'select(.error == null and .id != "f" and (tostring | contains("good") | not))' < <(records "$dir/$order/out.jsonl")
		is "$(cd "$dir/$order" && find . -name '*good*' -path './d/*' -type f -exec cksum {} + | sort -k 3)" \
			"$(cd "$dir/good" && find . -name '*good*' -path './d/*' -type f -exec cksum {} + | sort -k 3)" "$name: $order: the files of the good one"
	done
}

# ---- tables: of each format, one whose columns are refused, and one with a damaged row
table() {
	mkdir -p "$1/in"
	printf '%b' "$2" >"$1/in/good"
	printf '%b' "$3" >"$1/in/bad"
	printf 'id,x\nf,1\n' >"$1/in/first"
	behind "table: $1" "$4" "$1" vfm-curate table -q -j 1
}
table csv 'id,x\ngood1,2\ngood2,3\n' 'id,x,x\nb,4,5\nc,7,8\n' 1
table utf8 'id,x\ngood1,2\n' 'id,\xff\nb,4\n' 1
table row 'id,x\ngood1,2\n' 'id;x\nb;4;5\nc;6;7\n' 2
table quote 'id,x\ngood1,2\n' 'id,x\n"b,4\nc,5\n' 1
table array '[{"id":"good1","x":[1]},{"id":"good2"}]' '[{"id":[]}' 2
table lines '{"id":"good1"}\n{"id":"good2"}\n' '{"id":"b"\n[]\n' 2
table void 'id,x\ngood1,2\n' '' 1
table packed 'id,x\ngood1,2\n' '\x1f\x8b\x08\x00' 1
table parquet 'id,x\ngood1,2\n' 'PAR1' 1

# ---- tars of samples
mkdir -p tars/in t
printf x >t/good.mp4 && printf 'a good one' >t/good.txt && printf y >t/b.mp4 && printf 'a\0' >t/b.txt && printf z >t/c.mp4 && printf '\xff' >t/c.txt
tar -C t -cf tars/in/good good.mp4 good.txt
tar -C t -cf tars/in/bad b.mp4 b.txt c.mp4 c.txt
behind "index" 2 tars vfm-curate index -q -j 1
truncate -s 700 tars/in/bad
behind "index: a truncated tar" 1 tars vfm-curate index -q -j 1

# ---- lines of URLs and of records
mkdir -p urls/in stages/in
printf 's3://a/good\n' >urls/in/good && printf 's3://a/\xff\n' >urls/in/bad
# shellcheck disable=SC2016 # the command's own
behind "fetch" 1 urls vfm-curate fetch -q --urls -d d --fetch-shell --fetch 'echo a file >"$2"' -j 1
printf '{"v":1,"provenance":[{"tool":"t"}]}\n{"v":1,"id":"good1","x":1}\n' >stages/in/good
printf '{"v":1,"provenance":[{"tool":"u"},{"tool":3}]}\n{"v":1,"id":"b"\n[1]\n' >stages/in/bad
behind "filter" 3 stages vfm-curate filter -q --min x=0 -j 1
is "$(for order in "good" "bad good" "good bad"; do grep -hc '"tool":"u"' "stages/$order/out.jsonl"; done | tr '\n' ' ')" "0 0 0 " "filter: a refused header adds no stage"

# ---- media, and the stages: one thread works on both
mkdir -p media/in
vfm-curate synth -q --count 2 --size 64x48 --frames 17 -d s >/dev/null || skip_all "no encoder"
mv s/000000.mp4 media/in/good
head -c 1000 s/000001.mp4 >media/in/bad
behind "probe" 1 media vfm-curate probe -q -j 1
good=$(vfm-curate probe -q media/in/good | records | jq -c '.id = "good1" | .caption = "a good one" | .src = "../../media/in/good"')
# A record that is right up to its last frame, which the file lacks: the stage has worked when it fails.
bad=$(jq -c '.id = "bad1" | .end_frame = 40 | .start_frame = 0 | .start_pts = 0 | .frames = 40' <<<"$good")
stage() {
	mkdir -p "stage-$1/in"
	echo "$good" >"stage-$1/in/good"
	echo "${3:-$bad}" >"stage-$1/in/bad"
	# shellcheck disable=SC2086 # words
	behind "$1" 1 "stage-$1" vfm-curate $2 -q -j 1
}
gone=$(jq -c '.src = "../../nowhere.mp4"' <<<"$bad")
stage split "split" "$gone"
stage clip "clip -d d"
stage clip-fps "clip -d d --fps 10 --height 24"
stage clip-vfr "clip -d d" "$(jq -c '.vfr = true' <<<"$bad")"
stage score "score"
stage hash "hash"
stage encode "encode -d d"
stage encode-text "encode -d d --text bytes:64" "$(jq -c '.id = "bad1" | .caption = 3' <<<"$good")"
if [ -x "$B/tests/tools/toy_model" ]; then
	stage encode-exec "encode -d d --exec $B/tests/tools/toy_model"
	stage caption-exec "caption --exec $B/tests/tools/toy_model" "$(jq -c 'del(.caption)' <<<"$gone")"
	stage score-exec "score --exec $B/tests/tools/toy_model" "$gone"
	stage embed-exec "embed -d d --exec $B/tests/tools/toy_model" "$gone"
fi
good=$(cd stage-encode/good && vfm-curate encode -q -d "$PWD/e" good | records)
for change in '.latent.path = .text.path' '.text.path = .latent.path' '.text.sha256 = .latent.sha256' '.latent.path = "none"' 'del(.latent)' '.text.maker = 3'; do
	bad=$(jq -c ".id = \"bad1\" | $change" <<<"$good")
	rm -rf stage-shard stage-decode
	stage shard "shard -d d --with-media" "$bad"
	ok "shard: behind $change: the bytes of the good sample" cmp "stage-shard/good/d/000000.tar" "stage-shard/bad good/d/000000.tar"
	case $change in *latent*=* | del*) stage decode "decode -d d" "$bad" ;; esac
done
done_testing
