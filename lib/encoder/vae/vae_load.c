/* vae_load.c - reads, reorders and uploads the weights of a part; makes the fixed weights of Haar wavelets. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "encoder/vae/vae_impl.h"

static int64_t taps_of(const struct vae_conv *v)
{
	return (int64_t)v->kernel[0] * v->kernel[1] * v->kernel[2];
}

/* ---- the values of a convolution ---- */

/* Returns whether wavelet `band` has the sign - at pixel (t, y, x) of a patch.  A digit (t, y, x) of band, to the base
 * 8, says for each axis whether a level takes the difference of neighbours or their sum; the last digit is of the
 * finest level.
 */
static bool haar_sign(int64_t band, int64_t t, int64_t y, int64_t x)
{
	int64_t odd = 0;

	for (; band; band >>= 3, t >>= 1, y >>= 1, x >>= 1)
		odd ^= (band >> 2 & t) ^ (band >> 1 & y) ^ (band & x);
	return odd & 1;
}

/* Wavelet o of a patch is a signed mean of its pixels (Haar, in three dimensions, all bands divided again).  The
 * inverse is a signed sum.  Both matrices are symmetric. */
static void haar_row(const struct vae_conv *v, int64_t o, float *row)
{
	const int64_t cells = v->in / 3; /* pixels of a patch, p^3 */
	int64_t p = 1;

	while (p * p * p < cells)
		p *= 2;
	for (int64_t i = 0; i < v->in; i++) {
		const int64_t wave = v->fixed == VAE_HAAR ? o : i, pixel = v->fixed == VAE_HAAR ? i : o;
		const int64_t at = pixel % cells;

		if (wave % 3 != pixel / cells) /* another colour */
			continue;
		row[i] = v->fixed == VAE_HAAR ? 1 / (float)cells : 1;
		if (haar_sign(wave / 3, at / (p * p), at / p % p, at % p))
			row[i] = -row[i];
	}
}

/* One row [taps, in] of a fixed weight. */
static void fixed_row(const struct vae_conv *v, int64_t o, float *row)
{
	const int64_t taps = taps_of(v);

	memset(row, 0, (size_t)(taps * v->in) * sizeof(*row));
	if (v->fixed == VAE_HAAR || v->fixed == VAE_HAAR_INVERSE) {
		haar_row(v, o, row);
	} else if (v->fixed == VAE_SUM_FRAMES) {
		for (int64_t i = 0; i < taps; i++)
			row[i * v->in + i * v->out + o] = 1;
	} else if (v->fixed == VAE_PICK) {
		const struct vae_pick *p = &v->pick;

		row[o / p->width * p->of_cell + o % p->width / p->repeat % p->modulo * p->of_channel] = 1;
	} else if (v->fixed == VAE_AVG_DOWN) {
		/* Channels and the pixels of a block, in this order, are cut into groups of the same size. */
		for (int64_t i = o * v->group; i < (o + 1) * v->group; i++)
			row[v->taps_first ? i : i % taps * v->in + i / taps] = 1.0f / (float)v->group;
	} else {
		/* Each channel is repeated, then dealt out to the pixels of a block of each output channel. */
		const int64_t out = v->out / 4, factor = v->dup_t < 0 ? 4 : 8, repeats = out * factor / v->in;
		const int64_t pixel = o / out + (v->dup_t > 0 ? 4 : 0);

		row[(o % out * factor + pixel) / repeats] = 1;
	}
}

/* Returns the row of the tensor that becomes output o. */
static int64_t source_row(const struct vae_conv *v, int64_t o)
{
	const int64_t width = v->cells ? v->out / v->cells : v->out;

	return v->first + (v->cells ? o % width * v->cells + o / width : o);
}

static void learned_row(const struct vae_conv *v, int64_t o, float *from, float *row)
{
	const int64_t taps = taps_of(v), rows = v->from[0]->shape[0], frame = v->split ? o / rows : 0;
	const int64_t all = v->split ? taps * v->split : taps, n = all * v->in;
	const float scale = o < v->scaled ? v->scale : 1;
	const int64_t at = v->split ? o % rows : source_row(v, o);
	const struct vfm_weight *w = v->from[at / rows];

	vfm_dtype_convert(VFM_F32, from, w->dtype,
		(const char *)w->data + (size_t)(at % rows * n) * vfm_dtype_size(w->dtype), (size_t)n);
	for (int64_t k = 0; k < taps; k++)
		for (int64_t c = 0; c < v->in; c++)
			row[k * v->in + c] = scale * from[c * all + frame * taps + k];
}

struct fill_rows {
	const struct vae_conv *v;
	enum vfm_dtype dtype;
	char *out;
};

static void fill_conv_rows(int64_t o0, int64_t o1, void *ctx)
{
	const struct fill_rows *f = ctx;
	const size_t n = (size_t)(taps_of(f->v) * f->v->in);
	const size_t n_from = f->v->split ? n * (size_t)f->v->split : n;
	float *row = vfm_malloc(n * sizeof(*row)), *from = vfm_malloc(n_from * sizeof(*from));

	for (int64_t o = o0; o < o1; o++) {
		if (f->v->fixed)
			fixed_row(f->v, o, row);
		else
			learned_row(f->v, o, from, row);
		vfm_dtype_convert(f->dtype, f->out + (size_t)o * n * vfm_dtype_size(f->dtype), VFM_F32, row, n);
	}
	free(row);
	free(from);
}

/* ---- the block of a part ---- */

struct loader {
	struct vfm_stream *s;
	enum vfm_dtype dtype;
	struct vfm_suballoc *at;
	char *host; /* room for the largest tensor; NULL: addresses are counted */
	size_t largest;
};

