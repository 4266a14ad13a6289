/* parquet_schema.c - the columns of a Parquet file, from the schema in its footer (parquet-format, LogicalTypes.md). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "curate/table/parquet_impl.h"

enum { MAX_ELEMENTS = 10000, MAX_NESTING = 64, MAX_NAME = 1024, MAX_DECIMAL_BYTES = 32, MAX_DECIMAL_DIGITS = 76 };

struct element {
	const char *name;
	size_t name_len;
	int64_t type, width, repetition, children, converted, scale, precision;
	int logical; /* the field of the union LogicalType; 0: none */
	bool is_signed;
};

enum { REQUIRED, OPTIONAL, REPEATED };

/* ConvertedType and the fields of LogicalType that matter. */
enum {
	C_MAP = 1,
	C_MAP_KEY_VALUE = 2,
	C_LIST = 3,
	C_DECIMAL = 5,
	C_UINT_8 = 11,
	C_UINT_64 = 14,
	C_BSON = 20,
	C_INTERVAL = 21
};
enum {
	L_MAP = 2,
	L_LIST = 3,
	L_DECIMAL = 5,
	L_INTEGER = 10,
	L_BSON = 13,
	L_UUID = 14,
	L_FLOAT16 = 15,
	L_VARIANT = 16,
	L_GEOMETRY = 17,
	L_GEOGRAPHY = 18
};

/* ---- elements ---- */

static void read_integer_type(struct vfm_thrift *t, struct element *e)
{
	struct vfm_thrift_field f = {0};

	while (vfm_thrift_field(t, &f))
		if (f.id == 2)
			e->is_signed = vfm_thrift_bool(t, &f);
		else
			vfm_thrift_skip(t, &f);
}

static void read_decimal_type(struct vfm_thrift *t, struct element *e)
{
	struct vfm_thrift_field f = {0};

	while (vfm_thrift_field(t, &f))
		if (f.id == 1)
			e->scale = vfm_thrift_int(t, &f);
		else if (f.id == 2)
			e->precision = vfm_thrift_int(t, &f);
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
		else if (f.id == L_DECIMAL && vfm_thrift_struct(t, &f))
			read_decimal_type(t, e);
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
		else if (f.id == 2)
			e->width = vfm_thrift_int(t, &f);
		else if (f.id == 3)
			e->repetition = vfm_thrift_int(t, &f);
		else if (f.id == 4)
			e->name = vfm_thrift_text(t, &f, &e->name_len);
		else if (f.id == 5)
			e->children = vfm_thrift_int(t, &f);
		else if (f.id == 6)
			e->converted = vfm_thrift_int(t, &f);
		else if (f.id == 7)
			e->scale = vfm_thrift_int(t, &f);
		else if (f.id == 8)
			e->precision = vfm_thrift_int(t, &f);
		else if (f.id == 10 && vfm_thrift_struct(t, &f))
			read_logical(t, e);
		else if (f.id != 10)
			vfm_thrift_skip(t, &f);
	}
	if (!e->name)
		t->bad = true;
	e->name_len = e->name ? strnlen(e->name, e->name_len) : 0; /* names are C strings */
}

/* ---- leaves ---- */

static bool is_decimal_type(const struct element *e)
{
	return e->converted == C_DECIMAL || e->logical == L_DECIMAL;
}

static enum parquet_form form_of(const struct element *e)
{
	if (is_decimal_type(e))
		return PF_DECIMAL;
	if (e->type == PT_FIXED && e->logical == L_UUID && e->width == 16)
		return PF_UUID;
	if (e->type == PT_FIXED && e->logical == L_FLOAT16 && e->width == 2)
		return PF_FLOAT16;
	if ((e->converted >= C_UINT_8 && e->converted <= C_UINT_64) || (e->logical == L_INTEGER && !e->is_signed))
		return PF_UNSIGNED;
	return PF_PLAIN;
}

static bool decimal_is_read(const struct element *e)
{
	return e->precision >= 1 && e->precision <= MAX_DECIMAL_DIGITS && e->scale >= 0 && e->scale <= e->precision &&
		(e->type == PT_INT32 || e->type == PT_INT64 || e->type == PT_BYTE_ARRAY ||
			(e->type == PT_FIXED && e->width >= 1 && e->width <= MAX_DECIMAL_BYTES));
}

