#include "model/diffusion.h"

#include <math.h>

#include "base/philox.h"

void vfm_diffusion_defaults(struct vfm_diffusion *d)
{
	*d = (struct vfm_diffusion){.kind = VFM_EDM,
		.p_mean = 0,
		.p_std = 1,
		.sigma_data = 0.5,
		.t_mean = 0,
		.t_std = 1,
		.shift = 1,
		.text_drop = 0.1};
}

double vfm_diffusion_c_in(const struct vfm_diffusion *d, double noise)
{
	return d->kind == VFM_EDM ? 1 / sqrt(noise * noise + d->sigma_data * d->sigma_data) : 1;
}

void vfm_diffusion_denoise(const struct vfm_diffusion *d, double noise, double *a, double *b)
{
	double v = noise * noise + d->sigma_data * d->sigma_data;

	if (d->kind == VFM_FLOW) {
		*a = 1;
		*b = -noise;
		return;
	}
	*a = d->sigma_data * d->sigma_data / v;
	*b = noise * d->sigma_data / sqrt(v);
}

struct vfm_draw vfm_diffusion_at(const struct vfm_diffusion *d, double noise)
{
	struct vfm_draw r = {.noise = noise};
	double c_in = vfm_diffusion_c_in(d, noise), c_skip, c_out;

	if (d->kind == VFM_FLOW) {
		r.t_cond = (float)(VFM_TIME_SCALE * noise);
		r.coef[0] = (float)(1 - noise);
		r.coef[1] = (float)noise;
		r.coef[2] = -1;
		r.coef[3] = 1;
		return r;
	}
	vfm_diffusion_denoise(d, noise, &c_skip, &c_out);
	r.t_cond = (float)(VFM_TIME_SCALE * 0.25 * log(noise));
	r.coef[0] = (float)c_in;
	r.coef[1] = (float)(c_in * noise);
	r.coef[2] = (float)((1 - c_skip) / c_out);
	r.coef[3] = (float)(-c_skip * noise / c_out);
	return r;
}

struct vfm_draw vfm_diffusion_draw(const struct vfm_diffusion *d, uint64_t seed, uint64_t step, uint64_t id)
{
	struct vfm_rng time = vfm_rng_stream(seed, step, id, VFM_RNG_TIME),
		       drop = vfm_rng_stream(seed, step, id, VFM_RNG_DROP);
	double z = vfm_rng_normal(&time, 0), t;
	struct vfm_draw r;

	if (d->kind == VFM_EDM) {
		r = vfm_diffusion_at(d, exp(d->p_mean + d->p_std * z));
	} else {
		t = 1 / (1 + exp(-(d->t_mean + d->t_std * z)));
		r = vfm_diffusion_at(d, d->shift * t / (1 + (d->shift - 1) * t));
	}
	r.drop = vfm_rng_uniform(&drop, 0) < d->text_drop;
	return r;
}
