/* geometry.h - the geometry of a video tokenizer: the pixels and frames of a latent, and the numbers of frames that it
 * encodes.
 *
 * A tokenizer encodes F frames of height x width pixels as latents [channels, T, height / stride_h, width / stride_w],
 * where F = first + k * step (k = 0, 1, ...), at most max_frames, and T = 1 + (F - first) / stride_t.
 *
 *     stride t,h,w   first  step
 *     4 8 8          1      4      causal: the first latent frame is one picture (1 + 4n frames, 1 + n latent frames)
 *     8 32 32        1      8      causal, with 8 frames per latent frame
 *     4 8 8          4      4      not causal: 4n frames, n latent frames; no still images
 *     1 8 8          1      0      still images only
 *
 * With `pad` the tokenizer accepts every number of frames: it repeats the last picture up to the next valid number.
 * The caller keeps the true number.
 */
#ifndef VFM_SPEC_MODEL_GEOMETRY_H
#define VFM_SPEC_MODEL_GEOMETRY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_GEOMETRY_STRIDE_MAX   256
#define VFM_GEOMETRY_CHANNELS_MAX 4096
#define VFM_GEOMETRY_FRAMES_MAX   (1 << 24) /* of first, step and max_frames */
#define VFM_GEOMETRY_TEXT         160       /* bytes of a buffer for a description */

struct vfm_geometry {       /* plain data; `= {0}`: unknown */
	int32_t stride[3];  /* t, h, w; each >= 1 */
	int32_t channels;   /* >= 1; 0 if the geometry is unknown */
	int32_t first;      /* the smallest number of frames, >= 1 */
	int32_t step;       /* a multiple of stride[0]; 0: `first` is the only number */
	int32_t max_frames; /* >= first; 0: no maximum.  From JSON: the largest count first + k * step up to it */
	bool pad;
	char scaling[32]; /* how latents get mean 0 and deviation 1: a short name; "" if not stated */
};

bool vfm_geometry_is_known(const struct vfm_geometry *g);
bool vfm_geometry_equal(const struct vfm_geometry *a, const struct vfm_geometry *b);

/* Returns the largest valid number of frames up to `frames`; 0 if there is none. */
int64_t vfm_geometry_fit(const struct vfm_geometry *g, int64_t frames);
/* The same, with latent frames that are a multiple of patch_t. */
int64_t vfm_geometry_fit_patch(const struct vfm_geometry *g, int64_t frames, int32_t patch_t);
/* Returns the latent frames of `frames` frames; 0 if the tokenizer does not accept this number. */
int64_t vfm_geometry_latent_frames(const struct vfm_geometry *g, int64_t frames);
/* Returns the frames that a decoder makes from latent_frames >= 1 latent frames, including padding. */
int64_t vfm_geometry_pictures(const struct vfm_geometry *g, int64_t latent_frames);
/* Sets multiple [2]: the height and width of pictures must be multiples of these, so that patches [t, h, w] of latent
 * cells fit. */
void vfm_geometry_multiple(const struct vfm_geometry *g, const int32_t patch[3], int32_t multiple[2]);
/* Sets dims [3] to the latent's T, h, w.  VFM_EUSAGE says which size does not fit and which would. */
int vfm_geometry_latent(const struct vfm_geometry *g, int64_t frames, int64_t height, int64_t width, int32_t dims[3],
	struct vfm_err *err);

/* Returns {"stride":[4,8,8],"channels":16,"frames":[1,4],"max_frames":81,"pad":true,"scaling":"mean-std"}; max_frames,
 * pad and scaling are optional.  Returns JSON null if the geometry is unknown.  The caller owns the result. */
json_t *vfm_geometry_json(const struct vfm_geometry *g);
/* Reads and checks an object; ignores other keys.  VFM_EUSAGE names the key; `where` is the path of o. */
int vfm_geometry_from_json(struct vfm_geometry *g, const json_t *o, const char *where, struct vfm_err *err);
/* Writes "stride 4x8x8, 16 channels, 1 + 4n frames, at most 81, scaling mean-std". */
const char *vfm_geometry_text(const struct vfm_geometry *g, char text[VFM_GEOMETRY_TEXT]);

/* Returns whether s is a name as in the JSON of tokenizers: 1 to size - 1 characters of A-Z a-z 0-9 .  _ : / + -. */
bool vfm_is_plain_name(const char *s, size_t size);

#endif
