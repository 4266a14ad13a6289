#include "curate/parquet.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <zlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "curate/parquet_impl.h"
#include "curate/unpack.h"

#define MAGIC           "PAR1"
#define MAGIC_ENCRYPTED "PARE"

enum { MAX_FOOTER = 64 << 20, MAX_PAGE = 256 << 20, MAX_PAGE_HEADER = 16 << 20 };

struct page_bytes {
	uint8_t *data;
	size_t size;
};

/* A column that was selected. */
struct cursor {
	const struct parquet_leaf *leaf;
	int column;
	int64_t at, end;    /* of the chunk: the next page */
	int64_t chunk_left; /* values behind this page */
	int64_t left;       /* values of this page */
	int64_t codec;
	struct page_bytes file, page, dictionary_page;
	struct parquet_dictionary dictionary;
	bool has_dictionary;
	struct parquet_hybrid levels;
	struct parquet_values values;
};

struct vfm_parquet {
	int fd;
	char *name;
	struct parquet_meta meta;
	struct cursor *cursors;
	int n_cursors;
	size_t group;     /* the next one */
	int64_t in_group; /* rows left of the group before it */
	int64_t row;      /* of the last cells, from 1 */
	bool failed;
};

/* ---- opening ---- */

static int read_footer(struct vfm_parquet *p, int64_t bytes, struct vfm_err *err)
{
	uint8_t tail[8], *data;
	uint32_t len;
	int rc;

	if (bytes < 12)
		return vfm_fail(err, VFM_EINPUT, "it is too short for a Parquet file");
	TRY(vfm_full_pread(p->fd, tail, sizeof(tail), (uint64_t)bytes - 8, p->name, err));
	if (!memcmp(tail + 4, MAGIC_ENCRYPTED, 4))
		return vfm_fail(err, VFM_EINPUT, "it is encrypted");
	if (memcmp(tail + 4, MAGIC, 4) != 0)
		return vfm_fail(err, VFM_EINPUT, "it does not end as a Parquet file: it is truncated, or none");
	len = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
	if (len > MAX_FOOTER || len > bytes - 12)
		return vfm_fail(err, VFM_EINPUT, "its footer of %u bytes does not fit (at most %d)", len, MAX_FOOTER);
	data = vfm_malloc(len ? len : 1);
	rc = vfm_full_pread(p->fd, data, len, (uint64_t)(bytes - 8 - (int64_t)len), p->name, err);
	if (rc == 0)
		rc = parquet_meta_parse(&p->meta, data, len, bytes - 8 - (int64_t)len, err);
	free(data);
	return rc;
}

int vfm_parquet_open(struct vfm_parquet **out, int fd, const char *name, struct vfm_err *err)
{
	struct vfm_parquet *p = vfm_calloc(1, sizeof(*p));
	struct stat st;
	int rc;

	*p = (struct vfm_parquet){.fd = fd, .name = vfm_strdup(name)};
	*out = NULL;
	if (fstat(fd, &st) != 0)
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
	else
		rc = read_footer(p, (int64_t)st.st_size, err);
	if (rc < 0) {
		vfm_parquet_close(p);
		return vfm_err_context(err, "'%s'", name);
	}
	*out = p;
	return 0;
}

static void release_bytes(struct page_bytes *b)
{
	vfm_big_free(b->data, b->size);
	*b = (struct page_bytes){0};
}

static void release_cursors(struct vfm_parquet *p)
{
	for (int i = 0; i < p->n_cursors; i++) {
		struct cursor *c = &p->cursors[i];

		release_bytes(&c->file);
		release_bytes(&c->page);
		release_bytes(&c->dictionary_page);
		parquet_dictionary_release(&c->dictionary);
		parquet_values_release(&c->values);
	}
	free(p->cursors);
	p->cursors = NULL;
	p->n_cursors = 0;
}

void vfm_parquet_close(struct vfm_parquet *p)
{
	if (!p)
		return;
	release_cursors(p);
	parquet_meta_release(&p->meta);
	free(p->name);
	free(p);
}

int64_t vfm_parquet_rows(const struct vfm_parquet *p)
{
	return p->meta.n_rows;
}

int vfm_parquet_columns(const struct vfm_parquet *p)
{
	return p->meta.n_leaves;
}

const char *vfm_parquet_name(const struct vfm_parquet *p, int column)
{
	return p->meta.leaves[column].name;
}

int vfm_parquet_find(const struct vfm_parquet *p, const char *name)
{
	for (int i = 0; i < p->meta.n_leaves; i++)
		if (!strcmp(p->meta.leaves[i].name, name))
			return i;
	return -1;
}

