/* weight_code.h - encodes frozen weights as NF4 or int8 on the host; the op decode_weights decodes them (ops.h).
 *
 * Codes and scales are those of bitsandbytes:
 *
 * - NF4: its quantize_4bit(quant_type='nf4', blocksize=64, compress_statistics=True).  A block of 64 elements of a row
 *   has an absmax.  The absmax of all blocks of a matrix, minus their mean, are quantized again: 8 bits in groups of
 *   256, each with an f32 scale.
 * - INT8: its int8_vectorwise_quant(threshold=0.0) of a matrix in f32.  A row has an absmax.
 *
 * bitsandbytes has several implementations.  Where they differ, the codes are those of its PyTorch implementation
 * ("default"), and of its CUDA kernels but for a block whose absmax is below 1e-38.  Two differences remain: offsets
 * differ by the order of an f32 sum, and its CPU kernel of the second level finds other codes for some absmax (1 of 300
 * to 1 of 700 random ones).
 *
 * A weight that is not finite never becomes a number: its row decodes to NaN; for NF4 its block and the other blocks
 * with this scale.  A row of INT8 with a weight beyond 2.6e36 decodes to infinities.
 *
 * All functions are pure and local.  A matrix may be encoded in chunks by several threads. */
#ifndef VFM_DEVICE_OPS_WEIGHT_CODE_H
#define VFM_DEVICE_OPS_WEIGHT_CODE_H

#include <stdint.h>

/* The values of the codes 0 .. 15 (arXiv 2305.14314, appendix E), ascending; code 7 is 0. */
extern const float vfm_nf4_values[16];

/* v[code] = the value of an absmax code: the signed map of "dynamic quantization" (dynamic8.h) in f32 as bitsandbytes
 * computes it, with rounding differences of up to 1 ulp to dynamic8.h.  Ascending; v[127] is 0, v[255] is 1. */
void vfm_nf4_absmax_values(float v[256]);

/* absmax [n / 64] = max |x| of each block of x [n]; NaN if the block has NaN.  n is a multiple of 64. */
void vfm_nf4_absmax(const float *x, int64_t n, float *absmax);
/* code [n / 2] = the nearest NF4 values of x / absmax, two codes a byte, the first in the upper 4 bits.  All codes of a
 * block are those of 0 if its absmax is 0 or not finite. */
void vfm_nf4_encode(const float *x, int64_t n, const float *absmax, uint8_t *code);

/* Returns the mean of the finite elements of absmax [n], which are those of a whole matrix; 0 if there are none.  The
 * sum is accumulated in f64. */
float vfm_nf4_offset(const float *absmax, int64_t n);
/* Quantizes absmax [n] - offset: code [n], scale [ceil(n / 256)].  absmax[0] is the first of a group.  A group with an
 * absmax that is not finite has the scale NaN. */
void vfm_nf4_encode_absmax(const float *absmax, int64_t n, float offset, uint8_t *code, float *scale);

/* Returns max |x| of a row; NaN if it has NaN. */
float vfm_int8_absmax(const float *x, int64_t n);
/* code [n] = x * (127 / absmax), rounded to nearest even; zeros if absmax is 0 or not finite. */
void vfm_int8_encode(const float *x, int64_t n, float absmax, int8_t *code);

#endif
