/* clip_hash.h - perceptual hashes of clips and images, which copies of a clip share after coding, scaling, bars,
 * cropping of a few percent, changes of light, mirroring, and cutting.
 *
 * The hash describes luma, stretched to 32 x 32 after black bars are cut off, by the VFM_CLIP_HASH_COEFS lowest DCT-II
 * coefficients without the mean (ordered by u^2 + v^2, as in pHash: Zauner, "Implementation and Benchmarking of
 * Perceptual Image Hash Functions", 2010).  Slot k is the mean of the frames of one second around (k + 1/2) / 2 s; so
 * neighbouring slots overlap, and a shift of the time grid changes them little.  A slot is the mean of the clip plus
 * a difference, which is quantized for itself: what moves before a fixed camera is small beside the picture.
 * A slot without contrast is flat: it has no direction, and resembles no slot that is not flat.  A hash covers the
 * first VFM_CLIP_HASH_SLOTS / 2 seconds.  An image has one slot.
 *
 * Two hashes are compared at each shift in time (in steps of a quarter second), upright and mirrored, by two numbers:
 *
 * The agreement is the mean, over the common slots that are not flat in both clips (half of the common slots at least),
 * of the share of equal signs minus that of unequal ones, among the coefficients that are not small in either.
 *
 * The correlation is that of the differences from the means of the n common slots: of motion.  1 - correlation is
 * multiplied by n / (n - 1), as few slots correlate by chance.  Where pictures change more than they stay, motion is
 * that from shot to shot, which two edits of one scene share: 1 - correlation is also multiplied by 3 s, within 1 and
 * 2, with s the share of motion in the energy.  It is undefined if both clips are still, or if, scaled to one contrast,
 * their pictures differ by less than 1.25 levels of luma; and 0 if, relative to its contrast, one of them moves 1.6
 * times as much as the other or more.
 *
 * The distance is 1 - min(agreement, correlation), the least of all shifts whose common part has two slots and 70 % of
 * the shorter clip.  One slot, as of an image, is compared with at most two.  It has few signs, which agree by chance
 * in large sets; so the correlation of one common slot is that of the coefficients, 1 - correlation multiplied by 1.5.
 *
 * Clips that are still almost everywhere have a signature of what changes, too (clip_change.h).  If both have
 * one, its distance at a shift counts where it is larger.
 *
 * Two images with detail are compared by it alone; see image_detail.h.
 *
 * All functions are local and thread-safe.
 */
#ifndef VFM_MEDIA_MATCH_CLIP_HASH_H
#define VFM_MEDIA_MATCH_CLIP_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "media/av/video_in.h"
#include "media/match/clip_change.h"
#include "media/match/image_detail.h"

#define VFM_CLIP_HASH_COEFS 48
#define VFM_CLIP_HASH_SLOTS 128
#define VFM_CLIP_HASH_STEP  0.5 /* seconds from slot to slot */

struct vfm_clip_hash {                                         /* plain data */
	int32_t slots;                                         /* 1 to VFM_CLIP_HASH_SLOTS */
	float scale;                                           /* of the differences */
	int16_t mean[VFM_CLIP_HASH_COEFS];                     /* in 1/4 */
	int8_t diff[VFM_CLIP_HASH_SLOTS][VFM_CLIP_HASH_COEFS]; /* [slots]; a flat slot begins with -128 */
	bool has_detail; /* of an image that is not flat, or of the mean picture of a clip that shows one throughout */
	struct vfm_image_detail detail;
	struct vfm_clip_changes changes; /* of a clip that is still almost everywhere; else without steps */
};

struct vfm_clip_hash_opts {
	struct vfm_video_opts video;
	int64_t start, end; /* frames of the file, end exclusive; -1 = to the end */
	int64_t start_pts;  /* for seeking; INT64_MIN unknown */
};

/* Hashes a clip or an image.  VFM_EINPUT: it has no frame, or ends before `end` (only if the hash reaches so far). */
int vfm_clip_hash_file(
	struct vfm_clip_hash *h, const char *path, const struct vfm_clip_hash_opts *o, struct vfm_err *err);

/* From means of a quarter second each: quarters [n, size, size] in 1/256 of luma 0..255, n >= 1, size at most 256.
 * image: one slot, the mean of all. */
void vfm_clip_hash_of(struct vfm_clip_hash *h, const uint16_t *quarters, int n, int size, bool image);

/* From the coefficients x [slots] of slots, 1 to VFM_CLIP_HASH_SLOTS: without detail and changes. */
void vfm_clip_hash_quantize(struct vfm_clip_hash *h, float x[][VFM_CLIP_HASH_COEFS], int slots);

/* Returns the slots that are not flat. */
int vfm_clip_hash_informative(const struct vfm_clip_hash *h);

/* ---- bytes: little endian, the same on all machines ---- */

