/* Any bytes as an index of clips: what is accepted can be read.  And as the hash of a record, in bytes and as text:
 * what is accepted is written as the same bytes, and resembles itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "curate/dedup/clip_set.h"
#include "io/hash.h"
#include "media/match/clip_compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Makes both checksums right, so that the parser sees the body. */
static void mend_index(uint8_t *b, size_t size)
{
	uint64_t body = size - 64;
	uint32_t crc = vfm_crc32c(0, b + 64, body);

	memcpy(b, "VFMDEDUP\1\0\0\0\60\0\0\0", 16);
	memcpy(b + 24, &body, 8);
	memcpy(b + 32, &crc, 4);
	crc = vfm_crc32c(0, b, 60);
	memcpy(b + 60, &crc, 4);
}

static void load_index(uint8_t *b, size_t size)
{
	struct vfm_clip_set s;
	struct vfm_err err;
	FILE *f = fmemopen(b, size, "r");

	if (!f)
		return;
	if (vfm_clip_set_open(&s, &err) < 0)
		abort();
	if (vfm_clip_set_load_file(&s, f, size, "fuzz.vfd", &err) == 0) {
		struct vfm_clip_hash h;

		if (vfm_clip_set_flush(&s, &err) < 0)
			abort();
		for (int64_t i = 0; i < s.n; i++)
			if (vfm_clip_set_read(&s, i, &h, &err) < 0 ||
				vfm_names_find(&s.names, vfm_names_at(&s.names, i)) != i)
				abort();
	}
	vfm_clip_set_close(&s);
	fclose(f);
}

static void compare_hash(const struct vfm_clip_hash *h)
{
	struct vfm_clip_rows *a = malloc(sizeof(*a)), *half = malloc(sizeof(*half));
	struct vfm_clip_match m;

	vfm_clip_rows_of(a, h);
	vfm_clip_half_of(half, a);
	vfm_clip_compare(a, a, half, 1, &m);
	if (!(m.distance >= -1e-6 && m.distance <= 1))
		abort();
	free(half);
	free(a);
}

static void read_hash(const uint8_t *data, size_t size)
{
	uint8_t bytes[VFM_CLIP_HASH_BYTES], again[VFM_CLIP_HASH_BYTES];
	struct vfm_clip_hash h, g;
	struct vfm_err err;
	size_t len;
	char *text;

	if (vfm_clip_hash_unpack(&h, data, size, &err) < 0 &&
		vfm_clip_hash_parse_bytes(&h, (const char *)data, size, &err) < 0)
		return;
	len = vfm_clip_hash_pack(&h, bytes);
	text = vfm_clip_hash_text(&h);
	if (len != vfm_clip_hash_size(&h) || vfm_clip_hash_parse(&g, text, &err) < 0 ||
		vfm_clip_hash_pack(&g, again) != len || memcmp(bytes, again, len) != 0)
		abort();
	free(text);
	compare_hash(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *b = malloc(size + 1);

	memcpy(b, data, size);
	read_hash(data, size);
	if (size)
		load_index(b, size);
	if (size >= 64) {
		mend_index(b, size);
		load_index(b, size);
	}
	free(b);
	return 0;
}
