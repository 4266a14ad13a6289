/* run_log.c - reads metrics.jsonl, starts and run.json of a run into curves and facts. */
#include "train/run/run_log.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/find.h"
#include "io/file.h"
#include "io/input.h"
#include "train/run/tfevents.h"

enum { MAX_FAILURE = 64 << 10, MAX_CONFIG = 4 << 20 };

enum {
	LOG = VFM_CURVE_LOG | VFM_CURVE_SMOOTH,
	SPEED = VFM_CURVE_ZERO | VFM_CURVE_SMOOTH,
	SHARE = VFM_CURVE_ZERO | VFM_CURVE_SMOOTH | VFM_CURVE_PERCENT,
	ANY = VFM_CURVE_IF_ANY,
};

const struct vfm_run_curve vfm_run_curves[VFM_RUN_CURVES] = {
	{"loss", NULL, LOG, "Loss", "mean over the tokens of a step"},
	{"high_loss", NULL, LOG, "Loss, high noise", "of this network"},
	{"low_loss", NULL, LOG, "Loss, low noise", "of this network"},
	{"mse", NULL, LOG, "Squared error", "without weights"},
	{"held_out_loss", NULL, VFM_CURVE_LOG, "Held-out loss", NULL},
	{"held_out_levels", NULL, VFM_CURVE_LOG | VFM_CURVE_LEVELS, "Held-out loss by noise level",
		"last evaluation, from little noise to much"},
	{"grad_norm", NULL, LOG, "Gradient norm", "before clipping"},
	{"high_grad_norm", NULL, LOG, "Gradient norm, high noise", "before clipping"},
	{"low_grad_norm", NULL, LOG, "Gradient norm, low noise", "before clipping"},
	{"lr", NULL, VFM_CURVE_ZERO, "Learning rate", NULL},
	{"high_lr", NULL, VFM_CURVE_ZERO, "Learning rate, high noise", NULL},
	{"low_lr", NULL, VFM_CURVE_ZERO, "Learning rate, low noise", NULL},
	{"tok_s", NULL, SPEED, "Tokens per second", "all ranks"},
	{"tflops", NULL, SPEED, "Model TFLOP/s", "per rank"},
	{"mfu", NULL, SHARE, "Model FLOPs utilization", NULL},
	{"step_ms", NULL, LOG, "Duration of a step", "ms"},
	{"data_wait_ms", "step_ms", SHARE, "Wait for data", "share of the step, maximum over the ranks"},
	{"comm_ms", "step_ms", SHARE | ANY, "Exposed communication", "share of the step, mean over the ranks"},
	{"bubble_ms", "step_ms", SHARE | ANY, "Pipeline bubble", "share of the step, mean over the ranks"},
	{"copy_ms", "step_ms", SHARE | ANY, "Stalls for copies", "share of the step, mean over the ranks"},
	{"host_ms", "step_ms", SHARE, "Host", "share of the step in which it enqueues, maximum over the ranks"},
	{"mem_gib", NULL, VFM_CURVE_ZERO | ANY, "Device memory", "GiB, peak so far, maximum over the ranks"},
	{"read_mib", NULL, SPEED | ANY, "Read from shards", "MiB a step, all ranks"},
	{"replaced", NULL, VFM_CURVE_ZERO | ANY, "Replaced samples", "damaged samples of a step"},
};

int vfm_run_curve_of(const char *key)
{
	int i = 0;

	while (i < VFM_RUN_CURVES - 1 && strcmp(vfm_run_curves[i].key, key) != 0)
		i++;
	return i;
}

/* ---- records ---- */

