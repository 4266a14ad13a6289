/* diffusion.c - draws times by quantile, and computes coefficients and weights of both objectives. */
#include "net/diffusion/diffusion.h"

#include <math.h>

#include "base/philox.h"
#include "base/stats.h"

#define MODE_SCALE 1.29 /* defaults: Esser et al. 2024, section 5.1, and Hang et al. 2023 */
#define SNR_GAMMA  5.0

void vfm_diffusion_defaults(struct vfm_diffusion *d)
{
	*d = (struct vfm_diffusion){.kind = VFM_EDM,
		.p_mean = 0,
		.p_std = 1,
		.sigma_data = 0.5,
		.t_mean = 0,
		.t_std = 1,
		.mode_scale = MODE_SCALE,
		.shift = 1,
		.t_max = 1,
		.snr_gamma = SNR_GAMMA,
		.text_drop = 0.1,
		.given_max = 1,
		.guidance = 1,
		.time_scale = VFM_TIME_SCALE};
}

void vfm_diffusion_follow(struct vfm_diffusion *d, const struct vfm_model_spec *m)
{
	const struct vfm_arch *a = vfm_model_arch(m);

	d->time_scale = a->time_scale > 0 ? a->time_scale : VFM_TIME_SCALE;
	d->given_time = a->given_time;
}

bool vfm_diffusion_has_mse(const struct vfm_diffusion *d)
{
	return d->weighting != VFM_WEIGHT_NONE && d->image_cond == 0;
}

double vfm_diffusion_shift(const struct vfm_diffusion *d, int64_t tokens)
{
	return d->shift_tokens ? d->shift * sqrt((double)tokens / (double)d->shift_tokens) : d->shift;
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

/* Returns the weight w of a sample's squared error of the network's output F:
 *   min_snr     min(SNR, snr_gamma) on the squared error of x0 (Hang et al. 2023, arXiv 2303.09556).
 *               Flow: SNR = ((1 - t)/t)^2; an error d of F is t d in x0: w = t^2 min(SNR, gamma).
 *               Edm: SNR = (sd/sigma)^2; an error d of F is c_out d / sd in x0 / sd: w = min(SNR, gamma) / (SNR + 1).
 *   cosmap      2 / (pi (1 - 2 t + 2 t^2)), flow (Esser et al. 2024, section 3.1)
 *   sigma_sqrt  1 / t^2, flow (as diffusers name it)
 *   bell        (exp(-2 (t - 1/2)^2) - exp(-1/2)) / Z, flow: FlowMatchScheduler of DiffSynth-Studio, for Wan.
 *               Z = sqrt(pi/2) erf(sqrt(1/2)) - exp(-1/2) makes the mean over uniform t 1. */
static double weight_at(const struct vfm_diffusion *d, double noise)
{
	double t = noise, snr = d->kind == VFM_FLOW ? (1 - t) / t : d->sigma_data / noise;

	snr *= snr;
	switch (d->weighting) {
	case VFM_WEIGHT_MIN_SNR:
		return fmin(snr, d->snr_gamma) * (d->kind == VFM_FLOW ? t * t : 1 / (snr + 1));
	case VFM_WEIGHT_COSMAP:
		return 2 / (M_PI * (1 - 2 * t + 2 * t * t));
	case VFM_WEIGHT_SIGMA_SQRT:
		return 1 / (t * t);
	case VFM_WEIGHT_BELL:
		return (exp(-2 * (t - 0.5) * (t - 0.5)) - exp(-0.5)) / (sqrt(M_PI / 2) * erf(sqrt(0.5)) - exp(-0.5));
	default:
		return 1;
	}
}

/* The edm loss of D(x) = c_skip x + c_out F against x0 has the weight (sigma^2 + sd^2)/(sigma sd)^2, which equals
 * |F - (x0 - c_skip x)/c_out|^2 with weight 1. */
struct vfm_draw vfm_diffusion_at(const struct vfm_diffusion *d, double noise)
{
	struct vfm_draw r = {.noise = noise, .weight = weight_at(d, noise)};
	double c_in = vfm_diffusion_c_in(d, noise), c_skip, c_out;

	if (d->kind == VFM_FLOW) {
		r.t_cond = (float)(d->time_scale * noise);
		r.coef[0] = (float)(1 - noise);
		r.coef[1] = (float)noise;
		r.coef[2] = -1;
		r.coef[3] = 1;
		return r;
	}
	vfm_diffusion_denoise(d, noise, &c_skip, &c_out);
	r.t_cond = (float)(d->time_scale * 0.25 * log(noise));
	r.coef[0] = (float)c_in;
	r.coef[1] = (float)(c_in * noise);
	r.coef[2] = (float)((1 - c_skip) / c_out);
	r.coef[3] = (float)(-c_skip * noise / c_out);
	return r;
}

struct vfm_draw vfm_diffusion_given(const struct vfm_diffusion *d)
{
	return (struct vfm_draw){.t_cond = (float)(d->time_scale * d->given_time), .coef = {1, 0, 0, 0}};
}

/* Returns the noise that a standard normal z or, without one, a uniform u in (0, 1) gives.  It ascends with both. */
static double noise_of(const struct vfm_diffusion *d, double z, double u, int64_t tokens)
{
	double t, a = vfm_diffusion_shift(d, tokens), c;

	if (d->kind == VFM_EDM)
		return exp(d->p_mean + d->p_std * z);
	switch (d->t_dist) {
	case VFM_TIME_UNIFORM:
		t = u;
		break;
	case VFM_TIME_MODE: /* eq. 20 at 1 - u, in a form that does not cancel near 0 */
		c = sin(M_PI * u / 2);
		t = (1 + d->mode_scale) * u - d->mode_scale * c * c;
		break;
	default:
		t = 1 / (1 + exp(-(d->t_mean + d->t_std * z)));
	}
	return a * t / (1 + (a - 1) * t);
}

/* Returns the quantile u of the distribution without a range of t. */
static double full_quantile(const struct vfm_diffusion *d, double u, int64_t tokens)
{
	return noise_of(d, vfm_normal_quantile(u), u, tokens);
}

/* ---- a range of t ----
 *
 * u is drawn between the values of the distribution function at t_min and t_max, so no draw is rejected. */

static bool has_range(const struct vfm_diffusion *d)
{
	return d->t_min > 0 || d->t_max < 1;
}

/* Returns the u whose quantile is t, by bisection: the quantile ascends with u. */
static double level_of_time(const struct vfm_diffusion *d, double t, int64_t tokens)
{
	double lo = 0, hi = 1;

	for (int i = 0; i < 60; i++) {
		double mid = (lo + hi) / 2;

		if (full_quantile(d, mid, tokens) < t)
			lo = mid;
		else
			hi = mid;
	}
	return t <= 0 ? 0 : t >= 1 ? 1 : (lo + hi) / 2;
}

double vfm_diffusion_quantile(const struct vfm_diffusion *d, double u, int64_t tokens)
{
	double lo, hi;

	if (!has_range(d))
		return full_quantile(d, u, tokens);
	lo = level_of_time(d, d->t_min, tokens);
	hi = level_of_time(d, d->t_max, tokens);
	return fmin(fmax(full_quantile(d, lo + u * (hi - lo), tokens), d->t_min), d->t_max);
}

static int check_time_range(const struct vfm_diffusion *d, struct vfm_err *err)
{
	double p;

	if (!has_range(d))
		return 0;
	if (d->kind != VFM_FLOW)
		return vfm_fail(err, VFM_EUSAGE, "diffusion.t_min, diffusion.t_max: only diffusion.kind=flow has a t");
	if (!(d->t_min < d->t_max))
		return vfm_fail(err, VFM_EUSAGE, "diffusion.t_min: expected less than diffusion.t_max %g, got %g",
			d->t_max, d->t_min);
	p = level_of_time(d, d->t_max, d->shift_tokens) - level_of_time(d, d->t_min, d->shift_tokens);
	if (!(p > 1e-6))
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.t_min: with this distribution and shift no t falls between %g and %g", d->t_min,
			d->t_max);
	return 0;
}

