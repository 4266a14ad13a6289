#!/bin/bash
# vfm-curate hash, dedup, search: copies of clips are found, others are not; the best is kept; indexes; vectors.
. "${0%/*}/lib.sh"

toy=$B/tests/tools/toy_model
run vfm-curate synth -q --count 6 -d clips
rc_is 0 "clips"
records "$SCRATCH/io/out" >syn.jsonl

# Four films, and copies of two: smaller and mirrored, and larger and darker.
mkdir films
for i in 0 1 2; do
	ffmpeg -v error -f lavfi -i "mandelbrot=s=160x120:r=12:start_x=-0.$((7 + i))$i:start_y=-0.$i$((i + 2)):start_scale=$((i + 1)):end_pts=60" \
		-t 3 -pix_fmt yuv420p -c:v libx264 -preset veryfast "films/$i.mp4" </dev/null
done
ffmpeg -v error -f lavfi -i testsrc2=s=160x120:r=12 -t 3 -pix_fmt yuv420p -c:v libx264 films/3.mp4 </dev/null
ok "copies" bash -c "
	ffmpeg -v error -i films/0.mp4 -vf hflip,scale=96:-2 mirrored.mp4 </dev/null &&
	ffmpeg -v error -i films/1.mp4 -vf scale=iw*2:ih*2,eq=contrast=0.8 large.mp4 </dev/null"
ok "records of the films" bash -c "vfm-curate probe -q films | jq -c 'select(.provenance|not)' >films.jsonl"
ok "records of the copies" bash -c "vfm-curate probe -q mirrored.mp4 large.mp4 | jq -c 'select(.provenance|not)' >copies.jsonl"
ok "hashes" bash -c 'vfm-curate hash -q -j 2 films.jsonl copies.jsonl >hashed.jsonl'
is "$(records hashed.jsonl | jq -s 'all(.hash.clip and .hash.slots > 0)')" true "each record has a hash"
run vfm-curate hash -q --done hashed.jsonl films.jsonl copies.jsonl
is "$(records "$SCRATCH/io/out")" "$(records hashed.jsonl)" "--done copies hashes"

run vfm-curate dedup --index one.vfd hashed.jsonl
rc_is 0 "dedup"
like "$err" '6 in = 4 out \+ 2 dropped \+ 0 failed' "two copies are dropped, counts add up"
cp "$SCRATCH/io/out" out.jsonl
is "$(records out.jsonl | jq -r 'select(.drop and .width < 200 and (.src | test("mirrored"))) | .dedup.mirrored')" true "the smaller copy is dropped, and mirrored"
small=$(jq -r 'select(.src | test("films/1")).id' films.jsonl) large=$(records out.jsonl | jq -r 'select(.src | test("large")) | .id')
is "$(records out.jsonl | jq -r "select(.id == \"$small\") | .drop + \" of \" + .dedup.of")" "dedup: duplicate of $large" "the larger one of two is kept"
is "$(records out.jsonl | jq "select(.id == \"$large\") | .dedup.copies")" 1 "... which counts its copies"

# Two takes before one fixed camera, in which a small square takes other ways, and copies of the first.
ok "takes of a fixed camera" bash -c "
	for i in 1 2; do
		ffmpeg -v error -f lavfi -i testsrc2=s=320x180:r=20:d=4 -f lavfi -i color=red:s=12x12:r=20:d=4 -filter_complex \
			\"[0]trim=end_frame=1,loop=80:1[b];[b][1]overlay=x='150+110*sin(t*(1+\$i))':y='80+60*cos(t*(4-\$i))':shortest=1\" \
			-t 4 -pix_fmt yuv420p -c:v libx264 -preset veryfast take\$i.mp4 </dev/null || exit
	done
	ffmpeg -v error -ss 0.7 -i take1.mp4 -vf hflip,scale=240:-2,pad=iw:ih+40:0:20,eq=contrast=0.85 copy1.mp4 </dev/null &&
	ffmpeg -v error -i take1.mp4 -vf crop=iw*0.94:ih*0.94,fps=12 -crf 34 copy2.mp4 </dev/null"
vfm-curate probe -q take1.mp4 take2.mp4 copy1.mp4 copy2.mp4 | vfm-curate hash -q >takes.jsonl
run vfm-curate dedup --keep-best frames takes.jsonl
like "$err" '4 in = 2 out \+ 2 dropped' "the takes are kept, the copies dropped"
is "$(records "$SCRATCH/io/out" | jq -r 'select(.drop|not).src | sub(".*/"; "")' | sort | paste -sd ' ')" "take1.mp4 take2.mp4" "... these takes"

run vfm-curate dedup -q <hashed.jsonl
is "$(records "$SCRATCH/io/out")" "$(records out.jsonl)" "from a pipe, the same"
run vfm-curate dedup -q -j 3 --keep-best frames hashed.jsonl
is "$(records "$SCRATCH/io/out" | jq -s 'map(select(.drop)) | length')" 2 "--keep-best frames"
run vfm-curate dedup --keep-best score.sharpnes hashed.jsonl
like "$rc $err" "^0 .*warning: --keep-best: no record has 'score.sharpnes'" "a key that no record has is told"

