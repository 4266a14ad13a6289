/* clip_compare.h - compares two hashes of clips (clip_hash.h). */
#ifndef VFM_MEDIA_MATCH_CLIP_COMPARE_H
#define VFM_MEDIA_MATCH_CLIP_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "media/match/clip_hash.h"

struct vfm_clip_signs { /* of a slot, in 12 bytes: bits 0 to 31 of sign and strong, and bits 32 to 47 of both */
	uint32_t sign, strong, high;
};

struct vfm_clip_rows { /* a hash prepared for comparisons; plain data */
	int slots;
	uint64_t sign[VFM_CLIP_HASH_SLOTS], strong[VFM_CLIP_HASH_SLOTS]; /* one bit per coefficient; flat: strong 0 */
	float x[VFM_CLIP_HASH_SLOTS][VFM_CLIP_HASH_COEFS];
	bool has_view; /* for an image with detail */
	struct vfm_image_view view;
	struct vfm_clip_changes changes;
	bool has_detail; /* for a clip */
	struct vfm_image_detail detail;
};

void vfm_clip_rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h);
/* vfm_clip_rows_of in two steps, if vfm_clip_signs_of has made `signs` [slots] from these rows.  The first step leaves
 * x, the view and the changes unchanged; the second sets them. */
void vfm_clip_rows_signs(struct vfm_clip_rows *r, const struct vfm_clip_signs *signs, int slots);
void vfm_clip_rows_fill(struct vfm_clip_rows *r, const struct vfm_clip_hash *h);
/* Sets *half to the rows half a slot later: one fewer, none for a single slot. */
void vfm_clip_half_of(struct vfm_clip_rows *half, const struct vfm_clip_rows *r);

struct vfm_clip_match {
	double distance;
	double offset_s; /* b begins this much later than a; negative: earlier */
	bool mirrored;
};

/* Compares as clip_hash.h describes; `half` is made from b.  Finds only distances below `most`; otherwise m->distance
 * is most. */
void vfm_clip_compare(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, const struct vfm_clip_rows *half,
	double most, struct vfm_clip_match *m);

static inline struct vfm_clip_signs vfm_clip_signs_of(const struct vfm_clip_rows *r, int k)
{
	return (struct vfm_clip_signs){
		(uint32_t)r->sign[k], (uint32_t)r->strong[k], (uint32_t)(r->sign[k] >> 32 | r->strong[k] >> 32 << 16)};
}

static inline uint64_t vfm_clip_sign_of(const struct vfm_clip_signs *s)
{
	return s->sign | (uint64_t)(s->high & 0xffff) << 32;
}

static inline uint64_t vfm_clip_strong_of(const struct vfm_clip_signs *s)
{
	return s->strong | (uint64_t)(s->high >> 16) << 32;
}

#endif
