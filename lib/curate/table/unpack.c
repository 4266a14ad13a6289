#include "curate/table/unpack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include <zlib.h>

#include "base/mem.h"

/* A library that is loaded when the first page needs it, and the part of it that is used. */
struct library {
	const char *file, *package;
	const char *symbols[2];
	void *functions[2];
	char *why; /* NULL: it is loaded */
};

enum { ZSTD_DECOMPRESS, ZSTD_IS_ERROR };

/* The functions have been stable since zstd 1.0 and brotli 1.0. */
static struct library zstd = {"libzstd.so.1", "libzstd1", {"ZSTD_decompress", "ZSTD_isError"}, {NULL}, NULL};
static struct library brotli = {"libbrotlidec.so.1", "libbrotli1", {"BrotliDecoderDecompress"}, {NULL}, NULL};

static void load_library(struct library *l)
{
	void *lib = dlopen(l->file, RTLD_LAZY | RTLD_LOCAL);
	bool is_complete = lib != NULL;

	for (int i = 0; i < 2 && is_complete && l->symbols[i]; i++) {
		l->functions[i] = dlsym(lib, l->symbols[i]);
		is_complete = l->functions[i] != NULL;
	}
	if (!is_complete) {
		const char *reason = dlerror();

		l->why = reason ? vfm_strdup(reason) : vfm_strfmt("%s: not found", l->file);
	}
}

static void load_zstd(void)
{
	load_library(&zstd);
}

static void load_brotli(void)
{
	load_library(&brotli);
}