# The result does not depend on the number of threads.
OMP_NUM_THREADS=1 vfm-curate dedup -q -j 1 hashed.jsonl >j1.jsonl
OMP_NUM_THREADS=5 vfm-curate dedup -q -j 5 hashed.jsonl >j5.jsonl
ok "the same with 1 and 5 threads" cmp j1.jsonl j5.jsonl

# Records in the form of vfm are worked on as text; others, here with a blank in front, are parsed: the same comes out.
{
	head -n 1 hashed.jsonl
	records hashed.jsonl | jq -c '.caption = "a \"b\"\n\u00e9" | .by.clip = "0123456789abcdef" | .big = 0.1' |
		sed '3s/^{"v":1/&,"dedup":{"copies":7}/'
	records hashed.jsonl | tail -n 2
	echo '{"v":1,"id":"dropped","drop":"score: dark"}'
	echo '{"v":1,"id":"failed","error":"no file"}'
	echo '{"v":1,"id":"bare"}'
	echo '{"v":2,"id":"new"}'
	echo 'no record'
} >text.jsonl
sed 's/^{/ {/' text.jsonl >parsed.jsonl
vfm-curate dedup -q text.jsonl >of_text.jsonl
vfm-curate dedup -q parsed.jsonl | sed 's/parsed.jsonl/text.jsonl/' >of_parsed.jsonl
ok "records as text and parsed give the same" cmp of_text.jsonl of_parsed.jsonl
vfm-curate dedup -q -j 3 text.jsonl >of_text3.jsonl
ok "... also with three jobs" cmp of_text.jsonl of_text3.jsonl

# Long inputs are read in blocks: several files, without a last newline, with headers, and ids that come again.
{
	cat hashed.jsonl
	for ((i = 0; i < 400; i++)); do
		records hashed.jsonl | sed "s/\"id\":\"/&$i-/"
	done
	head -n 1 films.jsonl | jq -c '{v: 1, provenance: [{tool: "other", version: "1", options: "", by: "0123456789abcdef"}]}'
	records hashed.jsonl | head -n 3 | tee again
	sed 's/"width":[0-9]*/"width":7/' again
	printf '%s' '{"v":1,"id":"last"}'
} >many1.jsonl
records hashed.jsonl | sed 's/"id":"/&second-/' >many2.jsonl
sed 's/^{/ {/' many1.jsonl >parsed1.jsonl
vfm-curate dedup -q many1.jsonl many2.jsonl >of_many
vfm-curate dedup -q parsed1.jsonl many2.jsonl >of_many_parsed
ok "blocks of records as text and parsed give the same" cmp of_many of_many_parsed
is "$(grep -c '"provenance"' of_many)" 2 "a header in the middle makes another"
is "$(grep -c 'dedup: equal to an earlier record' of_many)" 3 "records that come again are dropped"
is "$(grep -c 'has the id .* too, but differs' of_many)" 3 "others of their ids fail"
is "$(grep -c . of_many)" $((6 * 402 + 9)) "nothing is lost"

# Images, which have one slot.
ok "images and copies" bash -c '
	mkdir images &&
	for i in 0 1 2; do ffmpeg -v error -ss $i -i films/$i.mp4 -frames:v 1 images/$i.png </dev/null || exit; done &&
	ffmpeg -v error -i images/0.png -vf hflip,scale=100:-2 -q:v 9 -pix_fmt yuvj420p images/mirrored.jpg </dev/null &&
	ffmpeg -v error -i images/1.png -vf eq=brightness=0.1,pad=iw:ih+40:0:20 -pix_fmt yuvj420p images/padded.jpg </dev/null'
run bash -c 'vfm-curate probe -q images | vfm-curate hash -q | vfm-curate dedup -q'
is "$(jq -r 'select(.drop) | .src | sub(".*/"; "")' "$SCRATCH/io/out" | sort | tr '\n' ' ')" "1.png mirrored.jpg " "copies of images"

# Indexes.
jq -c '.id += "x"' copies.jsonl >bare.jsonl
run vfm-curate dedup --against one.vfd --index two.vfd bare.jsonl
rc_is 1 "records without a hash fail"
like "$(records "$SCRATCH/io/out" | jq -r .error)" 'hash.clip: missing' "... and say why"
head -n 3 films.jsonl >old.jsonl
ok "an index of three" bash -c 'vfm-curate hash -q old.jsonl | vfm-curate dedup -q --index old.vfd >old.out'
run vfm-curate dedup --against old.vfd hashed.jsonl
like "$err" '6 in = 1 out \+ 5 dropped' "clips of the index and their copies are dropped"

# Batches, each against the index of those before: what is kept stays, and resembles nothing that is kept.  If quality
# falls from batch to batch, that is what one run keeps.
records hashed.jsonl | jq -c '.rank = -input_line_number' >ranked.jsonl
vfm-curate dedup -q --keep-best rank ranked.jsonl | jq -r 'select(.id and (.drop | not)).id' | sort >at_once
: >in_batches
rm -f all.vfd
for i in 1 3 5; do
	sed -n "$i,$((i + 1))p" ranked.jsonl >batch.jsonl
	# shellcheck disable=SC2046
	vfm-curate dedup -q --keep-best rank $([ -e all.vfd ] && echo --against all.vfd) --index all.vfd batch.jsonl |
		jq -r 'select(.id and (.drop | not)).id' >>in_batches
