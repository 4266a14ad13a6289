#!/bin/bash
# Members of tars as sources, and vfm-curate index: foreign WebDataset tars of all formats, damage, and every stage on members.
. "${0%/*}/lib.sh"
for tool in ffmpeg jq tar python3; do command -v $tool >/dev/null || skip_all "no $tool"; done
W=$TOP/tests/tools/write_tar.py R=$TOP/tests/tools/tar_samples.py

make_media() { # NAME ARG ...
	local name=$1
	shift
	ffmpeg -nostdin -v error -y "$@" "$name" || skip_all "ffmpeg cannot make $name"
}
sources() { records "$@" | jq -r 'select(.error == null) | .src'; }
errors() { records "$@" | jq -r '.error // empty'; }
# Like tar_samples.py, of the media that an index lists: reads each member at the offset that its src names.
members() {
	records | jq -r 'select(.error == null) | [.key, .src] | @tsv' | python3 -c '
import hashlib, re, sys, tarfile
for line in sys.stdin:
    key, src = line.rstrip("\n").split("\t")
    tar, at, size, name = re.match(r"^(.+?)@(\d+)\+(\d+)/(.+)$", src).groups()
    with open(tar, "rb") as f:
        f.seek(int(at))
        info = tarfile.open(fileobj=f).next()
        f.seek(int(at))
        data = tarfile.open(fileobj=f).extractfile(info).read()
    assert info.name == name and len(data) == int(size), (src, info.name)
    print(key, name[len(key) + 1:].lower(), hashlib.sha256(data).hexdigest())'
}

make_media a.mp4 -f lavfi -i testsrc2=s=96x64:r=10:d=2 -c:v libx264 -bf 2 -g 10 -pix_fmt yuv420p
make_media b.mkv -f lavfi -i testsrc=s=64x48:r=12:d=1 -f lavfi -i sine=d=1 -c:v libx264 -pix_fmt yuv420p
make_media c.jpg -f lavfi -i testsrc2=s=120x80 -frames:v 1
make_media d.mp4 -f lavfi -i testsrc2=s=96x64:r=10:d=2 -movflags +faststart -c:v mpeg4
echo 'a clip of bars' >a.txt
echo '{"caption": "from json", "author": {"name": "x"}, "score": 2.5}' >b.json
printf 7 >c.cls
printf 'no number' >d.cls
long=$(printf 'long%.0s' {1..40})
long_dir=$(printf 'folder%.0s' {1..25})/$(printf 'second%.0s' {1..25})

# ---- tars of tar(1) and tarfile: the same keys and bytes as other readers see
mkdir -p tree/"$long_dir" tree/sub.dir
cp a.mp4 tree/000001.mp4
cp a.txt tree/000001.txt
cp b.mkv tree/000002.MKV
cp b.json tree/000002.json
cp c.jpg tree/sub.dir/000003.jpg
cp c.cls tree/sub.dir/000003.cls
cp d.mp4 tree/sub.dir/"$long".seg1.mp4
cp d.cls tree/sub.dir/"$long".cls
echo hidden >tree/.000004.mp4
echo none >tree/readme
echo note >tree/__note__
ln -s 000001.mp4 tree/000009.mp4
mkdir shards
list() { (cd tree && find . -printf '%P\n' | grep . | LC_ALL=C sort); }
for format in ustar pax gnu v7; do
	list | tar -C tree --no-recursion --format $format -cf shards/$format.tar -T - 2>/dev/null
done
cp c.jpg tree/"$long_dir"/000005.jpg
for format in pax gnu; do
	list | tar -C tree --no-recursion --format $format -cf shards/$format.tar -T -
	# shellcheck disable=SC2046
	python3 "$W" $format shards/py-$format.tar 000001.mp4=a.mp4 000001.txt=a.txt "$long_dir/x.jpg=c.jpg" "ü/é.jpg=c.jpg"
