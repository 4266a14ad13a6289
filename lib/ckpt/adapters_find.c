/* The tensors of a file of adapters, and the elements of the model that each of them changes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters_impl.h"
#include "io/json.h"

/* ---- names ---- */

enum form { LORA_A, LORA_B, LORA_BIAS, LORA_ALPHA, DIFF, DIFF_BIAS, N_FORMS };

/* Returns the form of a tensor and the length of its layer's name, or N_FORMS. */
static enum form split_name(const char *name, size_t *len)
{
	static const struct {
		const char *suffix;
		enum form form;
	} all[] = {{".lora_A.weight", LORA_A}, {".lora_B.weight", LORA_B}, {".lora_B.bias", LORA_BIAS},
		{".lora_down.weight", LORA_A}, {".lora_up.weight", LORA_B}, {".lora_up.bias", LORA_BIAS},
		{".lora_A.default.weight", LORA_A}, {".lora_B.default.weight", LORA_B},
		{".lora_B.default.bias", LORA_BIAS}, {".alpha", LORA_ALPHA}, {".diff", DIFF}, {".diff_b", DIFF_BIAS}};
	size_t n = strlen(name);

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		size_t m = strlen(all[i].suffix);

		if (n <= m || strcmp(name + n - m, all[i].suffix) != 0)
			continue;
		*len = n - m;
		return all[i].form;
	}
	return N_FORMS;
}

/* The tensors of a layer. */
struct adapter_layer {
	const char *name;
	const struct vfm_ckpt_tensor *t[N_FORMS];
};

struct adapter_layers {
	struct adapter_layer *v;
	size_t n, cap;
};

struct finding {
	struct ckpt_attaching *x;
	struct adapter_layers layers;
	struct model_names *names;
	size_t prefix;           /* bytes in front of each layer's name */
	const char *prefix_name; /* a layer's name that begins with it; NULL: no layer is known */
	struct ckpt_faults forms, unknown, halves, twice, shapes, values;
};

/* Adds a tensor of our own checkpoint that is of no adapter: a trained parameter of the model. */
static void add_trained(struct finding *f, const char *name, const struct vfm_ckpt_tensor *t)
{
	struct ckpt_attaching *x = f->x;
	struct ckpt_adapters *s = x->s;
	const struct vfm_ckpt_tensor *base = vfm_ckpt_find_in(x->c, "model", name);

	if (!base) {
		ckpt_fault_add(&f->unknown, t->name, "");
	} else if (x->scale != 1) {
		ckpt_fault_add(&f->unknown, t->name, " (trained: only with scale 1)");
	} else if (ckpt_shape_fits(&f->shapes, t->name, t, base->ndim, base->shape)) {
		vfm_grow(&s->trained, &s->cap_trained, s->n_trained + 1, sizeof(*s->trained));
		s->trained[s->n_trained++] = (struct ckpt_trained){vfm_arena_strdup(&s->arena, name), x->from, t};
	}
}

struct named_tensor {
	const char *layer;
	enum form form;
	const struct vfm_ckpt_tensor *t;
};

static int named_tensor_cmp(const void *a, const void *b)
{
	const struct named_tensor *x = a, *y = b;
	int order = strcmp(x->layer, y->layer);

	return order ? order : (int)x->form - (int)y->form;
}

/* Joins the tensors of each layer. */
static void join_layers(struct finding *f, struct named_tensor *v, size_t n)
{
	struct adapter_layers *l = &f->layers;

	qsort(v, n, sizeof(*v), named_tensor_cmp);
	for (size_t i = 0; i < n; i++) {
		if (!i || strcmp(v[i].layer, v[i - 1].layer) != 0) {
			vfm_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
			l->v[l->n++] = (struct adapter_layer){.name = v[i].layer};
		}
		if (l->v[l->n - 1].t[v[i].form])
			ckpt_fault_add(&f->twice, v[i].t->name, "");
		l->v[l->n - 1].t[v[i].form] = v[i].t;
	}
}