/* Returns the name of a type whose values would lose their meaning, or NULL.  `text` holds a name that is made. */
static const char *unread_type(const struct element *e, char text[96])
{
	static const char *const logical[] = {
		[L_BSON] = "BSON", [L_VARIANT] = "VARIANT", [L_GEOMETRY] = "GEOMETRY", [L_GEOGRAPHY] = "GEOGRAPHY"};

	if (e->converted == C_BSON)
		return "BSON";
	if (e->converted == C_INTERVAL)
		return "INTERVAL";
	if (e->logical > 0 && e->logical < (int)(sizeof(logical) / sizeof(logical[0])) && logical[e->logical])
		return logical[e->logical];
	if (is_decimal_type(e) && !decimal_is_read(e)) {
		snprintf(text, 96, "DECIMAL(%lld, %lld)", (long long)e->precision, (long long)e->scale);
		return text;
	}
	if (e->type == PT_FIXED && form_of(e) == PF_PLAIN) {
		snprintf(text, 96, "FIXED_LEN_BYTE_ARRAY(%lld)", (long long)e->width);
		return text;
	}
	return NULL;
}

/* ---- the tree ---- */

struct schema {
	struct parquet_meta *m;
	struct element *elements;
	size_t n, at;
	size_t leaf_cap, node_cap, column_cap;
	const char *variant; /* within a group of this type */
};

/* What an element inherits from the groups around it. */
struct schema_place {
	const char *prefix; /* "meta." */
	int def, rep, nesting;
	bool in_column;
};

static int add_field(struct schema *s, const struct schema_place *at, struct vfm_err *err);
static int add_content(struct schema *s, const struct element *e, const struct schema_place *at, struct vfm_err *err);

static int join_name(struct schema *s, const struct schema_place *at, const struct element *e, const char *end,
	char **name, struct vfm_err *err)
{
	size_t prefix = strlen(at->prefix), tail = strlen(end);
	char *text;

	if (prefix + e->name_len + tail > MAX_NAME)
		return vfm_fail(err, VFM_EINPUT, "the name of a column has more than %d bytes", MAX_NAME);
	text = *name = vfm_arena_alloc(&s->m->names, prefix + e->name_len + tail + 1);
	memcpy(text, at->prefix, prefix);
	memcpy(text + prefix, e->name, e->name_len);
	memcpy(text + prefix + e->name_len, end, tail + 1);
	return 0;
}

/* Adds a node, and a column for the outermost.  The caller sets `end` behind its descendants. */
static int begin_node(struct schema *s, const struct element *e, const struct schema_place *at, enum parquet_kind kind,
	int *index, struct vfm_err *err)
{
	struct parquet_meta *m = s->m;
	const struct schema_place bare = {.prefix = ""};
	struct parquet_node node = {.kind = kind, .def = at->def, .rep = at->rep, .first_leaf = m->n_leaves};
	struct parquet_column column = {.node = m->n_nodes};

	TRY(join_name(s, &bare, e, "", &node.name, err));
	if (!at->in_column) {
		TRY(join_name(s, at, e, "", &column.name, err));
		vfm_grow(&m->columns, &s->column_cap, (size_t)m->n_columns + 1, sizeof(m->columns[0]));
		m->columns[m->n_columns++] = column;
	}
	vfm_grow(&m->nodes, &s->node_cap, (size_t)m->n_nodes + 1, sizeof(m->nodes[0]));
	*index = m->n_nodes;
	m->nodes[m->n_nodes++] = node;
	return 0;
}

static void end_node(struct schema *s, int index)
{
	s->m->nodes[index].end = s->m->n_nodes;
	s->m->nodes[index].n_leaves = s->m->n_leaves - s->m->nodes[index].first_leaf;
}

