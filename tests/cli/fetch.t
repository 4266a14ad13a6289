#!/bin/bash
# vfm-curate fetch: a local server with faults, retries, limits, TLS, and commands.  No network but 127.0.0.1.
. "${0%/*}/lib.sh"
for tool in ffmpeg jq python3 openssl; do command -v $tool >/dev/null || skip_all "no $tool"; done
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export no_proxy=127.0.0.1,localhost

serve() { # NAME [CERTIFICATE KEY]: starts a server; $port
	python3 "$TOP/tests/tools/http_faults.py" web "$1.port" "$1.log" "${@:2}" 2>/dev/null &
	kill_at_end $!
	wait_for 30 test -e "$1.port"
	port=$(cat "$1.port") || skip_all "no server can listen on 127.0.0.1"
}
mkdir web
ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=s=96x64:r=10:d=1 -c:v libx264 -pix_fmt yuv420p web/a.mp4 || skip_all "ffmpeg cannot make media"
ffmpeg -nostdin -v error -y -f lavfi -i testsrc=s=64x48:r=10:d=1 -c:v libx264 -pix_fmt yuv420p web/b.mkv
ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=s=120x80 -frames:v 1 web/c.jpg
: >web/empty
head -c 3000000 /dev/urandom >web/large.bin
serve web
u=http://127.0.0.1:$port
sum() { sha256sum "$1" | cut -c 1-64; }
error() { jq -r '.error // "none"' <<<"$out"; }
# fetch ARG ... URL: one URL; quick retries
fetch() {
	run_stage vfm-curate fetch --urls -d got --wait 0.01 "${@:1:$#-1}" <<<"${*: -1}"
}
# One that fails, and leaves no file.
fails() { # DESC REGEX ARG ... URL
	local desc=$1 want=$2
	rm -rf got
	fetch "${@:3}"
	like "$rc $(error)" "^1 $want" "$desc"
	empty "$desc: no file is left" find got -type f
}
# Whether the process whose number is in a file runs; a zombie does not.
alive() {
	[ -s "$1" ] && [[ $(cat "/proc/$(cat "$1")/stat" 2>/dev/null) =~ \)\ [^ZX] ]]
}
requests() { grep -c " /$1 " web.log; }

# ---- HTTP
run_stage vfm-curate fetch --urls -d got - <<<"$u/ok/a.mp4
  $u/ok/sub/b.mkv?token=1#part  

$u/ok/c.jpg"
rc_is 0 "three URLs"
is "$(jq -r .url <<<"$out" | paste -sd ' ')" "$u/ok/a.mp4 $u/ok/sub/b.mkv?token=1#part $u/ok/c.jpg" "in their order"
is "$(jq -r '.sha256, .bytes' <<<"$out" | paste -sd ' ')" \
	"$(for f in a.mp4 b.mkv c.jpg; do sum web/$f; stat -c %s web/$f; done | paste -sd ' ')" "their hashes and lengths"
is "$(jq -r .src <<<"$out" | xargs sha256sum | cut -c 1-64)" "$(jq -r .sha256 <<<"$out")" "the files"
is "$(jq -r '.src | sub("got/[0-9a-f]{32}"; "")' <<<"$out" | paste -sd ' ')" ".mp4 .mkv .jpg" "names end like the URL"
empty "no request is for a range" awk '!/ -$/' <web.log
cp "$SCRATCH/io/out" three.jsonl
fetch "HTTP${u#http}/ok/a.mp4"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "a scheme in capitals"
rm "$(jq -r .src <<<"$out")"
echo '{"v":1,"caption":"x","url":"'"$u"'/ok/a.mp4","id":"n1"}
{"v":1,"src":"'"$u"'/ok/b.mkv"}
{"v":1,"caption":"no url"}
{"v":1,"url":"'"$u"'/ok/c.jpg","drop":"no"}' >in.jsonl
run_stage vfm-curate fetch -d got in.jsonl
is "$rc $(jq -c '[.id, .caption, .url != null, (.src // "" | startswith("got/")), .error]' <<<"$out" | paste -sd ' ')" \
	'1 ["n1","x",true,true,null] [null,null,true,true,null] [null,"no url",false,false,"the record has neither url nor src"] [null,null,true,false,null]' \
	"records: url, or src; other keys are kept"
run_stage vfm-curate probe --records three.jsonl
is "$rc $(jq -r .kind <<<"$out" | paste -sd ' ')" "0 video video image" "probe --records reads what was fetched"

