/* Adapters added to weights as they are read. */
#include "ckpt/adapters.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/par.h"
#include "ckpt/ckpt_impl.h"

/* An adapter of rows [row, row + rows) of the weight of a layer: these rows += scale * B A. */
struct ckpt_adapter {
	char *weight; /* our name, with ".weight" */
	struct vfm_ckpt *c;
	const struct vfm_ckpt_tensor *a, *b;
	int64_t row, rows, in, rank;
	int64_t a_row, b_row; /* first row in each tensor */
	double scale;
	size_t order; /* of the additions */
};

struct ckpt_adapters {
	struct vfm_ckpt **file; /* [n_files] */
	int n_files;
	struct ckpt_adapter *v; /* sorted by weight */
	size_t n, cap;
	struct ckpt_trained { /* a parameter of the model that was trained with the adapters */
		const char *name;
		struct vfm_ckpt *c;
		const struct vfm_ckpt_tensor *t;
	} * trained;
	size_t n_trained, cap_trained;
	/* the matrices of the last layer */
	const struct ckpt_adapter *loaded;
	float *a, *b;
};

void ckpt_adapters_free(struct ckpt_adapters *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i].weight);
	for (int i = 0; i < s->n_files; i++)
		vfm_ckpt_close(s->file[i]);
	free(s->file);
	free(s->v);
	free(s->trained);
	free(s->a);
	free(s->b);
	free(s);
}

/* ---- reading ---- */

static int adapter_cmp(const void *a, const void *b)
{
	return strcmp(((const struct ckpt_adapter *)a)->weight, ((const struct ckpt_adapter *)b)->weight);
}

static int adapter_order(const void *a, const void *b)
{
	const struct ckpt_adapter *x = a, *y = b;
	int order = adapter_cmp(a, b);

	return order ? order : (x->order > y->order) - (x->order < y->order);
}

/* Returns the name without its part, or NULL if the part holds no weights. */
static const char *weight_name(const struct vfm_ckpt *c, const char *name)
{
	if (c->plain)
		return name;
	if (!strncmp(name, "model/", 6))
		return name + 6;
	return strncmp(name, "ema/", 4) ? NULL : name + 4;
}

static const struct ckpt_trained *find_trained(const struct ckpt_adapters *s, const char *name)
{
	for (size_t i = 0; i < s->n_trained; i++)
		if (!strcmp(s->trained[i].name, name))
			return &s->trained[i];
	return NULL;
}

static int load_matrices(struct ckpt_adapters *s, const struct ckpt_adapter *x, struct vfm_err *err)
{
	struct vfm_slice a = {.a = x->a_row * x->in, .b = (x->a_row + x->rank) * x->in},
			 b = {.a = x->b_row * x->rank, .b = (x->b_row + x->rows) * x->rank};

	if (s->loaded == x)
		return 0;
	s->loaded = NULL;
	free(s->a);
	free(s->b);
	s->a = vfm_malloc((size_t)(x->rank * x->in) * sizeof(float) + 1);
	s->b = vfm_malloc((size_t)(x->rows * x->rank) * sizeof(float) + 1);
	TRY(vfm_ckpt_read_tensor(x->c, x->a, &a, VFM_F32, s->a, err));
	TRY(vfm_ckpt_read_tensor(x->c, x->b, &b, VFM_F32, s->b, err));
	s->loaded = x;
	return 0;
}

struct addition {
	const struct ckpt_adapters *s;
	const struct ckpt_adapter *x;
	const struct vfm_runs *runs;
	float *w;
};

/* Adds columns [col, col + n) of a row of scale * B A. */
static void add_adapter_row(const struct addition *d, int64_t row, int64_t col, int64_t n, float *w)
{
	const struct ckpt_adapter *x = d->x;

	for (int64_t k = 0; k < x->rank; k++) {
		const float f = (float)x->scale * d->s->b[(row - x->row) * x->rank + k], *a = d->s->a + k * x->in + col;

		for (int64_t i = 0; i < n; i++)
			w[i] += f * a[i];
	}
}

static void add_adapter_runs(int64_t first, int64_t end, void *ctx)
{
	const struct addition *d = ctx;
	const int64_t in = d->x->in;

	for (int64_t r = first; r < end; r++) {
		const struct vfm_run *run = &d->runs->v[r];

		for (int64_t i = 0, n; i < run->n; i += n) {
			int64_t row = (run->glob + i) / in, col = (run->glob + i) % in;

			n = in - col < run->n - i ? in - col : run->n - i;
			if (row >= d->x->row && row < d->x->row + d->x->rows)
				add_adapter_row(d, row, col, n, d->w + run->loc + i);
		}
	}
}