static double record_number(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Returns whether the loss and the gradients of a step are finite: others are null. */
static bool is_finite_step(const json_t *o)
{
	static const char *const norms[] = {"grad_norm", "high_grad_norm", "low_grad_norm"};
	bool found = false;

	for (size_t i = 0; i < sizeof(norms) / sizeof(norms[0]); i++) {
		const json_t *norm = json_object_get(o, norms[i]);

		if (norm && !json_is_number(norm))
			return false;
		found = found || norm;
	}
	return found && !isnan(record_number(o, "loss"));
}

static void set_levels(struct vfm_run_log *l, struct vfm_trace *t, const json_t *levels)
{
	size_t i;
	json_t *v;

	vfm_trace_release(t);
	l->levels = (int64_t)json_array_size(levels);
	json_array_foreach(levels, i, v)
	{
		vfm_trace_add(t, (int64_t)i + 1, json_is_number(v) ? json_number_value(v) : NAN);
	}
}

static void add_curves(struct vfm_run_log *l, const json_t *o, int64_t step)
{
	for (int i = 0; i < VFM_RUN_CURVES; i++) {
		const struct vfm_run_curve *c = &vfm_run_curves[i];
		double x = record_number(o, c->key), y = x;

		if (!json_object_get(o, c->key))
			continue;
		if (c->flags & VFM_CURVE_LEVELS) {
			set_levels(l, &l->trace[i], json_object_get(o, c->key));
			continue;
		}
		if (c->of) {
			double whole = record_number(o, c->of);

			y = whole > 0 ? x / whole : NAN;
		}
		vfm_trace_add(&l->trace[i], step, y);
		l->sum[i] += isnan(y) ? 0 : x;
	}
}

static void add_mark(struct vfm_run_log *l, int64_t step)
{
	if (l->n_marks < VFM_RUN_MARKS)
		l->mark[l->n_marks++] = step;
}

static void note_jump(struct vfm_run_log *l, int64_t line, int64_t from, int64_t to)
{
	if (l->n_jumps < VFM_RUN_JUMPS)
		l->jump[l->n_jumps] = (struct vfm_run_jump){.line = line, .from = from, .to = to};
	l->n_jumps++;
	add_mark(l, to);
}

static int add_step_record(
	struct vfm_run_log *l, const struct vfm_jsonl *in, const json_t *o, int64_t *last, struct vfm_err *err)
{
	const char *phase = json_string_value(json_object_get(o, "stage"));
	double seconds = record_number(o, "step_ms") / 1e3;
	int64_t step = 0;

	if (vfm_json_i64(o, "", "step", true, 0, INT64_C(1) << 53, &step, err) < 0)
		return vfm_err_context(err, "%s:%lld", in->name, (long long)in->line);
	if (l->steps && step != *last + 1)
		note_jump(l, in->line, *last, step);
	*last = step;
	l->first = l->steps && l->first < step ? l->first : step;
	l->last = l->steps && l->last > step ? l->last : step;
	l->steps++;
	l->not_finite += !is_finite_step(o);
	l->tokens += json_number_value(json_object_get(o, "tokens")); /* 0 if it is null or missing */
	l->samples += json_number_value(json_object_get(o, "samples"));
	l->replaced += json_number_value(json_object_get(o, "replaced"));
	l->tflop += isnan(seconds) ? 0 : json_number_value(json_object_get(o, "tflops")) * seconds;
	if (phase && !l->phase)
		l->phase = vfm_strdup(phase);
	add_curves(l, o, step);
	return 0;
}

/* Returns whether the line that was read last is the last one of the file and has no newline. */
static bool is_cut_line(const struct vfm_jsonl *in)
{
	return feof(in->f);
}

static int read_step_records(struct vfm_run_log *l, struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	int64_t last = 0;
	json_t *o;
	int rc;

	TRY(vfm_jsonl_open(&in, l->metrics, err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) == 1) {
		rc = add_step_record(l, &in, o, &last, err);
		json_decref(o);
		if (rc < 0)
			break;
	}
	if (rc == VFM_EINPUT && is_cut_line(&in)) {
		l->cut = true;
		rc = 0;
	}
	if (rc == 0 && !l->steps)
		rc = vfm_fail(err, VFM_EUSAGE, "'%s' holds no steps yet", l->metrics);
	vfm_jsonl_close(&in);
	return rc == VFM_EINPUT ? VFM_EUSAGE : rc;
}

/* ---- starts ---- */

static int compare_run_starts(const void *a, const void *b)
{
	const struct vfm_run_start *x = a, *y = b;

	return x->time != y->time ? (x->time < y->time ? -1 : 1) : 0;
}

/* Adds the start of an event file. */
static void add_start(struct vfm_run_log *l, const char *path, const char *name)
{
	struct vfm_run_start s = {0};
	const char *host = strchr(name + strlen(VFM_TFEVENTS_PREFIX), '.'), *end;

	if (vfm_tfevents_start(path, &s.time, &s.step, NULL) < 0)
		return;
	end = host ? strrchr(host, '.') : NULL;
	if (end && end > host)
		snprintf(s.host, sizeof(s.host), "%.*s", (int)(end - host - 1), host + 1);
	l->start = vfm_realloc(l->start, (size_t)l->n_starts + 1, sizeof(s));
	l->start[l->n_starts++] = s;
}

static void read_starts(struct vfm_run_log *l)
{
	DIR *d = opendir(l->dir);
	struct dirent *e;

	while (d && (e = readdir(d)) != NULL) {
		char *path;

		if (strncmp(e->d_name, VFM_TFEVENTS_PREFIX, strlen(VFM_TFEVENTS_PREFIX)) != 0)
			continue;
		path = vfm_strfmt("%s/%s", l->dir, e->d_name);
		add_start(l, path, e->d_name);
		free(path);
	}
	if (d)
		closedir(d);
	if (l->n_starts)
		qsort(l->start, (size_t)l->n_starts, sizeof(l->start[0]), compare_run_starts);
	for (int i = 1; i < l->n_starts; i++)
		add_mark(l, l->start[i].step);
}

/* ---- the other files ---- */

/* *o: the object in a file of the folder, NULL if there is no such file. */
static int read_run_object(const struct vfm_run_log *l, const char *name, json_t **o, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", l->dir, name);
	int rc = 0;

	if (access(path, F_OK) == 0) {
		*o = vfm_json_load_regular(path, MAX_CONFIG, err);
		rc = *o ? 0 : err->code;
		if (rc == 0 && !json_is_object(*o))
			rc = vfm_fail(err, VFM_EUSAGE, "'%s': expected an object", path);
	}
	free(path);
	return rc;
}

static void read_failure(struct vfm_run_log *l)
{
	char *path = vfm_strfmt("%s/failure.txt", l->dir);
	size_t len = 0;

	if (access(path, F_OK) == 0 && vfm_read_regular(path, MAX_FAILURE, &l->failure, &len, NULL) < 0)
		l->failure = NULL;
	free(path);
}

static void find_checkpoint(struct vfm_run_log *l)
{
	char *dir = vfm_strfmt("%s/ckpt", l->dir);

	if (vfm_ckpt_latest(dir, &l->checkpoint, NULL) < 0)
		l->checkpoint = -1;
	free(dir);
}

/* "run" of "out/run/"; a folder that is named by dots has the name of its real path. */
static char *name_of_folder(const char *dir)
{
	char *real = realpath(dir, NULL), *name;
	const char *slash = real ? strrchr(real, '/') : NULL;

	name = vfm_strdup(slash && slash[1] ? slash + 1 : dir);
	free(real);
	return name;
}

int vfm_run_log_read(struct vfm_run_log *l, const char *run, struct vfm_err *err)
{
	struct stat st;
	bool folder = stat(run, &st) == 0 && S_ISDIR(st.st_mode);

	*l = (struct vfm_run_log){.dir = folder ? vfm_strdup(run) : vfm_dir_of(run),
		.metrics = folder ? vfm_strfmt("%s/metrics.jsonl", run) : vfm_strdup(run),
		.checkpoint = -1};
	l->name = name_of_folder(l->dir);
	TRY(read_step_records(l, err));
	TRY(read_run_object(l, "config.json", &l->config, err));
	TRY(read_run_object(l, "run.json", &l->identity, err));
	read_starts(l);
	read_failure(l);
	find_checkpoint(l);
	return 0;
}

void vfm_run_log_release(struct vfm_run_log *l)
{
	for (int i = 0; i < VFM_RUN_CURVES; i++)
		vfm_trace_release(&l->trace[i]);
	json_decref(l->config);
	json_decref(l->identity);
	free(l->dir);
	free(l->metrics);
	free(l->name);
	free(l->phase);
	free(l->failure);
	free(l->start);
	*l = (struct vfm_run_log){0};
}
