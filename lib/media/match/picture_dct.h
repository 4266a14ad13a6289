/* picture_dct.h - the low coefficients of the orthonormal DCT-II of pictures that are stretched to 32 x 32.
 * Thread-safe. */
#ifndef VFM_MEDIA_MATCH_PICTURE_DCT_H
#define VFM_MEDIA_MATCH_PICTURE_DCT_H

#define VFM_PICTURE_SIDE 32  /* of the transformed picture */
#define VFM_PICTURE_MAX  256 /* maximum pixels per side before stretching */

/* Sets w [n, from] to the weights that turn `from` pixels into the first n coefficients.  Only pixels [a, b) count: the
 * weights take the means of VFM_PICTURE_SIDE equal parts, and the DCT of these means.  a and b may lie within pixels,
 * and outside the picture, which is black there. */
void vfm_picture_weights(float *w, int n, int from, double a, double b);

/* Sets c [n, n] to the coefficients, by vertical and horizontal frequency, of a picture [size, size], using the weights
 * of its rows and columns [n, size].  n is at most VFM_PICTURE_SIDE. */
void vfm_picture_transform(float *c, int n, const float *picture, int size, const float *rows, const float *cols);

#endif
