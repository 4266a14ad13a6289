/* vfm-ckpt - inspects, verifies, compares and converts checkpoints. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ckpt_cmd.h"

static const struct vfm_verb verbs[] = {
	{"info", "step, model, size of checkpoints", verb_info},
	{"ls", "list tensors", verb_ls},
	{"tree", "tensors grouped by prefix, with sums", verb_tree},
	{"stat", "minimum, maximum, mean, norm and NaNs of each tensor", verb_stat},
	{"check", "read and verify every byte; look for NaN and infinities", verb_check},
	{"diff", "compare the tensors of two checkpoints", verb_diff},
	{"hash", "a hash of the values, whatever their layout", verb_hash},
	{"prune", "remove old checkpoints", verb_prune},
	{"import", "make a checkpoint of the files of other programs", verb_import},
	{"export", "write safetensors files for other programs", verb_export},
	{"merge", "add low-rank adapters to the weights of their base model", verb_merge},
	{"reshard", "write a checkpoint with another sharding", verb_reshard},
	{0},
};

int view_open(struct view *v, const char *operand, const char *part, bool raw, struct vfm_err *err)
{
	*v = (struct view){0};
	TRY(vfm_ckpt_open_as(&v->c, operand, &(struct vfm_ckpt_how){.raw = raw}, err));
	v->t = vfm_calloc((size_t)v->c->n + 1, sizeof(*v->t));
	if (part && !v->c->plain)
		v->cut = strlen(part) + 1;
	for (int i = 0; i < v->c->n; i++)
		if (!part || vfm_ckpt_name_in(v->c, part, &v->c->t[i]))
			v->t[v->n++] = &v->c->t[i];
	if (v->cut && !v->n) {
		vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", v->c->path, part);
		view_close(v);
		return VFM_EUSAGE;
	}
	return 0;
}

void view_close(struct view *v)
{
	vfm_ckpt_close(v->c);
	free(v->t);
	*v = (struct view){0};
}

int verb_parse(const struct vfm_cmd *cmd, int argc, char **argv, int min, int max, int *n, struct vfm_err *err)
{
	int rc = vfm_opt_parse(cmd, argc, argv, n, err);

	if (rc)
		return rc;
	if (*n < min)
		return vfm_fail(err, VFM_EUSAGE, "an operand is missing (%s -h)", cmd->name);
	if (max >= 0 && *n > max)
		return vfm_fail(err, VFM_EUSAGE, "too many operands: '%s' (%s -h)", argv[max + 1], cmd->name);
	return 0;
}

static bool matches_any(const char *name, char **globs, int n)
{
	for (int i = 0; i < n; i++)
		if (!fnmatch(globs[i], name, 0))
			return true;
	return n == 0;
}

int verb_open_list(struct view *v, struct vfm_table_opts *table, const char *name, const char *summary, int argc,
	char **argv, struct vfm_err *err)
{
	bool raw = false;
	struct vfm_opt opts[] = {OPT_RAW(&raw), VFM_TABLE_OPTS(table), {0}};
	struct vfm_cmd cmd = {.name = name,
		.synopsis = "[--raw] [--format FORMAT] CKPT [GLOB ...]",
		.summary = summary,
		.opts = opts};
	int n, kept = 0, rc = verb_parse(&cmd, argc, argv, 1, -1, &n, err);

	if (rc)
		return rc;
	TRY(view_open(v, argv[1], NULL, raw, err));
	for (int i = 0; i < v->n; i++)
		if (matches_any(v->t[i]->name, argv + 2, n - 1))
			v->t[kept++] = v->t[i];
	v->n = kept;
	return 0;
}

int verb_print(struct vfm_table *t, const struct vfm_table_opts *o, int rc, struct vfm_err *err)
{
	if (rc == 0)
		rc = vfm_table_print(t, o, stdout, err);
	vfm_table_free(t);
	return rc;
}

void shape_text(const struct vfm_ckpt_tensor *t, char *buf, size_t len)
{
	size_t at = 0;

	buf[0] = 0;
	for (int d = 0; d < t->ndim && at < len; d++)
		at += (size_t)snprintf(buf + at, len - at, "%s%lld", d ? "x" : "", (long long)t->shape[d]);
	if (!t->ndim)
		snprintf(buf, len, "scalar");
}

void bytes_text(int64_t bytes, char *buf, size_t len)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double x = (double)bytes;
	int u = 0;

	while (x >= 1024 && u < 5) {
		x /= 1024;
		u++;
	}
	snprintf(buf, len, u ? "%.1f %s" : "%.0f %s", x, unit[u]);
}

int main(int argc, char **argv)
{
	struct vfm_verbs family = {.name = "vfm-ckpt",
		.word = "VERB",
		.summary = "inspect, verify, compare and convert checkpoints",
		.example = "vfm-ckpt info run",
		.list = verbs};
	struct vfm_err err = {0};

	vfm_cmd_init(argv[0]);
	return vfm_cmd_exit(vfm_verbs_run(&family, argc, argv, &err), &err);
}
