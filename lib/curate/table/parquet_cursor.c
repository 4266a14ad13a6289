/* parquet_cursor.c - the pages of a leaf in a row group, and the levels and values in them. */
#include <string.h>

#include <zlib.h>

#include "curate/table/parquet_impl.h"
#include "curate/table/unpack.h"
#include "io/file.h"

enum { MAX_PAGE = 256 << 20, MAX_PAGE_HEADER = 16 << 20 };

/* ---- bytes of a page ---- */

static void release_bytes(struct parquet_bytes *b)
{
	vfm_big_free(b->data, b->size);
	*b = (struct parquet_bytes){0};
}

static int reserve_bytes(struct parquet_bytes *b, size_t n, const char *what, struct vfm_err *err)
{
	if (n <= b->size && b->data)
		return 0;
	release_bytes(b);
	b->data = vfm_big_alloc(n ? n : 1, what, err);
	if (!b->data)
		return VFM_EENV;
	b->size = n ? n : 1;
	return 0;
}

/* Returns the codec of the bytes behind the levels of version 2. */
static int64_t page_codec(const struct parquet_cursor *c, const struct parquet_page *page)
{
	return page->kind == 3 && !page->is_packed ? VFM_CODEC_NONE : c->codec;
}

static int check_page_size(const struct parquet_cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	int64_t plain = 0;

	if (page->packed > MAX_PAGE || page->size > MAX_PAGE)
		return vfm_fail(err, VFM_EINPUT, "a page of %lld bytes; at most %d are read",
			(long long)(page->packed > page->size ? page->packed : page->size), MAX_PAGE);
	if (page->kind == 3) {
		if (page->def_bytes < 0 || page->def_bytes > page->packed || page->rep_bytes < 0 ||
			page->rep_bytes > page->packed - page->def_bytes ||
			page->def_bytes + page->rep_bytes > page->size)
			return vfm_fail(err, VFM_EINPUT, "the levels of a page exceed it");
		plain = page->def_bytes + page->rep_bytes;
	}
	if ((uint64_t)(page->size - plain) > vfm_unpack_most(page_codec(c, page), (size_t)(page->packed - plain)))
		return vfm_fail(err, VFM_EINPUT, "a page of %lld bytes cannot have %lld after decompression",
			(long long)page->packed, (long long)page->size);
	return 0;
}

/* Reads the header of the next page, whose statistics may be long, and sets *bytes to its length. */
static int read_page_header(struct parquet_cursor *c, const struct parquet_file *f, struct parquet_page *page,
	size_t *bytes, struct vfm_err *err)
{
	for (int64_t n = 4096;; n *= 16) {
		n = n > c->end - c->at ? c->end - c->at : n;
		TRY(reserve_bytes(&c->file, (size_t)n, "header of a page", err));
		TRY(vfm_full_pread(f->fd, c->file.data, (size_t)n, (uint64_t)c->at, f->name, err));
		*bytes = parquet_page_parse(page, c->file.data, (size_t)n);
		if (*bytes)
			break;
		if (n == c->end - c->at || n >= MAX_PAGE_HEADER)
			return vfm_fail(err, VFM_EINPUT, "the header of a page is damaged");
	}
	if (page->packed < 0 || page->size < 0 || page->packed > c->end - c->at - (int64_t)*bytes)
		return vfm_fail(err, VFM_EINPUT, "a page exceeds its column");
	return 0;
}

static int read_page_bytes(
	struct parquet_cursor *c, const struct parquet_file *f, const struct parquet_page *page, struct vfm_err *err)
{
	uint32_t crc;

	TRY(reserve_bytes(&c->file, (size_t)page->packed, "page", err));
	TRY(vfm_full_pread(f->fd, c->file.data, (size_t)page->packed, (uint64_t)c->at, f->name, err));
	if (!page->has_crc)
		return 0;
	crc = (uint32_t)crc32(0, c->file.data, (uInt)page->packed);
	return crc == page->crc ? 0 : vfm_fail(err, VFM_EINPUT, "the checksum of a page does not match: it is damaged");
}

/* Unpacks what follows the first `plain` bytes, which are copied. */
static int unpack_page(struct parquet_cursor *c, const struct parquet_page *page, struct parquet_bytes *to,
	size_t plain, struct vfm_err *err)
{
	size_t packed = (size_t)page->packed - plain, size = (size_t)page->size - plain;

	TRY(reserve_bytes(to, (size_t)page->size, "page", err));
	memcpy(to->data, c->file.data, plain);
	if (!packed && !size)
		return 0;
	return vfm_unpack(page_codec(c, page), c->file.data + plain, packed, to->data + plain, size, err);
}

/* ---- levels ---- */

static int level_width(int max_level)
{
	int width = 0;

	while (max_level >> width)
		width++;
	return width;
}

/* Version 1: sets *bytes to the length that the levels at *start have in front, and *start behind it. */
static int find_levels(const struct parquet_cursor *c, size_t size, int64_t encoding, size_t *start, size_t *bytes,
	struct vfm_err *err)
{
	const uint8_t *b = c->page.data + *start;

