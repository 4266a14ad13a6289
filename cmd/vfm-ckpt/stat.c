/* vfm-ckpt stat - prints statistics of tensors. */
#include "ckpt/inspect.h"
#include "ckpt_cmd.h"

int verb_stat(int argc, char **argv, struct vfm_err *err)
{
	static const char *const cols[] = {"min", "max", "mean", "std", "norm"};
	const char *format = "text";
	bool raw = false;
	struct vfm_opt opts[] = {OPT_RAW(&raw), OPT_FORMAT(&format), {0}};
	struct vfm_cmd cmd = {.name = "vfm-ckpt stat",
		.synopsis = "[-r] [-o FORMAT] CKPT [GLOB ...]",
		.summary = "minimum, maximum, mean, norm and NaNs of each tensor",
		.opts = opts};
	struct vfm_table *t;
	struct view v;
	int n, rc = verb_parse(&cmd, argc, argv, 1, -1, &n, err);

	if (rc)
		return rc;
	TRY(view_open(&v, argv[1], NULL, raw, err));
	t = vfm_table_new();
	vfm_table_col(t, "name", "tensor", 0);
	vfm_table_col(t, "elements", "elements", 0);
	for (int i = 0; i < 5; i++)
		vfm_table_col(t, cols[i], cols[i], -6);
	vfm_table_col(t, "zeros", "zeros", 0);
	vfm_table_col(t, "nan", "nan", 0);
	vfm_table_col(t, "inf", "inf", 0);
	for (int i = 0; i < v.n && !rc; i++) {
		struct vfm_tensor_stat s;

		if (!glob_any(v.t[i]->name, argv + 2, n - 1))
			continue;
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
	if (!rc)
		return verb_print(t, format, err);
	vfm_table_free(t);
	return rc;
}
