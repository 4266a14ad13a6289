/* encoder_impl.h - the three kinds of encoders: builtin.c, native.c, child.c. */
#ifndef VFM_ENCODER_ENCODE_ENCODER_IMPL_H
#define VFM_ENCODER_ENCODE_ENCODER_IMPL_H

#include "encoder/encode/encoder.h"

struct vfm_native; /* the thread of a set's native encoders */

/* Opens a built-in encoder: "wavelet:16" or "bytes:1024". */
int vfm_builtin_open_video(struct vfm_encoder_handle *h, const char *spec, bool f32, struct vfm_err *err);
int vfm_builtin_open_text(struct vfm_encoder_handle *h, const char *spec, bool f32, struct vfm_err *err);

/* Starts children of a command for the op; ops->wait waits for them.  may_be_null: a text may have no rows. */
int vfm_child_start(struct vfm_encoder_handle *h, const struct vfm_encoder_opts *o, const char *command,
	enum vfm_exec_op op, bool may_be_null, struct vfm_err *err);

/* Starts the thread of the native encoders and waits until it has opened the device and the models. */
int vfm_native_open(struct vfm_encoder_set *s, const struct vfm_encoder_opts *o, struct vfm_err *err);

/* ---- a clip of the native autoencoder, picture by picture ---- */

const struct vfm_geometry *vfm_native_geometry(const struct vfm_native *e);
/* Returns whether vfm_native_push must get all pictures of a clip at once. */
bool vfm_native_takes_whole(const struct vfm_native *e);
/* Begins to encode a clip; blocks while another clip is in progress. */
int vfm_native_begin(struct vfm_native *e, int height, int width, struct vfm_err *err);
/* Encodes the next n pictures, rgb [n, height, width, 3]: n is first + k step in the first call, then k step.  Appends
 * normalized latent frames to latent [., C, h, w] and returns their number, which follows from the geometry. */
int64_t vfm_native_push(struct vfm_native *e, const uint8_t *rgb, int64_t n, float *latent, struct vfm_err *err);
/* Ends the clip, complete or not.  Must follow a successful begin. */
void vfm_native_end(struct vfm_native *e);

/* Encodes the pictures of a clip that fill groups, in the memory of a few groups.  *latent [t, C, h, w] is from malloc;
 * the caller frees it, even after a failure.  VFM_EINPUT: the clip is damaged or too long. */
int vfm_native_encode_window(
	struct vfm_native *e, const struct vfm_encode_clip *c, float **latent, struct vfm_err *err);

/* ---- arrays ---- */

/* Passes pictures rgb [n, size] on. */
int vfm_pass_pictures(
	const struct vfm_picture_sink *to, const uint8_t *rgb, int64_t n, size_t size, struct vfm_err *err);

#define VFM_ENCODED_MAX ((size_t)1 << 30) /* float32 bytes of the latents of a clip */

/* Allocates *x [T, C, h, w], of *bytes, for the latents of given pictures; the caller frees it with vfm_big_free. */
int vfm_encoded_alloc_frames(
	float **x, size_t *bytes, const struct vfm_geometry *g, const struct vfm_encode_given *e, struct vfm_err *err);
/* Sets *out to latents from an encoder in this process: latent [t, C, h, w] of `frames` pictures of this size. */
int vfm_encoded_set_latents(struct vfm_encoded *out, const float *latent, const struct vfm_geometry *g, int64_t frames,
	int height, int width, bool f32, struct vfm_err *err);
/* As vfm_encoded_set_latents for the latent frames of the clip c that fill patches; sets c->frames.  VFM_EINPUT: the
 * clip is too short. */
int vfm_encoded_set_clip(struct vfm_encoded *out, struct vfm_encode_clip *c, const float *latent,
	const struct vfm_geometry *g, bool f32, struct vfm_err *err);
/* Sets *out to rows [n, dim], given as float32, in the dtype `type`. */
int vfm_encoded_set_rows(struct vfm_encoded *out, const float *rows, int64_t n, int64_t dim, enum vfm_npy_type type,
	struct vfm_err *err);
/* Converts the elements to float32. */
int vfm_encoded_widen(struct vfm_encoded *x, struct vfm_err *err);
/* [a, b, area] -> [b, a, area]: latents [T, C, h, w] to [C, T, h, w], or back. */
void vfm_swap_planes(const float *x, size_t a, size_t b, size_t area, float *out);

#endif