static int add_leaf(struct schema *s, const struct element *e, const struct schema_place *at, struct vfm_err *err)
{
	struct parquet_meta *m = s->m;
	struct parquet_leaf leaf = {.type = (enum parquet_type)e->type,
		.form = form_of(e),
		.width = (int)e->width,
		.precision = (int)e->precision,
		.scale = (int)e->scale,
		.max_def = at->def,
		.max_rep = at->rep};
	char text[96];
	const char *unread;
	int node;

	if (e->type < 0 || e->type >= PT_TYPES || e->width < 0 || e->width > INT32_MAX)
		return vfm_fail(err, VFM_EINPUT, "a column of an unknown type");
	unread = s->variant ? s->variant : unread_type(e, text);
	leaf.unread = unread ? vfm_arena_strdup(&m->names, unread) : NULL;
	TRY(join_name(s, at, e, "", &leaf.name, err));
	TRY(begin_node(s, e, at, PK_LEAF, &node, err));
	vfm_grow(&m->leaves, &s->leaf_cap, (size_t)m->n_leaves + 1, sizeof(m->leaves[0]));
	m->leaves[m->n_leaves++] = leaf;
	end_node(s, node);
	return 0;
}

static int enter_group(struct schema *s, const struct element *e, const struct schema_place *at,
	struct schema_place *inner, struct vfm_err *err)
{
	char *prefix;

	*inner = *at;
	if (++inner->nesting > MAX_NESTING)
		return vfm_fail(err, VFM_EINPUT, "the schema is nested more than %d deep", MAX_NESTING);
	TRY(join_name(s, at, e, ".", &prefix, err));
	inner->prefix = prefix;
	return 0;
}

/* A struct is a node only within a list or map: outside, its fields are columns. */
static int add_struct(struct schema *s, const struct element *e, const struct schema_place *at, struct vfm_err *err)
{
	struct schema_place inner;
	int node = -1;

	TRY(enter_group(s, e, at, &inner, err));
	if (at->in_column)
		TRY(begin_node(s, e, at, PK_STRUCT, &node, err));
	for (int64_t i = 0; i < e->children; i++)
		TRY(add_field(s, &inner, err));
	if (node >= 0)
		end_node(s, node);
	return 0;
}

static const struct element *only_repeated_child(const struct schema *s, const struct element *e)
{
	const struct element *child = s->at < s->n ? &s->elements[s->at] : NULL;

	return e->children == 1 && child && child->repetition == REPEATED ? child : NULL;
}

/* Whether the content of a list is the repeated element itself, as old writers have it, and not the one field in it. */
static bool is_two_level(const struct schema *s, const struct element *list, const struct element *repeated)
{
	const char *tuple = "_tuple";

	if (repeated->children != 1)
		return true;
	if (s->at + 1 < s->n && s->elements[s->at + 1].repetition == REPEATED)
		return true;
	if (repeated->name_len == 5 && !memcmp(repeated->name, "array", 5))
		return true;
	return repeated->name_len == list->name_len + 6 && !memcmp(repeated->name, list->name, list->name_len) &&
		!memcmp(repeated->name + list->name_len, tuple, 6);
}

/* Adds a list, or a map, whose repeated element is the next one. */
static int add_repeated(struct schema *s, const struct element *e, const struct schema_place *at,
	enum parquet_kind kind, struct vfm_err *err)
{
	const struct element *repeated = &s->elements[s->at];
	bool two_level = kind == PK_LIST && is_two_level(s, e, repeated);
	struct schema_place inner, content;
	int node, rc;

	TRY(enter_group(s, e, at, &inner, err));
	TRY(begin_node(s, e, at, kind, &node, err));
	inner.in_column = true;
	inner.def++;
	inner.rep++;
	s->m->nodes[node].rep = inner.rep;
	s->at++;
	if (two_level) {
		rc = add_content(s, repeated, &inner, err);
	} else {
		TRY(enter_group(s, repeated, &inner, &content, err));
		rc = 0;
		for (int64_t i = 0; i < repeated->children && rc == 0; i++)
			rc = add_field(s, &content, err);
	}
	end_node(s, node);
	return rc;
}

/* Texts and integers are keys of objects. */
static bool is_map_key(const struct element *e)
{
	char text[96];

	return e->children <= 0 && e->repetition != REPEATED && !is_decimal_type(e) && !unread_type(e, text) &&
		(e->type == PT_BYTE_ARRAY || e->type == PT_INT32 || e->type == PT_INT64);
}

