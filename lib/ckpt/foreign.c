/* Files with the tensor names of another program: finds their layout, and describes our tensors as ranges of theirs. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "ckpt/ckpt_impl.h"
#include "io/json.h"
#include "io/names.h"

struct translation {
	struct vfm_ckpt *c;
	const struct vfm_arch *arch;
	int layout;
	size_t prefix;           /* bytes in front of each name: "model.diffusion_model." */
	const char *prefix_name; /* a name that begins with it */
	struct vfm_model_spec m;
	bool given; /* m was given, and may be without optional layers */
	int *place; /* [map->n_theirs] index into c->t; -1: missing */
	struct ckpt_quant quant;
	struct ckpt_faults bad_quant;
	struct vfm_foreign_map *map;
	struct vfm_buf faults;
};

/* Returns whether a tensor is no weight of the network, such as the empty _extra_state of a module of Transformer
 * Engine.  name: without the prefix, if it has that. */
static bool is_ignored(const struct translation *x, const char *name)
{
	const char *ignored = x->arch->foreign->layout[x->layout].ignored;
	struct vfm_patterns others;
	size_t n = strlen(name);

	snprintf(others.text, sizeof(others.text), "%s", ignored ? ignored : "");
	return vfm_patterns_match(&others, name) || (n > 12 && !strcmp(name + n - 12, "_extra_state"));
}

/* ---- detection ---- */

/* Returns whether a name of c is `sign`, perhaps after a prefix that ends with a dot. */
static bool find_sign(struct translation *x, const char *sign, size_t len)
{
	for (int i = 0; i < x->c->n; i++) {
		const char *name = x->c->t[i].name;
		size_t n = strlen(name);

		if (n < len || memcmp(name + n - len, sign, len) != 0 || (n > len && name[n - len - 1] != '.'))
			continue;
		x->prefix = n - len;
		x->prefix_name = name;
		return true;
	}
	return false;
}

static bool detect_layout(struct translation *x)
{
	for (int a = 0; vfm_archs[a]; a++) {
		const struct vfm_foreign *f = vfm_archs[a]->foreign;

		for (int l = 0; f && l < f->n_layouts; l++)
			for (const char *p = f->layout[l].signs; *p; p += strspn(p, "|")) {
				size_t len = strcspn(p, "|");

				x->arch = vfm_archs[a];
				x->layout = l;
				if (find_sign(x, p, len))
					return true;
				p += len;
			}
	}
	return false;
}

/* Returns the name without the prefix, or NULL if it lacks the prefix. */
static const char *bare_name(const struct translation *x, const char *name)
{
	return strncmp(name, x->prefix_name, x->prefix) == 0 ? name + x->prefix : NULL;
}

/* ---- dimensions ---- */

struct foreign_config { /* config.json */
	char *path;
	json_t *json; /* NULL: there is none */
	int layout;   /* whose keys it has */
};

/* Returns the layout whose keys a config.json has: that of its class, else that of the tensors; -1: it is of something
 * else, which may lie next to a single file. */
static int layout_of_config(const struct translation *x, const json_t *config)
{
	const struct vfm_foreign *f = x->arch->foreign;
	const char *class_name = json_string_value(json_object_get(config, "_class_name"));

	for (int l = 0; class_name && l < f->n_layouts; l++)
		if (f->layout[l].class_name && !strcmp(f->layout[l].class_name, class_name))
			return l;
	for (const struct vfm_foreign_key *k = f->layout[x->layout].keys; k->key; k++)
		if (json_object_get(config, k->key))
			return x->layout;
	return -1;
}

/* Loads dir/config.json, if it is there and of this architecture. */
static int load_config_file(struct translation *x, const char *dir, struct foreign_config *c, struct vfm_err *err)
{
	c->path = vfm_strfmt("%s/config.json", dir);
	if (access(c->path, F_OK) != 0)
		return 0;
	c->json = vfm_json_load(c->path, 1 << 20, err);
	if (!c->json)
		return err ? err->code : VFM_EUSAGE;
	c->layout = layout_of_config(x, c->json);
	if (c->layout < 0) {
		json_decref(c->json);
		c->json = NULL;
	}
	return 0;
}

