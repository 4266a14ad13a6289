/* condition.c - encodes the given pictures on grey frames, and prepends the mask channels. */
#include "encoder/vae/condition.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* Returns whether the picture of mask channel j in latent frame i is given. */
static bool is_given_frame(const struct vfm_geometry *g, int64_t i, int64_t j, int given, int64_t frames)
{
	int64_t first = g->first < g->stride[0] ? g->first : g->stride[0],
		k = i       ? first + (i - 1) * g->stride[0] + j
		: j < first ? j
			    : first - 1;

	return k == 0 || (given > 1 && k == frames - 1);
}

struct mask {
	const struct vfm_geometry *g;
	int given;
	int64_t frames, t;
	size_t area;
};

/* Writes elements of `size` bytes: `one`, little endian, where a picture is given, else 0. */
static void fill_mask(const struct mask *m, uint32_t one, size_t size, char *mask)
{
	const uint32_t zero = 0;

	for (int64_t j = 0; j < m->g->stride[0]; j++)
		for (int64_t i = 0; i < m->t; i++) {
			const uint32_t *x = is_given_frame(m->g, i, j, m->given, m->frames) ? &one : &zero;

			for (size_t k = 0; k < m->area; k++, mask += size)
				memcpy(mask, x, size);
		}
}

/* The bits of 1 in a dtype. */
static uint32_t one_of(enum vfm_npy_type type)
{
	return type == VFM_NPY_F16 ? 0x3c00 : type == VFM_NPY_BF16 ? 0x3f80 : 0x3f800000;
}

void vfm_condition_mask(const struct vfm_geometry *g, int given, int64_t frames, int64_t t, size_t area, float *mask)
{
	fill_mask(&(struct mask){g, given, frames, t, area}, one_of(VFM_NPY_F32), sizeof(float), (char *)mask);
}

/* All latent frames without a given picture are the same. */
int vfm_condition_encode(
	const struct vfm_wavelet *t, const struct vfm_pictures *p, int64_t frames, float *latent, struct vfm_err *err)
{
	const size_t size = (size_t)p->height * (size_t)p->width * 3,
		     cells = (size_t)(p->height / VFM_WAVELET_SPACE) * (size_t)(p->width / VFM_WAVELET_SPACE) *
		(size_t)t->channels;
	const int64_t group = VFM_WAVELET_TIME, n = (frames + group - 1) / group;
	uint8_t *rgb = vfm_big_alloc(size * VFM_WAVELET_TIME, "the pictures", err);
	int rc = 0;

	if (!rgb)
		return VFM_EENV;
	for (int64_t i = 0; i < n && rc >= 0; i++) {
		const bool last = p->n > 1 && i == n - 1;
		const int64_t here = frames - i * group < group ? frames - i * group : group;

		if (i >= 2 && !last) {
			memcpy(latent + (size_t)i * cells, latent + cells, cells * sizeof(float));
			continue;
		}
		memset(rgb, VFM_CONDITION_GREY, size * VFM_WAVELET_TIME);
		if (i == 0)
			memcpy(rgb, p->rgb, size);
		if (last)
			memcpy(rgb + (size_t)(here - 1) * size, p->rgb + size, size);
		rc = vfm_wavelet_encode(t, rgb, (int)here, p->height, p->width, latent + (size_t)i * cells, err);
	}
	vfm_big_free(rgb, size * VFM_WAVELET_TIME);
	return rc;
}

int vfm_condition_save(const char *path, const struct vfm_geometry *g, int given, int64_t frames,
	const struct vfm_npy *latent, const void *data, struct vfm_npy *n, char sha256[VFM_SHA256_HEX],
	struct vfm_err *err)
{
	const size_t size = vfm_npy_type_size(latent->type), area = (size_t)(latent->shape[2] * latent->shape[3]);
	const int64_t mask = g->stride[0], t = latent->shape[1];
	char *all;
	int rc;

	*n = *latent;
	n->shape[0] += mask;
	n->data_bytes = (size_t)n->shape[0] * (size_t)t * area * size;
	if (n->shape[0] > UINT16_MAX)
		return vfm_fail(err, VFM_EINPUT, "a condition of %lld channels", (long long)n->shape[0]);
	all = vfm_big_alloc(n->data_bytes, "a condition", err);
	if (!all)
		return VFM_EENV;
	fill_mask(&(struct mask){g, given, frames, t, area}, one_of(latent->type), size, all);
	memcpy(all + (size_t)(mask * t) * area * size, data, (size_t)latent->shape[0] * (size_t)t * area * size);
	rc = vfm_npy_save(path, n, all, sha256, err);
	vfm_big_free(all, n->data_bytes);
	return rc;
}