int vfm_parquet_select(struct vfm_parquet *p, const int *columns, int n, struct vfm_err *err)
{
	release_cursors(p);
	p->cursors = vfm_calloc((size_t)n + 1, sizeof(p->cursors[0]));
	p->n_cursors = n;
	for (int i = 0; i < n; i++) {
		struct cursor *c = &p->cursors[i];

		c->column = columns[i];
		c->leaf = c->values.leaf = &p->meta.leaves[columns[i]];
		if (c->leaf->refused)
			return vfm_fail(err, VFM_EINPUT, "'%s': column '%s' %s, which is not read", p->name,
				c->leaf->name, c->leaf->refused);
		for (size_t k = 0; k < p->meta.n_groups; k++)
			if (vfm_codec_check(
				    p->meta.chunks[k * (size_t)p->meta.n_leaves + (size_t)columns[i]].codec, err) < 0)
				return vfm_err_context(err, "'%s': column '%s'", p->name, c->leaf->name);
	}
	return 0;
}

/* ---- pages ---- */

static int reserve(struct page_bytes *b, size_t n, const char *what, struct vfm_err *err)
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

/* Reads the header of the next page, whose statistics may be long, and sets *bytes to its length. */
static int read_page_header(
	const struct vfm_parquet *p, struct cursor *c, struct parquet_page *page, size_t *bytes, struct vfm_err *err)
{
	for (int64_t n = 4096;; n *= 16) {
		n = n > c->end - c->at ? c->end - c->at : n;
		TRY(reserve(&c->file, (size_t)n, "header of a page", err));
		TRY(vfm_full_pread(p->fd, c->file.data, (size_t)n, (uint64_t)c->at, p->name, err));
		*bytes = parquet_page_parse(page, c->file.data, (size_t)n);
		if (*bytes)
			break;
		if (n == c->end - c->at || n >= MAX_PAGE_HEADER)
			return vfm_fail(err, VFM_EINPUT, "the header of a page is damaged");
	}
	if (page->packed < 0 || page->size < 0 || page->packed > c->end - c->at - (int64_t)*bytes)
		return vfm_fail(err, VFM_EINPUT, "a page exceeds its column");
	if (page->packed > MAX_PAGE || page->size > MAX_PAGE)
		return vfm_fail(err, VFM_EINPUT, "a page of %lld bytes; at most %d are read",
			(long long)(page->packed > page->size ? page->packed : page->size), MAX_PAGE);
	return 0;
}

static int read_page_bytes(
	const struct vfm_parquet *p, struct cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	uint32_t crc;

	TRY(reserve(&c->file, (size_t)page->packed, "page", err));
	TRY(vfm_full_pread(p->fd, c->file.data, (size_t)page->packed, (uint64_t)c->at, p->name, err));
	if (!page->has_crc)
		return 0;
	crc = (uint32_t)crc32(0, c->file.data, (uInt)page->packed);
	return crc == page->crc ? 0 : vfm_fail(err, VFM_EINPUT, "the checksum of a page does not match: it is damaged");
}

/* Unpacks what follows the first `plain` bytes, which are copied. */
static int unpack_page(
	struct cursor *c, const struct parquet_page *page, struct page_bytes *to, size_t plain, struct vfm_err *err)
{
	size_t packed = (size_t)page->packed - plain, size = (size_t)page->size - plain;
	int64_t codec = page->kind == 3 && !page->is_packed ? VFM_CODEC_NONE : c->codec;

	TRY(reserve(to, (size_t)page->size, "page", err));
	memcpy(to->data, c->file.data, plain);
	if (!packed && !size)
		return 0;
	return vfm_unpack(codec, c->file.data + plain, packed, to->data + plain, size, err);
}

static int level_width(int max_level)
{
	int width = 0;

	while (max_level >> width)
		width++;
	return width;
}