/* Lists the layers of the part. */
static int list_layers(struct finding *f, struct vfm_err *err)
{
	const struct vfm_ckpt *from = f->x->from;
	size_t n = 0, found = 0;
	struct named_tensor *v = vfm_calloc((size_t)from->n + 1, sizeof(*v));

	for (int i = 0; i < from->n; i++) {
		const struct vfm_ckpt_tensor *t = &from->t[i];
		const char *name = vfm_ckpt_name_in(from, f->x->part, t);
		enum form form;
		size_t len;
		char *layer;

		if (!name)
			continue;
		found++;
		form = split_name(name, &len);
		if (form == N_FORMS && from->plain) {
			ckpt_fault_add(&f->forms, t->name, "");
		} else if (form == N_FORMS) {
			add_trained(f, name, t);
		} else if (!vfm_dtype_is_float(t->dtype)) {
			ckpt_fault_add(&f->forms, t->name, " (integers)");
		} else {
			layer = vfm_arena_alloc(&f->x->s->arena, len + 1);
			memcpy(layer, name, len);
			v[n++] = (struct named_tensor){layer, form, t};
		}
	}
	join_layers(f, v, n);
	free(v);
	return found ? 0 : vfm_fail(err, VFM_EUSAGE, "%s has no part '%s'", f->x->path, f->x->part);
}

/* ---- the names of the model ---- */

/* The tensors of the model by the names of one layout.  In a key '_' replaces '.', as in the names of some programs. */
struct model_names {
	struct vfm_foreign_map map;
	bool own;
	size_t *first; /* [map.n_theirs + 1] the first copy of each */
	struct model_key {
		char *key;
		int i; /* index into map.theirs */
	} * v;         /* [map.n_theirs] sorted */
};

static void free_model_names(struct model_names *m)
{
	if (!m)
		return;
	for (int i = 0; m->v && i < m->map.n_theirs; i++)
		free(m->v[i].key);
	free(m->v);
	free(m->first);
	vfm_foreign_map_release(&m->map);
	free(m);
}

static int model_key_cmp(const void *a, const void *b)
{
	return strcmp(((const struct model_key *)a)->key, ((const struct model_key *)b)->key);
}

static char *model_key(const char *name, const char *suffix)
{
	char *key = vfm_strfmt("%s%s", name, suffix);

	for (char *p = key; *p; p++)
		if (*p == '.')
			*p = '_';
	return key;
}

/* Takes the map. */
static struct model_names *index_names(const struct vfm_foreign_map *map, bool own)
{
	struct model_names *m = vfm_calloc(1, sizeof(*m));
	const size_t n = (size_t)map->n_theirs;

	*m = (struct model_names){.map = *map, .own = own};
	m->v = vfm_calloc(n + 1, sizeof(*m->v));
	for (size_t i = 0; i < n; i++)
		m->v[i] = (struct model_key){model_key(map->theirs[i].name, ""), (int)i};
	qsort(m->v, n, sizeof(*m->v), model_key_cmp);
	m->first = vfm_foreign_order_copies(&m->map);
	return m;
}

/* The names of our own layout: those of the tensors of the model. */
static struct model_names *own_names(const struct vfm_ckpt *c)
{
	struct vfm_foreign_map map = {0};

	map.ours = vfm_calloc((size_t)c->n + 1, sizeof(*map.ours));
	map.theirs = vfm_calloc((size_t)c->n + 1, sizeof(*map.theirs));
	map.copy = vfm_calloc((size_t)c->n + 1, sizeof(*map.copy));
	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *t = &c->t[i];
		const char *name = vfm_ckpt_name_in(c, "model", t);
		int at = map.n_ours;

		if (!name)
			continue;
		map.ours[at] = (struct vfm_foreign_tensor){.name = name, .ndim = t->ndim, .numel = t->numel};
		memcpy(map.ours[at].shape, t->shape, sizeof(t->shape));
		map.theirs[at] = map.ours[at];
		map.copy[at] = (struct vfm_foreign_copy){.ours = at, .theirs = at, .n = t->numel};
		map.n_ours++;
	}
	map.n_theirs = map.n_ours;
	map.n_copies = (size_t)map.n_ours;
	return index_names(&map, true);
}

/* Sets the dimensions that determine the names and shapes of tensors. */
static int read_dims(
	const struct vfm_ckpt *c, const struct vfm_arch *arch, struct vfm_model_spec *m, struct vfm_err *err)
{
	const json_t *o = json_object_get(c->config, "model");
	const struct {
		const char *key;
		int64_t *v;
	} dims[] = {{"layers", &m->layers}, {"hidden", &m->hidden}, {"heads", &m->heads}, {"ffn", &m->ffn},
		{"text_dim", &m->text_dim}, {"text_len", &m->text_len}, {"channels", &m->channels},
		{"cond_channels", &m->cond_channels}, {"image_dim", &m->image_dim}, {"image_len", &m->image_len},
		{"image_pos", &m->image_pos}};

	vfm_foreign_begin(m, arch);
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		TRY(vfm_json_i64(o, "model", dims[i].key, false, 0, INT32_MAX, dims[i].v, err));
	for (size_t i = 0; i < 3; i++)
		if (json_is_integer(json_array_get(json_object_get(o, "patch"), i)))
			m->patch[i] = json_integer_value(json_array_get(json_object_get(o, "patch"), i));
	if (m->layers > c->n) /* bounds the lists of names by the size of the header */
		return vfm_fail(err, VFM_EUSAGE, "%s: %d tensors cannot be a model of %lld blocks", c->path, c->n,
			(long long)m->layers);
	return vfm_model_check(m, err);
}

