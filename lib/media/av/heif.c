/* heif.c - walks the boxes of the file to the properties of its primary item. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "media/av/heif.h"
#include "media/av/pixels.h"

#define MAX_META  ((uint64_t)1 << 20)
#define MAX_BOXES 1024 /* of a file, before "meta" */

struct bytes {
	const uint8_t *p, *end;
};

struct heif_box {
	char type[5];
	struct bytes body;
};

/* Reads a big-endian number of n bytes; 0 beyond the end. */
static uint32_t get_number(struct bytes *b, int n)
{
	uint32_t x = 0;

	if (b->end - b->p < n) {
		b->p = b->end;
		return 0;
	}
	while (n-- > 0)
		x = x << 8 | *b->p++;
	return x;
}

static bool next_box(struct bytes *b, struct heif_box *box)
{
	size_t left = (size_t)(b->end - b->p), size;

	if (left < 8)
		return false;
	size = get_number(b, 4);
	memcpy(box->type, b->p, 4);
	box->type[4] = 0;
	b->p += 4;
	if (size == 0)
		size = left;
	if (size < 8 || size > left)
		return false;
	box->body = (struct bytes){b->p, b->p + (size - 8)};
	b->p = box->body.end;
	return true;
}

static bool find_box(struct bytes in, const char *type, struct heif_box *box)
{
	while (next_box(&in, box))
		if (!strcmp(box->type, type))
			return true;
	return false;
}

/* `first`, and then `then`. */
static struct vfm_orient orient_compose(struct vfm_orient first, struct vfm_orient then)
{
	return (struct vfm_orient){
		first.a * then.a + first.b * then.c,
		first.a * then.b + first.b * then.d,
		first.c * then.a + first.d * then.c,
		first.c * then.b + first.d * then.d,
	};
}

/* Applies property number `index`, from 1, of the list "ipco". */
static struct vfm_orient apply_property(struct bytes ipco, uint32_t index, struct vfm_orient o)
{
	static const struct vfm_orient turns[4] = {{1, 0, 0, 1}, {0, -1, 1, 0}, {-1, 0, 0, -1}, {0, 1, -1, 0}};
	static const struct vfm_orient mirrors[2] = {{1, 0, 0, -1}, {-1, 0, 0, 1}};
	struct heif_box box = {0};

	for (uint32_t i = 1; i <= index; i++)
		if (!next_box(&ipco, &box))
			return o;
	if (!strcmp(box.type, "irot"))
		return orient_compose(o, turns[get_number(&box.body, 1) & 3]);
	if (!strcmp(box.type, "imir"))
		return orient_compose(o, mirrors[get_number(&box.body, 1) & 1]);
	return o;
}

/* Applies the properties of an item, in the order of "ipma". */
static struct vfm_orient apply_item(struct bytes ipma, struct bytes ipco, uint32_t wanted)
{
	struct vfm_orient o = {1, 0, 0, 1};
	uint32_t head = get_number(&ipma, 4), entries = get_number(&ipma, 4);
	int id_size = head >> 24 ? 4 : 2, index_size = head & 1 ? 2 : 1;

	for (uint32_t i = 0; i < entries && ipma.p < ipma.end; i++) {
		uint32_t item = get_number(&ipma, id_size), n = get_number(&ipma, 1);

		while (n-- > 0) {
			uint32_t index = get_number(&ipma, index_size) & (index_size == 2 ? 0x7fff : 0x7f);

			if (item == wanted && index)
				o = apply_property(ipco, index, o);
		}
	}
	return o;
}

struct vfm_orient vfm_heif_orient(const uint8_t *meta, size_t size)
{
	const struct vfm_orient upright = {1, 0, 0, 1};
	struct bytes b = {meta, meta + size};
	struct heif_box pitm, iprp, ipco, ipma;
	uint32_t head;

	get_number(&b, 4); /* version and flags */
	if (!find_box(b, "pitm", &pitm) || !find_box(b, "iprp", &iprp) || !find_box(iprp.body, "ipco", &ipco) ||
		!find_box(iprp.body, "ipma", &ipma))
		return upright;
	head = get_number(&pitm.body, 4);
	return apply_item(ipma.body, ipco.body, get_number(&pitm.body, head >> 24 ? 4 : 2));
}

struct vfm_orient vfm_heif_orient_of_file(int fd, int64_t start, int64_t size)
{
	struct vfm_orient o = {1, 0, 0, 1};
	uint8_t head[16], *meta;
	int64_t at = 0;

	for (int i = 0; i < MAX_BOXES && at + 8 <= size; i++) {
		struct bytes b = {head, head + sizeof(head)};
		uint64_t n, skip = 8;

		if (pread(fd, head, sizeof(head), start + at) < 8)
			return o;
		n = get_number(&b, 4);
		b.p += 4;
		if (n == 1) {
			n = (uint64_t)get_number(&b, 4) << 32;
			n |= get_number(&b, 4);
			skip = 16;
		}
		if (n < skip || n > (uint64_t)(size - at))
			return o;
		if (!memcmp(head + 4, "meta", 4)) {
			if (n - skip > MAX_META)
				return o;
			meta = vfm_malloc((size_t)(n - skip) + 1);
			if (pread(fd, meta, (size_t)(n - skip), start + at + (int64_t)skip) == (ssize_t)(n - skip))
				o = vfm_heif_orient(meta, (size_t)(n - skip));
			free(meta);
			return o;
		}
		at += (int64_t)n;
	}
	return o;
}
