/* parquet_meta.c - the footer of a Parquet file, and the headers of its pages. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/table/parquet_impl.h"

/* ---- row groups ---- */

static void read_column(struct vfm_thrift *t, struct parquet_chunk *c)
{
	int64_t data = -1, dictionary = 0;
	struct vfm_thrift_field f = {0};

	*c = (struct parquet_chunk){.type = -1, .codec = -1, .bytes = -1, .n_values = -1};
	while (vfm_thrift_field(t, &f)) {
		if (f.id == 1)
			c->type = (int32_t)vfm_thrift_int(t, &f);
		else if (f.id == 4)
			c->codec = (int32_t)vfm_thrift_int(t, &f);
		else if (f.id == 5)
			c->n_values = vfm_thrift_int(t, &f);
		else if (f.id == 7)
			c->bytes = vfm_thrift_int(t, &f);
		else if (f.id == 9)
			data = vfm_thrift_int(t, &f);
		else if (f.id == 11)
			dictionary = vfm_thrift_int(t, &f);
		else
			vfm_thrift_skip(t, &f);
	}
	c->start = dictionary > 0 && dictionary < data ? dictionary : data;
}

/* A chunk without its metadata is encrypted. */
static int read_chunk(struct vfm_thrift *t, struct parquet_chunk *c, struct vfm_err *err)
{
	struct vfm_thrift_field f = {0};
	bool is_here = false;
	size_t elsewhere = 0;

	while (vfm_thrift_field(t, &f)) {
		if (f.id == 1) {
			vfm_thrift_text(t, &f, &elsewhere);
		} else if (f.id == 3 && vfm_thrift_struct(t, &f)) {
			read_column(t, c);
			is_here = true;
		} else {
			vfm_thrift_skip(t, &f);
		}
	}
	if (!t->bad && elsewhere)
		return vfm_fail(err, VFM_EINPUT, "its columns are in other files");
	if (!t->bad && !is_here)
		return vfm_fail(err, VFM_EINPUT, "its columns are encrypted");
	return 0;
}

static int read_chunks(
	struct parquet_meta *m, struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_err *err)
{
	struct vfm_thrift_field element;
	size_t n = vfm_thrift_list(t, f, &element), base = m->n_groups * (size_t)m->n_leaves;

	if (!m->n_leaves || n != (size_t)m->n_leaves)
		return vfm_fail(err, VFM_EINPUT, "a row group has %zu columns, the schema %d", n, m->n_leaves);
	vfm_grow(&m->chunks, &m->chunk_cap, base + n, sizeof(m->chunks[0]));
	for (size_t i = 0; i < n && vfm_thrift_struct(t, &element); i++)
		TRY(read_chunk(t, &m->chunks[base + i], err));
	return t->bad ? vfm_fail(err, VFM_EINPUT, "its footer is damaged") : 0;
}

/* A group without rows need not have pages. */
static int check_group_chunks(const struct parquet_meta *m, int64_t rows, int64_t data_end, struct vfm_err *err)
{
	const struct parquet_chunk *chunks = m->chunks + m->n_groups * (size_t)m->n_leaves;

	for (int i = 0; rows && i < m->n_leaves; i++) {
		const struct parquet_chunk *c = &chunks[i];
		const struct parquet_leaf *leaf = &m->leaves[i];

		if (c->start < 4 || c->bytes < 0 || c->start > data_end || c->bytes > data_end - c->start ||
			c->type != (int32_t)leaf->type || (leaf->max_rep ? c->n_values < rows : c->n_values != rows))
			return vfm_fail(err, VFM_EINPUT, "row group %zu: column '%s' does not fit the file",
				m->n_groups + 1, leaf->name);
	}
	return 0;
}

static int read_group(struct parquet_meta *m, struct vfm_thrift *t, int64_t data_end, struct vfm_err *err)
{
	struct vfm_thrift_field f = {0};
	bool has_chunks = false;
	int64_t rows = -1;

	while (vfm_thrift_field(t, &f)) {
		if (f.id == 1) {
			TRY(read_chunks(m, t, &f, err));
			has_chunks = true;
		} else if (f.id == 3) {
			rows = vfm_thrift_int(t, &f);
		} else {
			vfm_thrift_skip(t, &f);
		}
	}
	if (t->bad || rows < 0 || !has_chunks)
		return vfm_fail(err, VFM_EINPUT, "its footer is damaged");
	TRY(check_group_chunks(m, rows, data_end, err));
	vfm_grow(&m->group_rows, &m->group_cap, m->n_groups + 1, sizeof(m->group_rows[0]));
	m->group_rows[m->n_groups++] = rows;
	return 0;
}

