/* parquet_meta.c - the footer of a Parquet file, and the headers of its pages. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/parquet_impl.h"

enum { MAX_ELEMENTS = 10000, MAX_NESTING = 32 };

/* ---- schema ---- */

struct element {
	const char *name;
	size_t name_len;
	int64_t type, repetition, children, converted;
	int logical; /* the field of the union LogicalType; 0: none */
	int64_t bits;
	bool is_signed;
};

enum { REQUIRED, OPTIONAL, REPEATED };

/* ConvertedType and the fields of LogicalType that matter. */
enum { C_MAP = 1, C_LIST = 3, C_DECIMAL = 5, C_UINT_8 = 11, C_UINT_64 = 14, C_BSON = 20 };
enum { L_MAP = 2, L_LIST = 3, L_DECIMAL = 5, L_INTEGER = 10, L_BSON = 13 };

static void read_integer_type(struct vfm_thrift *t, struct element *e)
{
	struct vfm_thrift_field f = {0};

	while (vfm_thrift_field(t, &f))
		if (f.id == 2)
			e->is_signed = vfm_thrift_bool(t, &f);
		else
			vfm_thrift_skip(t, &f);
}

static void read_logical(struct vfm_thrift *t, struct element *e)
{
	struct vfm_thrift_field f = {0};

	while (vfm_thrift_field(t, &f)) {
		e->logical = f.id;
		if (f.id == L_INTEGER && vfm_thrift_struct(t, &f))
			read_integer_type(t, e);
		else
			vfm_thrift_skip(t, &f);
	}
}

static void read_schema_element(struct vfm_thrift *t, struct element *e)
{
	struct vfm_thrift_field f = {0};

	*e = (struct element){.type = -1, .converted = -1, .is_signed = true};
	while (vfm_thrift_field(t, &f)) {
		if (f.id == 1)
			e->type = vfm_thrift_int(t, &f);
		else if (f.id == 3)
			e->repetition = vfm_thrift_int(t, &f);
		else if (f.id == 4)
			e->name = vfm_thrift_text(t, &f, &e->name_len);
		else if (f.id == 5)
			e->children = vfm_thrift_int(t, &f);
		else if (f.id == 6)
			e->converted = vfm_thrift_int(t, &f);
		else if (f.id == 10 && vfm_thrift_struct(t, &f))
			read_logical(t, e);
		else if (f.id != 10)
			vfm_thrift_skip(t, &f);
	}
	if (!e->name)
		t->bad = true;
}

struct schema {
	struct parquet_meta *m;
	struct element *elements;
	size_t n, at;
	size_t leaf_cap;
};

/* What a column inherits from the groups around it. */
struct group {
	const char *prefix; /* "meta." */
	int level, nesting;
	const char *list; /* NULL, or the name of the list or map that it is a part of */
};

static const char *refusal_of(const struct element *e, const struct group *g)
{
	if (g->list)
		return "is a list or map";
	if (e->type == PT_INT96)
		return "has the type INT96";
	if (e->type == PT_FIXED)
		return "has the type FIXED_LEN_BYTE_ARRAY";
	if (e->converted == C_DECIMAL || e->logical == L_DECIMAL)
		return "has the type DECIMAL";
	if (e->converted == C_BSON || e->logical == L_BSON)
		return "has the type BSON";
	return NULL;
}

/* Without NUL bytes: names are C strings. */
static char *column_name_of(const struct group *g, const struct element *e)
{
	struct vfm_buf b = {0};

	vfm_buf_adds(&b, g->prefix);
	vfm_buf_add(&b, e->name, strnlen(e->name, e->name_len));
	return b.data;
}

