/* diffusion.h - noise, network input and training target of a sample.  Input and target are linear in (x0, n); a draw
 * is a row of four coefficients (vfm_diffuse of device/ops/ops.h).
 *
 * edm   (Karras et al. 2022, "Elucidating the Design Space", table 1): ln sigma ~ N(p_mean, p_std^2),
 *       x = x0 + sigma n, the network input is c_in x and c_noise = ln(sigma)/4, the target (x0 - c_skip x)/c_out.
 * flow  (Lipman et al. 2023): x = (1 - t) x0 + t n, the network input is x and t, the target n - x0.  The time t is
 *       drawn (enum vfm_time_dist), then shifted: t <- a t / (1 + (a - 1) t), with a = vfm_diffusion_shift.
 *
 * A weighting multiplies a sample's squared error of the network's output F; diffusion.c has the formulas.
 */
#ifndef VFM_NET_DIFFUSION_DIFFUSION_H
#define VFM_NET_DIFFUSION_DIFFUSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/model/model.h"

enum vfm_diffusion_kind { VFM_EDM, VFM_FLOW };
#define VFM_TIME_SCALE 1000.0 /* factor of most networks' time input before its embedding */

/* Distributions of t in Esser et al. 2024 (arXiv 2403.03206), with u uniform in (0, 1). */
enum vfm_time_dist {
	VFM_TIME_LOGIT_NORMAL, /* t = sigmoid(z), z ~ N(t_mean, t_std^2)               (eq. 19) */
	VFM_TIME_UNIFORM,      /* t = u */
	VFM_TIME_MODE          /* t = 1 - u - mode_scale (cos^2(pi u / 2) - 1 + u)     (eq. 20) */
};
enum vfm_weighting { VFM_WEIGHT_NONE, VFM_WEIGHT_MIN_SNR, VFM_WEIGHT_COSMAP, VFM_WEIGHT_SIGMA_SQRT, VFM_WEIGHT_BELL };
#define VFM_MODE_SCALE_MAX 1.7519383938841725 /* 2 / (pi - 2): t is monotonic in u for -1 <= mode_scale <= this */

struct vfm_diffusion {
	int kind; /* enum vfm_diffusion_kind */
	double p_mean, p_std, sigma_data;
	int t_dist; /* enum vfm_time_dist; flow */
	double t_mean, t_std, mode_scale;
	double shift;
	/* flow: the number of tokens that `shift` refers to; 0: `shift` applies to all samples */
	int64_t shift_tokens;
	double t_min, t_max; /* flow: the range of t after the shift; 0, 1: the whole range */
	int weighting;       /* enum vfm_weighting */
	double snr_gamma;    /* min_snr */
	double text_drop;    /* probability that a sample's text is dropped (classifier-free guidance) */
	double image_cond;   /* flow: probability that the first latent frames of a video are given (image to video) */
	int64_t given_max;   /* their number is uniform in 1 ... given_max; a video keeps at least one that is not */
	double image_drop;   /* probability that a sample's image condition is dropped */
	double guidance;     /* the scale that a distilled network reads in training (model.guidance_dim) */
	/* of the architecture (spec/model/arch.h): the factor of the time input, and the time of given frames */
	double time_scale, given_time;
};

struct vfm_draw {
	double noise;    /* sigma or t */
	float t_cond;    /* time input of the network, multiplied by time_scale */
	float coef[4];   /* input = coef[0] x0 + coef[1] n, target = coef[2] x0 + coef[3] n */
	double weight;   /* of the squared error of the output */
	bool drop_text;  /* replace the text by the null text */
	bool drop_image; /* replace condition and image rows by zeros; no frame is given */
	int32_t given;   /* latent frames that are given, if the sample has more and keeps its image */
};

void vfm_diffusion_defaults(struct vfm_diffusion *d);
/* Sets time_scale and given_time to those of the model's architecture. */
void vfm_diffusion_follow(struct vfm_diffusion *d, const struct vfm_model_spec *m);
/* VFM_EUSAGE: a setting has no effect with the others, such as cosmap with edm, or almost no t falls into the range. */
int vfm_diffusion_check(const struct vfm_diffusion *d, struct vfm_err *err);
/* Returns whether the loss is weighted, so that its unweighted mean is recorded, too.  False with given frames, since
 * only the weights mark tokens without loss. */
bool vfm_diffusion_has_mse(const struct vfm_diffusion *d);
/* Returns the shift a of a sample of n = `tokens` tokens: shift, or shift sqrt(n / shift_tokens) (Esser et al., eq.
 * 23). */
double vfm_diffusion_shift(const struct vfm_diffusion *d, int64_t tokens);
/* Returns the draw of a sample of `tokens` tokens in a step.  Depends only on (seed, step, id) and, with shift_tokens,
 * on tokens. */
struct vfm_draw vfm_diffusion_draw(
	const struct vfm_diffusion *d, uint64_t seed, uint64_t step, uint64_t id, int64_t tokens);
/* Returns sigma or t at the quantile 0 < u < 1 of its distribution over draws of `tokens` tokens, in ascending order of
 * noise. */
double vfm_diffusion_quantile(const struct vfm_diffusion *d, double u, int64_t tokens);
/* Returns the draw of a given latent frame: clean, at its own time, with target 0 and weight 0. */
struct vfm_draw vfm_diffusion_given(const struct vfm_diffusion *d);
/* Returns the draw for a given sigma or t, for sampling and tests. */
struct vfm_draw vfm_diffusion_at(const struct vfm_diffusion *d, double noise);

/* Sets the coefficients of the denoised sample x0 = a x + b F, where F is the network's output. */
void vfm_diffusion_denoise(const struct vfm_diffusion *d, double noise, double *a, double *b);
/* Returns the factor of the network's input (1 for flow). */
double vfm_diffusion_c_in(const struct vfm_diffusion *d, double noise);

#endif