/* Finds levels and values in an unpacked page. */
static int begin_page(struct cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	size_t size = (size_t)page->size, start = 0, levels = 0;
	const uint8_t *b = c->page.data;

	if (page->kind == 3) {
		start = (size_t)page->repetition_bytes;
		levels = (size_t)page->level_bytes;
	} else if (c->leaf->max_level) {
		if (page->level_encoding != PE_RLE)
			return vfm_fail(err, VFM_EINPUT, "levels have the encoding %s (%lld), which is not read",
				parquet_encoding_name(page->level_encoding), (long long)page->level_encoding);
		if (size < 4)
			return vfm_fail(err, VFM_EINPUT, "a page lacks its levels");
		start = 4;
		levels = (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
	}
	if (levels > size - start)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page exceed it");
	parquet_hybrid_init(&c->levels, b + start, levels, level_width(c->leaf->max_level));
	c->values.dictionary = c->has_dictionary ? &c->dictionary : NULL;
	TRY(parquet_values_begin(&c->values, page->encoding, b + start + levels, size - start - levels, err));
	c->left = page->n_values;
	c->chunk_left -= page->n_values;
	return 0;
}

static int begin_dictionary(struct cursor *c, const struct parquet_page *page, struct vfm_err *err)
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

static int check_page(const struct cursor *c, const struct parquet_page *page, struct vfm_err *err)
{
	int64_t plain;

	if (page->n_values < 0 || page->n_values > c->chunk_left)
		return vfm_fail(err, VFM_EINPUT, "a page has %lld values, its column has %lld left",
			(long long)page->n_values, (long long)c->chunk_left);
	if (page->kind == 0)
		return 0;
	if (page->level_bytes < 0 || page->level_bytes > MAX_PAGE || page->repetition_bytes < 0 ||
		page->repetition_bytes > MAX_PAGE)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page exceed it");
	plain = page->level_bytes + page->repetition_bytes;
	if (plain > page->packed || plain > page->size)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page exceed it");
	return 0;
}

/* Reads pages up to one with values. */
static int next_page(const struct vfm_parquet *p, struct cursor *c, struct vfm_err *err)
{
	struct parquet_page page;
	size_t header;

	while (!c->left) {
		if (c->at >= c->end)
			return vfm_fail(err, VFM_EINPUT, "it has fewer values than the row group has rows");
		TRY(read_page_header(p, c, &page, &header, err));
		c->at += (int64_t)header;
		if (page.kind == 0 || page.kind == 2 || page.kind == 3)
			TRY(read_page_bytes(p, c, &page, err));
		c->at += page.packed;
		if (page.kind == 2) {
			TRY(begin_dictionary(c, &page, err));
		} else if (page.kind == 0 || page.kind == 3) {
			TRY(check_page(c, &page, err));
			TRY(unpack_page(c, &page, &c->page,
				page.kind == 3 ? (size_t)(page.level_bytes + page.repetition_bytes) : 0, err));
			TRY(begin_page(c, &page, err));
		}
	}
	return 0;
}

/* ---- rows ---- */

static void begin_group(struct vfm_parquet *p)
{
	size_t base = p->group * (size_t)p->meta.n_leaves;

	for (int i = 0; i < p->n_cursors; i++) {
		struct cursor *c = &p->cursors[i];
		const struct parquet_chunk *chunk = &p->meta.chunks[base + (size_t)c->column];

		c->at = chunk->start;
		c->end = chunk->start + chunk->bytes;
		c->chunk_left = chunk->n_values;
		c->left = 0;
		c->codec = chunk->codec;
		parquet_dictionary_release(&c->dictionary);
		c->has_dictionary = false;
	}
	p->in_group = p->meta.group_rows[p->group++];
}

static bool exceeds_63_bits(const struct cursor *c, const struct vfm_cell *cell)
{
	return c->leaf->type == PT_INT64 && c->leaf->is_unsigned && cell->type == VFM_CELL_INT && cell->i < 0;
}

static int next_cell(const struct vfm_parquet *p, struct cursor *c, struct vfm_cell *cell, struct vfm_err *err)
{
	uint32_t level = 0;

	*cell = (struct vfm_cell){VFM_CELL_NULL};
	if (!c->left)
		TRY(next_page(p, c, err));
	c->left--;
	if (!parquet_hybrid_next(&c->levels, &level) || level > (uint32_t)c->leaf->max_level)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page are damaged");
	if (level < (uint32_t)c->leaf->max_level)
		return 0;
	return parquet_values_next(&c->values, cell, err);
}

int vfm_parquet_next(struct vfm_parquet *p, struct vfm_cell *cells, struct vfm_err *err)
{
	if (p->failed)
		return 0;
	while (!p->in_group) {
		if (p->group == p->meta.n_groups)
			return 0;
		begin_group(p);
	}
	p->in_group--;
	p->row++;
	for (int i = 0; i < p->n_cursors; i++)
		if (next_cell(p, &p->cursors[i], &cells[i], err) < 0) {
			p->failed = true;
			vfm_err_context(err, "'%s': the rows from %lld on are not read: column '%s'", p->name,
				(long long)p->row, p->cursors[i].leaf->name);
			return VFM_EINPUT;
		}
	for (int i = 0; i < p->n_cursors; i++)
		if (exceeds_63_bits(&p->cursors[i], &cells[i]))
			return vfm_fail(err, VFM_EINPUT, "'%s', row %lld: column '%s': the value %llu exceeds 63 bits",
				p->name, (long long)p->row, p->cursors[i].leaf->name, (unsigned long long)cells[i].i);
	return 1;
}
