/* vfm-ckpt ls, stat, tree - list tensors, with their statistics, or grouped by prefix. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt/inspect.h"
#include "ckpt_cmd.h"

int verb_ls(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"name", "tensor", 0}, {"dtype", "dtype", 0},
		{"shape", "shape", 0}, {"bytes", "bytes", 0}, {"pieces", "pieces", 0}, {0}};
	struct vfm_table_opts table = {0};
	struct vfm_table *t;
	struct view v;
	int rc = verb_open_list(&v, &table, "vfm-ckpt ls", "list tensors", argc, argv, err);

	if (rc)
		return rc;
	t = vfm_table_new(columns);
	for (int i = 0; i < v.n; i++) {
		char shape[VFM_NDIM_MAX * 21];

		shape_text(v.t[i], shape, sizeof(shape));
		vfm_table_row(t);
		vfm_table_str(t, "name", v.t[i]->name);
		vfm_table_str(t, "dtype", vfm_dtype_name(v.t[i]->dtype));
		vfm_table_str(t, "shape", shape);
		vfm_table_i64(t, "bytes", v.t[i]->bytes);
		vfm_table_i64(t, "pieces", v.t[i]->n_pieces);
	}
	view_close(&v);
	return verb_print(t, &table, 0, err);
}

/* ---- stat ---- */

int verb_stat(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"name", "tensor", 0},
		{"elements", "elements", 0, VFM_COLUMN_DETAIL}, {"min", "min", -6}, {"max", "max", -6},
		{"mean", "mean", -6}, {"std", "std", -6, VFM_COLUMN_DETAIL}, {"norm", "norm", -6},
		{"zeros", "zeros", 0, VFM_COLUMN_DETAIL}, {"nan", "nan", 0}, {"inf", "inf", 0}, {0}};
	struct vfm_table_opts table = {0};
	struct vfm_table *t;
	struct view v;
	int rc = verb_open_list(
		&v, &table, "vfm-ckpt stat", "minimum, maximum, mean, norm and NaNs of each tensor", argc, argv, err);

	if (rc)
		return rc;
	t = vfm_table_new(columns);
	for (int i = 0; i < v.n && !rc; i++) {
		struct vfm_tensor_stat s;

		rc = vfm_ckpt_stat(v.c, v.t[i], &s, err);
		vfm_table_row(t);
		vfm_table_str(t, "name", v.t[i]->name);
		vfm_table_i64(t, "elements", s.n);
		vfm_table_f64(t, "min", s.min);
		vfm_table_f64(t, "max", s.max);
		vfm_table_f64(t, "mean", s.mean);
		vfm_table_f64(t, "std", s.std);
		vfm_table_f64(t, "norm", s.norm);
		vfm_table_i64(t, "zeros", s.zero);
		vfm_table_i64(t, "nan", s.nan);
		vfm_table_i64(t, "inf", s.inf);
	}
	view_close(&v);
	return verb_print(t, &table, rc, err);
}

/* ---- tree ---- */

/* Returns the length of the first `depth` components of a name, which '/' and '.' separate, or of the whole name. */
static size_t prefix_len(const char *name, int64_t depth)
{
	size_t i = 0;

	for (; name[i]; i++)
		if ((name[i] == '/' || name[i] == '.') && --depth == 0)
			break;
	return i;
}

static void tree_rows(struct vfm_table *t, const struct view *v, int64_t max_depth)
{
	for (int i = 0; i < v->n; i++) {
		const char *name = v->t[i]->name;

		for (int64_t d = 1; d <= max_depth; d++) {
			size_t len = prefix_len(name, d);
			int64_t params = 0, bytes = 0, tensors = 0;
			char *text;

			if (i > 0 && prefix_len(v->t[i - 1]->name, d) == len && !strncmp(v->t[i - 1]->name, name, len))
				continue; /* the first tensor of this group has printed it */
			for (int k = i; k < v->n && !strncmp(v->t[k]->name, name, len); k++) {
				if (prefix_len(v->t[k]->name, d) != len)
					continue;
				params += v->t[k]->numel;
				bytes += v->t[k]->bytes;
				tensors++;
			}
			text = vfm_strfmt("%*s%.*s", (int)(2 * (d - 1)), "", (int)len, name);
			vfm_table_row(t);
			vfm_table_str(t, "prefix", text);
			vfm_table_i64(t, "tensors", tensors);
			vfm_table_i64(t, "params", params);
			vfm_table_i64(t, "bytes", bytes);
			free(text);
			if (!name[len])
				break;
		}
	}
}

int verb_tree(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"prefix", "prefix", 0}, {"tensors", "tensors", 0},
		{"params", "elements", 0}, {"bytes", "bytes", 0}, {0}};
	struct vfm_table_opts table = {0};
	int64_t depth = 3;
	struct vfm_opt opts[] = {{VFM_OPT_INT, 0, "depth", "N", "levels to show (default 3)", &depth, 1, 64},
		VFM_TABLE_OPTS(&table), {0}};
	struct vfm_cmd cmd = {.name = "vfm-ckpt tree",
		.synopsis = "[--depth N] [--format FORMAT] CKPT",
		.summary = "tensors grouped by prefix, with sums",
		.opts = opts};
	struct vfm_table *t;
	struct view v;
	int n, rc = verb_parse(&cmd, argc, argv, 1, 1, &n, err);

	if (rc)
		return rc;
	TRY(view_open(&v, argv[1], NULL, false, err));
	t = vfm_table_new(columns);
	tree_rows(t, &v, depth);
	view_close(&v);
	return verb_print(t, &table, 0, err);
}