const char *vfm_codec_name(int64_t codec)
{
	static const char *const names[] = {
		"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};

	return codec >= 0 && codec < (int64_t)(sizeof(names) / sizeof(names[0])) ? names[codec] : "an unknown codec";
}

int vfm_codec_check(int64_t codec, struct vfm_err *err)
{
	static pthread_once_t zstd_once = PTHREAD_ONCE_INIT, brotli_once = PTHREAD_ONCE_INIT;
	const struct library *l = NULL;

	switch (codec) {
	case VFM_CODEC_NONE:
	case VFM_CODEC_SNAPPY:
	case VFM_CODEC_GZIP:
	case VFM_CODEC_LZ4:
	case VFM_CODEC_LZ4_RAW:
		return 0;
	case VFM_CODEC_ZSTD:
		pthread_once(&zstd_once, load_zstd);
		l = &zstd;
		break;
	case VFM_CODEC_BROTLI:
		pthread_once(&brotli_once, load_brotli);
		l = &brotli;
		break;
	default:
		return vfm_fail(err, VFM_EINPUT,
			"is compressed by %s; UNCOMPRESSED, SNAPPY, GZIP, BROTLI, ZSTD, LZ4 and LZ4_RAW are read",
			vfm_codec_name(codec));
	}
	return l->why ? vfm_fail(err, VFM_EENV, "cannot load %s (package %s): %s", l->file, l->package, l->why) : 0;
}

uint64_t vfm_unpack_most(int64_t codec, size_t n)
{
	switch (codec) {
	case VFM_CODEC_NONE:
		return n;
	case VFM_CODEC_SNAPPY: /* a copy of 64 bytes takes 3 */
		return 22 * (uint64_t)n;
	case VFM_CODEC_GZIP: /* a match of 258 bytes takes 2 bits */
		return 1032 * (uint64_t)n;
	case VFM_CODEC_LZ4:
	case VFM_CODEC_LZ4_RAW: /* a byte of a length counts 255 */
		return 255 * (uint64_t)n;
	case VFM_CODEC_ZSTD: /* a block of 128 KiB takes 3 bytes or more */
		return n ? ((uint64_t)n / 3 + 1) << 17 : 0;
	default:
		return UINT64_MAX;
	}
}

/* ---- sequences of literals and copies: snappy, LZ4 ---- */

struct sequence {
	const uint8_t *p, *end;
	uint8_t *dst;
	size_t at, len; /* written; wanted */
};

static int copy_literal(struct sequence *s, size_t n)
{
	if (n > (size_t)(s->end - s->p) || n > s->len - s->at)
		return -1;
	memcpy(s->dst + s->at, s->p, n);
	s->p += n;
	s->at += n;
	return 0;
}

/* The source may overlap what is being written: then it repeats. */
static int copy_match(struct sequence *s, size_t offset, size_t n)
{
	if (offset == 0 || offset > s->at || n > s->len - s->at)
		return -1;
	if (offset >= n) {
		memcpy(s->dst + s->at, s->dst + s->at - offset, n);
		s->at += n;
	} else {
		for (; n; n--, s->at++)
			s->dst[s->at] = s->dst[s->at - offset];
	}
	return 0;
}

/* Reads a number of n bytes, the lowest first. */
static int sequence_number(struct sequence *s, int n, size_t *v)
{
	*v = 0;
	if (s->end - s->p < n)
		return -1;
	for (int i = 0; i < n; i++)
		*v |= (size_t)*s->p++ << (8 * i);
	return 0;
}

/* ---- snappy ---- */

static int snappy_element(struct sequence *s)
{
	uint8_t tag = *s->p++;
	size_t n = tag >> 2, offset;

	switch (tag & 3) {
	case 0:
		if (n >= 60 && sequence_number(s, (int)n - 59, &n) < 0)
			return -1;
		return copy_literal(s, n + 1);
	case 1:
		if (sequence_number(s, 1, &offset) < 0)
			return -1;
		return copy_match(s, (size_t)(tag >> 5) << 8 | offset, (n & 7) + 4);
	default:
		if (sequence_number(s, (tag & 3) == 2 ? 2 : 4, &offset) < 0)
			return -1;
		return copy_match(s, offset, n + 1);
	}
}

static int unpack_snappy(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	struct sequence s = {.p = src, .end = src + n, .dst = dst, .len = len};
	uint64_t total = 0;
	uint8_t b = 0x80;

	for (int shift = 0; shift < 35 && b & 0x80; shift += 7) {
		if (s.p == s.end)
			return -1;
		b = *s.p++;
		total |= (uint64_t)(b & 0x7f) << shift;
	}
	if (total != len)
		return -1;
	while (s.p < s.end)
		if (snappy_element(&s) < 0)
			return -1;
	return s.at == len ? 0 : -1;
}

/* ---- LZ4 ---- */

/* A length of 4 bits goes on in the next bytes if all its bits are set. */
static int lz4_length(struct sequence *s, size_t *n)
{
	size_t more;

	if (*n != 15)
		return 0;
	do {
		if (sequence_number(s, 1, &more) < 0)
			return -1;
		*n += more;
	} while (more == 255);
	return 0;
}

/* Decodes a block up to its end. */
static int lz4_block(struct sequence *s)
{
	size_t token, n, offset;

	for (;;) {
		if (sequence_number(s, 1, &token) < 0)
			return -1;
		n = token >> 4;
		if (lz4_length(s, &n) < 0 || copy_literal(s, n) < 0)
			return -1;
		if (s->p == s->end) /* the last sequence has no match */
			return 0;
		n = token & 15;
		if (sequence_number(s, 2, &offset) < 0 || lz4_length(s, &n) < 0 || copy_match(s, offset, n + 4) < 0)
			return -1;
	}
}

static int unpack_lz4_raw(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	struct sequence s = {.p = src, .end = src + n, .dst = dst, .len = len};

	return lz4_block(&s) == 0 && s.at == len ? 0 : -1;
}

static int read_be32(struct sequence *s, size_t *v)
{
	if (s->end - s->p < 4)
		return -1;
	*v = (size_t)s->p[0] << 24 | (size_t)s->p[1] << 16 | (size_t)s->p[2] << 8 | s->p[3];
	s->p += 4;
	return 0;
}

/* Hadoop's BlockCompressorStream: the bytes of the content, then blocks with their lengths up to as many bytes; and so
 * on. */
static int unpack_lz4_hadoop(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	struct sequence s = {.p = src, .end = src + n, .dst = dst, .len = len};
	const uint8_t *end = s.end;
	size_t total, packed, until;

	while (s.p < end) {
		if (read_be32(&s, &total) < 0 || total > len - s.at)
			return -1;
		for (until = s.at + total; s.at < until; s.end = end) {
			if (read_be32(&s, &packed) < 0 || packed > (size_t)(end - s.p))
				return -1;
			s.end = s.p + packed;
			s.len = until;
			if (lz4_block(&s) < 0)
				return -1;
		}
		s.len = len;
	}
	return s.at == len ? 0 : -1;
}

/* The codec "LZ4" was never specified: parquet-mr wrote Hadoop's framing, Arrow bare blocks. */
static int unpack_lz4(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	return unpack_lz4_hadoop(src, n, dst, len) == 0 ? 0 : unpack_lz4_raw(src, n, dst, len);
}

/* ---- gzip ---- */

/* The data may have several members. */
static int unpack_gzip(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	z_stream z = {.next_in = (Bytef *)(uintptr_t)src, .avail_in = (uInt)n, .next_out = dst, .avail_out = (uInt)len};
	int rc;

	if (n > UINT32_MAX || len > UINT32_MAX || inflateInit2(&z, 15 + 32) != Z_OK)
		return -1;
	do {
		rc = inflate(&z, Z_FINISH);
	} while (rc == Z_STREAM_END && z.avail_in && inflateReset(&z) == Z_OK);
	rc = rc == Z_STREAM_END && z.avail_out == 0 ? 0 : -1;
	inflateEnd(&z);
	return rc;
}

/* ---- libraries ---- */

static int unpack_zstd(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	size_t (*decompress)(void *, size_t, const void *, size_t) =
		(size_t(*)(void *, size_t, const void *, size_t))zstd.functions[ZSTD_DECOMPRESS];
	unsigned (*is_error)(size_t) = (unsigned (*)(size_t))zstd.functions[ZSTD_IS_ERROR];
	size_t got = decompress(dst, len, src, n);

	return !is_error(got) && got == len ? 0 : -1;
}

static int unpack_brotli(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	int (*decompress)(size_t, const uint8_t *, size_t *, uint8_t *) =
		(int (*)(size_t, const uint8_t *, size_t *, uint8_t *))brotli.functions[0];
	size_t got = len;

	return decompress(n, src, &got, dst) == 1 && got == len ? 0 : -1;
}

int vfm_unpack(int64_t codec, const uint8_t *src, size_t n, uint8_t *dst, size_t len, struct vfm_err *err)
{
	int rc = -1;

	if (codec == VFM_CODEC_SNAPPY)
		rc = unpack_snappy(src, n, dst, len);
	else if (codec == VFM_CODEC_GZIP)
		rc = unpack_gzip(src, n, dst, len);
	else if (codec == VFM_CODEC_BROTLI)
		rc = unpack_brotli(src, n, dst, len);
	else if (codec == VFM_CODEC_ZSTD)
		rc = unpack_zstd(src, n, dst, len);
	else if (codec == VFM_CODEC_LZ4)
		rc = unpack_lz4(src, n, dst, len);
	else if (codec == VFM_CODEC_LZ4_RAW)
		rc = unpack_lz4_raw(src, n, dst, len);
	else if (codec == VFM_CODEC_NONE && n == len)
		rc = memcpy(dst, src, n) ? 0 : -1;
	return rc < 0 ? vfm_fail(err, VFM_EINPUT, "damaged %s data, or not %zu bytes", vfm_codec_name(codec), len) : 0;
}
