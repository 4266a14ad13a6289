/* table_records.c - makes a record with an id of each row of several tables. */
#include "curate/table/table_records.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/table/rows.h"
#include "curate/table/take.h"
#include "data/record/record.h"
#include "io/input.h"
#include "io/json.h"

struct vfm_table_records {
	struct vfm_table_records_opts o;
	struct vfm_twice files;
	int at; /* the next file */
	struct vfm_rows rows;
	bool is_open;
	struct vfm_take take;
};

static void close_table(struct vfm_table_records *t)
{
	vfm_rows_close(&t->rows);
	t->is_open = false;
	vfm_take_release(&t->take);
}

/* Returns 1, or 0 after the last table.  After a failure, none is open. */
static int open_table(struct vfm_table_records *t, struct vfm_err *err)
{
	const char *name;
	int i = t->at, rc;

	close_table(t);
	if (i >= t->files.n)
		return 0;
	t->at++;
	name = t->o.n_files && strcmp(t->o.files[i], "-") != 0 ? t->o.files[i] : "<stdin>";
	rc = vfm_rows_open(&t->rows, t->files.paths[i], name, t->o.sep, err);
	if (rc == 0)
		rc = vfm_take_init(&t->take, &t->rows, &t->o.take, &t->o.numbers, NULL, true, err);
	t->is_open = rc == 0;
	return rc < 0 ? rc : 1;
}

int vfm_table_records_open(struct vfm_table_records **out, const struct vfm_table_records_opts *o, struct vfm_err *err)
{
	struct vfm_table_records *t = vfm_calloc(1, sizeof(*t));
	int rc;

	t->o = *o;
	*out = t;
	rc = vfm_twice_open(&t->files, o->files, o->n_files, err);
	if (rc == 0)
		rc = open_table(t, err);
	if (rc >= 0)
		return 0;
	vfm_table_records_close(t);
	*out = NULL;
	if (rc == VFM_EINPUT && err) /* nothing was done */
		err->code = VFM_EUSAGE;
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

void vfm_table_records_close(struct vfm_table_records *t)
{
	if (!t)
		return;
	close_table(t);
	vfm_twice_close(&t->files);
	free(t);
}

/* A number becomes its text: ids are texts. */
static int set_row_id(json_t *rec, json_t *values, struct vfm_err *err)
{
	const json_t *id = json_object_get(values, "id");
	char hex[VFM_SHA256_HEX], *text;

	if (json_is_string(id)) {
		json_object_set(rec, "id", (json_t *)(uintptr_t)id);
	} else if (json_is_integer(id)) {
		text = vfm_strfmt("%" JSON_INTEGER_FORMAT, json_integer_value(id));
		json_object_set_new(rec, "id", json_string(text));
		free(text);
	} else if (id) {
		return vfm_fail(err, VFM_EINPUT, "the id is neither a text nor an integer");
	} else {
		vfm_rec_digest("", values, (const char *const[]){NULL}, hex);
		hex[16] = 0;
		json_object_set_new(rec, "id", json_string(hex));
	}
	json_object_del(values, "id");
	return 0;
}

static int make_row_record(struct vfm_table_records *t, const json_t *row, json_t **rec, struct vfm_err *err)
{
	json_t *values;
	int rc;

	TRY(vfm_take_row(&t->take, row, &values, err));
	*rec = json_pack("{s:i}", "v", 1);
	rc = set_row_id(*rec, values, err);
	if (rc == 0)
		rc = vfm_take_set(*rec, values, false, err);
	json_decref(values);
	if (rc < 0) {
		json_decref(*rec);
		*rec = NULL;
	}
	return rc;
}

int vfm_table_records_next(void *source, json_t **rec, struct vfm_err *err)
{
	struct vfm_table_records *t = source;
	json_t *row;
	int rc;

	*rec = NULL;
	for (;;) {
		rc = t->is_open ? vfm_rows_next(&t->rows, &row, err) : 0;
		if (rc < 0)
			return rc;
		if (rc == 1)
			break;
		rc = open_table(t, err); /* the next call continues after one that cannot be opened */
		if (rc <= 0)
			return rc;
	}
	rc = make_row_record(t, row, rec, err);
	json_decref(row);
	if (rc < 0)
		return vfm_err_context(err, "'%s', line %lld", t->rows.name, (long long)t->rows.place);
	return 1;
}

char *vfm_table_records_settings(const struct vfm_table_records_opts *o)
{
	json_t *list = json_array();
	struct vfm_buf b = {0};

	for (int i = 0; i < o->take.n; i++)
		json_array_append_new(list, json_string(o->take.v[i]));
	vfm_buf_adds(&b, "take ");
	vfm_json_text(&b, list, 0);
	json_array_clear(list);
	for (int i = 0; i < o->numbers.n; i++)
		json_array_append_new(list, json_string(o->numbers.v[i]));
	if (o->numbers.n) {
		vfm_buf_adds(&b, " numbers ");
		vfm_json_text(&b, list, 0);
	}
	if (o->sep)
		vfm_buf_addf(&b, " sep %d", o->sep);
	json_decref(list);
	return b.data;
}
