/* parquet_assemble.c - the rows of a column, from the values and levels of its leaves (parquet-format,
 * LogicalTypes.md, "Nested Types"; Dremel, Melnik et al. 2010, section 4.3). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curate/table/parquet_impl.h"
#include "io/json.h"

/* Of the lists and maps of a row: bytes of memory, which jansson's values need about; and values that are read at all,
 * since a few bytes of a file may stand for any number. */
enum { MAX_ROW_BYTES = 16 << 20, MAX_ROW_VALUES = 1 << 24, VALUE_BYTES = 64, OBJECT_BYTES = 256 };

struct assembly {
	const struct parquet_meta *m;
	const struct parquet_file *f;
	struct parquet_cursor *cursors; /* of the leaves from first_leaf on */
	int first_leaf;
	struct parquet_fault *fault;
};

static int assemble_node(struct assembly *a, int index, int rep, int min_def, json_t **out, struct vfm_err *err);

static void set_row_fault(struct parquet_fault *fault, const struct vfm_err *err)
{
	if (!fault->is_set) {
		fault->is_set = true;
		fault->err = *err;
	}
}

/* Counts memory of a row.  Once the row has a fault, its values are read but not kept. */
static bool row_has_room(struct assembly *a, size_t bytes)
{
	struct vfm_err err = {0};

	if (a->fault->is_set)
		return false;
	a->fault->bytes += bytes;
	if (a->fault->bytes <= MAX_ROW_BYTES)
		return true;
	vfm_fail(&err, VFM_EINPUT, "the lists and maps of the row exceed %d MiB of memory", MAX_ROW_BYTES >> 20);
	set_row_fault(a->fault, &err);
	return false;
}

/* ---- values ---- */

/* Checks the levels of the next value of a leaf: it goes on at `rep`, and is there up to min_def. */
static int check_value(struct assembly *a, struct parquet_cursor *c, int rep, int min_def, struct vfm_err *err)
{
	int rc = parquet_cursor_peek(c, a->f, err);

	if (rc == 0)
		return vfm_fail(err, VFM_EINPUT, "it has fewer values than the row group has rows");
	if (rc < 0)
		return rc;
	if (c->rep != rep || c->def < min_def)
		return vfm_fail(err, VFM_EINPUT, "the levels of a page are damaged");
	return 0;
}

static int take_leaf(struct assembly *a, struct parquet_cursor *c, struct vfm_cell *cell, struct vfm_err *err)
{
	struct vfm_err why = {0};

	TRY(parquet_cursor_take(c, cell, err));
	if (parquet_form_apply(c->leaf, cell, c->text, &why) < 0) {
		*cell = (struct vfm_cell){VFM_CELL_NULL};
		set_row_fault(a->fault, &why);
	}
	return 0;
}

static json_t *make_text(struct assembly *a, const struct vfm_cell *cell)
{
	struct vfm_err why = {0};
	json_t *text = vfm_json_string(cell->text.s, cell->text.len, "a text", &why);

	if (!text)
		set_row_fault(a->fault, &why);
	return text;
}

/* Returns NULL for null, NaN and infinities, and in a row with a fault. */
static json_t *make_value(struct assembly *a, const struct vfm_cell *cell)
{
	if (!row_has_room(a, VALUE_BYTES + (cell->type == VFM_CELL_TEXT ? cell->text.len : 0)))
		return NULL;
	switch (cell->type) {
	case VFM_CELL_BOOL:
		return json_boolean(cell->i);
	case VFM_CELL_INT:
		return json_integer(cell->i);
	case VFM_CELL_REAL:
		return isfinite(cell->x) ? json_real(cell->x) : NULL;
	case VFM_CELL_TEXT:
		return make_text(a, cell);
	default:
		return NULL;
	}
}

static int count_value(struct assembly *a, struct vfm_err *err)
{
	if (++a->fault->taken > MAX_ROW_VALUES)
		return vfm_fail(err, VFM_EINPUT, "the lists of a row have more than %d values", MAX_ROW_VALUES);
	return 0;
}

static int assemble_leaf(struct assembly *a, struct parquet_cursor *c, json_t **out, struct vfm_err *err)
{
	struct vfm_cell cell;

	TRY(count_value(a, err));
	TRY(take_leaf(a, c, &cell, err));
	*out = make_value(a, &cell);
	return 0;
}

/* ---- groups ---- */

/* Takes the value of each leaf of a group that is null, or of a list that is empty: all have its level. */
static int skip_group(struct assembly *a, const struct parquet_node *n, int rep, int def, struct vfm_err *err)
{
	for (int i = 0; i < n->n_leaves; i++) {
		struct parquet_cursor *c = &a->cursors[n->first_leaf - a->first_leaf + i];
		struct vfm_cell cell;

		TRY(count_value(a, err));
		TRY(check_value(a, c, rep, def, err));
		if (c->def != def)
			return vfm_fail(err, VFM_EINPUT, "the levels of its parts differ");
		TRY(parquet_cursor_take(c, &cell, err));
	}
	return 0;
}