/* w holds the slice in f32. */
static int add_adapters(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	const struct ckpt_adapter *first, float *w, struct vfm_err *err)
{
	struct ckpt_adapters *s = ((struct ckpt_priv *)c->priv)->adapters;
	struct vfm_runs runs = {0}, rows = {0};
	int rc;

	TRY_OUT(ckpt_slice_runs(c, t, slice, &runs, err));
	/* shorter runs, for the threads */
	for (size_t i = 0; i < runs.n; i++)
		for (int64_t at = 0; at < runs.v[i].n; at += first->in) {
			int64_t n = runs.v[i].n - at < first->in ? runs.v[i].n - at : first->in;

			vfm_grow(&rows.v, &rows.cap, rows.n + 1, sizeof(*rows.v));
			rows.v[rows.n++] =
				(struct vfm_run){.glob = runs.v[i].glob + at, .loc = runs.v[i].loc + at, .n = n};
		}
	for (const struct ckpt_adapter *x = first; x < s->v + s->n && !strcmp(x->weight, first->weight); x++) {
		struct addition d = {s, x, &rows, w};

		TRY_OUT(load_matrices(s, x, err));
		vfm_par_for((int64_t)rows.n, 16, add_adapter_runs, &d);
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
	struct ckpt_adapters *s = ((struct ckpt_priv *)c->priv)->adapters;
	const char *name = weight_name(c, t->name);
	const struct ckpt_trained *trained = name ? find_trained(s, name) : NULL;
	const struct ckpt_adapter key = {.weight = (char *)(uintptr_t)name}, *hit = NULL;
	int64_t n = slice && slice->part ? vfm_part_numel(slice->part) : t->numel;
	float *w;
	int rc;

	if (trained)
		return vfm_ckpt_read_tensor(trained->c, trained->t, slice, dtype, dst, err);
	if (name)
		hit = bsearch(&key, s->v, s->n, sizeof(*s->v), adapter_cmp);
	if (!hit)
		return ckpt_read_stored(c, t, slice, dtype, dst, err);
	while (hit > s->v && !strcmp(hit[-1].weight, name))
		hit--;
	if (slice)
		n = (slice->b ? slice->b : n) - slice->a;
	w = dtype == VFM_F32 ? dst : vfm_malloc((size_t)n * sizeof(*w) + 1);
	rc = ckpt_read_stored(c, t, slice, VFM_F32, w, err);
	if (rc == 0)
		rc = add_adapters(c, t, slice, hit, w, err);
	if (rc == 0 && dtype != VFM_F32)
		vfm_dtype_convert(dtype, dst, VFM_F32, w, (size_t)n);
	if (dtype != VFM_F32)
		free(w);
	return rc;
}

/* ---- finding the adapters of a file ---- */

enum matrix { LORA_A, LORA_B, LORA_ALPHA };
static const struct {
	const char *suffix;
	enum matrix matrix;
} suffixes[] = {
	{".lora_A.weight", LORA_A},
	{".lora_B.weight", LORA_B},
	{".lora_A.default.weight", LORA_A},
	{".lora_B.default.weight", LORA_B},
	{".lora_down.weight", LORA_A},
	{".lora_up.weight", LORA_B},
	{".alpha", LORA_ALPHA},
};

/* Returns the name of the layer of a tensor, which the caller frees, or NULL if it is of no adapter. */
static char *split_name(const char *name, enum matrix *matrix)
{
	size_t n = strlen(name);

	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		size_t m = strlen(suffixes[i].suffix);

		if (n <= m || strcmp(name + n - m, suffixes[i].suffix) != 0)
			continue;
		*matrix = suffixes[i].matrix;
		return vfm_strfmt("%.*s", (int)(n - m), name);
	}
	return NULL;
}

struct attaching {
	struct vfm_ckpt *c, *from;
	struct ckpt_adapters *s;
	const char *path, *part;
	double scale, alpha; /* alpha 0: the rank */
	bool root_rank;      /* alpha / sqrt(rank) */
	const struct vfm_foreign *f;
	struct ckpt_faults unknown, shapes;
};

/* Finds the weight of the model for a layer of the file, and its rows; *rows 0: all. */
static const struct vfm_ckpt_tensor *find_weight(
	struct attaching *x, const char *layer, char **weight, struct vfm_foreign_layer *l)
{
	const struct vfm_ckpt_tensor *t;
	char *name, *full;

	*l = (struct vfm_foreign_layer){.parts = 1};
	if (x->f && vfm_foreign_find_layer(x->f, layer, l)) {
		char *ours = vfm_foreign_our_name(l);

		name = vfm_strfmt("%s.weight", ours);
		free(ours);
	} else {
		*l = (struct vfm_foreign_layer){.parts = 1};
		name = vfm_strfmt("%s.weight", layer);
	}
	full = x->c->plain ? vfm_strdup(name) : vfm_strfmt("model/%s", name);
	t = vfm_ckpt_find(x->c, full);
	free(full);
	if (t && t->ndim == 2 && !(l->row && (l->row->form || l->row->channels_last))) {
		*weight = name;
		return t;
	}
	free(name);
	return NULL;
}

