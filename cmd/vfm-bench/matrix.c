/* vfm-bench matrix: the table of models, contexts and configurations. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/opt.h"
#include "base/par.h"
#include "bench.h"
#include "spec/hw.h"
#include "train/advice.h"
#include "train/bench.h"

static const char *models = "dit-s,dit-b", *contexts = "1024,4096", *dtypes = "fp32,bf16", *recomputes = "none",
		  *format = "text";
static int64_t text_len = 128, packs = 1, steps = 3, warmup = 1;
static struct vfm_context_opts rank_opts = VFM_CONTEXT_OPTS_INIT;
static double seconds = 2;

static const struct vfm_opt opts[] = {
	{VFM_OPT_STR, 0, "model", "LIST", "presets (dit-s,dit-b)", &models},
	{VFM_OPT_STR, 0, "context", "LIST", "tokens of a pack, one sample (1024,4096)", &contexts},
	{VFM_OPT_STR, 0, "dtype", "LIST", "fp32, bf16 (both)", &dtypes},
	{VFM_OPT_STR, 0, "recompute", "LIST", "none, light, selective, full (none)", &recomputes},
	{VFM_OPT_INT, 0, "packs", "N", "packs a step (1)", &packs},
	{VFM_OPT_INT, 0, "text-len", "N", "text rows of a sample (128)", &text_len},
	{VFM_OPT_INT, 0, "steps", "N", "at least so many measured steps a row (3)", &steps},
	{VFM_OPT_NUM, 0, "seconds", "S", "and for so long (2)", &seconds},
	{VFM_OPT_INT, 0, "warmup", "N", "steps before that are not counted (1)", &warmup},
	VFM_CONTEXT_OPTS(&rank_opts),
	{VFM_OPT_STR, 'o', "output", VFM_TABLE_FORMATS, "how to print the table", &format},
	{0},
};

static const struct vfm_cmd cmd = {
	.name = "vfm-bench matrix",
	.synopsis = "[-q] [--model LIST] [--context LIST] [--dtype LIST] [--recompute LIST] "
		    "[--packs N] [--text-len N] [--steps N] [--seconds S] [--warmup N] " VFM_CONTEXT_SYNOPSIS
		    " [-o " VFM_TABLE_FORMATS "] [FILE]",
	.summary = "the performance table: models, contexts, configurations",
	.opts = opts,
};

struct row {
	char model[32];
	int64_t context;
	char label[256]; /* what is set beyond the preset */
	struct vfm_config config;
};

struct rows {
	struct row *v;
	size_t n, cap;
};

static struct row *row_new(struct rows *r, const char *model, int64_t context, struct vfm_err *err)
{
	struct row *w;

	vfm_grow(&r->v, &r->cap, r->n + 1, sizeof(*r->v));
	w = &r->v[r->n];
	memset(w, 0, sizeof(*w));
	snprintf(w->model, sizeof(w->model), "%s", model);
	w->context = context;
	vfm_config_defaults(&w->config);
	w->config.train.ema_decay = 0;
	if (vfm_model_preset(model, &w->config.model, err) < 0)
		return NULL;
	r->n++;
	return w;
}

static int row_set(struct row *w, const char *key, const char *value, struct vfm_err *err)
{
	char set[128];
	size_t used = strlen(w->label);

	snprintf(set, sizeof(set), "%s=%s", key, value);
	TRY(vfm_config_set(&w->config, set, err));
	snprintf(w->label + used, sizeof(w->label) - used, "%s%s", used ? " " : "",
		!strcmp(key, "train.dtype") ? value : set);
	return 0;
}

/* "a,b,c" -> the i-th word, or false. */
static bool word(const char *list, int i, char *out, size_t len)
{
	for (; i > 0; i--) {
		list = strchr(list, ',');
		if (!list)
			return false;
		list++;
	}
	snprintf(out, len, "%.*s", (int)strcspn(list, ","), list);
	return true;
}

