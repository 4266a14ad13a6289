#!/bin/sh
# Child of vfm-exec(7) in shell: captions from keys that the records have already, such as title and tags of a source.
#
#	vfm-curate caption --exec 'caption.sh title description tags' ...
#
# Values are joined in the order of the keys; lists are joined by commas.  A record with none of the keys fails.
# The whole child is one jq(1), which reads a request and writes an answer at a time.
[ $# -gt 0 ] || { echo "usage: caption.sh KEY ..." >&2; exit 2; }
sha256=$({ cat "$0" && printf '%s\n' "$@"; } | sha256sum | cut -d ' ' -f 1)
printf '{"vfm_exec":1,"name":"record-keys","version":"1","sha256":"%s",' "$sha256"
echo '"capabilities":["caption"],"input":{"kind":"clip"}}'
exec jq --unbuffered -c '
	def words: if type == "array" then map(words) | join(", ") elif . == null then "" else tostring end;
	[.record[$ARGS.positional[]] | words | select(. != "")] as $found
	| if $found == [] then {id, error: "the record has none of \($ARGS.positional | join(", "))"}
	  else {id, caption: ($found | join(". "))} end' --args "$@"
