/* The forms of the tensors of adapters, and the products that they make. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/adapters_impl.h"

enum ckpt_form ckpt_form_of(const char *name, size_t *len)
{
	static const struct {
		const char *suffix;
		enum ckpt_form form;
	} all[] = {{".lora_A.weight", LORA_A}, {".lora_B.weight", LORA_B}, {".lora_B.bias", LORA_BIAS},
		{".lora_down.weight", LORA_A}, {".lora_up.weight", LORA_B}, {".lora_up.bias", LORA_BIAS},
		{".lora_A.default.weight", LORA_A}, {".lora_B.default.weight", LORA_B},
		{".lora_B.default.bias", LORA_BIAS}, {".hada_w1_a", HADA_W1_A}, {".hada_w1_b", HADA_W1_B},
		{".hada_w2_a", HADA_W2_A}, {".hada_w2_b", HADA_W2_B}, {".lokr_w1", LOKR_W1}, {".lokr_w1_a", LOKR_W1_A},
		{".lokr_w1_b", LOKR_W1_B}, {".lokr_w2", LOKR_W2}, {".lokr_w2_a", LOKR_W2_A}, {".lokr_w2_b", LOKR_W2_B},
		{".alpha", ALPHA}, {".lora_magnitude_vector", MAGNITUDE}, {".lora_magnitude_vector.weight", MAGNITUDE},
		{".lora_magnitude_vector.default.weight", MAGNITUDE}, {".dora_scale", DORA_SCALE}, {".diff", DIFF},
		{".w_norm", DIFF}, {".diff_b", DIFF_BIAS}, {".b_norm", DIFF_BIAS}, {".diff_m", DIFF_MODULATION}};
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

/* LoRA (arXiv 2106.09685); LoHa (arXiv 2108.06098) and LoKr (arXiv 2309.14859) of LyCORIS and PEFT. */
const struct ckpt_adapter_kind ckpt_adapter_kinds[CKPT_ADAPTER_KINDS] = {
	{"LoRA", CKPT_SINGLE, {{LORA_A, LORA_B, N_FORMS}}},
	{"LoHa", CKPT_HADAMARD, {{HADA_W1_B, HADA_W1_A, N_FORMS}, {HADA_W2_B, HADA_W2_A, N_FORMS}}},
	{"LoKr", CKPT_KRONECKER, {{LOKR_W1_B, LOKR_W1_A, LOKR_W1}, {LOKR_W2_B, LOKR_W2_A, LOKR_W2}}},
};

static int count_factors(const struct ckpt_adapter_kind *k)
{
	return k->product == CKPT_SINGLE ? 1 : 2;
}

static const struct vfm_ckpt_tensor *tensor_of(const struct adapter_layer *l, enum ckpt_form form)
{
	return form == N_FORMS ? NULL : l->t[form];
}

bool ckpt_kind_in(const struct ckpt_adapter_kind *k, const struct adapter_layer *l)
{
	for (int i = 0; i < count_factors(k); i++)
		if (tensor_of(l, k->f[i].a) || tensor_of(l, k->f[i].b) || tensor_of(l, k->f[i].whole))
			return true;
	return false;
}

/* Sets f to B A or to a whole matrix; false: their shapes do not agree. */
static bool read_factor(struct ckpt_factor *f, const struct vfm_ckpt_tensor *a, const struct vfm_ckpt_tensor *b)
{
	*f = (struct ckpt_factor){.a = a, .b = b};
	if (a->ndim < 2 || a->shape[0] < 1 || a->numel < 1 || (b && (b->ndim < 2 || b->numel < 1)))
		return false;
	f->cols = a->numel / a->shape[0];
	f->rows = b ? b->shape[0] : a->shape[0];
	f->rank = b ? b->shape[1] : 0;
	return !b || (b->numel == f->rows * f->rank && a->shape[0] % f->rank == 0);
}