/* Copies the bias of the rows to dst [out]. */
static void fill_bias(const struct vae_conv *v, float *dst)
{
	const int64_t rows = v->from_bias[0]->shape[0];

	for (int64_t o = 0; o < v->out; o++) {
		const int64_t at = source_row(v, o);
		const struct vfm_weight *b = v->from_bias[at / rows];

		vfm_dtype_convert(VFM_F32, dst + o, b->dtype,
			(const char *)b->data + (size_t)(at % rows) * vfm_dtype_size(b->dtype), 1);
	}
	for (int64_t o = 0; o < v->scaled; o++)
		dst[o] *= v->scale;
}

/* The place of a weight, which a device that packs weights holds in no other form. */
static void place_weight(struct loader *l, struct vae_conv *v)
{
	struct vfm_conv3d a = {.weight = vfm_t3(NULL, l->dtype, v->out, taps_of(v), v->in)};
	size_t packed;

	memcpy(a.kernel, v->kernel, sizeof(a.kernel));
	packed = vfm_conv3d_packed_size(l->s, &a);
	v->packed = packed > 0;
	v->w = a.weight;
	v->w.data = vfm_suballoc(l->at, (int64_t)(packed ? packed : vfm_nbytes(&v->w)), 1);
}

static int store_weight(const struct loader *l, const struct vae_conv *v, struct vfm_err *err)
{
	struct vfm_conv3d a = {.weight = v->w};

	vfm_par_for(v->out, 8, fill_conv_rows, &(struct fill_rows){v, l->dtype, l->host});
	if (!v->packed)
		return l->s->dev->t->to_device(l->s, v->w.data, l->host, vfm_nbytes(&v->w), err);
	a.weight.data = l->host;
	memcpy(a.kernel, v->kernel, sizeof(a.kernel));
	return vfm_conv3d_pack(l->s, &a, v->w.data, err);
}

static int load_conv(struct loader *l, struct vae_conv *v, struct vfm_err *err)
{
	place_weight(l, v);
	if (v->from_bias[0])
		v->b = vfm_sub_t1(l->at, VFM_F32, v->out);
	if (vfm_nbytes(&v->w) > l->largest)
		l->largest = vfm_nbytes(&v->w);
	if (vfm_nbytes(&v->b) > l->largest)
		l->largest = vfm_nbytes(&v->b);
	if (!l->host)
		return 0;
	TRY(store_weight(l, v, err));
	for (int i = 0; i < 3 && v->from[i]; i++)
		vfm_weight_drop_pages(v->from[i]);
	if (!v->from_bias[0])
		return 0;
	fill_bias(v, (float *)l->host);
	return l->s->dev->t->to_device(l->s, v->b.data, l->host, vfm_nbytes(&v->b), err);
}

static int load_vector(struct loader *l, const float *values, int dim, struct vfm_tensor *to, struct vfm_err *err)
{
	*to = vfm_sub_t1(l->at, VFM_F32, dim);
	return l->host ? l->s->dev->t->to_device(l->s, to->data, values, vfm_nbytes(to), err) : 0;
}

/* Sets weight [dim] and bias [dim]. */
static void find_norm_values(const struct vae_norm *n, float *weight, float *bias)
{
	if (n->by.table) {
		vae_modulate(n, weight, bias);
		return;
	}
	for (int i = 0; i < n->dim; i++)
		weight[i] = 1;
	if (n->from)
		vfm_weight_to_f32(n->from, weight);
	if (n->from_bias)
		vfm_weight_to_f32(n->from_bias, bias);
}

static int load_norm(struct loader *l, struct vae_norm *n, struct vfm_err *err)
{
	float *weight = vfm_calloc(2 * (size_t)n->dim, sizeof(*weight)), *bias = weight + n->dim;
	int rc;

	if (l->host)
		find_norm_values(n, weight, bias);
	rc = load_vector(l, weight, n->dim, &n->w, err);
	if (rc >= 0 && (n->from_bias || n->by.table))
		rc = load_vector(l, bias, n->dim, &n->b, err);
	free(weight);
	return rc;
}

static int load_layers(struct loader *l, struct vae_net *net, struct vfm_err *err)
{
	for (int i = 0; i < net->n; i++) {
		struct vae_layer *x = &net->layer[i];

		for (int j = 0; j < 3; j++)
			if (x->conv[j].out)
				TRY(load_conv(l, &x->conv[j], err));
		for (int j = 0; j < 2; j++)
			if (x->shortcut[j].out)
				TRY(load_conv(l, &x->shortcut[j], err));
		if (x->noise.out)
			TRY(load_conv(l, &x->noise, err));
		for (int j = 0; j < 2; j++)
			if (x->norm[j].dim)
				TRY(load_norm(l, &x->norm[j], err));
	}
	return 0;
}

int vae_net_load(
	struct vae_net *net, struct vfm_stream *s, enum vfm_dtype dtype, void **mem, size_t *bytes, struct vfm_err *err)
{
	struct vfm_suballoc count = {0}, give;
	struct loader l = {.s = s, .dtype = dtype, .at = &count};
	int rc;

	TRY(load_layers(&l, net, err));
	*bytes = count.used;
	*mem = vfm_dev_alloc(s, *bytes, "the weights of the VAE", err);
	if (!*mem)
		return VFM_EENV;
	l.host = vfm_big_alloc(l.largest, "a tensor of the VAE", err);
	give = (struct vfm_suballoc){.base = *mem};
	l.at = &give;
	rc = l.host ? load_layers(&l, net, err) : VFM_EENV;
	vfm_big_free(l.host, l.largest);
	if (rc < 0) {
		vfm_dev_free(s, *mem, *bytes);
		*mem = NULL;
	}
	return rc;
}