n=$(wc -l <web.log)
vfm-curate fetch -q --urls -d got --done three.jsonl - <<<"$u/ok/a.mp4
$u/ok/c.jpg" >done.jsonl
is "$(wc -l <web.log) $(records done.jsonl | jq -r .src)" "$n $(records three.jsonl | jq -r .src | sed 2d)" "--done: nothing is downloaded again"
rm "$(records three.jsonl | jq -r .src | head -n 1)"
vfm-curate fetch -q --urls -d got --done three.jsonl - <<<"$u/ok/a.mp4" >/dev/null
is "$(wc -l <web.log) $(sum "$(records three.jsonl | jq -r .src | head -n 1)")" "$((n + 1)) $(sum web/a.mp4)" "--done: but what is lost is"
vfm-curate fetch -q --urls -d got --any-length - <<<"$u/ok/a.mp4" >any.jsonl
n=$(wc -l <web.log)
vfm-curate fetch -q --urls -d got --done any.jsonl - <<<"$u/ok/a.mp4" >/dev/null
is "$(wc -l <web.log)" "$((n + 1))" "--done: but what --any-length took is not enough without it"
for i in {1..40}; do echo "$u/ok/a.mp4?n=$i"; done >forty
for i in 0 1; do vfm-curate fetch -q --urls -d got -j 8 --part $i/2 forty | records; done >parts
is "$(jq -r .url parts | sort)" "$(sort forty)" "-j and --part: each URL once"
is "$(jq -r .sha256 parts | sort -u)" "$(sum web/a.mp4)" "-j and --part: all are whole"
fetch "$u/slow/a.mp4" --stall 1
fetch --stall 1 "$u/slow/a.mp4"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "a slow server"
fetch "$u/echo-agent"
is "$(cat "$(jq -r .src <<<"$out")")" vfm-curate "the user agent"
fetch "$u/to/to/ok/a.mp4"
is "$rc $(jq -r '.sha256, .url' <<<"$out" | paste -sd ' ')" "0 $(sum web/a.mp4) $u/to/to/ok/a.mp4" "redirects"

# ---- faults
fails "404" "'$u/none': HTTP error 404 Not Found$" "$u/none"
is "$(grep -c ' /none ' web.log)" 1 "404: is not tried again"
for status in 400 401 403 410 451; do
	fails $status "'$u/status/$status': (HTTP error|Server returned) $status" "$u/status/$status"
	is "$(requests status/$status)" 1 "$status: is not tried again"
done
for status in 408 429 500 503; do
	fails $status "'$u/status/$status': HTTP error $status.* \(tried 3 times\)$" --retries 2 "$u/status/$status"
	is "$(requests status/$status)" 3 "$status: is tried again"
done
fetch "$u/flaky/2/a.mp4"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "a server that answers at the third attempt"
fetch "$u/reset/2/a.mp4"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "a server that resets two connections"
fails "a truncated file" "'$u/short/large.bin': .*(prematurely|announced).*\(tried 2 times\)$" --retries 1 "$u/short/large.bin"
fails "an empty file" "'$u/ok/empty': the file is empty$" "$u/ok/empty"
for path in nolength chunked; do
	fails "$path" "'$u/$path/a.mp4': the server does not say how long the file is" "$u/$path/a.mp4"
	fetch --any-length "$u/$path/a.mp4"
	is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "$path: --any-length"
done
for path in chunked-short chunked-cut; do
	fails "$path: --any-length" "'$u/$path/large.bin': the connection ended before the last chunk, after [0-9]* bytes \(tried 2 times\)$" \
		--any-length --retries 1 "$u/$path/large.bin"
done
fetch "$u/accept"
is "$(cat "$(jq -r .src <<<"$out")")" identity "no compression is asked for"
for path in gzip gzip-chunked; do
	fetch --any-length "$u/$path/a.mp4"
	is "$rc $(jq -r '.sha256, .bytes' <<<"$out" | paste -sd ' ')" "0 $(sum web/a.mp4) $(stat -c %s web/a.mp4)" "$path: hash and length of the file"
	is "$(sum "$(jq -r .src <<<"$out")")" "$(sum web/a.mp4)" "$path: the file"