static const struct vfm_ckpt_tensor *find_matrix(const struct attaching *x, const char *layer, enum matrix matrix)
{
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		char *name;
		const struct vfm_ckpt_tensor *t;

		if (suffixes[i].matrix != matrix)
			continue;
		name = vfm_strfmt("%s%s%s%s", x->from->plain ? "" : x->part, x->from->plain ? "" : "/", layer,
			suffixes[i].suffix);
		t = vfm_ckpt_find(x->from, name);
		free(name);
		if (t)
			return t;
	}
	return NULL;
}

/* Sets *scale to that of a layer of rank r. */
static int layer_scale(struct attaching *x, const char *layer, int64_t r, double *scale, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *t = find_matrix(x, layer, LORA_ALPHA);
	double alpha = x->alpha;

	if (t && t->numel == 1)
		TRY(vfm_ckpt_read_tensor(x->from, t, NULL, VFM_F64, &alpha, err));
	*scale = x->scale * (alpha > 0 ? alpha / (x->root_rank ? __builtin_sqrt((double)r) : (double)r) : 1);
	return 0;
}

static void add_adapter(struct attaching *x, const struct ckpt_adapter *a)
{
	vfm_grow(&x->s->v, &x->s->cap, x->s->n + 1, sizeof(*x->s->v));
	x->s->v[x->s->n] = *a;
	x->s->v[x->s->n].order = x->s->n;
	x->s->n++;
}

/* Adds the adapter of a layer of the file; A has this layer's blocks below one another. */
static int attach_layer(struct attaching *x, const char *layer, const struct vfm_ckpt_tensor *a, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *b = find_matrix(x, layer, LORA_B), *w;
	struct vfm_foreign_layer l;
	char *weight = NULL;
	int64_t rows, blocks;
	double scale;

	w = find_weight(x, layer, &weight, &l);
	if (!w || !b) {
		ckpt_fault_add(&x->unknown, a->name, b ? "" : " (without the other matrix)");
		free(weight);
		return 0;
	}
	rows = w->shape[0] / l.parts;
	blocks = b->ndim == 2 && a->ndim == 2 && b->shape[1] > 0 ? a->shape[0] / b->shape[1] : 0;
	if (blocks < 1 || a->shape[0] != blocks * b->shape[1] || (l.row && blocks != 1) || rows % blocks ||
		a->shape[1] != w->shape[1] || b->shape[0] != rows) {
		ckpt_fault_shape(&x->shapes, a->name, a->ndim, a->shape, w->ndim, w->shape);
		free(weight);
		return 0;
	}
	if (layer_scale(x, layer, b->shape[1], &scale, err) < 0) {
		free(weight);
		return err->code;
	}
	for (int64_t i = 0; i < blocks; i++)
		add_adapter(x,
			&(struct ckpt_adapter){.weight = i ? vfm_strdup(weight) : weight,
				.c = x->from,
				.a = a,
				.b = b,
				.row = l.part * rows + i * (rows / blocks),
				.rows = rows / blocks,
				.in = w->shape[1],
				.rank = b->shape[1],
				.a_row = i * b->shape[1],
				.b_row = i * (rows / blocks),
				.scale = scale});
	return 0;
}

/* A tensor of a checkpoint that is of no adapter is a trained parameter of the model. */
static void attach_trained(struct attaching *x, const struct vfm_ckpt_tensor *t)
{
	struct ckpt_adapters *s = x->s;
	const char *name = t->name + strlen(x->part) + 1;
	char *full = x->c->plain ? vfm_strdup(name) : vfm_strfmt("model/%s", name);
	const struct vfm_ckpt_tensor *base = vfm_ckpt_find(x->c, full);

	if (x->from->plain || !base || x->scale != 1) {
		ckpt_fault_add(&x->unknown, t->name, base && x->scale != 1 ? " (trained: only with scale 1)" : "");
	} else if (base->ndim != t->ndim || memcmp(base->shape, t->shape, sizeof(*t->shape) * (size_t)t->ndim) != 0) {
		ckpt_fault_shape(&x->shapes, t->name, t->ndim, t->shape, base->ndim, base->shape);
	} else {
		vfm_grow(&s->trained, &s->cap_trained, s->n_trained + 1, sizeof(*s->trained));
		s->trained[s->n_trained++] = (struct ckpt_trained){name, x->from, t};
	}
	free(full);
}

