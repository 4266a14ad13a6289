/* diffusion.h - noise, network input and training target of a sample.
 *
 * edm   (Karras et al. 2022, "Elucidating the Design Space", table 1): ln sigma ~ N(p_mean, p_std^2),
 *       x = x0 + sigma n, the network input is c_in x and c_noise = ln(sigma)/4.  The loss of
 *       D(x) = c_skip x + c_out F against x0 has the weight (sigma^2 + sd^2)/(sigma sd)^2, which equals
 *       |F - (x0 - c_skip x)/c_out|^2 with weight 1.
 * flow  (Lipman et al. 2023; logit-normal time and shift: Esser et al. 2024): u ~ N(t_mean, t_std^2), t = sigmoid(u),
 *       t <- shift t / (1 + (shift - 1) t), x = (1 - t) x0 + t n, the network input is x and t, the target n - x0.
 *
 * t_min and t_max restrict t after the shift.  The draw of u is then the inverse of its distribution function at a
 * uniform number between the values of that function at the two ends: no draw is rejected.
 *
 * Input and target are linear in (x0, n); a draw is a row of four coefficients (struct vfm_diffuse of ops.h).
 */
#ifndef VFM_MODEL_DIFFUSION_H
#define VFM_MODEL_DIFFUSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_diffusion_kind { VFM_EDM, VFM_FLOW };
#define VFM_TIME_SCALE 1000.0 /* factor of the network's time input before its embedding */

struct vfm_diffusion {
	int kind; /* enum vfm_diffusion_kind */
	double p_mean, p_std, sigma_data;
	double t_mean, t_std, shift;
	double t_min, t_max; /* flow: the range of t after the shift; 0, 1: all */
	double text_drop;    /* probability that a sample's text is dropped (classifier-free guidance) */
	double image_cond;   /* flow: probability that the first latent frame of a video is given (image to video) */
};

struct vfm_draw {
	double noise;  /* sigma or t */
	float t_cond;  /* time input of the network, multiplied by VFM_TIME_SCALE */
	float coef[4]; /* input = coef[0] x0 + coef[1] n, target = coef[2] x0 + coef[3] n */
	bool drop;     /* replace the text by the null text */
	bool given;    /* give the first latent frame, if the sample has more than one */
};

void vfm_diffusion_defaults(struct vfm_diffusion *d);
/* VFM_EUSAGE: a key of flow with edm, or a range of t in which almost no t falls. */
int vfm_diffusion_check(const struct vfm_diffusion *d, struct vfm_err *err);
/* Returns the draw of a sample in a step; depends on (seed, step, id) only. */
struct vfm_draw vfm_diffusion_draw(const struct vfm_diffusion *d, uint64_t seed, uint64_t step, uint64_t id);
/* Returns the draw of a given latent frame: clean, at time 0, with target 0, which has no weight. */
struct vfm_draw vfm_diffusion_given(void);
/* Returns the draw for a given sigma or t, for sampling and tests. */
struct vfm_draw vfm_diffusion_at(const struct vfm_diffusion *d, double noise);

/* Sets the coefficients of the denoised sample x0 = a x + b F, where F is the network's output. */
void vfm_diffusion_denoise(const struct vfm_diffusion *d, double noise, double *a, double *b);
/* Returns the factor of the network's input (1 for flow). */
double vfm_diffusion_c_in(const struct vfm_diffusion *d, double noise);

#endif