static int interpret_config_file(struct translation *x, const struct foreign_config *c, struct vfm_err *err)
{
	return c->json ? vfm_foreign_read_config(&x->m, x->arch->foreign, c->layout, c->json, c->path, err) : 0;
}

/* Reads what an export wrote into the metadata of the first file. */
static int read_model_meta(struct translation *x, struct vfm_err *err)
{
	json_t *model;
	char *where;
	int rc = ckpt_read_meta(x->c, CKPT_META_MODEL, &model, &where, err);

	if (model)
		rc = vfm_foreign_read_meta(&x->m, model, where, err);
	json_decref(model);
	free(where);
	return rc;
}

static void infer_from_shapes(struct translation *x)
{
	const int64_t layers = x->m.layers, refiner = x->m.refiner_layers, single = x->m.single_layers;

	for (const struct vfm_foreign_row *r = x->arch->foreign->rows; r->ours; r++)
		for (int i = 0; i < x->c->n; i++) {
			const struct vfm_ckpt_tensor *t = &x->c->t[i];
			const char *name = bare_name(x, t->name);

			if (name)
				vfm_foreign_infer(&x->m, r, x->layout, name, t->ndim, t->shape);
		}
	/* with the numbers of config.json, the tensors of further blocks are unknown */
	if (layers)
		x->m.layers = layers;
	if (refiner)
		x->m.refiner_layers = refiner;
	if (single)
		x->m.single_layers = single;
}

static int read_dimensions(struct translation *x, const struct foreign_config *config, struct vfm_err *err)
{
	bool unknown_heads;

	vfm_foreign_begin(&x->m, x->arch);
	TRY(read_model_meta(x, err));
	if (x->m.heads) { /* the metadata of our own export; config.json repeats the heads */
		struct vfm_model_spec meta = x->m;

		x->m.heads = 0;
		TRY(interpret_config_file(x, config, err));
		if (!x->m.heads)
			x->m.heads = meta.heads;
	} else {
		TRY(interpret_config_file(x, config, err));
	}
	infer_from_shapes(x);
	unknown_heads = !x->m.heads;
	if (vfm_foreign_finish(&x->m, x->arch->foreign, err) < 0)
		return vfm_err_context(err, "%s", x->c->path);
	if (unknown_heads)
		vfm_info("%s: neither config.json nor the tensors give the heads; %lld of %lld features are assumed",
			x->c->path, (long long)x->m.heads, (long long)vfm_model_head_dim(&x->m));
	return config->json ? vfm_foreign_check_config(&x->m, config->layout, config->json, config->path, err) : 0;
}

static int find_dimensions(
	struct translation *x, const char *dir, const struct vfm_model_spec *given, struct vfm_err *err)
{
	struct foreign_config config = {0};
	int rc;

	if (given) {
		x->m = *given;
		x->given = true;
		if (strcmp(given->arch, x->arch->name) != 0)
			return vfm_fail(err, VFM_EUSAGE, "%s holds a model of model.arch '%s', not '%s'", x->c->path,
				x->arch->name, given->arch);
		return vfm_model_check(&x->m, err);
	}
	rc = load_config_file(x, dir, &config, err);
	if (rc == 0)
		rc = read_dimensions(x, &config, err);
	json_decref(config.json);
	free(config.path);
	return rc;
}

/* ---- comparison ---- */

int ckpt_model_spec(const struct vfm_ckpt *c, struct vfm_model_spec *m, struct vfm_err *err)
{
	vfm_model_defaults(m);
	if (vfm_model_read(m, json_object_get(c->config, "model"), "model", err) < 0 || vfm_model_check(m, err) < 0)
		return vfm_err_context(err, "%s", c->path);
	return 0;
}

