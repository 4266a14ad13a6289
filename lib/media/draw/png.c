/* png.c - one RGB picture as PNG (RFC 2083): no filter beyond "sub", one zlib stream. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "io/file.h"
#include "media/draw/png.h"

static void chunk(struct vfm_buf *b, const char type[4], const void *data, size_t len)
{
	uint32_t n = htonl((uint32_t)len), crc;
	size_t start;

	vfm_buf_add(b, &n, 4);
	start = b->len;
	vfm_buf_add(b, type, 4);
	vfm_buf_add(b, data, len);
	crc = htonl((uint32_t)crc32(0, (const Bytef *)b->data + start, (uInt)(len + 4)));
	vfm_buf_add(b, &crc, 4);
}

/* Each row: filter type 1, then the difference to the pixel on the left. */
static void filter_rows(uint8_t *out, const uint8_t *rgb, int width, int height)
{
	size_t row = (size_t)width * 3;

	for (int y = 0; y < height; y++, rgb += row) {
		*out++ = 1;
		for (size_t i = 0; i < row; i++)
			*out++ = (uint8_t)(rgb[i] - (i < 3 ? 0 : rgb[i - 3]));
	}
}

int vfm_png_encode(struct vfm_buf *out, const uint8_t *rgb, int width, int height, struct vfm_err *err)
{
	static const uint8_t magic[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
	size_t raw_len = ((size_t)width * 3 + 1) * (size_t)height;
	uLongf packed_len;
	uint8_t *raw, *packed, head[13] = {[8] = 8, [9] = 2}; /* 8 bits, RGB */
	uint32_t w = htonl((uint32_t)width), h = htonl((uint32_t)height);

	if (width < 1 || height < 1 || raw_len > 1u << 30)
		return vfm_fail(err, VFM_EUSAGE, "a picture of %d x %d", width, height);
	packed_len = compressBound(raw_len);
	raw = vfm_big_alloc(raw_len, "a picture", err);
	packed = raw ? vfm_big_alloc(packed_len, "a picture", err) : NULL;
	if (packed) {
		uLongf len = packed_len;

		filter_rows(raw, rgb, width, height);
		compress2(packed, &len, raw, raw_len, 6); /* cannot fail: the bound fits */
		memcpy(head, &w, 4);
		memcpy(head + 4, &h, 4);
		vfm_buf_add(out, magic, sizeof(magic));
		chunk(out, "IHDR", head, sizeof(head));
		chunk(out, "IDAT", packed, len);
		chunk(out, "IEND", "", 0);
		vfm_big_free(packed, packed_len);
	}
	if (raw)
		vfm_big_free(raw, raw_len);
	return packed ? 0 : VFM_EENV;
}

int vfm_png_write(const char *path, const uint8_t *rgb, int width, int height, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	int rc = vfm_png_encode(&b, rgb, width, height, err);

	rc = rc < 0 ? vfm_err_context(err, "cannot write '%s'", path) : vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	return rc;
}