static int read_groups(struct parquet_meta *m, struct vfm_thrift *t, const struct vfm_thrift_field *f, int64_t data_end,
	struct vfm_err *err)
{
	struct vfm_thrift_field element;
	size_t n = vfm_thrift_list(t, f, &element);

	for (size_t i = 0; i < n && vfm_thrift_struct(t, &element); i++)
		TRY(read_group(m, t, data_end, err));
	return 0;
}

int parquet_meta_parse(struct parquet_meta *m, const uint8_t *data, size_t n, int64_t data_end, struct vfm_err *err)
{
	struct vfm_thrift t = {.p = data, .end = data + n};
	struct vfm_thrift_field f = {0};
	uint64_t sum = 0;

	*m = (struct parquet_meta){.n_rows = -1};
	while (vfm_thrift_field(&t, &f)) {
		if (f.id == 2 && !m->n_leaves)
			TRY(parquet_schema_read(m, &t, &f, err));
		else if (f.id == 3)
			m->n_rows = vfm_thrift_int(&t, &f);
		else if (f.id == 4)
			TRY(read_groups(m, &t, &f, data_end, err));
		else if (f.id == 8)
			return vfm_fail(err, VFM_EINPUT, "it is encrypted");
		else
			vfm_thrift_skip(&t, &f);
	}
	for (size_t i = 0; i < m->n_groups; i++)
		sum += (uint64_t)m->group_rows[i];
	if (t.bad || m->n_rows < 0 || sum != (uint64_t)m->n_rows)
		return vfm_fail(err, VFM_EINPUT, "its footer is damaged");
	return 0;
}

void parquet_meta_release(struct parquet_meta *m)
{
	free(m->leaves);
	free(m->nodes);
	free(m->columns);
	vfm_arena_release(&m->names);
	free(m->group_rows);
	free(m->chunks);
	*m = (struct parquet_meta){0};
}

/* ---- pages ---- */

/* Fields of DataPageHeader, DictionaryPageHeader and DataPageHeaderV2. */
static void read_page_v1(struct vfm_thrift *t, struct parquet_page *page)
{
	struct vfm_thrift_field f = {0};

	while (vfm_thrift_field(t, &f))
		if (f.id == 1)
			page->n_values = vfm_thrift_int(t, &f);
		else if (f.id == 2)
			page->encoding = vfm_thrift_int(t, &f);
		else if (f.id == 3 && page->kind == 0)
			page->def_encoding = vfm_thrift_int(t, &f);
		else if (f.id == 4 && page->kind == 0)
			page->rep_encoding = vfm_thrift_int(t, &f);
		else
			vfm_thrift_skip(t, &f);
}

static void read_page_v2(struct vfm_thrift *t, struct parquet_page *page)
{
	struct vfm_thrift_field f = {0};

	page->is_packed = true;
	page->def_encoding = page->rep_encoding = PE_RLE;
	while (vfm_thrift_field(t, &f))
		if (f.id == 1)
			page->n_values = vfm_thrift_int(t, &f);
		else if (f.id == 4)
			page->encoding = vfm_thrift_int(t, &f);
		else if (f.id == 5)
			page->def_bytes = vfm_thrift_int(t, &f);
		else if (f.id == 6)
			page->rep_bytes = vfm_thrift_int(t, &f);
		else if (f.id == 7)
			page->is_packed = vfm_thrift_bool(t, &f);
		else
			vfm_thrift_skip(t, &f);
}

size_t parquet_page_parse(struct parquet_page *page, const uint8_t *data, size_t n)
{
	struct vfm_thrift t = {.p = data, .end = data + n};
	struct vfm_thrift_field f = {0};

	*page = (struct parquet_page){.kind = -1, .packed = -1, .size = -1, .n_values = -1, .encoding = -1};
	while (vfm_thrift_field(&t, &f)) {
		if (f.id == 1) {
			page->kind = (int32_t)vfm_thrift_int(&t, &f);
		} else if (f.id == 2) {
			page->size = vfm_thrift_int(&t, &f);
		} else if (f.id == 3) {
			page->packed = vfm_thrift_int(&t, &f);
		} else if (f.id == 4) {
			page->crc = (uint32_t)vfm_thrift_int(&t, &f);
			page->has_crc = true;
		} else if ((f.id == 5 || f.id == 7) && vfm_thrift_struct(&t, &f)) {
			read_page_v1(&t, page);
		} else if (f.id == 8 && vfm_thrift_struct(&t, &f)) {
			read_page_v2(&t, page);
		} else {
			vfm_thrift_skip(&t, &f);
		}
	}
	return t.bad ? 0 : (size_t)(t.p - data);
}