void ckpt_fault_add(struct ckpt_faults *l, const char *name, const char *more)
{
	const char *p = name, *end;
	int64_t block = -1;

	while (*p && !(isdigit((unsigned char)*p) && p > name && p[-1] == '.'))
		p++;
	for (end = p; isdigit((unsigned char)*end); end++)
		if (end - p < 6)
			block = (block < 0 ? 0 : block * 10) + (*end - '0');
	vfm_grow(&l->v, &l->cap, l->n + 1, sizeof(*l->v));
	l->v[l->n++] = (struct ckpt_fault){
		block < 0 ? vfm_strfmt("%s%s", name, more) : vfm_strfmt("%.*s#%s%s", (int)(p - name), name, end, more),
		block};
}

static int fault_cmp(const void *a, const void *b)
{
	const struct ckpt_fault *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : (x->block > y->block) - (x->block < y->block);
}

/* Appends one name for the faults [i, end), which have the same text: "blocks.{0-3,7}.attn1.to_q.weight". */
static void add_names(struct vfm_buf *b, const struct ckpt_fault *v, size_t i, size_t end)
{
	const char *mark = v[i].block < 0 ? NULL : strchr(v[i].text, '#');
	bool many = end - i > 1;

	if (!mark) {
		vfm_buf_adds(b, v[i].text);
		return;
	}
	vfm_buf_addf(b, "%.*s%s", (int)(mark - v[i].text), v[i].text, many ? "{" : "");
	for (size_t k = i, last; k < end; k = last + 1) {
		for (last = k; last + 1 < end && v[last + 1].block == v[last].block + 1;)
			last++;
		vfm_buf_addf(b, k > i ? ",%lld" : "%lld", (long long)v[k].block);
		if (last > k)
			vfm_buf_addf(b, "-%lld", (long long)v[last].block);
	}
	vfm_buf_addf(b, "%s%s", many ? "}" : "", mark + 1);
}

/* Sorts the faults and drops repetitions, such as those of each row of a tensor. */
static void sort_faults(struct ckpt_faults *l)
{
	size_t n = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), fault_cmp);
	for (size_t i = 0; i < l->n; i++)
		if (n && fault_cmp(&l->v[i], &l->v[n - 1]) == 0)
			free(l->v[i].text);
		else
			l->v[n++] = l->v[i];
	l->n = n;
}

void ckpt_faults_names(struct vfm_buf *b, struct ckpt_faults *l)
{
	sort_faults(l);
	for (size_t i = 0, end; i < l->n; i = end) {
		for (end = i + 1; end < l->n && !strcmp(l->v[end].text, l->v[i].text);)
			end++;
		vfm_buf_adds(b, i ? ", " : "");
		add_names(b, l->v, i, end);
	}
	ckpt_faults_release(l);
}

void ckpt_faults_report(struct vfm_buf *b, struct ckpt_faults *l, const char *what)
{
	sort_faults(l);
	if (l->n)
		vfm_buf_addf(b, "%s%zu tensor%s %s: ", b->len ? "; " : "", l->n, l->n > 1 ? "s" : "", what);
	ckpt_faults_names(b, l);
}

void ckpt_faults_release(struct ckpt_faults *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i].text);
	free(l->v);
	*l = (struct ckpt_faults){0};
}

void ckpt_fault_shape(
	struct ckpt_faults *l, const char *name, int ndim, const int64_t *shape, int want_ndim, const int64_t *want)
{
	struct vfm_buf b = {0};

	vfm_buf_adds(&b, " ");
	vfm_ckpt_add_shape(&b, ndim, shape);
	vfm_buf_adds(&b, " in the place of ");
	vfm_ckpt_add_shape(&b, want_ndim, want);
	ckpt_fault_add(l, name, b.data);
	vfm_buf_release(&b);
}

bool ckpt_shape_fits(
	struct ckpt_faults *l, const char *name, const struct vfm_ckpt_tensor *t, int ndim, const int64_t *want)
{
	if (vfm_ckpt_has_shape(t, ndim, want))
		return true;
	ckpt_fault_shape(l, name, t->ndim, t->shape, ndim, want);
	return false;
}

