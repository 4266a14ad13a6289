/* The tensors of a file of adapters, and the elements of the model that each of them changes. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ckpt/adapters_impl.h"
#include "io/json.h"

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
	struct ckpt_faults skipped; /* of layers that the model lacks */
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
	enum ckpt_form form;
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
		enum ckpt_form form;
		size_t len;
		char *layer;

		if (!name)
			continue;
		found++;
		form = ckpt_form_of(name, &len);
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
	const char *layout; /* NULL: ours */
	size_t *first;      /* [map.n_theirs + 1] the first copy of each */
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
static struct model_names *index_names(const struct vfm_foreign_map *map, const char *layout)
{
	struct model_names *m = vfm_calloc(1, sizeof(*m));
	const size_t n = (size_t)map->n_theirs;

	*m = (struct model_names){.map = *map, .layout = layout};
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
	return index_names(&map, NULL);
}

/* Sets the dimensions that determine the names and shapes of tensors. */
static int read_dims(
	const struct vfm_ckpt *c, const struct vfm_arch *arch, struct vfm_model_spec *m, struct vfm_err *err)
{
	const json_t *o = json_object_get(c->config, "model");

	vfm_foreign_begin(m, arch);
	TRY(vfm_model_read(m, o, "model", err));
	if (m->layers > c->n) /* bounds the lists of names by the size of the header */
		return vfm_fail(err, VFM_EUSAGE, "%s: %d tensors cannot be a model of %lld blocks", c->path, c->n,
			(long long)m->layers);
	return vfm_model_check(m, err);
}

static bool has_digit(const char *from, const char *end)
{
	while (from < end && !isdigit((unsigned char)*from))
		from++;
	return from < end;
}

/* Returns the position of the layer in a name after a prefix that ends with a dot, or with '_' in a name without dots;
 * sets *tensor to the index into map.theirs.  NULL: the model has no such tensor. */
