/* clip_crop.c - coefficients of parts of pictures; see clip_hash.h. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "media/match/clip_compare.h"
#include "media/match/clip_crop.h"
#include "media/match/clip_hash.h"

#define U    8 /* frequencies of a direction */
#define N    VFM_PICTURE_SIDE
#define PART 0.94 /* of the width and the height that a crop keeps */

/* For the crops that begin at 0, at half and at all of the cut-off width: from the frequencies u of the picture to u'
 * of its part. */
static float matrix[3][U][U];
/* The weights of these crops of a picture of N x N. */
static float weights[3][U * N];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static double cosine(int u, double t)
{
	return cos(acos(-1) * u * t) * sqrt((u ? 2.0 : 1.0) / N);
}

/* The picture is the sum of its cosines, which the part samples at from + PART t. */
static void make_matrices(void)
{
	for (int at = 0; at < 3; at++)
		for (int to = 0; to < U; to++)
			for (int u = 0; u < U; u++) {
				double sum = 0;

				for (int i = 0; i < N; i++) {
					double t = (i + 0.5) / N;

					sum += cosine(to, t) * cosine(u, at * 0.5 * (1 - PART) + PART * t);
				}
				matrix[at][to][u] = (float)sum;
			}
	for (int at = 0; at < 3; at++)
		vfm_picture_weights(weights[at], U, N, at * 0.5 * (1 - PART) * N, (at * 0.5 * (1 - PART) + PART) * N);
}

void vfm_clip_hash_crop(float out[VFM_CLIP_HASH_COEFS], const float in[VFM_CLIP_HASH_COEFS], int crop)
{
	const float(*rows)[U], (*cols)[U];
	float c[U][U] = {{0}}, part[U][U] = {{0}};
	int u, v;

	pthread_once(&once, make_matrices);
	rows = matrix[crop / 3];
	cols = matrix[crop % 3];
	for (int i = 0; i < VFM_CLIP_HASH_COEFS; i++) {
		vfm_clip_hash_place(i, &u, &v);
		c[u][v] = in[i];
	}
	for (int to = 0; to < U; to++)
		for (u = 0; u < U; u++)
			for (v = 0; v < U; v++)
				part[to][v] += rows[to][u] * c[u][v];
	for (int i = 0; i < VFM_CLIP_HASH_COEFS; i++) {
		int to_u, to_v;

		vfm_clip_hash_place(i, &to_u, &to_v);
		out[i] = 0;
		for (v = 0; v < U; v++)
			out[i] += part[to_u][v] * cols[to_v][v];
	}
}

int vfm_clip_image_parts(float parts[VFM_IMAGE_PARTS][VFM_CLIP_HASH_COEFS], const struct vfm_clip_rows *r)
{
	const struct vfm_image_view *view = &r->view;
	int n = 0;

	pthread_once(&once, make_matrices);
	for (int i = 1; i < view->n_boxes; i++) {
		const struct vfm_image_box *b = &view->boxes[i];
		float rows[U * N], cols[U * N];

		vfm_picture_weights(rows, U, N, (double)b->top * N, (double)b->bottom * N);
		vfm_picture_weights(cols, U, N, (double)b->left * N, (double)b->right * N);
		vfm_clip_hash_transform(parts[n++], view->fine, N, rows, cols);
	}
	for (int i = 0; i < VFM_CLIP_CROPS; i++)
		vfm_clip_hash_transform(parts[n++], view->fine, N, weights[i / 3], weights[i % 3]);
	return n;
}