/* Finds the place of each tensor of the layout in c->t; lists the unknown ones and those of another shape. */
static void place_tensors(struct translation *x, struct ckpt_faults *unknown, struct ckpt_faults *shapes)
{
	struct vfm_names theirs = {0};
	int left_out = 0;

	for (int i = 0; i < x->map->n_theirs; i++)
		vfm_names_add(&theirs, x->map->theirs[i].name);
	for (int i = 0; i < x->c->n; i++) {
		const struct vfm_ckpt_tensor *t = &x->c->t[i];
		const char *name = bare_name(x, t->name);
		const int64_t hit = name ? vfm_names_find(&theirs, name) : -1;
		const struct vfm_foreign_tensor *want;

		if (hit < 0 && name && x->given && vfm_foreign_left_out(&x->m, x->layout, name)) {
			left_out++;
			continue;
		}
		if (hit < 0) {
			if (!is_ignored(x, name ? name : t->name) && !x->quant.known[i])
				ckpt_fault_add(unknown, t->name, "");
			continue;
		}
		want = &x->map->theirs[hit];
		x->place[hit] = i;
		ckpt_shape_fits(shapes, t->name, t, want->ndim, want->shape);
	}
	if (left_out)
		vfm_info("%s: %d tensors are left out, because the given model is without their layer", x->c->path,
			left_out);
	vfm_names_release(&theirs);
}

/* Returns whether one of the tensors that each of ours consists of has a scale; the caller frees the array. */
static bool *find_scaled(const struct translation *x)
{
	bool *scaled = vfm_calloc((size_t)x->map->n_ours, sizeof(*scaled));

	for (size_t i = 0; i < x->map->n_copies; i++)
		if (x->quant.scale[x->place[x->map->copy[i].theirs]])
			scaled[x->map->copy[i].ours] = true;
	return scaled;
}

/* The tensors that one of ours consists of must have one type, unless they have scales. */
static void compare_types(struct translation *x, struct ckpt_faults *types)
{
	const struct vfm_foreign_map *map = x->map;
	bool *scaled = find_scaled(x);
	int *first = vfm_malloc((size_t)map->n_ours * sizeof(*first));

	memset(first, -1, (size_t)map->n_ours * sizeof(*first));
	for (size_t i = 0; i < map->n_copies; i++) {
		const struct vfm_foreign_copy *k = &map->copy[i];
		const struct vfm_ckpt_tensor *t = &x->c->t[x->place[k->theirs]], *other;
		char *more;

		if (first[k->ours] < 0)
			first[k->ours] = x->place[k->theirs];
		other = &x->c->t[first[k->ours]];
		if (t->dtype == other->dtype || scaled[k->ours])
			continue;
		more = vfm_strfmt(
			" (%s, but %s is %s)", vfm_dtype_name(t->dtype), other->name, vfm_dtype_name(other->dtype));
		ckpt_fault_add(types, t->name, more);
		free(more);
	}
	free(scaled);
	free(first);
}

static int compare_tensors(struct translation *x, struct vfm_err *err)
{
	struct ckpt_faults missing = {0}, unknown = {0}, shapes = {0}, types = {0};
	size_t n_missing;
	int rc = 0;

	place_tensors(x, &unknown, &shapes);
	for (int i = 0; i < x->map->n_theirs; i++)
		if (x->place[i] < 0) {
			char *name = vfm_strfmt("%.*s%s", (int)x->prefix, x->prefix_name, x->map->theirs[i].name);

			ckpt_fault_add(&missing, name, "");
			free(name);
		}
	n_missing = missing.n;
	ckpt_faults_report(&x->faults, &missing, "missing");
	ckpt_faults_report(&x->faults, &unknown, "unknown");
	ckpt_faults_report(&x->faults, &shapes, "of another shape");
	if (!n_missing)
		compare_types(x, &types);
	ckpt_faults_report(&x->faults, &types, "of another type");
	ckpt_faults_report(&x->faults, &x->bad_quant, "of a quantization that is not supported");
	if (x->faults.len > VFM_ERR_MAX - 256)
		vfm_warn("%s: %s", x->c->path, x->faults.data); /* the error would be cut */
	if (x->faults.len)
		rc = vfm_fail(err, VFM_EUSAGE, "%s is no complete %s in the layout %s: %s", x->c->path, x->arch->name,
			x->arch->foreign->layout[x->layout].name, x->faults.data);
	vfm_buf_release(&x->faults);
	return rc;
}

