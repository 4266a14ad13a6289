#include "curate/unpack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include <zlib.h>

#include "base/mem.h"

#define ZSTD_LIBRARY "libzstd.so.1"

/* The part of zstd.h that is used: both have been stable since 1.0. */
static struct {
	pthread_once_t once;
	size_t (*decompress)(void *dst, size_t capacity, const void *src, size_t n);
	unsigned (*is_error)(size_t code);
	const char *why; /* NULL: it is loaded */
} zstd = {.once = PTHREAD_ONCE_INIT};

static void load_zstd(void)
{
	void *lib = dlopen(ZSTD_LIBRARY, RTLD_LAZY | RTLD_LOCAL);

	if (lib) {
		zstd.decompress = (size_t(*)(void *, size_t, const void *, size_t))dlsym(lib, "ZSTD_decompress");
		zstd.is_error = (unsigned (*)(size_t))dlsym(lib, "ZSTD_isError");
	}
	if (!zstd.decompress || !zstd.is_error) {
		const char *reason = dlerror();

		zstd.why = vfm_strdup(reason ? reason : ZSTD_LIBRARY ": not found");
	}
}

const char *vfm_codec_name(int64_t codec)
{
	static const char *const names[] = {
		"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};

	return codec >= 0 && codec < (int64_t)(sizeof(names) / sizeof(names[0])) ? names[codec] : "an unknown codec";
}

int vfm_codec_check(int64_t codec, struct vfm_err *err)
{
	if (codec == VFM_CODEC_ZSTD) {
		pthread_once(&zstd.once, load_zstd);
		return zstd.why ? vfm_fail(err, VFM_EENV, "cannot load zstd (package libzstd1): %s", zstd.why) : 0;
	}
	if (codec == VFM_CODEC_NONE || codec == VFM_CODEC_SNAPPY || codec == VFM_CODEC_GZIP)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "is compressed by %s; UNCOMPRESSED, SNAPPY, GZIP and ZSTD are read",
		vfm_codec_name(codec));
}

/* ---- snappy ---- */

struct snappy {
	const uint8_t *p, *end;
	uint8_t *dst;
	size_t at, len; /* written; wanted */
};

static int snappy_literal(struct snappy *s, size_t n)
{
	if (n > (size_t)(s->end - s->p) || n > s->len - s->at)
		return -1;
	memcpy(s->dst + s->at, s->p, n);
	s->p += n;
	s->at += n;
	return 0;
}

/* The source may overlap what is being written: then it repeats. */
static int snappy_copy(struct snappy *s, size_t offset, size_t n)
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
static int snappy_number(struct snappy *s, int n, size_t *v)
{
	*v = 0;
	if (s->end - s->p < n)
		return -1;
	for (int i = 0; i < n; i++)
		*v |= (size_t)*s->p++ << (8 * i);
	return 0;
}

static int snappy_element(struct snappy *s)
{
	uint8_t tag = *s->p++;
	size_t n = tag >> 2, offset;

	switch (tag & 3) {
	case 0:
		if (n >= 60 && snappy_number(s, (int)n - 59, &n) < 0)
			return -1;
		return snappy_literal(s, n + 1);
	case 1:
		if (snappy_number(s, 1, &offset) < 0)
			return -1;
		return snappy_copy(s, (size_t)(tag >> 5) << 8 | offset, (n & 7) + 4);
	default:
		if (snappy_number(s, (tag & 3) == 2 ? 2 : 4, &offset) < 0)
			return -1;
		return snappy_copy(s, offset, n + 1);
	}
}

static int unpack_snappy(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	struct snappy s = {.p = src, .end = src + n, .dst = dst, .len = len};
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

static int unpack_zstd(const uint8_t *src, size_t n, uint8_t *dst, size_t len)
{
	size_t got = zstd.decompress(dst, len, src, n);

	return !zstd.is_error(got) && got == len ? 0 : -1;
}

int vfm_unpack(int64_t codec, const uint8_t *src, size_t n, uint8_t *dst, size_t len, struct vfm_err *err)
{
	int rc = -1;

	if (codec == VFM_CODEC_SNAPPY)
		rc = unpack_snappy(src, n, dst, len);
	else if (codec == VFM_CODEC_GZIP)
		rc = unpack_gzip(src, n, dst, len);
	else if (codec == VFM_CODEC_ZSTD)
		rc = unpack_zstd(src, n, dst, len);
	else if (codec == VFM_CODEC_NONE && n == len)
		rc = memcpy(dst, src, n) ? 0 : -1;
	return rc < 0 ? vfm_fail(err, VFM_EINPUT, "damaged %s data, or not %zu bytes", vfm_codec_name(codec), len) : 0;
}
