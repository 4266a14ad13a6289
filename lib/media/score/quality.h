/* quality.h - differences between a picture and its original: squared error, PSNR and structural similarity.
 *
 * All functions are local.  Their results depend neither on the number of threads nor on the CPU.
 */
#ifndef VFM_MEDIA_SCORE_QUALITY_H
#define VFM_MEDIA_SCORE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Returns the sum of (a - b)^2 over n bytes. */
uint64_t vfm_squared_error(const uint8_t *a, const uint8_t *b, size_t n);

/* Returns the peak signal-to-noise ratio in dB, 10 log10(255^2 / mse), of a mean squared error of 8-bit values;
 * infinite for 0. */
double vfm_psnr(double mse);

/* The structural similarity of the luma of two pictures (Wang, Bovik, Sheikh, Simoncelli, "Image Quality Assessment:
 * From Error Visibility to Structural Similarity", IEEE Trans.  Image Processing 13(4), 2004, eq. 13),
 *
 *	SSIM = (2 ma mb + C1) (2 sab + C2) / ((ma^2 + mb^2 + C1) (saa + sbb + C2)),
 *
 * averaged over all positions of the window within the picture.  The means m, variances and covariance s are those of a
 * Gaussian window of 11 x 11 pixels, sigma 1.5, whose weights sum to 1 (no division by n - 1); C1 = (0.01 * 255)^2, C2
 * = (0.03 * 255)^2.  The pictures are not downscaled first.  The luma is 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), in
 * [0, 255], not rounded. */
enum { VFM_SSIM_WINDOW = 11 };

struct vfm_ssim; /* memory for pictures of one size; one thread at a time */
/* VFM_EINPUT: the pictures are smaller than the window. */
int vfm_ssim_new(struct vfm_ssim **s, int width, int height, struct vfm_err *err);
void vfm_ssim_free(struct vfm_ssim *s); /* no-op for NULL */
/* Compares a, b [height, width, 3].  Runs on the compute threads. */
double vfm_ssim_rgb(struct vfm_ssim *s, const uint8_t *a, const uint8_t *b);

#endif
