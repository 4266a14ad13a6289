/* vfm-ckpt hash - prints the sha256 of the lines "NAME\tDTYPE\tSHAPE\tSHA256-OF-VALUES\n", sorted by name. */
#include "base/mem.h"
#include "ckpt/inspect.h"
#include "ckpt_cmd.h"

static int hash_view(struct view *v, bool each, const char *operand, struct vfm_table *t, struct vfm_err *err)
{
	struct vfm_buf lines = {0};
	char hex[VFM_SHA256_HEX];
	int rc = 0;

	for (int i = 0; i < v->n && !rc; i++) {
		const char *name = v->t[i]->name + v->cut;
		char shape[VFM_NDIM_MAX * 21];

		rc = vfm_ckpt_tensor_hash(v->c, v->t[i], hex, err);
		if (rc < 0)
			break;
		shape_text(v->t[i], shape, sizeof(shape));
		vfm_buf_addf(&lines, "%s\t%s\t%s\t%s\n", name, vfm_dtype_name(v->t[i]->dtype), shape, hex);
		if (each) {
			vfm_table_row(t);
			vfm_table_str(t, "hash", hex);
			vfm_table_str(t, "name", name);
		}
	}
	if (!rc && !each) {
		vfm_sha256_of(lines.data ? lines.data : "", lines.len, hex);
		vfm_table_row(t);
		vfm_table_str(t, "hash", hex);
		vfm_table_str(t, "name", operand);
	}
	vfm_buf_release(&lines);
	return rc;
}

int verb_hash(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_table_opts table = {0};
	const char *part = NULL;
	bool each = false, raw = false;
	struct vfm_opt opts[] = {
		{VFM_OPT_STR, 0, "part", "PART", "only this part of checkpoints (model, ema, optim), without its name",
			&part},
		{VFM_OPT_FLAG, 0, "each", NULL, "print one line per tensor", &each},
		OPT_RAW(&raw),
		VFM_TABLE_OPTS(&table),
		{0},
	};
	struct vfm_cmd cmd = {.name = "vfm-ckpt hash",
		.synopsis = "[--each] [--part PART] [--raw] [--format FORMAT] CKPT ...",
		.summary = "a hash of the values, whatever their layout",
		.opts = opts};
	struct vfm_table *t;
	int n, rc = verb_parse(&cmd, argc, argv, 1, -1, &n, err);

	if (rc)
		return rc;
	t = vfm_table_new(NULL);
	vfm_table_col(t, "hash", "sha256", 0);
	vfm_table_col(t, "name", each ? "tensor" : "checkpoint", 0);
	for (int i = 1; i <= n && !rc; i++) {
		struct view v;

		rc = view_open(&v, argv[i], part, raw, err);
		if (rc)
			break;
		rc = hash_view(&v, each, argv[i], t, err);
		view_close(&v);
	}
	return verb_print(t, &table, rc, err);
}