#define VFM_CLIP_HASH_HEAD (8 + 2 * VFM_CLIP_HASH_COEFS)
#define VFM_CLIP_HASH_BYTES                                                                                            \
	(VFM_CLIP_HASH_HEAD + VFM_CLIP_HASH_SLOTS * VFM_CLIP_HASH_COEFS + VFM_CHANGE_BYTES_MAX +                       \
		VFM_IMAGE_BYTES) /* at most */

/* Returns the bytes of a hash. */
static inline size_t vfm_clip_hash_size(const struct vfm_clip_hash *h)
{
	return VFM_CLIP_HASH_HEAD + (size_t)h->slots * VFM_CLIP_HASH_COEFS + (h->has_detail ? VFM_IMAGE_BYTES : 0) +
		(h->changes.n ? vfm_clip_changes_size(&h->changes) : 0);
}

/* Writes the hash to out [vfm_clip_hash_size(h)] and returns this size. */
size_t vfm_clip_hash_pack(const struct vfm_clip_hash *h, uint8_t *out);
/* Reads a hash of `len` bytes.  VFM_EINPUT: these bytes are no hash, or one of another version. */
int vfm_clip_hash_unpack(struct vfm_clip_hash *h, const uint8_t *in, size_t len, struct vfm_err *err);

/* Base64 of these bytes (RFC 4648), as records have them; the caller frees it. */
char *vfm_clip_hash_text(const struct vfm_clip_hash *h);
int vfm_clip_hash_parse(struct vfm_clip_hash *h, const char *text, struct vfm_err *err);
/* The same of a text of n bytes. */
int vfm_clip_hash_parse_bytes(struct vfm_clip_hash *h, const char *text, size_t n, struct vfm_err *err);

/* ---- comparison ---- */

struct vfm_clip_signs { /* of a slot, in 12 bytes: bits 0 to 31 of sign and strong, and bits 32 to 47 of both */
	uint32_t sign, strong, high;
};

struct vfm_clip_rows { /* a hash prepared for comparisons; plain data */
	int slots;
	uint64_t sign[VFM_CLIP_HASH_SLOTS],
		strong[VFM_CLIP_HASH_SLOTS]; /* a bit for each coefficient; flat: strong 0 */
	float x[VFM_CLIP_HASH_SLOTS][VFM_CLIP_HASH_COEFS];
	bool has_view; /* of an image with detail */
	struct vfm_image_view view;
	struct vfm_clip_changes changes;
	bool has_detail; /* of a clip */
	struct vfm_image_detail detail;
};

void vfm_clip_rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h);
/* The same in two steps, if vfm_clip_signs_of made `signs` [slots] of these rows before.  The first step leaves x, the
 * view and the changes as they are; the second sets them. */
void vfm_clip_rows_signs(struct vfm_clip_rows *r, const struct vfm_clip_signs *signs, int slots);
void vfm_clip_rows_fill(struct vfm_clip_rows *r, const struct vfm_clip_hash *h);
/* The rows half a slot later, one less; none of a single slot. */
void vfm_clip_half_of(struct vfm_clip_rows *half, const struct vfm_clip_rows *r);

#define VFM_CLIP_HASH_STILL 6.0F /* root of the mean square of differences below which a clip counts as still */

/* Sets the vertical frequency u and the horizontal frequency v of coefficient i. */
void vfm_clip_hash_place(int i, int *u, int *v);
/* Returns u^2 + v^2 of coefficient i. */
int vfm_clip_hash_frequency(int i);

/* Sets out to the coefficients of a part of a picture, 94 % of its width and height: of the nine whose corners or
 * middles are those of the picture, crop 0 is the upper left and crop 8 the lower right.  Frequencies that the hash
 * lacks count as 0. */
#define VFM_CLIP_CROPS 9
void vfm_clip_hash_crop(float out[VFM_CLIP_HASH_COEFS], const float in[VFM_CLIP_HASH_COEFS], int crop);

/* Sets parts [VFM_IMAGE_PARTS] to the coefficients of the parts that an image with detail may have in common with its
 * copies: its boxes after the first (image_detail.h), then its crops as above.  Returns their number. */
#define VFM_IMAGE_PARTS (VFM_IMAGE_BOXES - 1 + VFM_CLIP_CROPS)
int vfm_clip_image_parts(float parts[VFM_IMAGE_PARTS][VFM_CLIP_HASH_COEFS], const struct vfm_clip_rows *r);

/* The coefficients whose sign mirroring changes, those of odd v, as bits. */
#define VFM_CLIP_HASH_ODD UINT64_C(0x7648cea61d45)

struct vfm_clip_match {
	double distance;
	double offset_s; /* b begins so much later than a; negative: earlier */
	int common;      /* slots */
	bool mirrored;
};

/* The comparison above; `half` are those of b.  Finds only distances below `most`: otherwise m->distance is most. */
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

/* A cheap filter before vfm_clip_compare, of up to 64 clips: bit i of the result is set if 1 - agreement of a[i] and b
 * is at most `most` at some shift of whole slots.  Does not read x of the rows. */
#define VFM_CLIP_RESEMBLE_MAX 64
uint64_t vfm_clip_signs_resemble(
	const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most);

#endif
