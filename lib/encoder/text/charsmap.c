/* charsmap.c - looks up replacements in the double-array trie of a sentencepiece model. */
#include "encoder/text/charsmap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/le.h"

/* A cluster of at least this many bytes is normalized by characters. */
enum { LONG_CLUSTER = 6 };

int vfm_charsmap_init(struct vfm_charsmap *m, const void *blob, size_t len, const char *what, struct vfm_err *err)
{
	const uint8_t *p = blob;
	uint32_t bytes;

	*m = (struct vfm_charsmap){0};
	if (len < 4)
		return vfm_fail(err, VFM_EUSAGE, "%s: precompiled_charsmap: %zu bytes, expected 4 or more", what, len);
	bytes = vfm_read_le32(p);
	if (bytes > len - 4 || bytes % 4 || !bytes)
		return vfm_fail(err, VFM_EUSAGE, "%s: precompiled_charsmap: a trie of %u bytes in a map of %zu", what,
			bytes, len);
	m->n_units = bytes / 4;
	m->unit = vfm_malloc(bytes);
	for (size_t i = 0; i < m->n_units; i++)
		m->unit[i] = vfm_read_le32(p + 4 + 4 * i);
	m->text_len = len - 4 - bytes;
	m->text = vfm_malloc(m->text_len + 1);
	memcpy(m->text, p + 4 + bytes, m->text_len);
	m->text[m->text_len] = 0;
	return 0;
}

void vfm_charsmap_release(struct vfm_charsmap *m)
{
	free(m->unit);
	free(m->text);
	*m = (struct vfm_charsmap){0};
}

static size_t unit_offset(uint32_t u)
{
	return (size_t)(u >> 10) << ((u & 1u << 9) >> 6);
}

/* Returns the replacement of the shortest prefix of s in the map, or NULL. */
static const char *find_replacement(const struct vfm_charsmap *m, const char *s, size_t len)
{
	size_t pos = unit_offset(m->unit[0]);

	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)s[i];
		uint32_t u;

		pos ^= c;
		if (pos >= m->n_units)
			return NULL;
		u = m->unit[pos];
		if ((u & (1u << 31 | 0xff)) != c)
			return NULL;
		pos ^= unit_offset(u);
		if (u >> 8 & 1) {
			size_t at = pos < m->n_units ? m->unit[pos] & ~(1u << 31) : m->text_len;

			return at < m->text_len ? m->text + at : NULL;
		}
	}
	return NULL;
}

static void replace_cluster(const struct vfm_charsmap *m, const char *s, size_t len, struct vfm_buf *out)
{
	const char *r = len < LONG_CLUSTER ? find_replacement(m, s, len) : NULL;

	if (r) {
		vfm_buf_adds(out, r);
		return;
	}
	while (len) {
		utf8proc_int32_t c;
		utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)len, &c);
		size_t step = n > 0 ? (size_t)n : 1;

		r = find_replacement(m, s, step);
		if (r)
			vfm_buf_adds(out, r);
		else
			vfm_buf_add(out, s, step);
		s += step;
		len -= step;
	}
}

void vfm_charsmap_apply(const struct vfm_charsmap *m, const char *s, size_t len, struct vfm_buf *out)
{
	utf8proc_int32_t before = 0, c, state = 0;
	size_t first = 0, at = 0;

	if (!m->n_units) {
		vfm_buf_add(out, s, len);
		return;
	}
	while (at < len) {
		utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &c);

		if (n <= 0)
			n = 1, c = 0xfffd;
		if (at > first && utf8proc_grapheme_break_stateful(before, c, &state)) {
			replace_cluster(m, s + first, at - first, out);
			first = at;
		}
		before = c;
		at += (size_t)n;
	}
	if (at > first)
		replace_cluster(m, s + first, at - first, out);
}