static int attach_tensors(struct attaching *x, struct vfm_err *err)
{
	size_t len = x->from->plain ? 0 : strlen(x->part);
	struct vfm_buf b = {0};
	int rc = 0, found = 0;

	for (int i = 0; i < x->from->n && rc == 0; i++) {
		const struct vfm_ckpt_tensor *t = &x->from->t[i];
		const char *name = t->name;
		enum matrix matrix;
		char *layer;

		if (len && (strncmp(name, x->part, len) != 0 || name[len] != '/'))
			continue;
		found++;
		layer = split_name(name + (len ? len + 1 : 0), &matrix);
		if (!layer)
			attach_trained(x, t);
		else if (matrix == LORA_A)
			rc = attach_layer(x, layer, t, err);
		free(layer);
	}
	if (!found && rc == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "%s has no part '%s'", x->path, x->part);
	ckpt_faults_report(&b, &x->unknown, "of no layer of the model that can have an adapter");
	ckpt_faults_report(&b, &x->shapes, "of another shape");
	if (b.len && rc == 0)
		rc = vfm_fail(err, VFM_EUSAGE, "%s holds no adapters of %s: %s", x->path, x->c->path, b.data);
	vfm_buf_release(&b);
	return rc;
}

/* ---- alpha ---- */

static int read_peft_config(struct attaching *x, const char *path, struct vfm_err *err)
{
	json_t *o = vfm_json_load(path, 1 << 20, err);
	const char *refuse = NULL;

	if (!o)
		return err->code;
	if (json_is_true(json_object_get(o, "use_dora")))
		refuse = "use_dora";
	if (json_object_size(json_object_get(o, "alpha_pattern")))
		refuse = "alpha_pattern";
	x->alpha = json_number_value(json_object_get(o, "lora_alpha"));
	x->root_rank = json_is_true(json_object_get(o, "use_rslora"));
	json_decref(o);
	return refuse ? vfm_fail(err, VFM_EUSAGE, "%s: %s is not supported", path, refuse) : 0;
}

/* Reads alpha of the metadata that diffusers writes: {"transformer.lora_alpha": 16, ...}. */
static void read_alpha_meta(struct attaching *x)
{
	const struct vfm_st *st = &x->from->file[0].st;
	const char *key;
	json_t *v;

	for (size_t i = 0; x->from->plain && i < st->n_meta; i++) {
		json_t *o = strcmp(st->meta[i].key, "lora_adapter_metadata") ? NULL
									     : json_loads(st->meta[i].value, 0, NULL);

		json_object_foreach(o, key, v)
		{
			size_t n = strlen(key);

			if (n >= 10 && !strcmp(key + n - 10, "lora_alpha"))
				x->alpha = json_number_value(v);
		}
		json_decref(o);
	}
}

static int open_adapters(struct attaching *x, struct vfm_err *err)
{
	const struct vfm_ckpt_how raw = {.raw = true};
	char *config = vfm_strfmt("%s/adapter_config.json", x->path),
	     *model = vfm_strfmt("%s/adapter_model.safetensors", x->path);
	struct stat st;
	bool peft = stat(config, &st) == 0;
	int rc = peft ? read_peft_config(x, config, err) : 0;

	if (rc == 0)
		rc = vfm_ckpt_open_as(&x->from, peft ? model : x->path, &raw, err);
	if (rc == 0 && !x->from->plain && !vfm_ckpt_is_adapters(x->from))
		rc = vfm_fail(err, VFM_EUSAGE, "%s holds no adapters: lora.rank of its configuration is 0", x->path);
	if (rc == 0 && !x->from->plain && !strcmp(x->part, "ema") &&
		json_number_value(json_object_get(json_object_get(x->from->config, "train"), "ema_decay")) == 0)
		x->part = "model";
	if (rc == 0 && !x->from->plain)
		x->alpha = json_number_value(json_object_get(json_object_get(x->from->config, "lora"), "alpha"));
	if (rc == 0 && !peft)
		read_alpha_meta(x);
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
	const char *arch = json_string_value(json_object_get(json_object_get(c->config, "model"), "arch"));
	struct attaching x = {.c = c, .path = path, .part = part, .scale = scale};
	int rc;

	if (!pv->adapters)
		pv->adapters = vfm_calloc(1, sizeof(*pv->adapters));
	x.s = pv->adapters;
	for (int i = 0; arch && vfm_archs[i]; i++)
		if (!strcmp(vfm_archs[i]->name, arch))
			x.f = vfm_archs[i]->foreign;
	rc = open_adapters(&x, err);
	if (x.from) {
		x.s->file = vfm_realloc(x.s->file, (size_t)x.s->n_files + 1, sizeof(*x.s->file));
		x.s->file[x.s->n_files++] = x.from;
	}
	if (rc == 0)
		rc = attach_tensors(&x, err);
	qsort(x.s->v, x.s->n, sizeof(*x.s->v), adapter_order);
	x.s->loaded = NULL;
	return rc;
}
