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
		.t_max = 1,
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

struct vfm_draw vfm_diffusion_given(void)
{
	return (struct vfm_draw){.coef = {1, 0, 0, 0}};
}

/* ---- a range of t ---- */

static bool has_range(const struct vfm_diffusion *d)
{
	return d->t_min > 0 || d->t_max < 1;
}

/* Returns the standard normal number of which draw_time makes t. */
static double normal_of_time(const struct vfm_diffusion *d, double t)
{
	return t <= 0 ? -INFINITY : t >= 1 ? INFINITY : (log(t / (d->shift * (1 - t))) - d->t_mean) / d->t_std;
}

static double normal_cdf(double z)
{
	return 0.5 * erfc(-z / sqrt(2));
}

/* The range of the standard normal numbers, and its probability.  mirror: of their negatives, because the distribution
 * function is precise below 0 only. */
struct normal_range {
	double lo, hi, p_lo, p;
	bool mirror;
};

static struct normal_range range_of_normal(const struct vfm_diffusion *d)
{
	double lo = normal_of_time(d, d->t_min), hi = normal_of_time(d, d->t_max);
	struct normal_range r = {.lo = lo, .hi = hi, .mirror = lo > 0};

	if (r.mirror) {
		r.lo = -hi;
		r.hi = -lo;
	}
	r.p_lo = normal_cdf(r.lo);
	r.p = normal_cdf(r.hi) - r.p_lo;
	return r;
}

/* Returns the inverse of the distribution function, within the range, by bisection. */
static double normal_in_range(const struct normal_range *r, double uniform)
{
	double lo = fmax(r->lo, -40), hi = fmin(r->hi, 40), p = r->p_lo + uniform * r->p;

	for (int i = 0; i < 80; i++) {
		double mid = 0.5 * (lo + hi);

		if (normal_cdf(mid) < p)
			lo = mid;
		else
			hi = mid;
	}
	return r->mirror ? -lo : lo;
}

int vfm_diffusion_check(const struct vfm_diffusion *d, struct vfm_err *err)
{
	if (d->kind != VFM_FLOW && has_range(d))
		return vfm_fail(err, VFM_EUSAGE, "diffusion.t_min, diffusion.t_max: only diffusion.kind=flow has a t");
	if (d->kind != VFM_FLOW && d->image_cond > 0)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.image_cond: only diffusion.kind=flow has a time 0 for the given frame");
	if (!has_range(d))
		return 0;
	if (!(d->t_min < d->t_max))
		return vfm_fail(err, VFM_EUSAGE, "diffusion.t_min: expected less than diffusion.t_max %g, got %g",
			d->t_max, d->t_min);
	if (!(d->t_std > 0 && range_of_normal(d).p > 1e-12))
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.t_min: with this t_mean, t_std and shift no t falls between %g and %g", d->t_min,
			d->t_max);
	return 0;
}

/* Draws t of flow. */
static double draw_time(const struct vfm_diffusion *d, const struct vfm_rng *time)
{
	double z, t;

	if (has_range(d)) {
		struct normal_range r = range_of_normal(d);

		z = normal_in_range(&r, vfm_rng_uniform(time, 0));
	} else {
		z = vfm_rng_normal(time, 0);
	}
	t = 1 / (1 + exp(-(d->t_mean + d->t_std * z)));
	return fmin(fmax(d->shift * t / (1 + (d->shift - 1) * t), d->t_min), d->t_max);
}

struct vfm_draw vfm_diffusion_draw(const struct vfm_diffusion *d, uint64_t seed, uint64_t step, uint64_t id)
{
	struct vfm_rng time = vfm_rng_stream(seed, step, id, VFM_RNG_TIME),
		       drop = vfm_rng_stream(seed, step, id, VFM_RNG_DROP),
		       given = vfm_rng_stream(seed, step, id, VFM_RNG_GIVEN);
	struct vfm_draw r;

	if (d->kind == VFM_EDM)
		r = vfm_diffusion_at(d, exp(d->p_mean + d->p_std * (double)vfm_rng_normal(&time, 0)));
	else
		r = vfm_diffusion_at(d, draw_time(d, &time));
	r.given = vfm_rng_uniform(&given, 0) < d->image_cond;
	r.drop = vfm_rng_uniform(&drop, 0) < d->text_drop;
	return r;
}