/* Sets a key of an object to a value, which it takes. */
static void set_field(struct assembly *a, json_t *object, const char *key, json_t *value)
{
	struct vfm_err why = {0};

	if (!row_has_room(a, VALUE_BYTES + strlen(key))) {
		json_decref(value);
	} else if (json_object_set_new(object, key, value) < 0) {
		vfm_fail(&why, VFM_EINPUT, "the name of a field is not UTF-8");
		set_row_fault(a->fault, &why);
	}
}

static int assemble_struct(struct assembly *a, int index, int rep, json_t *object, struct vfm_err *err)
{
	const struct parquet_node *n = &a->m->nodes[index];

	for (int child = index + 1; child < n->end; child = a->m->nodes[child].end) {
		json_t *value;

		TRY(assemble_node(a, child, rep, n->def, &value, err));
		if (value)
			set_field(a, object, a->m->nodes[child].name, value);
	}
	return 0;
}

/* Adds a key and its value, which the object takes, to a map. */
static void add_map_entry(struct assembly *a, json_t *object, const json_t *key, json_t *value)
{
	char number[32];
	const char *name = json_string_value(key);
	struct vfm_err why = {0};

	if (json_is_integer(key)) {
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(key));
		name = number;
	}
	if (!a->fault->is_set && (!name || json_object_get(object, name))) {
		vfm_fail(&why, VFM_EINPUT, name ? "a map has the key '%.100s' twice" : "a map has a null key", name);
		set_row_fault(a->fault, &why);
	}
	if (a->fault->is_set)
		json_decref(value);
	else
		set_field(a, object, name, value ? value : json_null());
}

/* One element of a list, or entry of a map. */
static int assemble_element(struct assembly *a, int index, int rep, json_t *group, struct vfm_err *err)
{
	const struct parquet_node *n = &a->m->nodes[index];
	json_t *key = NULL, *value = NULL;
	int rc;

	if (n->kind == PK_LIST) {
		TRY(assemble_node(a, index + 1, rep, n->def + 1, &value, err));
		if (a->fault->is_set)
			json_decref(value);
		else
			json_array_append_new(group, value ? value : json_null());
		return 0;
	}
	rc = assemble_node(a, index + 1, rep, n->def + 1, &key, err);
	if (rc == 0)
		rc = assemble_node(a, a->m->nodes[index + 1].end, rep, n->def + 1, &value, err);
	if (rc == 0)
		add_map_entry(a, group, key, value);
	json_decref(key);
	return rc;
}

/* A list goes on while the first of its leaves, and with it all others, repeats at its level. */
static int assemble_list(struct assembly *a, int index, int rep, json_t *group, struct vfm_err *err)
{
	const struct parquet_node *n = &a->m->nodes[index];
	struct parquet_cursor *c = &a->cursors[n->first_leaf - a->first_leaf];
	int more;

	if (c->def == n->def)
		return skip_group(a, n, rep, n->def, err);
	do {
		TRY(assemble_element(a, index, rep, group, err));
		rep = n->rep;
		more = parquet_cursor_peek(c, a->f, err);
	} while (more == 1 && c->rep == rep);
	return more < 0 ? more : 0;
}

/* Reads a part of a column, which begins at the repetition level `rep` and is there up to min_def.  *out is NULL if it
 * is null. */
static int assemble_node(struct assembly *a, int index, int rep, int min_def, json_t **out, struct vfm_err *err)
{
	const struct parquet_node *n = &a->m->nodes[index];
	struct parquet_cursor *c = &a->cursors[n->first_leaf - a->first_leaf];
	bool is_object = n->kind == PK_STRUCT || n->kind == PK_MAP;
	int rc;

	*out = NULL;
	TRY(check_value(a, c, rep, min_def, err));
	if (n->kind == PK_LEAF)
		return assemble_leaf(a, c, out, err);
	if (c->def < n->def)
		return skip_group(a, n, rep, c->def, err);
	if (row_has_room(a, OBJECT_BYTES))
		*out = is_object ? json_object() : json_array();
	rc = n->kind == PK_STRUCT ? assemble_struct(a, index, rep, *out, err) : assemble_list(a, index, rep, *out, err);
	if (rc < 0 || a->fault->is_set) {
		json_decref(*out);
		*out = NULL;
	}
	return rc;
}

int parquet_assemble(const struct parquet_meta *m, int column, struct parquet_cursor *cursors,
	const struct parquet_file *f, struct vfm_cell *cell, struct parquet_fault *fault, struct vfm_err *err)
{
	int top = m->columns[column].node;
	struct assembly a = {m, f, cursors, m->nodes[top].first_leaf, fault};

	*cell = (struct vfm_cell){VFM_CELL_NULL};
	if (m->nodes[top].kind == PK_LEAF) {
		TRY(check_value(&a, cursors, 0, 0, err));
		return take_leaf(&a, cursors, cell, err);
	}
	TRY(assemble_node(&a, top, 0, 0, &cell->json, err));
	cell->type = cell->json ? VFM_CELL_JSON : VFM_CELL_NULL;
	return 0;
}
