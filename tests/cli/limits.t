#!/bin/bash
# What a stage reads: regular files alone, within the time limit of the record; and which names probe takes.
. "${0%/*}/lib.sh"
command -v jq >/dev/null || skip_all "no jq"

vfm-curate synth -q --count 1 --frames 40 -d syn >syn.jsonl || exit 1
cp syn/000000.mp4 good.bin
mkfifo pipe.mp4
ln -s nowhere dangling.mp4
mkdir folder.mp4
truncate -s 200G sparse.mp4
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket.mp4")' 2>/dev/null
exec 7<>pipe.mp4 # both ends are open: a reader of the FIFO would wait for data

# ---- operands of probe
run_stage timeout 20 vfm-curate probe pipe.mp4 dangling.mp4 folder.mp4/ /dev/zero good.bin none.mp4
rc_is 1 "probe: operands that cannot be read are failed records"
is "$(jq -r '.error // "good"' <<<"$out")" "'pipe.mp4' is a FIFO, not a regular file
cannot open 'dangling.mp4': No such file or directory
'/dev/zero' is a character device, not a regular file
good
cannot open 'none.mp4': No such file or directory" "probe: no operand is ignored: each says what it is, and a name of any kind is read"
like "$err" '5 in = 1 out \+ 0 dropped \+ 4 failed' "probe: and each is counted"
LC_ALL=C sed 's/avc1/xyz1/g' good.bin >fourcc.mp4
run_stage vfm-curate probe -q fourcc.mp4
is "$(jq -r .error <<<"$out")" "'fourcc.mp4': no decoder for fourcc 'xyz1'" "probe: a codec that FFmpeg does not know has its fourcc"
if [ -S socket.mp4 ]; then
	run_stage timeout 20 vfm-curate probe socket.mp4
	like "$out" "'socket.mp4' is a socket, not a regular file" "probe: a socket"
else
	skip 1 "no sockets here"
fi
run_stage timeout 20 vfm-curate probe -q < <(printf 'folder.mp4\npipe.mp4\n')
is "$(jq -r .error <<<"$out")" "'folder.mp4' is a folder, not a regular file
'pipe.mp4' is a FIFO, not a regular file" "probe: names on stdin"
mkdir walk
cp good.bin walk/a.mp4
cp good.bin walk/unknown.bin
ln -s nowhere walk/b.mp4
ln -s nowhere walk/b.txt
mkfifo walk/c.mkv walk/c.fifo
run_stage timeout 20 vfm-curate probe walk
is "$(jq -r '[.src, .error // "good"] | join(": ")' <<<"$out")" "walk/a.mp4: good
walk/b.mp4: cannot open 'walk/b.mp4': No such file or directory
walk/c.mkv: 'walk/c.mkv' is a FIFO, not a regular file" "probe: a folder: special files and dangling links with the name of media are reported"
like "$err" '3 files in folders have no name of a video or image and were left out' "probe: a folder: the others are counted"
mkdir -p mac/__MACOSX/v mac/v
cp good.bin mac/v/x.mp4
cp good.bin mac/v/._x.mp4
cp good.bin mac/__MACOSX/v/y.mp4
run_stage vfm-curate probe mac
is "$(jq -r '.src' <<<"$out")" mac/v/x.mp4 "probe: a folder: what macOS stores beside a file is no video"
like "$err" "2 files in folders .* left out \(--all\): 'mac/__MACOSX/v/y.mp4', 'mac/v/._x.mp4'" "probe: and is named"
run_stage vfm-curate probe --all mac
is "$(jq -r '.src' <<<"$out" | wc -l)" 3 "probe --all: reads it"
ln -s . walk/loop
run_stage timeout 20 vfm-curate probe walk
like "$out" "walk/loop' is a folder that contains itself" "probe: a loop of links is reported"
rm walk/loop

# ---- the other stages open no FIFO
for stage in split "clip -d c" "clip -d c --height 64" score "encode -d e"; do
	for kind in video image; do
		# shellcheck disable=SC2086 # words
		run_stage timeout 20 vfm-curate $stage <<<"{\"v\":1,\"id\":\"x\",\"kind\":\"$kind\",\"src\":\"pipe.mp4\"}"
		if [ "$stage $kind" = "split image" ]; then continue; fi
		is "$rc $(jq -r .error <<<"$out")" "1 'pipe.mp4' is a FIFO, not a regular file" "$stage: a FIFO as $kind"
	done
done
run timeout 20 vfm-curate sheet -o s.html <<<'{"v":1,"id":"x","kind":"video","src":"pipe.mp4"}'
is "$rc" 1 "sheet: a FIFO"
run_stage timeout 20 vfm-curate shard -d s <<<'{"v":1,"id":"x","latent":{"path":"pipe.mp4"}}'
is "$rc $(jq -r .error <<<"$out")" "1 'pipe.mp4' is a FIFO, not a regular file" "shard: a FIFO as latents"
vfm-curate encode -q -d e --size 32x32 syn.jsonl | vfm-curate shard -q -d data >/dev/null
rm data/000000.tar.idx && mkfifo data/000000.tar.idx
run timeout 20 vfm-curate verify data
is "$rc $(jq -r .error <<<"$out")" "1 'data/000000.tar.idx' is a FIFO, not a regular file" "verify: a FIFO as index"
exec 7>&-

# ---- the limit covers all work on a record
start=$SECONDS
run_stage timeout 60 vfm-curate probe --timeout 1 sparse.mp4
is "$rc $(jq -r .error <<<"$out")" "1 'sparse.mp4': gave up after 1 s" "probe --timeout: the hash of 200 GB"
run_stage timeout 60 vfm-curate score --timeout 1 <<<'{"v":1,"id":"x","kind":"video","src":"sparse.mp4"}'
is "$rc" 1 "score --timeout: a file of zeros"
ok "and both ended in time" test $((SECONDS - start)) -lt 20
for stage in split "clip -d c" score "encode -d e"; do
	# shellcheck disable=SC2086 # words
	run_stage timeout 60 vfm-curate $stage --timeout 0.000001 syn.jsonl
	like "$rc $(jq -r .error <<<"$out")" "^1 'syn/000000.mp4': gave up after 1e-06 s$" "$stage --timeout"
done
run_stage timeout 60 vfm-curate clip -d c --timeout 0.000001 <<<'{"v":1,"id":"x","kind":"image","src":"sparse.mp4"}'
is "$rc $(jq -r .error <<<"$out")" "1 'sparse.mp4': gave up after 1e-06 s" "clip --timeout: an image that is copied"
ok "and nothing is left of it" test -z "$(ls -A c)"
for stage in probe split "clip -d c" score "encode -d e"; do
	for bad in 0 -1 nan inf; do
		# shellcheck disable=SC2086 # words
		run_stage timeout 20 vfm-curate $stage --timeout=$bad syn.jsonl
		is "$rc" 2 "$stage --timeout $bad is bad usage"
	done
done

# ---- ranges
for range in '"end_frame":1000000000000000000' '"end_frame":41' '"start_frame":39,"end_frame":41'; do
	for stage in "clip -d c" score; do
		# shellcheck disable=SC2086 # words
		run_stage timeout 30 vfm-curate $stage <<<"{\"v\":1,\"id\":\"x\",\"kind\":\"video\",\"src\":\"syn/000000.mp4\",$range}"
		like "$rc $(jq -r .error <<<"$out")" "^1 'syn/000000.mp4': the file ended at frame 40, before end_frame 1?0*(41)?$" "${stage%% *}: a range beyond the end: $range"
	done
done
done_testing
