/* clip_hash.h - perceptual hashes of clips and images.  Copies of a clip share them after coding, scaling, bars,
 * cropping of a few percent, changes of light, mirroring, and cutting.
 *
 * man/vfm-dedup.5 defines the hash and the distance of two.  The coefficients are ordered by u^2 + v^2, as in pHash
 * (Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010).  Neighbouring slots overlap, so
 * that a shift of the time grid changes them little.  A slot is the mean of the clip plus a difference, which is
 * quantized separately, because moving objects in front of a fixed camera are small compared with the picture.
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
	/* for an image that is not flat, or for the mean picture of a clip that shows one throughout */
	bool has_detail;
	struct vfm_image_detail detail;
	struct vfm_clip_changes changes; /* for a clip that is still almost everywhere; else without steps */
};

struct vfm_clip_hash_opts {
	struct vfm_video_opts video;
	int64_t start, end; /* frames of the file, end exclusive; -1: to the end */
	int64_t start_pts;  /* for seeking; INT64_MIN: unknown */
};

/* Hashes a clip or an image.  VFM_EINPUT: it has no frame, or ends before `end` (only if the hash reaches that far). */
int vfm_clip_hash_file(
	struct vfm_clip_hash *h, const char *path, const struct vfm_clip_hash_opts *o, struct vfm_err *err);

/* Hashes a clip whose frames the caller decodes. */
struct vfm_clip_hasher;
struct vfm_clip_hasher *vfm_clip_hasher_new(void);
void vfm_clip_hasher_free(struct vfm_clip_hasher *s); /* no-op for NULL */
/* Adds the next frame of the clip: the last one that `v` decoded, described by `f`. */
int vfm_clip_hasher_push(
	struct vfm_clip_hasher *s, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err);
/* Call once, after the last frame.  VFM_EINPUT: there was none. */
int vfm_clip_hasher_finish(struct vfm_clip_hasher *s, bool image, struct vfm_clip_hash *h, struct vfm_err *err);

/* Computes the hash from means over quarters of a second: quarters [n, size, size] in 1/256 of luma 0..255, n >= 1,
 * size at most 256.  image: one slot, the mean of all quarters. */
void vfm_clip_hash_of(struct vfm_clip_hash *h, const uint16_t *quarters, int n, int size, bool image);

/* Computes the hash from the coefficients x [slots], 1 to VFM_CLIP_HASH_SLOTS, without detail and changes. */
void vfm_clip_hash_quantize(struct vfm_clip_hash *h, float x[][VFM_CLIP_HASH_COEFS], int slots);

/* Returns the number of slots that are not flat. */
int vfm_clip_hash_informative(const struct vfm_clip_hash *h);

/* ---- bytes: little endian, the same on all machines ---- */

#define VFM_CLIP_HASH_HEAD (8 + 2 * VFM_CLIP_HASH_COEFS)
#define VFM_CLIP_HASH_BYTES                                                                                            \
	(VFM_CLIP_HASH_HEAD + VFM_CLIP_HASH_SLOTS * VFM_CLIP_HASH_COEFS + VFM_CHANGE_BYTES_MAX +                       \
		VFM_IMAGE_BYTES) /* at most */

/* Returns the size of a hash in bytes. */
static inline size_t vfm_clip_hash_size(const struct vfm_clip_hash *h)
{
	return VFM_CLIP_HASH_HEAD + (size_t)h->slots * VFM_CLIP_HASH_COEFS + (h->has_detail ? VFM_IMAGE_BYTES : 0) +
		(h->changes.n ? vfm_clip_changes_size(&h->changes) : 0);
}

/* Writes the hash to out [vfm_clip_hash_size(h)] and returns this size. */
size_t vfm_clip_hash_pack(const struct vfm_clip_hash *h, uint8_t *out);
/* Reads a hash of `len` bytes.  VFM_EINPUT: the bytes are not a hash, or one of another version. */
int vfm_clip_hash_unpack(struct vfm_clip_hash *h, const uint8_t *in, size_t len, struct vfm_err *err);

/* Returns the Base64 of these bytes (RFC 4648), as in records; the caller frees it. */
char *vfm_clip_hash_text(const struct vfm_clip_hash *h);
int vfm_clip_hash_parse(struct vfm_clip_hash *h, const char *text, struct vfm_err *err);
/* As vfm_clip_hash_parse for a string of n bytes. */
int vfm_clip_hash_parse_bytes(struct vfm_clip_hash *h, const char *text, size_t n, struct vfm_err *err);

/* ---- coefficients ---- */

#define VFM_CLIP_HASH_STILL 6.0F /* root mean square of differences below which a clip counts as still */

/* Sets the vertical frequency u and the horizontal frequency v of coefficient i. */
void vfm_clip_hash_place(int i, int *u, int *v);
/* Sets the coefficients of a picture [size, size] by the weights of its rows and columns [8, size] (picture_dct.h). */
void vfm_clip_hash_transform(
	float x[VFM_CLIP_HASH_COEFS], const float *picture, int size, const float *rows, const float *cols);

/* Bit set of the coefficients whose sign mirroring changes: those with odd v. */
#define VFM_CLIP_HASH_ODD UINT64_C(0x7648cea61d45)

#endif
