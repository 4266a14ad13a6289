/* outside.h - the requests to outside models (exec.h, vfm-exec(7)) and the checks of their answers.
 *
 * All functions belong to the thread of their slot and block until a child has answered.  Arrays point into the slot
 * and are valid until its next request.  Each array is checked: its shape against the geometry or the hello, its dtype,
 * and its elements for NaN, infinities and the range of the hello.  VFM_EINPUT: the record failed.
 */
#ifndef VFM_ENCODER_EXEC_OUTSIDE_H
#define VFM_ENCODER_EXEC_OUTSIDE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/clip_reader.h"
#include "data/record/encoder_id.h"
#include "encoder/exec/exec.h"
#include "io/npy.h"

/* Returns the identity that a hello describes. */
struct vfm_encoder_id vfm_outside_id(const struct vfm_hello *h);
/* As vfm_outside_id with the sizes of the op's results: rows of texts, image rows of `pictures` pictures of a video, or
 * latents. */
struct vfm_encoder_id vfm_outside_encoder_id(const struct vfm_hello *h, enum vfm_exec_op op, int pictures);

enum { VFM_OUTSIDE_ROWS_OR_NULL = -1 };

struct vfm_outside_frames { /* in the slot's input file */
	int64_t shape[4];   /* [frames, height, width, 3], uint8 */
	double fps;         /* 0: unknown, or an image */
};

/* Reads all pictures of r into the slot's input.  With a geometry, drops the last ones so that patch_t divides the
 * latent frames.  VFM_EINPUT: there are too few pictures, or they exceed 16 GiB. */
int vfm_outside_read(struct vfm_exec_slot *s, struct vfm_clip_reader *r, const struct vfm_geometry *g, int32_t patch_t,
	struct vfm_outside_frames *f, struct vfm_err *err);

/* Sends a request of an op of VFM_EXEC_ARRAY_OPS and reads the array of the answer.  Takes ownership of the reference
 * of `request`.  want: the dimensions, 0: any; one for a vector, two for rows, four for latents and frames.  If
 * want[0] is VFM_OUTSIDE_ROWS_OR_NULL, the answer may be null instead of rows: *npy then has 0 rows. */
int vfm_outside_ask(struct vfm_exec_slot *s, enum vfm_exec_op op, json_t *request, const int64_t *want,
	struct vfm_npy *npy, const void **data, struct vfm_err *err);

/* Encodes the frames of the slot; id is that of the record.  given 1: all frames but the first are grey (the hello has
 * VFM_EXEC_ENCODE_GIVEN); 2: all but the first and the last (VFM_EXEC_ENCODE_GIVEN_LAST).  Sets *npy and *data to
 * latents [C, T, h, w] as float16, bfloat16 or float32. */
int vfm_outside_encode(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, int given, struct vfm_npy *npy, const void **data, struct vfm_err *err);

/* Decodes latents [C, T, h, w] (dims: T, h, w) to *rgb [frames, height, width, 3], with the frames of the geometry. */
int vfm_outside_decode(struct vfm_exec_slot *s, const struct vfm_hello *h, const float *latent, const int32_t dims[3],
	int64_t frames, const uint8_t **rgb, struct vfm_err *err);

/* Encodes a text.  Sets *npy and *data to rows [R, dim]; R is text_rows of the hello if that is set, else at most
 * text_max_rows.  may_be_null: for a second text, whose R may be 0. */
int vfm_outside_text(struct vfm_exec_slot *s, const struct vfm_hello *h, const char *text, bool may_be_null,
	struct vfm_npy *npy, const void **data, struct vfm_err *err);

/* Encodes the pictures in the slot's input to image rows, picture by picture.  Sets *npy and *data to rows [pictures *
 * image_rows, image_dim], as in the hello. */
int vfm_outside_image(struct vfm_exec_slot *s, const struct vfm_hello *h, const struct vfm_outside_frames *f,
	const char *id, struct vfm_npy *npy, const void **data, struct vfm_err *err);

/* Requests the probabilities for the window of frames in the slot's input, [shots.frames, shots.height, shots.width, 3]
 * of the hello.  Sets p [shots.frames] to the probability that a shot ends with the frame, or that the frame belongs to
 * a transition. */
int vfm_outside_shots(
	struct vfm_exec_slot *s, const struct vfm_hello *h, const char *id, float *p, struct vfm_err *err);

/* The input of a captioner, scorer or embedder: a window of the record, as frames or as a path, according to the hello.
 * frames 0: to the end. */
struct vfm_outside_view {
	struct vfm_exec_input input;
	int64_t start_frame, frames;
	double timeout_s;
	int threads;
};

/* Returns a request with "record" and "frames" or "clip", to which the caller adds its keys; NULL on failure. */
json_t *vfm_outside_show(
	struct vfm_exec_slot *s, const struct vfm_outside_view *v, const json_t *rec, struct vfm_err *err);

#endif