/* The product of the comma lists. */
static int rows_from_options(struct rows *r, struct vfm_err *err)
{
	char m[32], c[32], d[16], rc[16];
	int64_t tokens;

	for (int i = 0; word(models, i, m, sizeof(m)); i++) {
		for (int j = 0; word(contexts, j, c, sizeof(c)); j++) {
			TRY(vfm_parse_size(c, &tokens, err) < 0 ? vfm_err_context(err, "--context") : 0);
			for (int k = 0; word(dtypes, k, d, sizeof(d)); k++) {
				for (int l = 0; word(recomputes, l, rc, sizeof(rc)); l++) {
					struct row *w = row_new(r, m, tokens, err);

					if (!w)
						return err->code;
					TRY(row_set(w, "train.dtype", d, err));
					if (strcmp(rc, "none") != 0)
						TRY(row_set(w, "train.recompute", rc, err));
				}
			}
		}
	}
	return 0;
}

/* JSON Lines: {"model":"dit-s","context":8192,"set":{"train.dtype":"bf16"}} */
static int row_from_json(struct rows *r, const json_t *o, struct vfm_err *err)
{
	const char *model, *key;
	json_t *v, *set = json_object_get(o, "set");
	int64_t context = 0;
	struct row *w;

	TRY(vfm_json_str(o, "", "model", true, &model, err));
	TRY(vfm_json_i64(o, "", "context", true, 1, 1 << 26, &context, err));
	w = row_new(r, model, context, err);
	if (!w)
		return err->code;
	json_object_foreach(set, key, v)
	{
		char *text = json_is_string(v) ? vfm_strdup(json_string_value(v)) : json_dumps(v, JSON_ENCODE_ANY);
		int rc = row_set(w, key, text, err);

		free(text);
		TRY(rc);
	}
	return 0;
}

static int rows_from_file(struct rows *r, const char *path, struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	json_t *o;
	int rc;

	TRY(vfm_jsonl_open(&in, path, err));
	while ((rc = vfm_jsonl_next(&in, &o, err)) == 1) {
		rc = row_from_json(r, o, err);
		json_decref(o);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", path, (long long)in.line);
			break;
		}
	}
	vfm_jsonl_close(&in);
	return rc < 0 ? VFM_EUSAGE : 0;
}

/* Bytes that a step needs on the device at least: masters, gradients, two moments, the bf16 copy, and what blocks keep
 * for the backward. */
static double need_bytes(const struct vfm_config *c, int64_t context)
{
	const struct vfm_model_spec *m = &c->model;
	const struct vfm_train_config *t = &c->train;
	int64_t n = t->recompute_blocks, blocks = n > 0 && n < m->layers ? n : m->layers; /* that recompute goes for */
	double state = (t->dtype == VFM_BF16 ? 10 : 8) - (t->master == VFM_MASTER_SPLIT ? 2 : 0),
	       moments = t->moments == VFM_BF16 ? 6 : 8;
	double kept = (double)blocks * vfm_advice_kept(m, t->recompute, t);

	if (t->offload & VFM_OFFLOAD_OPTIMIZER)
		moments = 0;
	if (t->offload & VFM_OFFLOAD_ACTIVATIONS)
		kept = 0;
	kept += (double)(m->layers - blocks) * vfm_advice_kept(m, VFM_RECOMPUTE_NONE, t);
	return (double)vfm_model_params(m) * (state + moments) + (double)context * kept;
}

static void add_columns(struct vfm_table *t)
{
	vfm_table_col(t, "model", "model", 0);
	vfm_table_col(t, "context", "context", 0);
	vfm_table_col(t, "config", "config", 0);
	vfm_table_col(t, "tflops", "TFLOPS/s", 3);
	vfm_table_col(t, "mfu", "MFU", 3);
	vfm_table_col(t, "tok_s", "token/s", 0);
	vfm_table_col(t, "step_ms", "step ms", 1);
	vfm_table_col(t, "spread_pct", "spread %", 0);
	vfm_table_col(t, "n", "n", 0);
	vfm_table_col(t, "mem_gib", "GiB", 2);
	vfm_table_col(t, "how", "how", 0);
}