static int add_content(struct schema *s, const struct element *e, const struct schema_place *at, struct vfm_err *err)
{
	bool is_map = e->converted == C_MAP || e->converted == C_MAP_KEY_VALUE || e->logical == L_MAP;
	bool is_list = e->converted == C_LIST || e->logical == L_LIST;
	const struct element *repeated = only_repeated_child(s, e);
	const char *outer = s->variant;
	int rc;

	if (e->children <= 0)
		return add_leaf(s, e, at, err);
	if (e->logical == L_VARIANT)
		s->variant = "VARIANT";
	if (is_map && repeated && repeated->children == 2 && s->at + 1 < s->n && is_map_key(&s->elements[s->at + 1]))
		rc = add_repeated(s, e, at, PK_MAP, err);
	else if ((is_map || is_list) && repeated)
		rc = add_repeated(s, e, at, PK_LIST, err);
	else
		rc = add_struct(s, e, at, err);
	s->variant = outer;
	return rc;
}

/* Adds the next element and its children, which follow it.  One that is repeated without a group LIST around it is a
 * list of itself. */
static int add_field(struct schema *s, const struct schema_place *at, struct vfm_err *err)
{
	const struct element *e;
	struct schema_place inner = *at;
	int node, rc;

	if (s->at >= s->n)
		return vfm_fail(err, VFM_EINPUT, "the schema is damaged");
	e = &s->elements[s->at++];
	if (e->repetition != REPEATED) {
		inner.def += e->repetition == OPTIONAL;
		return add_content(s, e, &inner, err);
	}
	TRY(begin_node(s, e, at, PK_LIST, &node, err));
	inner.in_column = true;
	inner.def++;
	inner.rep++;
	s->m->nodes[node].rep = inner.rep;
	rc = add_content(s, e, &inner, err);
	end_node(s, node);
	return rc;
}

int parquet_schema_read(
	struct parquet_meta *m, struct vfm_thrift *t, const struct vfm_thrift_field *f, struct vfm_err *err)
{
	const struct schema_place top = {.prefix = ""};
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
		rc = add_field(&s, &top, err);
	if (rc == 0 && s.at != s.n)
		rc = vfm_fail(err, VFM_EINPUT, "the schema is damaged");
	free(s.elements);
	return rc;
}

/* The fields of a struct become keys of an object. */
static int check_field_names(const struct parquet_meta *m, int first, int end, struct vfm_err *err)
{
	for (int i = first; i < end; i++) {
		if (m->nodes[i].kind != PK_STRUCT)
			continue;
		for (int a = i + 1; a < m->nodes[i].end; a = m->nodes[a].end)
			for (int b = m->nodes[a].end; b < m->nodes[i].end; b = m->nodes[b].end)
				if (!strcmp(m->nodes[a].name, m->nodes[b].name))
					return vfm_fail(err, VFM_EINPUT, "has a struct '%s' with two fields '%s'",
						m->nodes[i].name, m->nodes[a].name);
	}
	return 0;
}

int parquet_column_check(const struct parquet_meta *m, int column, struct vfm_err *err)
{
	const char *name = m->columns[column].name;
	int first = m->columns[column].node;
	const struct parquet_node *top = &m->nodes[first];

	for (int i = top->first_leaf; i < top->first_leaf + top->n_leaves; i++) {
		const struct parquet_leaf *leaf = &m->leaves[i];

		if (leaf->unread && top->kind == PK_LEAF)
			return vfm_fail(
				err, VFM_EINPUT, "column '%s' has the type %s, which is not read", name, leaf->unread);
		if (leaf->unread)
			return vfm_fail(err, VFM_EINPUT, "column '%s': '%s' has the type %s, which is not read", name,
				leaf->name, leaf->unread);
	}
	if (!top->n_leaves)
		return vfm_fail(err, VFM_EINPUT, "column '%s' has no values", name);
	return check_field_names(m, first, top->end, err) < 0 ? vfm_err_context(err, "column '%s'", name) : 0;
}