/* Returns the position of the layer in a name after a prefix that ends with a dot, or with '_' in a name without dots;
 * sets *tensor to the index into map.theirs.  NULL: the model has no such tensor. */
static const char *find_model_name(const struct model_names *m, const char *layer, const char *suffix, int *tensor)
{
	const char sep = strchr(layer, '.') ? '.' : '_';
	const char *at = layer, *next;

	for (; at; at = next ? next + 1 : NULL) {
		struct model_key key = {.key = model_key(at, suffix)}, *hit;

		hit = bsearch(&key, m->v, (size_t)m->map.n_theirs, sizeof(*m->v), model_key_cmp);
		free(key.key);
		next = strchr(at, sep);
		if (hit) {
			*tensor = hit->i;
			return at;
		}
	}
	return NULL;
}

/* As find_model_name, of the tensor that those of a form change. */
static const char *find_target(const struct model_names *m, const char *layer, enum form form, int *tensor)
{
	bool bias = form == LORA_BIAS || form == DIFF_BIAS;
	const char *at = find_model_name(m, layer, bias ? ".bias" : ".weight", tensor);

	return at || form != DIFF ? at : find_model_name(m, layer, "", tensor);
}

static bool has_prefix(const struct finding *f, const char *layer, const char *at)
{
	return (size_t)(at - layer) == f->prefix && !memcmp(layer, f->prefix_name, f->prefix);
}

static size_t count_known(const struct model_names *m, const struct adapter_layers *l)
{
	size_t n = 0;
	int tensor;

	for (size_t i = 0; i < l->n; i++)
		for (int form = 0; form < N_FORMS; form++)
			n += l->v[i].t[form] && find_target(m, l->v[i].name, form, &tensor);
	return n;
}

/* Chooses the layout that has most of the names; our own checkpoints have ours. */
static int choose_names(struct finding *f, struct vfm_err *err)
{
	const struct vfm_ckpt *c = f->x->c;
	const char *name = json_string_value(json_object_get(json_object_get(c->config, "model"), "arch"));
	const struct vfm_arch *arch = vfm_arch_find(name);
	struct vfm_model_spec m;
	size_t best;

	f->names = own_names(c);
	best = count_known(f->names, &f->layers);
	if (!f->x->from->plain || !arch || !arch->foreign)
		return 0;
	TRY(read_dims(c, arch, &m, err));
	for (int l = 0; l < arch->foreign->n_layouts; l++) {
		struct vfm_foreign_map map;
		struct model_names *other;
		size_t n;

		if (arch->foreign->layout[l].import_only)
			continue;
		vfm_foreign_expand(&map, &m, l);
		other = index_names(&map, false);
		n = count_known(other, &f->layers);
		if (n > best) {
			free_model_names(f->names);
			f->names = other;
			best = n;
		} else {
			free_model_names(other);
		}
	}
	return 0;
}

/* Sets the prefix that most layers have, by a majority vote. */
static void choose_prefix(struct finding *f)
{
	size_t votes = 0;

	for (size_t i = 0; i < f->layers.n; i++) {
		const struct adapter_layer *l = &f->layers.v[i];
		const char *at = NULL;
		int tensor;

		for (int form = 0; form < N_FORMS && !at; form++)
			at = l->t[form] ? find_target(f->names, l->name, form, &tensor) : NULL;
		if (!at)
			continue;
		if (!votes) {
			f->prefix_name = l->name;
			f->prefix = (size_t)(at - l->name);
		}
		if (has_prefix(f, l->name, at))
			votes++;
		else
			votes--;
	}
}

/* Reads the rules of the scale from the metadata of a file: those of the model with the prefix of the layers. */
static int read_rules(struct finding *f, struct vfm_err *err)
{
	struct ckpt_attaching *x = f->x;
	char *prefix;
	int rc;

	if (!x->from->plain)
		return 0;
	prefix = vfm_strfmt("%.*s", (int)f->prefix, f->prefix_name ? f->prefix_name : "");
	rc = ckpt_lora_metadata(&x->rules, x->from, prefix, err);
	free(prefix);
	return rc;
}