static int measure(const struct row *w, struct vfm_context *x, struct vfm_table *t, struct vfm_err *err)
{
	struct vfm_bench_step b = {
		.samples = 1, .text_len = text_len, .packs = packs, .warmup = warmup, .steps = steps, .min_s = seconds};
	const struct vfm_dev *dev = x->device.dev;
	double have = dev->mem_total ? (double)dev->mem_total
				     : (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
	       need, peak = vfm_hw_peak(dev->name, w->config.train.dtype);
	struct vfm_config c = w->config;
	struct vfm_bench_result r;

	need = need_bytes(&c, w->context);
	vfm_bench_grid(w->context, b.grid);
	vfm_table_row(t);
	vfm_table_str(t, "model", w->model);
	vfm_table_i64(t, "context", w->context);
	vfm_table_str(t, "config", w->label);
	if (need > 0.9 * have) {
		vfm_table_str(t, "how", "does not fit");
		vfm_table_f64(t, "mem_gib", need / 0x1p30);
		return 0;
	}
	vfm_info("%s, %lld tokens, %s", w->model, (long long)w->context, w->label);
	TRY(vfm_bench_run(x, &c, &b, &r, err));
	vfm_table_f64(t, "tflops", r.flops / r.step_s.median / 1e12);
	if (peak > 0)
		vfm_table_f64(t, "mfu", r.flops / r.step_s.median / 1e12 / peak);
	vfm_table_f64(t, "tok_s", (double)r.tokens / r.step_s.median);
	vfm_table_f64(t, "step_ms", r.step_s.median * 1e3);
	vfm_table_f64(t, "spread_pct", (r.step_s.max - r.step_s.min) / r.step_s.median * 100);
	vfm_table_i64(t, "n", r.n);
	vfm_table_f64(t, "mem_gib", (double)r.mem_peak_bytes / 0x1p30);
	vfm_table_str(t, "how", "measured");
	return 0;
}

struct request {
	struct rows rows;
	enum vfm_table_format format;
};

static int measure_rank(struct vfm_context *x, void *ctx, struct vfm_err *err)
{
	const struct request *r = ctx;
	struct vfm_table *t = vfm_table_new();
	int rc = 0;

	add_columns(t);
	for (size_t i = 0; i < r->rows.n; i++) {
		vfm_context_close(x);
		TRY_OUT(vfm_context_open(x, &r->rows.v[i].config, err));
		TRY_OUT(measure(&r->rows.v[i], x, t, err));
	}
	if (x->device.dev)
		vfm_table_note(t, "device %s: %s", x->device.dev->name, x->device.dev->descr);
	bench_note_machine(t);
	vfm_table_note(t,
		"a step is forward, backward and AdamW; FLOPs of the model (3 x forward, recompute not counted); "
		"spread is (max - min) / median");
	rc = x->job.world->rank == 0 ? vfm_table_print(t, r->format, stdout, err) : 0;
out:
	vfm_table_free(t);
	return rc;
}

static int parse(struct request *r, int argc, char **argv, struct vfm_err *err)
{
	int n, rc = vfm_opt_parse(&cmd, argc, argv, &n, err);

	if (rc != 0)
		return rc;
	TRY(vfm_table_format(format, &r->format, err));
	if (n > 1)
		return vfm_fail(err, VFM_EUSAGE, "unexpected operand '%s'", argv[2]);
	TRY(vfm_context_check(&rank_opts, err));
	TRY(n ? rows_from_file(&r->rows, argv[1], err) : rows_from_options(&r->rows, err));
	for (size_t i = 0; i < r->rows.n; i++)
		TRY(vfm_config_check(&r->rows.v[i].config, err)); /* sets dimensions that follow from others */
	return 0;
}

int bench_matrix(int argc, char **argv, struct vfm_err *err)
{
	struct request r = {.rows = {0}};
	int rc = vfm_job_say_once(parse(&r, argc, argv, err), err);

	if (rc == 0)
		rc = vfm_context_run(&rank_opts, measure_rank, &r, err);
	free(r.rows.v);
	return rc;
}