done
is "$(sort in_batches)" "$(cat at_once)" "three batches keep what one run keeps"
vfm-curate dedup -q --against all.vfd ranked.jsonl >again.jsonl
is "$(records again.jsonl | jq -s 'map(select(.drop | not)) | length')" 0 "all clips again add nothing"

head -c 200 old.vfd >cut.vfd
run vfm-curate dedup --against cut.vfd hashed.jsonl
rc_is 2 "a truncated index"
like "$err" "cut.vfd.*truncated" "... is named"
run vfm-curate dedup --against films.jsonl hashed.jsonl
rc_is 2 "a foreign file"
like "$err" "films.jsonl' is not an index" "... is named"
run vfm-curate dedup --against none.vfd hashed.jsonl
rc_is 2 "no file"

# Options are honoured or refused.
for bad in '--threshold 2' '--keep-best a*b*c' '--keep-best far' '--probe 3' '--by embedding --index x' \
	'--by embedding --against one.vfd' '--by embedding --probe 99'; do
	# shellcheck disable=SC2086
	run vfm-curate dedup $bad hashed.jsonl
	rc_is 2 "refused: $bad"
done
printf '{"v":1,"id":"x","drop":"a: b"}\nno record\n{"v":1,"src":"y"}\n' >odd.jsonl
run vfm-curate dedup odd.jsonl
rc_is 1 "bad records"
like "$err" '3 in = 0 out \+ 1 dropped \+ 2 failed' "nothing is lost"

# Vectors.
run vfm-curate embed -q -d emb --of clips,captions --exec "$toy" syn.jsonl
rc_is 0 "embed"
records "$SCRATCH/io/out" >emb.jsonl
jq -c '.id = "copy-" + .id | .width = 1' emb.jsonl | head -n 2 >more.jsonl
run vfm-curate dedup --by embedding --threshold 0.0001 emb.jsonl more.jsonl
rc_is 0 "dedup by vectors"
is "$(records "$SCRATCH/io/out" | jq -r 'select(.id | startswith("copy-")) | (.dedup.of == .id[5:]) or (.drop != null)' | sort -u)" true "equal vectors are duplicates"
id=$(sed -n 3p emb.jsonl | jq -r .id)
run vfm-curate search -q --count 3 --id "$id" --save-vectors all.npy emb.jsonl
rc_is 0 "search"
was=$out
vfm-curate dedup -q --by embedding --threshold 0.3 emb.jsonl >by_files.jsonl
vfm-curate dedup -q --by embedding --threshold 0.3 --vectors all.npy emb.jsonl >by_rows.jsonl
ok "dedup --vectors reads the rows of a file" cmp by_files.jsonl by_rows.jsonl
vfm-curate dedup -q --by embedding --threshold 0.3 --clusters 1 --probe 1 emb.jsonl >by_all.jsonl
ok "one cluster compares all pairs" cmp <(jq -c "[.id, .drop]" by_files.jsonl) <(jq -c "[.id, .drop]" by_all.jsonl)
run vfm-curate dedup --by embedding --vectors all.npy more.jsonl
rc_is 2 "rows of other records"
run vfm-curate dedup --vectors all.npy hashed.jsonl
rc_is 2 "rows without --by"
out=$was
is "$(echo "$out" | head -n 1 | jq -r '"\(.id) \(.similarity | round)"')" "$id 1" "a record is nearest to itself"
is "$(echo "$out" | jq -s 'length == 3 and (map(.similarity) | . == (sort | reverse))')" true "three, sorted"
was=$out
run vfm-curate search -q --count 3 --id "$id" --vectors all.npy emb.jsonl
is "$out" "$was" "--vectors reads the saved ones"
run vfm-curate search -q --count 3 --vector "$(sed -n 3p emb.jsonl | jq -r .embedding.path)" emb.jsonl
is "$out" "$was" "a vector file"
run vfm-curate search -q --count 3 --clip "$(sed -n 3p emb.jsonl | jq -r .src)" --exec "$toy" emb.jsonl
is "$(echo "$out" | head -n 1 | jq -r .id)" "$id" "a clip that the child embeds"
run vfm-curate search -q --count 1 --key text_embedding --text "$(sed -n 4p emb.jsonl | jq -r .caption)" --exec "$toy" emb.jsonl
is "$(echo "$out" | jq -r '.similarity > 0.999')" true "a text that the child embeds"
run vfm-curate search --id nobody emb.jsonl
rc_is 2 "no such record"
run vfm-curate search --id a --text b emb.jsonl
rc_is 2 "two queries"
run vfm-curate search --id "$id" --vectors all.npy more.jsonl
rc_is 2 "vectors of other records"
like "$err" 'has 6 rows, but 2 records' "... say so"
done_testing