/* ---- additions ---- */

/* Adds d, whose elements from d->from on are those of their tensor, to our tensors. */
static void add_copies(struct finding *f, int tensor, const struct ckpt_addition *d, int64_t n)
{
	const struct vfm_foreign_map *map = &f->names->map;
	struct ckpt_adapters *s = f->x->s;
	const int64_t end = d->from + n;

	for (size_t k = f->names->first[tensor]; k < f->names->first[tensor + 1]; k++) {
		const struct vfm_foreign_copy *p = &map->copy[k];
		const int64_t a = p->b > d->from ? p->b : d->from, b = p->b + p->n < end ? p->b + p->n : end;

		if (a >= b)
			continue;
		vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
		s->v[s->n] = *d;
		s->v[s->n].tensor = vfm_arena_strdup(&s->arena, map->ours[p->ours].name);
		s->v[s->n].at = p->a + (a - p->b);
		s->v[s->n].from = a;
		s->v[s->n].n = b - a;
		s->v[s->n].order = s->n;
		s->n++;
	}
}

/* Returns whether the model holds all of their tensor. */
static bool model_has(const struct finding *f, int tensor)
{
	const struct vfm_foreign_map *map = &f->names->map;

	for (size_t k = f->names->first[tensor]; k < f->names->first[tensor + 1]; k++) {
		const struct vfm_foreign_tensor *o = &map->ours[map->copy[k].ours];
		const struct vfm_ckpt_tensor *t = vfm_ckpt_find_in(f->x->c, "model", o->name);

		if (!t || t->numel != o->numel)
			return false;
	}
	return true;
}

/* Finds the tensor that those of a form change, and compares the prefix of the name with that of the others. */
static bool find_adapted_tensor(struct finding *f, const struct adapter_layer *l, enum form form, int *tensor)
{
	const char *at = find_target(f->names, l->name, form, tensor);

	if (!at || !model_has(f, *tensor)) {
		ckpt_fault_add(&f->unknown, l->t[form]->name, "");
		return false;
	}
	if (!has_prefix(f, l->name, at)) {
		char *more = vfm_strfmt(" (the others begin with '%.*s')", (int)f->prefix, f->prefix_name);

		ckpt_fault_add(&f->unknown, l->t[form]->name, more);
		free(more);
		return false;
	}
	return true;
}

/* Adds a tensor of the shape of the one that it changes. */
static void add_adapter_difference(struct finding *f, const struct adapter_layer *l, enum form form, double scale)
{
	const struct vfm_ckpt_tensor *t = l->t[form];
	const struct vfm_foreign_tensor *want;
	int tensor;

	if (!t || !find_adapted_tensor(f, l, form, &tensor))
		return;
	want = &f->names->map.theirs[tensor];
	if (ckpt_shape_fits(&f->shapes, t->name, t, want->ndim, want->shape))
		add_copies(f, tensor, &(struct ckpt_addition){.c = f->x->from, .a = t, .in = t->numel, .scale = scale},
			t->numel);
}

/* Reads the alpha of a layer into *alpha; 0: it has none. */
static int read_alpha(struct finding *f, const struct adapter_layer *l, double *alpha, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *t = l->t[LORA_ALPHA];

	*alpha = 0;
	if (!t)
		return 0;
	if (t->numel == 1)
		TRY(vfm_ckpt_read_tensor(f->x->from, t, NULL, VFM_F64, alpha, err));
	if (*alpha > 0 && isfinite(*alpha))
		return 0;
	ckpt_fault_add(&f->values, t->name, "");
	*alpha = 0;
	return 0;
}

/* Returns whether A [blocks * rank, in ..] and B [rows, rank] fit the weight [rows, in ..]; sets *blocks and *rank.
 * Only layers of our own names may have several blocks of outputs. */
static bool match_shapes(const struct model_names *m, const struct vfm_foreign_tensor *w,
	const struct vfm_ckpt_tensor *a, const struct vfm_ckpt_tensor *b, int64_t *blocks, int64_t *rank)
{
	*rank = b->ndim >= 2 ? b->shape[1] : 0;
	*blocks = *rank > 0 && a->ndim >= 2 ? a->shape[0] / *rank : 0;
	if (w->ndim < 2 || *blocks < 1 || (*blocks > 1 && !m->own) || w->shape[0] % *blocks)
		return false;
	return a->shape[0] == *blocks * *rank && a->ndim == w->ndim &&
		!memcmp(a->shape + 1, w->shape + 1, sizeof(*a->shape) * (size_t)(a->ndim - 1)) &&
		b->shape[0] == w->shape[0] && b->numel == w->shape[0] * *rank;
}

