/* vae_modulate.c - the norms of a decoder that is conditioned on a time.  The time is constant, so that weight and bias
 * of a norm are constants, too, which the host computes once. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/par.h"
#include "encoder/vae/vae_impl.h"

/* A linear layer: rows [first, first + n) of weight [., in], with their bias, on x [in]. */
struct time_linear {
	const struct vfm_weight *weight, *bias;
	int64_t first, in;
	const float *x;
	bool silu;
	float *y; /* [n] */
};

static void run_time_linear_rows(int64_t i0, int64_t i1, void *ctx)
{
	const struct time_linear *l = ctx;
	const size_t of_weight = vfm_dtype_size(l->weight->dtype), of_bias = vfm_dtype_size(l->bias->dtype);
	float *row = vfm_malloc((size_t)l->in * sizeof(*row)), bias;

	for (int64_t i = i0; i < i1; i++) {
		const int64_t at = l->first + i;
		double sum;

		vfm_dtype_convert(VFM_F32, row, l->weight->dtype,
			(const char *)l->weight->data + (size_t)(at * l->in) * of_weight, (size_t)l->in);
		vfm_dtype_convert(
			VFM_F32, &bias, l->bias->dtype, (const char *)l->bias->data + (size_t)at * of_bias, 1);
		sum = (double)bias;
		for (int64_t k = 0; k < l->in; k++)
			sum += (double)row[k] * (double)l->x[k];
		l->y[i] = (float)(l->silu ? sum / (1 + exp(-sum)) : sum);
	}
	free(row);
}

static void run_time_linear(const struct time_linear *l, int64_t n)
{
	vfm_par_for(n, 8, run_time_linear_rows, (void *)l);
}

/* The sinusoids of time t: cosines, then sines (Timesteps of diffusers with flip_sin_to_cos and no shift). */
static void embed_time(double t, float x[VAE_TIME_DIM])
{
	enum { HALF = VAE_TIME_DIM / 2 };

	for (int i = 0; i < HALF; i++) {
		const double angle = t * exp(-log(10000) * i / HALF);

		x[i] = (float)cos(angle);
		x[HALF + i] = (float)sin(angle);
	}
}

void vae_modulate(const struct vae_norm *n, float *weight, float *bias)
{
	const struct vae_modulation *m = &n->by;
	const int64_t dim = n->dim, all = m->rows * dim, first = m->row * dim;
	float *hidden = vfm_malloc((size_t)all * sizeof(*hidden)), *table = vfm_malloc((size_t)all * sizeof(*table));
	float x[VAE_TIME_DIM], multiplier;

	vfm_weight_to_f32(m->multiplier, &multiplier);
	embed_time((double)VAE_DECODE_TIMESTEP * (double)multiplier, x);
	run_time_linear(&(struct time_linear){m->linear1[0], m->linear1[1], 0, VAE_TIME_DIM, x, true, hidden}, all);
	run_time_linear(&(struct time_linear){m->linear2[0], m->linear2[1], first, all, hidden, false, bias}, dim);
	run_time_linear(
		&(struct time_linear){m->linear2[0], m->linear2[1], first + dim, all, hidden, false, weight}, dim);
	vfm_weight_to_f32(m->table, table);
	for (int64_t i = 0; i < dim; i++) {
		bias[i] += table[first + i];
		weight[i] += 1 + table[first + dim + i];
	}
	free(hidden);
	free(table);
}