bool ckpt_kind_factors(const struct ckpt_adapter_kind *k, const struct adapter_layer *l, struct ckpt_term *d,
	int64_t *rank, struct ckpt_faults *halves, struct ckpt_faults *shapes)
{
	const int n = count_factors(k);
	bool whole = true, fit = true;

	*rank = 0;
	d->product = k->product;
	for (int i = 0; i < n; i++)
		whole = whole &&
			(tensor_of(l, k->f[i].whole) ? !l->t[k->f[i].a] && !l->t[k->f[i].b]
						     : l->t[k->f[i].a] && l->t[k->f[i].b]);
	for (int i = 0; i < n; i++) {
		const enum ckpt_form forms[] = {k->f[i].a, k->f[i].b, k->f[i].whole};
		const struct vfm_ckpt_tensor *m = tensor_of(l, k->f[i].whole), *a = m ? m : l->t[k->f[i].a];

		for (int j = 0; j < 3 && !whole; j++)
			if (tensor_of(l, forms[j]))
				ckpt_fault_add(halves, l->t[forms[j]]->name, "");
		if (!whole)
			continue;
		if (!read_factor(&d->f[i], a, m ? NULL : l->t[k->f[i].b]) ||
			(k->product != CKPT_SINGLE && d->f[i].rank && d->f[i].rank != a->shape[0]) ||
			(*rank && d->f[i].rank && d->f[i].rank != *rank)) {
			ckpt_fault_add(shapes, a->name, " (it does not fit the other matrices)");
			fit = false;
		}
		*rank = d->f[i].rank ? d->f[i].rank : *rank;
	}
	return whole && fit;
}

/* A of LoRA has the shape of the weight, but for its rows. */
static bool fits_single(const struct ckpt_factor *f, const struct vfm_foreign_tensor *w, bool own, int64_t *blocks)
{
	*blocks = f->a->shape[0] / f->rank;
	if (w->ndim < 2 || *blocks < 1 || (*blocks > 1 && !own) || w->shape[0] % *blocks)
		return false;
	return f->a->ndim == w->ndim &&
		!memcmp(f->a->shape + 1, w->shape + 1, sizeof(*w->shape) * (size_t)(w->ndim - 1)) &&
		f->rows == w->shape[0];
}

bool ckpt_kind_fits(const struct ckpt_adapter_kind *k, struct ckpt_term *d, const struct vfm_foreign_tensor *w,
	bool own, int64_t *blocks, struct ckpt_faults *shapes)
{
	const struct ckpt_factor *f = d->f;
	char *product;
	bool fits;

	*blocks = 1;
	d->rows = f[0].rows;
	d->cols = f[0].cols;
	if (k->product == CKPT_SINGLE) {
		fits = fits_single(f, w, own, blocks);
		if (!fits)
			ckpt_fault_shape(shapes, f[0].a->name, f[0].a->ndim, f[0].a->shape, w->ndim, w->shape);
		return fits;
	}
	fits = k->product == CKPT_KRONECKER || (f[1].rows == d->rows && f[1].cols == d->cols);
	if (k->product == CKPT_KRONECKER &&
		(__builtin_mul_overflow(f[0].rows, f[1].rows, &d->rows) ||
			__builtin_mul_overflow(f[0].cols, f[1].cols, &d->cols)))
		fits = false;
	if (fits && w->ndim >= 2 && d->rows == w->shape[0] && d->cols == w->numel / w->shape[0])
		return true;
	product = vfm_strfmt("%s (%s)", d->layer, k->name);
	ckpt_fault_shape(shapes, product, 2, (int64_t[]){d->rows, d->cols}, w->ndim, w->shape);
	free(product);
	return false;
}

bool ckpt_term_magnitude(const struct adapter_layer *l, struct ckpt_term *d, const struct vfm_foreign_tensor *w,
	struct ckpt_faults *shapes)
{
	const struct vfm_ckpt_tensor *peft = l->t[MAGNITUDE], *lycoris = l->t[DORA_SCALE];
	const struct vfm_ckpt_tensor *m = d->magnitude = peft ? peft : lycoris;

	if (!m)
		return true;
	if (peft && lycoris) {
		ckpt_fault_add(shapes, lycoris->name, " (the layer has two magnitudes)");
		return false;
	}
	if (m->numel == w->shape[0] && (peft || (m->ndim == w->ndim && m->shape[0] == w->shape[0])))
		return true; /* [out], [1, out, 1 ..] of PEFT; [out, 1 ..] */
	if (!peft && m->ndim == w->ndim && m->numel == w->shape[1] && m->shape[1] == w->shape[1]) {
		d->inner = d->cols / w->shape[1]; /* [1, in, 1 ..] */
		return true;
	}
	ckpt_fault_shape(shapes, m->name, m->ndim, m->shape, w->ndim, w->shape);
	return false;
}