/* Adds the product of the matrices of a layer, and the bias that has their scale. */
static int add_matrices(struct finding *f, const struct adapter_layer *l, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *a = l->t[LORA_A], *b = l->t[LORA_B];
	const struct vfm_foreign_tensor *w;
	struct ckpt_addition d = {.c = f->x->from, .a = a, .b = b};
	int64_t blocks, n;
	double alpha;
	char *layer;
	int tensor, rc;

	TRY(read_alpha(f, l, &alpha, err));
	if (!find_adapted_tensor(f, l, LORA_A, &tensor))
		return 0;
	w = &f->names->map.theirs[tensor];
	if (!match_shapes(f->names, w, a, b, &blocks, &d.rank)) {
		ckpt_fault_shape(&f->shapes, a->name, a->ndim, a->shape, w->ndim, w->shape);
		return 0;
	}
	layer = vfm_strfmt("%.*s", (int)(strlen(w->name) - strlen(".weight")), w->name);
	rc = ckpt_lora_scale(&f->x->rules, layer, d.rank, alpha, &d.scale, err);
	free(layer);
	if (rc < 0)
		return vfm_err_context(err, "%s", f->x->path);
	d.scale *= f->x->scale;
	d.in = w->numel / w->shape[0];
	n = w->numel / blocks;
	for (int64_t i = 0; i < blocks; i++) {
		d.a_row = i * d.rank;
		d.from = i * n;
		add_copies(f, tensor, &d, n);
	}
	add_adapter_difference(f, l, LORA_BIAS, d.scale);
	return 0;
}

static int add_adapter_layer(struct finding *f, const struct adapter_layer *l, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *const *t = l->t;

	if (t[LORA_A] && t[LORA_B]) {
		TRY(add_matrices(f, l, err));
	} else {
		for (int form = LORA_A; form <= LORA_ALPHA; form++)
			if (t[form])
				ckpt_fault_add(&f->halves, t[form]->name, "");
	}
	add_adapter_difference(f, l, DIFF, f->x->scale);
	add_adapter_difference(f, l, DIFF_BIAS, f->x->scale);
	return 0;
}

static int addition_place(const void *a, const void *b)
{
	const struct ckpt_addition *x = a, *y = b;
	int order = strcmp(x->tensor, y->tensor);

	return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* Lists additions, from `begin` on, to elements that another one changes. */
static void find_overlaps(struct finding *f, size_t begin)
{
	struct ckpt_addition *v = f->x->s->v + begin;
	const size_t n = f->x->s->n - begin;
	int64_t end = 0;

	if (n)
		qsort(v, n, sizeof(*v), addition_place);
	for (size_t i = 0; i < n; i++) {
		if (i && !strcmp(v[i].tensor, v[i - 1].tensor) && v[i].at < end)
			ckpt_fault_add(&f->twice, v[i].a->name, "");
		end = v[i].at + v[i].n;
	}
}

int ckpt_adapters_find(struct ckpt_attaching *x, struct vfm_err *err)
{
	struct finding f = {.x = x};
	struct ckpt_faults *const faults[] = {&f.forms, &f.unknown, &f.halves, &f.twice, &f.shapes, &f.values};
	static const char *const what[] = {"of a form that is not supported",
		"of no layer of the model that can have an adapter", "without their lora_A or lora_B",
		"of a layer that is given twice", "of another shape", "that must be one positive number"};
	struct vfm_buf b = {0};
	const size_t begin = x->s->n;
	int rc;

	TRY_OUT(list_layers(&f, err));
	TRY_OUT(choose_names(&f, err));
	choose_prefix(&f);
	TRY_OUT(read_rules(&f, err));
	for (size_t i = 0; i < f.layers.n; i++)
		TRY_OUT(add_adapter_layer(&f, &f.layers.v[i], err));
	find_overlaps(&f, begin);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		ckpt_faults_report(&b, faults[i], what[i]);
	rc = b.len ? vfm_fail(err, VFM_EUSAGE, "%s holds no adapters of %s: %s", x->path, x->c->path, b.data) : 0;
	if (rc == 0)
		ckpt_lora_rules_warn(&x->rules);
out:
	for (size_t i = 0; rc < 0 && i < sizeof(faults) / sizeof(faults[0]); i++)
		ckpt_faults_release(faults[i]);
	vfm_buf_release(&b);
	free(f.layers.v);
	free_model_names(f.names);
	return rc;
}
