/* filter - drops records whose numbers exceed limits. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/opt.h"
#include "curate.h"
#include "data/stage.h"

struct limit {
	char *path;
	double value;
	bool is_max;
};

struct filter {
	struct limit *limits;
	int n;
};

static int add_limits(struct filter *f, const struct vfm_strlist *list, bool is_max, struct vfm_err *err)
{
	f->limits = vfm_realloc(f->limits, (size_t)(f->n + list->n), sizeof(f->limits[0]));
	for (int i = 0; i < list->n; i++) {
		const char *eq = strchr(list->v[i], '=');
		struct limit *m = &f->limits[f->n];

		if (!eq || eq == list->v[i])
			return vfm_fail(err, VFM_EUSAGE, "--%s: expected KEY=NUMBER, got '%s'", is_max ? "max" : "min",
				list->v[i]);
		if (vfm_parse_f64(eq + 1, &m->value, err) < 0)
			return vfm_err_context(
				err, "--%s %.*s", is_max ? "max" : "min", (int)(eq - list->v[i]), list->v[i]);
		m->path = vfm_strfmt("%.*s", (int)(eq - list->v[i]), list->v[i]);
		m->is_max = is_max;
		f->n++;
	}
	return 0;
}

static int filter_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct filter *f = ctx;
	char value[VFM_REAL_TEXT], limit[VFM_REAL_TEXT];
	double x;

	(void)out, (void)worker, (void)err;
	for (int i = 0; i < f->n; i++) {
		const struct limit *m = &f->limits[i];

		if (!vfm_rec_num(rec, m->path, &x)) {
			vfm_stage_drop(rec, "filter", "%s is missing", m->path);
			return 0;
		}
		if (m->is_max ? x > m->value : x < m->value) {
			vfm_stage_drop(rec, "filter", "%s %s %s %s", m->path, vfm_real_text(value, x),
				m->is_max ? ">" : "<", vfm_real_text(limit, m->value));
			return 0;
		}
	}
	return 0;
}

/* The limits as text: what changes the records (data/stage.h). */
static char *filter_options(const struct filter *f)
{
	struct vfm_buf b = {0};
	char value[VFM_REAL_TEXT];

	for (int i = 0; i < f->n; i++)
		vfm_buf_addf(&b, "%s%s %s %s", i ? " " : "", f->limits[i].is_max ? "max" : "min", f->limits[i].path,
			vfm_real_text(value, f->limits[i].value));
	return b.data;
}

int curate_filter(int argc, char **argv, struct vfm_err *err)
{
	struct vfm_stage stage = {.name = "filter", .fn = filter_record};
	struct vfm_strlist min = {0}, max = {0};
	struct filter f = {0};
	char *options = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_LIST, 0, "min", "KEY=X", "drop records whose KEY is below X or missing; may be repeated",
			&min},
		{VFM_OPT_LIST, 0, "max", "KEY=X", "drop records whose KEY is above X or missing; may be repeated",
			&max},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate filter",
		.synopsis = "[--min KEY=X] [--max KEY=X] " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "drop records outside of limits",
		.opts = opts,
	};
	int rc;

	rc = vfm_opt_parse(&cmd, argc, argv, &stage.n_files, err);
	if (rc == VFM_OPT_DONE)
		return rc;
	if (rc == 0)
		rc = add_limits(&f, &min, false, err);
	if (rc >= 0)
		rc = add_limits(&f, &max, true, err);
	if (rc >= 0) {
		stage.files = argv + 1;
		stage.ctx = &f;
		stage.options = options = filter_options(&f);
		rc = vfm_stage_run(&stage, NULL, err);
	}
	free(options);
	for (int i = 0; i < f.n; i++)
		free(f.limits[i].path);
	free(f.limits);
	vfm_strlist_release(&min);
	vfm_strlist_release(&max);
	return rc;
}
