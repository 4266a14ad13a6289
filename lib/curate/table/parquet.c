#include "curate/table/parquet.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "curate/table/parquet_impl.h"
#include "curate/table/unpack.h"
#include "io/file.h"

#define MAGIC           "PAR1"
#define MAGIC_ENCRYPTED "PARE"

enum { MAX_FOOTER = 64 << 20 };

/* A column that was selected. */
struct selected {
	int column;
	struct parquet_cursor *cursors; /* of its leaves */
	int n_cursors;
	json_t *value; /* of the last row */
};

struct vfm_parquet {
	int fd;
	char *name;
	struct parquet_meta meta;
	struct selected *selected; /* [n_selected] */
	int n_selected;
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

static void release_selected(struct vfm_parquet *p)
{
	for (int i = 0; i < p->n_selected; i++) {
		struct selected *s = &p->selected[i];

		for (int k = 0; k < s->n_cursors; k++)
			parquet_cursor_release(&s->cursors[k]);
		free(s->cursors);
		json_decref(s->value);
	}
	free(p->selected);
	p->selected = NULL;
	p->n_selected = 0;
}

void vfm_parquet_close(struct vfm_parquet *p)
{
	if (!p)
		return;
	release_selected(p);
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
	return p->meta.n_columns;
}

const char *vfm_parquet_name(const struct vfm_parquet *p, int column)
{
	return p->meta.columns[column].name;
}

int vfm_parquet_find(const struct vfm_parquet *p, const char *name)
{
	for (int i = 0; i < p->meta.n_columns; i++)
		if (!strcmp(p->meta.columns[i].name, name))
			return i;
	return -1;
}

static int check_codecs(const struct vfm_parquet *p, const struct parquet_node *node, struct vfm_err *err)
{
	for (size_t group = 0; group < p->meta.n_groups; group++)
		for (int i = node->first_leaf; i < node->first_leaf + node->n_leaves; i++)
			TRY(vfm_codec_check(p->meta.chunks[group * (size_t)p->meta.n_leaves + (size_t)i].codec, err));
	return 0;
}

static int select_column(const struct vfm_parquet *p, struct selected *s, int column, struct vfm_err *err)
{
	const struct parquet_node *node = &p->meta.nodes[p->meta.columns[column].node];

	s->column = column;
	if (parquet_column_check(&p->meta, column, err) < 0)
		return vfm_err_context(err, "'%s'", p->name);
	if (check_codecs(p, node, err) < 0)
		return vfm_err_context(err, "'%s': column '%s'", p->name, p->meta.columns[column].name);
	s->n_cursors = node->n_leaves;
	s->cursors = vfm_calloc((size_t)s->n_cursors, sizeof(s->cursors[0]));
	for (int i = 0; i < s->n_cursors; i++)
		s->cursors[i].leaf = s->cursors[i].values.leaf = &p->meta.leaves[node->first_leaf + i];
	return 0;
}

int vfm_parquet_select(struct vfm_parquet *p, const int *columns, int n, struct vfm_err *err)
{
	release_selected(p);
	p->selected = vfm_calloc((size_t)n + 1, sizeof(p->selected[0]));
	p->n_selected = n;
	for (int i = 0; i < n; i++)
		TRY(select_column(p, &p->selected[i], columns[i], err));
	return 0;
}

/* ---- rows ---- */

static void begin_row_group(struct vfm_parquet *p)
{
	const struct parquet_chunk *chunks = &p->meta.chunks[p->group * (size_t)p->meta.n_leaves];

	for (int i = 0; i < p->n_selected; i++) {
		struct selected *s = &p->selected[i];
		int first = p->meta.nodes[p->meta.columns[s->column].node].first_leaf;

		for (int k = 0; k < s->n_cursors; k++)
			parquet_cursor_begin(&s->cursors[k], &chunks[first + k]);
	}
	p->in_group = p->meta.group_rows[p->group++];
}

static int fail_rest(struct vfm_parquet *p, const struct selected *s, struct vfm_err *err)
{
	p->failed = true;
	vfm_err_context(err, "'%s': the rows from %lld on are not read: column '%s'", p->name, (long long)p->row,
		p->meta.columns[s->column].name);
	return err && err->code == VFM_EENV ? VFM_EENV : VFM_EINPUT;
}

/* Behind the last row of a group no list goes on. */
static int check_group_end(struct vfm_parquet *p, struct vfm_err *err)
{
	const struct parquet_file f = {p->fd, p->name};

	for (int i = 0; i < p->n_selected; i++)
		for (int k = 0; k < p->selected[i].n_cursors; k++) {
			int rc = parquet_cursor_peek(&p->selected[i].cursors[k], &f, err);

			if (rc == 1)
				rc = vfm_fail(err, VFM_EINPUT, "it has more values than the row group has rows");
			if (rc < 0)
				return fail_rest(p, &p->selected[i], err);
		}
	return 0;
}

static int read_cells(struct vfm_parquet *p, struct vfm_cell *cells, struct vfm_err *err)
{
	const struct parquet_file f = {p->fd, p->name};
	struct parquet_fault fault = {0};

	for (int i = 0; i < p->n_selected; i++) {
		struct selected *s = &p->selected[i];
		bool was_set = fault.is_set;

		json_decref(s->value);
		s->value = NULL;
		if (parquet_assemble(&p->meta, s->column, s->cursors, &f, &cells[i], &fault, err) < 0)
			return fail_rest(p, s, err);
		if (cells[i].type == VFM_CELL_JSON)
			s->value = cells[i].json;
		if (fault.is_set && !was_set)
			vfm_err_context(&fault.err, "'%s', row %lld: column '%s'", p->name, (long long)p->row,
				p->meta.columns[s->column].name);
	}
	if (!fault.is_set)
		return 1;
	if (err)
		*err = fault.err;
	return VFM_EINPUT;
}

int vfm_parquet_next(struct vfm_parquet *p, struct vfm_cell *cells, struct vfm_err *err)
{
	if (p->failed)
		return 0;
	while (!p->in_group) {
		if (p->group)
			TRY(check_group_end(p, err));
		if (p->group == p->meta.n_groups)
			return 0;
		begin_row_group(p);
	}
	p->in_group--;
	p->row++;
	return read_cells(p, cells, err);
}