static int add_leaf(struct schema *s, const struct element *e, const struct group *g, struct vfm_err *err)
{
	struct parquet_meta *m = s->m;
	struct parquet_leaf leaf = {
		.type = (enum parquet_type)e->type,
		.is_unsigned = (e->converted >= C_UINT_8 && e->converted <= C_UINT_64) ||
			(e->logical == L_INTEGER && !e->is_signed),
		.max_level = g->level + (e->repetition == OPTIONAL),
		.refused = refusal_of(e, g),
	};

	if (e->type < 0 || e->type >= PT_TYPES)
		return vfm_fail(err, VFM_EINPUT, "a column of an unknown type");
	leaf.name = g->list ? vfm_strdup(g->list) : column_name_of(g, e);
	vfm_grow(&m->leaves, &s->leaf_cap, (size_t)m->n_leaves + 1, sizeof(m->leaves[0]));
	m->leaves[m->n_leaves++] = leaf;
	return 0;
}

static bool has_repeated_child(const struct schema *s, const struct element *e)
{
	return e->children == 1 && s->at < s->n && s->elements[s->at].repetition == REPEATED;
}

/* Walks an element and its children, which follow it. */
static int walk_schema(struct schema *s, const struct group *g, struct vfm_err *err)
{
	const struct element *e;
	struct group inner;
	char *name = NULL, *prefix = NULL;
	int rc = 0;

	if (s->at >= s->n || g->nesting > MAX_NESTING)
		return vfm_fail(err, VFM_EINPUT, "the schema is damaged");
	e = &s->elements[s->at++];
	inner = *g;
	if (!g->list &&
		(e->repetition == REPEATED || e->converted == C_LIST || e->converted == C_MAP || e->logical == L_LIST ||
			e->logical == L_MAP || has_repeated_child(s, e)))
		inner.list = name = column_name_of(g, e);
	if (e->children <= 0) {
		rc = add_leaf(s, e, &inner, err);
	} else {
		char *own = column_name_of(g, e);

		inner.prefix = prefix = vfm_strfmt("%s.", own);
		inner.level += e->repetition == OPTIONAL;
		inner.nesting++;
		free(own);
		for (int64_t i = 0; i < e->children && rc == 0; i++)
			rc = walk_schema(s, &inner, err);
	}
	free(name);
	free(prefix);
	return rc;
}

static int read_schema(
	struct parquet_meta *m, struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_err *err)
{
	const struct group top = {.prefix = ""};
	struct schema s = {.m = m};
	struct vfm_thrift_field element;
	int rc = 0;

	s.n = vfm_thrift_list(t, f, &element);
	if (s.n < 1 || s.n > MAX_ELEMENTS)
		return vfm_fail(err, VFM_EINPUT, "the schema is damaged, or has more than %d columns", MAX_ELEMENTS);
	s.elements = vfm_calloc(s.n, sizeof(*s.elements));
	for (size_t i = 0; i < s.n && vfm_thrift_struct(t, &element); i++)
		read_schema_element(t, &s.elements[i]);
	if (t->bad)
		rc = vfm_fail(err, VFM_EINPUT, "the schema is damaged");
	s.at = 1;
	for (int64_t i = 0; rc == 0 && i < s.elements[0].children; i++)
		rc = walk_schema(&s, &top, err);
	if (rc == 0 && s.at != s.n)
		rc = vfm_fail(err, VFM_EINPUT, "the schema is damaged");
	free(s.elements);
	return rc;
}

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
			c->type != (int32_t)leaf->type || (!leaf->refused && c->n_values != rows))
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
			TRY(read_schema(m, &t, &f, err));
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
	for (int i = 0; i < m->n_leaves; i++)
		free(m->leaves[i].name);
	free(m->leaves);
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
			page->level_encoding = vfm_thrift_int(t, &f);
		else
			vfm_thrift_skip(t, &f);
}

static void read_page_v2(struct vfm_thrift *t, struct parquet_page *page)
{
	struct vfm_thrift_field f = {0};

	page->is_packed = true;
	page->level_encoding = PE_RLE;
	while (vfm_thrift_field(t, &f))
		if (f.id == 1)
			page->n_values = vfm_thrift_int(t, &f);
		else if (f.id == 4)
			page->encoding = vfm_thrift_int(t, &f);
		else if (f.id == 5)
			page->level_bytes = vfm_thrift_int(t, &f);
		else if (f.id == 6)
			page->repetition_bytes = vfm_thrift_int(t, &f);
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