/* ---- our tensors ---- */

static int copy_cmp(const void *a, const void *b)
{
	const struct vfm_foreign_copy *x = a, *y = b;

	if (x->ours != y->ours)
		return x->ours < y->ours ? -1 : 1;
	return (x->a > y->a) - (x->a < y->a);
}

static void replace_tensors(struct translation *x)
{
	struct vfm_foreign_map *map = x->map;
	struct vfm_ckpt_tensor *t = vfm_calloc((size_t)map->n_ours, sizeof(*t));
	struct vfm_ckpt_piece *piece = vfm_arena_alloc(&x->c->priv->arena, map->n_copies * sizeof(*piece));
	bool *scaled = find_scaled(x);

	qsort(map->copy, map->n_copies, sizeof(*map->copy), copy_cmp);
	for (size_t i = 0; i < map->n_copies; i++) {
		const struct vfm_foreign_copy *k = &map->copy[i];
		const struct vfm_ckpt_tensor *src = &x->c->t[x->place[k->theirs]];
		const struct vfm_foreign_tensor *ours = &map->ours[k->ours];
		struct vfm_ckpt_tensor *dst = &t[k->ours];

		if (!dst->name) {
			*dst = (struct vfm_ckpt_tensor){.name = ours->name,
				.dtype = scaled[k->ours] ? VFM_F32 : src->dtype,
				.ndim = ours->ndim,
				.numel = ours->numel,
				.piece = &piece[i]};
			dst->bytes = ours->numel * (int64_t)vfm_dtype_size(dst->dtype);
			memcpy(dst->shape, ours->shape, sizeof(dst->shape));
		}
		dst->piece[dst->n_pieces++] = (struct vfm_ckpt_piece){.file = src->piece->file,
			.tensor = src->piece->tensor,
			.is_range = true,
			.a = k->a,
			.b = k->a + k->n,
			.numel = k->n,
			.from = k->b,
			.stored = src->dtype};
		if (scaled[k->ours])
			dst->piece[dst->n_pieces - 1].scale =
				x->quant.scale[src - x->c->t] ? x->quant.scale[src - x->c->t] : 1;
	}
	free(scaled);
	free(x->c->t);
	x->c->t = t;
	x->c->n = map->n_ours;
	qsort(t, (size_t)map->n_ours, sizeof(*t), ckpt_tensor_cmp);
}

int ckpt_translate(struct vfm_ckpt *c, const char *dir, const struct vfm_model_spec *given, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	struct translation x = {.c = c, .map = &pv->map};
	const struct vfm_foreign *f;
	int rc;

	if (!detect_layout(&x))
		return 0;
	TRY(vfm_ckpt_want_model(c, err));
	f = x.arch->foreign;
	TRY(find_dimensions(&x, dir, given, err));
	if (x.m.layers > c->n) /* bounds the lists below by the size of the header */
		return vfm_fail(err, VFM_EUSAGE, "%s: %d tensors cannot be a model of %lld blocks", c->path, c->n,
			(long long)x.m.layers);
	vfm_foreign_expand(&pv->map, &x.m, x.layout);
	x.place = vfm_malloc((size_t)pv->map.n_theirs * sizeof(*x.place));
	memset(x.place, -1, (size_t)pv->map.n_theirs * sizeof(*x.place));
	rc = ckpt_quant_read(c, &x.quant, &x.bad_quant, err);
	if (!rc)
		rc = compare_tensors(&x, err);
	if (!rc) {
		replace_tensors(&x);
		pv->config =
			json_pack("{s:o, s:{s:s}}", "model", vfm_model_json(&x.m), "diffusion", "kind", f->objective);
		c->config = pv->config;
		c->layout = f->layout[x.layout].name;
	}
	ckpt_faults_release(&x.bad_quant);
	ckpt_quant_release(&x.quant);
	free(x.place);
	return rc;
}
