/* filter - drops records whose numbers exceed limits, and those of training or held-out data. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "data/dataset/index.h"
#include "data/plan/split.h"
#include "data/record/sample_key.h"

struct limit {
	char *path;
	double value;
	bool is_max;
	_Atomic int64_t checked, missing, null; /* records, of all workers */
};

struct filter {
	struct limit *limits;
	int n;
	const char *kind;    /* NULL, or of the records that are checked */
	double held_out;     /* fraction; 0: the sides are not told apart */
	bool keeps_held_out; /* else the training data */
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
		m->checked = m->missing = m->null = 0;
		f->n++;
	}
	return 0;
}

/* Drops a record of the other side, by the rule of vfm-pack --held-out. */
static int filter_side(json_t *rec, const struct filter *f, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL), *parent = vfm_rec_str(rec, "parent", NULL);
	char fraction[VFM_REAL_TEXT];
	bool held_out;

	if (!id && !parent)
		return vfm_fail(
			err, VFM_EINPUT, "the record has neither parent nor id, which tell its source (--held-out)");
	held_out = vfm_split_is_held_out(vfm_split_source(id ? vfm_sample_id(id) : 0, parent), f->held_out);
	if (held_out != f->keeps_held_out)
		vfm_stage_drop(rec, "filter", "%s (--held-out %s)", held_out ? "held out" : "training data",
			vfm_real_text(fraction, f->held_out));
	return 0;
}

static int filter_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct filter *f = ctx;
	char limit[VFM_REAL_TEXT];
	double x;

	(void)out, (void)worker;
	if (f->kind && strcmp(vfm_rec_str(rec, "kind", ""), f->kind) != 0)
		return 0;
	for (int i = 0; i < f->n; i++) {
		struct limit *m = &f->limits[i];

		m->checked++;
		if (!vfm_rec_num(rec, m->path, &x)) {
			if (vfm_rec_is_null(rec, m->path)) {
				m->null++;
				continue;
			}
			m->missing++;
			vfm_stage_drop(rec, "filter", "%s is missing", m->path);
			return 0;
		}
		if (m->is_max ? x > m->value : x < m->value) {
			vfm_stage_drop(rec, "filter", "%s %s %s", m->path, m->is_max ? "above" : "below",
				vfm_real_text(limit, m->value));
			return 0;
		}
	}
	return f->held_out > 0 ? filter_side(rec, f, err) : 0;
}

/* A key that no record has is probably misspelt.  A null is a score that the clip does not allow. */
static void report_missing(const struct filter *f)
{
	for (int i = 0; i < f->n; i++) {
		const struct limit *m = &f->limits[i];

		if (m->checked > 0 && m->missing == m->checked)
			vfm_warn("no record has the key '%s' of --%s", m->path, m->is_max ? "max" : "min");
		if (m->null > 0)
			vfm_info("%s is null in %lld of %lld records, which pass --%s", m->path, (long long)m->null,
				(long long)m->checked, m->is_max ? "max" : "min");
	}
}

/* The limits and the side as text: what changes the records (data/record/stage.h). */
static char *filter_options(const struct filter *f)
{
	struct vfm_buf b = {0};
	char value[VFM_REAL_TEXT];

	if (f->kind)
		vfm_buf_addf(&b, "kind %s ", f->kind);
	for (int i = 0; i < f->n; i++)
		vfm_buf_addf(&b, "%s%s %s %s", i ? " " : "", f->limits[i].is_max ? "max" : "min", f->limits[i].path,
			vfm_real_text(value, f->limits[i].value));
	if (f->held_out > 0)
		vfm_buf_addf(&b, "%sheld-out %s side %s", f->n ? " " : "", vfm_real_text(value, f->held_out),
			f->keeps_held_out ? "held-out" : "train");
	return b.data;
}

int curate_filter(int argc, char **argv, struct vfm_err *err)
{
	struct filter f = {0};
	struct vfm_stage stage = {.name = "filter",
		.version = 1, /* 0: dropped records with null; reasons had the number of the record */
		.fn = filter_record,
		.ctx = &f};
	struct vfm_strlist min = {0}, max = {0};
	static const char *const kinds[] = {"video", "image"};
	int side = -1, kind = -1; /* not given */
	char *options = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_LIST, 0, "min", "KEY=X", "drop records whose KEY is below X or missing; may be repeated",
			&min},
		{VFM_OPT_LIST, 0, "max", "KEY=X", "drop records whose KEY is above X or missing; may be repeated",
			&max},
		{VFM_OPT_NAME, 0, "kind", "video|image", "check only these records, and keep the others", &kind},
		{VFM_OPT_NUM, 0, "held-out", "F", "drop records that vfm-pack --held-out F leaves out", &f.held_out,
			VFM_ABOVE_0, VFM_BELOW_1},
		{VFM_OPT_NAME, 0, "side", "train|held-out", "the side of --held-out to keep (default train)", &side},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate filter",
		.synopsis = "[OPTION ...] [FILE ...]",
		.summary = "drop records by limits of their numbers, or by the held-out split",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, &stage, argc, argv, err);

	if (rc != 0)
		goto out;
	TRY_OUT(add_limits(&f, &min, false, err));
	TRY_OUT(add_limits(&f, &max, true, err));
	if (side >= 0 && f.held_out == 0)
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "--side: it needs --held-out"));
	f.kind = kind < 0 ? NULL : kinds[kind];
	f.keeps_held_out = side == 1;
	stage.options = options = filter_options(&f);
	rc = vfm_stage_run(&stage, NULL, err);
	report_missing(&f);
out:
	free(options);
	for (int i = 0; i < f.n; i++)
		free(f.limits[i].path);
	free(f.limits);
	vfm_strlist_release(&min);
	vfm_strlist_release(&max);
	return rc;
}