done
python3 "$W" ustar shards/py-ustar.tar x/1.mp4=a.mp4 x/1.json=b.json
tar -C tree -cf shards/dotted.tar ./000001.mp4 ./000001.txt
for t in shards/*.tar; do
	run_stage vfm-curate index "$t"
	rc_is 0 "index: $t"
	is "$(members <<<"$out")" "$(python3 "$R" "$t" | grep -E ' ([^ ]*\.)?(mp4|mkv|jpg) [0-9a-f]*$')" "index: keys and bytes of $t"
done
[ -n "${VFM_WEBDATASET:-}" ] && for t in shards/*.tar; do
	is "$(vfm-curate index -q "$t" | members)" \
		"$("$VFM_WEBDATASET" "$R" --webdataset "$t" | grep -E ' ([^ ]*\.)?(mp4|mkv|jpg) [0-9a-f]*$')" "index: webdataset reads $t alike"
done
run_stage vfm-curate index shards/gnu.tar
like "$err" "3 members are neither .*: '.000004.mp4', '__note__', 'readme'" "index: what was left out is counted and named"
like "$err" "1 hard or symbolic links were left out, as WebDataset does: '000009.mp4'" "index: and links"
python3 - <<'END'
import io, tarfile
with tarfile.open("latin.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin1") as t:
    for name in "\xe9.mp4", "good.mp4":
        member = tarfile.TarInfo(name)
        member.size = 3
        t.addfile(member, io.BytesIO(b"abc"))
END
run_stage vfm-curate index latin.tar
like "$rc $(jq -r '.error // .key' <<<"$out" | paste -sd ' ')" "^1 'latin.tar': .*'[?].mp4'.* good$" "index: a name that is not UTF-8 is named as far as it can be"
run_stage vfm-curate index shards/gnu.tar
one() { jq -c --arg k "$1" 'select(.key == $k) | del(.by, .src)' <<<"$out"; }
is "$(one 000001)" '{"v":1,"kind":"video","key":"000001","caption":"a clip of bars"}' "index: the caption of a txt"
is "$(one 000002)" '{"v":1,"kind":"video","key":"000002","caption":"from json","meta":{"caption":"from json","author":{"name":"x"},"score":2.5}}' \
	"index: caption and meta of a json"
is "$(one sub.dir/000003)" '{"v":1,"kind":"image","key":"sub.dir/000003","cls":7}' "index: a class"
is "$(one "sub.dir/$long" | jq -c .cls)" '"no number"' "index: a class that is a text"

run_stage vfm-curate index shards
rc_is 0 "index: a folder"
is "$(jq -r '.src | split("@")[0]' <<<"$out" | uniq)" "$(printf '%s\n' shards/*.tar | LC_ALL=C sort)" "index: tars in the order of their names"
cp "$SCRATCH/io/out" all.jsonl
run_stage vfm-curate index -j 3 shards/
is "$(jq -cS 'del(.by)|.src |= sub("//"; "/")' <<<"$out" | md5sum)" "$(records all.jsonl | jq -cS 'del(.by)' | md5sum)" "index: the same with threads"
printf '%s\0' shards/gnu.tar | vfm-curate index -q -0 >nul.jsonl
is "$(count nul.jsonl)" "$(vfm-curate index -q shards/gnu.tar | count)" "index: names on stdin"
for i in 0 1 2; do vfm-curate index -q --part $i/3 shards >part$i.jsonl; done
is "$(sources part?.jsonl | sort | md5sum)" "$(sources all.jsonl | sort | md5sum)" "index: the shares together are all"
ok "index: and none is empty" test "$(count part0.jsonl)" -gt 0 -a "$(count part1.jsonl)" -gt 0 -a "$(count part2.jsonl)" -gt 0
vfm-curate index -q --hash shards/gnu.tar | records | jq -r '[.key, .id] | @tsv' | grep -E '^00000[12]' >ids
is "$(cut -f 2 ids | paste -sd ' ')" "$(sha256sum a.mp4 b.mkv | cut -c 1-16 | paste -sd ' ')" "index --hash: ids are those of the content"
vfm-curate index -q --hash --done all.jsonl shards >again.jsonl 2>/dev/null
is "$(records again.jsonl | jq -s 'map(.id != null) | all')" true "index --done: another option, nothing is copied"

# ---- what is damaged
run_stage vfm-curate index shards/none.tar
rc_is 1 "index: a tar that is missing"
like "$(errors <<<"$out")" "cannot open 'shards/none.tar'" "index: is named"
gzip -k shards/ustar.tar
xz -k shards/ustar.tar 2>/dev/null || cp /dev/null shards/ustar.tar.xz
mkdir zipped && mv shards/*.gz shards/*.xz zipped
run_stage vfm-curate index zipped
rc_is 1 "index: compressed tars"
like "$(errors <<<"$out" | head -1)" "ustar.tar.gz' is compressed with gzip, so that no member can be read alone" "index: say why they are refused"
for at in 700 1500 20000; do
	head -c $at shards/gnu.tar >torn.tar
	run_stage vfm-curate index torn.tar
	rc_is 1 "index: a tar cut at byte $at"
	like "$(tail -n 1 <<<"$out" | jq -r .error)" "^'torn.tar': trunc.*\(at byte [0-9]+\)" "index: says so in a record"
done
is "$(head -n 1 <<<"$out" | jq -r .key)" 000001 "index: what can be read is listed"
like "$(errors <<<"$out")" "other members of sample '00000[0-9]' may be missing" "index: the sample that was cut is named"
{ cat shards/py-ustar.tar; cat shards/py-gnu.tar; } >two.tar
run_stage vfm-curate index two.tar
is "$rc $(sources <<<"$out" | wc -l)" "1 1" "index: of concatenated tars the first"
like "$(errors <<<"$out")" "ends at byte [0-9]+, but data follow at byte [0-9]+, which were not read" "index: and it says so"
python3 "$W" pax twice.tar k.mp4=a.mp4 k.mp4=d.mp4 k.txt=a.txt
run_stage vfm-curate index twice.tar
is "$(sources <<<"$out" | wc -l)" 1 "index: a member that occurs twice"
like "$(errors <<<"$out")" "'k.mp4' occurs twice in a sample" "index: is an error"
printf '{"caption": ' >bad.json
printf '[1]' >list.json
printf 'a\xff' >bad.txt
python3 "$W" pax bad.tar 1.mp4=a.mp4 1.json=bad.json 2.mp4=a.mp4 2.txt=bad.txt 3.mp4=a.mp4 3.json=list.json 4.mp4=a.mp4 5.npy 5.txt
run_stage vfm-curate index bad.tar
is "$rc $(jq -r 'select(.error == null) | .key' <<<"$out" | paste -sd ' ')" "1 1 3 4" "index: a txt that cannot be read is an error, a json is not"
like "$(errors <<<"$out")" "sample '2', '2.mp4': txt is not UTF-8" "index: and is named"
is "$(jq -r '.meta_error // empty' <<<"$out" | paste -sd '|')" "json:1:12: unexpected token near end of file|json is no object" "index: meta_error says why"
like "$err" "2 records have a json that cannot be read and no meta: '1.json', '3.json'" "index: they are counted and named"
like "$err" "1 samples have no video or image and were left out: '5'" "index: samples without media are counted and named"

# ---- texts and metadata of other programs
printf 'a cat\0' >nul.txt
printf '\xef\xbb\xbfa \001 cat\r\n' >bom.txt
printf '\xef\xbb\xbf{"caption":"c","a":NaN,"b":[-Infinity,Infinity],"c":"NaN","d":18446744073709551615,"e":-9223372036854775808,"f":1e999,"g":-1%s}' \
	"$(printf '0%.0s' {1..400})" >loose.json
{ printf '{"a":'; printf '[%.0s' {1..1001}; printf ']%.0s' {1..1001}; printf '}'; } >deep.json
printf '{"a":1,"a":2}' >same.json
printf '{"a":"\\u0000"}' >zero.json
printf '{"a":"%s"}' "$(head -c $((9 << 20)) /dev/zero | tr '\0' x)" >big.json
python3 "$W" pax foreign.tar 1.mp4=a.mp4 1.txt=nul.txt 2.mp4=a.mp4 2.txt=bom.txt 2.json=loose.json 3.mp4=a.mp4 3.cls=nul.txt \
	4.mp4=a.mp4 4.json=deep.json 4.txt=a.txt 5.mp4=a.mp4 5.json=same.json 6.mp4=a.mp4 6.json=zero.json 7.mp4=a.mp4 7.json=big.json
run_stage vfm-curate index foreign.tar
rc_is 1 "index: texts with zero bytes"
is "$(errors <<<"$out" | paste -sd '|')" "'foreign.tar': sample '1', '1.mp4': txt has a zero byte|'foreign.tar': sample '3', '3.mp4': cls has a zero byte" "index: are errors of their records"
is "$(one 2)" '{"v":1,"kind":"video","key":"2","caption":"a \u0001 cat","meta":{"caption":"c","a":null,"b":[null,null],"c":"NaN","d":18446744073709552000,"e":-9223372036854776000,"f":null,"g":null}}' \
	"index: byte order marks are dropped, NaN is null, and large integers are numbers"
is "$(jq -r 'select(.meta_error) | .key' <<<"$out" | paste -sd ' ')" "4 5 6 7" "index: a json that no record can hold: the record has no meta"
is "$(one 4 | jq -c '[.caption, .meta_error]')" '["a clip of bars","json:1:1: deeper than 1000"]' "index: and keeps its caption"
vfm-curate index -q foreign.tar >foreign.jsonl
run_stage vfm-curate probe --records foreign.jsonl
is "$(jq -s 'map(select(.id)) | length' <<<"$out")" 5 "probe: reads all of these records"
{ printf '{"v":1,"id":"x","src":"'; head -c $(((16 << 20) - 50)) /dev/zero | tr '\0' x; printf '"}\n'; } >long.jsonl
run vfm-curate clip -q -d long long.jsonl
like "$rc $(records <<<"$out" | jq -r '.error')" "^1 the record has 1678[0-9]* bytes, at most 16777216 are allowed" "a line that the next stage would refuse is an error"
for stage in clip encode decode fetch embed; do
	run vfm-curate "$stage" -q -d $'d\xff' foreign.jsonl
	like "$rc $err" "2 .*option '-d': 'd.*' is not UTF-8" "$stage -d: a name that records cannot hold"
done

# ---- names with dots
printf 'a dog' >dog.txt
python3 "$W" pax dots.tar 'clip 2.0 (x).mp4=a.mp4' 'clip 2.0 (x).TXT=a.txt' 22.0/1.1.mp4=b.mkv 22.0/1.1.txt=dog.txt 22.0/1.2.mp4=a.mp4 22.0/1.2.txt=a.txt \
	22.0/1.3.mp4=a.mp4 k.a.b.mp4=a.mp4 k.txt=a.txt k.b.txt=dog.txt __x.y.mp4=a.mp4
run_stage vfm-curate index dots.tar
is "$(jq -r '[.key, (.src | split("/") | last), .caption] | @tsv' <<<"$out")" "clip 2	clip 2.0 (x).mp4	a clip of bars
22.0/1	1.1.mp4	a dog
22.0/1	1.2.mp4	a clip of bars
22.0/1	1.3.mp4	
k	k.a.b.mp4	a clip of bars
__x	__x.y.mp4	" "index: names with dots: a caption belongs to the video with its prefix, or to all"
like "$err" "1 members are neither [^']*: 'k.b.txt'" "index: a caption without its video is named"

# shellcheck disable=SC2046
python3 "$W" ustar many.tar $(seq -f 'k.%g.jpg' 300)
run_stage vfm-curate index many.tar
like "$(sources <<<"$out" | wc -l) $(errors <<<"$out")" "^256 .*more than 256 media members" "index: a sample has a limit"
mkdir -p 'x@1+2' && cp shards/py-ustar.tar 'x@1+2/y.tar'
run_stage vfm-curate index 'x@1+2/y.tar'
like "$(errors <<<"$out")" "has the name of a member of a tar" "index: a tar that cannot be named"

# ---- stages on members
python3 "$W" gnu t.tar 1.mp4=a.mp4 1.txt=a.txt "$long_dir/2.mkv=b.mkv" 3.jpg=c.jpg 4.mp4=d.mp4 5.mp4=/dev/null
cp t.tar good.tar
vfm-curate index -q t.tar >t.jsonl
run_stage vfm-curate probe --records t.jsonl
rc_is 1 "probe --records: an empty member fails"
like "$(errors <<<"$out")" "5.mp4' is empty" "probe --records: and is named"
cp "$SCRATCH/io/out" probed.jsonl
vfm-curate probe -q a.mp4 b.mkv c.jpg d.mp4 >files.jsonl
facts() { records "$@" | jq -cS 'select(.error == null) | del(.src, .by, .key, .caption)'; }
is "$(facts probed.jsonl)" "$(facts files.jsonl)" "probe --records: the facts and ids of members are those of the files"
is "$(records probed.jsonl | jq -r 'select(.key == "1") | .caption')" "a clip of bars" "probe --records: other keys are kept"
echo '{"v":1,"id":"mine","src":"a.mp4"}' | vfm-curate probe -q --records >mine.jsonl
is "$(records mine.jsonl | jq -r '[.id, .source_id] | @tsv')" "$(sha256sum a.mp4 | cut -c 1-16)	mine" "probe --records: another id is kept"
echo '{"v":1,"src":"a.mp4","start_frame":3}' | vfm-curate probe -q --records >range.jsonl
like "$(errors range.jsonl)" "clip within its file" "probe --records: refuses clips"
run vfm-curate probe --records --all t.jsonl
rc_is 2 "probe --records: not with options of names"

records probed.jsonl | jq -c 'select(.error == null)' >ok.jsonl
jq -c --slurpfile f <(records files.jsonl) '.src = (.id as $i | $f[] | select(.id == $i) | .src)' ok.jsonl >ok-files.jsonl
strip='walk(if type == "object" then del(.src, .by, .part) else . end)'
for stage in score hash "split --max-s 1 --min-s 0.3"; do
	# shellcheck disable=SC2086
	vfm-curate $stage -q ok.jsonl | records | jq -cS "$strip" >1.jsonl
	# shellcheck disable=SC2086
	vfm-curate $stage -q ok-files.jsonl | records | jq -cS "$strip" >2.jsonl
	ok "$stage: members as files" cmp 1.jsonl 2.jsonl
	ok "$stage: without an error" jq -es 'length > 3 and all(.error == null)' 1.jsonl
done
for options in "" "--copy" "--audio keep" "--size 32x32"; do
	# shellcheck disable=SC2086
	vfm-curate split -q --max-s 1 --min-s 0.3 ok.jsonl | vfm-curate clip -q $options -d m >m.jsonl
	# shellcheck disable=SC2086
	vfm-curate split -q --max-s 1 --min-s 0.3 ok-files.jsonl | vfm-curate clip -q $options -d f >f.jsonl
	is "$(cd m && md5sum -- *)" "$(cd f && md5sum -- *)" "clip $options: members as files"
	ok "clip $options: without an error" jq -es 'length > 3 and all(.error == null)' <(records m.jsonl)
	is "$(records m.jsonl | jq -r '.origin.src' | sort -u)" "$(jq -r .src ok.jsonl | sort -u)" "clip $options: origin names the member"
	rm -r m f
done
ok "sheet: members" vfm-curate sheet -q -o sheet.html ok.jsonl
vfm-curate sheet -q -o sheet2.html ok-files.jsonl
ok "sheet: as files" cmp sheet.html sheet2.html
ok "report: members" vfm-curate report -q -o page.html ok.jsonl
is "$(grep -o "<td><a href='[^>]*>[^<]*</a><td class=num>4<" page.html)" "<td><a href='t.tar'>t.tar</a><td class=num>4<" "report: the source is the tar"
vfm-curate encode -q -d enc-m ok.jsonl | records >enc-m.jsonl
vfm-curate encode -q -d enc-f ok-files.jsonl >/dev/null
ok "encode: members as files" diff -r enc-m enc-f
run vfm-curate shard -q -d data --with-media enc-m.jsonl
rc_is 0 "shard --with-media: members"
is "$(tar -xOf data/000000.tar "$(sha256sum a.mp4 | cut -c 1-16).mp4" | sha256sum)" "$(sha256sum <a.mp4)" "shard --with-media: their content"
toy=$B/tests/tools/toy_model
if [ -x "$toy" ]; then
	run_stage vfm-curate caption --overwrite --exec "$toy -i '{\"kind\":\"clip\"}'" ok.jsonl
	like "$rc $(errors <<<"$out" | head -1)" "1 .*member of a tar, which the model cannot open: run clip before" "caption: a model that reads files"
	for list in ok ok-files; do vfm-curate caption -q --overwrite --exec "$toy" $list.jsonl | records | jq -cS "$strip" >$list.captions; done
	ok "caption: a model that gets frames" cmp ok.captions ok-files.captions
else
	skip 2 "build/tests/tools/toy_model is not built (make check-build)"
fi
echo '{"inputs": ["t.tar"], "stages": [{"stage": "index"}, {"stage": "probe", "records": true}, {"stage": "hash"},
	{"stage": "clip", "dir": "run-clips"}]}' >p.json
run vfm-curate run -c p.json -d run
rc_is 1 "run: index and probe as stages"
is "$(records run/03-clip.jsonl | jq -r 'select(.error == null) | .key')" "$(jq -r .key ok.jsonl)" "run: their records"
is "$(find run-clips -type f | wc -l)" 4 "run: their clips"
echo '{"inputs": ["t.tar"], "stages": [{"stage": "index"}, {"stage": "probe"}]}' >p2.json
run vfm-curate run -c p2.json -d run2
like "$rc $err" "2 .*probe reads no records" "run: probe of names is a first stage only"

# ---- tars that have changed since
first=$(jq -r 'select(.key == "1") | .src' ok.jsonl)
again() { # WHAT REGEX
	run_stage vfm-curate hash ok.jsonl
	rc_is 1 "$1: fails"
	like "$(errors <<<"$out" | head -1)" "$2" "$1: says why"
}
python3 "$W" gnu t.tar 0.txt 1.mp4=a.mp4
again "a changed tar" "'t.tar@0.*1.mp4': the tar was changed or truncated after it was indexed: byte 0 of 't.tar' begins '0.txt'"
python3 "$W" gnu t.tar 1.mp4=d.mp4
again "a changed member" "'1.mp4' in 't.tar' has [0-9]+ bytes"
head -c 3000 good.tar >t.tar
again "a truncated tar" "changed or truncated after it was indexed: 't.tar': truncated member \(at byte 0\)"
{ printf 'xx'; cat good.tar; } >t.tar
again "a shifted tar" "wrong header checksum"
head -c 1 good.tar >t.tar
again "a tar of a byte" "no end of archive"
rm t.tar
again "a lost tar" "the tar of 't.tar@0.*1.mp4': cannot open 't.tar'"
mkfifo t.tar
again "a FIFO" "'t.tar' is a FIFO"
rm t.tar
cp good.tar t.tar
mkdir -p "${first%/*}" && cp d.mp4 "$first"
is "$(vfm-curate probe -q --records <<<"{\"v\":1,\"src\":\"$first\"}" | records | jq -r .id)" "$(sha256sum a.mp4 | cut -c 1-16)" \
	"a file with the name of a member: the member is read"
for bad in 't.tar@+1/x' 't.tar@01+1/x' 't.tar@1+/x' 't.tar@1+1/' '@1+1/x' 't.tar@99999999999999999999+1/x'; do
	like "$(vfm-curate probe -q --records <<<"{\"v\":1,\"src\":\"$bad\"}" | errors)" "^cannot open '${bad//+/\\+}'" "no member: $bad"
done
done_testing