done
fetch --any-length "$u/gzip-chunked/large.bin"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/large.bin)" "gzip in many chunks"
fails "gzip: a truncated file" "'$u/gzip-short/large.bin': .*prematurely.*\(tried 2 times\)$" --retries 1 "$u/gzip-short/large.bin"
fails "gzip: damaged data" "'$u/gzip-bad/large.bin': the gzip data are damaged" --retries 0 "$u/gzip-bad/large.bin"
fails "gzip: without a length" "'$u/gzip-nolength/a.mp4': the server sends gzip data without a length$" --any-length "$u/gzip-nolength/a.mp4"
fails "gzip: a bomb" "'$u/gzip-bomb': the gzip data grow more than 100 times$" "$u/gzip-bomb"
fails "gzip: --max-bytes" "'$u/gzip/large.bin' has more than 2000000 bytes$" --max-bytes 2000000 "$u/gzip/large.bin"
fails "another content coding" "'$u/coding/a.mp4': the server sends the file in the content coding 'br'$" "$u/coding/a.mp4"
fails "a redirect to a file" "'$u/to-file': the URL, or one that the server redirects to, is neither http nor https$" --retries 0 "$u/to-file"
fails "redirects in a circle" "'$u/loop': the server gives no valid answer, or redirects too often$" --retries 0 "$u/loop"
start=$SECONDS
fails "a server that falls silent" "'$u/hang/x': no data for 0.5 s$" --stall 0.5 --retries 0 "$u/hang/x"
fails "a server that never answers" "'$u/mute': no data for 0.5 s$" --stall 0.5 --retries 0 "$u/mute"
fails "a server that sends for ever" "'$u/drip': gave up after 1 s" --timeout 1 "$u/drip"
fails "the time limit covers the retries" "'$u/mute': .*(gave up after 1 s|no data for 0.3 s)" --stall 0.3 --timeout 1 --retries 100 "$u/mute"
ok "these end in time" test $((SECONDS - start)) -lt 15
fails "--max-bytes" "'$u/ok/large.bin' has 3000000 bytes, at most 2000000 are allowed$" --max-bytes 2000000 "$u/ok/large.bin"
fails "--max-bytes of an unknown length" "'$u/nolength/large.bin' has more than 2000000 bytes$" --max-bytes 2000000 --any-length "$u/nolength/large.bin"
fails "no server" "'http://127.0.0.1:1/x': Connection refused.*\(tried 2 times\)$" --retries 1 http://127.0.0.1:1/x
for url in s3://bucket/key file:///etc/passwd ftp://127.0.0.1/x concat:http://127.0.0.1/x data:text/plain,x /etc/passwd crypto+http://x/ HTTPX://x; do
	fails "$url" "'${url//+/\\+}'( is no URL|: [a-zA-Z0-9+]* is not http or https: --fetch CMD is missing)$" "$url"
done
fails "a URL with a blank" "the URL has a blank or control character at byte [0-9]*; write %20$" "$u/ok/a b.mp4"
run_stage vfm-curate fetch -d got <<<'{"v":1,"url":"'"$u"'/ok/a.mp4\r\nX: y"}'
like "$(error)" 'control character at byte [0-9]*; write %0D$' "a URL with a line end"
run vfm-curate fetch --urls in.jsonl
rc_is 2 "-d is missing"
run vfm-curate fetch -d got --urls none
like "$rc $err" "2 .*cannot read 'none'" "a list of URLs that is missing"

# ---- a process that is killed leaves no file under its name; the next run removes what it left
rm -rf got
vfm-curate fetch -q --urls -d got <<<"$u/hang/x.mp4" >/dev/null &
temporary() { [ -n "$(find got -name '*.vfm-tmp')" ]; }
wait_for 30 temporary
kill -9 $! && wait $! 2>/dev/null
ok "kill -9: it has begun" temporary
empty "kill -9: no partial file" find got -type f ! -name '*.vfm-tmp'
fetch "$u/ok/a.mp4"
is "$(find got -type f | wc -l)" 1 "kill -9: its temporary file is removed"

# ---- TLS
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost \
	-addext subjectAltName=DNS:localhost 2>/dev/null || skip_all "openssl cannot make a certificate"
serve tls cert.pem key.pem
s=https://localhost:$port
fails "TLS: an unknown certificate" "'$s/ok/a.mp4': " --retries 0 "$s/ok/a.mp4"
fetch --ca-file cert.pem "$s/ok/a.mp4"
is "$rc $(jq -r .sha256 <<<"$out")" "0 $(sum web/a.mp4)" "TLS: --ca-file"
fails "TLS: a certificate of another host" "'https://127.0.0.1:$port/ok/a.mp4': " --retries 0 --ca-file cert.pem "https://127.0.0.1:$port/ok/a.mp4"
is "$(cat tls.log)" "GET /ok/a.mp4 -" "TLS: no request before the certificate is verified"

