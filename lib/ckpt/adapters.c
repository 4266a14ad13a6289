/* Adapters added to weights as they are read. */
#include "ckpt/adapters.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/par.h"
#include "ckpt/adapters_impl.h"
#include "io/json.h"

void ckpt_adapters_free(struct ckpt_adapters *s)
{
	if (!s)
		return;
	for (int i = 0; i < s->n_files; i++)
		vfm_ckpt_close(s->file[i]);
	free(s->file);
	free(s->v);
	free(s->trained);
	free(s->a);
	free(s->b);
	vfm_arena_release(&s->arena);
	free(s);
}

/* ---- reading ---- */

static int addition_cmp(const void *a, const void *b)
{
	return strcmp(((const struct ckpt_addition *)a)->tensor, ((const struct ckpt_addition *)b)->tensor);
}

static int addition_order(const void *a, const void *b)
{
	const struct ckpt_addition *x = a, *y = b;
	int order = addition_cmp(a, b);

	return order ? order : (x->order > y->order) - (x->order < y->order);
}

static const struct ckpt_trained *find_trained(const struct ckpt_adapters *s, const char *name)
{
	for (size_t i = 0; i < s->n_trained; i++)
		if (!strcmp(s->trained[i].name, name))
			return &s->trained[i];
	return NULL;
}

/* Reads A and all rows of B, or the whole tensor that is added. */
static int load_addition(struct ckpt_adapters *s, const struct ckpt_addition *x, struct vfm_err *err)
{
	const struct ckpt_addition *last = s->loaded;
	const int64_t rows = x->b ? x->rank : 1;
	struct vfm_slice a = {.a = x->a_row * x->in, .b = (x->a_row + rows) * x->in};

	if (last && last->a == x->a && last->b == x->b && last->a_row == x->a_row)
		return 0;
	s->loaded = NULL;
	free(s->a);
	free(s->b);
	s->a = vfm_malloc((size_t)(rows * x->in) * sizeof(float) + 1);
	s->b = x->b ? vfm_malloc((size_t)x->b->numel * sizeof(float) + 1) : NULL;
	TRY(vfm_ckpt_read_tensor(x->c, x->a, &a, VFM_F32, s->a, err));
	if (x->b)
		TRY(vfm_ckpt_read_tensor(x->c, x->b, NULL, VFM_F32, s->b, err));
	s->loaded = x;
	return 0;
}

struct sum {
	const struct ckpt_adapters *s;
	const struct ckpt_addition *x;
	const struct vfm_runs *runs;
	float *w;
};

/* Adds elements [col, col + n) of a row of scale * B A to w. */
static void add_product_row(const struct sum *d, int64_t row, int64_t col, int64_t n, float *w)
{
	const struct ckpt_addition *x = d->x;

	for (int64_t k = 0; k < x->rank; k++) {
		const float f = (float)x->scale * d->s->b[row * x->rank + k], *a = d->s->a + k * x->in + col;

		for (int64_t i = 0; i < n; i++)
			w[i] += f * a[i];
	}
}

/* Adds elements [from, from + n) of scale * D to w. */
static void add_elements(const struct sum *d, int64_t from, int64_t n, float *w)
{
	const struct ckpt_addition *x = d->x;

	if (!x->b)
		for (int64_t i = 0; i < n; i++)
			w[i] += (float)x->scale * d->s->a[from + i];
	for (int64_t i = 0, m; x->b && i < n; i += m) {
		int64_t row = (from + i) / x->in, col = (from + i) % x->in;

		m = x->in - col < n - i ? x->in - col : n - i;
		add_product_row(d, row, col, m, w + i);
	}
}

static void add_runs(int64_t first, int64_t end, void *ctx)
{
	const struct sum *d = ctx;
	const struct ckpt_addition *x = d->x;

	for (int64_t r = first; r < end; r++) {
		const struct vfm_run *run = &d->runs->v[r];
		int64_t a = run->from > x->at ? run->from : x->at,
			b = run->from + run->n < x->at + x->n ? run->from + run->n : x->at + x->n;

		if (a < b)
			add_elements(d, x->from + (a - x->at), b - a, d->w + run->to + (a - run->from));
	}
}

/* w holds the slice in f32. */
static int sum_additions(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	const struct ckpt_addition *first, float *w, struct vfm_err *err)
{
	struct ckpt_adapters *s = c->priv->adapters;
	struct vfm_runs runs = {0}, rows = {0};
	const int64_t row = t->ndim && t->shape[0] > 0 ? t->numel / t->shape[0] : 1;
	int rc;

	TRY_OUT(ckpt_slice_runs(c, t, slice, &runs, err));
	/* shorter runs, for the threads */
	for (size_t i = 0; i < runs.n; i++)
		for (int64_t at = 0; at < runs.v[i].n; at += row) {
			int64_t n = runs.v[i].n - at < row ? runs.v[i].n - at : row;

			vfm_grow(&rows.v, &rows.cap, rows.n + 1, sizeof(*rows.v));
			rows.v[rows.n++] =
				(struct vfm_run){.from = runs.v[i].from + at, .to = runs.v[i].to + at, .n = n};
		}
	for (const struct ckpt_addition *x = first; x < s->v + s->n && !strcmp(x->tensor, first->tensor); x++) {
		struct sum d = {s, x, &rows, w};

		TRY_OUT(load_addition(s, x, err));
		vfm_par_for((int64_t)rows.n, 16, add_runs, &d);
	}
	rc = 0;
out:
	vfm_runs_release(&runs);
	vfm_runs_release(&rows);
	return rc;
}