	if (encoding != PE_RLE)
		return vfm_fail(err, VFM_EINPUT, "levels have the encoding %s (%lld), which is not read",
			parquet_encoding_name(encoding), (long long)encoding);
	if (size - *start < 4)
		return vfm_fail(err, VFM_EINPUT, "a page lacks its levels");
	*bytes = (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
	*start += 4;
	if (*bytes > size - *start)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page exceed it");
	return 0;
}

/* Finds levels and values in an unpacked page. */
static int begin_page(struct parquet_cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	size_t size = (size_t)page->size, start = 0, bytes = (size_t)page->rep_bytes;
	int max_rep = c->leaf->max_rep, max_def = c->leaf->max_def;

	if (page->kind == 0 && max_rep)
		TRY(find_levels(c, size, page->rep_encoding, &start, &bytes, err));
	parquet_hybrid_init(&c->reps, c->page.data + start, bytes, level_width(max_rep));
	start += bytes;
	bytes = (size_t)page->def_bytes;
	if (page->kind == 0 && max_def)
		TRY(find_levels(c, size, page->def_encoding, &start, &bytes, err));
	parquet_hybrid_init(&c->defs, c->page.data + start, bytes, level_width(max_def));
	start += bytes;
	c->values.dictionary = c->has_dictionary ? &c->dictionary : NULL;
	TRY(parquet_values_begin(&c->values, page->encoding, c->page.data + start, size - start, err));
	c->left = page->n_values;
	c->chunk_left -= page->n_values;
	return 0;
}

/* ---- pages ---- */

static int begin_dictionary(struct parquet_cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	if (c->has_dictionary)
		return vfm_fail(err, VFM_EINPUT, "a column of a row group has two dictionaries");
	if (page->encoding != PE_PLAIN && page->encoding != PE_PLAIN_DICTIONARY)
		return vfm_fail(err, VFM_EINPUT, "a dictionary has the encoding %s (%lld), which is not read",
			parquet_encoding_name(page->encoding), (long long)page->encoding);
	TRY(unpack_page(c, page, &c->dictionary_page, 0, err));
	TRY(parquet_dictionary_init(
		&c->dictionary, c->leaf, c->dictionary_page.data, (size_t)page->size, page->n_values, err));
	c->has_dictionary = true;
	return 0;
}

static int begin_data(struct parquet_cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	if (page->n_values < 0 || page->n_values > c->chunk_left)
		return vfm_fail(err, VFM_EINPUT, "a page has %lld values, its column has %lld left",
			(long long)page->n_values, (long long)c->chunk_left);
	TRY(unpack_page(c, page, &c->page, page->kind == 3 ? (size_t)(page->def_bytes + page->rep_bytes) : 0, err));
	return begin_page(c, page, err);
}

/* Reads the next page; index pages and unknown ones are skipped. */
static int read_page(struct parquet_cursor *c, const struct parquet_file *f, struct vfm_err *err)
{
	struct parquet_page page;
	size_t header;
	bool is_read;

	TRY(read_page_header(c, f, &page, &header, err));
	is_read = page.kind == 0 || page.kind == 2 || page.kind == 3;
	c->at += (int64_t)header;
	if (is_read) {
		TRY(check_page_size(c, &page, err));
		TRY(read_page_bytes(c, f, &page, err));
	}
	c->at += page.packed;
	if (!is_read)
		return 0;
	return page.kind == 2 ? begin_dictionary(c, &page, err) : begin_data(c, &page, err);
}

void parquet_cursor_begin(struct parquet_cursor *c, const struct parquet_chunk *chunk)
{
	c->at = chunk->start;
	c->end = chunk->start + chunk->bytes;
	c->chunk_left = chunk->n_values;
	c->left = 0;
	c->has_value = false;
	c->codec = chunk->codec;
	parquet_dictionary_release(&c->dictionary);
	c->has_dictionary = false;
}

int parquet_cursor_peek(struct parquet_cursor *c, const struct parquet_file *f, struct vfm_err *err)
{
	uint32_t rep, def;

	if (c->has_value)
		return 1;
	while (!c->left) {
		if (!c->chunk_left)
			return 0;
		if (c->at >= c->end)
			return vfm_fail(err, VFM_EINPUT, "it has fewer values than the footer says");
		TRY(read_page(c, f, err));
	}
	c->left--;
	if (!parquet_hybrid_next(&c->reps, &rep) || !parquet_hybrid_next(&c->defs, &def) ||
		rep > (uint32_t)c->leaf->max_rep || def > (uint32_t)c->leaf->max_def)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page are damaged");
	c->rep = (int)rep;
	c->def = (int)def;
	c->has_value = true;
	return 1;
}

int parquet_cursor_take(struct parquet_cursor *c, struct vfm_cell *cell, struct vfm_err *err)
{
	*cell = (struct vfm_cell){VFM_CELL_NULL};
	c->has_value = false;
	return c->def < c->leaf->max_def ? 0 : parquet_values_next(&c->values, cell, err);
}

void parquet_cursor_release(struct parquet_cursor *c)
{
	release_bytes(&c->file);
	release_bytes(&c->page);
	release_bytes(&c->dictionary_page);
	parquet_dictionary_release(&c->dictionary);
	parquet_values_release(&c->values);
}