int vfm_diffusion_check(const struct vfm_diffusion *d, struct vfm_err *err)
{
	bool min_snr = d->weighting == VFM_WEIGHT_MIN_SNR;

	if (d->kind == VFM_EDM && d->t_dist != VFM_TIME_LOGIT_NORMAL)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.t_dist: it is the distribution of t, which only diffusion.kind=flow has");
	if (d->kind == VFM_EDM && d->shift_tokens)
		return vfm_fail(
			err, VFM_EUSAGE, "diffusion.shift_tokens: it shifts t, which only diffusion.kind=flow has");
	if (d->kind == VFM_EDM && d->weighting != VFM_WEIGHT_NONE && !min_snr)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.weighting: a function of t, which only diffusion.kind=flow has; none and min_snr "
			"are for both");
	if (d->t_dist != VFM_TIME_MODE && d->mode_scale != MODE_SCALE)
		return vfm_fail(err, VFM_EUSAGE, "diffusion.mode_scale: only diffusion.t_dist=mode uses it");
	if (!min_snr && d->snr_gamma != SNR_GAMMA)
		return vfm_fail(err, VFM_EUSAGE, "diffusion.snr_gamma: only diffusion.weighting=min_snr uses it");
	if (d->given_max != 1 && d->image_cond == 0)
		return vfm_fail(err, VFM_EUSAGE, "diffusion.given_max: only diffusion.image_cond above 0 uses it");
	if (d->kind != VFM_FLOW && d->image_cond > 0)
		return vfm_fail(err, VFM_EUSAGE,
			"diffusion.image_cond: only diffusion.kind=flow has a time 0 for the given frame");
	return check_time_range(d, err);
}

struct vfm_draw vfm_diffusion_draw(
	const struct vfm_diffusion *d, uint64_t seed, uint64_t step, uint64_t id, int64_t tokens)
{
	struct vfm_rng time = vfm_rng_stream(seed, step, id, VFM_RNG_TIME),
		       text = vfm_rng_stream(seed, step, id, VFM_RNG_DROP),
		       image = vfm_rng_stream(seed, step, id, VFM_RNG_DROP_IMAGE),
		       given = vfm_rng_stream(seed, step, id, VFM_RNG_GIVEN);
	double u = vfm_rng_uniform(&time, 0);
	struct vfm_draw r = vfm_diffusion_at(d,
		has_range(d) ? vfm_diffusion_quantile(d, u, tokens) : noise_of(d, vfm_rng_normal(&time, 0), u, tokens));

	if (vfm_rng_uniform(&given, 0) < d->image_cond)
		r.given = 1 + (int32_t)(vfm_rng_uniform(&given, 1) * (double)d->given_max);
	r.drop_text = vfm_rng_uniform(&text, 0) < d->text_drop;
	r.drop_image = vfm_rng_uniform(&image, 0) < d->image_drop;
	return r;
}