int ckpt_read_adapted(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err)
{
	struct ckpt_adapters *s = c->priv->adapters;
	const char *in_model = vfm_ckpt_name_in(c, "model", t),
		   *name = in_model ? in_model : vfm_ckpt_name_in(c, "ema", t);
	const struct ckpt_trained *trained = name ? find_trained(s, name) : NULL;
	const struct ckpt_addition key = {.tensor = name}, *hit = NULL;
	int64_t n = slice && slice->part ? vfm_part_numel(slice->part) : t->numel;
	float *w;
	int rc;

	if (trained)
		return vfm_ckpt_read_tensor(trained->c, trained->t, slice, dtype, dst, err);
	if (name)
		hit = bsearch(&key, s->v, s->n, sizeof(*s->v), addition_cmp);
	if (!hit)
		return ckpt_read_stored(c, t, slice, dtype, dst, err);
	while (hit > s->v && !strcmp(hit[-1].tensor, name))
		hit--;
	if (slice)
		n = (slice->b ? slice->b : n) - slice->a;
	w = dtype == VFM_F32 ? dst : vfm_malloc((size_t)n * sizeof(*w) + 1);
	rc = ckpt_read_stored(c, t, slice, VFM_F32, w, err);
	if (rc == 0)
		rc = sum_additions(c, t, slice, hit, w, err);
	if (rc == 0 && dtype != VFM_F32)
		vfm_dtype_convert(dtype, dst, VFM_F32, w, (size_t)n);
	if (dtype != VFM_F32)
		free(w);
	return rc;
}

/* ---- files ---- */

/* Sets *config to that of PEFT next to the file, or in the directory, and *model to the file; NULL: there is none. */
static void find_peft(const char *path, char **config, char **model)
{
	static const char name[] = "adapter_model.safetensors";
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	bool dir = ckpt_is_dir(path);

	*config = *model = NULL;
	if (!dir && strcmp(file, name) != 0)
		return;
	*config = dir ? vfm_strfmt("%s/" CKPT_PEFT_CONFIG, path)
		      : vfm_strfmt("%.*s" CKPT_PEFT_CONFIG, (int)(file - path), path);
	*model = dir ? vfm_strfmt("%s/%s", path, name) : vfm_strdup(path);
	if (access(*config, F_OK) == 0)
		return;
	free(*config);
	free(*model);
	*config = *model = NULL;
}

json_t *ckpt_lora_config(const struct vfm_ckpt *c)
{
	const json_t *lora = json_object_get(c->config, "lora");
	double rank = json_number_value(json_object_get(lora, "rank")),
	       alpha = json_number_value(json_object_get(lora, "alpha"));

	return json_pack("{s:I, s:f}", "r", (json_int_t)rank, "lora_alpha", alpha > 0 ? alpha : rank);
}

static int open_adapters(struct ckpt_attaching *x, struct vfm_err *err)
{
	const struct vfm_ckpt_how raw = {.raw = true};
	char *config, *model;
	json_t *o = NULL;
	int rc;

	find_peft(x->path, &config, &model);
	TRY_OUT(vfm_ckpt_open_as(&x->from, model ? model : x->path, &raw, err));
	if (config) {
		o = vfm_json_load(config, 1 << 20, err);
		rc = o ? ckpt_lora_rules_read(&x->rules, o, config, err) : err->code;
	} else if (x->from->plain) {
		rc = 0;
	} else if (!vfm_ckpt_is_adapters(x->from)) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s holds no adapters: lora.rank of its configuration is 0", x->path);
	} else {
		if (!strcmp(x->part, "ema") &&
			json_number_value(json_object_get(json_object_get(x->from->config, "train"), "ema_decay")) == 0)
			x->part = "model";
		rc = ckpt_lora_rules_read(&x->rules, ckpt_lora_config(x->from), x->path, err);
	}
out:
	free(config);
	free(model);
	return rc;
}

bool vfm_ckpt_is_adapters(const struct vfm_ckpt *c)
{
	return json_integer_value(json_object_get(json_object_get(c->config, "lora"), "rank")) > 0;
}

int vfm_ckpt_attach(struct vfm_ckpt *c, const char *path, const char *part, double scale, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	struct ckpt_attaching x = {.c = c, .path = path, .part = part, .scale = scale};
	size_t n, n_trained;
	int rc;

	if (!pv->adapters)
		pv->adapters = vfm_calloc(1, sizeof(*pv->adapters));
	x.s = pv->adapters;
	n = x.s->n;
	n_trained = x.s->n_trained;
	rc = open_adapters(&x, err);
	if (x.from) {
		x.s->file = vfm_realloc(x.s->file, (size_t)x.s->n_files + 1, sizeof(*x.s->file));
		x.s->file[x.s->n_files++] = x.from;
	}
	if (rc == 0)
		rc = ckpt_adapters_find(&x, err);
	if (rc < 0) { /* nothing of the file counts */
		x.s->n = n;
		x.s->n_trained = n_trained;
	}
	if (x.s->n)
		qsort(x.s->v, x.s->n, sizeof(*x.s->v), addition_order);
	x.s->loaded = NULL;
	ckpt_lora_rules_release(&x.rules);
	return rc;
}
