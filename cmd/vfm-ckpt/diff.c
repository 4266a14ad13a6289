/* vfm-ckpt diff - compares tensors; status 1 if they differ. */
#include <string.h>

#include "base/log.h"
#include "ckpt/inspect.h"
#include "ckpt_cmd.h"
#include "data/record/encoder_id.h"

struct diff {
	struct view v[2];
	double atol, rtol;
	bool all, ignore_dtype, listed;
	struct vfm_table *t;
	int64_t differ; /* tensors and encoder identities */
};

static void add_diff_row(struct diff *d, const char *name, const char *state, const struct vfm_ckpt_tensor *a,
	const struct vfm_ckpt_tensor *b, const struct vfm_tensor_diff *r)
{
	char sa[VFM_NDIM_MAX * 21 + 16], sb[VFM_NDIM_MAX * 21 + 16];

	d->differ += strcmp(state, "same") != 0;
	if (!strcmp(state, "same") && !d->all)
		return;
	d->listed = true;
	vfm_table_row(d->t);
	vfm_table_str(d->t, "name", name);
	vfm_table_str(d->t, "state", state);
	if (a)
		shape_text(a, sa, sizeof(sa));
	if (b)
		shape_text(b, sb, sizeof(sb));
	vfm_table_str(d->t, "shape_a", a ? sa : NULL);
	vfm_table_str(d->t, "shape_b", b ? sb : NULL);
	vfm_table_str(d->t, "dtype_a", a ? vfm_dtype_name(a->dtype) : NULL);
	vfm_table_str(d->t, "dtype_b", b ? vfm_dtype_name(b->dtype) : NULL);
	if (!r)
		return;
	vfm_table_i64(d->t, "differ", r->differ);
	vfm_table_f64(d->t, "max_abs", r->max_abs);
	vfm_table_f64(d->t, "max_rel", r->max_rel);
}

static int pair(struct diff *d, const char *name, const struct vfm_ckpt_tensor *a, const struct vfm_ckpt_tensor *b,
	struct vfm_err *err)
{
	struct vfm_tensor_diff r;

	if (!vfm_ckpt_has_shape(a, b->ndim, b->shape)) {
		add_diff_row(d, name, "shape", a, b, NULL);
		return 0;
	}
	TRY(vfm_ckpt_diff(d->v[0].c, a, d->v[1].c, b, d->atol, d->rtol, &r, err));
	add_diff_row(d, name,
		r.differ                                           ? "values"
			: a->dtype != b->dtype && !d->ignore_dtype ? "dtype"
								   : "same",
		a, b, &r);
	return 0;
}

/* Merges the two lists, which are sorted by name. */
static int walk(struct diff *d, struct vfm_err *err)
{
	int i = 0, k = 0;

	while (i < d->v[0].n || k < d->v[1].n) {
		const struct vfm_ckpt_tensor *a = i < d->v[0].n ? d->v[0].t[i] : NULL,
					     *b = k < d->v[1].n ? d->v[1].t[k] : NULL;
		const char *na = a ? a->name + d->v[0].cut : NULL, *nb = b ? b->name + d->v[1].cut : NULL;
		int order = !a ? 1 : !b ? -1 : strcmp(na, nb);

		if (order < 0)
			add_diff_row(d, na, "only in A", a, NULL, NULL);
		else if (order > 0)
			add_diff_row(d, nb, "only in B", NULL, b, NULL);
		else
			TRY(pair(d, na, a, b, err));
		i += order <= 0;
		k += order >= 0;
	}
	return 0;
}

/* Names the encoders of the training data that differ; an unknown one matches. */
static int compare_encoder_ids(struct diff *d, struct vfm_err *err)
{
	struct vfm_encoder_ids m[2];
	struct vfm_err why;

	for (int k = 0; k < 2; k++)
		if (vfm_encoder_ids_from_json(
			    &m[k], json_object_get(d->v[k].c->state, "encoders"), "state.encoders", err) < 0)
			return vfm_err_context(err, "%s", d->v[k].c->path);
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++)
		if (vfm_encoder_id_check(e, &m[0].of[e], "A", &m[1].of[e], "B", &why) < 0) {
			vfm_warn("%s", why.msg);
			d->differ++;
		}
	return 0;
}

/* A checkpoint is compared with a plain file by its part "model". */
static int open_ckpts(struct diff *d, char **argv, const char *part, struct vfm_err *err)
{
	TRY(view_open(&d->v[0], argv[1], part, false, err));
	TRY(view_open(&d->v[1], argv[2], part, false, err));
	for (int k = 0; k < 2 && !part; k++) {
		if (d->v[k].c->plain || !d->v[1 - k].c->plain)
			continue;
		view_close(&d->v[k]);
		TRY(view_open(&d->v[k], argv[k + 1], "model", false, err));
	}
	return 0;
}

int verb_diff(int argc, char **argv, struct vfm_err *err)
{
	static const struct vfm_table_column columns[] = {{"name", "tensor", 0}, {"state", "state", 0},
		{"shape_a", "shape A", 0}, {"shape_b", "shape B", 0}, {"dtype_a", "dtype A", 0},
		{"dtype_b", "dtype B", 0}, {"differ", "elements", 0}, {"max_abs", "max abs", -4},
		{"max_rel", "max rel", -4}, {0}};
	struct vfm_table_opts table = {0};
	const char *part = NULL;
	struct diff d = {.atol = 0};
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "part", "PART", "compare this part of checkpoints (model, ema, optim)", &part},
		{VFM_OPT_NUM, 0, "atol", "X", "absolute tolerance (default 0)", &d.atol},
		{VFM_OPT_NUM, 0, "rtol", "X", "relative tolerance (default 0)", &d.rtol},
		{VFM_OPT_FLAG, 0, "ignore-dtype", NULL, "do not compare element types", &d.ignore_dtype},
		{VFM_OPT_FLAG, 0, "all", NULL, "list equal tensors too", &d.all},
		VFM_TABLE_OPTS(&table),
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt diff",
		.synopsis = "[OPTION ...] A B",
		.summary = "compare the tensors of two checkpoints",
		.opts = opts};
	int n, rc = verb_parse(&cmd, argc, argv, 2, 2, &n, err);

	if (rc)
		return rc;
	d.t = vfm_table_new(columns);
	rc = open_ckpts(&d, argv, part, err);
	if (!rc)
		rc = compare_encoder_ids(&d, err);
	if (!rc)
		rc = walk(&d, err);
	view_close(&d.v[0]);
	view_close(&d.v[1]);
	if (d.listed || d.all || table.format != VFM_TABLE_TEXT)
		rc = verb_print(d.t, &table, rc, err);
	else
		vfm_table_free(d.t);
	return rc < 0 ? rc : d.differ ? VFM_EINPUT : 0;
}