# ---- commands
cat >get.sh <<'EOF'
#!/bin/bash
# get.sh URL FILE
echo "$1" >>calls
case $1 in
s3://b/ok*) cp web/a.mp4 "$2" ;;
s3://b/fail) printf 'first line\nAccess Denied\n' >&2; exit 7 ;;
s3://b/long) head -c 100000 /dev/zero | tr '\0' y >&2; echo END >&2; exit 1 ;;
s3://b/none) ;;
s3://b/empty) : >"$2" ;;
s3://b/link) ln -s /etc/passwd "$2" ;;
s3://b/large) head -c 3000000 /dev/zero >"$2" ;;
s3://b/killed) kill -SEGV $$ ;;
s3://b/hang) echo partial >"$2"; sleep 321 & echo $! >hang.pid; wait ;;
s3://b/leaves) cp web/b.mkv "$2"; sleep 322 >/dev/null 2>&1 & echo $! >leaves.pid ;;
s3://b/flaky) [ -e flag ] && cp web/a.mp4 "$2" || { touch flag; exit 1; } ;;
esac
EOF
chmod +x get.sh
G="$PWD/get.sh"
run_stage vfm-curate fetch --urls -d got --fetch "'$G'" <<<"s3://b/ok/x.mp4"
is "$rc $(jq -r '.sha256, .bytes' <<<"$out" | paste -sd ' ')" "0 $(sum web/a.mp4) $(stat -c %s web/a.mp4)" "--fetch: a file"
is "$(sum "$(jq -r .src <<<"$out")")" "$(sum web/a.mp4)" "--fetch: is in its place"
run_stage vfm-curate fetch --urls -d got --fetch-shell --fetch 'cp web/c.jpg "$2" && echo "$1" >shell' <<<"s3://b/\$(x);'y'"
is "$rc $(cat shell)" "0 s3://b/\$(x);'y'" "--fetch-shell: \$1 and \$2; the URL is no part of the program"
fails "--fetch: a status" "'s3://b/fail': '$G' exited with status 7: first line;Access Denied \(tried 2 times\)$" --retries 1 --fetch "$G" s3://b/fail
is "$(grep -c fail calls)" 2 "--fetch: is tried again"
fails "--fetch: long errors" "'s3://b/long': .* status 1: y+END$" --retries 0 --fetch "$G" s3://b/long
ok "--fetch: of which the end is shown" test "$(error | wc -c)" -lt 1500
fails "--fetch: no file" "'s3://b/none': '$G' succeeded but wrote no file$" --fetch "$G" s3://b/none
fails "--fetch: an empty file" "'s3://b/empty': '$G' wrote an empty file$" --fetch "$G" s3://b/empty
fails "--fetch: a link" "'s3://b/link': '$G' wrote no regular file$" --fetch "$G" s3://b/link
fails "--fetch: --max-bytes" "'s3://b/large' has more than 2000000 bytes$" --max-bytes 2000000 --fetch "$G" s3://b/large
fails "--fetch: a signal" "'s3://b/killed': '$G' was killed by SIGSEGV$" --retries 0 --fetch "$G" s3://b/killed
fails "--fetch: hangs" "'s3://b/hang': gave up after 1 s$" --timeout 1 --fetch "$G" s3://b/hang
not_ok "--fetch: its children are killed" alive hang.pid
fetch --fetch "$G" s3://b/leaves
is "$rc" 0 "--fetch: a command that leaves a process"
not_ok "--fetch: it is killed" alive leaves.pid
fetch --fetch "$G" s3://b/flaky
is "$rc" 0 "--fetch: the second attempt"
empty "--fetch: its folder is removed" find got -name '.fetch-*'
run vfm-curate fetch --urls -d got --fetch /no/such/program - <<<"s3://b/ok"
rc_is 2 "--fetch: no such program"
rm hang.pid
vfm-curate fetch -q --urls -d got --fetch "$G" <<<"s3://b/hang" >/dev/null &
pid=$!
wait_for 30 test -s hang.pid
kill -9 $pid && wait $pid 2>/dev/null
no_folder() { [ -z "$(find got -name '.fetch-*')" ]; }
wait_for 30 no_folder
not_ok "--fetch: kill -9 ends the command, too" alive hang.pid
empty "--fetch: and removes its folder" find got -name '.fetch-*'

# ---- as a stage of a run
printf '%s\n' "$u/ok/a.mp4" "$u/ok/b.mkv" "$u/status/404" >urls.txt
echo '{"inputs": ["urls.txt"], "stages": [{"stage": "fetch", "urls": true, "dir": "raw", "jobs": 4}, {"stage": "probe", "records": true},
	{"stage": "clip", "dir": "clips"}]}' >p.json
run vfm-curate run -c p.json -d run
rc_is 1 "run: fetch, probe and clip"
is "$(records run/02-clip.jsonl | jq -r 'if .error then "error" else .kind end' | paste -sd ' ')" "video video error" "run: the records"
is "$(find clips -type f | wc -l)" 2 "run: the clips"
n=$(wc -l <web.log)
run vfm-curate run -c p.json -d run
is "$(wc -l <web.log)" "$n" "run: again, nothing is downloaded"
done_testing