static const char *find_model_name(const struct model_names *m, const char *layer, const char *suffix, int *tensor)
{
	const char sep = strchr(layer, '.') ? '.' : '_';
	const char *at = layer, *next;

	/* The prefix has no number: "blocks.7." would hide a layer of a block that the model lacks. */
	for (; at && !has_digit(layer, at); at = next ? next + 1 : NULL) {
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
static const char *find_target(const struct model_names *m, const char *layer, enum ckpt_form form, int *tensor)
{
	const char *suffix = form == LORA_BIAS || form == DIFF_BIAS ? ".bias"
		: form == DIFF_MODULATION                           ? ".modulation"
								    : ".weight";
	const char *at = find_model_name(m, layer, suffix, tensor);

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
		other = index_names(&map, arch->foreign->layout[l].name);
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

/* Adds elements [from, from + n) of a term, which is that of their tensor, to ours. */
static void add_copies(struct finding *f, int tensor, const struct ckpt_term *term, int64_t from, int64_t n)
{
	const struct vfm_foreign_map *map = &f->names->map;
	struct ckpt_adapters *s = f->x->s;
	struct ckpt_term *d = vfm_arena_alloc(&s->arena, sizeof(*d));
	const int64_t end = from + n;

	*d = *term;
	vfm_grow(&s->term, &s->cap_terms, s->n_terms + 1, sizeof(*s->term));
	s->term[s->n_terms++] = d;

	for (size_t k = f->names->first[tensor]; k < f->names->first[tensor + 1]; k++) {
		const struct vfm_foreign_copy *p = &map->copy[k];
		const int64_t a = p->b > from ? p->b : from, b = p->b + p->n < end ? p->b + p->n : end;

		if (a >= b)
			continue;
		vfm_grow(&s->v, &s->cap, s->n + 1, sizeof(*s->v));
		s->v[s->n] = (struct ckpt_addition){
			vfm_arena_strdup(&s->arena, map->ours[p->ours].name), d, p->a + (a - p->b), b - a, a, s->n};
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
static bool find_adapted_tensor(struct finding *f, const struct adapter_layer *l, enum ckpt_form form, int *tensor)
{
	const char *at = find_target(f->names, l->name, form, tensor);

	if (!at || !model_has(f, *tensor)) {
		if (f->x->skip_missing)
			ckpt_fault_add(&f->skipped, form < ALPHA && form != LORA_BIAS ? l->name : l->t[form]->name, "");
		else
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
static void add_adapter_difference(struct finding *f, const struct adapter_layer *l, enum ckpt_form form, double scale)
{
	const struct vfm_ckpt_tensor *t = l->t[form];
	const struct vfm_foreign_tensor *want;
	int tensor;

	if (!t || !find_adapted_tensor(f, l, form, &tensor))
		return;
	want = &f->names->map.theirs[tensor];
	if (ckpt_shape_fits(&f->shapes, t->name, t, want->ndim, want->shape))
		add_copies(f, tensor,
			&(struct ckpt_term){.c = f->x->from,
				.layer = l->name,
				.f = {{.a = t, .rows = 1, .cols = t->numel}},
				.rows = 1,
				.cols = t->numel,
				.scale = scale,
				.share = f->x->scale},
			0, t->numel);
}

/* Reads the alpha of a layer into *alpha; 0: it has none. */
static int read_alpha(struct finding *f, const struct adapter_layer *l, double *alpha, struct vfm_err *err)
{
	const struct vfm_ckpt_tensor *t = l->t[ALPHA];

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

/* Tensors that mean nothing without a product. */
static const enum ckpt_form lone_forms[] = {LORA_BIAS, ALPHA, MAGNITUDE, DORA_SCALE};

/* Returns the form of a tensor of the layer that belongs to the kind. */
static enum ckpt_form form_of_kind(const struct ckpt_adapter_kind *k, const struct adapter_layer *l)
{
	return l->t[k->f[0].a] ? k->f[0].a : k->f[0].whole;
}

/* Sets the scale of a term by the rules of the file. */
static int find_scale(struct finding *f, const struct ckpt_adapter_kind *k, const struct vfm_foreign_tensor *w,
	int64_t rank, double alpha, struct ckpt_term *d, struct vfm_err *err)
{
	const size_t n = strlen(w->name), m = strlen(".weight");
	char *layer = vfm_strfmt("%.*s", (int)(n > m ? n - m : n), w->name);
	int rc = ckpt_lora_scale(&f->x->rules, k->name, layer, rank, alpha, &d->scale, err);

	if (rc == 0 && f->x->rules.where && f->x->rules.dora != (d->magnitude != NULL))
		rc = vfm_fail(err, VFM_EUSAGE, "the adapter of '%s' has %s magnitude, but use_dora of %s is %s", layer,
			d->magnitude ? "a" : "no", f->x->rules.where, d->magnitude ? "false" : "true");
	free(layer);
	return rc < 0 ? vfm_err_context(err, "%s", f->x->path) : 0;
}

/* Adds the product of the matrices of a layer. */
static int add_adapter_product(
	struct finding *f, const struct ckpt_adapter_kind *k, const struct adapter_layer *l, struct vfm_err *err)
{
	struct ckpt_term d = {.c = f->x->from, .layer = l->name, .share = f->x->scale};
	const struct vfm_foreign_tensor *w;
	int64_t rank, blocks, n;
	double alpha;
	int tensor;

	TRY(read_alpha(f, l, &alpha, err));
	if (!ckpt_kind_factors(k, l, &d, &rank, &f->halves, &f->shapes) ||
		!find_adapted_tensor(f, l, form_of_kind(k, l), &tensor))
		return 0;
	w = &f->names->map.theirs[tensor];
	if (!ckpt_kind_fits(k, &d, w, !f->names->layout, &blocks, &f->shapes) ||
		!ckpt_term_magnitude(l, &d, w, &f->shapes))
		return 0;
	TRY(find_scale(f, k, w, rank, alpha, &d, err));
	n = w->numel / blocks;
	for (int64_t i = 0; i < blocks; i++) {
		d.f[0].a_row = i * rank;
		add_copies(f, tensor, &d, i * n, n);
	}
	if (l->t[LORA_BIAS] && (d.magnitude || k->product != CKPT_SINGLE))
		ckpt_fault_add(&f->forms, l->t[LORA_BIAS]->name, d.magnitude ? " (with a magnitude)" : " (of no LoRA)");
	else
		add_adapter_difference(f, l, LORA_BIAS, d.scale);
	return 0;
}

static int add_adapter_layer(struct finding *f, const struct adapter_layer *l, struct vfm_err *err)
{
	bool any = false;

	for (int i = 0; i < CKPT_ADAPTER_KINDS; i++)
		if (ckpt_kind_in(&ckpt_adapter_kinds[i], l)) {
			any = true;
			TRY(add_adapter_product(f, &ckpt_adapter_kinds[i], l, err));
		}
	for (size_t i = 0; i < sizeof(lone_forms) / sizeof(lone_forms[0]); i++)
		if (l->t[lone_forms[i]] && !any)
			ckpt_fault_add(&f->halves, l->t[lone_forms[i]]->name, "");
	add_adapter_difference(f, l, DIFF, 1);
	add_adapter_difference(f, l, DIFF_BIAS, 1);
	add_adapter_difference(f, l, DIFF_MODULATION, 1);
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
	const size_t n = f->x->s->n - begin;
	struct ckpt_addition *v = n ? f->x->s->v + begin : NULL;
	int64_t end = 0;

	if (n)
		qsort(v, n, sizeof(*v), addition_place);
	for (size_t i = 0; i < n; i++) {
		if (i && !strcmp(v[i].tensor, v[i - 1].tensor) && v[i].at < end)
			ckpt_fault_add(&f->twice, v[i].term->f[0].a->name, "");
		end = v[i].at + v[i].n;
	}
}

/* Names the adapters that are left out; an error if no other one fits. */
static int report_skipped(struct finding *f, bool any, struct vfm_err *err)
{
	const size_t n = f->skipped.n;
	struct vfm_buf b = {0};
	int rc = 0;

	if (!n)
		return 0;
	ckpt_faults_names(&b, &f->skipped);
	if (any)
		vfm_warn("%s: %zu adapter%s left out, whose layers the model lacks: %s", f->x->path, n,
			n > 1 ? "s are" : " is", b.data);
	else
		rc = vfm_fail(err, VFM_EUSAGE, "%s has no layer of %s: %s", f->x->path, f->x->c->path, b.data);
	vfm_buf_release(&b);
	return rc;
}

int ckpt_adapters_find(struct ckpt_attaching *x, struct vfm_err *err)
{
	struct finding f = {.x = x};
	struct ckpt_faults *const faults[] = {&f.forms, &f.unknown, &f.halves, &f.twice, &f.shapes, &f.values};
	static const char *const what[] = {"of a form that is not supported",
		"of no layer of the model that can have an adapter", "without the other matrices of their adapter",
		"of a layer that is given twice", "of another shape", "that must be one positive number"};
	struct vfm_buf b = {0};
	const size_t begin = x->s->n, trained = x->s->n_trained;
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
	rc = b.len ? vfm_fail(err, VFM_EUSAGE, "the adapters of %s do not fit %s: %s%s", x->path, x->c->path, b.data,
			     f.unknown.n ? "; --skip-missing leaves out layers that the model lacks" : "")
		   : 0;
	if (rc == 0)
		rc = report_skipped(&f, x->s->n > begin || x->s->n_trained > trained, err);
	if (rc == 0)
		ckpt_lora_rules_warn(&x->rules);
	x->layout = f.names->layout ? f.names->layout : "vfm";
out:
	ckpt_faults_release(&f.skipped);
	for (size_t i = 0; rc < 0 && i < sizeof(faults) / sizeof(faults[0]); i++)
		ckpt_faults_release(faults[i]);
	vfm_buf_release(&b);
	free(f.layers.v);
	free_model_names(f.names);
	return rc;
}
